"""`brimful.trace`: run a function under fake CUDA and say what a GPU would hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from brimful.errors import BadInput
from brimful.language import say
from brimful.specs.gpu import find_gpu
from brimful.tracing.report import Trace, report

STEPS = 2  # the first has no optimizer state yet, the second has; more do not change the peak
DEFAULT_GPU = "rtx-4090"


def trace(
    step_fn: Callable[[], Any],
    *,
    gpu: str = DEFAULT_GPU,
    steps: int = STEPS,
    settings: str | None = None,
    rough: bool = False,
) -> Trace:
    """What a training step holds on `gpu`, traced without one.

    `step_fn` is either a whole program (it builds a model, trains, and is stopped after `steps` optimizer
    steps), or a builder: it makes model and optimizer and returns the function that does one step. Everything
    must be made inside it, on device "cuda": a tensor made outside is real memory of this machine.

        def build():
            model = Net().cuda()
            adamw = torch.optim.AdamW(model.parameters())
            def step(): ...
            return step

        peak = brimful.trace(build, gpu="rtx-4070")
        assert peak.reserved_bytes < 10 * GIB

    `settings` is PYTORCH_CUDA_ALLOC_CONF, by default that of the environment.
    """
    if not callable(step_fn):
        raise BadInput(say("tracing.not_a_function", name=type(step_fn).__name__))
    card = find_gpu(gpu)
    need_torch()
    import torch

    from brimful.tracing.cuda_device import cuda_device
    from brimful.tracing.session import recording
    from brimful.tracing.steps import EnoughSteps

    with recording(cuda_device(card), steps=steps, rough=rough) as recorder:
        try:
            once = step_fn()
            for _ in range(steps if callable(once) else 0):
                once()
        except EnoughSteps:
            once = None
    if not recorder.tape.events:
        raise BadInput(say("tracing.nothing_on_gpu_function"), code="nothing_on_gpu")
    return report(
        recorder.tape,
        recorder.costs,
        card,
        settings=allocator_settings() if settings is None else settings,
        rough=rough,
        tf32=torch.get_float32_matmul_precision() != "highest",
    )


def allocator_settings() -> str:
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""


def need_torch() -> None:
    if find_spec("torch") is None:
        raise BadInput(say("tracing.no_torch"), code="no_torch")
