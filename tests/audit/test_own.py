"""brimful's own log and Meter samples as books."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from brimful.adapters.stores.sql import SqlStore
from brimful.audit.readers.own import OwnLog, read_log
from brimful.audit.readers.read import Asked, read
from brimful.audit.records import Paid, Part, Records, Run
from brimful.audit.report import report
from brimful.audit.sweep import sweep
from brimful.fleet.events import (
    ArraySubmitted,
    CancelRequested,
    Event,
    JobHeld,
    JobReleased,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
    NodeDrained,
    NodeJoined,
    NodeResumed,
)
from brimful.fleet.job import Job
from brimful.language import verbatim
from brimful.meter.samples import GpuSample, RunSample, Sample, StepSample, as_line
from brimful.scheduler.policies import read_policy
from brimful.sim.fleets import parse_fleet
from brimful.sim.world import Arrival, Outcome, rehearse


def an_outcome() -> Outcome:
    """Two jobs of 8 GPUs on one node: the second waits for the first."""
    arrivals = [Arrival(at_s=0, job=Job(job=f"j{i}", gpus=8, tenant="vision"), work_s=3600) for i in range(2)]
    arrivals.append(Arrival(at_s=7200, job=Job(job="last", gpus=2), work_s=3600))
    return rehearse(arrivals, parse_fleet("1x8:a100-sxm-80gb@2"), read_policy("fifo").rules)


def test_a_log_is_nodes_leases_and_waits() -> None:
    records = Records()
    read_log(an_outcome().log, records)
    start_s, end_s = records.window()
    tree = sweep(records, start_s=start_s, end_s=end_s).tree

    assert (start_s, end_s) == (0, 10_800)
    assert tree.amount().microusd == 8 * 3 * 2_000_000
    assert tree.amount("allocated.kept").gpu_s == (8 * 2 + 2) * 3600
    assert tree.amount("unallocated.no_demand").gpu_s == 6 * 3600
    assert [(w.gpus, w.end_s - w.start_s) for w in records.waits] == [(8, 3600)]


def test_tasks_of_an_array_are_jobs() -> None:
    first = next(event for event in an_outcome().log if isinstance(event, NodeJoined))
    tasks = ArraySubmitted(at_s=0, job=Job(job="a", gpus=8, tenant="vision"), indices=(0,))
    ran = [
        LeaseGranted(
            at_s=5, lease="a_0.1", job="a_0", node=first.node, gpus=tuple(range(8)), microusd_per_gpu_hour=0
        ),
        LeaseStarted(at_s=5, lease="a_0.1"),
        LeaseEnded(at_s=65, lease="a_0.1", exit_code=0, reason=verbatim("finished")),
    ]
    records = Records()
    read_log([first, tasks, *ran], records, now_s=65)
    assert [(run.job, run.team, run.end_s - run.start_s) for run in records.runs] == [("a_0", "vision", 60)]


def a_log(*events: Event) -> Records:
    """A node of two GPUs from 0 to 1000 s."""
    first = next(event for event in an_outcome().log if isinstance(event, NodeJoined))
    records = Records()
    read_log([replace(first, node="n", gpus=2), *events], records, now_s=1000)
    return records


def submitted(name: str, at_s: int = 0, **facts: Any) -> JobSubmitted:
    return JobSubmitted(at_s=at_s, job=Job(job=name, gpus=1, **facts))


def granted(job: str, at_s: int, card: int = 0) -> LeaseGranted:
    return LeaseGranted(
        at_s=at_s, lease=f"{job}@{at_s}", job=job, node="n", gpus=(card,), microusd_per_gpu_hour=0
    )


def waited(records: Records) -> list[tuple[int, int]]:
    return [(wait.start_s, wait.end_s) for wait in records.waits]


def test_a_job_that_was_cancelled_while_it_waited_is_no_longer_demand() -> None:
    records = a_log(submitted("j"), CancelRequested(at_s=100, job="j"))

    assert waited(records) == [(0, 100)]


def test_a_job_that_was_preempted_waits_again_and_comes_again() -> None:
    stop = LeaseEnding(at_s=200, lease="j@50", reason=None, requeue=True)
    ended = LeaseEnded(at_s=210, lease="j@50", exit_code=1, kept_work_s=100.0)
    began = LeaseStarted(at_s=60, lease="j@50")
    records = a_log(submitted("j"), granted("j", 50), began, stop, ended, granted("j", 500))

    assert waited(records) == [(0, 50), (210, 500)]
    ran = [(run.start_s, run.end_s, run.outcome, run.submit_s) for run in records.runs]
    assert ran == [(50, 160, "kept", 0), (160, 210, "lost", 160), (500, 1000, "unknown", 210)]


def test_what_waits_for_another_job_or_for_its_array_is_not_demand() -> None:
    array = ArraySubmitted(at_s=0, job=Job(job="a", gpus=1), indices=(0, 1), at_most=1)
    ended = LeaseEnded(at_s=300, lease="a_0@0", exit_code=0)
    records = a_log(array, submitted("next", after=(("a_0", "ok"),)), granted("a_0", 0), ended)

    assert waited(records) == [(300, 1000), (300, 1000)]


def test_a_card_that_jobs_share_is_held_once() -> None:
    both = [granted("x", 0), granted("y", 100)]
    ended = LeaseEnded(at_s=400, lease="x@0", exit_code=0)
    records = a_log(submitted("x", gpu_milli=500), submitted("y", gpu_milli=500), *both, ended)
    tree = sweep(records, start_s=0, end_s=1000).tree

    assert [(run.job, run.start_s, run.end_s) for run in records.runs] == [("x", 0, 400), ("y", 400, 1000)]
    assert tree.amount("allocated").gpu_s == tree.amount("unallocated").gpu_s == 1000


def test_a_strangers_database_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "cookies.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE events (a)")
        other.commit()
    path.chmod(0o644)
    before = path.read_bytes()
    records = read([str(tmp_path)], Asked())

    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o644
    assert records.not_known == ["cookies.db"]


def test_what_still_runs_is_held_until_now() -> None:
    log = [event for event in an_outcome().log if event.at_s < 3600]
    records = Records()
    read_log(log, records, now_s=1800)
    tree = sweep(records, start_s=0, end_s=1800).tree

    assert tree.amount("allocated.unknown").gpu_s == tree.amount().gpu_s == 8 * 1800


def test_a_log_read_piece_by_piece_says_the_same_as_one_read_whole() -> None:
    log, so_far = an_outcome().log, OwnLog(Records())
    for at, event in enumerate(log, start=1):
        so_far.add([event])
        whole = Records()
        read_log(log[:at], whole, now_s=event.at_s + 600)
        assert so_far.until(event.at_s + 600) == whole


def test_a_drained_node_is_planned_and_a_held_job_is_not_demand() -> None:
    log = an_outcome().log
    node = next(event.node for event in log if hasattr(event, "node"))
    log += [NodeDrained(at_s=8000, node=node), NodeResumed(at_s=9000, node=node)]
    log += [JobHeld(at_s=0, job="j1"), JobReleased(at_s=1800, job="j1")]
    records = Records()
    read_log(sorted(log, key=lambda event: event.at_s), records)
    tree = sweep(records, start_s=0, end_s=10_800).tree

    assert tree.amount("out_of_service.planned").gpu_s == 6 * 1000
    assert [w.end_s - w.start_s for w in records.waits] == [1800]


def test_the_database_of_a_server_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "brimful.db"
    store = SqlStore(f"sqlite:///{path}")
    assert store.append(an_outcome().log, after=0)
    store.close()
    records = read([str(path)], Asked())

    assert len(records.runs) == 3
    assert records.paid[0].gpu == "a100-sxm-80gb"


def test_steps_of_a_meter_are_work_and_what_waited_in_them(tmp_path: Path) -> None:
    steps = [
        StepSample(
            at_s=1000.0 + 100 * i,
            step=i,
            step_s=100.0,
            data_s=25.0,
            comm_s=10.0,
            mfu=0.4,
            peak_reserved_bytes=30,
        )
        for i in range(1, 11)
    ]
    steps.append(StepSample(at_s=4000.0, step=11, step_s=100.0, data_s=25.0, comm_s=10.0, mfu=0.4))
    began = RunSample(at_s=400.0, pid=1, host="n1", job="j", device="cuda:3")
    path = tmp_path / "samples.jsonl"
    samples: list[Sample] = [began, GpuSample(at_s=401.0, index=3, memory_total_bytes=80), *steps]
    path.write_text("".join(as_line(sample) + "\n" for sample in samples))
    records = read([str(path)], Asked())

    assert records.activity["j", "n1", 3] == [
        (400, 1000, "idle"),
        (1000, 2000, "working"),
        (2000, 3900, "idle"),
        (3900, 4000, "working"),
    ]
    part = Part(place="n1", gpus=1, cards=(3,))
    run = Run(job="j", start_s=400, end_s=4000, parts=(part,), outcome="kept")
    assert records.memory["j"] == (30, 80)
    records.runs.append(replace(run, memory_bytes=30, card_bytes=80))
    records.paid.append(Paid(place="n1", gpu="", gpus=1, start_s=400, end_s=4000))
    tree = sweep(records, start_s=400, end_s=4000).tree
    assert {c.leaf.removeprefix("allocated.kept."): n for c, n in tree.cells.items()} == {
        "idle.setup": 600,
        "idle.gap": 1900,
        "active.working.larger_card.input_wait": 275,
        "active.working.larger_card.communication": 110,
        "active.working.larger_card.computing.mfu": 440,
        "active.working.larger_card.computing.below_peak": 275,
    }


def test_a_second_try_on_the_same_card_does_not_hide_the_first(tmp_path: Path) -> None:
    for began_s in (400, 5000):
        began = RunSample(at_s=float(began_s), pid=1, host="n1", job="j", device="cuda:3")
        step = StepSample(at_s=began_s + 100.0, step=1, step_s=100.0, data_s=0.0)
        (tmp_path / f"{began_s}.jsonl").write_text(f"{as_line(began)}\n{as_line(step)}\n")
    records = read([str(tmp_path)], Asked())

    assert records.activity["j", "n1", 3] == [(400, 500, "working"), (5000, 5100, "working")]


def test_what_a_job_wasted_costs_what_its_place_cost_or_is_unknown() -> None:
    records = Records(
        paid=[
            Paid(place="n0", gpu="h100", gpus=8, microusd=16_000_000, start_s=0, end_s=3600),
            Paid(place="n0", gpu="h100", gpus=8, microusd=32_000_000, start_s=3600, end_s=7200),
            Paid(place="n1", gpu="a100", gpus=8, start_s=0, end_s=3600),
        ]
    )
    for job, places in (("one", ["n0"]), ("two", ["n1"]), ("both", ["n0", "n1"])):
        parts = tuple(Part(place=place, gpus=2) for place in places)
        records.runs.append(Run(job=job, start_s=0, end_s=1800, parts=parts, outcome="lost"))
    told = report(records, sweep(records, start_s=0, end_s=7200))
    # Two GPUs for half an hour, where an hour of one cost 3 dollars on average.
    wasted = {each["job"]: each["wasted_usd"] for each in told["jobs"]}
    assert wasted == {"one": 3.0, "two": None, "both": None}
    kept = next(each for each in told["leaves"] if each["path"] == "allocated.lost.unknown" and each["gpu_h"])
    assert kept["gpu_h"] == 1 + 1 + 2
