from __future__ import annotations

from pathlib import Path

import pytest

from brimful.audit.records import Paid, Part, Records, Run
from brimful.audit.rehearsals import Work, a_kind, sized, with_room, work_of
from brimful.audit.sizing import (
    Hurt,
    Replay,
    Sizing,
    explained,
    fewest,
    is_hurt,
    passes,
    passes_bootstraps,
    passes_every_week,
    peak_gpus,
    silos,
    size,
)
from brimful.fleet.job import Job
from brimful.scheduler.policies import read_policy
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival
from tests.audit.counted import Told, delays_s, fewest_nodes, worst_share, worst_week

FIFO, BRIM = read_policy("fifo"), read_policy("brim")
NODE = a_kind("gpu", 8)


def arrivals(*rows: tuple[int, int, int], **more: object) -> list[Arrival]:
    """(at, GPUs, work) each."""
    return [
        Arrival(at_s=at, job=Job(job=f"j{i}", gpus=gpus, **more), work_s=work)  # type: ignore[arg-type]
        for i, (at, gpus, work) in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("delay_s", "work_s", "hurt"),
    [(600, 10, False), (601, 10, True), (601, 6000, True), (700, 10_000, False), (1001, 10_000, True)],
)
def test_hurt_is_more_than_ten_minutes_and_a_tenth_of_the_run(delay_s: int, work_s: int, hurt: bool) -> None:
    assert is_hurt(delay_s, work_s) is hurt


def a_replay(*weeks: tuple[int, int]) -> Replay:
    """(jobs, hurt jobs) of one GPU by week."""
    found = tuple(Hurt((jobs, 0, 0, 0), (hurt, 0, 0, 0)) for jobs, hurt in weeks)
    return Replay(8, found, finished=True, late=0, waits_s={})


def test_the_three_measures_are_stricter_one_after_the_other() -> None:
    even, uneven = a_replay(*[(1000, 40)] * 10), a_replay(*[(1000, 40)] * 9, (1000, 120))

    assert [check(even) for check in (passes, passes_bootstraps, passes_every_week)] == [True, True, True]
    assert [check(uneven) for check in (passes, passes_bootstraps, passes_every_week)] == [True, False, False]
    assert not passes(a_replay((1000, 51)))


def test_a_mean_over_all_jobs_does_not_hide_the_wide_ones() -> None:
    weeks = (Hurt((10_000, 0, 10, 1), (0, 0, 1, 0)),)
    assert not passes(Replay(8, weeks, finished=True, late=0, waits_s={}))


def test_the_fewest_nodes_for_jobs_that_would_else_wait() -> None:
    jobs = arrivals(*[(0, 8, 7200)] * 4, *[(7200, 8, 7200)] * 2)
    sizing = Sizing(jobs, FIFO.rules)

    assert peak_gpus(jobs) == 32
    assert fewest(sizing, {NODE: 10}, NODE, passes) == 4
    assert size(sizing, {NODE: 10}).gpus == 32
    assert fewest(sizing, {NODE: 3}, NODE, passes) is None


def test_a_type_is_sized_for_the_jobs_that_need_it() -> None:
    old, new = a_kind("old", 8), a_kind("new", 8)
    mine = [
        *arrivals(*[(0, 8, 7200)] * 2, gpu_types=("old",)),
        *[Arrival(at_s=0, job=Job(job=f"n{i}", gpus=8, gpu_types=("new",)), work_s=7200.0) for i in range(3)],
    ]
    assert size(Sizing(mine, FIFO.rules), {old: 6, new: 6}).enough == {old: 2, new: 3}


def test_deadlines_are_kept_as_on_the_largest_fleet() -> None:
    # Each is late by 5 minutes on one node, which hurts nobody but breaks a deadline.
    jobs = arrivals((0, 8, 300), (0, 8, 300), deadline_s=400)
    sizing = Sizing(jobs, FIFO.rules)

    assert fewest(sizing, {NODE: 4}, NODE, passes) == 2


def test_calibration_counts_waiting_that_both_have() -> None:
    assert explained({"a": 100, "b": 0, "c": 50}, {"a": 40, "b": 70, "c": 60}) == pytest.approx(90 / 150)
    assert explained({"a": 0}, {"a": 5}) is None


def books(*, tail_s: int) -> Records:
    """Four nodes that each run eight jobs of two hours, one after the other, the last part idle."""
    records = Records(knows_queue=True)
    for n in range(4):
        end_s = 16 * 3600
        records.paid.append(Paid(place=f"n{n}", gpu="a100", gpus=8, start_s=0, end_s=end_s, microusd=1))
        spans = []
        for i in range(8):
            start, end = i * 7200, (i + 1) * 7200
            parts = (Part(place=f"n{n}", gpus=8, cards=tuple(range(8))),)
            # Half of the nodes would have been enough: jobs were sent in two at a time.
            records.runs.append(
                Run(job=f"{n}-{i}", start_s=start, end_s=end, parts=parts, gpu="a100", submit_s=start)
            )
            spans += [(start, end - tail_s, "working"), (end - tail_s, end, "idle")]
        for card in range(8):
            records.activity["", f"n{n}", card] = spans  # type: ignore[assignment]
    return records


def walled_books() -> Records:
    """Two queues with two nodes each: one sends four jobs at once and waits, the other sends nothing."""
    records = Records(knows_queue=True)
    for n in range(4):
        walls = frozenset({"left" if n < 2 else "right"})
        records.paid.append(
            Paid(place=f"n{n}", gpu="a100", gpus=8, start_s=0, end_s=36_000, microusd=10, walls=walls)
        )
    for i in range(4):
        start = 7200 * (i // 2)
        part = Part(place=f"n{i % 2}", gpus=8)
        records.runs.append(
            Run(
                job=f"{i}",
                start_s=start,
                end_s=start + 7200,
                parts=(part,),
                gpu="a100",
                wall="left",
                submit_s=0,
            )
        )
    return records


def test_the_replay_of_what_was_has_the_walls_that_were() -> None:
    work = work_of(walled_books(), [], start_s=0, end_s=36_000)

    assert work.walls == {"left": 16, "right": 16}
    found = sized(work, FIFO, alone=False)
    assert found["explained"] == 1.0  # behind its wall the queue waits in the replay as it did
    assert not found["lower_bound"]
    assert sized(type(work)(work.arrivals, work.fleet, work.waits_s), FIFO, alone=False)["explained"] == 0.0


def test_an_answer_that_explains_too_little_of_the_real_waits_is_a_lower_bound() -> None:
    records = books(tail_s=60)
    work = work_of(records, [], start_s=0, end_s=16 * 3600)
    waited = type(work)(work.arrivals, work.fleet, dict.fromkeys(work.waits_s, 7200))

    assert sized(waited, FIFO, alone=False)["lower_bound"]
    assert sized(waited, FIFO, alone=False)["explained"] == 0.0


def test_a_wait_before_the_window_is_not_held_against_the_replay() -> None:
    work = work_of(walled_books(), [], start_s=3600, end_s=36_000)

    assert sorted(work.waits_s.values()) == [0, 0, 3600, 3600]


def test_machines_of_a_cloud_that_follow_one_another_are_one_and_have_a_price_or_none() -> None:
    records = Records()
    for i in range(5):
        hour = (3600 * i, 3600 * (i + 1))
        cost = 8_000_000 if i else None
        paid = Paid(place=f"i-{i}", gpu="a100", gpus=8, start_s=hour[0], end_s=hour[1], microusd=cost)
        records.paid.append(paid)
    fleet = work_of(records, [], start_s=0, end_s=18_000).fleet

    assert [(kind.gpus, kind.microusd_per_gpu_hour, n) for kind, n in fleet.items()] == [(8, 0, 1)]


def test_a_trace_alone_has_no_fleet_and_is_a_lower_bound() -> None:
    work = with_room(Work(arrivals(*[(0, 4, 7200)] * 4), {}, {}))
    found = sized(work, FIFO, alone=True)

    assert (found["gpus"], found["fleet_gpus"], found["lower_bound"]) == (16, None, True)
    assert found["silos"] == {"default": 16}


def test_philly_needs_896_gpus_under_fifo(shared_data: Path) -> None:
    trace, _ = read([str(shared_data / "traces" / "philly" / "philly_jobs.csv.gz")])
    fifo = Sizing(trace.arrivals, FIFO.rules)

    assert passes(fifo.replay({NODE: 112}))
    assert not passes(fifo.replay({NODE: 111}))


def as_told(some: list[Arrival]) -> list[Told]:
    return [Told(a.at_s, a.job.gpus, a.work_s) for a in some]


def test_counting_gpus_by_hand_gives_phillys_numbers_too(shared_data: Path) -> None:
    trace, _ = read([str(shared_data / "traces" / "philly" / "philly_jobs.csv.gz")])
    jobs = as_told(trace.arrivals)

    hurt = {gpus: delays_s(jobs, gpus) for gpus in (888, 896, 944, 952)}
    assert worst_share(jobs, hurt[888]) > 0.05 >= worst_share(jobs, hurt[896])
    assert worst_week(jobs, hurt[944]) > 0.05 >= worst_week(jobs, hurt[952])
    queues: dict[str, list[Arrival]] = {}
    for arrival in trace.arrivals:
        queues.setdefault(arrival.job.tenant, []).append(arrival)
    small = {queue: mine for queue, mine in queues.items() if len(mine) < 1000}
    by_hand = {queue: 8 * fewest_nodes(as_told(mine), per_node=8) for queue, mine in small.items()}
    assert silos([a for mine in small.values() for a in mine], FIFO.rules, NODE) == by_hand


def test_philly_needs_fewer_than_800_gpus_under_brim_and_480_are_never_enough(shared_data: Path) -> None:
    trace, _ = read([str(shared_data / "traces" / "philly" / "philly_jobs.csv.gz")])
    brim = Sizing(trace.arrivals, BRIM.rules)

    assert passes(brim.replay({NODE: 99}))
    assert not passes(brim.replay({NODE: 60}))


def test_half_of_gavels_cluster_is_not_enough_for_its_96_jobs(shared_data: Path) -> None:
    gavel = shared_data / "traces" / "gavel"
    trace, _ = read(
        [
            str(gavel / "physical_cluster" / "max_min_fairness.trace.gz"),
            str(gavel / "physical_cluster_throughputs.json.gz"),
        ]
    )
    kinds = {a_kind("v100", 4): 1, a_kind("p100", 4): 2, a_kind("k80", 4): 3}
    assert not passes(Sizing(trace.arrivals, BRIM.rules).replay(kinds))


def test_a_trace_with_speeds_and_no_fleet_gets_the_type_that_runs_most_of_it_fastest() -> None:
    both, slow = (("v100", 1.0), ("k80", 0.2)), (("k80", 1.0),)
    work = [
        Arrival(at_s=0, job=Job(job=name, gpus=1, rates=rates), work_s=3600)
        for name, rates in (("a", both), ("b", both), ("c", (("v100", 0.9), ("k80", 0.1))))
    ]
    assert {kind.gpu for kind in with_room(Work(work, {}, {})).fleet} == {"v100"}
    bound = Arrival(at_s=0, job=Job(job="d", gpus=1, rates=slow, gpu_types=("k80",)), work_s=60)
    assert {kind.gpu for kind in with_room(Work([*work, bound], {}, {})).fleet} == {"v100", "k80"}
