"""How a Meter knows where a training step is: PyTorch's own hooks, set when it begins and removed after.

- forward: the module's forward hooks; a pass without gradients, or in eval mode, is an evaluation
- backward: a hook on the forward pass's result, and the autograd engine's callback at the end
- optimizer: the hooks every PyTorch optimizer calls around `step`
- data, waiting, collectives: the few PyTorch functions that wait, timed while a Meter runs

None of them asks the device for anything, so none of them waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from brimful.meter.timeline import PAUSE, Timeline

EVALUATION = PAUSE + "evaluation"
# Methods that fetch from a device.
WAITS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__")
COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor",
    "all_to_all", "all_to_all_single", "broadcast", "barrier",
)  # fmt: skip


@dataclass(slots=True)
class Seen:
    """What happened in one step."""

    micro_steps: int = 0
    inputs: list[tuple[int, int]] = field(default_factory=list)  # tokens and their sequence length
    syncs: int = 0
    sync_s: float = 0.0
    collectives: int = 0
    comm_s: float = 0.0


class Hooks:
    def __init__(self, module: Any, timeline: Timeline, *, forward: bool = True, waits: bool = False) -> None:
        """`forward=False`: the framework says where forward and backward begin (Lightning)."""
        self._module, self._timeline = module, timeline
        self._forward, self.waits = forward, waits
        self._kind = next((each.device.type for each in module.parameters()), "cpu")
        self._undo: list[Callable[[], object]] = []
        self._seen = Seen()
        self._paused = 0
        self._evaluation: int | None = None  # the mark at which one began
        # The phase between others: inside `optimizer.step(closure)` it is the optimizer's.
        self._rest = "other"
        self._inside = False  # a wait within a wait counts once
        self.dtype: Any = None  # the dtype of the forward pass's matmuls

    def attach(self) -> None:
        if self._forward:
            pre = self._module.register_forward_pre_hook(self._before_forward, with_kwargs=True)
            post = self._module.register_forward_hook(self._after_forward)
            self._undo += [pre.remove, post.remove]
        before = register_optimizer_step_pre_hook(self._before_optimizer)
        after = register_optimizer_step_post_hook(self._after_optimizer)
        self._undo += [before.remove, after.remove]
        self._wrap(_BaseDataLoaderIter, "__next__", self._next_batch)
        if self.waits:
            for name in WAITS:
                self._wrap(torch.Tensor, name, self._wait)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for name in COLLECTIVES:
                self._wrap(torch.distributed, name, self._collective)

    def detach(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def take(self) -> Seen:
        """What was seen since the last call; called where the timeline is cut."""
        seen, self._seen = self._seen, Seen()
        self._evaluation, self._rest = None, "other"
        return seen

    @contextmanager
    def pause(self, kind: str) -> Iterator[None]:
        with self.part(PAUSE + kind):
            self._paused += 1
            try:
                yield
            finally:
                self._paused -= 1

    @contextmanager
    def part(self, phase: str) -> Iterator[None]:
        before = self._timeline.switch(phase)
        try:
            yield
        finally:
            self._timeline.switch(before)

    def began(self, phase: str) -> None:
        """The step has reached this part, according to a framework that calls us from its own hooks."""
        if not self._paused:
            self._timeline.switch(phase)

    def ended(self) -> None:
        if not self._paused:
            self._timeline.switch(self._rest)

    def was(self, since: int, kind: str) -> int:
        """Everything since that mark was such a pause, reported when it is over; returns where it ended."""
        self._timeline.rename(since, PAUSE + kind)
        self._evaluation = None
        self.ended()
        return self._timeline.at

    def count(self, inputs: Iterable[object]) -> None:
        """A forward pass over these: the first two-dimensional integers are its tokens."""
        self._seen.micro_steps += 1
        whole = (torch.int64, torch.int32)
        for each in inputs:
            if isinstance(each, torch.Tensor) and each.dim() == 2 and each.dtype in whole:
                self._seen.inputs.append((each.numel(), each.shape[1]))
                return

    # What PyTorch calls.

    def _before_forward(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or self._paused or self._recomputing():
            return
        if not (module.training and torch.is_grad_enabled()):
            if self._evaluation is None:
                self._evaluation = self._timeline.since_data()  # its first batch was fetched for it
            self._timeline.switch(EVALUATION)
            return
        self._evaluation = None
        if self.dtype is None:
            self.dtype = _dtype(module)
        self.count((*args, *kwargs.values()))
        self._timeline.switch("forward")

    def _after_forward(self, _module: Any, _args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or self._paused or self._recomputing():
            return
        if self._evaluation is not None:
            self._timeline.rename(self._evaluation, EVALUATION)
            self._timeline.switch(self._rest)
            return
        self._timeline.switch(self._rest)
        loss = _result(output)
        if loss is not None:
            loss.register_hook(self._before_backward)

    def _recomputing(self) -> bool:
        """A forward pass within a backward pass; one that ended in a caught error is over."""
        return self._timeline.phase == "backward" and torch._C._current_graph_task_id() != -1

    def _before_backward(self, _gradient: Any) -> None:
        if self._paused:
            return
        self._timeline.switch("backward")
        torch.autograd.Variable._execution_engine.queue_callback(self.ended)

    def _before_optimizer(self, _optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._paused:
            return
        closure = kwargs.get("closure") or next((each for each in args[1:] if callable(each)), None)
        self._rest = "optimizer"
        if closure is None:
            self._timeline.switch("optimizer")

    def _after_optimizer(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._paused:
            self._rest = "other"
            self._timeline.switch("other")

    # What waits.

    def _wrap(self, owner: Any, name: str, timed: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        own = name in vars(owner)
        setattr(owner, name, wraps(original)(timed(original)))
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def following(*args: Any) -> Any:
            if self._paused or self._timeline.phase == "data":
                return original(*args)
            with self.part("data"):
                return original(*args)

        return following

    def _wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def waited(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            # Optimizers read a step counter in host memory: that does not wait.
            elsewhere = tensor.device.type != self._kind
            if elsewhere or self._inside or self._paused or self._evaluation is not None:
                return original(tensor, *args, **kwargs)
            self._inside, began = True, self._timeline.clock()
            try:
                return original(tensor, *args, **kwargs)
            finally:
                self._inside = False
                self._seen.syncs += 1
                self._seen.sync_s += self._timeline.clock() - began

        return waited

    def _collective(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def gathered(*args: Any, **kwargs: Any) -> Any:
            began = self._timeline.clock()
            try:
                return original(*args, **kwargs)
            finally:
                if not self._paused:
                    self._seen.collectives += 1
                    self._seen.comm_s += self._timeline.clock() - began

        return gathered


def _dtype(module: Any) -> Any:
    """The matmul format: autocast's, or that of the weights."""
    first = next(iter(module.parameters()), None)
    kind = "cpu" if first is None else first.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return torch.float32 if first is None else first.dtype


def _result(output: Any, depth: int = 3) -> Any:
    """The tensor whose gradient comes first: a loss if one is returned, else the first that needs one."""
    if isinstance(output, torch.Tensor):
        return output if output.requires_grad and output.grad_fn is not None else None
    if not depth or not isinstance(output, tuple | list | Mapping):
        return None
    each = output.values() if isinstance(output, Mapping) else output
    found = [one for one in (_result(part, depth - 1) for part in each) if one is not None]
    return next((one for one in found if one.dim() == 0), found[0] if found else None)
