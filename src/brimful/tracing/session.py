"""One traced run: the shim, the fake card, the recorder, and what watches steps and modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
import torch._dynamo  # every FakeTensorMode loads it: here, so that it counts as loading PyTorch
from torch._subclasses.fake_tensor import FakeTensorMode

from brimful.errors import WorldFailed
from brimful.language import say
from brimful.tracing.compiling.compiled import compile_changes, forget_graphs, know_ops
from brimful.tracing.cuda_device import CudaDevice
from brimful.tracing.fakecuda import fake_cuda, patched, tensor_changes
from brimful.tracing.recorder import CUDA, Recorder
from brimful.tracing.rough import CpuInstead, rough_changes
from brimful.tracing.shim import load_shim
from brimful.tracing.steps import Steps


@contextmanager
def recording(card: CudaDevice, *, steps: int, rough: bool = False) -> Iterator[Recorder]:
    """Fake CUDA and a recorder around the body, which `EnoughSteps` ends after `steps` optimizer steps."""
    if not rough:
        load_shim()
        _keep_whole()
        know_ops()
    recorder = Recorder(card, device="cpu" if rough else CUDA)
    with ExitStack() as stack:
        stack.enter_context(patched(tensor_changes(recorder)))
        if rough:
            stack.enter_context(patched(rough_changes()))
            stack.enter_context(CpuInstead())
        else:
            changes = fake_cuda(card, recorder)
            stack.enter_context(patched(changes))
            stack.enter_context(patched(compile_changes(recorder, changes)))
            stack.callback(forget_graphs, recorder)
        stack.enter_context(Steps(recorder, steps).watching())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        if not rough:
            _calibrate(recorder)
        stack.enter_context(recorder)
        stack.callback(recorder.tape.close)
        yield recorder


# A CPU build has no CUDA kernel for these and decomposes them, above any mode that could see them whole. On a
# GPU each is one kernel with one result. Source: PyTorch, native_functions.yaml: the ops with their own
# kernels for CPU and CUDA beside a composite one.
_WHOLE = ("silu_backward", "mish_backward")


@cache
def _keep_whole() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    for name in _WHOLE:
        library.impl(name, _below_autograd(getattr(torch.ops.aten, name).default), "AutogradCUDA")
    return library


def _below_autograd(op: Any) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args)

    return called


def _calibrate(recorder: Recorder) -> None:
    """Run a backward pass in which the engine surely adds in place, to learn its reference counts."""
    trial = Recorder(recorder.card)
    trial.in_place.calibrating = True
    with trial:
        weight = torch.empty(4, device=CUDA, requires_grad=True)
        middle = weight * 2
        try:
            (middle * 3 + middle * 4).sum().backward()
        except RuntimeError as error:
            # Autograd counts devices only at the first backward pass of a process.
            if "device_ready_queues_" not in str(error):
                raise
            raise WorldFailed(say("tracing.backward_before_trace"), code="backward_before_trace") from error
    recorder.in_place.alone = trial.in_place.alone
