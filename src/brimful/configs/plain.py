"""A mapping from JSON or YAML, read strictly: what two parsers could read differently is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from brimful.configs.files import read_config
from brimful.configs.yaml_file import parse_yaml
from brimful.errors import BadInput
from brimful.language import Plain, Quoted, Sentence, say

_MAX_DIGITS = 19  # of a whole number: no setting has more


def read_plain(path: Path) -> dict[str, Any]:
    """The mapping in a .json, .yaml or .yml file."""
    text = read_config(path, what=say("configs.config_file"))
    return parse_plain(text, name=str(path), suffix=path.suffix)


def parse_plain(text: str, *, name: str, suffix: str) -> dict[str, Any]:
    """The mapping in a text that is JSON unless its suffix says YAML."""
    return (parse_yaml if suffix.lower() in (".yaml", ".yml") else parse_json)(text, name=name)


def parse_json(text: str, *, name: str) -> dict[str, Any]:
    """A JSON object without duplicate keys, NaN, or numbers beyond 64 bits."""

    def refuse(what: Sentence) -> NoReturn:
        raise BadInput(say("configs.in_file", name=Quoted(name), what=what))

    def integer(digits: str) -> int:
        return (
            int(digits)
            if len(digits) <= _MAX_DIGITS
            else refuse(say("configs.digits_too_large", number=digits[:12]))
        )

    def real(digits: str) -> float:
        number = float(digits)
        return (
            number if math.isfinite(number) else refuse(say("configs.digits_not_finite", number=digits[:12]))
        )

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                refuse(say("configs.duplicate_key", key=Quoted(key[:60])))
            found[key] = value
        return found

    try:
        found = json.loads(
            text,
            object_pairs_hook=once,
            parse_int=integer,
            parse_float=real,
            parse_constant=lambda word: refuse(say("configs.not_number", word=word)),
        )
    except json.JSONDecodeError as error:
        raise BadInput(
            say("configs.line_not_json", name=Quoted(name), line=Plain(error.lineno), problem=error.msg)
        ) from None
    except RecursionError:
        refuse(say("configs.config_nested_too_deeply"))
    if not isinstance(found, dict):
        refuse(say("configs.not_an_object", name=type(found).__name__))
    return found
