"""Opening a stranger's config: a regular file of sane size, or one clear refusal."""

from __future__ import annotations

import stat
from pathlib import Path

from brimful.errors import BadInput, NotFound

MAX_FILE_BYTES = 1024 * 1024  # the longest config anyone writes by hand is a few kilobytes


def read_config(path: Path, *, what: str) -> bytes:
    """The bytes of a config; `what` is the kind of file a hint asks for."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise NotFound(
            f"there is no file {str(path)!r}", hint=f"check the path; the config is {what}"
        ) from None
    except (OSError, ValueError) as error:
        raise BadInput(
            f"cannot read {str(path)!r}: {error}", hint="check the path and its permissions"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise BadInput(f"{str(path)!r} is {kind}", hint="name the config file itself")
    if found.st_size > MAX_FILE_BYTES:
        raise BadInput(
            f"{str(path)!r} has {found.st_size:,} bytes; a config has at most {MAX_FILE_BYTES:,}",
            hint="is this the data or a checkpoint rather than the config?",
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {str(path)!r}: {error}", hint="check its permissions") from error


def decode(raw: bytes, *, name: str) -> str:
    """UTF-8 text; a binary file or another encoding is refused by name."""
    if b"\x00" in raw:
        raise BadInput(f"{name!r} is a binary file, not a config", hint="name the config file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadInput(f"{name!r} line {line} is not UTF-8 text", hint="save the file as UTF-8") from None
