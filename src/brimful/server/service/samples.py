"""What jobs measure of themselves, as far as it can be believed: the newest sample of each lease, in memory.

A Meter in the job writes it, the job's engine reads it, and nobody else has checked it: it is the job's word.
It is kept apart from the log of events, whose size must not grow with the steps of everybody's training.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from brimful.adapters.capabilities import KeepsSamples
from brimful.client.answers import MeasuredAnswer
from brimful.errors import BadInput, BrimfulError, Said
from brimful.fleet.state import JobState, Lease
from brimful.language import Quoted, Seconds, say, told, verbatim
from brimful.language.printable import printable
from brimful.meter.idle import idle_said
from brimful.meter.runtime import Live, read_said
from brimful.meter.samples import RunSample, StepSample, source_said

log = logging.getLogger("brimful")

MAX_LEASES = 10_000  # kept; then the oldest go
TEXT_CHARS = 120
AHEAD_S = 300  # clocks differ; what is further in the future was not measured
LARGEST = 1 << 62

_SHOWN = MeasuredAnswer.__annotations__.keys() - {"at_s"}
_OF_STEP = [each.name for each in fields(StepSample) if each.name in _SHOWN]
_OF_RUN = [each.name for each in fields(RunSample) if each.name in _SHOWN]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One sample, cut down to what is shown. All numbers are finite, and none is negative."""

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
    """The newest of each lease. `read` opens files; `of` and `view` only memory, under whatever lock."""

    def __init__(self, engines: Mapping[str, object]) -> None:
        self._engines = engines
        self._lock = threading.Lock()
        self._newest: dict[str, Measured | Said] = {}  # or why there is none
        self._warned: dict[str, Said] = {}

    def read(self, leases: Iterable[Lease], *, now_s: int) -> None:
        """Read what these have measured. What cannot be believed is not shown."""
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

    def _warn(self, lease: Lease, problem: Said) -> Said:
        """Once for each lease: a job that writes nonsense must not fill the server's log."""
        with self._lock:
            is_news = lease.lease not in self._warned
            _keep(self._warned, lease.lease, problem)
        if is_news:
            log.warning("%s: %s", lease.lease, problem)
        return problem

    def is_known(self, lease: Lease) -> bool:
        """Whether reading it again would tell nothing that is not told within moments."""
        with self._lock:
            found = self._newest.get(lease.lease)
        return found is not None and (lease.ended_s is None or (isinstance(found, Measured) and found.over))

    def view(self, state: JobState, *, now_s: int) -> tuple[MeasuredAnswer | None, str]:
        """Of the job's newest lease, and where that is None, why; empty where nobody looked."""
        if not state.leases:
            return None, ""
        last = state.leases[-1]
        with self._lock:
            found = self._newest.get(last.lease)
        if not isinstance(found, Measured):
            return None, told(found) if found else ""
        running = last.ended_s is None and last.started_s is not None
        return found.view(last.lease, running=running, now_s=now_s), ""

    def step_s(self, lease: Lease) -> float | None:
        """When its last step ended, or when its Meter began; None where it has none that is at work."""
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


def _keep(those: dict[str, Any], lease: str, value: object) -> None:
    those.pop(lease, None)
    those[lease] = value
    if len(those) > MAX_LEASES:
        del those[next(iter(those))]


def parse_sample(text: bytes, *, job: str, now_s: int) -> Measured:
    """What is shown of a sample; an error where anything in it cannot be so."""
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
    # Of a text, what prints: half of a surrogate pair would break the answer it stands in.
    return printable(value[:TEXT_CHARS]) if isinstance(value, str) else _number(name, value)


def _number(name: str, value: float | None) -> float | None:
    if value is not None and not 0 <= value < LARGEST:  # neither is infinity or what is no number
        raise BadInput(say("server.sample_value", name=name, value=Quoted(value)))
    return value
