"""The protocol: a line of JSON each way. What a machine says is checked first."""

from __future__ import annotations

import base64
import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any, get_args

from brimful.adapters.capabilities import LogPiece
from brimful.adapters.engines import samples
from brimful.adapters.engines.agent import MOST_RANKS, Greeting, Part, Seen
from brimful.errors import BrimfulError, Said, WorldFailed
from brimful.fleet.events import MALFORMED, Cause, job_from_record
from brimful.fleet.state import Node
from brimful.language import verbatim
from brimful.language.record import as_record, said_by_anybody
from brimful.scheduler.ports import CannotStart, Observation, Start

MOST_LINE = 8 << 20  # bytes: the end of a log is the longest; parsing it blocks every other thread
HOST = re.compile(r"[0-9A-Za-z.:%_-]{1,100}")
STRANGE = (*MALFORMED, UnicodeError)  # what a lying machine's answer may raise when it is parsed
STATES = frozenset({"absent", "waiting", "running", "ended"})


def part_out(part: Part) -> dict[str, Any]:
    start = part.start
    archive = None if part.archive is None else base64.b64encode(part.archive).decode()
    job = {each.name: getattr(start.job, each.name) for each in dataclasses.fields(start.job)}
    return part._asdict() | {"start": start._asdict() | {"job": job}, "archive": archive}


def part_in(said: dict[str, Any]) -> Part:
    given = said["start"]
    parts = tuple((node, tuple(gpus)) for node, gpus in given["parts"])
    start = Start(**{**given, "job": job_from_record(given["job"]), "parts": parts})
    archive = None if said["archive"] is None else base64.b64decode(said["archive"])
    address, port = said["master"]
    known = {"start": start, "archive": archive, "devices": tuple(said["devices"]), "master": (address, port)}
    return Part(**{**said, **known})


def node_in(said: dict[str, Any]) -> Node:
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in said.items()
    }
    return Node(**plain)


def seen_out(seen: Seen) -> dict[str, Any]:
    told = seen.observation
    found = {each.name: getattr(told, each.name) for each in dataclasses.fields(told)}
    return seen._asdict() | {"observation": found | {"problem": as_record(told.problem)}}


def seen_in(said: Mapping[str, Any], leases: Collection[str]) -> Seen:
    told = said["observation"]
    lease, state, cause = told["lease"], told["state"], told["cause"]
    if lease not in leases or state not in STATES or cause not in (None, *get_args(Cause)):
        raise ValueError("not an observation")
    observation = Observation(
        lease=lease,
        state=state,
        started_s=_whole(told["started_s"]),
        ended_s=_whole(told["ended_s"]),
        exit_code=_whole(told["exit_code"]),
        problem=said_by_anybody(told["problem"]),
        kept_work_s=None if told["kept_work_s"] is None else max(0.0, _finite(told["kept_work_s"])),
        cause=cause,
        exit_codes=tuple(_whole(code) for code in told["exit_codes"][:MOST_RANKS]),
        resumes_s=_whole(told["resumes_s"]),
        skew_s=_finite(told["skew_s"]),
        moved_bytes=_whole(told["moved_bytes"]) or 0,
    )
    rank, ranks = _whole(said["rank"]) or 0, _whole(said["ranks"]) or 1
    if not 0 <= rank < ranks <= MOST_RANKS:
        raise ValueError("not a rank")
    return Seen(rank, ranks, tuple(_whole(gpu) or 0 for gpu in said["devices"]), observation)


def piece_in(said: list[Any], *, offset: int, limit: int) -> LogPiece:
    """What was asked for, and no more: one that began anew each time would never end."""
    start, data, size = said
    piece = LogPiece(_whole(start) or 0, base64.b64decode(data), _whole(size) or 0)
    begins = max(0, offset) if piece.data else 0  # it may have grown while it was read: longer than `size`
    if piece.start < begins or piece.size < 0 or len(piece.data) > limit:
        raise ValueError("not a piece of a log")
    return piece


def sample_in(said: object) -> bytes | None:
    if not isinstance(said, str) or len(said) > 2 * samples.MOST_BYTES:
        return None
    return base64.b64decode(said)


def greeting_in(said: list[Any]) -> tuple[Greeting, str, Said | None]:
    """Also the address at which the machine was reached, and why nothing new should start there."""
    port, at_s, address, noticed = said
    if not 0 < int(port) < 1 << 16:
        raise ValueError("not a port")
    if not HOST.fullmatch(str(address)):  # the other ranks of a gang have it in their environment
        raise ValueError("not an address")
    return Greeting(int(port), _finite(at_s)), str(address), said_by_anybody(noticed)


def error_out(error: BrimfulError) -> dict[str, Any]:
    return {"said": as_record(error.said), "never": isinstance(error, CannotStart)}


def error_in(said: Mapping[str, Any]) -> BrimfulError:
    told: Said = said_by_anybody(said["said"]) or verbatim("-")
    return CannotStart(told) if said["never"] else WorldFailed(told)


def _finite(value: Any) -> float:  # noqa: ANN401 - JSON, which has infinities in Python
    found = float(value)
    if not abs(found) < 1 << 62:
        raise ValueError("not a number")
    return found


def _whole(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or abs(value) >= 1 << 62:
        raise ValueError("not a whole number")
    return value
