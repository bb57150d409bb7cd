"""Which values of a traced program are real, and what happens to those that are not.

A GPU's tensors have no values here. The CPU's do, if the program may look at them: where a batch starts in a
file, how wide a layer is, how long a sentence. Weights made on the CPU stay fake, since an 8B model would not
fit in this machine and nothing reads them.

An integer that has to be invented is an `Unknown`, and so is everything computed from it: if one reaches a
shape, a slice or a size, the trace cannot know what it measures, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from brimful.tracing.tape import Tape

SMALL = 1 << 16  # largest floating-point tensor from a factory that is made for real, in elements
LARGE = 1 << 24  # beyond this, no computing with a floating-point tensor: weights read from a file
# Numbers that follow from the arguments.
_COUNTED = frozenset({"arange", "linspace", "logspace", "scalar_tensor", "randint", "randperm", "eye"})
# Ops that take a little of a large tensor without computing with it.
_PICKS = frozenset({"index", "index_select", "gather", "select_copy", "slice_copy", "lift_fresh"})


def is_real(tensor: Any) -> bool:
    """A CPU tensor with numbers."""
    return not isinstance(tensor, FakeTensor) and bool(tensor.device.type == "cpu")


def runs_for_real(func: Any, name: str, tensors: Iterable[Any], args: Any, kwargs: Any) -> bool:
    """Whether an op runs on this machine: all its inputs are real, and its result stays on the CPU."""
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        return False
    read = False
    for tensor in tensors:
        if not is_real(tensor):
            return False
        read = True
        if tensor.numel() > LARGE and tensor.is_floating_point() and not (name in _PICKS or _is_view(func)):
            return False
    return read or _factory_is_real(name, args, kwargs)


def _factory_is_real(name: str, args: Any, kwargs: Any) -> bool:
    if name in _COUNTED:
        return True
    if not args or not isinstance(args[0], (list, tuple, torch.Size)):
        return False
    dtype = kwargs.get("dtype") or (None if name == "full" else torch.get_default_dtype())
    exact = dtype is not None and not (dtype.is_floating_point or dtype.is_complex)
    return exact or math.prod(args[0]) <= SMALL


@cache
def _is_view(func: Any) -> bool:
    return any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments)


class Unknown(int):
    """An integer of unknown value. Arithmetic with one gives another."""


def _propagating(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def computed(*numbers: Any) -> Any:
        result = plain(*numbers)
        return Unknown(result) if type(result) is int else result

    return computed


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(Unknown, f"__{_name}__", _propagating(f"__{_name}__"))
    setattr(Unknown, f"__r{_name}__", _propagating(f"__r{_name}__"))

# Functions that take a size: an `Unknown` among their arguments means that a shape was invented.
_MAKERS = (
    "arange", "empty", "full", "linspace", "narrow", "ones", "rand", "randint", "randn", "randperm", "zeros",
)  # fmt: skip
_METHODS = (
    "__getitem__", "__setitem__", "expand", "narrow", "new_empty", "new_full", "new_ones", "new_zeros",
    "repeat", "repeat_interleave", "reshape", "resize_", "split", "view",
)  # fmt: skip


def shape_changes(tape: Tape, line: Callable[[], str]) -> list[tuple[Any, str, Any]]:
    """Records in `tape.shaped` where an invented integer shapes a tensor."""

    def watched(plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def called(*args: Any, **kwargs: Any) -> Any:
            if tape.values and (_unknown(args) or _unknown(tuple(kwargs.values()))):
                tape.shaped[line()] += 1
            return plain(*args, **kwargs)

        return called

    def unknown(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def read(tensor: Any) -> Any:
            before = tape.values.total()
            found = plain(tensor)
            return _as_unknown(found) if tape.values.total() > before else found

        return read

    def as_size(plain: Callable[[Any], int]) -> Callable[[Any], int]:
        # Python converts what these return to a plain int, so its use cannot be followed.
        def number(tensor: Any) -> int:
            before = tape.values.total()
            found = plain(tensor)
            if tape.values.total() > before and not tensor.is_floating_point():
                tape.shaped[line()] += 1
            return found

        return number

    return [
        *((torch, name, watched(getattr(torch, name))) for name in _MAKERS),
        *((torch.Tensor, name, watched(getattr(torch.Tensor, name))) for name in _METHODS),
        *((torch.Tensor, name, unknown(getattr(torch.Tensor, name))) for name in ("item", "tolist")),
        *((torch.Tensor, name, as_size(getattr(torch.Tensor, name))) for name in ("__int__", "__index__")),
    ]


def _as_unknown(found: Any) -> Any:
    if type(found) is int:
        return Unknown(found)
    return [_as_unknown(each) for each in found] if isinstance(found, list) else found


def watched_range(tape: Tape, line: Callable[[], str]) -> Callable[..., range]:
    """`range` for a traced script: how often a loop runs matters like a size does.

    Python counts with plain integers, so this is the last place where an `Unknown` is seen.
    """

    def counted(*numbers: Any) -> range:
        if _unknown(numbers):
            tape.shaped[line()] += 1
        return range(*numbers)

    return counted


def made_up_array(tensor: Any, tape: Tape, line: Callable[[], str]) -> Any:
    """Numbers for numpy instead of a tensor that has none. An integer read from them is an `Unknown`."""
    import numpy as np

    tape.values[line()] += 1
    dtype = str(tensor.dtype).removeprefix("torch.").replace("bool", "bool_")
    plain = np.ones(tuple(tensor.shape), dtype=dtype)
    if tensor.is_floating_point() or tensor.dtype == torch.bool:
        return plain

    class Array(np.ndarray[Any, Any]):
        """Integers of unknown value."""

        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            return Unknown(found) if isinstance(found, np.integer) else found

        def item(self, *at: Any) -> Any:
            return Unknown(super().item(*at))

        def tolist(self) -> Any:
            return _as_unknown(super().tolist())

        def __index__(self) -> int:
            tape.shaped[line()] += 1
            return int(super().item())

        __int__ = __index__

        def __array_wrap__(self, found: Any, context: Any = None, return_scalar: bool = False) -> Any:
            # max(), sum() and similar return a scalar, which would be a plain number.
            return Unknown(found) if return_scalar and found.dtype.kind in "iu" else found.view(Array)

    return plain.view(Array)


def _unknown(arguments: Any) -> bool:
    for given in arguments:
        if type(given) is Unknown:
            return True
        if isinstance(given, slice):
            if Unknown in (type(given.start), type(given.stop)):
                return True
        elif isinstance(given, (tuple, list)) and len(given) < 16 and _unknown(given):
            return True
    return False
