"""Idle: memory of a card is held, and no step is finished. Based on steps, not on the driver's utilization.

A process that reports its steps (a Meter, or lines it prints) can be called idle; one that reports none
cannot, however quiet the card: it may be loading, compiling or evaluating.

In hindsight there are only samples of the card. `card_level` is the one rule for them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from brimful.errors import BrimfulError
from brimful.language import Seconds, Sentence, Size, say
from brimful.meter.logs import find_log_lines
from brimful.meter.runtime import Live, live
from brimful.meter.samples import GpuSample

IDLE_S = 600.0
BUSY_FRAC = 0.01  # below this a card does nothing
GAP_S = 300  # a shorter rest between two busy times is a save, an evaluation or loading the next file
STARVED_FRAC = 0.2  # fewer than one SM in five has work: the card waits for its program
# Kernels that spin in a deadlock show 100 % utilization and draw little more power than an idle card.
AT_REST = 1.25  # times the power of the same card at rest
# What training loops print as they progress: "step 12", "iter 12:", tqdm's "12/500 [".
_PROGRESS = re.compile(rb"\b(?:step|iter|iteration|batch)s?\b[ :=#]{0,3}(\d{1,12})|(\d{1,12})/\d{1,12} \[")
_KEPT = 4096  # bytes of output: a line may come in two pieces
_MOST_BYTES = 6 << 20
_LOOK_S = 5.0  # between looks at samples: reading them costs more than a line


def last_useful_s(*, step_s: float | None, busy_s: float | None) -> float | None:
    """When the holder of cards last did useful work: by the steps it reports, else by the driver's activity.

    Steps come first: a card can be busy with a loop that trains nothing. None if neither is known, and then
    nothing is called idle.
    """
    return busy_s if step_s is None else step_s


Level = Literal["idle", "starved", "working"]
Spans = list[tuple[int, int, Level]]  # start, end; in order, without overlap


def card_level(
    *, sm_frac: float | None, busy_frac: float | None, power_w: float | None, rest_w: float | None
) -> Level | None:
    """What a card did, by one look at it; None if the look is inconclusive.

    SM activity decides if the card reports it. Utilization says only that some kernel was running, so it is
    checked by power, against `rest_w`, that of the same card at rest.
    """
    shown = sm_frac if sm_frac is not None else busy_frac
    at_rest = power_w is not None and rest_w is not None and power_w <= AT_REST * rest_w
    if shown is None:
        return "idle" if at_rest else None
    if shown < BUSY_FRAC:
        return "idle"
    if shown < STARVED_FRAC or (sm_frac is None and at_rest):
        return "starved"
    return "working"


def as_spans(looks: Iterable[tuple[int, Level | None]], *, step_s: int) -> Spans:
    """Looks at a card in order of time. Each holds until the next one, for two steps at most."""
    spans: Spans = []
    last: tuple[int, Level | None] | None = None
    start_s = 0
    for at_s, level in looks:
        if last is not None:
            was_s, was = last
            hole = at_s - was_s > 2 * step_s
            if was is not None and (hole or level != was):
                spans.append((start_s, was_s + step_s if hole else at_s, was))
            if hole or level != was:
                start_s = at_s
        else:
            start_s = at_s
        last = (at_s, level)
    if last is not None and last[1] is not None:
        spans.append((start_s, last[0] + step_s, last[1]))
    return spans


def idle_said(
    process: Live, *, held_bytes: int | None, now_s: float, after_s: float = IDLE_S
) -> Sentence | None:
    """The message about a process that holds memory and has finished no step for this long."""
    age_s = process.age_s(now_s)
    if age_s < after_s or held_bytes == 0:
        return None
    since = say("meter.no_step") if process.step is None else say("meter.last_step", n=process.step.step)
    if held_bytes is None:
        return say("meter.idle_holding", age=Seconds(age_s), since=since)
    return say("meter.idle_holding_bytes", age=Seconds(age_s), held=Size(held_bytes), since=since)


def held_by(pids: set[int], gpus: Sequence[GpuSample]) -> int | None:
    """Bytes of all cards that these processes hold; None if the driver does not say."""
    found = [process for gpu in gpus for process in gpu.processes if process.pid in pids]
    if any(process.used_bytes is None for process in found):
        return None
    return sum(process.used_bytes or 0 for process in found)


class IdleWatch:
    """Watches one run by what it prints and by the samples of its Meters.

    `mark` is what its processes carry in their environment. `look` asks the driver; None if there is none.
    """

    def __init__(
        self,
        after_s: float,
        *,
        stops: bool,
        tell: Callable[[Sentence], None],
        look: Callable[[], Sequence[GpuSample] | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._after_s, self._stops, self._tell, self._look, self._clock = after_s, stops, tell, look, clock
        self.begin("")

    def begin(self, mark: str) -> None:
        """Another try: what was seen of the last one does not count."""
        self._mark = mark.encode()
        self._last_s = self._looked_s = self._clock()
        self._progress: object = None
        self._steps = self._told = False
        self._text = b""

    def __call__(self, fresh: bytes) -> Sentence | None:
        """The reason to stop it, or None. A mere notice is printed once per idle time."""
        now_s = self._clock()
        self._read(fresh, now_s)
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._sampled()
        quiet_s = now_s - self._last_s
        if quiet_s < self._after_s or self._told:
            return None
        self._told = True
        if not self._steps:
            self._tell(say("meter.no_step_seen", quiet=Seconds(quiet_s)))
            return None
        gpus = self._look()
        held = None if gpus is None else held_by(self._pids(), gpus)
        if held == 0:
            self._last_s, self._told = now_s, False  # it does not keep the card from others
            return None
        if held is None:
            idle = say("meter.idle", quiet=Seconds(quiet_s))
        else:
            idle = say("meter.idle_bytes", quiet=Seconds(quiet_s), held=Size(held))
        if self._stops:
            return idle
        self._tell(idle)
        return None

    def _read(self, fresh: bytes, now_s: float) -> None:
        if not fresh:
            return
        self._text = (self._text + fresh)[-_KEPT:]
        found = _PROGRESS.findall(self._text)
        known = find_log_lines(self._text.decode("utf-8", "replace"))
        progress = (found[-1:], [(line.framework, line.step) for line in known])
        if (found or known) and progress != self._progress:
            self._progress = progress
            self._stepped(now_s)

    def _sampled(self) -> None:
        with suppress(BrimfulError):
            for process in live():
                step = process.step
                if step is not None and self._carries(process.pid) and step.at_s > self._last_s:
                    self._stepped(step.at_s)

    def _stepped(self, at_s: float) -> None:
        self._last_s, self._steps, self._told = at_s, True, False

    def _pids(self) -> set[int]:
        return {int(p.name) for p in Path("/proc").glob("[0-9]*") if self._carries(int(p.name))}

    def _carries(self, pid: int) -> bool:
        with suppress(OSError), Path(f"/proc/{pid}/environ").open("rb") as file:
            # A process may expose any amount of memory there: read no more than an environment can have.
            return self._mark in file.read(_MOST_BYTES).split(b"\0")
        return False
