"""Fit: bytes and seconds of a training or a serving, before it runs.

`brimful.fit` is this room and also the function a script calls: importing any module of the room makes Python
set the attribute `fit` of the package to the room, so the room itself can be called.
"""

import sys
from types import ModuleType


class _Room(ModuleType):
    def __call__(self, *args: object, **options: object) -> object:
        from brimful.fit.fit import fit

        return fit(*args, **options)  # type: ignore[arg-type]


sys.modules[__name__].__class__ = _Room
