"""Every given trace, cut and window, with hidden and known durations: brim against the simple policies.

    make bench ARGS=cases     about 70 cases, seven runs each: ten CPU minutes

The cuts were drawn with `SEED` and split into two halves before the order was worked on: `seen` is used
during the work, `held back` only for the report. `python -m bench.groups.cases seen brim` prints one half for
the named policies.

The data is beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

import csv
import gzip
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, exp, log
from random import Random
from statistics import fmean

from bench.document import markdown
from bench.groups.traces import CASES, DATA, SIA, known
from bench.measure import CALIBRATION, ROOT, Benchmark, body, calibration
from brimful.fleet.metrics import measure
from brimful.scheduler.policies import read_policy
from brimful.sim.fleets import parse_fleet
from brimful.sim.traces.read import read
from brimful.sim.traces.reading import saving_job
from brimful.sim.world import Arrival, rehearse
from brimful.units import HOUR_S

TITLE = "Many cases"
TABLES = ("cases", "cases-bars")
SEED = 19
BASELINES = ("fifo", "backfill", "las", "las-aware", "srpt")
BRIM, MEAN_ONLY = "brim", "brim?turns=0"  # with the guarantee for the slowest, and without
TAIL = 1.25  # times FIFO's p99: a policy above it is not a baseline for the mean
NEAR = 1.02  # times the best mean: counts as equally good
MIXED = "2x4:v100+4x4:p100+6x4:k80"
LOADS = (0.7, 0.95, 1.2)  # demand relative to the fleet while jobs arrive
CLUSTERS = {"ee9e8c": 500, "ed69ec": 500, "103959": 500, "0e4a51": 500, "7f04ca": 500, "2869ce": 422}
CROWDED = {"11cb48": 800, "6214e9": 800, "6c71a0": 800, "b436b2": 800}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    arrivals: Sequence[Arrival]
    fleet: str
    told: bool  # whether durations are known
    seen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    mean_h: float
    p99_h: float
    stops: float  # preemptions per job
    met: float | None  # share of the deadlines


def cases(*, seen: bool | None = None) -> Iterator[Case]:
    """All, or one half; hidden and known durations of one cut are in the same half."""
    made = [*_cuts()]
    order = [*range(len(made))]
    Random(SEED).shuffle(order)
    first = {*order[: (len(order) + 1) // 2]}
    for i, (name, make) in enumerate(made):
        if seen in (None, i in first):
            arrivals, fleet = make()
            for told in (False, True):
                some = known(arrivals) if told else arrivals
                yield Case(name=name, arrivals=some, fleet=fleet, told=told, seen=i in first)


Made = tuple[Sequence[Arrival], str]


def _cuts() -> Iterator[tuple[str, Callable[[], Made]]]:
    """A name, and what makes its jobs and fleet. Every draw is made here, whichever half is requested."""
    draw = Random(SEED)
    yield "small.csv without classes", lambda: (_small(), "2x4")
    yield "Gavel, 96 jobs", lambda: (_gavel("max_min_fairness"), MIXED)
    yield "Gavel, 96 jobs, 60 s restarts", lambda: (_restarting(_gavel("max_min_fairness")), MIXED)
    yield "Gavel, 20 jobs", lambda: (_gavel("small_test"), "1x4:v100+1x4:p100+1x4:k80")
    for cluster in ("11cb48", "6214e9", "b436b2", "ee9e8c", "0e4a51", "103959"):
        at, load = draw.randrange(500), draw.choice(LOADS)
        yield f"Gavel, synthetic {cluster}", lambda c=cluster, a=at, x=load: _gavel_msr(c)(a, 120, x)  # type: ignore[misc]
    for cluster, jobs in {**CLUSTERS, **CROWDED}.items():
        part, load = draw.random(), draw.choice(LOADS)
        yield f"Philly {cluster}", lambda c=cluster, n=jobs, p=part, x=load: philly(c, n, p, x)  # type: ignore[misc]
    for i in range(3):
        part, load = draw.random(), draw.choice(LOADS)
        yield f"Philly, window {i + 1}", lambda p=part, x=load: philly("", 1000, p, x)  # type: ignore[misc]
    for i in range(3):
        part, load = draw.random(), draw.choice(LOADS)
        yield f"Chronus, window {i + 1}", lambda p=part, x=load: cut(chronus(), 500, p, x)  # type: ignore[misc]
    for name in ("muri_trace1", "muri_trace2"):
        part, load = draw.random(), draw.choice(LOADS)
        yield f"Muri, {name[-6:]}", lambda n=name, p=part, x=load: cut(muri(n), 400, p, x)  # type: ignore[misc]
    yield (
        "Tiresias, 60 jobs",
        lambda: (_table("tiresias/60_job", "submit_time", "duration", "num_gpu"), "2x8"),
    )
    yield "Acme, Kalos excerpt", lambda: cut(_acme(), 319, 0.0, 0.95)
    for name in ("saturn/workload-1", "philly/workload-2", "newtrace/workload-1"):
        yield f"Sia, {name}", lambda n=name: (_sia(n), SIA.fleet)  # type: ignore[misc]
    for gpus in (64, 104):
        made = f"synthetic:philly?jobs=400&gpus={gpus}&load=1.1&seed={draw.randrange(1000)}"
        yield f"made up, {gpus} GPUs", lambda m=made, g=gpus: (read([m])[0].arrivals, f"{g // 8}x8")  # type: ignore[misc]
    for fleet in ("2x8:new+4x4:old", "1x8:new+2x8:mid+4x4:old", "3x8:new+3x8:old"):
        seed, load = draw.randrange(1000), draw.choice(LOADS)
        yield f"deadlines on {fleet}", lambda f=fleet, s=seed, x=load: (with_deadlines(f, s, x), f)  # type: ignore[misc]


# --- where jobs come from --------------------------------------------------------------------------------


def _small() -> list[Arrival]:
    """FIFO knows no classes, so its mean does not show who respects them."""
    made = read([str(ROOT / "examples" / "small.csv")])[0].arrivals
    return [replace(each, job=replace(each.job, priority="normal")) for each in made]


def _rows(name: str) -> list[dict[str, str]]:
    with gzip.open(DATA / f"{name}.csv.gz", "rt", newline="") as lines:
        return [*csv.DictReader(lines)]


def _table(name: str, at: str, run: str, gpus: str, unit_s: float = 1.0) -> list[Arrival]:
    """A CSV with times, durations and GPU counts; `unit_s` is the unit of its times."""
    found = [
        Arrival(
            at_s=int(float(row[at]) * unit_s),
            job=saving_job(
                job=f"job-{i}", gpus=int(row[gpus]), within="any", name=row.get("model_name") or ""
            ),
            work_s=float(row[run]) * unit_s,
        )
        for i, row in enumerate(_rows(name))
        if int(row[gpus]) and float(row[run]) > 0
    ]
    return sorted(found, key=lambda each: each.at_s)


def muri(name: str) -> list[Arrival]:
    return _table(f"philly/{name}", "submit_time", "duration", "num_gpu", 1e-3)


def chronus() -> list[Arrival]:
    """In minutes; `expect_time_list` is how long after submit a job is due."""
    found = []
    for i, row in enumerate(_rows("philly/chronus_philly_SLO")):
        if row["num_gpu"] == "0":
            continue
        at_s, due_s = 60 * int(row["submit_time"]), 60 * int(row["expect_time_list"])
        job = saving_job(job=f"job-{i}", gpus=int(row["num_gpu"]), within="any", tenant=row["user"])
        job = replace(job, name=row["model_name"], deadline_s=at_s + due_s)
        found.append(Arrival(at_s=at_s, job=job, work_s=60.0 * int(row["duration"])))
    return sorted(found, key=lambda each: each.at_s)


def _acme() -> list[Arrival]:
    """An iteration takes its compute time plus its communication time."""
    found = []
    for i, row in enumerate(_rows("acme/kalos_converted_excerpt")):
        step_s = float(row["iteration_computing_time"]) + float(row["iteration_networking_time"])
        job = saving_job(job=f"job-{i}", gpus=int(row["gpu_workers"]), within="any")
        work_s = int(row["num_iteration"]) * step_s
        found.append(Arrival(at_s=int(float(row["arrival_time"])), job=job, work_s=work_s))
    return sorted(found, key=lambda each: each.at_s)


def _sia(workload: str) -> list[Arrival]:
    return read([str(DATA / f"sia/sia_workloads.csv.gz?workload={workload}")])[0].arrivals[:160]


def _gavel(name: str) -> list[Arrival]:
    return read([str(DATA / f"gavel/physical_cluster/{name}.trace.gz"), str(DATA / CASES[0].files[1])])[
        0
    ].arrivals


def _restarting(arrivals: Sequence[Arrival]) -> list[Arrival]:
    return [replace(each, job=replace(each.job, checkpoint_cost_s=60)) for each in arrivals]


def _gavel_msr(cluster: str) -> Callable[[int, int, float], Made]:
    """Its reduced file, expanded to the ten fields of Gavel's own traces."""
    rows = [row for row in _rows("gavel/msr_seed0_reduced") if row["vc"] == cluster]

    def cut(at: int, jobs: int, load: float) -> Made:
        mine = rows[min(at, len(rows) - jobs) :][:jobs]
        with tempfile.NamedTemporaryFile("w", suffix=".trace") as file:
            for row in mine:
                told = (row["total_steps"], row["scale_factor_gpus"], "1", "-1", row["arrival_s"])
                print(row["job_type"], "", "", "", "1", *told, sep="\t", file=file)
            file.flush()
            found = read([file.name, str(DATA / CASES[0].files[1])], lenient=True)[0].arrivals
        arrivals = [replace(x, job=replace(x.job, within="any")) for x in _from_start(found)]
        # Work is in seconds on the fastest type; a mixed fleet of this many GPUs does about half of that.
        widest = max(each.job.gpus for each in arrivals)
        cells = max(ceil(widest / 8), ceil(_asked(arrivals) / load / 48 * 2))
        return arrivals, "+".join(f"{n * cells}x4:{gpu}" for n, gpu in ((2, "v100"), (4, "p100"), (6, "k80")))

    return cut


@cache
def _philly_jobs() -> list[Arrival]:
    return read([str(DATA / CASES[1].files[0])])[0].arrivals


def philly(cluster: str, jobs: int, part: float, load: float) -> Made:
    return cut([x for x in _philly_jobs() if cluster in ("", x.job.tenant)], jobs, part, load)


def cut(arrivals: Sequence[Arrival], jobs: int, part: float, load: float) -> Made:
    """This many consecutive jobs from `part` of the way on, and eight-GPU nodes for a demand of `load`."""
    first = int(part * (len(arrivals) - jobs))
    some = _from_start(arrivals[first : first + jobs])
    widest = max(each.job.gpus for each in some)
    return some, f"{max(ceil(widest / 8), ceil(_asked(some) / load / 8))}x8"


def _from_start(arrivals: Sequence[Arrival]) -> list[Arrival]:
    start_s = arrivals[0].at_s
    return [
        replace(
            each,
            at_s=each.at_s - start_s,
            job=replace(each.job, deadline_s=each.job.deadline_s - start_s)
            if each.job.deadline_s is not None
            else each.job,
        )
        for each in arrivals
    ]


def _asked(arrivals: Sequence[Arrival]) -> float:
    """Mean GPUs requested while jobs arrive, or over a few job lengths if they arrive at once."""
    span_s = max(arrivals[-1].at_s, 4 * fmean(each.work_s for each in arrivals))
    return sum(each.work_s * each.job.gpus for each in arrivals) / span_s


def with_deadlines(fleet: str, seed: int, load: float) -> list[Arrival]:
    """200 jobs of Philly's shape, half of them with a deadline."""
    dice = Random(seed)
    gpus = sum(node.gpus for node in parse_fleet(fleet))
    made = read([f"synthetic:philly?jobs=200&gpus=16&load={load}&seed={seed}"])[0].arrivals
    types = sorted({node.gpu for node in parse_fleet(fleet)})
    speed = {"new": 1.0, "mid": 0.6, "old": 0.35}
    found = []
    for each in made:
        gpu_rates = tuple((gpu, min(1.0, speed[gpu] * exp(dice.uniform(-0.5, 0.5)))) for gpu in types)
        work_s = min(each.work_s, 3.0 * 24 * HOUR_S)
        due = dice.random() < 0.5
        deadline_s = int(each.at_s + work_s * exp(dice.uniform(log(1.5), log(10)))) if due else None
        job = replace(each.job, rates=gpu_rates, deadline_s=deadline_s, gpus=min(each.job.gpus, 8))
        found.append(replace(each, job=job, work_s=work_s))
    # As dense as the fleet can take: half a GPU of the fastest type each.
    stretch = _asked(found) / (load * gpus / 2)
    later = [int(each.at_s * stretch) - each.at_s for each in found]
    return [
        replace(
            each,
            at_s=each.at_s + by_s,
            job=replace(each.job, deadline_s=each.job.deadline_s + by_s)
            if each.job.deadline_s is not None
            else each.job,
        )
        for each, by_s in zip(found, later, strict=True)
    ]


# --- what is made of them --------------------------------------------------------------------------------


def run(case: Case, policy: str) -> Run:
    outcome = rehearse(case.arrivals, parse_fleet(case.fleet), read_policy(policy).rules)
    m = measure(outcome.fleet, now_s=outcome.end_s)
    assert m.finished == m.jobs, f"{m.finished} of {m.jobs} jobs of {case.name} finished under {policy}"
    assert m.mean_jct_s is not None
    assert m.p99_jct_s is not None
    due = [state for state in outcome.fleet.jobs.values() if state.job.deadline_s is not None]
    met = [state for state in due if (state.ended_s or 0) <= (state.job.deadline_s or 0)]
    stops = sum(state.preemptions for state in outcome.fleet.jobs.values())
    return Run(
        mean_h=m.mean_jct_s / HOUR_S,
        p99_h=m.p99_jct_s / HOUR_S,
        stops=stops / m.jobs,
        met=len(met) / len(due) if due else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    case: Case
    runs: Mapping[str, Run]

    @property
    def tail(self) -> float:
        return self.runs[BRIM].p99_h / self.runs["fifo"].p99_h

    @property
    def bounded(self) -> str:
        """The baseline with the best mean among those that keep the bound on the slowest."""
        most_h = TAIL * self.runs["fifo"].p99_h
        able = [name for name in BASELINES if self.runs[name].p99_h <= most_h]
        return min(able, key=lambda name: self.runs[name].mean_h)

    @property
    def best(self) -> str:
        return min(BASELINES, key=lambda name: self.runs[name].mean_h)

    @property
    def of_bounded(self) -> float:
        return self.runs[BRIM].mean_h / self.runs[self.bounded].mean_h

    @property
    def of_best(self) -> float:
        return self.runs[MEAN_ONLY].mean_h / self.runs[self.best].mean_h


def verdicts(*, seen: bool | None = None) -> list[Verdict]:
    """The worst first."""
    policies = (*BASELINES, BRIM, MEAN_ONLY)
    found = [
        Verdict(case=case, runs={policy: run(case, policy) for policy in policies})
        for case in cases(seen=seen)
    ]
    return sorted(found, key=lambda each: -max(each.of_bounded, each.of_best))


def benchmarks() -> Iterator[Benchmark]:
    arrivals = read(["synthetic:philly?jobs=200&gpus=24&load=2"])[0].arrivals
    case = Case(name="made up", arrivals=arrivals, fleet="3x8", told=False, seen=True)
    yield Benchmark(
        name="200 jobs on a crowded 24 GPUs, seven policies",
        subject=body(lambda: [run(case, policy) for policy in (*BASELINES, BRIM, MEAN_ONLY)]),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def tables() -> dict[str, str]:
    if not DATA.is_dir():
        return {}
    found = verdicts()
    return {"cases": _table_of(found), "cases-bars": _bars(found)}


def _table_of(found: Sequence[Verdict]) -> str:
    header = ["case", "half", "jobs", "brim, h", "best that keeps p99, h", "ratio", "p99, h", "of FIFO's"]
    header += ["for the mean only, h", "best of all, h", "ratio", "stops a job", "deadlines met, best"]
    rows = []
    for each in found:
        runs, case = each.runs, each.case
        mine, only, bounded, best = runs[BRIM], runs[MEAN_ONLY], runs[each.bounded], runs[each.best]
        mets = [runs[name].met or 0.0 for name in BASELINES]
        rows.append(
            [
                f"{case.name}, {'known' if case.told else 'hidden'}",
                "seen" if case.seen else "held back",
                f"{len(case.arrivals):,}",
                f"{mine.mean_h:.2f}",
                f"{each.bounded} {bounded.mean_h:.2f}",
                f"{each.of_bounded:.2f}",
                f"{mine.p99_h:.1f}",
                f"{each.tail:.2f}",
                f"{only.mean_h:.2f}",
                f"{each.best} {best.mean_h:.2f}",
                f"{each.of_best:.2f}",
                f"{mine.stops:.1f}",
                "" if mine.met is None else f"{mine.met:.0%}, {max(mets):.0%}",
            ]
        )
    return markdown(header, rows)


def _kept(ratios: Sequence[float], most: float) -> str:
    return f"{fmean(ratio <= most for ratio in ratios):.0%}, {max(ratios):.2f}"


def _geometric(values: Sequence[float]) -> float:
    return exp(fmean(log(value) for value in values))


def _bars(found: Sequence[Verdict]) -> str:
    """The share of each half that meets each bar."""
    rows = []
    for name, seen in (("seen", True), ("held back", False)):
        half = [each for each in found if each.case.seen == seen]
        single = min(BASELINES, key=lambda one: _geometric([each.runs[one].mean_h for each in half]))
        of_single = _geometric([each.runs[MEAN_ONLY].mean_h / each.runs[single].mean_h for each in half])
        rows.append(
            [
                name,
                f"{len(half)}",
                _kept([each.tail for each in half], TAIL),
                _kept([each.of_bounded for each in half], NEAR),
                _kept([each.of_best for each in half], NEAR),
                f"{of_single:.2f} of {single}",
            ]
        )
    header = ["half", "cases", "p99 within 1.25 of FIFO's, worst", "mean within 1.02, worst"]
    header += ["for the mean only within 1.02 of the best, worst", "geometric mean"]
    return markdown(header, rows)


if __name__ == "__main__":
    for case in cases(seen={"seen": True, "held": False}[sys.argv[1]]):
        for policy in sys.argv[2:]:
            told = run(case, policy)
            print(
                f"{case.name}, {case.told}",
                len(case.arrivals),
                case.fleet,
                policy,
                told,
                sep="; ",
                flush=True,
            )
