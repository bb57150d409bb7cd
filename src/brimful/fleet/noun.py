"""Nouns that are made by the million: frozen to the type checker, plain to the interpreter.

A frozen dataclass sets each field through `object.__setattr__`, which took a sixth of a rehearsal. mypy
refuses an assignment to a field of these just as well, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ParamSpec, TypeVar, cast, dataclass_transform

Noun = TypeVar("Noun")
Given = ParamSpec("Given")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def noun(kind: type[Noun]) -> type[Noun]:
    """What `@dataclass(frozen=True, slots=True, kw_only=True)` says, at the price of a plain one."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(kind)


def maker(kind: Callable[Given, Noun]) -> Callable[Given, Noun]:
    """A function that makes a dataclass from keywords in half the time that calling the class takes.

    A call of a class packs the keywords into a dict, and unpacks it again for `__init__`; a call of a plain
    function does not. The function is written out from the fields, as `dataclass` writes out `__init__`.
    """
    known: dict[str, Any] = {"new": object.__new__, "kind": kind, "MISSING": MISSING}
    given, body = [], ["made = new(kind)"]
    for each in fields(cast(Any, kind)):
        name, known[f"of_{each.name}"] = each.name, each.default
        if each.default_factory is not MISSING:
            known[f"made_{name}"] = each.default_factory
            body.append(f"made.{name} = made_{name}() if {name} is MISSING else {name}")
        else:
            body.append(f"made.{name} = {name}")
        required = each.default is MISSING and each.default_factory is MISSING
        given.append(name if required else f"{name}=of_{name}")
    source = f"def make(*, {', '.join(given)}):\n    " + "\n    ".join([*body, "return made"])
    exec(source, known)  # noqa: S102 - of the names of our own fields
    return cast(Callable[Given, Noun], known["make"])
