"""The small files of a state folder: JSON that is wholly there or not at all, and the id of a folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import Any

from brimful.errors import WorldFailed
from brimful.files import write_whole
from brimful.job import read_plain
from brimful.language import Quoted, say

JSON_BYTES = 16 << 20
NOTE_BYTES = 256 << 10  # what a job may have written: parsing it keeps every other thread waiting


def write_json(path: Path, body: dict[str, Any], *, mode: int = 0o600) -> None:
    write_whole(path, json.dumps(body), mode=mode)


def read_json(path: Path, *, most_bytes: int = JSON_BYTES) -> dict[str, Any] | None:
    """The contents of the file, or None if it does not exist. Never blocks, not even on a named pipe."""
    try:
        body: object = json.loads(read_plain(path, below=path.parent, most_bytes=most_bytes))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        # We only ever write it whole, so the disk or a person has changed it.
        # As text: two errors are never equal, and a complaint that is the same is told once.
        raise WorldFailed(say("adapters.file_damaged", path=path, error=str(error))) from error
    if not isinstance(body, dict):
        raise WorldFailed(say("adapters.file_holds", path=path, found=Quoted(str(body)[:40])))
    return body


def discard(path: Path) -> None:
    """Take it away, whatever it is: shutil.rmtree opens what it is given, and would wait for a pipe."""
    with contextlib.suppress(OSError, RecursionError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


RESERVED_BYTES = 4096


def reserve(path: Path) -> None:
    """Take the disk space of a small file now, so that `write_reserved` cannot fail for want of it later."""
    if not _reserve_of(path).exists():
        write_whole(_reserve_of(path), " " * RESERVED_BYTES, mode=0o600)


def write_reserved(path: Path, body: dict[str, Any]) -> None:
    """`write_json` into space that was reserved: written over in place, then renamed."""
    text = json.dumps(body)
    reserved = _reserve_of(path)
    if not reserved.exists() or len(text) > RESERVED_BYTES:
        write_json(path, body)
        return
    with reserved.open("r+", encoding="ascii") as file:
        file.write(text.ljust(RESERVED_BYTES))
        file.flush()
        os.fsync(file.fileno())
    reserved.replace(path)


def _reserve_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.reserved")


def identity(folder: Path) -> str:
    """A random id that the folder keeps for as long as it lives, wherever it is moved."""
    path = folder / ".id"
    if not path.exists():
        with contextlib.suppress(FileExistsError), path.open("x", encoding="ascii") as file:
            file.write(secrets.token_hex(16))
    found = path.read_text(encoding="utf-8", errors="replace").strip()
    if not re.fullmatch(r"[0-9a-f]{32}", found):
        raise WorldFailed(say("adapters.bad_folder_id", path=path, found=Quoted(found[:40])))
    return found
