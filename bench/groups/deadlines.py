"""The cost of meeting a deadline on public records of spot capacity: brim, simple rules, perfect foresight.

The prior comes from the other eight records, never from the one under test.

    make bench ARGS=deadlines     nine records at three deadlines, and two zones together: five CPU minutes

The data is beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from bench.document import markdown
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
    records = dict(_records())
    seen = {name: seen_in(record) for name, record in records.items()}
    closed: dict[int, list[float]] = {hours: [] for hours in HOURS}
    worse = 0  # than the better of the simple rules
    rows = []
    for name, record in records.items():
        cells = [name, f"{sum(record.up[0]) / record.ticks:.0%}"]
        prior = prior_of([each for other, each in seen.items() if other != name])
        for hours in HOURS:
            cost = _costs(record, hours, prior)
            usual, best = min(cost["greedy"], cost["uniform_progress"]), cost["clairvoyant"]
            closed[hours].append((usual - cost["brim"]) / (usual - best))
            worse += cost["brim"] > usual
            cells += [f"{usual:.2f}", f"{cost['brim']:.2f}", f"{best:.2f}", f"{closed[hours][-1]:.0%}"]
        rows.append(cells)
    means = [cell for hours in HOURS for cell in ("", "", "", f"{fmean(closed[hours]):.1%}")]
    rows.append([f"mean ({worse} of {len(rows) * len(HOURS)} dearer than usual)", "", *means])
    header = ["record", "there"]
    for hours in HOURS:
        header += [f"{hours} h: usual", "brim", "foresight", "closed"]
    return {"deadlines": markdown(header, rows), "deadline-zones": _zones()}


def _zones() -> str:
    record, _ = read_capacity(RECORDS, zones=["us-west-2a", "us-west-2b"], accelerator="v100", count="1")
    rows = []
    for hours in HOURS:
        cost = _costs(record, hours)
        usual, best = min(cost["greedy"], cost["uniform_progress"]), cost["clairvoyant"]
        rows.append(
            [
                f"{hours} h",
                f"{usual:.2f}",
                f"{cost['brim']:.2f}",
                f"{best:.2f}",
                f"{cost['brim'] / best - 1:.1%}",
            ]
        )
    return markdown(["two zones of us-west-2", "usual", "brim", "foresight", "brim above"], rows)


def _records() -> Iterator[tuple[str, Capacity]]:
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


def _costs(record: Capacity, hours: int, prior: Hours = PRIOR_HOURS) -> dict[str, float]:
    results = compare(record, a_task(hours), starts=STARTS, prior=prior)
    assert not any(each["misses"] for each in results.values())
    return {name: each["mean_cost_usd"] for name, each in results.items()}


def a_task(hours: int) -> Task:
    return Task(
        work_s=48 * 3600,
        deadline_s=hours * 3600,
        restart_s=720,
        spot_usd_per_hour=0.9731,
        on_demand_usd_per_hour=3.06,
    )
