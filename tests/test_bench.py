"""The benchmarks' own arithmetic, and that each group can be listed."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import bench.__main__ as program
from bench import document, edf, groups
from bench.__main__ import main, table
from bench.measure import ENOUGH_S, ROOT, Benchmark, body, measure
from brimful.sim.world import Arrival
from tests.builders import a_job


def a_benchmark(*, subject_s: float, peer_s: float, bar: float | None = None) -> Benchmark:
    return Benchmark(name="it", subject=lambda: subject_s, peer_name="its peer", peer=lambda: peer_s, bar=bar)


def test_the_best_of_all_rounds_counts() -> None:
    times = iter([0.5, 0.3, 0.9])
    benchmark = Benchmark(name="it", subject=lambda: next(times), peer_name="peer", peer=lambda: 0.1)
    assert measure(benchmark, rounds=3).ratio == 0.3 / 0.1


def test_a_bar_is_missed_only_above_it() -> None:
    assert not measure(a_benchmark(subject_s=0.8, peer_s=0.1, bar=8)).missed
    assert measure(a_benchmark(subject_s=0.9, peer_s=0.1, bar=8)).missed
    assert not measure(a_benchmark(subject_s=9, peer_s=0.1)).missed


def test_the_table_says_where_a_bar_is_missed() -> None:
    lines = table([measure(a_benchmark(subject_s=0.9, peer_s=0.1, bar=8))])
    assert "9.00x missed" in lines[2]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("is_met", [True, False])
def test_a_bar_missed_in_a_table_fails_the_run(
    is_met: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = document.markdown(["What", "Bar"], [["pause", document.judged("≤ 1 s", is_met=is_met)]])
    group = SimpleNamespace(TITLE="It", benchmarks=list, tables=lambda: {"not-on-any-page": table})
    monkeypatch.setattr(program, "importlib", SimpleNamespace(import_module=lambda _name: group))
    monkeypatch.setattr(program, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "plane"])
    assert main() == (0 if is_met else 1)


def test_a_body_is_measured_per_call() -> None:
    calls = 0

    def work() -> None:
        nonlocal calls
        calls += 1
        sum(range(1000))

    spent = iter([0.0, 0.004, 1.0, 1.0 + 2 * ENOUGH_S])  # too short to count, then long enough
    each_s = body(work, clock=lambda: next(spent))()
    assert calls > 1
    assert each_s == pytest.approx(2 * ENOUGH_S / (calls - 1))


def test_every_group_offers_a_title_and_something_to_measure() -> None:
    for found in pkgutil.iter_modules(groups.__path__):
        module = importlib.import_module(f"bench.groups.{found.name}")
        assert module.TITLE
        assert list(module.benchmarks()) or module.TABLES, found.name


def test_a_table_goes_into_its_place_and_leaves_the_others_alone() -> None:
    page = "a\n<!-- bench: one -->\nold\n<!-- end -->\nb\n<!-- bench: two -->\nkept\n<!-- end -->\n"
    fresh = document.fill_places(page, {"one": document.markdown(["x", "y"], [["1", "22"]])})
    assert fresh == page.replace("old\n", "| x |  y |\n|---|---:|\n| 1 | 22 |\n")


def test_every_table_a_group_measures_has_its_place_in_the_documentation() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    for found in pkgutil.iter_modules(groups.__path__):
        module = importlib.import_module(f"bench.groups.{found.name}")
        assert hasattr(module, "TABLES") == hasattr(module, "tables"), found.name
        for name in getattr(module, "TABLES", ()):
            assert f"<!-- bench: {name} -->" in pages


def test_edf_admits_a_job_only_where_every_admitted_deadline_is_still_kept() -> None:
    asked = (("first", 2, 100), ("second", 1, 190), ("hopeless", 1, 120), ("patient", 1, None))
    arrivals = [
        Arrival(at_s=0, job=a_job(name, gpus=gpus, deadline_s=due_s), work_s=90.0)
        for name, gpus, due_s in asked
    ]
    # On two GPUs: the first until 90 s, then the second beside the hopeless one, which is not admitted.
    assert edf.met(arrivals, 2) == (2, 2)
    assert edf.met(arrivals, 4) == (3, 3)
