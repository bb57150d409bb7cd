"""Fit: bytes and seconds of a training or serving run, before it runs.

`brimful.fit` is both this package and the function a script calls: importing any module of the package makes
Python set the attribute `fit` of `brimful` to the package, so the package itself is callable.
"""

import sys
from types import ModuleType


class _Room(ModuleType):
    def __call__(self, *args: object, **options: object) -> object:
        from brimful.fit.fit import fit

        return fit(*args, **options)  # type: ignore[arg-type]


sys.modules[__name__].__class__ = _Room
