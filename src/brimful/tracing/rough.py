"""The rough mode: if no shim can be built, "cuda" is read as "cpu" and CPU-typed fakes are recorded.

It is less accurate, and labelled as such wherever it is shown. A CPU build keeps other tensors than a GPU:
dropout masks in full precision, norm statistics in the input's format, math attention, cross-entropy with
fewer casts. Rules about CUDA kernels do not apply, so no workspaces and no buffers are counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from brimful.tracing.fakecuda import always

_CPU = torch.device("cpu")


class CpuInstead(TorchFunctionMode):
    """Reads every request for a CUDA device as one for the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0].clone()
        here = [_here(a) for a in args]
        return func(*here, **{name: _here(value) for name, value in kwargs.items()})


def _here(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return _CPU
    return "cpu" if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")) else value


def rough_changes() -> list[tuple[Any, str, Any]]:
    """What a script asks before it trains: there is a GPU, autocast is for it."""
    begin = torch.amp.autocast_mode.autocast.__init__

    def init(context: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(context, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "synchronize": None,
    }
    return [
        *[(torch.cuda, name, always(answer)) for name, answer in answers.items()],
        (torch.amp.autocast_mode.autocast, "__init__", init),
    ]
