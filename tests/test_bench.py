"""The benchmarks' own arithmetic, and that each group can be listed."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bench.__main__ as program
from bench import document, edf, groups
from bench.__main__ import main, table
from bench.groups import deadlines, forecast, reservations, spot, tariff
from bench.measure import ENOUGH_S, ROOT, Benchmark, body, measure
from brimful.market.forecast import LoadScore
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


def _missed(cells: Sequence[str]) -> bool:
    return any(document.MISSED in cell for cell in cells)


def test_each_bar_of_the_market_can_be_missed() -> None:
    good = LoadScore(hours=100, inside=80, pinball=8.0, yesterday=10.0, persistence=9.0)
    assert not _missed(forecast.load_row("p", good, whole=True))
    for worse in ({"inside": 74}, {"inside": 86}, {"yesterday": 9.0}, {"persistence": 7.9}, {"hours": 0}):
        assert _missed(forecast.load_row("p", replace(good, **worse), whole=True)), worse
    assert not _missed(forecast.load_row("p", replace(good, yesterday=9.0), whole=False))

    row = spot._Row(without=100, with_it=60, billed=1, revenue=92.0, cleared=100.0, ticks=72)
    assert not _missed(spot.market_row("all", row))
    assert _missed(spot.market_row("all", replace(row, with_it=61)))
    assert _missed(spot.market_row("0.6", replace(row, with_it=76)))
    assert _missed(spot.market_row("0.1", replace(row, late=1)))
    assert not _missed(spot.floor_row(10_000, row))
    assert _missed(spot.floor_row(10_000, replace(row, billed=2)))
    assert _missed(spot.floor_row(10_000, replace(row, revenue=91.0)))

    closed = {52: [0.55], 70: [0.58], 92: [0.40]}
    assert not _missed(deadlines.mean_row(closed, [0.009], 0))
    assert _missed(deadlines.mean_row(closed, [0.011], 0))
    assert _missed(deadlines.mean_row(closed, [0.001, 0.001], 0))
    assert _missed(deadlines.mean_row(closed, [], 1))
    assert all(_missed(deadlines.mean_row({**closed, hours: [0.39]}, [], 0)) for hours in closed)

    assert not _missed(reservations.late_row([(1000, 1)]))
    assert _missed(reservations.late_row([(1000, 1), (1000, 2)]))
    assert _missed(reservations.late_row([(0, 0)]))


def test_each_bar_of_the_tariff_can_be_missed() -> None:
    run = tariff.Run([], prices=[1000, 1100, 1000], charged=3000.0, flat=3.0, paid=[(1, 1100), (2, 1000)])
    good: dict[str, Any] = {"full": 0.1, "cut": 0.85}
    assert not _missed(tariff.row("hourly", run, **good))
    assert _missed(tariff.row("hourly", run, full=0.1, cut=0.84))
    worse: dict[str, Any]
    for worse in (
        {"paid": [(0, 1001)]},
        {"paid": []},
        {"charged": 3031.0},
        {"prices": [1000, 1101, 1001]},
        {"prices": [1000, 900, 1000]},
    ):
        assert _missed(tariff.row("hourly", replace(run, **worse), **good)), worse

    jobs = tariff.Jobs(priced=2, ran=2, waited=1, paid=[(900, 1000), (1000, 1000)])
    assert document.MISSED not in tariff.table_of_jobs(jobs)
    wrong: dict[str, Any]
    for wrong in ({"ran": 1}, {"waited": 0}, {"paid": []}, {"paid": [(1002, 1000)]}):
        assert document.MISSED in tariff.table_of_jobs(replace(jobs, **wrong)), wrong


def test_deferrable_jobs_pay_less_in_the_production_loop_and_none_pays_more() -> None:
    """Six days until there is a tariff, and one with it."""
    loads = [60 + 40 * (h % 24 > 12) for h in range(7 * 24)]
    found = tariff.compare(tariff.arrivals(loads, capacity=300))
    table = tariff.table_of_jobs(found)

    assert document.MISSED not in table, table
    assert any(paid < then for paid, then in found.paid)


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
