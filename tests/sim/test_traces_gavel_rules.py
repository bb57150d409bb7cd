"""Gavel's published figures come out of Gavel's own rules, read from its trace by our reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gavel_rules import fifo, las
from brimful.sim.traces.read import read
from brimful.sim.traces.reading import Trace


@pytest.fixture(scope="module")
def trace(shared_data: Path) -> Trace:
    folder = shared_data / "traces" / "gavel"
    files = ["physical_cluster/max_min_fairness.trace.gz", "simulation_throughputs.json.gz"]
    return read([str(folder / name) for name in files])[0]


def test_fifo_that_does_not_use_its_draw_takes_ten_hours(trace: Trace) -> None:
    """Gavel's simulator on the same files: mean JCT 9.97 h, makespan 54.59 h."""
    found = fifo(trace)
    assert found.mean_jct_h == pytest.approx(9.97, rel=0.10)
    assert found.makespan_h == pytest.approx(54.59, rel=0.10)


def test_equal_time_on_every_type_takes_five_and_a_half_hours(trace: Trace) -> None:
    """Gavel's simulator on the same files: mean JCT 5.55 h, makespan 21.43 h."""
    found = las(trace)
    assert found.mean_jct_h == pytest.approx(5.55, rel=0.10)
    assert found.makespan_h == pytest.approx(21.43, rel=0.10)
