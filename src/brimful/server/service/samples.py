"""What jobs measure about themselves, as far as it is plausible: each lease's newest sample, and its course.

A Meter in the job writes it and the job's engine reads it; nobody has verified it. It is kept in memory,
separate from the event log, which must not grow with every job's steps; the course is saved to a file now and
then, so that it survives a restart.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from brimful.adapters.capabilities import GpuUse, KeepsSamples, SeesGpus
from brimful.adapters.files import open_to_write
from brimful.client.answers import MeasuredAnswer
from brimful.client.course_answers import CourseAnswer, PointAnswer
from brimful.errors import BadInput, BrimfulError, Said
from brimful.fleet.state import JobState, Lease
from brimful.job import read_plain
from brimful.language import Quoted, Seconds, say, told, verbatim
from brimful.language.printable import printable
from brimful.meter.idle import idle_said
from brimful.meter.runtime import Live, read_said
from brimful.meter.samples import RunSample, StepSample, source_said
from brimful.server.service.course import Course

log = logging.getLogger("brimful")

MAX_LEASES = 10_000  # then the oldest are dropped
MAX_COURSES = 2_000  # 3 KB each
COURSES_BYTES = 64 << 20
TEXT_CHARS = 120
AHEAD_S = 300  # clocks differ; anything further in the future was not measured
LARGEST = 1 << 62

_SHOWN = MeasuredAnswer.__annotations__.keys() - {"at_s"}
_OF_STEP = [each.name for each in fields(StepSample) if each.name in _SHOWN]
_OVER_TIME = [name for name in PointAnswer.__annotations__ if name != "at_s"]
_OF_RUN = [each.name for each in fields(RunSample) if each.name in _SHOWN]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One sample, reduced to what is shown. All numbers are finite, and none is negative."""

    at_s: float
    over: bool  # the Meter was closed
    facts: Mapping[str, Any]  # the fields of _OF_STEP and _OF_RUN

    def view(self, lease: str, *, running: bool, now_s: int) -> MeasuredAnswer:
        said, working = self._live(), running and not self.over
        idle = idle_said(said, held_bytes=self.facts["reserved_bytes"], now_s=now_s) if working else None
        shown = {
            "lease": lease,
            **self.facts,
            "peak_source": told(source_said(self.facts["peak_source"])),
            "at_s": int(self.at_s),
            "age_s": max(0, now_s - int(self.at_s)),
            "fresh": working and said.fresh(now_s),
            "over": self.over,
            "idle": told(idle) if idle else None,
        }
        return cast("MeasuredAnswer", shown)

    def _live(self) -> Live:
        run = RunSample(at_s=self.at_s, pid=0, host="")
        number, step_s = self.facts["step"], self.facts["step_s"]
        step = None if number is None else StepSample(at_s=self.at_s, step=number, step_s=step_s or 0.0)
        return Live(pid=0, run=run, step=step)


class Samples:
    """The newest of each lease. `read` opens files; `of` and `view` use only memory, under any lock."""

    def __init__(self, engines: Mapping[str, object]) -> None:
        self._engines = engines
        self.reads = 0  # so far: what was shown before the last one may be out of date
        self._lock = threading.Lock()
        self._newest: dict[str, Measured | Said] = {}  # or why there is none
        self._warned: dict[str, Said] = {}
        self._courses: dict[str, Course] = {}
        self._use: dict[str, Mapping[tuple[str, int], GpuUse]] = {}  # by site

    def read(self, leases: Iterable[Lease], *, now_s: int) -> None:
        """Read what these have measured. Implausible values are not shown."""
        for lease in leases:
            engine = self._engines.get(lease.site)
            if not isinstance(engine, KeepsSamples):
                continue
            found: Measured | Said = say("server.no_sample_yet")
            try:
                text = engine.sample(lease.lease)
                if text is not None:
                    found = parse_sample(text, job=lease.job, now_s=now_s)
            except BrimfulError as error:
                found = self._warn(lease, error.said)
            except (OSError, ValueError) as error:
                found = self._warn(lease, say("server.bad_sample", why=verbatim(str(error)[:200])))
            with self._lock:
                _keep(self._newest, lease.lease, found)
                self.reads += 1
                if isinstance(found, Measured) and found.facts["step"] is not None:
                    course = self._courses.get(lease.lease) or Course(1 + len(_OVER_TIME))
                    numbers = [found.facts[name] for name in _OVER_TIME]
                    course.add([found.at_s, *(math.nan if each is None else each for each in numbers)])
                    _keep(self._courses, lease.lease, course, most=MAX_COURSES)

    def read_gpus(self) -> None:
        """Read the current GPU use from the drivers of all sites, replacing the previous values."""
        for site, engine in self._engines.items():
            if isinstance(engine, SeesGpus):
                use = engine.gpu_use()
                with self._lock:
                    self._use[site] = use

    def gpu(self, site: str, node: str, gpu: int) -> GpuUse:
        with self._lock:
            return self._use.get(site, {}).get((node, gpu), GpuUse(None, None))

    def _warn(self, lease: Lease, problem: Said) -> Said:
        """Once per lease: a job that writes nonsense must not fill the server's log."""
        with self._lock:
            is_news = lease.lease not in self._warned
            _keep(self._warned, lease.lease, problem)
        if is_news:
            log.warning("%s: %s", lease.lease, problem)
        return problem

    def is_known(self, lease: Lease) -> bool:
        """Whether reading it again would tell nothing new for the moment."""
        with self._lock:
            found = self._newest.get(lease.lease)
        return found is not None and (lease.ended_s is None or (isinstance(found, Measured) and found.over))

    def view(self, state: JobState, *, now_s: int) -> tuple[MeasuredAnswer | None, str]:
        """Of the job's newest lease, and if that is None, why; empty if nobody looked."""
        if not state.leases:
            return None, ""
        last = state.leases[-1]
        with self._lock:
            found = self._newest.get(last.lease)
        if not isinstance(found, Measured):
            return None, told(found) if found else ""
        running = last.ended_s is None and last.started_s is not None
        return found.view(last.lease, running=running, now_s=now_s), ""

    def course(self, state: JobState) -> CourseAnswer:
        """Of the job's newest lease, since somebody first looked."""
        last = state.leases[-1].lease if state.leases else None
        with self._lock:
            points = [[*each] for each in self._courses.get(last or "", ())]
        shown = [
            {"at_s": int(at_s), **{k: _known(k, n) for k, n in zip(_OVER_TIME, numbers, strict=True)}}
            for at_s, *numbers in points
        ]
        return {"lease": last, "points": cast("list[PointAnswer]", shown)}

    def save_courses(self, path: Path) -> None:
        """So that a restart continues where it was; a crash loses what was measured since the last save."""
        with self._lock:
            said = {lease: course.as_record() for lease, course in self._courses.items()}
        if not said:
            return
        new = path.with_suffix(".new")
        with open_to_write(new, os.O_CREAT | os.O_TRUNC) as file:
            file.write(json.dumps({"numbers": _OVER_TIME, "leases": said}).encode())
        new.replace(path)

    def load_courses(self, path: Path) -> None:
        """Does nothing without a file, or with one of a release that measured something else."""
        try:
            said = json.loads(read_plain(path, below=path.parent, most_bytes=COURSES_BYTES))
            if said["numbers"] != _OVER_TIME:
                return
            wide = 1 + len(_OVER_TIME)
            found = {str(lease): Course.from_record(each, wide) for lease, each in said["leases"].items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("%s: %s", path, error)
            return
        with self._lock:
            self._courses = found | self._courses

    def step_s(self, lease: Lease) -> float | None:
        """When its last step ended, or when its Meter started; None if no Meter is active."""
        with self._lock:
            found = self._newest.get(lease.lease)
        return found.at_s if isinstance(found, Measured) and not found.over else None

    def mfu(self, lease: Lease, *, now_s: int) -> float | None:
        """While it is fresh."""
        with self._lock:
            found = self._newest.get(lease.lease)
        if not isinstance(found, Measured) or lease.started_s is None:
            return None
        shown = found.view(lease.lease, running=True, now_s=now_s)
        return shown["mfu"] if shown["fresh"] else None


def _known(name: str, number: float) -> float | None:
    if math.isnan(number):
        return None
    return int(number) if name in ("step", "peak_reserved_bytes") else number


def _keep(those: dict[str, Any], lease: str, value: object, *, most: int = MAX_LEASES) -> None:
    those.pop(lease, None)
    those[lease] = value
    if len(those) > most:
        del those[next(iter(those))]


def parse_sample(text: bytes, *, job: str, now_s: int) -> Measured:
    """What is shown of a sample; raises if anything in it is impossible."""
    said = read_said(text)
    if said.run.job != job:
        raise BadInput(say("server.sample_of_another", job=job))
    last: RunSample | StepSample = said.step or said.run
    at_s = _number("at_s", last.at_s)
    assert at_s is not None
    if at_s > now_s + AHEAD_S:
        raise BadInput(say("server.sample_from_future", ahead=Seconds(at_s - now_s)))
    facts = {name: _fact(name, getattr(said.run, name)) for name in _OF_RUN}
    facts |= {name: None if said.step is None else _fact(name, getattr(said.step, name)) for name in _OF_STEP}
    return Measured(at_s=at_s, over=said.end is not None, facts=facts)


def _fact(name: str, value: str | float | None) -> str | float | None:
    # Only printable text: half of a surrogate pair would break the answer that contains it.
    return printable(value[:TEXT_CHARS]) if isinstance(value, str) else _number(name, value)


def _number(name: str, value: float | None) -> float | None:
    if value is not None and not 0 <= value < LARGEST:  # also rejects infinity and NaN
        raise BadInput(say("server.sample_value", name=name, value=Quoted(value)))
    return value
