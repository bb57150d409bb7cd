"""What kind of config a pasted text is, told by its form; nothing in it is run."""

from __future__ import annotations

import ast
import tomllib
import warnings

from brimful.configs.yaml_file import parse_yaml
from brimful.errors import BadInput


def suffix_of(text: str) -> str | None:
    """The suffix a file of this text would have; None where it is no config but words or a log."""
    if text.lstrip().startswith("{"):
        return ".json"
    if _is_toml(text):
        return ".toml"
    if _is_python(text):
        return ".py"
    return ".yaml" if _is_yaml(text) else None


def _is_toml(text: str) -> bool:
    """With a table: lines of `key = value` alone are as good as Python, and are nanoGPT's."""
    try:
        return any(isinstance(value, dict) for value in tomllib.loads(text).values())
    except (tomllib.TOMLDecodeError, RecursionError):
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
    """Several keys of one word each: `RuntimeError: CUDA out of memory` is one, and a sentence."""
    try:
        keys = list(parse_yaml(text, name="config.yaml"))
    except (BadInput, RecursionError):
        return False
    return len(keys) > 1 and all(len(key.split()) == 1 for key in keys)
