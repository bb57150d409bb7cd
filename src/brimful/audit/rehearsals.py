"""From records to replays: the jobs that ran become a trace, what was paid for becomes a fleet.

A job is bound to the type it ran on unless its speed on others is known, and stays on one node if it ran on
one. Its work is the time it held GPUs. What ran before the window or was still running at its end is clipped.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from brimful.audit.changes import Changes
from brimful.audit.records import Records, most_at_once
from brimful.audit.sizing import EXPLAINED, Answer, Sizing, band, explained, gpus_of, peak_gpus, silos, size
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.scheduler.policies import Policy
from brimful.scheduler.rules import Quota, Rules
from brimful.sim.traces.reading import saving_job
from brimful.sim.world import SITE, Arrival
from brimful.units import HOUR_S

SHORT = (0.05, 0.1)  # shortfalls that the curve also shows
USUAL_GPUS = 8  # of a node, by default


@dataclass(frozen=True, slots=True)
class Work:
    """A trace, the fleet it really ran on if that is known, and how long each job really waited."""

    arrivals: list[Arrival]
    fleet: dict[Node, int]
    waits_s: dict[str, int]
    assumed_node: bool = False
    walls: Mapping[str, int] = field(default_factory=dict)  # queue -> GPUs that only it could use

    @property
    def types(self) -> set[str]:
        return {kind.gpu for kind in self.fleet}

    def as_it_was(self, rules: Rules) -> Rules:
        """The policy with the original walls: nobody lends, nobody borrows."""
        if not self.walls:
            return rules
        walled = (Quota(queue=w, gpus=n, borrow_gpus=0, lend=False) for w, n in self.walls.items())
        return replace(rules, quotas=tuple(walled))


def work_of(
    records: Records,
    nodes: Sequence[Node],
    *,
    start_s: int,
    end_s: int,
    changes: Collection[str] = (),
) -> Work:
    """The jobs as they ran, or as they would have run after these changes (changes.py)."""
    arrivals: list[Arrival] = []
    waits: dict[str, int] = {}
    fleet = _fleet(records, nodes)
    types = {kind.gpu for kind in fleet}
    only = next(iter(types)) if len(types) == 1 else ""
    made = Changes(records, start_s=start_s, end_s=end_s, types=types, which=changes)
    for i, run in enumerate(records.runs):
        start, end = max(run.start_s, start_s), min(run.end_s, end_s)
        if start >= end or not run.job:
            continue
        submit = run.submit_s if run.submit_s is not None else run.start_s
        name = f"{run.job}.{i}"
        waits[name] = max(0, start - max(submit, start_s))  # as in the replay: from the start of the window
        job = saving_job(
            job=name,
            gpus=run.gpus,
            within="node" if len(run.parts) == 1 and run.parts[0].place else "any",
            tenant=run.wall or run.team or "default",
            **made.types_of(run, only),
        )
        work_s = max(1, end - start - made.saved_s(i))
        at_s = max(0, submit - start_s) + made.later_s(run, work_s)
        arrivals.append(Arrival(at_s=at_s, job=job, work_s=work_s))
    return Work(sorted(arrivals, key=lambda a: a.at_s), fleet, waits, walls=_walls(records, arrivals))


def _walls(records: Records, arrivals: Sequence[Arrival]) -> dict[str, int]:
    """GPUs of each queue, if every place serves one queue and every job is in one of them."""
    places = {(p.place, p.gpu, p.gpus, p.walls) for p in records.paid if not p.unused}
    if any(len(walls) != 1 for *_, walls in places):
        return {}
    found: Counter[str] = Counter()
    for _, _, gpus, walls in places:
        found[next(iter(walls))] += gpus
    return dict(found) if len(found) > 1 and {a.job.tenant for a in arrivals} <= set(found) else {}


def _fleet(records: Records, nodes: Sequence[Node]) -> dict[Node, int]:
    kinds: Counter[Node] = Counter(replace(node, node="", rack="", holes=()) for node in nodes)
    if kinds:
        return dict(kinds)
    there = [p for p in records.paid if p.is_node and not p.unused]
    paid: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for p in there:
        paid[p.gpu][0] += p.microusd or 0
        paid[p.gpu][1] += p.gpus * (p.end_s - p.start_s)
    unpriced = {p.gpu for p in there if p.microusd is None}
    for gpu, gpus in sorted({(p.gpu, p.gpus) for p in there}):
        microusd, gpu_s = paid[gpu]
        kind = a_kind(gpu or "gpu", gpus, 0 if gpu in unpriced else microusd * HOUR_S // gpu_s)
        # Cloud machines come and go: count as many as there were at once.
        kinds[kind] = most_at_once((p.start_s, p.end_s, 1) for p in there if (p.gpu, p.gpus) == (gpu, gpus))
    return dict(kinds)


def a_kind(gpu: str, gpus: int, microusd_per_gpu_hour: int = 0) -> Node:
    """Identical nodes, at the mean price of their type."""
    rate = microusd_per_gpu_hour
    return Node(site=SITE, node="", gpu=gpu, gpus=gpus, microusd_per_gpu_hour=rate, declared=True)


def with_room(work: Work) -> Work:
    """A trace alone does not describe a fleet: use enough nodes that nobody waits."""
    if work.fleet:
        return work
    widest = {arrival.job.gpus for arrival in work.arrivals if arrival.job.within == "node"}
    gpus = max(USUAL_GPUS, *widest) if widest else USUAL_GPUS
    usual = (_fastest([a.job for a in work.arrivals if not a.job.gpu_types]),)
    types = sorted({gpu for a in work.arrivals for gpu in (a.job.gpu_types or usual)})
    top = -(-peak_gpus(work.arrivals) // gpus) + 1
    return replace(work, fleet={a_kind(gpu, gpus): top for gpu in types}, assumed_node=True)


def _fastest(jobs: Sequence[Job]) -> str:
    """The type that runs the most jobs, and fastest; `gpu` if no speeds are known."""
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for gpu, rate in (known for job in jobs for known in job.rates if known[1] > 0):
        rates[gpu].append(rate)
    return max(rates, key=lambda gpu: (len(rates[gpu]), sum(rates[gpu])), default="gpu")


def sized(work: Work, policy: Policy, *, alone: bool) -> dict[str, Any]:
    """How few are enough under one policy, and how far to trust it."""
    sizing = Sizing(work.arrivals, policy.rules, work.types)
    answer = size(sizing, work.fleet)
    _replay_fewer(sizing, answer)
    share = None
    if work.waits_s and not work.assumed_node:
        real = Sizing(work.arrivals, work.as_it_was(policy.rules)).replay(work.fleet, whole=True)
        share = explained(work.waits_s, real.waits_s)
    kind = max(work.fleet, key=lambda kind: kind.gpus * work.fleet[kind])
    queues = silos(work.arrivals, policy.rules, kind) if alone and len(work.fleet) == 1 else {}
    known = [n for n in queues.values() if n is not None]
    return {
        "policy": policy.text,
        "gpus": answer.gpus,
        "nodes": {f"{kind.gpu} x {kind.gpus}": n for kind, n in (answer.enough or {}).items() if n},
        "not_enough": _why_not_enough(sizing, work) if answer.gpus is None else None,
        "bootstrap_gpus": answer.bootstrap_gpus,
        "worst_week_gpus": answer.worst_week_gpus,
        "weeks": max((len(replay.weeks) for replay in sizing.replays.values()), default=0),
        "fleet_gpus": None if work.assumed_node else gpus_of(work.fleet),
        "explained": share,
        "lower_bound": share is None or share < EXPLAINED,
        "curve": _curve(sizing),
        "silos": queues,
        "silos_gpus": sum(known) if known and len(known) == len(queues) else None,
    }


def _why_not_enough(sizing: Sizing, work: Work) -> dict[str, Any]:
    """Why not even the whole fleet is enough: jobs that no node can hold, or too many hurt jobs."""
    replay, most = sizing.replay(work.fleet, whole=True), max(kind.gpus for kind in work.fleet)
    stuck = [a.job.gpus for a in work.arrivals if a.job.job not in replay.waits_s and a.job.gpus > most]
    return {
        "gpus": gpus_of(work.fleet),
        "jobs": len(work.arrivals),
        "stuck": len(stuck),
        "widest_gpus": max(stuck, default=0),
        "node_gpus": most,
        "hurt": replay.worst_share,
    }


def _replay_fewer(sizing: Sizing, answer: Answer) -> None:
    """For the curve: how many jobs are hurt with slightly too few GPUs. A search gives those up half-way."""
    counts = answer.enough
    if counts is None:
        return
    kind = max(counts, key=lambda kind: kind.gpus * counts[kind])
    n = counts[kind]
    for fewer in sorted({n - max(1, round(n * part)) for part in SHORT}):
        if fewer > 0 and fewer * kind.gpus >= max(a.job.gpus for a in sizing.arrivals):
            sizing.replay({**counts, kind: fewer}, whole=True)


def _curve(sizing: Sizing) -> list[dict[str, Any]]:
    """GPUs and the worst share of hurt jobs on them, for every fleet that was replayed to the end."""
    found = []
    for replay in sorted(sizing.replays.values(), key=lambda replay: replay.gpus):
        between = band(replay)
        if between is not None:
            low, high = between
            found.append({"gpus": replay.gpus, "hurt": replay.worst_share, "low": low, "high": high})
    return found
