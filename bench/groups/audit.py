"""A month of 600 GPUs by the minute, 26 million samples, with waste planted in every leaf.

make bench ARGS=audit      a few CPU minutes and half a gigabyte of temporary files
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.document import markdown
from bench.measure import CALIBRATION, Benchmark, body, calibration
from bench.planted import Month, plant, write
from brimful.audit.readers.read import Asked, read
from brimful.audit.sweep import sweep

TITLE = "Audit of a month"
TABLES = ("audit-month",)


def benchmarks() -> Iterator[Benchmark]:
    with tempfile.TemporaryDirectory() as name:
        write(plant(nodes=8, days=2), Path(name))
        records = read([name], Asked())
    start_s, end_s = records.window()
    yield Benchmark(
        name="two days of 64 GPUs into the tree",
        subject=body(lambda: sweep(records, start_s=start_s, end_s=end_s)),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def tables() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as name:
        month = plant()
        samples = write(month, Path(name))
        found, cpu_s, peak_bytes = run(Path(name))
    rows = [
        [leaf, f"{planted / 3600:,.1f}", f"{got / 3600:,.1f}"]
        for leaf, planted, got in compared(month, found)
    ]
    worst = max(abs(got - planted) / planted for _, planted, got in compared(month, found))
    said = (
        f"{samples:,} samples of {month.nodes * 8} GPUs over {month.days} days: {cpu_s:.0f} CPU s, "
        f"{peak_bytes / 2**30:.2f} GiB; the worst leaf is off by {100 * worst:.2f} %."
    )
    return {"audit-month": f"{said}\n\n{markdown(['leaf', 'planted, GPU-h', 'found, GPU-h'], rows)}"}


def run(folder: Path) -> tuple[dict[str, int], float, int]:
    """GPU-seconds by leaf, CPU seconds and peak memory, run as a user would."""
    command = [sys.executable, "-m", "brimful.cli.main", "audit", str(folder), "--json"]
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, child.returncode
        out.seek(0)
        data = json.load(out)["data"]
    leaves = {leaf["path"]: leaf["gpu_s"] for leaf in data["leaves"]}
    return leaves, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def compared(month: Month, found: dict[str, int]) -> list[tuple[str, int, int]]:
    return [(leaf, planted, found.get(leaf, 0)) for leaf, planted in sorted(month.truth.items()) if planted]
