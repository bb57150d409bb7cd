"""Opening a stranger's config: a regular file of sane size, or one clear refusal."""

from __future__ import annotations

import stat
from pathlib import Path

from brimful.errors import BadInput, NotFound
from brimful.language import Number, Plain, Quoted, Sentence, say

MAX_FILE_BYTES = 1024 * 1024  # the longest config anyone writes by hand is a few kilobytes


def read_config(path: Path, *, what: Sentence) -> str:
    """The text of a config; `what` is the kind of file a hint asks for."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise NotFound(say("configs.no_file", path=Quoted(str(path)), what=what)) from None
    except (OSError, ValueError) as error:
        raise BadInput(
            say("configs.unreadable", path=Quoted(str(path)), error=error),
            hint=say("configs.hint_check_path"),
        ) from error
    if not stat.S_ISREG(found.st_mode):
        kind = say("configs.folder") if stat.S_ISDIR(found.st_mode) else say("configs.not_regular_file")
        raise BadInput(say("configs.path_is", path=Quoted(str(path)), kind=kind))
    if found.st_size > MAX_FILE_BYTES:
        raise BadInput(
            say(
                "configs.file_too_large",
                path=Quoted(str(path)),
                bytes=Number(found.st_size),
                most=Number(MAX_FILE_BYTES),
            )
        )
    try:
        return decode(path.read_bytes(), name=str(path))
    except OSError as error:
        raise BadInput(
            say("configs.unreadable", path=Quoted(str(path)), error=error),
            hint=say("configs.hint_check_permissions"),
        ) from error


def decode(raw: bytes, *, name: str) -> str:
    """UTF-8 text; a binary file or another encoding is refused by name."""
    if b"\x00" in raw:
        raise BadInput(say("configs.binary_file", name=Quoted(name)))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadInput(say("configs.line_not_utf8", name=Quoted(name), line=Plain(line))) from None
