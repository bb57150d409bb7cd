"""When a training step ends, which memory is a parameter, a gradient or optimizer state, and when to stop."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from brimful.language import say
from brimful.specs.parts import Part
from brimful.tracing.recorder import Recorder
from brimful.tracing.tape import OPTIMIZER

RECURRENT_NOTE = say("tracing.note_recurrent")


class EnoughSteps(BaseException):
    """The requested steps are done: unwinds the user's code. Not an Exception, so few handlers catch it."""


class Steps:
    """Hooks on every optimizer and module of the process."""

    def __init__(self, recorder: Recorder, wanted: int) -> None:
        self.recorder = recorder
        self.wanted = wanted
        self._checker: tuple[Any, Any] | None = None
        # The first optimizer to step: if there are several, its calls count. A weak reference: a script may
        # finish one training and begin another.
        self._leader: Callable[[], Any] = lambda: None

    @contextmanager
    def watching(self) -> Iterator[None]:
        from torch.nn.modules import module
        from torch.optim import optimizer

        handles = [
            optimizer.register_optimizer_step_pre_hook(self._before_step),
            optimizer.register_optimizer_step_post_hook(self._after_step),
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self.recorder.places.leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            if self._checker is not None:
                self._checker[0].is_fake_tensor = self._checker[1]

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if optimizer is self._leader() and len(self.recorder.tape.step_ends) >= self.wanted:
            raise EnoughSteps
        self.recorder.places.phase = OPTIMIZER
        self._mark_weights(optimizer)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self.recorder.places.phase = None
        self._mark_weights(optimizer)  # gradients may be made in the step's closure
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                self._mark(value, "optimizer_state")
        if self._leader() is None:
            self._leader = weakref.ref(optimizer)
        if optimizer is self._leader():
            self.recorder.tape.step_ends.append(len(self.recorder.tape.events))

    def _mark_weights(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._mark(parameter, "weights")
                self._mark(parameter.grad, "gradients")

    def _enter(self, module: Any, args: Any) -> None:
        places = self.recorder.places
        if not places.inside:
            # Not right after the last step: other optimizers may follow it; the next forward pass shows that
            # they are done.
            if len(self.recorder.tape.step_ends) >= self.wanted:
                raise EnoughSteps
            self._answer_transformers()
            if any(t.numel() == 0 for t in tree_leaves(args) if isinstance(t, torch.Tensor)):
                self.recorder.tape.empty[type(module).__name__] += 1
            for parameter in module.parameters():
                self._mark(parameter, "weights")
            for buffer in module.buffers():
                self._mark(buffer, "buffers")
        if isinstance(module, torch.nn.RNNBase):
            self.recorder.tape.rules["recurrent layer: cell by cell"] += 1
            self.recorder.tape.note(RECURRENT_NOTE)
        places.enter(module, args)

    def _answer_transformers(self) -> None:
        """transformers inspects masks unless a tensor is fake, and keeps a mask it could have skipped.

        A run on a GPU inspects them, so this one must too: it is answered as for a batch without padding.
        """
        imports: Any = sys.modules.get("transformers.utils.import_utils")
        if self._checker is None and imports is not None and hasattr(imports, "is_fake_tensor"):
            self._checker = (imports, imports.is_fake_tensor)
            imports.is_fake_tensor = lambda _: False
            self.recorder.tape.rules["transformers: masks are looked into"] += 1

    def _mark(self, tensor: Any, role: Part) -> None:
        if is_traceable_wrapper_subclass(tensor):  # a DTensor: this rank's shard
            for name in tensor.__tensor_flatten__()[0]:
                self._mark(getattr(tensor, name), role)
        elif isinstance(tensor, torch.Tensor) and (number := self.recorder.block_of(tensor)) is not None:
            block = self.recorder.tape.blocks[number]
            block.role = block.role or role
