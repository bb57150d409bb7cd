"""torch.compile without a GPU: what is kept for backward is the compiler's own choice, fusion is not done.

A compiled module or function is traced by AOTAutograd with inductor's decompositions and cut by its min-cut
partitioner: the saved set is the one a GPU run keeps. The two graphs are then run op by op. Inductor would
fuse most of what lives inside them, so their temporaries are an upper bound; without every one of those that
is no result of a library kernel (a matmul, attention, a convolution) they are a lower one. Both are reported.
What AOTAutograd cannot trace runs op by op; its lower end leaves out what the call makes and does not return.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from brimful.language import say
from brimful.tracing.recorder import Recorder

RULE = "torch.compile: saved set by min-cut, temporaries unfused"
NOTE = say("tracing.note_compiled")
PLAIN_NOTE = say("tracing.note_not_compiled")


def compile_changes(recorder: Recorder) -> list[tuple[Any, str, Any]]:
    def compile_anything(model: Any = None, **_: Any) -> Any:
        if model is None:
            return compile_anything
        if not isinstance(model, nn.Module):
            return functools.wraps(model)(Compiled(model, recorder, owner=None))
        model.forward = Compiled(model.forward, recorder, owner=model)
        return model

    def compile_in_place(model: Any, *_: Any, **__: Any) -> None:
        compile_anything(model)

    return [(torch, "compile", compile_anything), (nn.Module, "compile", compile_in_place)]


class Compiled:
    """Stands in for a function or a module's forward: graphs made at the first call of each shape."""

    def __init__(self, forward: Callable[..., Any], recorder: Recorder, *, owner: Any) -> None:
        self.forward = forward
        self.recorder = recorder
        self.owner = owner
        self._made: dict[Any, Callable[..., Any] | None] = {}

    def __get__(self, instance: Any, _: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.recorder.paused:  # inside a graph that is being made: part of that graph
            return self.forward(*args, **kwargs)
        models = (
            [self.owner] if self.owner is not None else list(_modules((self.forward, args, kwargs), depth=3))
        )
        held = [{**dict(m.named_parameters()), **dict(m.named_buffers())} for m in models]
        key = (
            _shapes((args, kwargs)),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cuda"),
            tuple((id(m), m.training) for m in models),
        )
        if key not in self._made:
            self._made[key] = None if _calls_backward(self.forward) else self._make(models)
        chosen = self._made[key]
        if chosen is not None:
            try:
                result = chosen(held, args, kwargs)
            except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError):
                self._made[key] = None
            else:
                self.recorder.tape.rules[RULE] += 1
                self.recorder.tape.note(NOTE)
                return result
        self.recorder.tape.note(PLAIN_NOTE)
        return self._op_by_op(args, kwargs)

    def _op_by_op(self, args: Any, kwargs: Any) -> Any:
        """Not compiled. What the call makes and does not return is what a compiler may do without."""
        recorder = self.recorder
        before = len(recorder.tape.blocks)
        result = self.forward(*args, **kwargs)
        returned = {recorder.block_of(t) for t in tree_leaves(result) if isinstance(t, torch.Tensor)}
        for number, block in enumerate(recorder.tape.blocks[before:], before):
            if number not in returned and not block.role:
                block.role = "compiled_temporaries"
        return result

    def _make(self, models: list[Any]) -> Callable[..., Any]:
        from torch._functorch.aot_autograd import aot_function
        from torch._functorch.partitioners import min_cut_rematerialization_partition
        from torch._inductor.decomposition import select_decomp_table
        from torch.nn.utils.stateless import _reparametrize_module

        def call(held: Any, args: Any, kwargs: Any) -> Any:
            with ExitStack() as stack:
                for model, tensors in zip(models, held, strict=True):
                    stack.enter_context(_reparametrize_module(model, tensors, tie_weights=True))
                return self.forward(*args, **kwargs)

        traced = aot_function(
            call,
            fw_compiler=self._compiler,
            bw_compiler=self._compiler,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=select_decomp_table(),
        )

        def run(*args: Any) -> Any:
            # The first call traces, which is the compiler's work, not the GPU's; graphs record themselves.
            self.recorder.paused += 1
            try:
                return traced(*args)
            finally:
                self.recorder.paused -= 1

        return run

    def _compiler(self, graph: Any, _: Any) -> Any:
        recorder = self.recorder
        if any(getattr(held, "requires_grad", False) for held in vars(graph).values()):
            # A weight the function reaches in a way we did not see: it would get no gradient.
            raise NotImplementedError

        def run(args: Any) -> Any:
            paused, recorder.paused = recorder.paused, 0
            before = len(recorder.tape.blocks)
            try:
                return torch.fx.Interpreter(graph).boxed_run(list(args))
            finally:
                recorder.paused = paused
                for block in recorder.tape.blocks[before:]:
                    if block.died is not None and not block.role:
                        block.role = "compiled_temporaries"

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def _modules(nested: Any, *, depth: int) -> Iterator[Any]:
    """Modules a function is given or reaches through its closure and globals, each once."""
    seen: set[int] = set()
    wave = [nested]
    for _ in range(depth):
        below: list[Any] = []
        for value in (leaf for each in wave for leaf in tree_leaves(each)):
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, nn.Module):
                yield value
            else:
                below += _reached(value)
        wave = below


def _reached(function: Any) -> list[Any]:
    inner = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(inner, "__code__", None)
    if code is None:
        return []
    cells = [cell.cell_contents for cell in inner.__closure__ or () if _is_filled(cell)]
    names = [inner.__globals__[name] for name in code.co_names if name in inner.__globals__]
    owner = getattr(function, "__self__", None)
    return [*cells, *names, *([] if owner is None else [owner])]


def _is_filled(cell: Any) -> bool:
    try:
        return bool(cell.cell_contents is not None)
    except ValueError:
        return False


def _calls_backward(function: Any) -> bool:
    """A whole training step: its gradients end in the weights, which a graph of one function cannot say."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and not {"backward", "step"}.isdisjoint(code.co_names)


def _shapes(nested: Any) -> Any:
    return tuple(
        (tuple(leaf.shape), leaf.dtype, leaf.requires_grad) if isinstance(leaf, torch.Tensor) else str(leaf)
        for leaf in tree_leaves(nested)
    )
