"""When a job would start: the queue as it is goes on, and the range is that of lengths nobody knows."""

from __future__ import annotations

from brimful.fleet.events import JobSubmitted, LeaseEnded, LeaseGranted, LeaseStarted, NodeJoined
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.scheduler.rules import Rules
from brimful.sim.forecast import TRIES, Start, starts_of
from brimful.sim.past import PastReader

NODE = Node(site="here", node="n", gpu="l40s", gpus=2, microusd_per_gpu_hour=1, declared=False)
NOW_S = 10_000


def a_reader(*, lengths_s: tuple[int, ...], waiting: int = 0) -> PastReader:
    """One job of two GPUs has run for 100 s, others of its kind took so long; some wait behind it."""
    reader, at_s = PastReader(), 0
    reader.read([NodeJoined.of(NODE, at_s=0)])
    for number, length_s in enumerate((*lengths_s, None)):
        at_s = NOW_S - 100 if length_s is None else at_s
        job, lease = f"job-{number + 1}", f"job-{number + 1}.1"
        reader.read(
            [
                JobSubmitted(at_s=at_s, job=Job(job=job, gpus=2)),
                LeaseGranted(at_s=at_s, lease=lease, job=job, node="n", gpus=(0, 1), microusd_per_gpu_hour=1),
                LeaseStarted(at_s=at_s, lease=lease),
            ]
        )
        if length_s is not None:
            at_s += length_s
            reader.read([LeaseEnded(at_s=at_s, lease=lease, exit_code=0, cause="finished")])
    first = len(lengths_s) + 2
    for number in range(first, first + waiting):
        reader.read([JobSubmitted(at_s=NOW_S - 50, job=Job(job=f"job-{number}", gpus=2))])
    return reader


def starts(reader: PastReader, *, gpus: int = 2, **how: object) -> list[int | None]:
    found = starts_of(reader, Job(job="", gpus=gpus), Rules(), now_s=NOW_S, **how)  # type: ignore[arg-type]
    return [each.at_s for each in found]


def test_it_starts_when_what_runs_has_taken_as_long_as_its_kind_does() -> None:
    assert starts(a_reader(lengths_s=(1000,))) == [NOW_S + 900] * TRIES


def test_tries_differ_as_lengths_do_and_each_waiting_job_comes_first() -> None:
    found = starts(a_reader(lengths_s=(500, 1000, 4000)))
    assert {NOW_S + 400, NOW_S + 900, NOW_S + 3900} >= set(found)
    assert len(set(found)) > 1
    behind = starts(a_reader(lengths_s=(1000,), waiting=2))
    assert behind == [NOW_S + 900 + 2 * 1000] * TRIES


def test_a_job_that_waits_is_watched_where_it_stands() -> None:
    reader = a_reader(lengths_s=(1000,), waiting=3)
    second = starts_of(reader, Job(job="job-4", gpus=2), Rules(), now_s=NOW_S)
    assert [each.at_s for each in second] == [NOW_S + 900 + 1000] * TRIES


def test_what_never_starts_says_how_far_it_was_rehearsed() -> None:
    reader = a_reader(lengths_s=(1000,))
    never = starts_of(reader, Job(job="", gpus=3), Rules(), now_s=NOW_S)
    assert all(each.at_s is None and each.until_s >= NOW_S + 900 for each in never)


def test_a_try_that_is_cut_off_counts_only_where_nothing_else_is_known() -> None:
    reader = a_reader(lengths_s=(1000,), waiting=3)
    at_once = starts_of(reader, Job(job="", gpus=2), Rules(), now_s=NOW_S, is_spent=lambda: True)
    assert at_once == [Start(until_s=NOW_S, at_s=None)]
    steps = iter([False] * 12 + [True] * 100)
    later = starts(reader, is_spent=lambda: next(steps))
    assert 1 <= len(later) < TRIES
    assert None not in later
