"""The GPUs of this machine, read from its driver at start. Whatever it answers, the server starts."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from brimful.adapters.engines.devices import Device
from brimful.errors import BrimfulError, Said, WorldFailed
from brimful.language import Plain, Sentence, say, verbatim
from brimful.meter.nvml import problem_said, read_gpus
from brimful.meter.samples import GpuSample
from brimful.units import MIB

log = logging.getLogger("brimful")

TIMEOUT_S = 10  # a slower driver is stuck
USERS_S = 5.0  # how often to ask who uses its GPUs
USER_BYTES = 512 * MIB  # of GPU memory: a process with less does not count as a user


class Detected(NamedTuple):
    devices: list[Device]
    problems: dict[str, Said]  # of a card, or of the whole driver
    is_broken: bool = False  # a driver exists but does not answer: slots must not replace its GPUs


def detect() -> Detected:
    """Every card the driver lists; problems are logged and shown in the fleet."""
    try:
        seen = _ask_driver()
    except BrimfulError as error:
        if error.code == "no_driver":
            return Detected([], {})  # most laptops
        log.warning("GPUs cannot be found: %s; %s", error.problem, error.hint)
        is_broken = error.code == "nvml_failed"
        return Detected([], {"driver": error.said} if is_broken else {}, is_broken)
    problems: dict[str, Said] = {
        str(_name(each)): say("server.gpu_problem", gpu=_name(each), problem=problem_said(each.problem))
        for each in seen
        if each.problem
    }
    for problem in problems.values():
        log.warning("%s; nothing starts on it", problem)
    return Detected(_devices(seen), problems)


class Users:
    """The processes that use each GPU, read from the driver every few seconds.

    Programs that draw on the screen, and those with little memory, do not block a GPU.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._asked = clock, float("-inf")
        self._found: dict[str, list[int]] = {}

    def __call__(self) -> Mapping[str, Collection[int]]:
        if self._clock() - self._asked >= USERS_S:
            try:
                seen = _ask_driver()
            except BrimfulError:
                seen = []  # driver problems were reported at start, and jobs report them too
            self._found = {each.device: pids for each, pids in _used(seen) if pids}
            self._asked = self._clock()
        return self._found


def _used(seen: list[GpuSample]) -> Iterator[tuple[Device, list[int]]]:
    by_name = {str(each.index) if each.mig is None else each.uuid: each for each in seen}
    for device in _devices(seen):
        using = by_name[device.device].processes or ()
        yield (
            device,
            [each.pid for each in using if each.kind == "compute" and (each.used_bytes or 0) >= USER_BYTES],
        )


def _devices(seen: list[GpuSample]) -> list[Device]:
    sliced = {each.index for each in seen if each.mig is not None}
    return [
        Device(
            device=str(each.index) if each.mig is None else each.uuid,
            name=each.name,
            problem=str(problem_said(each.problem)) if each.problem else "",
            is_slice=each.mig is not None,
        )
        for each in seen
        if each.mig is not None or each.index not in sliced  # a card divided into slices is not itself a card
    ]


def _name(each: GpuSample) -> Sentence:
    gpu = f"GPU {each.index}" + (f" ({each.name})" if each.name else "")
    return verbatim(gpu) if each.mig is None else say("server.slice", mig=Plain(each.mig), gpu=gpu)


def _ask_driver() -> list[GpuSample]:
    """In a separate thread: a hanging driver cannot be interrupted and must not block the start."""
    answers: queue.SimpleQueue[list[GpuSample] | BrimfulError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(read_gpus(time.time()))
        except BrimfulError as error:
            answers.put(error)

    threading.Thread(target=ask, name="nvml", daemon=True).start()
    try:
        answer = answers.get(timeout=TIMEOUT_S)
    except queue.Empty:
        raise WorldFailed(say("server.driver_silent", timeout_s=TIMEOUT_S), code="nvml_failed") from None
    if isinstance(answer, BrimfulError):
        raise answer
    return answer
