"""A ladder out of `CUDA out of memory`: settings that surely fit, then what to turn back one rung at a time.

Each rung is measured by estimating it, so a run can be started on the first one today and climbed while it
works. The order is greedy: of what still fits, the rung that saves most time comes next.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from brimful.predict.advise import Predict, savers, smaller_batches
from brimful.predict.readers.reading import Change, Dialect
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu
from brimful.specs.training import Training

_MAX_RUNGS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One stage: what changes from the one below, and what it then needs."""

    change: Change
    training: Training
    estimate: Estimate
    adds_bytes: int  # beyond the rung below; negative where it saves
    config_only: bool

    def as_dict(self) -> dict[str, Any]:
        device = self.estimate.memory.device_bytes
        return {
            "change": {key: list(pair) for key, pair in self.change.items()},
            "verdict": self.estimate.verdict,
            "device_bytes": device.as_dict(),
            "adds_bytes": self.adds_bytes,
            "step_s": self.estimate.speed.step_s.likely,
            "mfu": self.estimate.speed.mfu.likely,
            "config_only": self.config_only,
        }


def ladder(training: Training, predict: Predict, gpu: Gpu, dialect: Dialect) -> tuple[Rung, ...]:
    """From the safest settings up to those asked for, or to the first rung that does not fit."""
    low = _safest(training, predict, gpu, dialect)
    rungs = [_rung(training, low, None, predict, dialect)]
    now = low
    while now != training and len(rungs) < _MAX_RUNGS:
        steps = [(predict(after), after) for after in _steps(now, training)]
        fitting = [step for step in steps if step[0].verdict == "fits"] or [s for s in steps if s[0].fits]
        best = min(fitting or steps, key=lambda step: step[0].speed.step_s.likely)
        rungs.append(_rung(now, best[1], predict(now), predict, dialect))
        now = best[1]
        if not fitting:
            break
    return tuple(rungs)


def _safest(training: Training, predict: Predict, gpu: Gpu, dialect: Dialect) -> Training:
    """One sequence at a time and, of what keeps the numbers, as much as it takes to fit surely."""
    sizes = smaller_batches(training)
    whole = training.batch_size * training.accumulation
    low = replace(training, batch_size=sizes[0], accumulation=whole // sizes[0]) if sizes else training
    moves = [move for move in savers(training, gpu, dialect) if move.keeps_numerics and not move.last_resort]
    for move in moves:
        if predict(low).verdict == "fits":
            break
        tried = replace(low, **move.fields)
        if predict(tried).memory.device_bytes.likely < predict(low).memory.device_bytes.likely:
            low = tried
    return low


def _steps(now: Training, goal: Training) -> list[Training]:
    """Every way to turn one setting back towards the goal; a batch goes up by its next divisor."""
    steps = []
    if now.batch_size < goal.batch_size:
        sizes = [size for size in (*smaller_batches(goal), goal.batch_size) if size > now.batch_size]
        whole = goal.batch_size * goal.accumulation
        steps.append(replace(now, batch_size=sizes[0], accumulation=whole // sizes[0]))
    batch = ("batch_size", "accumulation")
    wanted = {field.name: getattr(goal, field.name) for field in fields(Training) if field.name not in batch}
    return steps + [replace(now, **{k: v}) for k, v in wanted.items() if getattr(now, k) != v]


def _rung(
    below: Training, here: Training, estimate: Estimate | None, predict: Predict, dialect: Dialect
) -> Rung:
    change, lines_alone = dialect.spell(below, here)
    now = predict(here)
    before = estimate.memory.device_bytes.likely if estimate else 0
    return Rung(
        change=change,
        training=here,
        estimate=now,
        adds_bytes=round(now.memory.device_bytes.likely - before) if estimate else 0,
        config_only=lines_alone,
    )
