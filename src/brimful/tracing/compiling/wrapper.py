"""The program that Inductor generates around its kernels, run on fake tensors with kernels that do nothing.

That wrapper is where a compiled graph allocates memory: it allocates each buffer before the kernel that fills
it, reuses a finished one for the next of its size, and frees inputs after their last use. On fake tensors it
makes the same requests in the same order as on a GPU. Library kernels (matmuls, attention) are calls of
PyTorch's ops in it, and are recorded as such. Triton is not needed: kernels are generated, not compiled.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from brimful.language import say
from brimful.tracing.fakecuda import patched
from brimful.tracing.recorder import Recorder

SHOWN_CHARS = 40

# What Inductor asks of the device, under its own names and those of torch.cuda, which are already answered.
_DEVICE = {
    **{name: name for name in ("get_device_properties", "current_device", "set_device", "device_count")},
    **{name: name for name in ("current_stream", "synchronize", "is_bf16_supported")},
    "exchange_device": "_exchange_device",
    "maybe_exchange_device": "_maybe_exchange_device",
}


@contextmanager
def fake_inductor(recorder: Recorder) -> Iterator[None]:
    """Make Inductor believe in the fake card and in Triton, and give its wrapper to us."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import scheduler
    from torch._inductor.fx_passes import fuse_attention, pad_mm
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.fx.experimental import proxy_tensor

    def would_time_padding() -> bool:
        # Asked only for a matmul whose sizes are not multiples of eight: a GPU run times it with and without
        # padding.
        recorder.tape.note(say("tracing.note_padding"))
        return False

    changes: list[tuple[Any, str, Any]] = [
        *((CudaInterface, name, staticmethod(getattr(torch.cuda, ours))) for name, ours in _DEVICE.items()),
        # One-element constants are computed on their device; ours cannot compute.
        (proxy_tensor, "CONSTANT_NUMEL_LIMIT", 0),
        (scheduler, "has_triton", lambda: True),
        (pad_mm, "has_triton", would_time_padding),
        (torch.utils._triton, "triton_hash_with_backend", lambda: ""),
        # Hand-written attention is recognised and replaced by the kernel that this card has for it.
        (fuse_attention, "_scaled_dot_product_attention", torch.nn.functional.scaled_dot_product_attention),
        (GraphLowering, "_compile_to_module_lines", lambda _, code: _module(recorder, code.value)),
    ]
    DeviceProperties.create.cache_clear()  # of the previous card
    with patched(changes):
        yield


class Kernel:
    """Replaces a fused kernel: allocates nothing, and tells the recorder what it reads and writes."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        # triton_poi_fused_add_gelu_3; one that fuses many ops has a name of several lines
        whole = "_".join(name.split("_")[2:-1])
        self.name = whole if len(whole) <= SHOWN_CHARS else f"{whole[:SHOWN_CHARS]}…"
        self.recorder = recorder

    def run(self, *args: Any, **_: Any) -> None:
        self.recorder.ran(self.name, [each for each in args if isinstance(each, torch.Tensor)])


def _empty(size: Any, stride: Any, dtype: Any) -> Any:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _reinterpret(tensor: Any, size: Any, stride: Any, offset: int = 0) -> Any:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _nothing(*_: Any, **__: Any) -> None:
    return None


# Names in the wrapper that access memory, or belong to Triton.
_OURS: dict[str, Any] = {
    "assert_alignment": _nothing,
    "assert_size_stride": _nothing,
    "async_compile": None,
    "copy_if_misaligned": lambda tensor: tensor,
    "empty_strided_cuda": _empty,
    "get_raw_stream": lambda _: 0,
    "reinterpret_tensor": _reinterpret,
}
_NOT_HERE = ("triton", "torch._inductor.runtime.triton_heuristics", "torch._C")


def _module(recorder: Recorder, text: str) -> Any:
    """The wrapper as a module, with its kernel definitions replaced."""
    names = dict(_OURS, __name__="wrapper")
    tree = ast.parse(text)
    body: list[ast.stmt] = []
    for statement in tree.body:
        kernel = _defined_kernel(statement)
        if kernel is not None:
            names[kernel] = Kernel(kernel, recorder)
        elif not _is_ours(statement):
            body.append(statement)
    tree.body = body
    # A file name that `places` does not mistake for the user's.
    exec(compile(tree, "<string>", "exec"), names)  # noqa: S102  Inductor wrote it, from the user's own program
    call: Callable[..., Any] = names["call"]
    return SimpleNamespace(call=call, runner=names.get("runner"), __file__="<string>")


def _defined_kernel(statement: ast.stmt) -> str | None:
    """name = async_compile.triton(...)"""
    match statement:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(func=ast.Attribute(value=ast.Name(id="async_compile"))),
        ):
            return name
    return None


def _is_ours(statement: ast.stmt) -> bool:
    """A statement that would bind one of our names, or needs Triton."""
    match statement:
        case ast.ImportFrom(module=str(module)):
            return module.startswith(_NOT_HERE)
        case ast.Import(names=[ast.alias(name=module)]):
            return module.startswith(_NOT_HERE)
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in _OURS
    return isinstance(statement, (ast.Expr, ast.Delete))
