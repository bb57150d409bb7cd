"""Every CUDA storage a fake run makes, from the op that made it until its last reference is gone.

The run is ordinary Python on fake tensors. This dispatch mode sees each op before PyTorch's fake kernels do,
records new storages, and learns of their end from a weak reference: what is freed, and when, is decided by
the same reference counts as on a GPU. Where a dispatch mode makes PyTorch take a different branch than
without one, and where CUDA kernels allocate memory that no op shows, `rules` and `buffers` say what a GPU
does.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from brimful.language import say
from brimful.tracing.buffers import GEMMS, buffers_of
from brimful.tracing.cuda_device import CudaDevice
from brimful.tracing.places import Places
from brimful.tracing.rules import InPlace
from brimful.tracing.speed import Cost
from brimful.tracing.tape import Place, Tape
from brimful.tracing.values import is_real, runs_for_real

CUDA = "cuda"
_PRIM_DEVICE = torch.ops.prim.device.default
_SCALAR = torch.ops.aten._local_scalar_dense.default
# Ops about memory that a fake tensor does not have.
_MEMORY = {"aten::pin_memory", "aten::_pin_memory", "aten::is_pinned", "aten::record_stream"}
# Ops that write into their arguments, allocate nothing, and have no fake kernel in PyTorch.
_WRITES_ONLY = {"aten::_fused_sgd_", "aten::_fused_adagrad_"}
_EMPTY = "empty_strided"  # allocates memory and runs no kernel
_ANSWERED = frozenset(_MEMORY | _WRITES_ONLY)
CONVOLUTION_NOTE = say("tracing.note_convolutions")


class Recorder(TorchDispatchMode):
    """Writes a `Tape` while it is active. `device` is cpu in the rough mode, where every tensor counts."""

    def __init__(self, card: CudaDevice, *, device: str = CUDA) -> None:
        super().__init__()
        self.card = card
        self.device = device
        self.tape = Tape()
        self.paused = 0  # while a compiler traces: its own runs are not the GPU's
        self.places = Places()
        # By step, then op and number format.
        self.costs: defaultdict[int, dict[tuple[str, str], Cost]] = defaultdict(dict)
        self.in_place = InPlace()
        # Storage -> its block, and the weak reference that watches it.
        self._blocks: dict[int, tuple[int, Any]] = {}
        # Results of `all`: a run that goes well finds every number finite and no token padded.
        self._true: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # Real CPU tensors into which a fake one was written: their values are no longer valid.
        self._stale: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # Storages that freed their memory and may allocate it again: FSDP's gathered parameters, between
        # uses.
        self._emptied: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._cublas_threads: set[int] = set()
        self._graph = -1

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo compiles nothing while a dispatch mode is active, unless the mode allows it."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.paused and any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # a wrapper such as DTensor has no memory, and runs the op on its parts
        if self.paused or func is _PRIM_DEVICE:
            if not self.paused:
                self.in_place.device_asked(args[0])
            return func(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        name = func._schema.name
        if name in _ANSWERED:
            return self._answer(name, args)
        name = name.removeprefix("aten::")
        inputs = _tensors((args, kwargs) if kwargs else args)
        if self._runs_for_real(func, name, inputs, args, kwargs):
            with _disable_current_modes():
                return func(*args, **kwargs)
        if func is _SCALAR:
            return self._invent(args[0])
        result = NotImplemented
        if torch.is_inference_mode_enabled() and _is_composite(func):
            # Inference mode passes composite ops unopened: decompose them, so that what they make inside is
            # seen.
            with self:
                result = func.decompose(*args, **kwargs)
        return self._run(func, name, inputs, args, kwargs) if result is NotImplemented else result

    def _runs_for_real(self, func: Any, name: str, inputs: Sequence[Any], args: Any, kwargs: Any) -> bool:
        """Whether the op runs on the CPU. A real tensor that a fake one is written into becomes unknown."""
        if self.device != CUDA:
            return False
        stale = self._stale
        if not (stale and any(t.untyped_storage()._cdata in stale for t in inputs)) and runs_for_real(
            func, name, inputs, args, kwargs
        ):
            return True
        if func._schema.is_mutable and inputs and is_real(inputs[0]):
            storage = inputs[0].untyped_storage()
            stale[storage._cdata] = storage
        return False

    def _run(self, func: Any, name: str, inputs: Sequence[Any], args: Any, kwargs: Any) -> Any:
        backward = self._in_backward()
        overwritten = self.in_place.overwritten(func, name, args) if backward else None
        out = func(*args, **kwargs)
        self.tape.ops += 1
        results = [out] if isinstance(out, torch.Tensor) else _tensors(out)
        if name == "all":
            self._true[out.untyped_storage()._cdata] = out.untyped_storage()
        if not any(self._counts(t) for t in results) and not any(self._counts(t) for t in inputs):
            return out
        place = self.places.of(name, backward=backward, setup=not self.places.called_once)
        before = len(self.tape.blocks)
        for tensor in results:
            if self._counts(tensor):
                self._record_tensor(tensor, place, inputs, overwritten)
                if func._schema.is_mutable:
                    self._first_use(tensor, name, inputs)
        if backward:
            self.in_place.made(name, out)
        if self.device == CUDA:
            self._take_buffers(name, args, results, place)
        made = len(self.tape.blocks) > before and name != _EMPTY
        if made or func._schema.is_mutable or overwritten is not None:
            again = backward and bool(self.places.inside)  # a module called in backward: checkpointing
            flops = self._flops(func, args, kwargs, out)
            self._add_cost(name, flops, [*inputs, *results], again=again)
        return out

    def ran(self, name: str, tensors: Sequence[Any]) -> None:
        """A fused kernel, not an op: the bytes it moved, and its name for buffers it is first to use."""
        if self.paused:
            return
        for tensor in tensors:
            self._first_use(tensor, name, tensors)
        self._add_cost(name, 0, tensors, again=False)

    def _first_use(self, tensor: Any, name: str, tensors: Sequence[Any]) -> None:
        """Compiled code allocates memory before it knows the op: the op that writes first made it."""
        number = self.block_of(tensor)
        if number is None or self.tape.blocks[number].place.op != _EMPTY:
            return
        block = self.tape.blocks[number]
        block.place = block.place._replace(op=name, line="")  # one line calls all of a compiled graph
        block.sources = tuple(b for t in tensors if (b := self.block_of(t)) not in (None, number))

    def _flops(self, func: Any, args: Any, kwargs: Any, out: Any) -> int:
        """PyTorch's own count. What it cannot count is noted, and does not end the trace."""
        count = flop_registry.get(func._overloadpacket)
        if count is None:
            return 0
        # Overloads that name the result's format have it where the count expects the result's shape.
        given = [value for value in args if not isinstance(value, torch.dtype)]
        try:
            return int(count(*given, **kwargs, out_val=out))
        except (TypeError, ValueError, IndexError, AttributeError, AssertionError, RuntimeError) as error:
            self.tape.note(say("tracing.note_flops", op=str(func), kind=type(error).__name__))
            return 0

    def _add_cost(self, name: str, flops: int, tensors: Sequence[Any], *, again: bool) -> None:
        """One call. FLOPs are PyTorch's own count; bytes are every tensor read or written, once."""
        dtype = next((str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()), "int64")
        cost = self.costs[len(self.tape.step_ends)].setdefault((name, dtype), Cost())
        cost.calls += 1
        cost.flops += flops
        cost.recomputed_flops += flops if again else 0
        cost.bytes += sum(t.numel() * t.element_size() for t in tensors)

    def _in_backward(self) -> bool:
        graph = torch._C._current_graph_task_id()
        if graph == -1:
            return False
        if graph != self._graph:
            self._graph = graph
            self.tape.backward_starts.append(len(self.tape.events))
        return True

    def _counts(self, tensor: Any) -> bool:
        return bool(tensor.device.type == self.device)

    def _record_tensor(self, tensor: Any, place: Place, inputs: Sequence[Any], overwritten: Any) -> None:
        """Record the tensor's storage if it is new, or has grown."""
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        known = self._blocks.get(storage._cdata)
        if known is not None:
            if self.tape.blocks[known[0]].bytes != size:
                self.resized(storage, place)
            return
        if size == 0:
            return
        if overwritten is not None:
            shared = self.block_of(overwritten)
            if shared is not None and self.tape.blocks[shared].bytes == size:
                self.tape.rules["in-place backward"] += 1
                self.tape.blocks[shared].holders += 1
                self._watch(storage, shared)
                return
        sources = tuple(b for t in inputs if (b := self.block_of(t)) is not None)
        number = self.tape.alloc(size, place, sources=sources)
        self.tape.blocks[number].shape = tuple(tensor.shape)
        self.tape.blocks[number].dtype = str(tensor.dtype).removeprefix("torch.")
        self._watch(storage, number)

    def resized(self, storage: Any, place: Place) -> None:
        """A storage whose size changed has a new block; the old one is freed once its data is copied."""
        number, _ = self._blocks.pop(storage._cdata, (None, None))
        if storage.nbytes():
            self._watch(storage, self.tape.alloc(storage.nbytes(), place))
        else:
            self._emptied[storage._cdata] = storage
        if number is not None:
            self.tape.let_go(number)

    def knows(self, storage: Any) -> bool:
        """Whether the storage is on the GPU: it has memory there, or had some before it was emptied."""
        return storage._cdata in self._blocks or storage._cdata in self._emptied

    def block_of(self, tensor: Any) -> int | None:
        known = self._blocks.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[0]

    def _watch(self, storage: Any, number: int) -> None:
        key = storage._cdata

        def gone(reference: Any) -> None:
            known = self._blocks.get(key)
            if known is not None and known[1] is reference:
                del self._blocks[key]
                self.tape.let_go(number)

        self._blocks[key] = (number, weakref.ref(storage, gone))

    def _take_buffers(self, name: str, args: Any, results: Sequence[Any], place: Place) -> None:
        """What the kernel allocates itself: freed when it returns, except for the workspace of cuBLAS."""
        if "convolution" in name:
            self.tape.note(CONVOLUTION_NOTE)
        taken: list[int] = []
        brief: list[int] = []
        for buffer in buffers_of(self.card, name, args, results):
            self.tape.rules[buffer.rule] += 1
            number = self.tape.alloc(buffer.bytes, place, role="kernel_buffers")
            while brief:
                self.tape.let_go(brief.pop())
            (brief if buffer.brief else taken).append(number)
        if name in GEMMS and (thread := threading.get_ident()) not in self._cublas_threads:
            self._cublas_threads.add(thread)
            self.tape.rules["BLAS workspace"] += 1
            self.tape.alloc(self.card.blas_workspace_bytes, place, role="workspaces")
        for number in reversed(taken):
            self.tape.let_go(number)

    def _answer(self, name: str, args: Any) -> Any:
        if name == "aten::is_pinned":
            return True
        if name == "aten::record_stream":
            return None  # one stream is recorded, see FakeStream
        if name in _WRITES_ONLY:
            return None
        self.tape.rules["pin_memory"] += 1
        return args[0]

    def _invent(self, tensor: Any) -> Any:
        """A value is requested and there is none: return what is known, or a neutral one, counted by line."""
        constant = getattr(tensor, "constant", None)
        if constant is not None:
            return constant.item()
        self.tape.values[self.places.line()] += 1
        if tensor.dtype == torch.bool:
            return self._true.get(tensor.untyped_storage()._cdata) is not None
        return 1.0 if tensor.dtype.is_floating_point else 1


@cache
def _is_composite(func: Any) -> bool:
    known: bool = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    return func.namespace == "aten" and known


def _tensors(nested: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor)]
