"""How good could it have been? Bounds that no schedule can beat, so that a policy's distance is visible.

Gangs are split up, restarts cost nothing, the future is known. What remains: each GPU works for one job at a
time, and a job cannot run faster than its whole gang on its best GPUs.

**Prices.** GPU types differ, and jobs differ in how much faster they are on each. Let λ_t be the price of a
second on a GPU of type t, with Σ λ_t·GPUs_t = all GPUs. Job j then costs at least
s_j = min_t λ_t·gpus_j·work_j / rate_jt, and the fleet earns Σ λ_t·GPUs_t a second: at any prices, no schedule
pays the s_j faster than one machine of that speed would. The prices that make Σ s_j largest are the dual of
the fluid LP over jobs and types.

**Mean JCT** is at least each of

- the mean of the shortest run times p_j = work_j / best rate;
- the mean flow time of SRPT on that one machine (optimal there: Schrage 1968);
- mean(M_j) + mean(p_j) / 2 - mean(submit_j). M_j is the mean busy date on that machine under shortest total
  work first, whose sum is the least possible (Goemans et al., SIAM J. Discrete Math. 2002); and a job ends at
  least p_j / 2 after the middle of its work.

**Makespan**: the work submitted from any moment on must still be done, and the last job must still run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from brimful.fleet.job import WHOLE_GPU, Job, at_size, sizes_of
from brimful.fleet.node import Node
from brimful.sim.world import Arrival

# A price search over many jobs takes a while; fewer steps still give a bound.
PRICE_WORK = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Least possible figures in seconds; None if there is no job."""

    mean_jct_s: float | None
    makespan_s: float | None


def gpus_by_type(nodes: Sequence[Node]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.gpu] = counts.get(node.gpu, 0) + node.good_gpus
    return {gpu: count for gpu, count in counts.items() if count}


def bound(arrivals: Sequence[Arrival], nodes: Sequence[Node]) -> Bound:
    """For jobs that did run on these nodes; a job that can run nowhere does not count."""
    fleet = gpus_by_type(nodes)
    able = [a for a in arrivals if best_rate(a.job, fleet) > 0]
    if not able:
        return Bound(mean_jct_s=None, makespan_s=None)
    prices = fleet_prices(able, fleet)
    speed = float(sum(fleet.values()))
    jobs = sorted(
        (float(a.at_s), priced(a.job, a.work_s, prices) / speed, a.work_s / best_rate(a.job, fleet))
        for a in able
    )
    submits = [at_s for at_s, _, _ in jobs]
    mean_submit = sum(submits) / len(jobs)
    mean_run = sum(run_s for _, _, run_s in jobs) / len(jobs)
    sizes = [(at_s, size_s) for at_s, size_s, _ in jobs]
    srpt = sum(_ends(sizes)) / len(jobs) - mean_submit
    middle = sum(_mean_busy_dates(sizes)) / len(jobs) - mean_submit + mean_run / 2
    return Bound(mean_jct_s=max(mean_run, srpt, middle), makespan_s=_makespan(jobs))


def best_rate(job: Job, fleet: Mapping[str, int]) -> float:
    """At its fastest size."""
    return max((each.rate(gpu) for gpu in fleet for each in _sizes(job)), default=0.0)


def priced(job: Job, work_s: float, prices: Mapping[str, float]) -> float:
    """The least that this much of the job's work costs, in GPU-seconds at these prices and at any size."""
    return min(
        each.gpus * each.gpu_milli / WHOLE_GPU * work_s * price / each.rate(gpu)
        for each in _sizes(job)
        for gpu, price in prices.items()
        if each.rate(gpu) > 0
    )


def _sizes(job: Job) -> Sequence[Job]:
    return [at_size(job, gpus) for gpus in sizes_of(job)] if job.max_gpus else (job,)


def fleet_prices(arrivals: Sequence[Arrival], fleet: Mapping[str, int]) -> dict[str, float]:
    """Prices per GPU-second that maximise the priced work; they average 1 over the fleet.

    Coordinate ascent on a concave function: multiply one price, normalise, keep it if the sum grew.
    """
    able = [a for a in arrivals if a.job.gpus and best_rate(a.job, fleet) > 0]
    prices = dict.fromkeys(fleet, 1.0)
    if len(fleet) < 2 or not any(a.job.rates or a.job.gpu_types for a in able):
        return prices
    total = _priced_sum(able, prices)
    step = 2.0
    for _ in range(max(1, min(200, PRICE_WORK // (len(able) * len(fleet) ** 2)))):
        grew = False
        for gpu in sorted(fleet):
            for factor in (step, 1 / step):
                tried = _normed({**prices, gpu: prices[gpu] * factor}, fleet)
                better = _priced_sum(able, tried)
                if better > total * (1 + 1e-12):
                    prices, total, grew = tried, better, True
        if not grew:
            step = step**0.5
            if step < 1.0005:
                break
    return prices


def _priced_sum(arrivals: Sequence[Arrival], prices: Mapping[str, float]) -> float:
    return sum(priced(a.job, a.work_s, prices) for a in arrivals)


def _normed(prices: Mapping[str, float], fleet: Mapping[str, int]) -> dict[str, float]:
    scale = sum(fleet.values()) / sum(prices[gpu] * count for gpu, count in fleet.items())
    return {gpu: price * scale for gpu, price in prices.items()}


def _ends(jobs: Sequence[tuple[float, float]]) -> list[float]:
    """When each (submit, size) ends under shortest remaining first on one machine; submits in order."""
    waiting: list[float] = []
    ends: list[float] = []
    now = 0.0
    for at_s, size_s in [*jobs, (float("inf"), 0.0)]:
        while waiting and now + waiting[0] <= at_s:
            now += heappop(waiting)
            ends.append(now)
        if waiting:
            heappush(waiting, heappop(waiting) - (at_s - now))
        now = at_s
        heappush(waiting, size_s)
    return ends


def _mean_busy_dates(jobs: Sequence[tuple[float, float]]) -> list[float]:
    """The mean busy date of each job under shortest total size first, with preemption."""
    waiting: list[tuple[float, float, float]] = []  # size, left, integral of busy time so far
    middles: list[float] = []
    now = 0.0
    for at_s, size_s in [*jobs, (float("inf"), 0.0)]:
        while waiting and now + waiting[0][1] <= at_s:
            size, left, busy = heappop(waiting)
            middles.append((busy + left * (now + left / 2)) / size if size else now)
            now += left
        if waiting:
            size, left, busy = heappop(waiting)
            ran = at_s - now
            heappush(waiting, (size, left - ran, busy + ran * (now + ran / 2)))
        now = at_s
        heappush(waiting, (size_s, size_s, 0.0))
    return middles


def _makespan(jobs: Sequence[tuple[float, float, float]]) -> float:
    """From the first submit; `jobs` are (submit, size on one machine, shortest run), submits in order."""
    last, after = 0.0, 0.0
    for at_s, size_s, run_s in reversed(jobs):
        after += size_s
        last = max(last, at_s + after, at_s + run_s)
    return last - jobs[0][0]
