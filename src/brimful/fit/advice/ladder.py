"""A ladder out of `CUDA out of memory`: settings that surely fit, then what to turn back one rung at a time.

Each rung is estimated, so a run can be started on the first one today and moved up while it works. The order
is greedy: of what still fits, the rung that saves most time comes next.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from brimful.configs.reading import Change, Dialect
from brimful.fit.advice.advise import Predict, one_by_one, savers, smaller_batches
from brimful.fit.fit import NO_TRITON
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu
from brimful.specs.training import Training

_MAX_RUNGS = 12
_GAIN = 0.995  # a step time factor that counts as faster

# Fields of Training that only make sense together, and those that change what is computed.
_TOGETHER = (("dtype", "casts"), ("sharding", "shards"), ("tuning", "rank", "targets", "frozen_bits"))
_NUMERIC = ("dtype", "casts", "optimizer", "tuning", "in_backward", "frozen_bits")
_GROUPED = frozenset({"batch_size", "accumulation", *(name for group in _TOGETHER for name in group)})
_FIELDS = tuple(field.name for field in fields(Training))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One rung: what changes from the one below, and what it then needs."""

    change: Change
    training: Training
    estimate: Estimate
    adds_bytes: int  # beyond the rung below; negative if it saves
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
    """From the safest settings up to the requested ones, compiled if the card can; every rung fits.

    So it ends at the largest batch that fits. If nothing fits, the first rung alone may not fit.
    """
    now = _safest(training, predict, gpu, dialect)
    compiles = training.torch.compiles and gpu.architecture not in NO_TRITON
    goal = replace(training, compiled=True) if compiles else training
    rungs = [_rung(training, now, None, predict, dialect)]
    while rungs[-1].estimate.fits and len(rungs) < _MAX_RUNGS:
        steps = [(predict(after), after) for after in _steps(now, goal)]
        steps = [step for step in steps if step[0].fits and _worthwhile(rungs[-1], *step)]
        if not steps:
            break
        sure = [step for step in steps if step[0].verdict == "fits"]
        _, after = min(sure or steps, key=lambda step: step[0].speed.step_s.likely)
        rungs.append(_rung(now, after, rungs[-1].estimate, predict, dialect))
        now = after
    return tuple(rungs)


def _safest(training: Training, predict: Predict, gpu: Gpu, dialect: Dialect) -> Training:
    """One sequence at a time plus whatever it takes to surely fit; changes that keep the numerics first."""
    low = one_by_one(training)
    if not _possible(low):
        low = training
    moves = sorted(savers(low, gpu, dialect), key=lambda move: (move.last_resort, not move.keeps_numerics))
    here = predict(low)
    for move in moves:
        if here.verdict == "fits":
            break
        tried = replace(low, **move.fields)
        if not _possible(tried):
            continue
        there = predict(tried)
        if there.memory.needed_bytes.likely < here.memory.needed_bytes.likely:
            low, here = tried, there
    return low


def _steps(now: Training, goal: Training) -> list[Training]:
    """Every way to turn one setting back towards the goal; a batch goes up by its next divisor."""
    steps = []
    if now.batch_size < goal.batch_size:
        sizes = [size for size in (*smaller_batches(goal), goal.batch_size) if size > now.batch_size]
        steps.append(now.in_batches_of(sizes[0]))
    groups = [*_TOGETHER, *((name,) for name in _FIELDS if name not in _GROUPED)]
    wanted = [{name: getattr(goal, name) for name in group} for group in groups]
    steps += [after for group in wanted if (after := replace(now, **group)) != now]
    return [step for step in steps if _possible(step)]


def _possible(training: Training) -> bool:
    """A weight that is updated as soon as its gradient exists cannot wait for more micro-steps."""
    return not (training.in_backward and training.accumulation > 1)


def _worthwhile(below: Rung, estimate: Estimate, training: Training) -> bool:
    """Faster, or back to the requested numerics. Code that is slower and larger is not a rung."""
    faster = estimate.speed.step_s.likely < _GAIN * below.estimate.speed.step_s.likely
    return faster or any(getattr(training, n) != getattr(below.training, n) for n in _NUMERIC)


def _rung(
    below: Training, here: Training, estimate: Estimate | None, predict: Predict, dialect: Dialect
) -> Rung:
    change, lines_alone = dialect.spell(below, here)
    now = predict(here)
    before = estimate.memory.needed_bytes.likely if estimate else 0
    return Rung(
        change=change,
        training=here,
        estimate=now,
        adds_bytes=round(now.memory.needed_bytes.likely - before) if estimate else 0,
        config_only=lines_alone,
    )
