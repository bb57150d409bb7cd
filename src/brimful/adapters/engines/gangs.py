"""A gang with ranks on several nodes, each under its own agent: the state of the lease as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from brimful.adapters.engines.agent import Seen
from brimful.language import say
from brimful.scheduler.ports import Observation

GRACE_S = 30  # for the other ranks of a gang when one has failed
KILL_S = 1  # grace of an orphan, or of a gang that lost a node
ORPHAN_S = 10.0  # a running lease that nobody has asked about for this long is an orphan

Ranks = Mapping[int, tuple[str, Seen]]  # by rank: its node, and what was seen there


def ahead_s(theirs_s: float, before_s: float, after_s: float) -> float:
    """A lower bound on how far a node's clock is ahead of ours, from when we asked it."""
    ahead_s = int(max(0.0, theirs_s - after_s) + min(0.0, theirs_s - before_s))
    return float(ahead_s if abs(ahead_s) > 1 else 0)


def ranks_of(those: Ranks) -> int:
    """How many ranks the lease has, as each of its parts knows."""
    return max((each.ranks for _, each in those.values()), default=1)


def look_at(
    lease: str, those: Ranks, lost: Sequence[str], stop: Callable[[Sequence[str], int], object]
) -> Observation | None:
    """The state of the lease. A gang with a failed or lost part is ended before that is reported.

    `lost`: its nodes that are gone. `stop`: stops its ranks on these nodes with this many seconds of grace.
    """
    one = _merged(lease, those, lost=lost) or Observation(lease=lease, state="absent")
    unfinished = [name for name, each in those.values() if each.observation.state != "ended"]
    is_ending = bool(lost) or _has_failed_rank(those)
    if unfinished and is_ending:
        # A rank that is starting will run in a moment and can then be stopped like the others.
        if not any(_is_starting(each.observation) for _, each in those.values()):
            stop(unfinished, KILL_S if lost else GRACE_S)
        return None
    return one


class Orphans:
    """Leases that live on a node but nobody asks about. Not ended at once: a server may be catching up."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def late(self, node: str, orphans: Collection[str]) -> list[str]:
        """The leases on this node that should be ended."""
        now = time.monotonic()
        self._since = {key: at for key, at in self._since.items() if key[0] != node or key[1] in orphans}
        return [each for each in orphans if now - self._since.setdefault((node, each), now) > ORPHAN_S]


def _is_starting(seen: Observation) -> bool:
    return seen.state == "absent" or (seen.state == "waiting" and seen.problem is None)


def _has_failed_rank(those: Ranks) -> bool:
    """A gang ends as a whole: the others would wait for the failed rank forever."""
    return any(
        each.observation.state == "ended" and each.observation.cause != "finished"
        for _, each in those.values()
    )


def _merged(lease: str, those: Ranks, *, lost: Sequence[str]) -> Observation | None:
    """The state of a lease, from the states of its parts; None if there is no trace of it."""
    if not those and not lost:
        return None
    seen = _by_one_clock([each.observation for _, (_, each) in sorted(those.items())])
    ranks = ranks_of(those)
    states = {each.state for each in seen}
    started = min((each.started_s for each in seen if each.started_s is not None), default=None)
    if lost and states <= {"ended"}:
        ended = max((each.ended_s for each in seen if each.ended_s is not None), default=None)
        said = say("adapters.node_lost", node=", ".join(lost))
        return Observation(
            lease=lease,
            state="ended",
            started_s=started,
            ended_s=ended,
            problem=said,
            cause="node_lost",
            skew_s=seen[0].skew_s if seen else 0.0,
        )
    if states == {"ended"}:
        whole = _ended(lease, seen, started)
        # Our server left the gang half-started: that is not the job's fault.
        return whole if len(those) == ranks else replace(whole, exit_code=None, cause="preempted_by_engine")
    if states == {"absent"}:
        return None
    first = next((each for each in seen if each.state in {"waiting", "absent"}), seen[0] if seen else None)
    if first is None or first.state in {"ended", "absent"} or len(those) < ranks:
        return Observation(
            lease=lease, state="waiting", problem=say("adapters.gang_parts", begun=len(those), of=ranks)
        )
    return replace(first, started_s=started)


def _by_one_clock(seen: Sequence[Observation]) -> list[Observation]:
    """All ranks' times, converted to the first rank's clock."""

    def moved(at_s: int | None, by_s: float) -> int | None:
        return None if at_s is None else int(at_s + by_s)

    found = []
    for each in seen:
        by_s = seen[0].skew_s - each.skew_s
        moments = (moved(each.started_s, by_s), moved(each.ended_s, by_s))
        found.append(replace(each, started_s=moments[0], ended_s=moments[1], skew_s=seen[0].skew_s))
    return found


def _ended(lease: str, seen: Sequence[Observation], started: int | None) -> Observation:
    codes = tuple(each.exit_code for each in seen)
    ends = [(each.ended_s or 0, rank) for rank, each in enumerate(seen)]
    # A rank that we stopped because another had failed is not the culprit.
    failed = [(seen[rank].cause != "failed", end, rank) for end, rank in ends if seen[rank].exit_code != 0]
    # A rank that exited with 0 because it was told to is not finished, whatever the others are.
    told = (rank for rank, each in enumerate(seen) if each.cause != "finished")
    rank = min(failed)[2] if failed else next(told, 0)
    first = seen[rank]
    # A first rank that finishes before the others reports all its work as kept.
    keeper = first if seen[0].cause == "finished" else seen[0]
    problem = first.problem
    of_all = first.cause != "failed" and all(each.problem == problem for each in seen)
    if failed and problem is not None and not of_all and len(seen) > 1:
        problem = say("adapters.rank_failed", rank=rank, how=problem)
    return Observation(
        lease=lease,
        state="ended",
        started_s=started,
        ended_s=max(end for end, _ in ends) or None,
        exit_code=first.exit_code,
        problem=problem,
        kept_work_s=keeper.kept_work_s,
        cause=first.cause,
        exit_codes=codes if len(codes) > 1 else (),
        resumes_s=seen[0].resumes_s,
        skew_s=first.skew_s,
        moved_bytes=sum(each.moved_bytes for each in seen),
    )
