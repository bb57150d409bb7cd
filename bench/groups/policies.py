"""Every named policy on the same jobs, and how many GPUs are enough by delay.

    make bench ARGS=policies    three traces, and Philly on five fleets: a few CPU minutes

The data is beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.document import markdown
from bench.groups.traces import CASES, DATA, known, run
from bench.measure import CALIBRATION, ROOT, Benchmark, body, calibration
from brimful.scheduler.policies import DEFAULT, POLICIES, read_policy
from brimful.sim.fleets import parse_fleet
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival, rehearse

TITLE = "Named policies"
TABLES = ("policies", "enough")
FIRST = 5_000  # jobs of Philly
FLEETS = (60, 70, 75, 80, 90)  # nodes of eight GPUs
SIZES = ("1", "2-4", "5-8", "9-64")


def benchmarks() -> Iterator[Benchmark]:
    arrivals, nodes = read([str(ROOT / "examples" / "small.csv")])[0].arrivals, parse_fleet("2x4")
    yield Benchmark(
        name="12 jobs on 8 GPUs under every policy",
        subject=body(lambda: [rehearse(arrivals, nodes, rules) for rules in POLICIES.values()]),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def tables() -> dict[str, str]:
    if not DATA.is_dir():
        return {}
    return {"policies": _policies(), "enough": _enough()}


def _philly() -> list[Arrival]:
    return read([str(DATA / name) for name in CASES[1].files])[0].arrivals


def _policies() -> str:
    """Mean JCT and mean delay of each."""
    traces = {
        "small": (read([str(ROOT / "examples" / "small.csv")])[0].arrivals, "2x4"),
        "Gavel": (read([str(DATA / name) for name in CASES[0].files])[0].arrivals, CASES[0].fleet),
        "Philly": (_philly()[:FIRST], CASES[1].fleet),
    }
    rows = []
    for policy in (*POLICIES, DEFAULT):
        cells = []
        for arrivals, fleet in traces.values():
            for some in (arrivals, known(arrivals)):
                told = run(some, fleet, policy, read_policy(policy).rules)
                cells.append(f"{told['mean_jct_h']:.2f} ({told['mean_delay_h']:.2f})")
        rows.append([policy, *cells])
    return markdown(["policy", *[f"{name}, {how}" for name in traces for how in ("hidden", "known")]], rows)


def _enough() -> str:
    """Philly under brim: delay as a share of JCT, by gang size."""
    arrivals, rows = _philly(), []
    for nodes in FLEETS:
        told = run(arrivals, f"{nodes}x8", "brim")
        shares = [told["delay_share"], *[_size(told, size)["delay_share"] for size in SIZES]]
        wide_h, first_h = _size(told, "5-8")["mean_jct_h"], told["mean_first_wait_h"]
        hours = [f"{wide_h:.1f}", f"{first_h:.2f}"]
        rows.append([f"{nodes * 8} GPUs", *[f"{share:.1%}" for share in shares], *hours])
    header = ["fleet", "all jobs", *[f"on {size}" for size in SIZES]]
    return markdown([*header, "mean JCT on 5-8, h", "mean first wait, h"], rows)


def _size(told: dict[str, Any], size: str) -> dict[str, Any]:
    found: dict[str, Any] = told["by_size"][size]
    return found
