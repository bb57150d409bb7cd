"""What a Meter costs a training loop on a CPU: the same steps with and without it, in turns.

A step takes about a tenth of a second of CPU time. On a busy machine the ratio is good to half a percent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.measure import Benchmark

TITLE = "Meter"
BAR = 1.005
BLOCK, PAIRS = 1, 150  # steps in a turn, and pairs of turns


def benchmarks() -> Iterator[Benchmark]:
    if find_spec("torch") is None:
        return
    yield Benchmark(
        name=f"a training step with a Meter and its file, {PAIRS} pairs in turns",
        subject=lambda: _both()[0],
        peer_name="the same step without",
        peer=lambda: _both()[1],
        bar=BAR,
    )


@cache  # all rounds share the pairs: the best of five would pick noise, and the bar is half a percent
def _both() -> tuple[float, float]:
    import torch

    from brimful.meter.loop import Meter

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, step = _loop(torch)
    with TemporaryDirectory() as folder:
        meter = Meter(
            model,
            peak_flops_per_s=50e9,
            flops_per_step=1e9,
            terminal_s=None,
            jsonl=Path(folder) / "run.jsonl",
        )
        meter.start()
        meter.hooks.detach()
        for _ in range(5):
            step()
        pairs = [_pair(meter, step, first=bool(pair % 2)) for pair in range(PAIRS)]
        meter.close()
    without = median(plain for _, plain in pairs)
    # What a pair of neighbours differs by is the Meter's; what pairs differ by is the machine's.
    return without + median(metered - plain for metered, plain in pairs), without


def _pair(meter: Any, step: Any, *, first: bool) -> tuple[float, float]:  # noqa: ANN401 - see below
    """CPU seconds of a step with the Meter and of one without; which comes first alternates."""
    spent = {}
    for metered in (first, not first):
        if metered:
            meter.hooks.attach()
        began = time.process_time()
        for _ in range(BLOCK):
            step()
            if metered:
                meter.step()
        spent[metered] = (time.process_time() - began) / BLOCK
        if metered:
            meter.hooks.detach()
    return spent[True], spent[False]


def _loop(torch: Any) -> tuple[Any, Any]:  # noqa: ANN401 - the module, which has no types here
    """A GPT of 0.8M parameters, 16 sequences of 64 tokens, AdamW."""
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(96, 128), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(128, 96)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 96, (16, 65))

    def step() -> None:
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step
