"""A run that holds a card and finishes no step: told, or stopped where the user said so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.language import Seconds, Sentence, Size, say
from brimful.meter.idle import IdleWatch, held_by, idle_said
from brimful.meter.nvml import read_gpus
from brimful.meter.runtime import Live, Place
from brimful.meter.samples import GpuSample, ProcessSample, RunSample, StepSample
from brimful.units import GIB
from tests.fake_nvml import FakeNvml, a_card
from tests.patience import PATIENCE_S

MARK = "BRIMFUL_RUN=t"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def a_watch(
    *, stops: bool = True, holds: int | None = 4 * GIB, after_s: float = 60.0
) -> tuple[IdleWatch, Clock, list[Sentence]]:
    """A watch on this very process, by a clock that stands still."""
    clock = Clock()
    said: list[Sentence] = []

    def look() -> list[GpuSample] | None:
        held = (ProcessSample(pid=os.getpid(), used_bytes=holds),)
        return None if holds is None else [GpuSample(at_s=0, index=0, processes=held)]

    watch = IdleWatch(after_s, stops=stops, tell=said.append, look=look, clock=clock)
    watch.begin(MARK)
    watch._carries = lambda pid: pid == os.getpid()  # type: ignore[method-assign]
    return watch, clock, said


@pytest.mark.parametrize(
    "line",
    [
        b"iter 12: loss 3.1, time 90.00ms, mfu 12.00%\n",
        b"step 3\n",
        b" 12%|##  | 12/100 [00:10<01:20, 1.1it/s]\r",
    ],
    ids=["nanoGPT", "a step", "tqdm"],
)
def test_a_run_that_stepped_and_then_did_not_is_stopped(line: bytes) -> None:
    watch, clock, _ = a_watch()
    assert watch(line[:9]) is None
    assert watch(line[9:]) is None  # in two pieces
    clock.now_s += 59
    assert watch(b"") is None
    clock.now_s += 2

    assert watch(b"") == say("meter.idle_bytes", quiet=Seconds(61.0), held=Size(4 * GIB))


def test_new_steps_keep_it_alive_and_the_same_line_again_does_not() -> None:
    watch, clock, _ = a_watch()
    for step in range(5):
        assert watch(b"step %d\n" % step) is None
        clock.now_s += 50
    assert watch(b"step 4\n") is None
    clock.now_s += 20

    assert watch(b"still waiting for a lock\n") is not None


def test_what_it_holds_decides_and_no_step_at_all_tells_nothing() -> None:
    for holds, stepped, stopped in ((0, True, False), (None, True, True), (4 * GIB, False, False)):
        watch, clock, said = a_watch(holds=holds)
        watch(b"step 1\n" if stepped else b"loading shards\n")
        clock.now_s += 100
        assert (watch(b"") is not None) is stopped
        assert bool(said) is not stepped
    assert said[0].code == "meter.no_step_seen"


def test_told_once_for_each_idle_time_where_it_shall_not_be_stopped() -> None:
    watch, clock, said = a_watch(stops=False)
    for step in (1, 2):
        watch(b"step %d\n" % step)
        for _ in range(3):
            clock.now_s += 100
            assert watch(b"") is None

    assert len(said) == 2


def test_a_meters_sample_is_a_step_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    watch, clock, _ = a_watch()
    watch(b"step 1\n")
    place = Place()
    clock.now_s += 55
    run = RunSample(at_s=900.0, pid=os.getpid(), host="h")
    place.leave(run, StepSample(at_s=clock.now_s, step=2, step_s=1.0))
    clock.now_s += 10
    assert watch(b"") is None
    clock.now_s += 51

    assert watch(b"") is not None


def test_a_process_on_the_machine_is_told_idle_by_its_steps_not_by_utilization(fake_nvml: FakeNvml) -> None:
    """The card is 97 % “utilized”, the process reports no step for an hour."""
    me = os.getpid()
    fake_nvml.show(a_card(busy=97, processes=[(me, 9 * GIB, "compute")]))
    run = RunSample(at_s=0.0, pid=me, host="h")
    stuck = Live(pid=me, run=run, step=StepSample(at_s=100.0, step=812, step_s=1.0))

    held = held_by({me}, read_gpus(3700.0))

    idle = idle_said(stuck, held_bytes=held, now_s=3700.0)
    assert idle is not None
    assert idle.as_dict() == {
        "code": "meter.idle_holding_bytes",
        "age": 3600.0,
        "held": 9 * GIB,
        "since": {"code": "meter.last_step", "n": 812},
    }
    assert idle_said(stuck, held_bytes=held, now_s=130.0) is None
    assert idle_said(stuck, held_bytes=0, now_s=3700.0) is None


def test_the_command_stops_it_and_passes_its_end_on(tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text("import time\nprint('step 1', flush=True)\ntime.sleep(600)")
    command = ["run", "--json", "--stop-idle=1s", "--", sys.executable, "hang.py"]
    done = subprocess.run(
        [sys.executable, "-m", "brimful.cli.main", *command],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip

    assert done.returncode == 143
    reason = json.loads(done.stdout)["data"]["reason"]
    assert (reason["code"], reason["why"]["code"]) == ("guard.stopped", "meter.idle")
