"""`brimful check` rehearsed on a fake card: its counters are the tape's, its clock is ours."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from brimful.cli.gpu import check as command
from brimful.cli.main import main
from brimful.language import words
from brimful.specs.gpu import find_gpu
from brimful.specs.presets import Preset, find_preset
from brimful.tracing import check
from brimful.tracing.check import FREE_FRAC, Measured, ShortRun, short_runs
from brimful.units import GIB

pytestmark = pytest.mark.torch
GPU = find_gpu("rtx-4070")


@pytest.mark.parametrize("name", ["rtx-4070", "h100", "t4"])
def test_every_run_has_room_by_the_high_end_of_its_estimate(name: str) -> None:
    gpu = find_gpu(name)
    free = gpu.memory_bytes - GIB
    runs = short_runs(gpu, free)

    assert len(runs) == 5
    assert len({each.code for each in runs}) == 5
    assert all(each.predicted.memory.device_bytes.high <= FREE_FRAC * free for each in runs)
    assert gpu.bf16 or all(each.training.dtype != "bfloat16" for each in runs)


def test_without_a_card_it_says_so_and_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "no_gpu"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A card with 8 GiB free, on which every step takes as long as the test says; models of two layers."""
    step_s = [0.1]
    ticks = count()

    def steps_take(seconds: float) -> None:
        step_s[0] = seconds

    def shallow(name: str) -> Preset:
        preset = find_preset(name)
        return replace(preset, model=replace(preset.model, layers=2))

    monkeypatch.setattr(check, "find_preset", shallow)
    monkeypatch.setattr(check, "WARM_UP", 1)
    monkeypatch.setattr(check, "TIMED", 5)
    now = SimpleNamespace(perf_counter=lambda: next(ticks) * step_s[0], time=lambda: 1.8e9)
    monkeypatch.setattr(command, "time", now)
    monkeypatch.setattr(command, "card_here", lambda: ("NVIDIA GeForce RTX 4070", 8 * GIB))
    return steps_take


def test_five_runs_are_measured_judged_and_written(
    clock: Callable[[float], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from brimful.tracing.cuda_device import cuda_device
    from brimful.tracing.session import recording

    table = tmp_path / "mine.csv"
    runs = short_runs(GPU, 8 * GIB)
    clock(runs[0].predicted.speed.step_s.likely)
    with recording(cuda_device(GPU), steps=1000):
        code = main(["check", "--to", str(table), "--source", "lab", "--json"])
    data = json.loads(capsys.readouterr().out)["data"]

    assert [each["run"] for each in data["runs"]] == [each.code for each in runs]
    assert code == (0 if data["verdict"] == "agrees" else 1)
    for each in data["runs"]:  # the closed form beside the fake card's counters
        assert abs(each["allocated"]["error"]) < 0.03
        assert abs(each["reserved"]["error"]) < 0.25
    assert abs(data["runs"][0]["step"]["error"]) < 1e-6
    assert not {"allocated", "step", "mfu"} & set(data["runs"][0]["outside"])
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {row["mem_kind"] for row in rows} == {"reserved_peak", "allocated_peak"}
    assert len(rows) == len(data["written"]) == 2 * len(runs)


def test_a_card_far_slower_than_predicted_and_one_that_runs_out_are_told(
    clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(run: ShortRun, _: object) -> Measured | None:
        memory, speed = run.predicted.memory, run.predicted.speed
        if run.code == "fp32":
            return None
        return Measured(
            allocated_bytes=round(memory.allocated_bytes.likely),
            reserved_bytes=round(memory.reserved_bytes.likely),
            steps_s=(3 * speed.step_s.high,) * 5,
        )

    monkeypatch.setattr(command, "measure", measured)

    assert main(["check", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["verdict"] == "disagrees"
    outside = {each["run"]: set(each["outside"]) for each in data["runs"]}
    assert outside.pop("fp32") == {"memory"}
    assert all({"step"} <= found <= {"step", "mfu"} for found in outside.values())
    assert main(["check"]) == 1
    text = capsys.readouterr().out
    assert words("gpu.check_disagrees", n=len(data["outside"]))[:40] in text
    assert max(len(line) for line in text.splitlines()) <= 100
