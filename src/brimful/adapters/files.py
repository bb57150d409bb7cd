"""The small files of a state folder: JSON that is complete or missing, and a folder's id."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Any, BinaryIO

from brimful.errors import WorldFailed
from brimful.files import write_whole
from brimful.job import read_plain
from brimful.language import Quoted, Sentence, os_words, say

JSON_BYTES = 16 << 20
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# What opening or replacing a pipe, a socket, a device, a link or a folder ends with.
IN_THE_WAY = (errno.ENXIO, errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.EEXIST, errno.ENOTDIR)
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


def open_to_write(path: Path, flags: int = os.O_APPEND | os.O_CREAT) -> BinaryIO:
    """Where a job may have put something first: never blocks, follows no link, writes into no device."""
    guarded = flags | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, guarded, 0o600)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    os.set_blocking(handle, True)  # a job may inherit it as its output
    return os.fdopen(handle, "r+b")


def is_trap(path: Path) -> bool:
    """Whether something is there that can never be read as a file: brimful did not write it."""
    try:
        return not stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def make_folder(folder: Path) -> None:
    """Unless it exists; a link to another folder is refused."""
    folder.mkdir(exist_ok=True, mode=0o700)
    if folder.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))


def in_words(error: OSError) -> Sentence:
    """The system's words; where something is in the way that is not ours, its name."""
    place = error.filename2 or error.filename
    if error.errno in IN_THE_WAY and isinstance(place, str) and is_trap(Path(place)):
        return say("adapters.in_the_way", name=Quoted(Path(place).name[:40]))
    return os_words(error)


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
    if is_trap(_reserve_of(path)):
        discard(_reserve_of(path))
    if not _reserve_of(path).exists():
        write_whole(_reserve_of(path), " " * RESERVED_BYTES, mode=0o600)


def write_reserved(path: Path, body: dict[str, Any]) -> None:
    """`write_json` into reserved space: overwritten in place, then renamed."""
    text = json.dumps(body)
    reserved = _reserve_of(path)
    if is_trap(path):
        discard(path)  # a folder could not be replaced
    if is_trap(reserved) or not reserved.exists() or len(text) > RESERVED_BYTES:
        write_json(path, body)
        return
    with open_to_write(reserved, 0) as file:
        file.write(text.ljust(RESERVED_BYTES).encode("ascii"))
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
    found = read_plain(path, below=folder, most_bytes=NOTE_BYTES).decode(errors="replace").strip()
    if not re.fullmatch(r"[0-9a-f]{32}", found):
        raise WorldFailed(say("adapters.bad_folder_id", path=path, found=Quoted(found[:40])))
    return found
