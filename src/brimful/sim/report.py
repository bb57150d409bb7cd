"""What a rehearsal showed, as data. Definitions: docs/explanation/scheduling.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from brimful.fleet.job import PRIORITIES, WHOLE_GPU, Job
from brimful.fleet.lease import JobState, Lease
from brimful.fleet.metrics import mean, measure, percentile
from brimful.fleet.node import Node
from brimful.language import as_asked, say
from brimful.sim.bound import bound, fleet_prices, gpus_by_type, priced
from brimful.sim.world import Arrival, Outcome
from brimful.units import HOUR_S, MICROUSD

if TYPE_CHECKING:
    from brimful.sim.fill import Filled

# Gangs by size: name, and maximum GPUs.
SIZE_CLASSES = {"1": 1, "2-4": 4, "5-8": 8, "9-64": 64, "65+": 10**9}
# An overall mean hides what a class is for: urgent jobs are faster at the cost of background ones.
CLASSES = sorted(PRIORITIES, key=PRIORITIES.__getitem__)
# A slowdown is measured against at least this: waiting a minute does not hurt a job of a second.
SHORT_S = 600.0
# Figures that need a run in time: None in a fill.
TIMED = (
    "finished",
    "mean_jct_h",
    "p50_jct_h",
    "p99_jct_h",
    "makespan_h",
    "mean_delay_h",
    "p99_delay_h",
    "delay_share",
    "mean_first_wait_h",
    "useful_share",
    "worst_rho",
    "preemptions",
    "lost_gpu_h",
    "deadline_met",
    "cost_usd",
    "market_usd_per_gpu_hour",
    "bound",
)


def report(
    outcome: Outcome,
    arrivals: Sequence[Arrival],
    nodes: Sequence[Node],
    *,
    policy: str,
    seed: int,
    cpu_s: float,
) -> dict[str, Any]:
    """One run of the `runs` list in `brimful simulate --json`. None: nothing to measure."""
    m = measure(outcome.fleet, now_s=outcome.end_s)
    states = list(outcome.fleet.jobs.values())
    leases = list(outcome.fleet.leases.values())
    alone = _alone_s(arrivals, nodes)
    rhos = _rhos(states, alone, nodes)
    return {
        "policy": policy,
        "seed": seed,
        "jobs": m.jobs,
        "finished": m.finished,
        "mean_jct_h": _hours(m.mean_jct_s),
        "p50_jct_h": _hours(m.p50_jct_s),
        "p95_jct_h": _hours(percentile([*_jcts(states).values()], 95)),
        "p99_jct_h": _hours(m.p99_jct_s),
        "makespan_h": _hours(m.makespan_s),
        "mean_delay_h": _hours(m.mean_delay_s),
        "p99_delay_h": _hours(m.p99_delay_s),
        "delay_share": _ratio(m.mean_delay_s, m.mean_jct_s),
        "mean_first_wait_h": _hours(m.mean_first_wait_s),
        "mean_slowdown": mean(_slowdowns(states, alone)),
        "allocation_rate": m.allocation_rate,
        "useful_share": _useful_share(states, arrivals, nodes, outcome.end_s),
        "worst_rho": max(rhos, default=None),
        "unfair_share": mean([rho > 1 for rho in rhos]),
        "preemptions": sum(state.preemptions for state in states),
        "lost_gpu_h": sum(_lost_gpu_s(lease, outcome.end_s) for lease in leases) / HOUR_S,
        "deadline_met": mean([_in_time(s) for s in states if s.job.deadline_s is not None]),
        "gpu_h": _leased_gpu_s(outcome) / HOUR_S,
        "cost_usd": _cost_usd(outcome),
        "market_usd_per_gpu_hour": _market_price_usd(leases, outcome.end_s),
        "never_ran": {job: as_asked(why) for job, why in outcome.waits.items()},
        "never_ran_codes": {job: why.as_dict() for job, why in outcome.waits.items()},
        "failed": len(failed := [s for s in states if s.phase == "failed"]),
        "failed_first": {
            s.job.job: as_asked(s.reason or say("sim.exit_code", exit_code=s.exit_code)) for s in failed[:10]
        },
        "by_size": _by(SIZE_CLASSES, _size, states, now_s=outcome.end_s),
        "by_class": _by(CLASSES, lambda job: job.priority, states, now_s=outcome.end_s),
        "bound": _bound(outcome, arrivals, nodes, m.mean_jct_s, m.makespan_s),
        "cpu_s": cpu_s,
    }


def fill_report(filled: Filled, *, cpu_s: float) -> dict[str, Any]:
    """One run of `brimful simulate --fill`: nothing ends in it, so it has no times."""
    return {
        **dict.fromkeys(TIMED),
        "policy": filled.policy,
        "seed": filled.seed,
        "jobs": filled.tasks,
        "placed": filled.placed,
        "allocation_rate": float(filled.allocated_percent[-1]) / 100,
        "allocation_at": filled.allocation_at,
        "cpu_s": cpu_s,
    }


def _jcts(states: Iterable[JobState]) -> dict[str, int]:
    """Finish - submit by job, for finished jobs."""
    return {
        s.job.job: s.ended_s - s.ready_s for s in states if s.phase == "finished" and s.ended_s is not None
    }


def _size(job: Job) -> str:
    return next(name for name, most in SIZE_CLASSES.items() if job.gpus <= most)


def _by(
    names: Iterable[str], name_of: Callable[[Job], str], states: Sequence[JobState], *, now_s: int
) -> dict[str, dict[str, Any]]:
    groups = {name: [state for state in states if name_of(state.job) == name] for name in names}
    return {name: _some(mine, now_s=now_s) for name, mine in groups.items() if mine}


def _some(states: Sequence[JobState], *, now_s: int) -> dict[str, Any]:
    jcts = [*_jcts(states).values()]
    delay_s = mean([s.delay_s(now_s) for s in states if s.phase == "finished"])
    waits = [float(s.first_start_s - s.ready_s) for s in states if s.first_start_s is not None]
    return {
        "jobs": len(states),
        "finished": len(jcts),
        "mean_jct_h": _hours(mean(jcts)),
        "p99_jct_h": _hours(percentile(jcts, 99)),
        "mean_delay_h": _hours(delay_s),
        "delay_share": _ratio(delay_s, mean(jcts)),
        "mean_first_wait_h": _hours(mean(waits)),
    }


def _leased_gpu_s(outcome: Outcome) -> float:
    """GPU time billed, over all nodes of a gang; a share of a GPU counts as that share."""
    return sum(lease.gpu_milli_s(outcome.end_s) / WHOLE_GPU for lease in outcome.fleet.leases.values())


def _lost_gpu_s(lease: Lease, now_s: int) -> float:
    """GPU time that left nothing behind: restarts, and work since the last checkpoint when it was stopped."""
    if lease.ended_s is None or lease.started_s is None or lease.speed <= 0:
        return 0.0
    return (
        lease.size
        * (lease.gpu_milli / WHOLE_GPU)
        * max(0.0, lease.billed_s(now_s) - lease.kept_work_s / lease.speed)
    )


def _useful_share(
    states: Sequence[JobState], arrivals: Sequence[Arrival], nodes: Sequence[Node], end_s: int
) -> float | None:
    """Kept work, relative to the most the fleet could have done, both in GPU-seconds at the fleet's prices.

    The prices (sim/bound.py) make a second on each GPU type count for what the best mix of this same work
    gets out of it, so a job on a GPU that does not suit it shows, and no schedule exceeds 1.
    """
    span_s = end_s - min((state.submitted_s for state in states), default=end_s)
    fleet = gpus_by_type(nodes)
    if span_s <= 0 or not fleet:
        return None
    prices = fleet_prices(arrivals, fleet)
    able = [s for s in states if s.kept_work_s > 0]
    useful = sum(priced(state.job, state.kept_work_s, prices) for state in able)
    return useful / (span_s * sum(fleet.values()))


def _alone_s(arrivals: Sequence[Arrival], nodes: Sequence[Node]) -> dict[str, float]:
    """Run time of each gang with a fair mix of the fleet's GPU types (Sia's rule for mixed fleets)."""
    fleet = gpus_by_type(nodes)
    found = {}
    for arrival in arrivals:
        rates = [(arrival.job.rate(gpu), count) for gpu, count in fleet.items()]
        able = sum(count for rate, count in rates if rate > 0)
        if able:
            found[arrival.job.job] = arrival.work_s * able / sum(rate * count for rate, count in rates)
    return found


def _slowdowns(states: Sequence[JobState], alone: Mapping[str, float]) -> list[float]:
    """JCT over run time alone, both at least ten minutes."""
    jcts = _jcts(states)
    return [max(jcts[job], SHORT_S) / max(alone[job], SHORT_S) for job in jcts if job in alone]


def _rhos(states: Sequence[JobState], alone: Mapping[str, float], nodes: Sequence[Node]) -> list[float]:
    """Finish-time fairness: JCT over that on a private 1/N of the fleet (Themis, NSDI 2020).

    N is the mean number of jobs in the system during the job's life. On 1/N of the fleet a gang that is too
    wide for its share takes longer by the same factor. Jobs shorter than ten minutes are left out: a ratio of
    seconds says nothing.
    """
    gpus = sum(gpus_by_type(nodes).values())
    crowd, jcts = _Crowd(states), _jcts(states)
    rhos = []
    for state in states:
        job, own_s = state.job, alone.get(state.job.job, 0.0)
        if job.job in jcts and own_s >= SHORT_S:
            others = crowd.mean(state.ready_s, state.ready_s + jcts[job.job])
            rhos.append(jcts[job.job] / (own_s * max(1.0, job.gpus * others / gpus)))
    return rhos


class _Crowd:
    """How many jobs were in the system, on average, between two moments."""

    def __init__(self, states: Iterable[JobState]) -> None:
        steps = Counter[int]()
        for state in states:
            steps[state.ready_s] += 1
            if state.ended_s is not None:
                steps[state.ended_s] -= 1
        self._times = sorted(steps)
        self._area: dict[int, int] = {}
        here = area = 0
        last = self._times[0] if self._times else 0
        for at_s in self._times:
            area += here * (at_s - last)
            self._area[at_s] = area
            here += steps[at_s]
            last = at_s

    def mean(self, from_s: int, to_s: int) -> float:
        """Both are moments at which a job came or went."""
        return (self._area[to_s] - self._area[from_s]) / (to_s - from_s) if to_s > from_s else 1.0


def _in_time(state: JobState) -> bool:
    at_s, by_s = state.ended_s, state.job.deadline_s
    return state.phase == "finished" and at_s is not None and by_s is not None and at_s <= by_s


def _cost_usd(outcome: Outcome) -> float | None:
    if not any(node.microusd_per_gpu_hour for node in outcome.fleet.nodes.values()):
        return None
    return sum(outcome.ledger.spent_microusd.values()) / MICROUSD


def _market_price_usd(leases: Iterable[Lease], now_s: int) -> float | None:
    """The average cost of a GPU-hour in market pools; None if nothing was leased in one."""
    sold = [lease for lease in leases if lease.line is not None or lease.final_owed is not None]
    price = _ratio(sum(lease.owed(now_s) for lease in sold), sum(lease.gpu_milli_s(now_s) for lease in sold))
    return None if price is None else price / MICROUSD


def _bound(
    outcome: Outcome,
    arrivals: Sequence[Arrival],
    nodes: Sequence[Node],
    mean_jct_s: float | None,
    makespan_s: float | None,
) -> dict[str, float | None]:
    """The least possible for the jobs that finished, and the actual result as a multiple of it."""
    jobs = outcome.fleet.jobs
    finished = [a for a in arrivals if jobs[a.job.job].phase == "finished"]
    least = bound(finished, nodes)
    return {
        "mean_jct_h": _hours(least.mean_jct_s),
        "makespan_h": _hours(least.makespan_s),
        "mean_jct_ratio": _ratio(mean_jct_s, least.mean_jct_s),
        "makespan_ratio": _ratio(makespan_s, least.makespan_s),
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / HOUR_S
