"""The cost of a Meter in a training loop on a CPU, measured in two ways. A step is about 0.1 s of CPU time.

Alternating: the same steps with and without it, the best fifth of each. This includes everything, also the
machine's noise: on a busy machine it is accurate to about half a percent. From inside: the CPU time of the
Meter's own code while the loop runs, with the caches as cold as the loop leaves them. This is stable, but
misses what PyTorch itself does to call a hook.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from bench.measure import Benchmark

TITLE = "Meter"
BAR = 1.005
BLOCK, PAIRS = 5, 40  # steps per turn, and pairs of turns


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
    yield Benchmark(
        name="the same, by the time inside the Meter's own code",
        subject=lambda: sum(_inside()),
        peer_name="the rest of the step",
        peer=lambda: _inside()[0],
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
    return _best_fifth(metered for metered, _ in pairs), _best_fifth(plain for _, plain in pairs)


def _best_fifth(seconds: Iterable[float]) -> float:
    """Other programs can only make a step longer, never shorter."""
    return mean(sorted(seconds)[: PAIRS // 5])


@cache
def _inside() -> tuple[float, float]:
    """CPU seconds of a step outside the Meter's code, and inside it."""
    import torch

    from brimful.meter.hooks import Hooks
    from brimful.meter.loop import Meter

    torch.set_num_threads(1)
    spent = [0.0]

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever it takes
            began = time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                spent[0] += time.thread_time() - began

        return call

    names = ("_before_forward", "_after_forward", "_before_backward", "ended", "_before_optimizer")
    with TemporaryDirectory() as folder, ExitStack() as undo:
        for owner, name in [*((Hooks, name) for name in (*names, "_after_optimizer")), (Meter, "step")]:
            original = getattr(owner, name)
            setattr(owner, name, timed(original))
            undo.callback(setattr, owner, name, original)
        model, step = _loop(torch)
        path = Path(folder) / "run.jsonl"
        with Meter(model, peak_flops_per_s=50e9, flops_per_step=1e9, terminal_s=None, jsonl=path) as meter:
            for _ in range(5):
                step()
                meter.step()
            spent[0], began = 0.0, time.thread_time()
            steps = BLOCK * PAIRS
            for _ in range(steps):
                step()
                meter.step()
            whole = time.thread_time() - began
    return (whole - spent[0]) / steps, spent[0] / steps


def _pair(meter: Any, step: Any, *, first: bool) -> tuple[float, float]:  # noqa: ANN401 - see below
    """CPU seconds of a step with the Meter and of one without; the order alternates."""
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
