"""TOML that somebody else wrote: of sane size and depth before it is parsed.

tomllib takes 14 seconds for one table header of 100,000 parts: its time grows with the square of the depth.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from brimful.errors import BadInput
from brimful.files import read_given
from brimful.language import Number, Quoted, say

# The same as for YAML.
MAX_TOML_BYTES = 256 * 1024
MAX_TOML_DEPTH = 32

# A string or a comment, even one without an end, or one of the characters that nest.
_PARTS = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:"{3,5})?'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5})?"
    r'|"(?:[^"\\\n]|\\[^\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+"
    r"|[\[\]{}.,=\n]",
    re.DOTALL,
)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file; besides `parse_toml`'s errors, OSError and UnicodeDecodeError."""
    raw = read_given(path, most=MAX_TOML_BYTES, too_large=lambda size: _too_large(size, str(path)))
    return parse_toml(raw.decode("utf-8"), name=str(path))


def parse_toml(text: str, *, name: str) -> dict[str, Any]:
    """As tomllib does, which raises TOMLDecodeError; BadInput if it is too large or too deep."""
    if (size := len(text.encode("utf-8", "surrogatepass"))) > MAX_TOML_BYTES:
        raise _too_large(size, name)
    if _depth(text) > MAX_TOML_DEPTH:
        raise BadInput(say("specs.toml_too_deep", name=Quoted(name), most=Number(MAX_TOML_DEPTH)))
    return tomllib.loads(text)


def _too_large(size: int, name: str) -> BadInput:
    sizes = {"bytes": Number(size), "most": Number(MAX_TOML_BYTES)}
    return BadInput(say("specs.toml_too_large", name=Quoted(name), **sizes), code="too_large")


def _depth(text: str) -> int:
    """Brackets that are open at once, and the dots of a key; a few more than the levels of the table."""
    deepest = opened = dots = 0
    for part in _PARTS.finditer(text):
        match part[0]:
            case "[" | "{":
                opened, dots = opened + 1, 0
            case "]" | "}":
                opened, dots = opened - 1, 0
            case ".":
                dots += 1
            case "," | "=" | "\n":
                dots = 0
        deepest = max(deepest, opened + dots)
    return deepest
