"""Dependencies rehearsed: the same gates as in a live fleet, from a column of the trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.errors import BadInput
from brimful.scheduler.rules import Rules
from brimful.sim.fleets import parse_fleet
from brimful.sim.traces.read import read
from brimful.sim.world import rehearse
from tests.builders import refuses

HEAD = "job,submit_s,run_s,gpus,after\n"


def test_a_trace_says_what_comes_after_what(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + "a,0,100,1,\nb,0,50,1,a\nc,10,20,1,a|b:any\n")
    outcome = rehearse(read([str(path)])[0].arrivals, parse_fleet("1x8@2"), Rules())
    states = outcome.fleet.jobs
    assert [states[name].first_start_s for name in "abc"] == [0, 100, 150]
    assert [states[name].delay_s(outcome.end_s) for name in "abc"] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("after", ["z", "b", "a"])
def test_a_row_comes_after_rows_above_it_only(tmp_path: Path, after: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + f"a,0,100,1,{after}\nb,0,50,1,\n")
    with refuses(BadInput, "sim.after_unknown", "row 2"):
        read([str(path)])[0]
