"""Small jobs that move so that gangs of eight fit on one node: `brim` with moves and without.

    make bench ARGS=moves       about two CPU minutes

The rule and its share of a tenth were chosen on seeds 1 and 2 and other windows of Philly; the draws here
were run after that. Philly lies beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from random import Random
from statistics import fmean

from bench.document import markdown
from bench.groups.cases import Made, philly
from bench.groups.traces import DATA, known
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.fleet.job import Job
from brimful.fleet.moves import MOVED
from brimful.scheduler.policies import read_policy
from brimful.sim.fleets import parse_fleet
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival, rehearse
from brimful.units import HOUR_S

TITLE = "Moves that complete a cell"
TABLES = ("moves",)
OFF, ON = "brim?moves=0", "brim"
SEEDS = (11, 12, 13, 14)
WIDE = 8  # GPUs of a node, and of a gang that must have one
SPREAD = 1.2  # of the logarithm of run times


@dataclass(frozen=True, slots=True)
class Draw:
    """Single and double GPUs of two hours, gangs of a node of `gang_h`, over three days."""

    name: str
    load: float
    nodes: int = 8
    gangs: float = 0.3  # share of the GPU time that they ask for, about
    gang_h: float = 1.5
    saves_s: int | None = 0  # 0: when told
    restart_s: int = 60

    def made(self, seed: int) -> Made:
        rng, span_s = Random(seed), 72 * HOUR_S
        chance = self.gangs / WIDE / (self.gangs / WIDE + (1 - self.gangs) / 1.25)
        drawn: list[tuple[float, int, float]] = []
        while sum(gpus * work_s for _, gpus, work_s in drawn) < self.load * self.nodes * WIDE * span_s:
            is_gang = rng.random() < chance
            mean_s = (self.gang_h if is_gang else 2.0) * HOUR_S
            work_s = max(60, rng.lognormvariate(log(mean_s) - SPREAD**2 / 2, SPREAD))
            gpus = WIDE if is_gang else 1 if rng.random() < 0.75 else 2
            drawn.append((rng.random() * span_s, gpus, work_s))
        saving = Job(
            job="",
            gpus=1,
            within="node",
            checkpoint_interval_s=self.saves_s,
            checkpoint_cost_s=self.restart_s,
        )
        return [
            Arrival(at_s=int(at_s), job=replace(saving, job=f"job-{i}", gpus=gpus), work_s=work_s)
            for i, (at_s, gpus, work_s) in enumerate(sorted(drawn))
        ], f"{self.nodes}x{WIDE}"


DRAWS = (
    Draw("drawn, load 0.85", 0.85),
    Draw("load 0.95, restarts of 5 min", 0.95, restart_s=300),
    Draw("load 0.8, saved every 30 min, restarts of 2 min", 0.8, saves_s=1800, restart_s=120),
    Draw("load 0.8, never saved", 0.8, saves_s=None),
    Draw("load 1.1", 1.1),
    Draw("load 0.85, twice as many gangs", 0.85, gangs=0.6),
    Draw("load 0.8, gangs of 18 min", 0.8, gang_h=0.3),
    Draw("load 0.8, 4 nodes", 0.8, nodes=4),
)
# Cluster (empty: all of them), jobs, where they begin, and the load.
WINDOWS = (
    ("ee9e8c", 400, 0.7, 0.9),
    ("ee9e8c", 400, 0.45, 1.1),
    ("103959", 500, 0.1, 0.9),
    ("103959", 500, 0.8, 1.1),
    ("0e4a51", 400, 0.5, 0.95),
    ("b436b2", 400, 0.5, 0.95),
    ("", 600, 0.35, 1.1),
    ("6214e9", 500, 0.5, 1.0),
    ("11cb48", 500, 0.3, 1.0),
)


def benchmarks() -> Iterator[Benchmark]:
    arrivals, fleet = Draw("", 0.85, nodes=4).made(0)
    nodes, rules = parse_fleet(fleet), read_policy(ON).rules
    yield Benchmark(
        name=f"{len(arrivals)} jobs on 4 nodes, with moves",
        subject=body(lambda: rehearse(arrivals, nodes, rules)),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def made_up(load: float) -> Callable[[int], Made]:
    return lambda seed: (
        read([f"synthetic:philly?jobs=600&gpus=64&load={load}&seed={seed}"])[0].arrivals,
        "8x8",
    )


def tables() -> dict[str, str]:
    cases = [(draw.name, [draw.made(seed) for seed in SEEDS]) for draw in DRAWS]
    cases += [(f"made up after Philly, load {x}", [made_up(x)(seed) for seed in SEEDS]) for x in (0.9, 1.1)]
    for cluster, jobs, part, load in WINDOWS if DATA.is_dir() else ():
        cases.append((f"Philly {cluster or 'as a whole'}, load {load}", [philly(cluster, jobs, part, load)]))
    rows = []
    for name, draws in cases:
        one_node = [([_on_one_node(each) for each in arrivals], fleet) for arrivals, fleet in draws]
        rows.append(_row(name, "hidden", one_node))
        rows.append(_row(name, "known", [(known(arrivals), fleet) for arrivals, fleet in one_node]))
    head = ["jobs", "durations", "off, h", "on, h", "change", "worst draw", "gangs of 8", "narrower", "p99"]
    return {"moves": markdown([*head, "moves an hour"], rows)}


def _on_one_node(arrival: Arrival) -> Arrival:
    within = "node" if arrival.job.gpus <= WIDE else "any"
    return replace(arrival, job=replace(arrival.job, within=within))


@dataclass(frozen=True, slots=True)
class _Found:
    hours: list[tuple[int, float]]  # GPUs and JCT of each job
    moves: int
    run_h: float

    def mean(self, sizes: range = range(1, 1 << 20)) -> float:
        return fmean([hours for gpus, hours in self.hours if gpus in sizes] or [0.0])

    def p99(self) -> float:
        return sorted(hours for _, hours in self.hours)[int(0.99 * (len(self.hours) - 1))]


def _found(made: Made, policy: str) -> _Found:
    outcome = rehearse(made[0], parse_fleet(made[1]), read_policy(policy).rules)
    states = outcome.fleet.jobs.values()
    reasons = [lease.reason.as_dict()["code"] for s in states for lease in s.leases if lease.reason]
    hours = [(s.job.gpus, ((s.ended_s or 0) - s.submitted_s) / HOUR_S) for s in states]
    return _Found(hours, reasons.count(MOVED), outcome.end_s / HOUR_S)


def _together(found: Sequence[_Found]) -> _Found:
    hours = [each for one in found for each in one.hours]
    return _Found(hours, sum(one.moves for one in found), sum(one.run_h for one in found))


def _row(name: str, knowledge: str, draws: Sequence[Made]) -> list[str]:
    found = [(_found(made, OFF), _found(made, ON)) for made in draws]
    off, on = (_together(side) for side in zip(*found, strict=True))
    sizes = (range(WIDE, WIDE + 1), range(1, WIDE))
    pairs = [(off.mean(each), on.mean(each)) for each in sizes] + [(off.p99(), on.p99())]
    return [
        name,
        knowledge,
        f"{off.mean():.2f}",
        f"{on.mean():.2f}",
        f"{on.mean() / off.mean() - 1:+.1%}",
        f"{max(b.mean() / a.mean() - 1 for a, b in found):+.1%}",
        *(f"{b / a - 1:+.1%}" if a else "" for a, b in pairs),
        f"{on.moves / on.run_h:.2f}",
    ]
