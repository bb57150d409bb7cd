"""Queues that are part of others: whose turn it is under fair share, and what a tree must be like."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from brimful.errors import BadInput
from brimful.fleet.queues import Quota
from brimful.language import Quoted, say
from brimful.scheduler.rules import Rules


def check_parents(quotas: Sequence[Quota]) -> None:
    """Every parent is one of these queues, and none is above itself."""
    parents = {quota.queue: quota.parent for quota in quotas}
    for quota in quotas:
        if quota.parent and quota.parent not in parents:
            raise BadInput(say("fleet.no_parent", queue=Quoted(quota.queue), parent=Quoted(quota.parent)))
        above = quota.parent
        for _ in quotas:
            if above == quota.queue:
                raise BadInput(say("fleet.own_parent", queue=Quoted(quota.queue)))
            above = parents.get(above, "")


def without_effect(quota: Quota, rules: Rules) -> list[str]:
    """Settings of the queue that this policy does not look at: shares are dealt out under `fair` alone."""
    given = {"weight": quota.weight != 1, "parent": bool(quota.parent)}
    return [name for name, is_set in given.items() if is_set and rules.order != "fair"]


def shares_owed(quotas: Sequence[Quota], busy: Collection[str]) -> dict[str, float]:
    """The part of the fleet (0 to 1) that `fair` owes to each queue that has jobs, or has such queues below.

    Queues under one parent share its part by weight; the others are not counted. A parent's own jobs compete
    with the queues below it: its part is that of all of them together.
    """
    weights = {quota.queue: quota.weight for quota in quotas}
    parents = {quota.queue: quota.parent for quota in quotas if quota.parent}
    names = {each for name in busy for each in _upwards(name, parents)}
    below: dict[str, list[str]] = {}
    for name in sorted(names):
        below.setdefault(parents.get(name, ""), []).append(name)
    owed, todo = {"": 1.0}, [""]
    while todo:
        within = todo.pop()
        here = below.get(within, [])
        total = sum(weights.get(each, 1.0) for each in here)
        owed |= {each: owed[within] * weights.get(each, 1.0) / total for each in here}
        todo += here
    del owed[""]
    return owed


def parts_used(quotas: Sequence[Quota], used: Mapping[str, float]) -> dict[str, float]:
    """The part (0 to 1) of all recent use that each queue had, those below it included."""
    parents = {quota.queue: quota.parent for quota in quotas if quota.parent}
    whole, total = sum(used.values()), dict[str, float]()
    for name, gpu_s in used.items():
        for each in _upwards(name, parents):
            total[each] = total.get(each, 0.0) + gpu_s
    return {name: gpu_s / whole for name, gpu_s in total.items()} if whole else {}


def shares_used(quotas: Sequence[Quota], used: Mapping[str, float]) -> dict[str, tuple[float, ...]]:
    """Of each queue, from the top of the tree down: its use over its weight, all queues below it included.

    The smallest goes first. Two queues are thus compared where their branches part, so that a team that
    splits its queue in ten gets no more than before. The jobs of a queue that has others below it compete
    with these.
    """
    weights = {quota.queue: quota.weight for quota in quotas}
    parents = {quota.queue: quota.parent for quota in quotas if quota.parent}
    if not parents:
        return {name: (gpu_s / weights.get(name, 1.0),) for name, gpu_s in used.items()}
    total = dict.fromkeys(weights, 0.0)
    for name, gpu_s in used.items():
        for each in _upwards(name, parents):
            total[each] = total.get(each, 0.0) + gpu_s
    shared = frozenset(parents.values())
    return {
        name: (
            *reversed([total[each] / weights.get(each, 1.0) for each in _upwards(name, parents)]),
            *((used.get(name, 0.0),) if name in shared else ()),
        )
        for name in total
    }


def _upwards(name: str, parents: Mapping[str, str]) -> Iterator[str]:
    while name:
        yield name
        name = parents.get(name, "")
