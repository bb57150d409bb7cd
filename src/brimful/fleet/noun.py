"""Nouns that are made by the million: frozen to the type checker, plain to the interpreter.

A frozen dataclass sets each field through `object.__setattr__`, which took a sixth of a rehearsal. mypy
refuses an assignment to a field of these just as well, before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Noun = TypeVar("Noun")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def noun(kind: type[Noun]) -> type[Noun]:
    """What `@dataclass(frozen=True, slots=True, kw_only=True)` says, at the price of a plain one."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(kind)
