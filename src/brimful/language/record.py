"""Sentences as JSON: what the event log stores, to be rendered later in the reader's language.

A sentence is `{"code": "scheduler.has_run", "longest": {"seconds": 3600}}`: a value names its kind, several
names are a list, and foreign words are a string. So a string in an older log still reads correctly.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from brimful.language.sentence import (
    Factor,
    Number,
    Percent,
    Plain,
    Quoted,
    Seconds,
    Sentence,
    Several,
    Size,
    Usd,
    Value,
    plain_value,
    verbatim,
)

_KINDS: Mapping[str, type[Value]] = {
    "bytes": Size,
    "factor": Factor,
    "frac": Percent,
    "microusd": Usd,
    "number": Number,
    "parts": Several,
    "plain": Plain,
    "quoted": Quoted,
    "seconds": Seconds,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
MOST_DIGITS = 9
MOST_PARTS = 50  # in one foreign sentence


def as_record(said: object) -> Any:  # noqa: ANN401 - JSON
    if isinstance(said, Sentence):
        if said.code == "language.verbatim":
            return str(said.values["text"])
        return {"code": said.code, **{name: as_record(value) for name, value in said.values.items()}}
    if isinstance(said, tuple):
        return [as_record(part) for part in said]
    if not isinstance(said, Value):
        return plain_value(said)
    first, *others = type(said).__match_args__  # type: ignore[attr-defined]
    rest = {name: getattr(said, name) for name in others}
    held = as_record(getattr(said, first))
    return held if rest == {"between": ", "} else {_NAMES[type(said)]: held, **rest}


def said_in(record: Any) -> Sentence | Several | None:  # noqa: ANN401 - JSON
    """The inverse of `as_record`; None for nothing, and a string as foreign words."""
    if isinstance(record, str):
        return verbatim(record) if record else None
    found = _value(record)
    if found is not None and not isinstance(found, (Sentence, Several)):
        raise ValueError(f"a sentence or nothing, not {type(found).__name__}")
    return found


def said_by_anybody(record: Any, *, most_chars: int = 500) -> Sentence | Several | None:  # noqa: ANN401 - JSON
    """`said_in` for an untrusted record: what cannot be parsed is shown unchanged.

    It goes into the log and into every answer, so it must be short, with numbers that JSON has and characters
    that can be encoded.
    """
    with contextlib.suppress(Exception):  # an unknown code, a missing value or one of another kind, …
        written = json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
        simple = len(written) <= 4 * most_chars and written.count(b"[") + written.count(b"{") <= MOST_PARTS
        said = said_in(record) if simple else None
        if said is not None and len(str(said)) <= most_chars:
            return said
    text = "…"
    with contextlib.suppress(RecursionError):
        text = "" if record is None else str(record)[:most_chars]
    return verbatim(text.encode("utf-8", "backslashreplace").decode()) if text else None


def _value(record: Any) -> object:  # noqa: ANN401 - JSON
    if isinstance(record, list):
        return Several(tuple(_value(part) for part in record))
    if not isinstance(record, dict):
        return record
    if isinstance(record.get("code"), str):
        return Sentence(record["code"], {name: _value(record[name]) for name in record if name != "code"})
    name = next((name for name in _KINDS if name in record), "")
    rest = {key: value for key, value in record.items() if key != name}
    if not name or rest.get("digits", 0) not in range(MOST_DIGITS + 1):
        raise ValueError(f"no kind of value: {list(record)[:3]}")
    held = record[name]
    if name == "parts":
        held = tuple(map(_value, held))
    elif name not in ("plain", "quoted") and not isinstance(held, int | float):
        raise ValueError(f"{name} of {type(held).__name__}")
    return _KINDS[name](held, **rest)  # type: ignore[call-arg]
