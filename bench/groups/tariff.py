"""A tariff on a public record of load: hours over capacity, revenue, and what deferrable work pays.

    make bench ARGS=tariff     4,419 hours of a cluster, forecast hour by hour: three CPU minutes

A tenth of each hour's work may start in any whole hour of the next 24. Compared in the same run: nothing; a
rule without prices (wait while the fleet is full, at most 24 hours); and the same tariff with perfect
foresight. Then jobs of an hour, drawn from the same load, go through the production loop, where what each
deferrable one paid is compared with the price at which that loop would have started it at once. The data is
beside the checkout (`BRIMFUL_SHARED_DATA`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from bench.document import judged, markdown
from bench.groups.forecast import LOADS
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.adapters.providers.records import read_loads
from brimful.fleet.events import CancelRequested, JobSubmitted, LeaseGranted, LoadSeen, TariffSet
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.fleet.state import Fleet
from brimful.market.forecast import LoadForecaster
from brimful.market.tariff import FLAT, HOURS, TariffTerms, curve, is_low, lowest_hour
from brimful.scheduler.decide import decide
from brimful.scheduler.load import prices_now
from brimful.scheduler.policies import read_policy
from brimful.sim.world import SITE, Arrival, rehearse
from brimful.units import HOUR_S

TITLE = "Tariff"
TABLES = ("tariff", "tariff-jobs")
# Least share of the rule's cut, most that revenue may change, and how far a price may go.
REACHED = {"day ahead": 0.45, "hourly": 0.85}
REVENUE, TERMS = 0.01, TariffTerms()
CAPACITY = 10_412
DEFERRABLE = 0.1
WINDOW_H = 24
SKIPPED_H = 14 * 24  # while forecasts learn
PARTS = 4  # in which an hour's deferrable work is booked
POLICY = "brim?types=cheap&tariff=1"
RATES, USD = (("l4", 1.0), ("h100", 2.0)), {"l4": 1_000_000, "h100": 2_500_000}  # of the two pools
GPUS, DAYS = 13, 20  # of each pool, and of the record

How = Literal["nothing", "while full", "day ahead", "hourly", "foresight"]
Ahead = Callable[[int, int], Sequence[float]]  # (hour, how many) -> expected loads from that hour on


def benchmarks() -> Iterator[Benchmark]:
    loads = [7000.0 + 3000 * (h % 24 > 12) for h in range(HOURS)]
    yield Benchmark(
        name="a curve of 48 hours",
        subject=body(lambda: curve(loads, CAPACITY)),
        peer_name=CALIBRATION,
        peer=calibration,
    )


@dataclass(slots=True)
class Waiting:
    came: int
    work: float
    at_once: int  # the price of the hour in which it arrived
    quoted: Sequence[int] = ()  # as it arrived, for the hours after that one
    price: int = 0  # the lowest it was quoted for an hour that has begun

    @property
    def until(self) -> int:
        return self.came + WINDOW_H

    def __post_init__(self) -> None:
        self.price = self.at_once


@dataclass(slots=True)
class Run:
    """GPU-hours run in each hour, what was charged, and the steps of the price."""

    load: list[float]
    prices: list[int] = field(default_factory=list)
    charged: float = 0.0  # in thousandths
    flat: float = 0.0
    waiting: list[Waiting] = field(default_factory=list)
    paid: list[tuple[int, float]] = field(default_factory=list)  # by deferrable parts: hour it came, price

    def start(self, hour: int, each: Waiting, work: float, price: int) -> None:
        self.load[hour] += work
        each.work -= work
        pays = min(each.price, price)
        self.charged += work * pays
        self.paid.append((each.came, pays))

    @property
    def dearer(self) -> int:
        """Parts that paid more than was charged for work that came in the same hour and began at once."""
        return sum(pays > self.prices[came] for came, pays in self.paid)

    @property
    def over(self) -> float:
        """GPU-hours at the flat price collected in excess so far; waiting work counts at its quote."""
        owed = sum(each.work * each.price for each in self.waiting)
        return (self.charged + owed) / FLAT - self.flat


def play(how: How, loads: Sequence[float], hourly: Sequence[Sequence[float]]) -> Run:
    """`hourly[t]`: the loads expected after hour t, as forecast then; a day's first look has 48 of them."""
    run = Run([(1 - DEFERRABLE) * load for load in loads])
    quoted: list[int] = []
    booked = [0.0] * (len(loads) + HOURS)
    for t, load in enumerate(loads):
        midnight = t - t % 24
        if how == "foresight":
            expected = [load, *loads[t + 1 : t + HOURS]]
        elif how == "day ahead":
            expected = list(hourly[midnight - 1][t - midnight :]) if midnight else []
        else:
            expected = [load, *hourly[t]]
        expected = expected or [load]
        if how in ("nothing", "while full"):
            price = FLAT
        elif how != "day ahead" or t == midnight or not quoted:
            last = run.prices[-1] if run.prices else FLAT
            quoted = curve(expected, CAPACITY, last=last, over=run.over)
            price = quoted[0]
        else:
            quoted = quoted[1:] or [run.prices[-1]]
            price = quoted[0]
        run.prices.append(price)
        for each in run.waiting:
            hours = t - each.came
            each.price = min([each.price, *each.quoted[hours - 1 : hours]])
        told = quoted[1 : WINDOW_H + 1] if how in ("hourly", "foresight") else ()
        new = Waiting(t, DEFERRABLE * load, price, told)
        run.waiting.append(new)
        if how == "nothing":
            run.start(t, new, new.work, price)
        elif how == "day ahead":
            _book(run, t, expected=[load, *expected[1:]], booked=booked, quoted=quoted)
        else:
            _look(run, t, [price] if how == "while full" else quoted)
        run.waiting = [each for each in run.waiting if each.work > 1e-9]
        run.charged += (1 - DEFERRABLE) * load * price
        run.flat += load
    return run


def _book(run: Run, t: int, *, expected: Sequence[float], booked: list[float], quoted: Sequence[int]) -> None:
    """Booked at once and final, by this hour's load and what was expected at midnight for the others."""
    new = run.waiting[-1]
    part = new.work / PARTS
    for _ in range(PARTS):
        reach = min(WINDOW_H, len(expected) - 1, len(quoted) - 1, len(run.load) - 1 - t)
        levels = [(1 - DEFERRABLE) * expected[k] + booked[t + k] for k in range(reach + 1)]
        k = lowest_hour(levels)
        booked[t + k] += part
        run.start(t + k, new, part, quoted[k])


def _look(run: Run, t: int, quoted: Sequence[int]) -> None:
    """Waiting work starts if there is room and waiting longer would save no more than a step."""
    for each in run.waiting:
        if each.until <= t:
            run.start(t, each, each.work, quoted[0])
    for each in run.waiting:
        later = quoted[1 : each.until - t + 1]
        if is_low(quoted[0], later):
            room = max(0.0, CAPACITY - run.load[t])
            run.start(t, each, min(each.work, room), quoted[0])


def forecasts(loads: Sequence[float]) -> list[list[float]]:
    forecaster, found = LoadForecaster(), []
    for t, load in enumerate(loads):
        forecaster.tell(load)
        found.append([band.likely for band in forecaster.ahead(HOURS if t % 24 == 23 else WINDOW_H)])
    return found


def tables() -> dict[str, str]:
    if not LOADS.is_file():
        return {}
    loads = read_loads(LOADS)["requested"]
    jobs = arrivals(loads[: DAYS * 24], capacity=CAPACITY)
    return {"tariff": table_of(loads, forecasts(loads)), "tariff-jobs": table_of_jobs(compare(jobs))}


def table_of(loads: Sequence[float], ahead: Sequence[Sequence[float]]) -> str:
    rows = []
    most = least = 0.0
    for how in ("nothing", "while full", "day ahead", "hourly", "foresight"):
        run = play(how, loads, ahead)
        hours = run.load[SKIPPED_H:-WINDOW_H]
        full = sum(load > CAPACITY for load in hours) / len(hours)
        most, least = (full, most) if how == "nothing" else (most, full if how == "while full" else least)
        rows.append(row(how, run, full=full, cut=0.0 if how == "nothing" else (most - full) / (most - least)))
    header = (
        "deferred",
        "hours over capacity",
        "of the rule's cut",
        "revenue",
        "paid more",
        "steps",
        "times flat",
        "bar",
    )
    return markdown(header, rows)


def row(how: How, run: Run, *, full: float, cut: float) -> tuple[str, ...]:
    steps = [b / a - 1 for a, b in zip(run.prices, run.prices[1:], strict=False)]
    revenue, low, high = run.charged / FLAT / run.flat - 1, min(run.prices), max(run.prices)
    bar = "±1%, 0"
    is_met = run.dearer == 0 and len(run.paid) > 0 and abs(revenue) <= REVENUE
    # No step is larger than from 100 to 110, or back.
    is_met &= TERMS.least <= low and high <= TERMS.most
    is_met &= all(1 / (1 + TERMS.step / FLAT) - 1e-9 <= 1 + each <= 1 + TERMS.step / FLAT for each in steps)
    if (least := REACHED.get(how)) is not None:
        bar, is_met = f"≥ {least:.0%}, {bar}", is_met and cut >= least
    return (
        how,
        f"{full:.1%}",
        "" if how == "nothing" else f"{cut:.1%}",
        f"{revenue:+.2%}",
        str(run.dearer),
        f"{min(steps):+.1%} … {max(steps):+.1%}",
        f"{low / FLAT:.2f} … {high / FLAT:.2f}",
        judged(bar, is_met=is_met),
    )


# -- job by job, in the production loop --------------------------------------------------------------------


def arrivals(loads: Sequence[float], *, capacity: float, seed: int = 0) -> list[Arrival]:
    """Jobs of an hour's work on one GPU, as many as fill two pools as the record filled its cluster."""
    rng, found = random.Random(seed), []
    work_per_hour = GPUS * sum(rate for _, rate in RATES)
    for hour, load in enumerate(loads):
        for i in range(round(load / capacity * work_per_hour)):
            job = Job(
                job=f"{hour}-{i}",
                gpus=1,
                command=("true",),
                folder="/",
                rates=RATES,
                deferrable=rng.random() < DEFERRABLE,
            )
            found.append(Arrival(at_s=hour * HOUR_S + rng.randrange(HOUR_S), job=job, work_s=float(HOUR_S)))
    return found


@dataclass(slots=True)
class Jobs:
    """Deferrable jobs of a log: prices are for the work of an hour at rate 1, in micro-dollars."""

    priced: int = 0  # submitted while there was a tariff
    ran: int = 0  # of these
    waited: int = 0  # of these, for an hour or more
    paid: list[tuple[float, float]] = field(default_factory=list)  # really; and if it had started at once


def compare(jobs: Sequence[Arrival]) -> Jobs:
    """What deferrable jobs paid, beside the price of the lease that the same loop would have granted at once.

    That is found by deciding again, from the log until then and with the prices of that moment, about a twin
    that is not deferrable; the twin is cancelled before the log goes on.
    """
    nodes = [
        Node(site=SITE, node=gpu, gpu=gpu, gpus=GPUS, microusd_per_gpu_hour=USD[gpu], declared=True)
        for gpu, _ in RATES
    ]
    rules = read_policy(POLICY).rules
    log = rehearse(jobs, nodes, rules).log
    fleet, of, found = Fleet(), dict(RATES), Jobs()
    at_once: dict[str, float | None] = {}
    since: dict[str, int] = {}
    waiting: list[JobSubmitted] = []
    has_tariff = False

    def price(lease_price: int, node: str) -> float:
        return lease_price / of[fleet.nodes[node].gpu]

    for event in log:
        if waiting and (isinstance(event, LeaseGranted | LoadSeen) or event.at_s > waiting[0].at_s):
            for each in waiting:
                at_once[each.job.job] = None
                twin = replace(each.job, job=f"{each.job.job}-twin", deferrable=False)
                fleet.apply(JobSubmitted(each.at_s, twin))
                plan = decide(fleet, rules, prices_now(fleet, now_s=each.at_s), now_s=each.at_s)
                for start in plan.starts:
                    if start.job == twin.job:
                        at_once[each.job.job] = price(start.microusd_per_gpu_hour, start.node)
                fleet.apply(CancelRequested(at_s=each.at_s, job=twin.job))
            waiting.clear()
        fleet.apply(event)
        has_tariff |= isinstance(event, TariffSet)
        if isinstance(event, JobSubmitted) and event.job.deferrable and has_tariff:
            waiting.append(event)
            since[event.job.job] = event.at_s
        elif isinstance(event, LeaseGranted) and event.job in since:
            first_s = since[event.job]
            found.ran += event.lease.endswith(".1")
            found.waited += event.lease.endswith(".1") and event.at_s >= first_s + HOUR_S
            then = at_once[event.job]
            if then is not None:
                found.paid.append((price(event.microusd_per_gpu_hour, event.node), then))
    found.priced = len(since)
    return found


def table_of_jobs(found: Jobs) -> str:
    more = sum(paid > then + 1 for paid, then in found.paid)  # a micro-dollar of rounding
    saved = 1 - sum(paid for paid, _ in found.paid) / max(1.0, sum(then for _, then in found.paid))
    rows = [
        ("deferrable jobs with a tariff", f"{found.priced:,}", ""),
        ("of these, started", f"{found.ran:,}", judged("all", is_met=found.ran == found.priced > 0)),
        ("of these, after an hour or more", f"{found.waited:,}", judged("> 0", is_met=found.waited > 0)),
        ("that could have started at once", f"{len(found.paid):,}", judged("> 0", is_met=bool(found.paid))),
        ("of these, paid more for their work", f"{more:,}", judged("0", is_met=more == 0)),
        ("saved by all of them", f"{saved:.1%}", ""),
    ]
    return markdown(("job by job", "", "bar"), rows)
