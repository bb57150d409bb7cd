"""Parts of a step by two clocks: the program's, and that of a device which works behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brimful.meter.timeline import PAUSE, Timeline


class Device:
    """A queue of events. It passes them when told to, at times of its own."""

    def __init__(self, times_s: list[float]) -> None:
        self._times: Iterator[float] = iter(times_s)
        self.passed_s = 0.0

    def record(self) -> FakeEvent:
        return FakeEvent(self, next(self._times))


class FakeEvent:
    def __init__(self, device: Device, at_s: float) -> None:
        self._device, self.at_s = device, at_s

    def query(self) -> bool:
        return self.at_s <= self._device.passed_s

    def elapsed_time(self, later: FakeEvent) -> float:
        assert later.query(), "asked before the device was there: it would wait"
        return (later.at_s - self.at_s) * 1000


def test_the_two_clocks_tell_different_things_and_nobody_waits() -> None:
    # The program queues a step in 0.3 s; the device takes 2 s for it, and does not notice the wait for data.
    host = iter([0.0, 0.1, 0.2, 0.25, 0.3])
    device = Device([0.0, 0.0, 0.1, 0.9, 2.0])
    timeline = Timeline(device.record, clock=lambda: next(host))
    timeline.switch("forward")
    timeline.switch("backward")
    timeline.switch("data")
    lap = timeline.cut()
    device.passed_s = 1.9
    early = lap.passed
    device.passed_s = 2.0
    assert (early, lap.passed) == (False, True)
    assert lap.host_s() == pytest.approx({"other": 0.1, "forward": 0.1, "backward": 0.05, "data": 0.05})
    assert lap.device_s() == pytest.approx({"other": 0.0, "forward": 0.1, "backward": 0.8, "data": 1.1})


def test_the_next_step_begins_where_the_last_one_ended() -> None:
    host = iter([0.0, 1.0, 2.0, 5.0])
    timeline = Timeline(clock=lambda: next(host))
    timeline.switch("forward")
    assert sum(timeline.cut().host_s().values()) == 2.0
    assert timeline.cut().host_s() == {"other": 3.0}


def test_what_turns_out_to_be_an_evaluation_is_renamed() -> None:
    host = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    timeline = Timeline(clock=lambda: next(host))
    timeline.switch("forward")
    since = timeline.at
    timeline.switch("data")
    timeline.rename(since, PAUSE + "evaluation")
    timeline.switch("other")
    lap = timeline.cut()
    assert lap.host_s() == {"other": 2.0, "pause evaluation": 2.0}
    assert lap.device_s() is None
