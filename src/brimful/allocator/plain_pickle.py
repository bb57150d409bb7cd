"""Open a pickle that holds only dicts, lists, strings and numbers, and refuse all others unopened.

A pickle is a program. This module first reads its opcodes without running any: one that could name, make or
call anything is refused, and so is one that asks for more memory than the file could fill. Only then is it
loaded, by an unpickler that again refuses every global (decision 0008).
"""

from __future__ import annotations

import io
import pickle
from typing import NoReturn

from brimful.errors import BadInput
from brimful.language import Number, Quoted, Sentence, say

_MAX_NUMBER_BYTES = 64  # addresses and sizes have 8
_MAX_OPEN_MARKS = 64  # a snapshot nests five deep; a hostile file could nest as deep as it is long

# What follows an opcode: a number of bytes, or one of these.
_LENGTH1, _LENGTH4, _LENGTH8, _LINE, _NUMBER1, _NUMBER4, _PUT, _MARK, _CLOSE, _STOP, _REFUSED = range(
    -1, -12, -1
)


def _table() -> list[int]:
    table = [_REFUSED] * 256
    for opcodes, follows in (
        (b"N\x88\x89]a)s}\x85\x86\x87\x8f02\x94", 0),
        (b"Kh\x80", 1),
        (b"M", 2),
        (b"Jj", 4),
        (b"G\x95", 8),
        (b"UC\x8c", _LENGTH1),
        (b"TBX", _LENGTH4),
        (b"\x8e\x8d", _LENGTH8),
        (b"ILSVFg", _LINE),
        (b"\x8a", _NUMBER1),
        (b"\x8b", _NUMBER4),
        (b"qrp", _PUT),
        (b"(", _MARK),
        (b"eldtu1\x90\x91", _CLOSE),
        (b".", _STOP),
    ):
        for opcode in opcodes:
            table[opcode] = follows
    return table


_FOLLOWS = _table()
_NAMES = {
    **dict.fromkeys(b"ci\x93", say("allocator.pickle_names_object")),
    **dict.fromkeys(b"Rbo\x81\x92", say("allocator.pickle_calls")),
    **dict.fromkeys(b"PQ\x82\x83\x84\x96\x97\x98", say("allocator.pickle_refers_outside")),
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError(repr(pid))


def load_plain(data: bytes, *, name: str) -> object:
    """The contents of the pickle. Raises BadInput; nothing in it is ever run."""
    try:
        _check(data, name)
        found: object = _Plain(io.BytesIO(data)).load()
        return found
    except IndexError as error:
        raise BadInput(say("allocator.cut_off", name=Quoted(name))) from error
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _bad(say("allocator.pickle_unreadable", name=Quoted(name), error=error)) from error
    except (MemoryError, OverflowError, RecursionError) as error:
        raise _bad(say("allocator.pickle_too_large", name=Quoted(name))) from error


def _bad(said: Sentence) -> BadInput:
    return BadInput(said, hint=say("allocator.plain_data_only"))


def _check(data: bytes, name: str) -> None:
    """Walk the opcodes up to STOP. Raises BadInput, or IndexError if the file ends before."""
    follows, at, marks = _FOLLOWS, 0, 0
    while True:
        kind = follows[data[at]]
        if kind >= 0:
            at += 1 + kind
        elif kind == _LENGTH1:
            at += 2 + data[at + 1]
        elif kind == _MARK:
            marks += 1
            at += 1
            if marks > _MAX_OPEN_MARKS:
                raise _bad(say("allocator.pickle_nests", name=Quoted(name), deep=_MAX_OPEN_MARKS))
        elif kind == _CLOSE:
            marks -= 1
            at += 1
        elif kind == _STOP:
            return
        else:
            at = _skip(data, at, kind, name)
        if at > len(data):
            raise IndexError(at)


def _skip(data: bytes, at: int, kind: int, name: str) -> int:
    """The position of the opcode after the one at `at`: the rarer kinds."""
    if kind in (_LENGTH4, _LENGTH8):
        width = 4 if kind == _LENGTH4 else 8
        return at + 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
    if kind in (_NUMBER1, _NUMBER4):
        width = 1 if kind == _NUMBER1 else 4
        length = int.from_bytes(data[at + 1 : at + 1 + width], "little")
        if length > _MAX_NUMBER_BYTES:
            size = {"length": Number(length), "at": Number(at)}
            raise _bad(say("allocator.pickle_number", name=Quoted(name), **size))
        return at + 1 + width + length
    if kind == _PUT:
        return _put(data, at, name)
    if kind == _LINE:
        return _line(data, at)
    what = _NAMES.get(data[at]) or say("allocator.pickle_opcode", opcode=f"{data[at]:#04x}")
    raise _bad(say("allocator.pickle_refused", name=Quoted(name), what=what, at=Number(at)))


def _put(data: bytes, at: int, name: str) -> int:
    """A store in the memo, which is an array as long as its largest index: 2^31 would take 16 GiB."""
    if data[at] == ord("p"):
        end = _line(data, at)
        digits = data[at + 1 : end - 1]
        index = int(digits) if digits.isdigit() and len(digits) < 12 else len(data) + 1
    else:
        width = 1 if data[at] == ord("q") else 4
        end = at + 1 + width
        index = int.from_bytes(data[at + 1 : end], "little")
    if index > len(data):
        raise _bad(say("allocator.pickle_memo", name=Quoted(name), index=Number(index), at=Number(at)))
    return end


def _line(data: bytes, at: int) -> int:
    end = data.find(b"\n", at)
    if end < 0:
        raise IndexError(at)
    return end + 1
