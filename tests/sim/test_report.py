"""The figures of a rehearsal, each against a case worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.errors import BadInput
from brimful.fleet.job import Job
from brimful.scheduler.rules import Rules
from brimful.sim.charts import allocated, jct_cdf, page, queue, spent
from brimful.sim.fleets import parse_fleet, scaled, show_fleet
from brimful.sim.report import report
from brimful.sim.world import Arrival, Outcome, rehearse
from tests.builders import refuses

PREEMPTIVE = Rules(order="priority", preempt="priority", min_run_s=0)


def an_arrival(name: str, at_s: int, work_s: float, gpus: int = 1, **more: Any) -> Arrival:
    return Arrival(at_s=at_s, job=Job(job=name, gpus=gpus, **more), work_s=work_s)


def figures(arrivals: list[Arrival], fleet: str, rules: Rules | None = None) -> dict[str, Any]:
    nodes = parse_fleet(fleet)
    outcome = rehearse(arrivals, nodes, rules or Rules(order="fifo"))
    return report(outcome, arrivals, nodes, policy="p", seed=0, cpu_s=0.0)


def test_times_are_counted_from_submit_and_in_hours() -> None:
    run = figures([an_arrival("a", 0, 3600), an_arrival("b", 1800, 3600)], "1x1@2")
    assert (run["jobs"], run["finished"]) == (2, 2)
    assert run["mean_jct_h"] == pytest.approx((1 + 1.5) / 2)
    assert run["mean_delay_h"] == run["mean_first_wait_h"] == pytest.approx(0.25), "nobody was stopped"
    assert run["delay_share"] == pytest.approx(0.25 / 1.25)
    assert run["makespan_h"] == pytest.approx(2.0)
    assert run["allocation_rate"] == pytest.approx(1.0)
    assert run["useful_share"] == pytest.approx(1.0)
    assert run["cost_usd"] == pytest.approx(4.0)
    assert run["bound"]["mean_jct_ratio"] == pytest.approx(1.0), "first come is optimal here"


def test_a_preempted_job_loses_what_it_had_not_saved_and_its_restart() -> None:
    low = an_arrival(
        "low", 0, 3600, 2, priority="background", checkpoint_interval_s=600, checkpoint_cost_s=120
    )
    high = an_arrival("high", 1000, 600, 2, priority="urgent")
    run = figures([low, high], "1x2", PREEMPTIVE)
    assert run["preemptions"] == 1
    # 400 s since the checkpoint at 600 s, and 120 s to restart, on both GPUs.
    assert run["lost_gpu_h"] == pytest.approx(2 * (400 + 120) / 3600)
    assert run["useful_share"] < run["allocation_rate"]


def test_delay_counts_what_a_preemption_costs_and_the_first_wait_does_not() -> None:
    low = an_arrival(
        "low", 0, 3600, 2, priority="background", checkpoint_interval_s=600, checkpoint_cost_s=120
    )
    high = an_arrival("high", 1000, 600, 2, priority="urgent")
    run = figures([low, high], "1x2", PREEMPTIVE)
    assert run["mean_first_wait_h"] == 0.0, "both start when they come"
    # `low` waits 600 s, does 400 s of work again and takes 120 s to restart; `high` loses nothing.
    assert run["by_class"]["background"]["mean_delay_h"] == pytest.approx((600 + 400 + 120) / 3600)
    assert run["by_class"]["urgent"]["mean_delay_h"] == 0.0
    assert run["mean_delay_h"] == pytest.approx(run["mean_jct_h"] - (3600 + 600) / 2 / 3600)
    assert run["p99_delay_h"] == run["by_class"]["background"]["mean_delay_h"]


def test_work_is_what_the_job_takes_on_the_gpus_it_got() -> None:
    """A slower GPU makes a job longer, which JCT says; it is late only for what it waits."""
    rates = (("new", 2.0), ("old", 0.5))
    on_old = an_arrival("a", 0, 3600, rates=rates, gpu_types=("old",))
    after_it = an_arrival("b", 0, 3600, rates=rates, gpu_types=("old",))
    run = figures([on_old, after_it], "1x1:new+1x1:old")
    assert run["mean_jct_h"] == pytest.approx((2 + 4) / 2)
    assert run["mean_delay_h"] == pytest.approx((0 + 2) / 2)
    spread = an_arrival("wide", 0, 3600, 4, within="any", spread_rate=0.5)
    assert figures([spread], "2x2")["mean_delay_h"] == 0.0


def test_a_job_that_does_not_finish_has_no_delay_and_is_counted() -> None:
    run = figures([an_arrival("a", 0, 60), an_arrival("too-wide", 0, 60, 4)], "1x2")
    assert (run["finished"], run["jobs"], run["mean_delay_h"]) == (1, 2, 0.0)
    assert run["by_size"]["2-4"]["mean_delay_h"] is None


def test_deadlines_are_met_or_not() -> None:
    arrivals = [
        an_arrival("in-time", 0, 100, deadline_s=100),
        an_arrival("late", 0, 100, deadline_s=150),
        an_arrival("free", 0, 100),
    ]
    assert figures(arrivals, "1x1")["deadline_met"] == pytest.approx(0.5)
    assert figures(arrivals[2:], "1x1")["deadline_met"] is None


def test_rho_is_one_for_a_fair_share_and_more_for_who_waits() -> None:
    """Two jobs that each fill the fleet: alone on half of it both would take twice as long."""
    run = figures([an_arrival("a", 0, 3600, 2), an_arrival("b", 0, 3600, 2)], "1x2")
    # a: 1 h, others 2 on average: private 2 h. b: 2 h, others 1.5: private 1.5 h.
    assert run["worst_rho"] == pytest.approx(2 / 1.5)
    assert run["unfair_share"] == pytest.approx(0.5)


def test_a_wrong_gpu_shows_in_the_useful_share_not_in_the_allocation() -> None:
    rates = (("new", 1.0), ("old", 0.1))
    jobs = [an_arrival("a", 0, 3600, rates=rates, gpu_types=("old",))]
    run = figures(jobs, "1x1:new+1x1:old")
    assert run["allocation_rate"] == pytest.approx(0.5)
    jobs = [an_arrival("a", 0, 3600, rates=rates), an_arrival("b", 0, 360, rates=rates)]
    assert figures(jobs, "1x1:new+1x1:old")["useful_share"] <= 1.0 + 1e-9


def test_a_gang_over_two_nodes_and_a_shared_gpu_count_for_what_they_hold() -> None:
    wide = an_arrival("wide", 0, 3600, 4, within="any")
    assert figures([wide], "2x2")["allocation_rate"] == pytest.approx(1.0)
    assert figures([wide], "2x2")["gpu_h"] == pytest.approx(4.0)
    half = an_arrival("half", 0, 3600, gpu_milli=500)
    assert figures([half], "1x1")["allocation_rate"] == pytest.approx(0.5)


def test_sizes_are_told_apart() -> None:
    run = figures([an_arrival("a", 0, 60), an_arrival("b", 0, 120, 4), an_arrival("c", 0, 60, 8)], "2x8")
    assert list(run["by_size"]) == ["1", "2-4", "5-8"]
    assert run["by_size"]["2-4"]["mean_jct_h"] == pytest.approx(120 / 3600)


def the_outcome() -> tuple[Outcome, list[dict[str, Any]]]:
    arrivals = [an_arrival("a", 0, 3600), an_arrival("b", 0, 3600), an_arrival("c", 0, 1800)]
    nodes = parse_fleet("1x2@3")
    outcome = rehearse(arrivals, nodes, Rules(order="fifo"))
    return outcome, [report(outcome, arrivals, nodes, policy="<fifo>", seed=0, cpu_s=0.0)]


def test_curves_add_up_to_the_figures() -> None:
    outcome, _ = the_outcome()
    shares = [share for _, share in allocated(outcome)]
    assert sum(shares) / len(shares) == pytest.approx(100 * 2.5 / 3.0), "5 GPU-half-hours of 6"
    waits = [jobs for _, jobs in queue(outcome)]
    assert sum(waits) / len(waits) == pytest.approx(1.0 / 1.5), "one job waits for the first of 1.5 hours"
    assert jct_cdf(outcome)[-1] == (1.5, 100.0)
    assert spent(outcome)[-1] == pytest.approx((1.5, 7.5))


@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(1, 9_999), st.integers(1, 2)), min_size=1, max_size=30
    )
)
@settings(max_examples=50)
def test_no_slice_of_a_curve_is_above_what_there_is(rows: list[tuple[int, int, int]]) -> None:
    arrivals = [an_arrival(f"j{i}", *row) for i, row in enumerate(sorted(rows))]
    nodes = parse_fleet("3x2")
    outcome = rehearse(arrivals, nodes, Rules(order="fifo"))
    shares = [share for _, share in allocated(outcome)]
    assert max(shares) <= 100 + 1e-6
    assert min(jobs for _, jobs in queue(outcome)) >= -1e-9
    told = report(outcome, arrivals, nodes, policy="p", seed=0, cpu_s=0.0)
    assert sum(shares) / len(shares) == pytest.approx(100 * told["allocation_rate"])


def test_the_page_needs_nothing_else_and_escapes_what_it_is_told() -> None:
    outcome, runs = the_outcome()
    text = page("a <b> & c", [("<fifo>", outcome)], runs)
    head, _, body = text.partition("</head>")
    assert "plotly.js" in head, "the library is packed into the page"
    assert not [tag for tag in ("<script src", "<link", "<img", "http://", "https://") if tag in body]
    assert "<h1>a &lt;b&gt; &amp; c</h1>" in text
    assert "<td>&lt;fifo&gt;</td>" in text or "<th>&lt;fifo&gt;</th>" in text
    assert text == page("a <b> & c", [("<fifo>", outcome)], runs), "the same run gives the same page"


def test_a_fleet_keeps_its_mix_when_it_is_scaled() -> None:
    nodes = parse_fleet("2x4:v100+4x4:p100+6x4:k80")
    assert show_fleet(scaled(nodes, 24)) == "3 x 4 k80 + 2 x 4 p100 + 1 x 4 v100"
    assert sum(node.gpus for node in scaled(nodes, 480)) == 480
    assert sum(node.gpus for node in scaled(nodes, 1)) == 4, "at least one node"
    assert sum(node.gpus for node in scaled(parse_fleet("1x8"), 20)) in (16, 24)
    assert len({node.node for node in scaled(nodes, 480)}) == 120


def test_a_fleet_file_says_what_a_word_cannot(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        "[[nodes]]\ncount = 4\ngpus = 8\ngpu = 'h100'\nusd_per_gpu_hour = 2.5\nrack_nodes = 2\n"
        "cpu_milli = 96000\ntier = 'reserved'\n[[nodes]]\ngpus = 4\n",
        encoding="utf-8",
    )
    nodes = parse_fleet(str(path))
    assert [(n.node, n.gpus, n.rack) for n in nodes] == [
        ("node-0", 8, "rack-0"),
        ("node-1", 8, "rack-0"),
        ("node-2", 8, "rack-1"),
        ("node-3", 8, "rack-1"),
        ("node-4", 4, ""),
    ]
    assert (nodes[0].microusd_per_gpu_hour, nodes[0].tier, nodes[4].cpu_milli) == (
        2_500_000,
        "reserved",
        None,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = [", ("sim.not_toml",)),
        pytest.param("nodes = " + "[" * 3000 + "]" * 3000, ("specs.toml_too_deep", 32), id="deep"),
        ("", ("sim.no_nodes_table",)),
        ("nodes = [1]", ("sim.no_nodes_table",)),
        ("[[nodes]]\ngpus = 0\n", ("sim.nodes_out_of_range", 1, 0)),
        ("[[nodes]]\ngpus = 8\ncolour = 'red'\n", ("sim.unknown_key", "colour")),
        ("[[nodes]]\ngpus = '8'\n", ("sim.bad_value", "gpus", "8")),
        ("[[nodes]]\ngpus = 8\ncount = true\n", ("sim.bad_value", "count", True)),
        ("[[nodes]]\ngpus = 8\ntier = 'free'\n", ("sim.fleet_row_out_of_range",)),
        ("[[nodes]]\ngpus = 8\nusd_per_gpu_hour = -1\n", ("sim.fleet_row_out_of_range",)),
        ("[[nodes]]\ngpus = 8\nrack_nodes = -2\n", ("sim.fleet_row_out_of_range",)),
        ("[[nodes]]\ngpus = 8\nnvlink_gpus = -1\n", ("sim.fleet_row_out_of_range",)),
        ("[[nodes]]\ngpus = 8\ncount = 100001\n", ("sim.nodes_out_of_range", 100001)),
    ],
)
def test_a_bad_fleet_file_is_refused(text: str, reason: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text, encoding="utf-8")
    with refuses(BadInput, *reason):
        parse_fleet(str(path))
