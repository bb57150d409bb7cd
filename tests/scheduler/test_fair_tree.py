"""Fair share over a tree of queues: branches are compared first, so that splitting a queue gains nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from brimful.errors import BadInput
from brimful.fleet.queues import Quota
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.queue_tree import check_parents, parts_used, shares_owed, shares_used
from brimful.sim.world import Arrival, rehearse
from brimful.units import HOUR_S
from tests.builders import a_job, a_node, refuses

GPUS, LONGEST_S, UNTIL_S = 4, 90 * 60, 40 * HOUR_S


def a_tree(random: Random) -> tuple[Quota, ...]:
    """Up to three levels, with weights; queues above others may have jobs of their own."""
    queues = [Quota(queue=f"top-{i}", gpus=0, weight=random.choice([1, 2, 3])) for i in range(2)]
    for i in range(random.randint(1, 5)):
        parent = random.choice(queues).queue
        queues.append(Quota(queue=f"part-{i}", gpus=0, parent=parent, weight=random.choice([1, 2])))
    return tuple(queues)


def had_s(queues: tuple[Quota, ...], random: Random) -> Counter[str]:
    """GPU-seconds that each queue has had until `UNTIL_S`, while all of them have jobs that wait."""
    lengths = [random.choice([2400.0, 3600.0, float(LONGEST_S)]) for _ in range(UNTIL_S * GPUS // 2400)]
    arrivals = [
        Arrival(at_s=0, job=a_job(f"{quota.queue}.{i}", queue=quota.queue), work_s=work_s)
        for i, work_s in enumerate(lengths)
        for quota in queues
    ]
    rules = replace(POLICIES["fair"], quotas=queues)
    fleet = rehearse(arrivals, [a_node(gpus=GPUS)], rules).fleet
    had: Counter[str] = Counter()
    for state in fleet.jobs.values():
        for lease in state.leases:
            assert lease.started_s is not None
            assert lease.ended_s is not None
            had[state.job.queue] += max(0, min(UNTIL_S, lease.ended_s) - lease.started_s)
    return had


@pytest.mark.parametrize("seed", range(8))
def test_a_branch_gets_its_weight_however_many_queues_it_has(seed: int) -> None:
    random = Random(seed)
    queues = a_tree(random)
    had = had_s(queues, random)

    parents = {quota.queue: quota.parent for quota in queues}
    total: Counter[str] = Counter()
    for name, gpu_s in had.items():
        total[name] += gpu_s
        above = parents[name]
        while above:
            total[above] += gpu_s
            above = parents[above]
    for parent in {"", *parents.values()}:
        # What a queue above others runs itself competes with them, with weight 1.
        parts = {
            quota.queue: (quota.weight, total[quota.queue]) for quota in queues if quota.parent == parent
        }
        parts |= {"": (1.0, had[parent])} if parent else {}
        weights, sum_s = sum(weight for weight, _ in parts.values()), sum(got for _, got in parts.values())
        for weight, got in parts.values():
            assert abs(got - sum_s * weight / weights) <= 2 * GPUS * LONGEST_S, (queues, had)


def test_use_is_compared_where_branches_part() -> None:
    queues = (
        Quota(queue="big", gpus=0, weight=2.0),
        Quota(queue="big-a", gpus=0, parent="big"),
        Quota(queue="big-b", gpus=0, parent="big"),
        Quota(queue="small", gpus=0),
    )
    used = shares_used(queues, {"big-a": 30.0, "big-b": 10.0, "small": 25.0, "guest": 1.0})
    assert used == {
        "big": (20.0, 0.0),
        "big-a": (20.0, 30.0),
        "big-b": (20.0, 10.0),
        "small": (25.0,),
        "guest": (1.0,),
    }
    assert sorted(used, key=lambda name: used[name]) == ["guest", "big", "big-b", "big-a", "small"]
    assert shares_used((), {"guest": 1.0}) == {"guest": (1.0,)}


def test_a_share_is_owed_by_weight_among_queues_with_jobs_and_use_includes_what_is_below() -> None:
    queues = (
        Quota(queue="big", gpus=0, weight=2.0),
        Quota(queue="big-a", gpus=0, parent="big"),
        Quota(queue="big-b", gpus=0, parent="big", weight=3.0),
        Quota(queue="small", gpus=0),
    )
    owed = shares_owed(queues, {"big-a", "big-b", "small", "guest"})
    assert owed == {"big": 0.5, "big-a": 0.125, "big-b": 0.375, "small": 0.25, "guest": 0.25}
    assert shares_owed(queues, {"big-a"}) == {"big": 1.0, "big-a": 1.0}
    assert shares_owed(queues, ()) == {}
    used = parts_used(queues, {"big-a": 30.0, "big-b": 10.0, "small": 60.0})
    assert used == {"big": 0.4, "big-a": 0.3, "big-b": 0.1, "small": 0.6}
    assert parts_used(queues, {"small": 0.0}) == {}


def test_a_parent_must_be_there_and_not_below_itself() -> None:
    a, b, c = (Quota(queue=name, gpus=0, parent=parent) for name, parent in ("ab", "bc", "ca"))
    with refuses(BadInput, "fleet.no_parent"):
        check_parents([a, b])
    with refuses(BadInput, "fleet.own_parent"):
        check_parents([a, b, c])
    with refuses(BadInput, "fleet.own_parent"):
        check_parents([replace(a, parent="a")])
    with refuses(BadInput, "fleet.own_parent"):  # a ring that it is not part of is refused at its members
        check_parents([replace(a, parent="b"), replace(b, parent="c"), replace(c, parent="b")])
    check_parents([a, b, replace(c, parent="")])
