"""`brimful replay` as a person and a program see it."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import brimful
from brimful.cli.commands import BAD_INPUT, NO, YES
from brimful.cli.main import main
from brimful.language import Size, words
from brimful.units import MIB
from tests.allocator.recording import Recording, a_run


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    made = a_run(Recording(), 300, seed=1)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(made.snapshot(200)))
    return path


def asked(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    main(["replay", *args, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_the_json_has_the_figures_of_the_replay(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(
        capsys, str(snapshot), "--conf", "expandable_segments:True", "--conf", "max_split_size_mb:64"
    )
    data = answer["data"]
    assert answer["ok"] is True
    for kind in ("alloc", "segment_alloc", "segment_free"):
        assert data[kind].keys() == {"right", "wrong"}
        assert data[kind]["wrong"] == 0
    for counter in ("reserved_bytes", "allocated_bytes"):
        assert data[counter]["recorded"] == data[counter]["simulated"] > 0
    assert data["events"] > 100
    assert data["peak_reserved_bytes"] >= data["peak_allocated_bytes"] > 0
    assert [row["conf"] for row in data["sweep"]] == ["", "expandable_segments:True", "max_split_size_mb:64"]


@pytest.mark.parametrize("columns", [80, 120])
def test_the_report_says_what_happened_and_what_would_help_within_the_terminal(
    columns: int, snapshot: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["replay", str(snapshot), "--capacity", "80GiB"]) == YES
    text = capsys.readouterr().out
    for said in (
        "Replayed exactly",
        "allocated  peak",
        "unused",
        "Held at the peak",
        "train.py:7 step",
        "as recorded",
    ):
        assert said in text
    assert max(map(len, text.splitlines())) <= columns


def test_advice_that_older_versions_refuse_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Recording()
    for _ in range(12):  # 120 MiB by segments of 20 (two in each), 112 by 28 (three), 128 by 64 (seven)
        made.malloc(9 * MIB)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(made.snapshot()))
    for conf, said in (("large_segment_size_mb:64", False), ("large_segment_size_mb:28", True)):
        assert main(["replay", str(path), "--conf", conf]) == YES
        assert ("recent versions" in capsys.readouterr().out) is said


def test_running_out_is_a_clear_no_with_its_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Recording()
    made.malloc(30 * MIB)
    made.malloc(40 * MIB)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(made.snapshot()))
    assert main(["replay", str(path), "--capacity", "60MiB"]) == NO
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"40 MiB .*40 MiB.*30 MiB .*60 MiB ", text)
    assert words("gpu.replay_tensors_too_large", size=Size(70 * MIB)) in text
    assert main(["replay", str(path), "--capacity", "80MiB"]) == YES


@pytest.mark.parametrize(
    "args", [["--capacity", "large"], ["--capacity", "1KiB"], ["--conf", "nonsense:1"], ["--device", "7"]]
)
def test_bad_input_is_refused_before_anything_else(
    args: list[str], snapshot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(snapshot), *args]) == BAD_INPUT
    assert "hint" in capsys.readouterr().err.lower()


def test_words_in_a_snapshot_cannot_move_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Recording()
    made.malloc(30 * MIB)
    raw = made.snapshot()
    for event in raw["device_traces"][0]:
        event["frames"] = [{"filename": "x.py", "line": 1, "name": "\x1b[2Jgone\n"}]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(raw))
    main(["replay", str(path)])
    assert "\x1b" not in capsys.readouterr().out


def test_pictures_are_written_where_asked(
    snapshot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "timeline.html"
    assert main(["replay", str(snapshot), "--html", str(page)]) == YES
    assert str(page) in capsys.readouterr().out
    assert page.stat().st_size > 100_000


def test_the_python_name_gives_the_same(snapshot: Path) -> None:
    replayed = brimful.replay(snapshot, sweep=False)
    assert replayed.wrong == 0
    assert replayed.as_dict()["events"] == replayed.events
