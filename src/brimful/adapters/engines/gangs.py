"""A gang whose ranks are on several nodes, each with an agent of its own: what the lease is as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from brimful.adapters.engines.agent import Seen
from brimful.language import say
from brimful.scheduler.ports import Observation

GRACE_S = 30  # of a gang's other ranks, when one has failed
KILL_S = 1  # grace of an orphan, and of a gang whose node was lost
ORPHAN_S = 10.0  # a lease that lives and is not asked for so long is nobody's

Ranks = Mapping[int, tuple[str, Seen]]  # by rank: its node, and what was seen there


def ahead_s(theirs_s: float, before_s: float, after_s: float) -> float:
    """How far a node's clock is ahead of ours, at least: it was asked in between."""
    ahead_s = int(max(0.0, theirs_s - after_s) + min(0.0, theirs_s - before_s))
    return float(ahead_s if abs(ahead_s) > 1 else 0)


def ranks_of(those: Ranks) -> int:
    """How many the lease has, as each of its parts knows."""
    return max((each.ranks for _, each in those.values()), default=1)


def look_at(
    lease: str, those: Ranks, lost: Sequence[str], stop: Callable[[Sequence[str], int], object]
) -> Observation | None:
    """What the lease is; a gang of which a part failed or was lost is ended before that is told.

    `lost`: those of its nodes that are gone. `stop`: its ranks on these nodes, with so many seconds of grace.
    """
    one = _merged(lease, those, lost=lost) or Observation(lease=lease, state="absent")
    unfinished = [name for name, each in those.values() if each.observation.state != "ended"]
    is_ending = bool(lost) or _one_failed(those)
    if unfinished and is_ending:
        # One that is on its way runs a moment later, and can be told to leave as the others are.
        if not any(_is_on_its_way(each.observation) for _, each in those.values()):
            stop(unfinished, KILL_S if lost else GRACE_S)
        return None
    return one


class Orphans:
    """Leases that live on a node and that nobody asks for: not ended at once, a server may be catching up."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def late(self, node: str, orphans: Collection[str]) -> list[str]:
        """Those of this node that are to be ended."""
        now = time.monotonic()
        self._since = {key: at for key, at in self._since.items() if key[0] != node or key[1] in orphans}
        return [each for each in orphans if now - self._since.setdefault((node, each), now) > ORPHAN_S]


def _is_on_its_way(seen: Observation) -> bool:
    return seen.state == "absent" or (seen.state == "waiting" and seen.problem is None)


def _one_failed(those: Ranks) -> bool:
    """A gang ends whole: the others would wait for that one for ever."""
    return any(
        each.observation.state == "ended" and each.observation.cause != "finished"
        for _, each in those.values()
    )


def _merged(lease: str, those: Ranks, *, lost: Sequence[str]) -> Observation | None:
    """What a lease is, by what its parts are; None: there is no trace of it."""
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
        # Of a gang that our server left half-begun: it was not the job's fault.
        return whole if len(those) == ranks else replace(whole, exit_code=None, cause="preempted_by_engine")
    if states == {"absent"}:
        return None
    first = next((each for each in seen if each.state == "waiting"), seen[0] if seen else None)
    if first is None or first.state in {"ended", "absent"} or len(those) < ranks:
        return Observation(
            lease=lease, state="waiting", problem=say("adapters.gang_parts", begun=len(those), of=ranks)
        )
    return replace(first, started_s=started)


def _by_one_clock(seen: Sequence[Observation]) -> list[Observation]:
    """The moments of all ranks by the first one's clock."""

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
    # A rank that we stopped because another had failed is not the one that failed.
    failed = [(seen[rank].cause != "failed", end, rank) for end, rank in ends if seen[rank].exit_code != 0]
    # One that left with 0 because it was told to is not done, whatever the others are.
    told = (rank for rank, each in enumerate(seen) if each.cause != "finished")
    rank = min(failed)[2] if failed else next(told, 0)
    first = seen[rank]
    # A first rank that is done before the others calls all its work kept.
    keeper = first if seen[0].cause == "finished" else seen[0]
    problem = first.problem
    if failed and len(seen) > 1 and problem is not None:
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
