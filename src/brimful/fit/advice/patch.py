"""The config with only some lines changed: comments, order and spacing stay as the author left them."""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.configs.arguments import own_name
from brimful.configs.yaml_file import read_page
from brimful.errors import Refused, WorldFailed
from brimful.files import replacing
from brimful.language import Quoted, say

_SPACE = " \t\r\n"
_MOST_BACKUPS = 999


def patch_text(text: str, lines: Mapping[str, Any], *, suffix: str) -> str:
    """`text` with each of `lines` set: in place if the key is there, appended if not."""
    patch = {".json": _patch_json, ".yaml": _patch_yaml, ".yml": _patch_yaml}.get(
        suffix.lower(), _patch_python
    )
    for key, value in lines.items():
        text = patch(text, key, value)
    return text


def write_patched(path: Path, text: str) -> Path:
    """Replace the file atomically and leave the old one beside it; returns the backup's path.

    A crash at any line leaves either the old file or the new one under its name, never half of one. If it
    fails, it leaves no files behind.
    """
    target = path.resolve()
    backup: Path | None = None
    try:
        with replacing(target, mode=0o600) as file:
            file.write(text.encode())
            file.flush()  # a later write would undo the copied modification time
            shutil.copystat(target, file.name)
            handle, backup = _new_backup(target)
            with os.fdopen(handle, "wb") as copy:
                copy.write(target.read_bytes())
            shutil.copystat(target, backup)
    except BaseException as error:
        if backup is not None:
            backup.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise WorldFailed(say("fit.cannot_write", path=Quoted(str(path)), error=error)) from error
    return backup


def _new_backup(target: Path) -> tuple[int, Path]:
    """A new file, open for writing: neither an existing file nor a link is written through."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    for number in range(1, _MOST_BACKUPS + 1):
        backup = target.with_name(f"{target.name}.bak{number if number > 1 else ''}")
        try:
            return os.open(backup, flags, 0o600), backup
        except FileExistsError:
            continue
    raise Refused(say("fit.too_many_backups", name=target.name, most=_MOST_BACKUPS))


def _patch_python(text: str, key: str, value: object) -> str:
    """The last assignment counts, as in Python; if it is not a plain one, a line at the end overrides it."""
    last: ast.stmt | None = None
    for statement in ast.parse(text).body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)])
                | ast.AnnAssign(target=ast.Name(id=name))
                | ast.AugAssign(target=ast.Name(id=name))
            ) if name == key:
                last = statement
    node = last.value if isinstance(last, (ast.Assign, ast.AnnAssign)) else None
    if node is None or node.end_lineno is None or node.end_col_offset is None:
        return f"{text.rstrip()}\n{key} = {_python(value)}\n"
    rows = text.splitlines(keepends=True)
    # ast counts columns in UTF-8 bytes.
    before = rows[node.lineno - 1].encode()[: node.col_offset].decode()
    after = rows[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
    old = rows[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()
    rows[node.lineno - 1 : node.end_lineno] = [before + _python(value, like=old) + after]
    return "".join(rows)


def _python(value: object, like: str = '"') -> str:
    """A literal, with the author's quotes."""
    return f"{like[0]}{value}{like[0]}" if isinstance(value, str) and like[:1] in "'\"" else repr(value)


def _patch_json(text: str, key: str, value: object) -> str:
    spans = _json_spans(text)
    wanted = next((name for name in spans if own_name(name) == key or name == key), None)
    if wanted is not None:
        _, start, end = spans[wanted]
        return text[:start] + json.dumps(value) + text[end:]
    if not spans:
        at = text.index("{") + 1
        return f'{text[:at]}\n  "{key}": {json.dumps(value)}\n{text[at:].lstrip()}'
    begin, _, end = list(spans.values())[-1]
    gap = text[:begin][len(text[:begin].rstrip(_SPACE)) :]
    return f"{text[:end]},{gap or ' '}{json.dumps(key)}: {json.dumps(value)}{text[end:]}"


def _json_spans(text: str) -> dict[str, tuple[int, int, int]]:
    """Top-level key -> where it begins, and where its value begins and ends. The text is known to be JSON."""
    read = json.JSONDecoder().raw_decode
    at = _skip(text, text.index("{") + 1)
    spans = {}
    while text[at] == '"':
        begin = at
        key, at = read(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = read(text, start)
        spans[key] = (begin, start, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return spans


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _patch_yaml(text: str, key: str, value: object) -> str:
    said = json.dumps(value) if not isinstance(value, str) else value
    page = read_page(text, name="the config")
    wanted = next((name for name in page.values if key in (name, own_name(name))), None)
    if wanted is not None:
        start, end = page.values[wanted]
        return f"{text[:start]} {said}{text[end:]}"
    if page.braces:
        at = max((end for _, end in page.values.values()), default=page.end)
        return f"{text[:at]}{', ' if page.settings else ''}{key}: {said}{text[at:]}"
    line_end = "\r\n" if "\r\n" in text else "\n"
    before = text[: page.end].rstrip()
    return f"{before}{line_end}{' ' * page.indent}{key}: {said}{line_end}{text[page.end :]}"
