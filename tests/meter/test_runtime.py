"""The newest sample of a process is found by its owner, and nobody else's file is believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.errors import WorldFailed
from brimful.meter.runtime import Place, began, live, read_said, runtime_folder
from brimful.meter.samples import EndSample, RunSample, StepSample
from brimful.meter.sinks import Runtime

RUN = RunSample(at_s=100.0, pid=os.getpid(), host="here")
STEP = StepSample(at_s=110.0, step=3, step_s=0.5, mfu=0.25)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "brimful" / "meter"


def test_a_process_finds_what_it_left_and_its_age(folder: Path) -> None:
    place = Place()
    place.leave(RUN, None)
    place.leave(RUN, STEP)
    [found] = live()
    assert (found.pid, found.run, found.step) == (os.getpid(), RUN, STEP)
    assert found.fresh(120.0)
    assert not found.fresh(200.0)
    assert found.age_s(112.5) == 2.5
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir()] == [f"{os.getpid()}.json"]
    place.close()
    assert live() == []


def test_what_a_server_reads_is_replaced_whole_and_stays_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "lease" / "sample.json"
    path.parent.mkdir()
    sink = Runtime(path)
    sink.start(RUN)
    assert (read_said(path.read_bytes()).step, read_said(path.read_bytes()).end) == (None, None)
    sink.step(STEP)
    sink.flush()
    assert read_said(path.read_bytes()).step == STEP
    end = EndSample(at_s=120.0, steps=3, steady_steps=0, wall_s=20.0)
    sink.end(end)
    said = read_said(path.read_bytes())
    assert (said.run, said.step, said.end) == (RUN, STEP, end)
    assert [each.name for each in path.parent.iterdir()] == ["sample.json"]
    assert live() == []  # `brimful watch` has a place of its own


def test_slow_steps_stay_fresh_for_five_of_them() -> None:
    place = Place()
    place.leave(RUN, StepSample(at_s=110.0, step=3, step_s=60.0))
    assert live()[0].fresh(400.0)
    assert not live()[0].fresh(411.0)
    place.close()


def test_nothing_is_made_by_looking(folder: Path) -> None:
    assert runtime_folder(make=False) is None
    assert live() == []
    assert not folder.exists()


def test_without_a_runtime_folder_the_temporary_one_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert runtime_folder(make=True) == tmp_path / f"brimful-{os.geteuid()}" / "meter"


def test_a_folder_that_others_can_enter_is_refused(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    with pytest.raises(WorldFailed) as caught:
        live()
    assert caught.value.code == "unsafe_runtime_folder"


def test_a_link_in_its_place_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorldFailed):
        Place()


def test_a_file_of_a_process_that_ended_is_swept_away(folder: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    Place().leave(RUN, STEP)
    mine = folder / f"{os.getpid()}.json"
    said = json.loads(mine.read_text(encoding="utf-8"))
    (folder / f"{ended.pid}.json").write_text(json.dumps({**said, "pid": ended.pid}), encoding="utf-8")
    assert [found.pid for found in live()] == [os.getpid()]
    assert [path.name for path in folder.iterdir()] == [mine.name]


def test_a_pid_that_was_used_again_is_another_process(folder: Path) -> None:
    Place().leave(RUN, STEP)
    mine = folder / f"{os.getpid()}.json"
    said = json.loads(mine.read_text(encoding="utf-8"))
    mine.write_text(json.dumps({**said, "began": said["began"] - 1}), encoding="utf-8")
    assert live() == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nonsense", '{"pid": PID, "began": BEGAN, "run": {"kind": "step"}}']
)
def test_a_file_that_says_nothing_is_passed_over(folder: Path, text: str) -> None:
    Place()
    me = os.getpid()
    said = text.replace("PID", str(me)).replace("BEGAN", str(began(me)))
    (folder / f"{me}.json").write_text(said, encoding="utf-8")
    assert live() == []


def test_a_file_too_large_and_a_pipe_are_not_read(folder: Path) -> None:
    Place()
    (folder / f"{os.getpid()}.json").write_text(" " * 70_000, encoding="utf-8")
    os.mkfifo(folder / "1.json")
    assert live() == []
