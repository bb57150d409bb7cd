"""Text to plain data: JSON by the standard library, YAML by PyYAML, both with the teeth taken out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from brimful.errors import BadInput, NotFound, WorldFailed

MAX_BYTES = 1 << 18  # a job is described in a few kilobytes


def read_text(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise BadInput(
                f"{path} has {size:,} bytes; a job file has at most {MAX_BYTES:,}",
                hint="put data and long scripts into files of their own, which the command reads",
                code="too_large",
            )
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="a job file, or -- and a command") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not text in UTF-8", hint="a job file is YAML, JSON or a script") from error
    except OSError as error:
        raise WorldFailed(f"cannot read {path}: {error.strerror}") from error


def mapping_of(text: str, path: Path) -> dict[str, Any]:
    """The file's mapping. Nothing in it is executed, constructed or repeated by reference."""
    data = _json(text, path) if path.suffix == ".json" else _yaml(text, path)
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise BadInput(f"{path} holds no mapping of names to values", hint="see docs/reference/job-file.md")
    return data


def _json(text: str, path: Path) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON: {error}") from error


def _unique(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"{path} says {twice!r} twice", hint="which of them is meant?")
    return dict(pairs)


def _yaml(text: str, path: Path) -> Any:  # noqa: ANN401 - YAML
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise WorldFailed(
            f"reading {path} takes PyYAML, which is not installed",
            hint="pip install 'brimful[jobs]', or write the same as .json",
            code="not_installed",
        ) from error

    class Loader(yaml.SafeLoader):
        """Safe, and without aliases (a few lines of them can fill the memory) and double names."""

        def compose_node(self, parent: Any, index: Any) -> Any:  # noqa: ANN401
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
                raise BadInput(f"{path}, line {line}: aliases (*name) are not read", hint="write it out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: ANN401
            pairs = [(self.construct_object(key, deep=True), None) for key, _ in node.value]
            _unique([(str(key), None) for key, _ in pairs], path)
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(text, Loader=Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        what = getattr(error, "problem", None) or "it cannot be read"
        raise BadInput(f"{path}{where} is not YAML: {what}", hint="see docs/reference/job-file.md") from error
    except (RecursionError, ValueError) as error:
        raise BadInput(f"{path} is not a job file: {error}") from error
