"""The simulator against queueing theory, in two steps: if these are off, so is every other figure.

The production tick must agree, to the second, with a textbook recursion of a few lines; and the recursion,
which is fast enough for hundreds of thousands of jobs, must agree with the formula within 2 %.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from math import exp, factorial
from random import Random

import pytest

from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.scheduler.policies import POLICIES
from brimful.sim.world import Arrival, Outcome, rehearse

MEAN_S = 10_000  # of a job; whole seconds then round away a ten-thousandth

Stream = list[tuple[int, int]]  # (arrival, length)


def a_stream(jobs: int, *, load: float, servers: int, seed: int) -> Stream:
    """Poisson arrivals of jobs with exponential lengths."""
    random, at_s, stream = Random(seed), 0.0, []
    for _ in range(jobs):
        at_s += random.expovariate(load * servers / MEAN_S)
        stream.append((round(at_s), max(1, round(random.expovariate(1 / MEAN_S)))))
    return stream


def run(stream: Stream, *, servers: int, policy: str) -> Outcome:
    node = Node(site="sim", node="n", gpu="g", gpus=servers, microusd_per_gpu_hour=0, declared=True)
    arrivals = [
        Arrival(
            at_s=at_s,
            job=Job(job=f"j{i}", gpus=1, predicted_work_s=float(work_s), checkpoint_interval_s=0),
            work_s=work_s,
        )
        for i, (at_s, work_s) in enumerate(stream)
    ]
    return rehearse(arrivals, [node], POLICIES[policy])


def ends_s(outcome: Outcome) -> list[int]:
    return [state.ended_s or -1 for state in outcome.fleet.jobs.values()]


def fifo_ends_s(stream: Stream, *, servers: int) -> list[int]:
    """Each job takes the server that is free first (Kiefer and Wolfowitz, 1955)."""
    free_s = [0] * servers
    heapify(free_s)
    ends = []
    for at_s, work_s in stream:
        ends.append(max(at_s, free_s[0]) + work_s)
        heapreplace(free_s, ends[-1])
    return ends


def srpt_ends_s(stream: Stream) -> list[int]:
    """One server always works on the job with the least left."""
    ends, left, now_s = [0] * len(stream), list[tuple[int, int]](), 0
    for i, (at_s, work_s) in enumerate([*stream, (10**15, 0)]):
        while left and now_s + left[0][0] <= at_s:
            work, job = heappop(left)
            now_s += work
            ends[job] = now_s
        if left:
            heapreplace(left, (left[0][0] - (at_s - now_s), left[0][1]))
        now_s = at_s
        heappush(left, (work_s, i))
    return ends


def mean_jct_s(stream: Stream, ends: list[int]) -> float:
    return sum(end - at_s for (at_s, _), end in zip(stream, ends, strict=True)) / len(stream)


def erlang_wait(*, load: float, servers: int) -> float:
    """Mean wait in M/M/c in units of the mean length: C(c, a) / (c·(1 - load)), C after Erlang (1917)."""
    a = load * servers
    blocked = a**servers / factorial(servers) / (1 - load)
    queued = blocked / (sum(a**k / factorial(k) for k in range(servers)) + blocked)
    return queued / (servers * (1 - load))


def srpt_mean(load: float) -> float:
    """Mean time in M/M/1 under SRPT in units of the mean length, after Schrage and Miller (1966), on a grid.

    T(x) = load·m2(x) / (2·(1 - rho(x))²) + integral_0^x dt / (1 - rho(t)), where rho(x) counts jobs up to x
    and m2(x) = integral_0^x t²f(t)dt + x²·(1 - F(x)).
    """
    step, rho, inside, squares, mean = 0.002, 0.0, 0.0, 0.0, 0.0
    for k in range(12_500):
        x = (k + 0.5) * step
        f = exp(-x)
        rho += load * x * f * step
        squares += x * x * f * step
        inside += step / (1 - rho)
        mean += (load * (squares + x * x * f) / (2 * (1 - rho) ** 2) + inside) * f * step
    return mean


@pytest.mark.parametrize("policy", ["fifo", "priority", "las", "srpt", "brim"])
def test_with_more_gpus_than_jobs_every_job_takes_exactly_its_time(policy: str) -> None:
    stream = a_stream(300, load=0.9, servers=50, seed=1)
    outcome = run(stream, servers=300, policy=policy)
    assert ends_s(outcome) == [at_s + work_s for at_s, work_s in stream]
    assert all(len(state.leases) == 1 for state in outcome.fleet.jobs.values())


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (4, 0.7), (16, 0.9)])
def test_fifo_is_the_textbook_queue_to_the_second(servers: int, load: float) -> None:
    stream = a_stream(1500, load=load, servers=servers, seed=2)
    assert ends_s(run(stream, servers=servers, policy="fifo")) == fifo_ends_s(stream, servers=servers)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (4, 0.7), (16, 0.8)])
def test_the_textbook_queue_waits_as_long_as_m_m_c(servers: int, load: float) -> None:
    stream = a_stream(300_000, load=load, servers=servers, seed=3)
    expected_s = MEAN_S * (1 + erlang_wait(load=load, servers=servers))
    assert mean_jct_s(stream, fifo_ends_s(stream, servers=servers)) == pytest.approx(expected_s, rel=0.02)


def test_srpt_is_the_textbook_server_to_the_second() -> None:
    stream = a_stream(1500, load=0.7, servers=1, seed=4)
    outcome = run(stream, servers=1, policy="srpt")
    assert ends_s(outcome) == srpt_ends_s(stream)
    assert sum(state.preemptions for state in outcome.fleet.jobs.values()) > 100


def test_the_textbook_server_is_as_fast_as_m_g_1_srpt() -> None:
    stream = a_stream(300_000, load=0.7, servers=1, seed=5)
    assert mean_jct_s(stream, srpt_ends_s(stream)) == pytest.approx(srpt_mean(0.7) * MEAN_S, rel=0.02)
