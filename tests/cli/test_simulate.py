"""`brimful simulate` at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brimful.cli.commands import BAD_INPUT, YES
from brimful.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILL = [str(EXAMPLES / "fill_nodes.csv"), str(EXAMPLES / "fill_pods.csv"), "--fill", "1.3"]


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


def test_a_fill_for_people_is_a_table_of_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *FILL, "--policy", "brim", "--seeds", "3"]) == YES
    text = capsys.readouterr().out
    assert "policy  seeds" in text
    assert "at 130 %" in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([*FILL, "--policy", "fifo"], "--policy fifo is not known here"),
        ([*FILL[:2], "--fill", "0"], "--fill 0 is out of range"),
        ([*FILL[:2], "--fill", "nan"], "--fill nan is out of range"),
        ([str(EXAMPLES / "fill_nodes.csv")], "holds no jobs"),
        ([str(EXAMPLES / "small.csv"), "--policy", "best"], "--policy best is not known here"),
        ([str(EXAMPLES / "small.csv"), "--seeds", "0"], "out of range"),
        ([str(EXAMPLES / "small.csv"), str(EXAMPLES / "small.csv")], "more than one of the files"),
    ],
)
def test_what_cannot_be_done_is_said(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *args]) == BAD_INPUT
    assert words in capsys.readouterr().err


def test_a_bad_row_ends_the_run_or_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("job,submit_s,run_s,gpus\na,0,10,1\nb,0,-1,1\nc,1,10,0\n", encoding="utf-8")
    assert main(["simulate", str(trace)]) == BAD_INPUT
    assert "row 3: run_s is '-1'" in capsys.readouterr().err
    answer = data([str(trace), "--lenient"], capsys)
    assert answer["skipped"] == {
        "rows": 2,
        "first": [f"{trace} row 3: run_s is '-1'", f"{trace} row 4: gpus is '0'"],
    }
