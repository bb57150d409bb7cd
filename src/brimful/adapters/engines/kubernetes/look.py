"""What happened to a lease, from its record and what Kubernetes says about its Pods."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from brimful.adapters.engines.kubernetes.client import Thing
from brimful.adapters.engines.kubernetes.inventory import OVER, second_of
from brimful.adapters.engines.kubernetes.manifests import Record
from brimful.adapters.engines.lease_folders import MOST_SPEED, exit_code_of
from brimful.errors import Said
from brimful.fleet.events import Cause
from brimful.language import Plain, say, verbatim
from brimful.language.record import as_record, said_by_anybody
from brimful.scheduler.ports import Observation

# Reasons of a Pod's DisruptionTarget condition which mean that the node is gone, not wanted by someone else.
NODE_GONE = frozenset({"DeletionByPodGC"})
UNREACHABLE = frozenset({"DeletionByTaintManager"})
MOST_BYTES = 1 << 60


class Rank(NamedTuple):
    """One Pod of a lease; None: it does not exist."""

    pod: Thing | None

    @property
    def status(self) -> Mapping[str, Any]:
        return (self.pod or {}).get("status") or {}

    @property
    def node(self) -> str:
        return ((self.pod or {}).get("spec") or {}).get("nodeName") or ""

    @property
    def is_deleted(self) -> bool:
        return self.pod is None or bool(self.pod["metadata"].get("deletionTimestamp"))

    @property
    def is_gated(self) -> bool:
        return self.pod is not None and bool(self.pod["spec"].get("schedulingGates"))

    @property
    def is_over(self) -> bool:
        """Nothing of it runs: it has ended, or was removed before it had a node."""
        done = self.pod is None or self.status.get("phase") in OVER
        return done or (self.is_deleted and not self.node)

    @property
    def container(self) -> Mapping[str, Any]:
        return next(iter(self.status.get("containerStatuses") or []), {})

    @property
    def has_begun(self) -> bool:
        return bool(self.node) and bool(
            (self.container.get("state") or {}).keys() & {"running", "terminated"}
        )

    @property
    def end(self) -> Mapping[str, Any]:
        """How its container ended; empty if the kubelet did not say."""
        found = (self.container.get("state") or {}).get("terminated")
        return found or (self.container.get("lastState") or {}).get("terminated") or {}

    @property
    def words(self) -> Mapping[str, Any]:
        """What rank.py left behind. A process beside the job wrote it, so only plausible facts are used."""
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(self.end.get("message") or "{}")
            return found if isinstance(found, dict) else {}
        return {}

    @property
    def code(self) -> int | None:
        told = exit_code_of(self.words.get("exit_code"))
        return exit_code_of(self.end.get("exitCode")) if told is None else told

    @property
    def has_failed(self) -> bool:
        """Failed by itself, not because someone ended it."""
        return (
            self.is_over
            and bool(self.code)
            and not self.is_told
            and (bool(self.words) or not self.is_deleted)
        )

    @property
    def is_told(self) -> bool:
        return bool(self.words.get("told"))

    @property
    def disruption(self) -> Mapping[str, Any]:
        return _condition(self.status, "DisruptionTarget", "True")

    @property
    def unbound(self) -> str:
        """Why the scheduler has not bound it; empty: it has, or has not looked yet."""
        found = _condition(self.status, "PodScheduled", "False")
        return str(found.get("message") or found.get("reason") or "") if not self.is_gated else ""

    @property
    def waits_for(self) -> str:
        """What it waits for on its node, in the kubelet's words."""
        found = (self.container.get("state") or {}).get("waiting") or {}
        return ": ".join(str(found[key])[:200] for key in ("reason", "message") if found.get(key))


def _condition(status: Mapping[str, Any], kind: str, wanted: str) -> Mapping[str, Any]:
    found = (each for each in status.get("conditions") or [] if each.get("type") == kind)
    return next((each for each in found if each.get("status") == wanted), {})


def ended(
    record: Record,
    ranks: Sequence[Rank],
    *,
    began: Mapping[str, Any],
    lost: Mapping[str, int | None],
    keeps: bool,
) -> Observation:
    """`began`: what the first rank printed at its start; `keeps`: checkpoints outlive their Pods.

    `lost`: nodes that Kubernetes has given up, and when it did.
    """
    first = _first_failed(ranks)
    codes = tuple(rank.code for rank in ranks)
    cause, problem = _why(record, ranks, first, list(lost))
    words = ranks[0].words
    skew_s = float(record.facts.get("skew_s", 0.0))
    now_s = int(time.time() + skew_s)  # by their clock: what we saw has already happened, whatever they say
    started_s = _started_s(ranks, began, now_s=now_s)
    ended_s = _ended_s(ranks, started_s, lost, now_s=now_s)
    code = codes[first] if first is not None else (0 if set(codes) == {0} else None)
    if cause in ("preempted_by_engine", "node_lost"):
        code = None  # an evicted job may exit with 0 and still not be finished
    return Observation(
        lease=record.lease,
        state="ended",
        started_s=started_s,
        ended_s=ended_s,
        exit_code=code,
        problem=problem,
        kept_work_s=_kept_s(record, words, started_s, ended_s, is_done=cause == "finished", keeps=keeps),
        cause=cause,
        exit_codes=codes if len(ranks) > 1 and any(each is not None for each in codes) else (),
        resumes_s=_moment(words.get("resumes_s", began.get("resumes_s"))),
        skew_s=skew_s,
        moved_bytes=sum(min(MOST_BYTES, _moment(rank.words.get("moved_bytes")) or 0) for rank in ranks),
    )


def _why(
    record: Record, ranks: Sequence[Rank], first: int | None, lost: Sequence[str]
) -> tuple[Cause, Said | None]:
    why, reason = record.facts.get("why", ""), verbatim(str(record.facts.get("reason")))
    if why == "stopped" and all(rank.code == 0 and _by_itself(rank) for rank in ranks):
        return "finished", None  # before it heard our stop
    ours: dict[str, tuple[Cause, Said | None]] = {
        "stopped": ("stopped_by_us", _problem(ranks, first)),
        "handed_back": ("preempted_by_engine", say("kubernetes.handed_back", reason=reason)),
        "stuck": ("failed", say("kubernetes.never_began", reason=reason)),
    }
    if why in ours:
        return ours[why]
    if lost:
        return "node_lost", say("kubernetes.node_lost", node=", ".join(lost))
    disrupted = next((rank for rank in ranks if rank.disruption and not _by_itself(rank)), None)
    sent_away = _disrupted(disrupted) if disrupted is not None else _no_end_reported(ranks)
    if sent_away is not None and (disrupted is not None or why != "rank_failed"):
        return sent_away
    if first is None and all(rank.code == 0 for rank in ranks):
        return "finished", None
    return "failed", _problem(ranks, first) or say("adapters.vanished")


def _disrupted(rank: Rank) -> tuple[Cause, Said]:
    reason = str(rank.disruption.get("reason"))
    if reason in NODE_GONE or (reason in UNREACHABLE and not rank.end):
        return "node_lost", say("kubernetes.node_lost", node=rank.node)
    return "preempted_by_engine", _evicted(reason, rank.disruption.get("message"))


def _no_end_reported(ranks: Sequence[Rank]) -> tuple[Cause, Said] | None:
    """Someone deleted a Pod, or the kubelet refused or evicted it before it started, and says why."""
    those = [
        rank for rank in ranks if not rank.end or rank.is_told or (rank.is_deleted and not _by_itself(rank))
    ]
    if not those:
        return None
    told = next((rank.status for rank in those if rank.status.get("reason")), {})
    return "preempted_by_engine", _evicted(str(told.get("reason") or "deleted"), told.get("message"))


def _evicted(reason: str, words: object) -> Said:
    return say("kubernetes.sent_away", reason=verbatim(reason), words=verbatim(str(words or "-")[:200]))


def _by_itself(rank: Rank) -> bool:
    """It ended before anyone asked it to."""
    return bool(rank.words) and not rank.is_told


def _first_failed(ranks: Sequence[Rank]) -> int | None:
    """A rank that was told to leave because another had failed is not the culprit."""
    failed = [
        (rank.is_told, _moment(rank.words.get("at_s")) or MOST_BYTES, i)
        for i, rank in enumerate(ranks)
        if rank.code not in (0, None)
    ]
    return min(failed)[2] if failed else None


def _problem(ranks: Sequence[Rank], first: int | None) -> Said | None:
    if first is None:
        return None
    rank = ranks[first]
    how: Said | None = None
    with contextlib.suppress(TypeError, ValueError, KeyError):
        found = rank.words.get("problem")
        how = None if found is None else said_by_anybody(found)
    if how is None:
        reason = verbatim(str(rank.end.get("reason") or "-"))
        how = say("kubernetes.container_ended", exit_code=Plain(rank.code), reason=reason)
    return how if len(ranks) == 1 else say("adapters.rank_failed", rank=Plain(first), how=how)


def _started_s(ranks: Sequence[Rank], began: Mapping[str, Any], *, now_s: int) -> int | None:
    found = [_moment(rank.words.get("started_s")) or second_of(rank.end.get("startedAt")) for rank in ranks]
    known = [each for each in (*found, _moment(began.get("at_s"))) if each]
    return min(*known, now_s) if known else None


def _ended_s(
    ranks: Sequence[Rank], started_s: int | None, lost: Mapping[str, int | None], *, now_s: int
) -> int | None:
    """When the last rank ended; for a lost node, when Kubernetes gave it up.

    Never earlier than the kubelet says, by the same clock: a job could name a time at which it was still
    running.
    """
    found = [_moment(rank.words.get("at_s")) for rank in ranks]
    found += [second_of(rank.end.get("finishedAt")) for rank in ranks]
    known = [each for each in (*found, *lost.values()) if each]
    if started_s is None:
        return None
    return max(started_s, min(max(known), now_s)) if known else None


def _kept_s(
    record: Record,
    words: Mapping[str, Any],
    started_s: int | None,
    ended_s: int | None,
    *,
    is_done: bool,
    keeps: bool,
) -> float | None:
    speed = record.facts.get("speed")
    if started_s is None or not isinstance(speed, int | float) or not 0 <= speed <= MOST_SPEED:
        return None
    ran_s = max(0, (ended_s or started_s) - started_s)
    if is_done:
        return float(speed * ran_s)
    if not keeps:
        return 0.0
    sealed_s = _moment(words.get("sealed_s"))
    return None if sealed_s is None else float(speed * min(ran_s, max(0, sealed_s - started_s)))


def _moment(value: object) -> int | None:
    """Also for byte counts; None if the value can be neither."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value <= MOST_BYTES:
        return None
    return int(max(0, value))


def as_facts(seen: Observation) -> dict[str, Any]:
    """In the form in which the record stores it."""
    return {**asdict(seen), "problem": as_record(seen.problem), "runs_on": []}


def from_facts(facts: Mapping[str, Any]) -> Observation:
    problem = facts.get("problem")
    return Observation(
        **{
            **facts,
            "problem": None if problem is None else said_by_anybody(problem),
            "exit_codes": tuple(facts.get("exit_codes") or ()),
            "runs_on": (),
        }
    )


def skew_s(began_s: int, ordered_s: int) -> float:
    """How far a node's clock is ahead of ours, at least: a lease cannot have started before we ordered it,
    nor after we saw it running. Kept until its end, so that its run time is measured by one clock."""
    ahead_s, behind_s = began_s - int(time.time()), began_s - ordered_s
    return float(ahead_s if ahead_s > 1 else min(0, behind_s + 1))
