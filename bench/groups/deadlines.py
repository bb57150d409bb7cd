"""The cost of meeting a deadline on public records of spot capacity: brim, simple rules, perfect foresight.

The prior comes from the other eight records, never from the one under test.

    make bench ARGS=deadlines     nine records at three deadlines, and two zones together: five CPU minutes

The data is beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from bench.document import judged, markdown
from bench.groups.traces import DATA
from bench.measure import Benchmark, body
from brimful.market.spells import PRIOR_HOURS, Hours, prior_of
from brimful.scheduler.deadlines.programme import Task
from brimful.sim.deadlines import Capacity, compare, seen_in
from brimful.sim.traces.capacity import read_capacity

TITLE = "Deadlines on spot"
TABLES = ("deadlines", "deadline-zones")
RECORDS = DATA / "spot" / "spot_availability.jsonl.gz"
HOURS = (52, 70, 92)
CLOSED = {52: 0.55, 70: 0.58, 92: 0.40}  # least mean share of the gap
WORSE, MORE = 1, 0.01  # at most so many cases may cost more than the better usual rule, and by this at most
STARTS = 300
ONE_TASK_S = 0.5  # promised CPU seconds for planning and running one task of 70 h


def benchmarks() -> Iterator[Benchmark]:
    """A start with nothing learned yet: days are planned as the run reaches them."""
    looks = bytes(i % 37 > 9 for i in range(100 * 6))
    record = Capacity(600, ("z",), (looks,))
    yield Benchmark(
        name="plan and run 48 h of work in 70 h, four policies, one start",
        subject=body(lambda: compare(record, a_task(70), starts=1)),
        peer_name="promise",
        peer=lambda: ONE_TASK_S,
        bar=1,
    )


def tables() -> dict[str, str]:
    if not RECORDS.is_file():
        return {}
    found = dict(records())
    seen = {name: seen_in(record) for name, record in found.items()}
    closed: dict[int, list[float]] = {hours: [] for hours in HOURS}
    dearer: list[float] = []  # than the better of the simple rules, relative to it
    rows, late = [], 0
    for name, record in found.items():
        cells = [name, f"{sum(record.up[0]) / record.ticks:.0%}"]
        prior = prior_of([each for other, each in seen.items() if other != name])
        for hours in HOURS:
            cost, missed = _costs(record, hours, prior)
            usual, best = min(cost["greedy"], cost["uniform_progress"]), cost["clairvoyant"]
            closed[hours].append((usual - cost["brim"]) / (usual - best))
            dearer += [cost["brim"] / usual - 1] if cost["brim"] > usual else []
            late += missed
            cells += [f"{usual:.2f}", f"{cost['brim']:.2f}", f"{best:.2f}", f"{closed[hours][-1]:.0%}"]
        rows.append(cells)
    rows.append(mean_row(closed, dearer, late))
    header = ["record", "there"]
    for hours in HOURS:
        header += [f"{hours} h: usual", "brim", "foresight", "closed"]
    return {"deadlines": markdown(header, rows), "deadline-zones": _zones()}


def mean_row(closed: dict[int, list[float]], dearer: Sequence[float], late: int) -> list[str]:
    means = [cell for hours in HOURS for cell in ("", "", "", _closed(fmean(closed[hours]), CLOSED[hours]))]
    most = f", by {max(dearer):.1%}" if dearer else ""
    name = f"mean ({len(dearer)} of {sum(map(len, closed.values()))} dearer than usual{most}, {late} late)"
    is_met = len(dearer) <= WORSE and max(dearer, default=0.0) <= MORE and late == 0
    return [judged(name, is_met=is_met), "", *means]


def _closed(share: float, least: float) -> str:
    return judged(f"{share:.1%} (≥ {least:.0%})", is_met=share >= least)


def _zones() -> str:
    record, _ = read_capacity(RECORDS, zones=["us-west-2a", "us-west-2b"], accelerator="v100", count="1")
    rows = []
    for hours in HOURS:
        cost, late = _costs(record, hours)
        usual, best = min(cost["greedy"], cost["uniform_progress"]), cost["clairvoyant"]
        rows.append(
            [
                f"{hours} h",
                f"{usual:.2f}",
                f"{cost['brim']:.2f}",
                f"{best:.2f}",
                f"{cost['brim'] / best - 1:.1%}",
                judged(f"{late} (≤ 0)", is_met=late == 0),
            ]
        )
    return markdown(["two zones of us-west-2", "usual", "brim", "foresight", "brim above", "late"], rows)


def records() -> Iterator[tuple[str, Capacity]]:
    """Each record of the file by itself."""
    with gzip.open(RECORDS, "rt") as lines, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.jsonl"
        for line in lines:
            told = json.loads(line)
            if told["kind"] == "availability":
                path.write_text(line)
                many = f", {told['nodes']} of them" if told["nodes"] > 1 else ""
                name = f"{told['zone']} {told['count']} x {told['accelerator']}{many}, {told['start'][:7]}"
                yield name, read_capacity(path)[0]


def _costs(record: Capacity, hours: int, prior: Hours = PRIOR_HOURS) -> tuple[dict[str, float], int]:
    """Mean cost of each policy, and how often brim was late."""
    results = compare(record, a_task(hours), starts=STARTS, prior=prior)
    costs = {name: each["mean_cost_usd"] for name, each in results.items()}
    return costs, int(results["brim"]["misses"])


def a_task(hours: int) -> Task:
    return Task(
        work_s=48 * 3600,
        deadline_s=hours * 3600,
        restart_s=720,
        spot_usd_per_hour=0.9731,
        on_demand_usd_per_hour=3.06,
    )
