"""A mapping out of JSON or YAML, read strictly: what two readers could understand differently is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from brimful.configs.files import decode, read_config
from brimful.configs.yaml_file import parse_yaml
from brimful.errors import BadInput

_MAX_DIGITS = 19  # of a whole number: more is no setting


def read_plain(path: Path) -> dict[str, Any]:
    """The mapping in a .json, .yaml or .yml file."""
    raw = read_config(path, what="a .py, .json or .yaml file")
    text = decode(raw, name=str(path))
    return parse_plain(text, name=str(path), suffix=path.suffix)


def parse_plain(text: str, *, name: str, suffix: str) -> dict[str, Any]:
    """The mapping in a text that is JSON unless its suffix says YAML."""
    return (parse_yaml if suffix.lower() in (".yaml", ".yml") else parse_json)(text, name=name)


def parse_json(text: str, *, name: str) -> dict[str, Any]:
    """A JSON object without duplicate keys, NaN, or numbers beyond 64 bits."""

    def refuse(what: str) -> NoReturn:
        raise BadInput(f"{name!r}: {what}", hint="a config is one JSON object of plain settings")

    def whole(digits: str) -> int:
        return (
            int(digits) if len(digits) <= _MAX_DIGITS else refuse(f"the number {digits[:12]}… is too large")
        )

    def real(digits: str) -> float:
        number = float(digits)
        return number if math.isfinite(number) else refuse(f"{digits[:12]} is not a finite number")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                refuse(f"duplicate key {key[:60]!r}")
            found[key] = value
        return found

    try:
        found = json.loads(
            text,
            object_pairs_hook=once,
            parse_int=whole,
            parse_float=real,
            parse_constant=lambda word: refuse(f"{word} is not a number"),
        )
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{name!r} line {error.lineno} is not JSON: {error.msg}", hint="fix that line"
        ) from None
    except RecursionError:
        refuse("nested too deeply to be a config")
    if not isinstance(found, dict):
        refuse(f"a {type(found).__name__}, not an object")
    return found
