"""torch.compile without a GPU: what is kept for backward is the compiler's own choice, fusion is not done.

A compiled module is traced by AOTAutograd with inductor's decompositions and cut by its min-cut partitioner:
the saved set is the one a GPU run keeps. The two graphs are then run op by op. Inductor would fuse most of
what lives inside them, so their temporaries are an upper bound; without every one of those that is no result
of a library kernel (a matmul, attention, a convolution) they are a lower one. Both ends are reported.
Functions that are compiled without a module, and modules AOTAutograd cannot trace, run as if not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

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
            recorder.tape.note(PLAIN_NOTE)
            return model
        model.forward = Compiled(model, recorder)
        return model

    def compile_in_place(model: Any, *_: Any, **__: Any) -> None:
        compile_anything(model)

    return [(torch, "compile", compile_anything), (nn.Module, "compile", compile_in_place)]


class Compiled:
    """Stands in for a module's forward: graphs made at the first call of each shape, run from then on."""

    def __init__(self, model: Any, recorder: Recorder) -> None:
        self.model = model
        self.forward = model.forward
        self.recorder = recorder
        self._made: dict[Any, Callable[..., Any] | None] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        held = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        key = (
            _shapes((args, kwargs)),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cuda"),
            self.model.training,
        )
        if key not in self._made:
            self._made[key] = self._make()
        chosen = self._made[key]
        if chosen is not None:
            try:
                self.recorder.tape.rules[RULE] += 1
                self.recorder.tape.note(NOTE)
                return chosen(held, args, kwargs)
            except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError):
                self._made[key] = None
        self.recorder.tape.note(PLAIN_NOTE)
        return self.forward(*args, **kwargs)

    def _make(self) -> Callable[..., Any]:
        from torch._functorch.aot_autograd import aot_function
        from torch._functorch.partitioners import min_cut_rematerialization_partition
        from torch._inductor.decomposition import select_decomp_table
        from torch.nn.utils.stateless import _reparametrize_module

        def call(held: Any, args: Any, kwargs: Any) -> Any:
            with _reparametrize_module(self.model, held, tie_weights=True):
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


def _shapes(nested: Any) -> Any:
    from torch.utils._pytree import tree_leaves

    return tuple(
        (tuple(leaf.shape), leaf.dtype, leaf.requires_grad) if isinstance(leaf, torch.Tensor) else str(leaf)
        for leaf in tree_leaves(nested)
    )
