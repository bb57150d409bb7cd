"""What happened to a lease, from what Slurm says about its job and what its runners recorded."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brimful.adapters.engines.lease_folders import exit_code_of, is_done, kept_work_s, second
from brimful.adapters.engines.slurm.text import NOT_BEGUN, NOT_OVER, Span
from brimful.adapters.files import NOTE_BYTES, read_json
from brimful.adapters.objects.carriage import read_carried
from brimful.errors import BrimfulError, Said
from brimful.fleet.events import Cause
from brimful.job import read_plain
from brimful.language import Plain, say, verbatim
from brimful.language.record import said_by_anybody
from brimful.scheduler.ports import Observation

# Slurm's states in which a job has not started, and those in which something of it may still run.
WAITING, LIVING = NOT_BEGUN, NOT_OVER
# Evicted by Slurm, also at its time limit, since the next lease continues from what it saved.
SENT_AWAY = frozenset({"PREEMPTED", "TIMEOUT", "CANCELLED", "DEADLINE", "REVOKED"})
NODE_LOST = frozenset({"NODE_FAIL", "BOOT_FAIL"})
# Outcomes of watched jobs. One that was cancelled, preempted or timed out may have saved its work.
OUTCOMES = {"COMPLETED": "kept", **dict.fromkeys((*NODE_LOST, "FAILED", "OUT_OF_MEMORY", "DEADLINE"), "lost")}
HELD = ("Dependency", "JobHeld", "BeginTime", "JobArrayTaskLimit")  # block a start regardless of GPUs

LATEST_S = 1 << 33  # times after 2242 are rejected

# A node in one of these states accepts no new job.
CLOSED = frozenset(
    [
        "down",
        "drain",
        "draining",
        "drained",
        "fail",
        "failing",
        "error",
        "unknown",
        "maint",
        "future",
        "inval",
        "blocked",
        "reboot",
        "perfctrs",
        "power_down",
        "powering_down",
        "powered_down",
        "power_up",
        "powering_up",
        "not_responding",
        "no_respond",
        "*",
        "~",
        "#",
        "%",
        "$",
        "@",
        "^",
        "!",
    ]
)


class Rank(NamedTuple):
    """What the runner of one rank recorded."""

    folder: Path
    started: Mapping[str, Any] | None
    child: Mapping[str, Any] | None
    ended: Mapping[str, Any] | None


def ranks_of(folder: Path, count: int) -> list[Rank]:
    places = [folder / "ranks" / str(rank) for rank in range(count)]
    return [
        Rank(place, *(_note(place / name) for name in ("started.json", "child.json", "ended.json")))
        for place in places
    ]


def _note(path: Path) -> Mapping[str, Any] | None:
    """Empty if its owner made it unreadable: that must not keep a lease from ending or from being billed."""
    try:
        return read_json(path, most_bytes=NOTE_BYTES)
    except (BrimfulError, PermissionError):
        return {}


def waiting(lease: str, reason: str) -> Observation:
    known = reason not in ("", "None")  # otherwise Slurm has not looked at it yet
    said = say("slurm.waits", reason=verbatim(reason)) if known else say("slurm.begins")
    return Observation(lease=lease, state="waiting", problem=said)


def has_begun(ranks: Sequence[Rank]) -> bool:
    """Whether all its ranks have started, according to their runners."""
    return all(rank.started is not None and (rank.child or rank.ended) is not None for rank in ranks)


def running(lease: str, ranks: Sequence[Rank], span: Span, *, skew_s: float) -> Observation:
    return Observation(
        lease=lease,
        state="running",
        started_s=span.began_s,
        resumes_s=_resumes_s(ranks),
        skew_s=skew_s,
    )


def ended(
    lease: str, folder: Path, ranks: Sequence[Rank], state: str, span: Span, *, skew_s: float
) -> Observation:
    """`state`: Slurm's last word on it; empty: forgotten, or more is to come."""
    began_s, over_s = _billed(ranks, state, span, now_s=int(time.time() + skew_s))
    first, codes = first_failed(folder, ranks), [_code(rank) for rank in ranks]
    problem, cause = _why(folder, ranks, state, first)
    code = codes[first] if first is not None else (0 if set(codes) == {0} else None)
    kept_s = None
    if began_s is not None and over_s is not None and ranks:
        kept_s = _kept_s(ranks, over_s - began_s, is_done=cause == "finished")
    return Observation(
        lease=lease,
        state="ended",
        started_s=began_s,
        ended_s=over_s,
        # An evicted job may exit with 0 and still not be finished.
        exit_code=code if cause in ("finished", "failed", "stopped_by_us") else (code or None),
        problem=problem,
        kept_work_s=kept_s,
        cause=cause,
        exit_codes=tuple(codes) if len(ranks) > 1 else (),
        resumes_s=_resumes_s(ranks),
        skew_s=skew_s,
        moved_bytes=read_carried(ranks[0].folder).moved_bytes if ranks else 0,
    )


def _kept_s(ranks: Sequence[Rank], ran_s: int, *, is_done: bool) -> float | None:
    """By its node's clock, and never more than Slurm let it run. None if the values make no sense."""
    began_s = _moment((ranks[0].started or {}).get("at_s"))
    if began_s is None:
        return None
    started = {**(ranks[0].started or {}), "at_s": began_s}
    until_s = min(_last_s(ranks), second(began_s) + ran_s)
    try:
        return kept_work_s(started, ranks[0].ended or {}, until_s, is_done=is_done)
    except (BrimfulError, OSError, ValueError):
        return None


def is_told(rank: Rank) -> bool:
    """It ended after someone had told it to."""
    return bool(rank.ended and rank.ended.get("told"))


def is_taken(rank: Rank) -> bool:
    """The cloud took its machine back."""
    return bool(rank.ended and rank.ended.get("taken"))


def first_failed(folder: Path, ranks: Sequence[Rank]) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):  # on a full disk the mark is empty
        said = read_plain(folder / "failed", below=folder, most_bytes=NOTE_BYTES)
        rank = int(said.split()[0])
        return rank if 0 <= rank < len(ranks) else None
    return next((i for i, rank in enumerate(ranks) if _code(rank) not in (0, None)), None)


def _billed(ranks: Sequence[Rank], state: str, span: Span, *, now_s: int) -> tuple[int | None, int | None]:
    """When it started and ended. Slurm's word counts, because the runner may be its tenant's own process.

    The runner's word counts if Slurm has forgotten the job, and for a lost node, which Slurm reports long
    after its last sign of life.
    """
    began_s, over_s = span
    said = [at_s for rank in ranks if (at_s := _moment((rank.started or {}).get("at_s"))) is not None]
    if began_s is None and said:  # it started and ended within one second, or Slurm has forgotten it
        began_s = min(said) if over_s is None else over_s
    if began_s is None:
        return None, None
    if over_s is None or state in NODE_LOST:
        over_s = min(_last_s(ranks), now_s if over_s is None else over_s)
    return began_s, max(began_s, min(over_s, now_s))


def _why(folder: Path, ranks: Sequence[Rank], state: str, first: int | None) -> tuple[Said | None, Cause]:
    if ranks and all(rank.ended is not None and is_done(rank.folder, rank.ended) for rank in ranks):
        return None, "finished"  # before anyone could end it
    said = _problem(ranks, first)
    if (folder / "stop.json").exists():
        return said, "stopped_by_us"
    is_whole = all(rank.ended is not None for rank in ranks)
    if not is_whole or any(map(is_told, ranks)):  # otherwise it ended before Slurm's action
        by_others = _by_others(folder, ranks, state, is_whole=is_whole)
        if by_others is not None:
            return by_others
    if said is None and not is_whole:
        said = say("slurm.vanished", state=verbatim(state)) if state else say("adapters.vanished")
    return said, "failed"


def _by_others(
    folder: Path, ranks: Sequence[Rank], state: str, *, is_whole: bool
) -> tuple[Said | None, Cause] | None:
    """Who ended it, if neither the job nor we did."""
    if by := next((rank for rank in ranks if is_taken(rank)), None):
        return said_by_anybody((by.ended or {}).get("problem")), "preempted_by_engine"
    if state in NODE_LOST:
        return say("slurm.node_lost"), "node_lost"
    if state in SENT_AWAY:
        return _evicted(folder, ranks, state), "preempted_by_engine"
    if is_whole and any((rank.ended or {}).get("sent_away") for rank in ranks):
        return say("adapters.sent_away"), "preempted_by_engine"  # though Slurm may call it completed
    return None


def _evicted(folder: Path, ranks: Sequence[Rank], state: str) -> Said:
    handed = _note(folder / "handed_back.json")
    if handed is not None and not any(rank.started for rank in ranks):
        return say("slurm.handed_back", reason=verbatim(str(handed.get("reason"))))
    return say("slurm.sent_away", state=verbatim(state))


def _problem(ranks: Sequence[Rank], first: int | None) -> Said | None:
    note = None if first is None else ranks[first].ended
    how = None if note is None or note.get("problem") is None else said_by_anybody(note["problem"])
    if how is None or len(ranks) == 1:
        return how
    return say("adapters.rank_failed", rank=Plain(first), how=how)


def _code(rank: Rank) -> int | None:
    return None if rank.ended is None else exit_code_of(rank.ended.get("exit_code"))


def _resumes_s(ranks: Sequence[Rank]) -> int | None:
    return _moment((ranks[0].child or {}).get("resumes_s")) if ranks else None


def _last_s(ranks: Sequence[Rank]) -> int:
    """By their nodes' clocks."""
    return max(map(_last_of, ranks))


def _last_of(rank: Rank) -> int:
    """When it ended, or its last sign of life."""
    at_s = _moment((rank.ended or {}).get("at_s"))
    if at_s is not None:
        return at_s
    seen_s = 0
    for name in ("beat", "log"):
        with contextlib.suppress(OSError):
            seen_s = max(seen_s, int((rank.folder / name).lstat().st_mtime))
    return min(seen_s, int(time.time()))


def _moment(value: object) -> int | None:
    """None if it makes no sense."""
    if not isinstance(value, int | float) or math.isnan(value):
        return None
    return int(max(0, min(value, LATEST_S)))
