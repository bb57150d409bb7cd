"""Every failure a user or the world can cause, as one tree.

    BrimfulError
    ├── BadInput       the request cannot be understood or is out of range   exit 2
    │   └── NotFound   it names something that does not exist                exit 2
    ├── Refused        understood, and the answer is no                      exit 1
    └── WorldFailed    disk, network, port, database, process                exit 3

`code` is what programs match and never changes once released; `problem` says what happened and by how
much; `hint` says what to do. What a programmer broke is an assert, not one of these.
"""

from __future__ import annotations

from typing import ClassVar


class BrimfulError(Exception):
    """A failure with a stable code, a sentence with numbers, and a way out."""

    exit_code: ClassVar[int] = 3
    code: str = "error"

    def __init__(self, problem: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
        if code is not None:
            self.code = code

    def as_dict(self) -> dict[str, str]:
        """The `error` part of the JSON envelope."""
        return {"code": self.code, "problem": self.problem, "hint": self.hint}


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
