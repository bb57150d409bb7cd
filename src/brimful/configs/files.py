"""Opening an untrusted config: a regular file of sane size, or one clear refusal."""

from __future__ import annotations

import errno
from itertools import islice
from pathlib import Path

from brimful.errors import BadInput, NotFound
from brimful.files import read_given
from brimful.language import Number, Plain, Quoted, Sentence, say
from brimful.language.near import similar

MAX_FILE_BYTES = 1024 * 1024  # the longest config anyone writes by hand is a few kilobytes
_KINDS = {errno.EISDIR: say("configs.folder"), errno.ENXIO: say("configs.not_regular_file")}


def read_config(path: Path, *, what: Sentence) -> str:
    """The text of a config; `what` is the kind of file that a hint asks for."""
    return decode(read_bytes(path, what=what, most=MAX_FILE_BYTES), name=str(path))


def read_bytes(path: Path, *, what: Sentence, most: int) -> bytes:
    """The contents of a regular file of sane size: a pipe would block, and a device never ends."""
    name = Quoted(str(path))

    def too_large(size: int) -> BadInput:
        sizes = {"bytes": Number(size), "most": Number(most)}
        return BadInput(say("configs.file_too_large", path=name, what=what, **sizes))

    try:
        return read_given(path, most=most, too_large=too_large)
    except FileNotFoundError:
        raise NotFound(say("configs.no_file", path=name, what=what), hint=_file_near(path)) from None
    except (OSError, ValueError) as error:
        kind = _KINDS.get(error.errno or 0) if isinstance(error, OSError) else None
        if kind is not None:
            raise BadInput(say("configs.path_is", path=name, kind=kind, what=what)) from None
        raise BadInput(say("configs.unreadable", path=name, error=error)) from error


def _file_near(path: Path) -> Sentence | None:
    """The file that was likely meant, where the folder has one of nearly that name."""
    try:
        beside = [each.name for each in islice(path.parent.iterdir(), 1000) if each.is_file()]
    except OSError:
        return None
    near = similar(path.name, sorted(beside))
    return say("configs.hint_file_near", near=Quoted(str(path.with_name(near[0])))) if near else None


def decode(raw: bytes, *, name: str) -> str:
    """UTF-8 text; a binary file or another encoding is refused with its name."""
    if b"\x00" in raw:
        raise BadInput(say("configs.binary_file", name=Quoted(name)))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadInput(say("configs.line_not_utf8", name=Quoted(name), line=Plain(line))) from None
