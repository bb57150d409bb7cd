"""`brimful simulate` at the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from brimful.cli.commands import BAD_INPUT, WORLD_FAILED, YES
from brimful.cli.main import main
from brimful.language import Percent, Quoted, count, say, words
from tests.builders import check_reason

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILL = [str(EXAMPLES / "fill_nodes.csv"), str(EXAMPLES / "fill_pods.csv"), "--fill", "1.3"]


SMALL = str(Path(__file__).parents[2] / "examples" / "small.csv")


def check_refused(args: list[str], capsys: pytest.CaptureFixture[str], code: str, *values: object) -> None:
    assert main(["simulate", *args, "--json"]) in (BAD_INPUT, WORLD_FAILED)
    check_reason(json.loads(capsys.readouterr().out)["error"]["reason"], code, *values)


def data(args: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["simulate", *args, "--json"]) == YES
    answer: dict[str, object] = json.loads(capsys.readouterr().out)["data"]
    return answer


def test_a_fill_tells_the_allocation_at_four_points(capsys: pytest.CaptureFixture[str]) -> None:
    runs = data([*FILL, "--policy", "fgd", "--policy", "best-fit", "--seeds", "2"], capsys)["runs"]
    assert isinstance(runs, list)
    assert [(run["policy"], run["seed"]) for run in runs] == [
        ("fgd", 0),
        ("fgd", 1),
        ("best-fit", 0),
        ("best-fit", 1),
    ]
    assert all(list(run["allocation_at"]) == ["50", "80", "100", "130"] for run in runs)
    assert all(60 < run["allocation_at"]["130"] <= 100 for run in runs)
    assert all(set(run) >= KEYS for run in runs), "what a fill cannot tell is None, not absent"


def test_a_fill_for_people_is_a_table_of_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *FILL, "--policy", "brim", "--seeds", "3"]) == YES
    text = capsys.readouterr().out
    assert "policy  seeds" in text
    assert "at 130 %" in text


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ([*FILL, "--policy", "fifo"], ("sim.fill_policy_unknown", "fifo")),
        ([*FILL[:2], "--fill", "0"], ("sim.fill_out_of_range", "0")),
        ([*FILL[:2], "--fill", "nan"], ("sim.fill_out_of_range", "nan")),
        ([*FILL[:2], "--fill", "1e-9"], ("sim.fill_no_task", "1e-09")),
        ([str(EXAMPLES / "fill_nodes.csv")], ("sim.no_jobs_in_trace",)),
        ([str(EXAMPLES / "small.csv"), "--policy", "best"], ("scheduler.policy_unknown",)),
        (
            [str(EXAMPLES / "small.csv"), "--policy", "brim?mvoe=0"],
            ("scheduler.policy_option_not_valid", "mvoe", "0"),
        ),
        (
            [str(EXAMPLES / "small.csv"), "--policy", "brim?preempt=all"],
            ("scheduler.policy_option_not_valid", "preempt", "all"),
        ),
        (
            [str(EXAMPLES / "small.csv"), "--policy", "brim?ageing=nan"],
            ("scheduler.policy_option_not_valid", "ageing", "nan"),
        ),
        (
            [str(EXAMPLES / "small.csv"), "--policy", "brim?move=0&move=1"],
            ("scheduler.policy_option_twice", "move"),
        ),
        (["synthetic:philly?jobs=10&jobs=20"], ("sim.option_twice", "jobs")),
        (
            [str(EXAMPLES / "small.csv"), "--faults", "slow_share=0.5,slow_share=0.1"],
            ("sim.option_twice", "slow_share"),
        ),
        ([str(EXAMPLES / "small.csv"), "--sweep", "gpus"], ("sim.sweep_unreadable", "gpus")),
        ([str(EXAMPLES / "small.csv"), "--sweep", "gpus=8,x"], ("sim.sweep_unreadable", "gpus=8,x")),
        ([str(EXAMPLES / "small.csv"), "--sweep", "gpus=²"], ("sim.sweep_unreadable", "gpus=²")),
        ([str(EXAMPLES / "small.csv"), "--sweep", "gpus=0"], ("sim.sweep_unreadable", "gpus=0")),
        ([str(EXAMPLES / "small.csv"), "--sweep", "h100=8"], ("sim.sweep_gpu_unknown", "h100")),
        ([str(EXAMPLES / "small.csv"), "--sweep", "gpu=0"], ("sim.sweep_leaves_none", "gpu")),
        ([str(EXAMPLES / "small.csv"), "--html", "/nowhere/x.html"], ("sim.no_folder_to_write", "/nowhere")),
        ([*FILL, "--html", "x.html"], ("sim.html_with_fill",)),
        ([*FILL, "--market", "all"], ("sim.market_with_fill",)),
        ([str(EXAMPLES / "small.csv"), "--market", "moon"], ("market.no_such_pool", "moon")),
        ([str(EXAMPLES / "small.csv"), "--faults", "fire=1"], ("sim.faults_unreadable", "fire=1")),
        (
            [str(EXAMPLES / "small.csv"), "--faults", "slow_share=x"],
            ("sim.faults_unreadable", "slow_share=x"),
        ),
        ([str(EXAMPLES / "small.csv"), "--faults", "slow_share=-1"], ("sim.faults_out_of_range",)),
        ([str(EXAMPLES / "small.csv"), "--seeds", "0"], ("sim.seeds_out_of_range",)),
        ([str(EXAMPLES / "small.csv"), "--seed", "4294967296"], ("sim.seeds_out_of_range", 2**32)),
        ([str(EXAMPLES / "small.csv"), str(EXAMPLES / "small.csv")], ("sim.jobs_in_several_files",)),
    ],
)
def test_what_cannot_be_done_is_said(
    args: list[str], reason: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused(args, capsys, *reason)


def test_a_bad_row_ends_the_run_or_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("job,submit_s,run_s,gpus\na,0,10,1\nb,0,-1,1\nc,1,10,0\n", encoding="utf-8")
    check_refused([str(trace)], capsys, "sim.bad_entry", "row 3", "run_s", "-1")
    answer = data([str(trace), "--lenient"], capsys)
    said = [
        say("sim.bad_entry", where=f"{trace} row {row}", column=column, entry=Quoted(entry))
        for row, column, entry in ((3, "run_s", "-1"), (4, "gpus", "0"))
    ]
    assert answer["skipped"] == {
        "rows": 2,
        "first": [*map(str, said)],
        "first_codes": [each.as_dict() for each in said],
    }


KEYS = {
    "policy",
    "seed",
    "jobs",
    "finished",
    "mean_jct_h",
    "p50_jct_h",
    "p99_jct_h",
    "makespan_h",
    "mean_delay_h",
    "mean_first_wait_h",
    "allocation_rate",
    "useful_share",
    "worst_rho",
    "preemptions",
    "lost_gpu_h",
    "deadline_met",
    "cost_usd",
    "cpu_s",
    "bound",
}


def test_a_run_tells_everything_that_was_promised(capsys: pytest.CaptureFixture[str]) -> None:
    runs = data([str(EXAMPLES / "small.csv"), "--policy", "fifo", "--fleet", "2x4@1.50"], capsys)["runs"]
    assert isinstance(runs, list)
    (only,) = runs
    assert set(only) >= KEYS
    assert only["finished"] == only["jobs"] == 12
    assert only["bound"]["mean_jct_h"] <= only["mean_jct_h"]


def run_of(args: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    runs: Any = data(args, capsys)["runs"]
    (only,) = runs
    return dict(only)


def test_a_market_decides_who_runs_and_what_it_pays(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [str(EXAMPLES / "small.csv"), "--policy", "fifo", "--fleet", "1x4@1.50"]
    posted, sold = (run_of([*asked, *more], capsys) for more in ([], ["--market", "all"]))
    assert sold["finished"] == posted["finished"] == 12
    assert sold["cost_usd"] / sold["gpu_h"] > posted["cost_usd"] / posted["gpu_h"] == pytest.approx(1.5)
    assert sold["market_usd_per_gpu_hour"] == pytest.approx(sold["cost_usd"] / sold["gpu_h"])
    assert posted["market_usd_per_gpu_hour"] is None


@pytest.mark.parametrize(
    ("market", "code", "values", "price"),
    [
        ("", None, {}, None),
        ("all", "market.decides.all", {}, 1.73),
        ("a100", "market.decides", {"pools": "a100"}, 1.16),
    ],
)
def test_beside_the_policies_it_says_where_bids_decide_and_at_what_price(
    market: str,
    code: str | None,
    values: dict[str, str],
    price: float | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [str(EXAMPLES / "small.csv"), "--fleet", "2x4:h100@2.0+1x4:a100@1.0", "--market", market]
    found: Any = data(asked, capsys)
    assert found["note_codes"] == ([{"code": code, **values}] if code else [])
    assert found["runs"][0]["market_usd_per_gpu_hour"] == (price and pytest.approx(price, abs=0.005))
    assert main(["simulate", *asked]) == YES
    shown = " ".join(capsys.readouterr().out.split())
    assert (words("sim.col_market_price") in shown) == bool(code)
    assert (words(code, **values) in shown) if code else ("bids" not in shown)


def test_policies_are_compared_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(EXAMPLES / "small.csv"), "--policy", "fifo", "--policy", "srpt"]) == YES
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[3:5]] == ["fifo", "srpt"]


def test_a_gpu_the_fleet_does_not_have_is_named_with_its_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("job,submit_s,run_s,gpus,gpu\na,0,10,1,\nb,0,1,1,h100|h200\n", encoding="utf-8")
    check_refused([str(trace)], capsys, "sim.gpu_type_not_in_fleet", "row 3", "h100 or h200", "gpu")
    assert main(["simulate", str(trace), "--fleet", "1x1:t4+1x1:h200"]) == YES


def test_known_durations_are_told_to_the_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["synthetic:philly?jobs=200&gpus=8&load=2", "--fleet", "1x8", "--policy", "srpt"]
    hidden = data(args, capsys)["runs"]
    known = data([*args, "--durations", "known"], capsys)["runs"]
    assert isinstance(hidden, list)
    assert isinstance(known, list)
    assert known[0]["mean_jct_h"] < hidden[0]["mean_jct_h"]


def test_a_sweep_says_how_few_gpus_are_enough(capsys: pytest.CaptureFixture[str]) -> None:
    args = [str(EXAMPLES / "small.csv"), "--policy", "fifo", "--fleet", "1x4", "--sweep", "gpus=4,8,16,32"]
    answer = data(args, capsys)
    runs = answer["runs"]
    assert isinstance(runs, list)
    assert [run["gpus"] for run in runs] == [4, 8, 16, 32]
    assert answer["enough_gpus"] == {"fifo": 16}
    assert main(["simulate", *args]) == YES
    said = words("sim.enough", policy="fifo", gpus=count("gpu", 16), most=Percent(0.1))
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_fleet_is_not_enough_where_a_wide_gang_is_preempted_for_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody waits long before its first start, and 200 short jobs hide one gang in the mean over all."""
    trace = tmp_path / "trace.csv"
    header = "job,submit_s,run_s,gpus,checkpoint_interval_s,checkpoint_cost_s"
    short = [f"short-{i},{3600 + 60 * i},1200,1,0,60" for i in range(200)]
    trace.write_text("\n".join([header, "wide,0,36000,8,0,60", *short]))
    args = [str(trace), "--fleet", "1x8", "--policy", "brim", "--sweep", "gpus=24,32"]
    answer = data(args, capsys)
    small, large = cast(list[dict[str, Any]], answer["runs"])
    assert small["mean_first_wait_h"] < 0.01 * small["mean_jct_h"], "which would have been enough"
    assert small["delay_share"] < 0.1 < small["by_size"]["5-8"]["delay_share"]
    assert large["by_size"]["5-8"]["delay_share"] < 0.1
    assert answer["enough_gpus"] == {"brim": 32}
    assert main(["simulate", *args]) == YES
    assert f"{100 * small['by_size']['5-8']['delay_share']:.1f} %" in capsys.readouterr().out


def test_a_page_of_charts_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    data([str(EXAMPLES / "small.csv"), "--policy", "fifo", "--html", str(page)], capsys)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_help_does_not_load_numpy_or_plotly() -> None:
    code = "import sys\nfrom brimful.cli.main import main\nmain(['simulate', '--help'])\n"
    code += "sys.exit(bool({'numpy', 'plotly'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_faults_come_from_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    args = [
        str(EXAMPLES / "small.csv"),
        "--policy",
        "fifo",
        "--faults",
        "node_losses_per_day=2,failed_starts=0.1",
    ]
    first, again = (data([*args, "--seeds", "3"], capsys)["runs"] for _ in range(2))
    assert isinstance(first, list)
    assert isinstance(again, list)
    assert [run["makespan_h"] for run in first] == [run["makespan_h"] for run in again]
    assert len({run["makespan_h"] for run in first}) > 1, "another seed breaks other things"
    assert any(run["lost_gpu_h"] > 0 for run in first)


def test_a_part_of_a_policy_can_be_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    without = "brim?preempt=none&move=0"
    runs = data([str(EXAMPLES / "small.csv"), "--policy", "brim", "--policy", without], capsys)["runs"]
    assert isinstance(runs, list)
    assert [run["policy"] for run in runs] == ["brim", without]
    assert runs[0]["preemptions"] > 0
    assert runs[1]["preemptions"] == 0


def test_a_narrow_terminal_gets_the_columns_one_below_the_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns, tables in ((80, 3), (120, 2)):  # the last is by class
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["simulate", SMALL, "--policy", "fifo", "--policy", "brim"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(len(line) for line in lines if line[:4] in ("poli", "fifo", "brim")) <= columns
        assert sum(line.startswith("policy") for line in lines) == tables


def test_seeds_and_failed_jobs_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    faults = ["--faults", "failed_starts=0.4", "--seeds", "2"]
    assert main(["simulate", SMALL, "--policy", "fifo", *faults]) == 0
    out = capsys.readouterr().out
    assert "seed" in out.splitlines()[2]
    out = " ".join(out.split())
    runs = cast(list[dict[str, Any]], data([SMALL, "--policy", "fifo", *faults], capsys)["runs"])
    for run in runs:
        who = f"fifo, seed {run['seed']}"
        job, reason = next(iter(run["failed_first"].items()))
        assert words("sim.failed", who=who, jobs=count("job", run["failed"]), job=job, reason=reason) in out
    assert all(run["finished"] + run["failed"] == run["jobs"] for run in runs)


def test_a_page_of_a_sweep_shows_every_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly")
    page = tmp_path / "page.html"
    args = ["--policy", "priority", "--sweep", "gpus=4,8"]
    assert main(["simulate", SMALL, *args, "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "priority, 4 GPUs" in text
    assert "priority, 8 GPUs" in text
    assert list(tmp_path.iterdir()) == [page], "nothing half written stays behind"


def test_classes_are_told_apart(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["simulate", SMALL, "--policy", "fifo", "--policy", "brim"]) == YES
    lines = capsys.readouterr().out.splitlines()
    header = next(line for line in lines if "urgent JCT" in line)
    assert header.split()[1::2] == ["urgent", "normal", "background"]
    assert max(map(len, lines)) <= 80
    fifo, brim = cast(
        list[dict[str, dict[str, dict[str, float]]]],
        data([SMALL, "--policy", "fifo", "--policy", "brim"], capsys)["runs"],
    )
    assert sum(some["jobs"] for some in fifo["by_class"].values()) == 12
    assert brim["by_class"]["urgent"]["mean_jct_h"] < fifo["by_class"]["urgent"]["mean_jct_h"]


def test_jobs_that_never_ran_are_gathered_by_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job,submit_s,run_s,gpus\n" + "".join(f"wide-{i},0,60,9\n" for i in range(20)))
    assert main(["simulate", str(trace), "--policy", "priority"]) == YES
    said = capsys.readouterr().out
    assert len([line for line in said.splitlines() if "wide-" in line]) == 1
    (run,) = cast(list[dict[str, Any]], data([str(trace), "--policy", "priority"], capsys)["runs"])
    codes = run["never_ran_codes"]
    assert len(codes) == 20
    assert {(why["code"], why["gpus"]["n"]) for why in codes.values()} == {("scheduler.too_wide_node", 9)}
    (reason,) = {*run["never_ran"].values()}
    many = count("job", 20)
    assert words("sim.never_ran.many", who="priority", jobs=many, job="wide-0", reason=reason) in " ".join(
        said.split()
    )


def test_more_seeds_without_chance_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    found = data([SMALL, "--seeds", "3"], capsys)
    assert len(cast(list[object], found["runs"])) == 1
    assert found["note_codes"] == [{"code": "sim.seeds_without_faults"}]


def test_a_made_up_trace_brings_its_own_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert data(["synthetic:philly?jobs=50&gpus=20"], capsys)["gpus"] == 20


def test_a_page_is_refused_before_the_runs_where_plotly_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brimful.sim.charts.find_spec", lambda name: None)
    monkeypatch.setattr("brimful.cli.operate.simulate.rehearse", lambda *a, **b: pytest.fail("it ran"))
    assert main(["simulate", SMALL, "--html", "x.html"]) == WORLD_FAILED
    assert "pip install 'brimful[report]'" in capsys.readouterr().err


def test_a_faster_gpu_type_is_told_in_the_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job,submit_s,run_s,gpus,gpu,rate\na,0,7200,1,old|new,1|2\n")
    for fleet, hours in (("1x1:old", 2.0), ("1x1:new", 1.0), ("1x1:old+1x1:new", 1.0)):
        (run,) = cast(
            list[dict[str, float]], data([str(trace), "--fleet", fleet, "--policy", "brim"], capsys)["runs"]
        )
        assert run["makespan_h"] == pytest.approx(hours)
    trace.write_text("job,submit_s,run_s,gpus,gpu,rate\na,0,7200,1,old|new,1|2|3\n")
    check_refused([str(trace), "--fleet", "1x1:old"], capsys, "sim.numbers_per_type", "row 2", "rate", 3, 2)


def test_a_sweep_of_one_type_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    found = data([SMALL, "--fleet", "3x4:old+2x8:new", "--sweep", "new=0,8,32"], capsys)
    runs = cast(list[dict[str, object]], found["runs"])
    assert [run["gpus"] for run in runs] == [12, 20, 44]
    assert [run["fleet"] for run in runs] == ["3 x 4 old", "3 x 4 old + 1 x 8 new", "4 x 8 new + 3 x 4 old"]


def test_fleets_that_whole_nodes_do_not_allow_are_named_and_run_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = data([SMALL, "--sweep", "gpus=6,7,8,13"], capsys)
    assert [run["gpus"] for run in cast(list[dict[str, int]], found["runs"])] == [8, 12]
    assert found["note_codes"] == [
        say("sim.sweep_rounded", asked="6, 7", gpus=count("gpu", 8)).as_dict(),
        say("sim.sweep_rounded", asked="13", gpus=count("gpu", 12)).as_dict(),
    ]
    found = data([SMALL, "--fleet", "3x4:old+2x8:new", "--sweep", "new=0,30"], capsys)
    assert found["note_codes"] == [say("sim.sweep_rounded", asked="30", gpus=count("gpu", 32)).as_dict()]


def test_a_sweep_always_says_on_how_many_gpus_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"jobs": count("job", 12), "traces": SMALL}
    assert main(["simulate", SMALL, "--sweep", "gpus=12"]) == YES
    out = capsys.readouterr().out
    heading = words("sim.heading", **values, gpus=count("gpu", 12), fleet="3 x 4 gpu")
    assert heading in " ".join(out.split())
    assert words("sim.col_gpus") in out.split("\n\n")[1].split()
    assert main(["simulate", SMALL, "--sweep", "gpus=4,8,12"]) == YES
    heading = words("sim.heading_sweep", **values, sizes="4, 8, 12", fleet="2 x 4 gpu")
    assert heading in " ".join(capsys.readouterr().out.split())


def test_what_enough_means_is_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["simulate", SMALL, "--sweep", "gpus=8", "--policy", "fifo"]) == YES
    last = capsys.readouterr().out.rstrip().split("\n\n")[-1]
    assert " ".join(last.split()) == words("sim.enough.none", policy="fifo", most=Percent(0.1))
    assert max(map(len, last.splitlines())) <= 80


@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("plotly", ["simulate", SMALL, "--html", "x.html"]),
        ("numpy", ["simulate", *FILL]),
        (
            "matplotlib",
            ["sweep", str(EXAMPLES / "nanogpt/train_gpt2.py"), "--gpu", "4070", "--plot", "x.svg"],
        ),
    ],
)
def test_a_missing_package_is_the_environments_fault(module: str, args: list[str], tmp_path: Path) -> None:
    code = f"""import sys; sys.modules[{module!r}] = None
import importlib.util; find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *of: None if name == {module!r} else find(name, *of)
from brimful.cli.main import main; sys.exit(main(sys.argv[1:]))"""
    ran = subprocess.run(
        [sys.executable, "-c", code, *args, "--json"], cwd=tmp_path, capture_output=True, check=False
    )
    assert ran.returncode == WORLD_FAILED
    assert json.loads(ran.stdout)["error"]["code"] == "not_installed"


def test_a_fleet_of_many_kinds_is_told_in_each_language(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = "+".join(f"1x{gpus}" for gpus in range(1, 7))
    assert main(["simulate", SMALL, "--fleet", fleet, "--lang", "de"]) == YES
    assert "+ 2 weitere Arten" in " ".join(capsys.readouterr().out.split())


def test_a_mistyped_card_of_the_fleet_is_refused_and_the_likely_one_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = str(Path(__file__).resolve().parents[2] / "examples" / "small.csv")
    assert main(["simulate", trace, "--fleet", "2x4:h101", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "unknown_gpu"
    assert "h100-sxm-80gb" in error["hint"]
    assert main(["simulate", trace, "--fleet", "2x4:my-h101", "--json"]) == 0
