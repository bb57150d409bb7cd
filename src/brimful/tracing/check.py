"""Five short runs on this machine's card, measured with PyTorch's own counters: for `brimful check`.

The programs are those of `fit --exact`, so that the same code is predicted, traced and run. On a fake card
the same functions are rehearsed: its counters are the tape's, and the clock is given.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from brimful.errors import WorldFailed
from brimful.fit.fit import estimate
from brimful.language import say
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.presets import find_preset
from brimful.specs.training import Training
from brimful.tracing.models.programs import program

WARM_UP, TIMED = 3, 6  # steps; a row of the table needs five
FREE_FRAC = 0.8  # of the free memory: the most a run may need by the high end of its estimate
_BATCHES = (16, 8, 4, 2, 1)
# What differs between the runs: number formats, accumulation, recomputation, a deeper model.
_RUNS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("mixed", "gpt2", {}),
    ("accumulated", "gpt2", {"accumulation": 4}),
    ("fp32", "gpt2", {"dtype": "float32", "casts": "none"}),
    ("checkpointed", "gpt2", {"checkpointing": "full"}),
    ("deeper", "gpt2-medium", {"optimizer_kernel": "foreach"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRun:
    """One of the five runs, and its prediction."""

    code: str
    model: Model
    training: Training
    predicted: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the card reported: peaks in bytes, and the seconds of each timed step."""

    allocated_bytes: int
    reserved_bytes: int
    steps_s: tuple[float, ...]


def card_here() -> tuple[str, int]:
    """The name of the first card as PyTorch reports it, and its free bytes."""
    import torch

    if not torch.cuda.is_available():
        raise WorldFailed(say("tracing.check_no_gpu", torch=torch.__version__), code="no_gpu")
    free, _ = torch.cuda.mem_get_info()
    return torch.cuda.get_device_name(0), int(free)


def short_runs(gpu: Gpu, free_bytes: int) -> list[ShortRun]:
    """The five runs, each with the largest batch that surely fits; fewer if not even one sequence does."""
    found = []
    for code, name, changes in _RUNS:
        model = replace(find_preset(name).model, family="", gelu_tensors=1)
        for batch in _BATCHES:
            settings: dict[str, Any] = {"dtype": "bfloat16" if gpu.bf16 else "float16", "accumulation": 1}
            training = Training(
                batch_size=batch, sequence_tokens=1024, compiled=False, even_lengths=True,
                **settings | changes,
            )  # fmt: skip
            predicted = estimate(model, training, gpu, 0, correction=None)
            if predicted.memory.device_bytes.high <= FREE_FRAC * free_bytes:
                found.append(ShortRun(code=code, model=model, training=training, predicted=predicted))
                break
    return found


def measure(run: ShortRun, clock: Callable[[], float]) -> Measured | None:
    """Warm-up, then timed steps. None if the card ran out of memory."""
    import torch

    _clear()
    torch.cuda.reset_peak_memory_stats()
    step = None
    try:
        step = program(run.model, run.training)()
        for _ in range(WARM_UP):
            step()
        torch.cuda.synchronize()
        times = []
        for _ in range(TIMED):
            begun = clock()
            step()
            torch.cuda.synchronize()
            times.append(clock() - begun)
    except torch.cuda.OutOfMemoryError:
        return None
    else:
        return Measured(
            allocated_bytes=int(torch.cuda.max_memory_allocated()),
            reserved_bytes=int(torch.cuda.max_memory_reserved()),
            steps_s=tuple(times),
        )
    finally:
        del step
        _clear()


def _clear() -> None:
    """Release what the previous run held: its graph has cycles, and the allocator a cache."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
