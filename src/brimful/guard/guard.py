"""The guard: start, and when memory runs out, re-plan and resume from the last checkpoint.

Only an out-of-memory error leads to another try. Settings that failed are never tried again, the effective
batch is never changed, and every try leaves its log.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from brimful.configs.reading import change_text
from brimful.diagnose.oom import OutOfMemory, find_out_of_memory
from brimful.errors import Refused, WorldFailed
from brimful.files import write_whole
from brimful.fit.advice.advise import Predict
from brimful.guard.checkpoints import Found, Keeper
from brimful.guard.command import Command
from brimful.guard.forecast import Forecast
from brimful.guard.process import MARK, Child, Ended
from brimful.guard.replan import (
    RUNG_UP,
    Failure,
    NextTry,
    NoTry,
    bounded,
    climbed,
    failure_of,
    halve,
    replan,
    room_bytes,
    spoken_training,
)
from brimful.language import Number, Plain, Seconds, Sentence, Several, Size, Value, as_asked, say
from brimful.language.failures import os_errors_as
from brimful.meter.idle import IdleWatch
from brimful.specs.training import Training

TRIES = 6
_MOST_FOLDERS = 10_000
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")

Ending = Literal["finished", "out_of_memory", "failed", "told_to_stop", "climbs", "idle"]
Tell = Callable[[Value], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The user's options for the guard."""

    tries: int = TRIES
    fix: bool = False
    climb: bool = False
    logs: Path = Path("brimful-runs")
    stdout: int = 1  # where the command's own output goes


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One start, and how it ended."""

    number: int
    words: tuple[str, ...]
    resumed_from: str | None
    log: str
    ended: Ending
    exit_code: int
    seconds: float
    message: dict[str, Any] | None  # the numbers in PyTorch's message


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it all ended: with the exit code of the last try."""

    exit_code: int
    why: Sentence
    folder: Path
    changed: dict[str, list[Any]]  # line -> [as in the command, as it ran last]
    tries: tuple[Try, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "exit_code": self.exit_code,
            "why": as_asked(self.why),
            "reason": self.why.as_dict(),
            "logs": str(self.folder),
            "changed": self.changed,
            "tries": [asdict(each) for each in self.tries],
        }


@dataclass(slots=True)
class _State:
    """The current settings, and what has been learned."""

    training: Training | None  # None if not even the batch is known
    lines: dict[str, Any] = field(default_factory=dict)  # changed relative to the command as given
    failures: list[Failure] = field(default_factory=list)
    failed: list[Training] = field(default_factory=list)
    tries: list[Try] = field(default_factory=list)
    resumed: Found | None = None
    climb_to: NextTry | None = None
    held: Training | None = None  # what ran well before moving up a rung


class Guard:
    """Keeps one command alive, and reports what it does."""

    def __init__(
        self,
        command: Command,
        predicted: Forecast | None,
        keeper: Keeper,
        wishes: Wishes,
        tell: Tell,
        *,
        idle: IdleWatch | None = None,
    ) -> None:
        self._command, self._predicted, self._keeper, self._wishes = command, predicted, keeper, wishes
        self._tell, self._idle = tell, idle
        self._goal = predicted.reading.training if predicted else spoken_training(command)
        self._state = _State(training=self._goal)
        self._began_s = 0.0

    def run(self) -> Outcome:
        self._judge()
        folder = new_folder(self._wishes.logs, self._command)
        self._began_s = time.time()
        for number in range(1, self._wishes.tries + 1):
            ended = self._try(number, folder)
            next_try = self._next(number, ended)
            self._journal(folder)
            if isinstance(next_try, NoTry):
                return self._outcome(next_try.why, folder)
            self._begin_again(next_try)
        raise AssertionError("the last try has no next")

    def preview(self) -> dict[str, Any]:
        """What would be started; starts nothing."""
        self._judge()
        return {"words": list(self._words()), "changed": self._changed()}

    def _judge(self) -> None:
        """Before the start: warn, or begin with settings that fit."""
        predicted = self._predicted
        if predicted is None:
            return
        self._tell(predicted.said())
        training = predicted.reading.training
        if predicted.predict(training).fits:
            return
        next_try = replan(training, predicted.predict, predicted.room.gpu, self._command)
        if isinstance(next_try, NextTry) and not next_try.change:
            self._tell(say("guard.unchanged"))  # at risk, and no option of this script would lower it
            return
        if isinstance(next_try, NextTry) and not self._wishes.fix:
            self._tell(say("guard.fix_would_start", changes=change_text(next_try.change), why=next_try.why))
        elif isinstance(next_try, NextTry):
            self._tell(say("guard.starting", changes=change_text(next_try.change), why=next_try.expected))
            self._take(next_try)
        elif self._wishes.fix:
            raise Refused(say("guard.nothing_fits", why=next_try.why), code="will_not_fit")

    def _try(self, number: int, folder: Path) -> Ended:
        state = self._state
        log = folder / f"try-{number}.log"
        started_s = time.time()

        def watch(fresh: bytes) -> Sentence | None:
            idle = self._idle(fresh) if self._idle is not None else None
            return idle or self._time_to_climb(number, started_s)

        mark = uuid4().hex
        if self._idle is not None:
            self._idle.begin(f"{MARK}={mark}")
        child = Child(self._words(), mark=mark, log=log, stdout=self._wishes.stdout)
        ended = child.run(watch if self._idle is not None or self._wishes.climb else None)
        cause = out_of_memory_of(ended)
        state.tries.append(
            Try(
                number=number,
                words=self._words(),
                resumed_from=str(state.resumed.path) if state.resumed else None,
                log=str(log),
                ended=_ending_of(ended, cause),
                exit_code=ended.exit_code,
                seconds=round(ended.seconds, 3),
                message=cause.as_dict() if cause else None,
            )
        )
        return ended

    def _next(self, number: int, ended: Ended) -> NextTry | NoTry:
        """What to start next, or why nothing."""
        state, cause = self._state, out_of_memory_of(ended)
        if ended.stopped is RUNG_UP and ended.passed_on is None and state.climb_to is not None:
            rung, state.climb_to = state.climb_to, None
            return rung
        if cause is None or ended.passed_on is not None or ended.stopped is not None:
            return NoTry(why=_over(ended, number))
        when = {"number": Plain(number), "took": Seconds(ended.seconds)}
        numbers = _numbers(cause)
        self._tell(
            say("guard.ran_out_with", **when, numbers=numbers) if numbers else say("guard.ran_out", **when)
        )
        next_try = self._after(cause)
        tries = say("guard.tries", n=number)
        if isinstance(next_try, NoTry):
            return NoTry(why=say("guard.gave_up", tries=tries, why=next_try.why))
        if number == self._wishes.tries:
            return NoTry(why=say("guard.no_try_left", tries=tries, changes=change_text(next_try.change)))
        return next_try

    def _after(self, cause: OutOfMemory) -> NextTry | NoTry:
        state = self._state
        if state.training is None:
            batch, accumulation = self._command.batch_keys
            return NoTry(why=say("guard.batch_unknown", batch=batch, accumulation=accumulation))
        state.failed.append(state.training)
        if self._predicted is not None:
            device = self._predicted.predict(state.training).memory.device_bytes.likely
            state.failures.append(failure_of(cause, device))
        if state.held is not None and state.held not in state.failed:
            change, _ = self._command.dialect.spell(state.training, state.held)
            return NextTry(change=change, training=state.held, why=say("guard.back_to_what_fit"))
        if self._predicted is None:
            return halve(state.training, self._command, failed=state.failed)
        gpu = self._predicted.room.gpu
        return replan(state.training, self._bounded(), gpu, self._command, failed=state.failed)

    def _bounded(self) -> Predict:
        assert self._predicted is not None
        room = room_bytes(self._state.failures, self._predicted.room.usable_bytes)
        return bounded(self._predicted.predict, room)

    def _time_to_climb(self, number: int, started_s: float) -> Sentence | None:
        """Once this try has left a checkpoint and a rung is left; one try is kept for coming back down."""
        state = self._state
        if not self._wishes.climb or state.training is None or self._wishes.tries - number < 2:
            return None
        assert self._goal is not None
        predict = self._bounded() if self._predicted else None
        rung = climbed(state.training, self._goal, predict, self._command, failed=state.failed)
        if rung is None or self._keeper.find(started_s) is None:
            return None
        state.climb_to, state.held = rung, state.training
        return RUNG_UP

    def _begin_again(self, next_try: NextTry) -> None:
        self._take(next_try)
        state = self._state
        again = any(word.startswith(("--init_from=resume", "--resume_from_")) for word in self._command.words)
        state.resumed = self._keeper.find(0.0 if again else self._began_s - 1)
        how = {"changes": change_text(next_try.change), "why": next_try.expected}
        if state.resumed:
            self._tell(say("guard.starting_from", path=state.resumed.path, **how))
        else:
            self._tell(say("guard.starting_over", **how))

    def _take(self, next_try: NextTry) -> None:
        self._state.lines |= next_try.lines
        self._state.training = next_try.training

    def _words(self) -> tuple[str, ...]:
        changed = self._command.saying(self._state.lines)
        resumed = self._state.resumed
        return changed.adding(resumed.words).words if resumed else changed.words

    def _changed(self) -> dict[str, list[Any]]:
        return {key: [self._command.says.get(key), then] for key, then in self._state.lines.items()}

    def _outcome(self, why: Sentence, folder: Path) -> Outcome:
        last = self._state.tries[-1]
        if last.ended != "finished" or len(self._state.tries) > 1 or self._state.lines:
            self._tell(say("guard.logs_in", why=why, folder=folder))
        return Outcome(
            exit_code=last.exit_code,
            why=why,
            folder=folder,
            changed=self._changed(),
            tries=tuple(self._state.tries),
        )

    def _journal(self, folder: Path) -> None:
        """run.json beside the logs, complete at any moment."""
        body = {
            "command": list(self._command.words),
            "changed": self._changed(),
            "tries": [asdict(each) for each in self._state.tries],
        }
        write_whole(folder / "run.json", json.dumps(body, indent=1))


def new_folder(parent: Path, command: Command) -> Path:
    """A new folder: mkdir either makes it or fails because it exists."""
    stem = re.sub(r"[^\w.-]", "_", (command.script or Path(command.words[0])).stem)[:60] or "run"
    with os_errors_as("guard.cannot_keep_logs", folder=parent):
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, _MOST_FOLDERS):
            folder = parent / f"{stem}-{number:03d}"
            with suppress(FileExistsError):
                folder.mkdir()
                return folder
    raise WorldFailed(say("guard.folder_full", folder=parent, most=Number(_MOST_FOLDERS)))


def out_of_memory_of(ended: Ended) -> OutOfMemory | None:
    """The message that ended it, if GPU memory did. One that the script survived is not what ended it."""
    if ended.status == 0:
        return None
    found = [message for message in find_out_of_memory(_last_traceback(ended.tail)) if message.kind != "host"]
    return found[-1] if found else None


def _last_traceback(tail: str) -> str:
    """From the last traceback on, with those it was raised from; everything if several ranks print."""
    at = tail.rfind(_TRACEBACK)
    if at < 0 or "[rank" in tail or "torch.distributed.elastic" in tail:
        return tail
    while (before := tail.rfind(_TRACEBACK, 0, at)) >= 0 and any(
        chain in tail[before:at].rstrip()[-120:] for chain in _CHAINED
    ):
        at = before
    return tail[at:]


def _ending_of(ended: Ended, cause: OutOfMemory | None) -> Ending:
    if ended.passed_on is not None:
        return "told_to_stop"
    if ended.stopped is not None:
        return "climbs" if ended.stopped is RUNG_UP else "idle"
    if ended.status == 0:
        return "finished"
    return "failed" if cause is None else "out_of_memory"


def _over(ended: Ended, number: int) -> Sentence:
    if ended.passed_on is not None:
        name = signal.Signals(ended.passed_on).name
        return say("guard.signal_passed_on", signal=name, exit_code=Plain(ended.exit_code))
    if ended.stopped is not None:
        return say("guard.stopped", why=ended.stopped)
    if ended.status == 0:
        return say("guard.finished", tries=say("guard.tries", n=number), took=Seconds(ended.seconds))
    return say("guard.not_memory", how=_failed(ended.status))


def _failed(status: int) -> Sentence:
    if status == -signal.SIGKILL:
        return say("guard.killed")
    if status < 0:
        return say("guard.ended_by", signal=signal.Signals(-status).name)
    return say("guard.exit_code", status=Plain(status))


def _numbers(cause: OutOfMemory) -> Value | None:
    """The numbers in the message, as far as it has them."""
    parts = []
    own = cause.process_bytes or cause.reserved_bytes
    if own is not None and cause.total_bytes:
        parts.append(say("guard.held_of", size=Size(own), total=Size(cause.total_bytes)))
    elif own is not None:
        parts.append(say("guard.held", size=Size(own)))
    if cause.tried_bytes is not None:
        parts.append(say("guard.asked_for", size=Size(cause.tried_bytes)))
    if cause.free_bytes is not None:
        parts.append(say("guard.was_free", size=Size(cause.free_bytes)))
    return Several(tuple(parts)) if parts else None


def sealed_folder() -> Path:
    """Where `brimful.job` keeps checkpoints: from the environment, or its own default."""
    return Path(os.environ.get("BRIMFUL_CHECKPOINT_DIR") or "checkpoints")
