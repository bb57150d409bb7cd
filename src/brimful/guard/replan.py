"""What to change when memory ran out: the same effective batch in smaller pieces, then Fit's ladder.

Pure: settings and what was learned go in, a plan or the reason for none comes out. A plan never repeats
settings that have failed, and each failure lowers what a prediction may reach, so planning terminates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from brimful.configs.bounds import is_whole
from brimful.configs.reading import Change, change_text
from brimful.diagnose.oom import OutOfMemory
from brimful.fit.advice.advise import Move, Predict, savers, smaller_batches
from brimful.guard.command import NANOGPT_STYLE, Command
from brimful.language import Number, Plain, Sentence, Several, Size, Value, say
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu
from brimful.specs.training import Training

_LESS = 0.98  # of a prediction that failed: how much smaller the next one must be at least
_MOST_TOGETHER = 3
RUNG_UP = say("guard.rung_up")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Settings that ran out of memory: their prediction and what the message said."""

    predicted_bytes: float | None
    usable_bytes: int | None  # what this process could have had at that moment
    needed_bytes: int | None  # what it had plus what it asked for: the least it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTry:
    """The lines to change, and the expected result."""

    change: Change
    why: Sentence
    training: Training | None = None
    slower: float | None = None  # predicted step time relative to the previous settings

    @property
    def lines(self) -> dict[str, Any]:
        return {key: then for key, (_, then) in self.change.items()}

    @property
    def expected(self) -> Value:
        """Why, and how much longer a step takes if that is predicted."""
        if self.slower is None:
            return self.why
        return Several((self.why, say("guard.slower", factor=Number(self.slower, 2))), between="; ")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoTry:
    """Why there is nothing left to try."""

    why: Sentence


def failure_of(message: OutOfMemory, predicted_bytes: float | None) -> Failure:
    """What one out-of-memory message says about room and need, as far as it gives numbers."""
    own = message.process_bytes or message.reserved_bytes or message.allocated_bytes
    usable = needed = None
    if own is not None and message.free_bytes is not None:
        usable = own + message.free_bytes
    if own is not None and message.tried_bytes is not None:
        # What is cached and free may serve part of it, but the message shows that it did not.
        needed = own + message.tried_bytes
    return Failure(predicted_bytes=predicted_bytes, usable_bytes=usable, needed_bytes=needed)


def room_bytes(failures: Sequence[Failure], usable_bytes: int) -> int:
    """What a prediction may reach from now on: the card's room, and less than anything that has failed.

    Formula: a prediction that failed was too low by at least needed / usable, or memory was fragmented; so
    the next one must stay below it by that ratio, and by at least two per cent.
    """
    room = float(usable_bytes)
    for failure in failures:
        if failure.usable_bytes is not None:
            room = min(room, failure.usable_bytes)
        if failure.predicted_bytes is not None:
            ratio = _LESS
            if failure.usable_bytes is not None and failure.needed_bytes:
                ratio = min(ratio, failure.usable_bytes / failure.needed_bytes)
            room = min(room, failure.predicted_bytes * ratio)
    return int(room)


def bounded(predict: Predict, room: int) -> Predict:
    """The same predictions for a card with this much room."""
    return lambda training: replace(predict(training), usable_bytes=room)


def replan(
    training: Training, predict: Predict, gpu: Gpu, command: Command, *, failed: Sequence[Training] = ()
) -> NextTry | NoTry:
    """Settings predicted to fit, with as little changed as possible; never those that have failed."""
    before = predict(training)
    can_split = command.can_say(command.batch_keys)
    smaller = [_split(training, size) for size in smaller_batches(training)] if can_split else []
    for each in reversed(smaller):
        if each not in failed and predict(each).fits:
            return _try_of(training, each, before, predict, command)
    moves = _moves(training, gpu, command)
    sizes = [*smaller, training]
    found = _with_moves(sizes, moves, predict, failed) or _doubtful(sizes[0], moves, predict, failed)
    if found is None:
        return NoTry(why=_why_not(training, _safest(sizes[0], moves, predict), predict, command))
    return _try_of(training, found, before, predict, command)


def halve(training: Training, command: Command, *, failed: Sequence[Training] = ()) -> NextTry | NoTry:
    """If nothing can be predicted: half the micro-batch, or the next smaller one that divides the whole."""
    if not command.can_say(command.batch_keys):
        return NoTry(why=_unsayable(command))
    for size in reversed(smaller_batches(training)):
        after = _split(training, size)
        if 2 * size <= training.batch_size and after not in failed:
            change, _ = command.dialect.spell(training, after)
            return NextTry(change=change, training=after, why=say("guard.halved", n=after.effective_batch))
    key = command.batch_keys[0]
    return NoTry(why=say("guard.smallest_batch", key=key, size=Plain(training.batch_size)))


def _split(training: Training, size: int) -> Training:
    """The same sequences per step, this many at a time."""
    whole = training.batch_size * training.accumulation
    return replace(training, batch_size=size, accumulation=whole // size)


def spoken_training(command: Command) -> Training | None:
    """Micro-batch and accumulation of a command about which nothing else is known."""
    batch, accumulation = (command.says.get(key) for key in command.batch_keys)
    if not is_whole(batch, 1, 10**9 - 1) or not is_whole(accumulation, 1, 10**9 - 1):
        return None
    # nanoGPT gives the accumulation of all GPUs together, and divides it among them.
    gpus = command.gpus if command.style == NANOGPT_STYLE and accumulation % command.gpus == 0 else 1
    return Training(
        batch_size=batch, sequence_tokens=1, accumulation=accumulation // gpus, gpus=gpus, dtype="bfloat16",
        compiled=False,
    )  # fmt: skip


def climbed(
    training: Training,
    goal: Training,
    predict: Predict | None,
    command: Command,
    *,
    failed: Sequence[Training],
) -> NextTry | None:
    """The next rung up: one setting turned back towards the requested one, that has not failed."""
    ways: list[Training] = []
    if training.batch_size < goal.batch_size:
        size = next(n for n in (*smaller_batches(goal), goal.batch_size) if n > training.batch_size)
        rung = _split(goal, size)
        ways.append(replace(training, batch_size=size, accumulation=rung.accumulation))
    ways += [
        replace(training, **{name: getattr(goal, name)})
        for name in ("checkpointing", "compiled", "attention", "loss_chunks")
        if getattr(training, name) != getattr(goal, name)
    ]
    for way in ways:
        change, lines_alone = command.dialect.spell(training, way)
        if way in failed or not lines_alone or not command.can_say(tuple(change)):
            continue
        # A rung must need less than what failed, or it would fail too.
        if predict is not None:
            need, *least = (predict(each).memory.device_bytes.likely for each in (way, *failed))
            if any(need >= bad for bad in least):
                continue
        return NextTry(change=change, why=RUNG_UP, training=way)
    return None


def _moves(training: Training, gpu: Gpu, command: Command) -> list[Move]:
    """Changes that keep the numerics and that this script's options can express.

    Changes of the optimizer or its formats are left out: a checkpoint of the run would not load into it. A
    kernel that may not be installed is left out too: its crash would end the run.
    """
    found = []
    for move in savers(training, gpu, command.dialect):
        if not move.keeps_numerics or move.last_resort or "fused_loss" in move.fields:
            continue
        change, lines_alone = command.dialect.spell(training, replace(training, **move.fields))
        if lines_alone and command.can_say(tuple(change)):
            found.append(move)
    return found


def _sets(moves: Sequence[Move], size: int) -> Iterator[dict[str, Any]]:
    for chosen in combinations(moves, size):
        names = [name for move in chosen for name in move.fields]
        if len(names) == len(set(names)):
            yield {name: value for move in chosen for name, value in move.fields.items()}


def _with_moves(
    sizes: Sequence[Training], moves: Sequence[Move], predict: Predict, failed: Sequence[Training]
) -> Training | None:
    """As few moves as necessary; of those the fastest. Compiling comes after what needs no compiler."""
    for count in range(1, min(_MOST_TOGETHER, len(moves)) + 1):
        fitting = [
            after
            for fields in _sets(moves, count)
            for size in sizes
            if (after := replace(size, **fields)) not in failed and predict(after).fits
        ]
        if fitting:
            return min(
                fitting,
                key=lambda t: (t.compiled and not sizes[-1].compiled, predict(t).speed.step_s.likely),
            )
    return None


def _safest(
    training: Training, moves: Sequence[Move], predict: Predict, failed: Sequence[Training] = ()
) -> Training | None:
    """Of everything that can be turned down together, what is predicted to need the least."""
    every = ({}, *(fields for n in range(1, _MOST_TOGETHER + 1) for fields in _sets(moves, n)))
    ways = [after for fields in every if (after := replace(training, **fields)) not in failed]
    return min(ways, key=lambda way: predict(way).memory.device_bytes.likely, default=None)


def _doubtful(
    training: Training, moves: Sequence[Move], predict: Predict, failed: Sequence[Training]
) -> Training | None:
    """Nothing is likely to fit; the safest settings are still worth a try if the low end does."""
    safest = _safest(training, moves, predict, failed)
    if safest is None:
        return None
    estimate = predict(safest)
    return safest if estimate.memory.device_bytes.low <= estimate.usable_bytes else None


def _try_of(
    before: Training, after: Training, estimate: Estimate, predict: Predict, command: Command
) -> NextTry:
    change, _ = command.dialect.spell(before, after)
    then = predict(after)
    device = then.memory.device_bytes
    return NextTry(
        change=change,
        training=after,
        slower=then.speed.step_s.likely / estimate.speed.step_s.likely,
        why=say(
            "guard.planned",
            likely=Size(device.likely),
            high=Size(device.high),
            usable=Size(then.usable_bytes),
            n=after.effective_batch,
        ),
    )


def _why_not(training: Training, safest: Training | None, predict: Predict, command: Command) -> Sentence:
    assert safest is not None
    estimate = predict(safest)
    need = estimate.memory.device_bytes
    sizes = {"likely": Size(need.likely), "low": Size(need.low), "usable": Size(estimate.usable_bytes)}
    changes = change_text(command.dialect.spell(training, safest)[0])
    why = say("guard.smallest_needs", changes=changes, **sizes) if changes else say("guard.needs", **sizes)
    if command.can_say(command.batch_keys):
        return why
    return say("guard.and_no_key", why=why, no_key=_unsayable(command))


def _unsayable(command: Command) -> Sentence:
    ours = {"per_device_train_batch_size": "batch_size"}
    missing = [ours.get(key, key) for key in command.batch_keys if key not in command.keys]
    if len(missing) == 1:
        return say("guard.no_key", key=missing[0])
    return say("guard.no_keys", batch=missing[0], accumulation=missing[1])
