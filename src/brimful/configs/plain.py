"""JSON and the plain part of YAML, read strictly: what two readers could understand differently is refused.

YAML here is what training configs use of it: `key: value` lines, blocks one level deep, lists of words.
Anchors, tags and flow mappings are left unread and said so. Decision 0020 says why there is no YAML library.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

from brimful.configs.files import decode, read_config
from brimful.errors import BadInput

_MAX_DIGITS = 19  # of a whole number: more is no setting
_KEY = re.compile(r"""(?:"([^"]+)"|'([^']+)'|([A-Za-z_][\w.\-/]*))\s*:(?:\s+(.*)|)$""")
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NOTHING = ("", "null", "~")
_UNREAD = ("&", "*", "!", "{", "|", ">", "@", "`", "%")  # how a value begins that takes all of YAML to read


class NotRead(str):
    """The text of a YAML value that is more than a plain one."""

    __slots__ = ()


def read_plain(path: Path) -> dict[str, Any]:
    """The mapping in a .json, .yaml or .yml file."""
    raw = read_config(path, what="a .py, .json or .yaml file")
    text = decode(raw, name=str(path))
    if path.suffix.lower() in (".yaml", ".yml"):
        return parse_yaml(text, name=str(path))
    return parse_json(text, name=str(path))


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
                refuse(f"{key[:60]!r} stands there twice")
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


def parse_yaml(text: str, *, name: str) -> dict[str, Any]:
    """The plain part of YAML: scalars at the top, blocks of scalars or words one level below."""
    found: dict[str, Any] = {}
    block: str | None = None  # the key whose block we are in
    for number, line in enumerate(text.splitlines(), start=1):
        body = line.rstrip()
        if not body.strip() or body.lstrip().startswith("#") or body in ("---", "..."):
            continue
        inside = body[0] in " \t" or body.startswith("- ")
        if inside and block is not None:
            _add_to_block(found, block, body.strip())
            continue
        match = None if inside else _KEY.match(body)
        if match is None:
            raise BadInput(
                f"{name!r} line {number} is not `key: value`", hint="a config is a list of `key: value` lines"
            )
        key = next(part for part in match.groups()[:3] if part)
        if key in found:
            raise BadInput(f"{name!r} line {number}: {key!r} stands there twice", hint="keep one of them")
        found[key] = scalar(match[4] or "")
        block = key if found[key] is None or isinstance(found[key], NotRead) else None
    return found


def _add_to_block(found: dict[str, Any], key: str, line: str) -> None:
    """A list of plain words, or settings one level down; anything deeper is left unread."""
    if line.startswith("- "):
        if not isinstance(found[key], list):
            found[key] = []
        found[key].append(scalar(line[2:]))
    elif (match := _KEY.match(line)) is not None:
        if not isinstance(found[key], dict):
            found[key] = {}
        found[key][next(part for part in match.groups()[:3] if part)] = scalar(match[4] or "")
    elif found[key] is None:
        found[key] = NotRead(line[:40])


def scalar(text: str) -> Any:  # noqa: ANN401 - a YAML scalar is a number, a word, a switch or nothing
    """One plain YAML value: quoted text, a switch, a number, or a word. A comment after it goes."""
    raw = text.strip()
    if raw[:1] in ("'", '"'):
        end = raw.find(raw[0], 1)
        return raw[1:end] if end > 0 else NotRead(raw[:40])
    raw = re.split(r"\s#", raw, maxsplit=1)[0].strip()
    if raw.startswith("#") or raw.lower() in _NOTHING:
        return None
    if raw.startswith("[") and raw.endswith("]") and "[" not in raw[1:]:
        return [scalar(part) for part in raw[1:-1].split(",") if part.strip()]
    return NotRead(raw[:40]) if raw.startswith(_UNREAD) else _word(raw)


def _word(raw: str) -> bool | int | float | str:
    if raw.lower() in _WORDS:
        return _WORDS[raw.lower()]
    if re.fullmatch(r"[+-]?\d[\d_]*", raw) and len(raw) <= _MAX_DIGITS:
        return int(raw)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", raw):
        number = float(raw)
        return number if math.isfinite(number) else NotRead(raw[:40])
    return NotRead(raw[:40]) if raw.lower().lstrip("+-") in (".nan", ".inf") else raw
