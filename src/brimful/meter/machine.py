"""One look at the machine: its cards as the driver sees them, and what the processes on them report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from brimful.errors import BrimfulError
from brimful.language import Sentence, as_asked
from brimful.meter.idle import idle_said
from brimful.meter.nvml import NvidiaDriver, meaning, problem_said
from brimful.meter.runtime import Live, live
from brimful.meter.samples import GpuSample, ProcessSample, as_dict


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process on a card, and its newest sample if it has a Meter and is at work."""

    process: ProcessSample
    job: str | None
    live: Live | None
    idle: Sentence | None  # the message that it holds memory and has finished no step for long
    works_here: bool  # its MFU is for this card, not for another it also uses


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGpu:
    sample: GpuSample
    holders: tuple[Holder, ...]
    mfu: float | None  # of all that work here, together; None if none reports

    @property
    def compute(self) -> tuple[float | None, str]:
        """How hard it works, and what that measures: useful work, or only that some kernel ran."""
        if self.mfu is not None:
            return self.mfu, "mfu"
        return self.sample.busy_frac, "unknown" if self.sample.busy_frac is None else "busy"

    @property
    def label(self) -> str:
        """'0', or '0.1' for the second slice of the first card."""
        return str(self.sample.index) + ("" if self.sample.mig is None else f".{self.sample.mig}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    at_s: float
    driver: str
    cards: tuple[SeenGpu, ...]
    elsewhere: tuple[Live, ...]  # processes that report but hold no card the driver shows
    problem: BrimfulError | None = None  # why no card is seen

    def as_dict(self) -> dict[str, Any]:
        return {
            "at_s": self.at_s,
            "driver": self.driver,
            "problem": self.problem.as_dict() if self.problem else None,
            "gpus": [_card(card) for card in self.cards],
            "elsewhere": [
                {
                    "pid": each.pid,
                    **{name: getattr(each.run, name) for name in ("job", "model", "device")},
                    "step": as_dict(each.step) if each.step else None,
                }
                for each in self.elsewhere
            ],
        }


class Looker:
    """Looks as often as called; a missing driver is searched for again each time."""

    def __init__(self) -> None:
        self._driver: NvidiaDriver | None = None
        self._lock = Lock()  # a server calls from several threads

    def look(self, now_s: float) -> Machine:
        said = {each.pid: each for each in live()}
        with self._lock:
            try:
                self._driver = self._driver or NvidiaDriver()
                samples, problem = self._driver.look(now_s), None
                driver = self._driver.driver()
            except BrimfulError as error:
                self.close()
                samples, problem, driver = [], error, ""
        cards = tuple(_joined(sample, said) for sample in samples)
        seen = {holder.process.pid for card in cards for holder in card.holders}
        elsewhere = tuple(each for pid, each in said.items() if pid not in seen)
        return Machine(at_s=now_s, driver=driver, cards=cards, elsewhere=elsewhere, problem=problem)

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None


def _joined(sample: GpuSample, said: Mapping[int, Live]) -> SeenGpu:
    holders = tuple(_holder(process, sample, said.get(process.pid)) for process in sample.processes)
    known = [
        each.live.step.mfu
        for each in holders
        if each.works_here and each.live and each.live.step and each.live.step.mfu is not None
    ]
    return SeenGpu(sample=sample, holders=holders, mfu=sum(known) if known else None)


def _holder(process: ProcessSample, sample: GpuSample, said: Live | None) -> Holder:
    if said is None:
        return Holder(process=process, job=job_of(process.pid), live=None, idle=None, works_here=False)
    return Holder(
        process=process,
        job=said.run.job,
        live=said if said.fresh(sample.at_s) else None,
        idle=idle_said(said, held_bytes=process.used_bytes, now_s=sample.at_s),
        works_here=said.run.gpu_uuid in (None, sample.uuid),
    )


def job_of(pid: int) -> str | None:
    """The brimful job a process runs for, if its environment is readable."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes()[:200_000].split(b"\0")
    except OSError:
        return None
    found = next((word for word in words if word.startswith(b"BRIMFUL_JOB=")), b"")
    return found.partition(b"=")[2][:80].decode(errors="replace") or None


def _card(card: SeenGpu) -> dict[str, Any]:
    frac, kind = card.compute
    found, problem = as_dict(card.sample), card.sample.problem
    if problem:
        found |= {"problem": as_asked(problem_said(problem)), "reason": meaning(problem).as_dict()}
    found["compute"] = {"frac": frac, "kind": kind}
    found["processes"] = [
        {
            **asdict(each.process),
            "job": each.job,
            "idle": as_asked(each.idle) if each.idle else None,
            "idle_reason": each.idle.as_dict() if each.idle else None,
            "step": as_dict(each.live.step) if each.live and each.live.step else None,
        }
        for each in card.holders
    ]
    return found
