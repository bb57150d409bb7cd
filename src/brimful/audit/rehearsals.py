"""From books to replays: the jobs that ran become a trace, what was paid for becomes a fleet.

A job is bound to the type it ran on unless its speed on others is known, and keeps to one node if it ran
on one. Its work is the time it held GPUs. What ran before the window or was still running at its end is
clipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from brimful.audit.cards import card_leaves
from brimful.audit.records import Records, Run
from brimful.audit.sizing import Answer, Sizing, explained, gpus_of, peak_gpus, silos, size
from brimful.fleet.node import Node
from brimful.scheduler.policies import Policy
from brimful.scheduler.rules import Quota, Rules
from brimful.sim.traces.reading import saving_job
from brimful.sim.world import SITE, Arrival
from brimful.units import MICROUSD

USUAL_GPUS = 8  # of a node, where nobody says
MONTH_H = 730


@dataclass(frozen=True, slots=True)
class Work:
    """A trace, the fleet it really ran on where that is known, and how long each job really waited."""

    arrivals: list[Arrival]
    fleet: dict[Node, int]
    waits_s: dict[str, int]
    assumed_node: bool = False
    walls: Mapping[str, int] = field(default_factory=dict)  # queue -> GPUs that only it could use

    def as_it_was(self, rules: Rules) -> Rules:
        """The policy with the walls that were there: nobody lends, nobody borrows."""
        if not self.walls:
            return rules
        walled = (Quota(queue=w, gpus=n, borrow_gpus=0, lend=False) for w, n in self.walls.items())
        return replace(rules, quotas=tuple(walled))


def work_of(
    records: Records, nodes: Sequence[Node], *, start_s: int, end_s: int, end_tails: bool = False
) -> Work:
    """`end_tails`: as if every job had ended when its cards last did anything."""
    arrivals: list[Arrival] = []
    waits: dict[str, int] = {}
    fleet = _fleet(records, nodes)
    only = next(iter({kind.gpu for kind in fleet})) if len({kind.gpu for kind in fleet}) == 1 else ""
    for i, run in enumerate(records.runs):
        start, end = max(run.start_s, start_s), min(run.end_s, end_s)
        if start >= end or not run.job:
            continue
        tail_s = _tail_s(records, run, start, end) if end_tails else 0
        submit = run.submit_s if run.submit_s is not None else run.start_s
        name = f"{run.job}.{i}"
        waits[name] = max(0, run.start_s - submit)
        gpu = only or run.gpu
        job = saving_job(
            job=name,
            gpus=run.gpus,
            within="node" if len(run.parts) == 1 and run.parts[0].place else "any",
            tenant=run.wall or run.team or "default",
            gpu_types=(gpu,) if gpu else (),
        )
        arrivals.append(Arrival(at_s=max(0, submit - start_s), job=job, work_s=end - start - tail_s))
    return Work(sorted(arrivals, key=lambda a: a.at_s), fleet, waits, walls=_walls(records, arrivals))


def _walls(records: Records, arrivals: Sequence[Arrival]) -> dict[str, int]:
    """GPUs of each queue, where every place serves one queue and every job is of one of them."""
    places = {(p.place, p.gpu, p.gpus, p.walls) for p in records.paid if not p.unused}
    if any(len(walls) != 1 for *_, walls in places):
        return {}
    found: Counter[str] = Counter()
    for _, _, gpus, walls in places:
        found[next(iter(walls))] += gpus
    return dict(found) if len(found) > 1 and {a.job.tenant for a in arrivals} <= set(found) else {}


def _tail_s(records: Records, run: Run, start: int, end: int) -> int:
    """How long all of its cards had been idle when it ended, or all the time; 0 where that is not known."""
    last = start + 1
    for part in run.parts:
        for leaf, _, b, _ in card_leaves(records, run, part, (start, end, part.gpus), ()):
            if not leaf.endswith((".idle.tail", ".idle.never_used")):
                last = max(last, b)
    return max(0, end - last)


def _fleet(records: Records, nodes: Sequence[Node]) -> dict[Node, int]:
    kinds: Counter[Node] = Counter(replace(node, node="", rack="", holes=()) for node in nodes)
    if kinds:
        return dict(kinds)
    for place, gpu, gpus in sorted(
        {(p.place, p.gpu, p.gpus) for p in records.paid if p.is_node and not p.unused}
    ):
        del place
        kinds[a_kind(gpu or "gpu", gpus)] += 1
    return dict(kinds)


def a_kind(gpu: str, gpus: int) -> Node:
    return Node(site=SITE, node="", gpu=gpu, gpus=gpus, microusd_per_gpu_hour=0, declared=True)


def with_room(work: Work) -> Work:
    """A trace alone says nothing of its fleet: enough nodes that nobody waits."""
    if work.fleet:
        return work
    widest = {arrival.job.gpus for arrival in work.arrivals if arrival.job.within == "node"}
    gpus = max(USUAL_GPUS, *widest) if widest else USUAL_GPUS
    types = sorted({gpu for a in work.arrivals for gpu in (a.job.gpu_types or ("gpu",))})
    top = -(-peak_gpus(work.arrivals) // gpus) + 1
    return replace(work, fleet={a_kind(gpu, gpus): top for gpu in types}, assumed_node=True)


def sized(work: Work, policy: Policy, *, alone: bool) -> dict[str, Any]:
    """How few are enough under one policy, and how far to trust it."""
    sizing = Sizing(work.arrivals, policy.rules)
    answer = size(sizing, work.fleet)
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
        "nodes": _shown(answer),
        "bootstrap_gpus": answer.bootstrap_gpus,
        "worst_week_gpus": answer.worst_week_gpus,
        "fleet_gpus": None if work.assumed_node else gpus_of(work.fleet),
        "explained": share,
        "lower_bound": share is None or share < 0.5,
        "curve": sorted(
            (replay.gpus, replay.worst_share)
            for replay in sizing.replays.values()
            if replay.worst_share is not None
        ),
        "silos": queues,
        "silos_gpus": sum(known) if known and len(known) == len(queues) else None,
    }


def _shown(answer: Answer) -> dict[str, int]:
    return {} if answer.enough is None else {f"{k.gpu} x {k.gpus}": n for k, n in answer.enough.items() if n}


def actions(
    work: Work, trimmed: Work, policy: Policy, microusd_per_gpu_hour: int | None, *, lower_bound: bool
) -> list[dict[str, Any]]:
    """What to do, each on top of the one before and all in one replay: their savings are not to be added up.

    Return GPUs that the same work does not need, once queues share them; then end idle tails, and return what
    that frees.
    """
    found: list[dict[str, Any]] = []
    before = gpus_of(work.fleet)
    today = Sizing(work.arrivals, work.as_it_was(policy.rules)).replay(work.fleet, whole=True)
    steps = [("drop_walls" if work.walls else "return_gpus", work)]
    if sum(a.work_s for a in trimmed.arrivals) < sum(a.work_s for a in work.arrivals):
        steps.append(("end_tails", trimmed))
    for name, some in steps:
        sizing = Sizing(some.arrivals, policy.rules)
        answer = size(sizing, some.fleet)
        if answer.enough is None or answer.gpus is None or answer.gpus >= before:
            continue
        replay = sizing.replay(answer.enough)
        saved = before - answer.gpus
        found.append(
            {
                "action": name,
                "gpus": saved,
                "left_gpus": answer.gpus,
                "usd_per_month": None
                if microusd_per_gpu_hour is None
                else saved * microusd_per_gpu_hour * MONTH_H / MICROUSD,
                "hurt_before": today.worst_share,
                "hurt_after": replay.worst_share,
                "confidence": "low" if lower_bound else "high",
            }
        )
        before = answer.gpus
    return found
