"""What kind of config a pasted text is, by its form; nothing in it is executed."""

from __future__ import annotations

import ast
import tomllib
import warnings

from brimful.configs.yaml_file import parse_yaml
from brimful.errors import BadInput
from brimful.specs.toml import parse_toml


def suffix_of(text: str) -> str | None:
    """The suffix a file of this text would have; None if it is prose or a log, not a config."""
    if text.lstrip().startswith("{"):
        return ".json"
    if _is_toml(text):
        return ".toml"
    if _is_python(text):
        return ".py"
    return ".yaml" if _is_yaml(text) else None


def _is_toml(text: str) -> bool:
    """Needs a table: lines of only `key = value` are also Python, and are read as nanoGPT's."""
    try:
        return any(isinstance(value, dict) for value in parse_toml(text, name="").values())
    except (BadInput, tomllib.TOMLDecodeError):
        return False


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(each, ast.Assign) for each in found)


def _is_yaml(text: str) -> bool:
    """Several keys of one word each: `RuntimeError: CUDA out of memory` has one key, and is a sentence."""
    try:
        keys = list(parse_yaml(text, name="config.yaml"))
    except (BadInput, RecursionError):
        return False
    return len(keys) > 1 and all(len(key.split()) == 1 for key in keys)
