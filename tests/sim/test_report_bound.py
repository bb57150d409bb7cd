"""Bounds that no schedule beats: exact where the optimum is known, never above what a run achieved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.fleet.job import Job
from brimful.scheduler.rules import Ordering, Rules
from brimful.sim.bound import bound, fleet_prices, gpus_by_type
from brimful.sim.fleets import parse_fleet
from brimful.sim.world import Arrival, rehearse


def an_arrival(
    at_s: int, work_s: float, gpus: int = 1, *, rates: tuple[tuple[str, float], ...] = (), name: str = "j"
) -> Arrival:
    return Arrival(at_s=at_s, job=Job(job=name, gpus=gpus, rates=rates), work_s=work_s)


def test_on_one_gpu_the_bound_is_the_optimum() -> None:
    """SRPT by hand: the job of 10 is interrupted by the job of 2, ends 12 and 3; mean JCT (12 + 2) / 2."""
    found = bound([an_arrival(0, 10), an_arrival(1, 2)], parse_fleet("1x1"))
    assert found.mean_jct_s == pytest.approx(7.0)
    assert found.makespan_s == pytest.approx(12.0)


def test_with_room_for_all_the_bound_is_the_run_time() -> None:
    found = bound([an_arrival(0, 10, 4), an_arrival(5, 30, 2)], parse_fleet("4x8"))
    assert found.mean_jct_s == pytest.approx(20.0)
    assert found.makespan_s == pytest.approx(35.0)


def test_many_equal_jobs_cannot_all_be_first() -> None:
    """100 jobs of 1 s on 10 GPUs: the optimum is 5.5 s on average, and the bound is close below."""
    found = bound([an_arrival(0, 1) for _ in range(100)], parse_fleet("1x10"))
    assert found.mean_jct_s is not None
    assert 5.4 < found.mean_jct_s <= 5.5


def test_slow_gpus_do_not_count_as_fast_ones() -> None:
    """1 fast and 9 slow GPUs work like 1.9 fast ones, not like 10."""
    rates = (("fast", 1.0), ("slow", 0.1))
    jobs = [an_arrival(0, 10, rates=rates) for _ in range(50)]
    found = bound(jobs, parse_fleet("1x1:fast+1x9:slow"))
    assert found.makespan_s == pytest.approx(500 / 1.9, rel=0.02)


def test_prices_follow_comparative_advantage() -> None:
    """One kind of job is ten times faster on the new GPU, the other no faster at all."""
    picky, easy = (("new", 1.0), ("old", 0.1)), (("new", 1.0), ("old", 1.0))
    jobs = [an_arrival(0, 10, rates=picky)] * 10 + [an_arrival(0, 10, rates=easy)] * 10
    fleet = gpus_by_type(parse_fleet("1x5:new+1x5:old"))
    prices = fleet_prices(jobs, fleet)
    assert sum(prices[gpu] * count for gpu, count in fleet.items()) == pytest.approx(10)
    # Each kind fills its own half of the fleet in 20 s: nothing is gained by moving either.
    assert bound(jobs, parse_fleet("1x5:new+1x5:old")).makespan_s == pytest.approx(20, rel=0.01)


def test_a_job_without_gpus_takes_its_time_and_no_room() -> None:
    found = bound([an_arrival(0, 100), an_arrival(0, 10, gpus=0)], parse_fleet("1x1"))
    assert found.mean_jct_s == pytest.approx(55.0)


def test_a_job_that_can_run_nowhere_bounds_nothing() -> None:
    only = an_arrival(0, 10, rates=(("h100", 1.0),))
    assert bound([only], parse_fleet("1x1:t4")).mean_jct_s is None
    assert bound([], parse_fleet("1x1")).makespan_s is None


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 4)), min_size=1, max_size=25),
    st.sampled_from(["1x4", "2x4", "3x4"]),
    st.sampled_from(["fifo", "priority"]),
)
def test_no_run_beats_the_bound(rows: list[tuple[int, int, int]], fleet: str, order: Ordering) -> None:
    arrivals = [an_arrival(*row, name=f"j{i}") for i, row in enumerate(sorted(rows))]
    nodes = parse_fleet(fleet)
    jobs = rehearse(arrivals, nodes, Rules(order=order)).fleet.jobs.values()
    mean = sum((state.ended_s or 0) - state.submitted_s for state in jobs) / len(arrivals)
    last = max(state.ended_s or 0 for state in jobs) - arrivals[0].at_s
    found = bound(arrivals, nodes)
    assert found.mean_jct_s is not None
    assert found.makespan_s is not None
    assert found.mean_jct_s <= mean + 1e-6
    assert found.makespan_s <= last + 1e-6
