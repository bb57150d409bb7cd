"""`brimful sweep` as people call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brimful.cli.commands import BAD_INPUT, WORLD_FAILED, YES
from brimful.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent
SWEEP = ["sweep", str(ROOT / "examples" / "nanogpt" / "train_fineweb.py"), "--gpu", "rtx-4070"]


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_chart_fits_the_terminal(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for what in (["--batch-size", "1:64"], ["--seq-len", "256:4096:256"]):
        assert main([*SWEEP, *what]) == YES
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= int(columns)
        assert "largest" in text


def test_json_has_every_point_and_the_terminal_not_more_than_it_can_show(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main([*SWEEP, "--batch-size", "1:200", "--json"])
    data = json.loads(capsys.readouterr().out)["data"]
    assert [point["value"] for point in data["points"]] == list(range(1, 201))
    main([*SWEEP, "--batch-size", "1:200"])
    assert len(capsys.readouterr().out.splitlines()) < 40


def test_a_model_by_name_needs_no_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--model", "gpt2", "--gpu", "rtx-4070", "--batch-size", "1,2", "--json"]) == YES
    assert [p["value"] for p in json.loads(capsys.readouterr().out)["data"]["points"]] == [1, 2]
    assert main(["sweep", "--gpu", "rtx-4070", "--json"]) == BAD_INPUT
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["reason"]["code"] == "configs.nothing_to_fit"


@pytest.mark.parametrize(
    ("name", "start"), [("s.png", b"\x89PNG"), ("s.svg", b"<?xml"), ("s.html", b"<!doctype html>")]
)
def test_a_picture_is_written_and_twice_the_same(name: str, start: bytes, tmp_path: Path) -> None:
    pictures = []
    for folder in ("one", "two"):
        path = tmp_path / folder / name
        path.parent.mkdir()
        assert main([*SWEEP, "--batch-size", "1:32", "--plot", str(path)]) == YES
        pictures.append(path.read_bytes())

    assert pictures[0].startswith(start)
    assert pictures[0] == pictures[1]
    assert b"http://www.w3.org/1999/xlink" in pictures[0] or name.endswith("png")


def test_bad_ranges_and_files_are_refused(tmp_path: Path) -> None:
    assert main([*SWEEP, "--batch-size", "9:1"]) == BAD_INPUT
    assert main([*SWEEP, "--batch-size", "1:99", "--seq-len", "64:128"]) == BAD_INPUT
    assert main([*SWEEP, "--batch-size", "1:4", "--seq-len", "64,128", "--plot", "sweep.svg"]) == BAD_INPUT
    assert main([*SWEEP, "--plot", str(tmp_path / "s.gif")]) == BAD_INPUT
    assert main([*SWEEP, "--plot", str(tmp_path / "no" / "s.png")]) == WORLD_FAILED


def test_the_axes_of_a_picture_speak_the_language() -> None:
    from matplotlib.figure import Figure

    from brimful.cli.gpu.sweep_plot import _memory, _speed
    from brimful.configs.read import read
    from brimful.fit.advice.sweep import sweep
    from brimful.language import choose
    from brimful.specs.gpu import find_gpu

    done = sweep(read(SWEEP[1]), find_gpu("rtx-4070"), "seq_len", [512, 4096], correction=None)
    figure = Figure()
    memory, speed = figure.subplots(2, 1)
    choose("de")
    _memory(memory, done)
    _speed(speed, done)
    rate = figure.axes[2]

    assert (
        speed.xaxis.get_major_formatter()(40960, 0) == rate.yaxis.get_major_formatter()(40960, 0) == "40.960"
    )
    assert memory.yaxis.get_major_formatter()(2.5, 0) == "2,5"
    assert rate.get_ylabel() == "Token/s (gepunktet)"
    box = memory.get_legend().get_bbox_to_anchor().transformed(memory.transAxes.inverted())
    assert box.x0 > 1  # beside the picture, over no line


def test_two_ranges_give_the_largest_batch_at_each_length(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SWEEP, "--batch-size", "1:40", "--seq-len", "512,1024,2048,65536"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["data"]["lengths"]

    largest = [one["largest"] for one in found]
    assert largest[:3] == sorted(largest[:3], reverse=True)
    assert largest[3] is None
    assert main([*SWEEP, "--batch-size", "1:40", "--seq-len", "1024", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["largest"] == largest[1]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert "none" in lines[6]
