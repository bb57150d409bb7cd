"""The small files of a state folder: JSON that is complete or missing, and a folder's id."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Any

from brimful.errors import WorldFailed
from brimful.files import write_whole
from brimful.job import read_plain
from brimful.language import Quoted, say

JSON_BYTES = 16 << 20
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NOTE_BYTES = 256 << 10  # for files that a job may have written: parsing blocks all other threads


def write_json(path: Path, body: dict[str, Any], *, mode: int = 0o600) -> None:
    write_whole(path, json.dumps(body), mode=mode)


def read_json(path: Path, *, most_bytes: int = JSON_BYTES) -> dict[str, Any] | None:
    """The file's contents, or None if it does not exist. Never blocks, not even on a named pipe."""
    try:
        body: object = json.loads(read_plain(path, below=path.parent, most_bytes=most_bytes))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        # We only write it whole, so the disk or a person has changed it.
        # As text: two errors are never equal, and the same complaint is reported once.
        raise WorldFailed(say("adapters.file_damaged", path=path, error=str(error))) from error
    if not isinstance(body, dict):
        raise WorldFailed(say("adapters.file_holds", path=path, found=Quoted(str(body)[:40])))
    return body


def discard(path: Path) -> None:
    """Remove it as far as possible, whatever it is; never follows a link or blocks on a pipe."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            _empty(path)
            path.rmdir()
        else:
            path.unlink()


def _empty(path: Path) -> None:
    """Each subfolder is moved to the top and emptied there: a job can nest folders deeper than shutil.rmtree
    can handle, which opens a file per level and then gives up on all of them."""
    top = os.open(path, FOLDER)
    try:
        todo = _remove_files(top)
        moved = f".{secrets.token_hex(8)}-"
        numbers = itertools.count()
        while todo:
            name = todo.pop()
            with contextlib.suppress(OSError):
                inner = os.open(name, FOLDER, dir_fd=top)
                try:
                    for each in _remove_files(inner):
                        with contextlib.suppress(OSError):
                            hoisted = f"{moved}{next(numbers)}"
                            os.rename(each, hoisted, src_dir_fd=inner, dst_dir_fd=top)
                            todo.append(hoisted)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _remove_files(folder: int) -> list[str]:
    """Remove everything except non-empty folders, whose names are returned."""
    left = []
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        try:
            (os.rmdir if is_folder else os.unlink)(name, dir_fd=folder)
        except OSError:
            left += [name] if is_folder else []
    return left


RESERVED_BYTES = 4096


def reserve(path: Path) -> None:
    """Reserve disk space for a small file, so that `write_reserved` cannot fail for lack of it later."""
    if not _reserve_of(path).exists():
        write_whole(_reserve_of(path), " " * RESERVED_BYTES, mode=0o600)


def write_reserved(path: Path, body: dict[str, Any]) -> None:
    """`write_json` into reserved space: overwritten in place, then renamed."""
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


ID = ".id"


def has_identity(folder: Path) -> bool:
    return os.path.exists(folder / ID)  # noqa: PTH110 - "no" also where we may not look


def identity(folder: Path) -> str:
    """A random id that the folder keeps for life, even when it is moved."""
    path = folder / ID
    if not path.exists():
        with contextlib.suppress(FileExistsError), path.open("x", encoding="ascii") as file:
            file.write(secrets.token_hex(16))
    found = path.read_text(encoding="utf-8", errors="replace").strip()
    if not re.fullmatch(r"[0-9a-f]{32}", found):
        raise WorldFailed(say("adapters.bad_folder_id", path=path, found=Quoted(found[:40])))
    return found
