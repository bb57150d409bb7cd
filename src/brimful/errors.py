"""Every failure a user or the world can cause, as one tree.

    BrimfulError
    ├── BadInput       the request cannot be understood or is out of range   exit 2
    │   └── NotFound   it names something that does not exist                exit 2
    ├── Refused        understood, and the answer is no                      exit 1
    └── WorldFailed    disk, network, port, database, process                exit 3

Programs match `code`, which never changes once released. What happened (`said`) is a sentence: a catalog code
with the numbers of the case, which become words only where people read. What to do (`way_out`) is next to it
in the catalog, unless the code that raises knows better. `problem` and `hint` are the same in English. A
programming error is an assert.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

# The path itself is wrong: no disk will ever open it.
WRONG_PATH = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}


class Said(Protocol):
    """A sentence of `brimful.language`, or anything that converts itself to English."""

    def as_dict(self) -> dict[str, Any]: ...

    def hint(self) -> Said | None: ...


class BrimfulError(Exception):
    """A failure with a stable code, a sentence with numbers, and what to do about it."""

    exit_code: ClassVar[int] = 3
    code: str = "error"

    def __init__(self, said: Said, *, hint: Said | None = None, code: str | None = None) -> None:
        super().__init__(said)
        self.said = said
        self.way_out = hint or said.hint()
        if code is not None:
            self.code = code

    @property
    def problem(self) -> str:
        return str(self.said)

    @property
    def hint(self) -> str:
        return "" if self.way_out is None else str(self.way_out)

    def as_dict(self, told: Callable[[object], str] = str) -> dict[str, Any]:
        """The `error` part of the JSON envelope: words for people (made by `told`) and `reason`."""
        hint = "" if self.way_out is None else told(self.way_out)
        return {"code": self.code, "problem": told(self.said), "hint": hint, "reason": self.said.as_dict()}


class BadInput(BrimfulError):
    exit_code = 2
    code = "bad_input"


class NotFound(BadInput):
    code = "not_found"


class Refused(BrimfulError):
    exit_code = 1
    code = "refused"


class WorldFailed(BrimfulError):
    exit_code = 3
    code = "world_failed"


def unreadable(said: Said, error: OSError) -> BrimfulError:
    """The cause of a file that does not open: the given path, or the environment."""
    if isinstance(error, FileNotFoundError):
        return NotFound(said)
    return BadInput(said) if error.errno in WRONG_PATH else WorldFailed(said)
