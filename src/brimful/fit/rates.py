"""Useful work per second of one instance: for training, batch inference or distillation.

`where` and job submission ask this for every card on offer. An answer is a rate, or the reason there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from brimful.errors import BrimfulError
from brimful.fit.correction import Correction
from brimful.fit.distill import distill
from brimful.fit.fit import estimate
from brimful.fit.inference import InferenceEstimate, Serving, filled
from brimful.language import Sentence, Size, say, verbatim
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.training import Training

_NOBODY_BYTES = 0  # of other programs: a rented card drives no display


@dataclass(frozen=True, slots=True)
class Rate:
    tokens_per_s: float  # 0: cannot run there
    why_not: Sentence | None = None


Rates = Callable[[Gpu, int], Rate]  # on this many of this card, in one instance


def training_rates(
    model: Model, training: Training, teacher: Model | None = None, *, correction: Correction | None
) -> Rates:
    """Tokens trained on, with a teacher if there is one. Several GPUs share one effective batch."""

    def rate(gpu: Gpu, gpus: int) -> Rate:
        split = spread(training, gpus)
        if split is None:
            return _cannot_split(training, gpus)
        if teacher is None:
            answer = estimate(model, split, gpu, _NOBODY_BYTES, correction=correction)
        else:
            answer = distill(teacher, model, split, gpu, correction=correction)
        return _judged(answer, answer.speed.tokens_per_s.likely)

    return _with_refusals(rate)


def serving_rates(model: Model, serving: Serving) -> Rates:
    """Tokens written by a batch job: as many sequences at a time as memory holds, one copy per GPU."""

    def rate(gpu: Gpu, gpus: int) -> Rate:
        _, answer = filled(model, serving, gpu, _NOBODY_BYTES)
        return _judged(answer, gpus * answer.tokens_per_s.likely)

    return _with_refusals(rate)


def spread(training: Training, gpus: int) -> Training | None:
    """The same training on this many GPUs, effective batch kept; None: it cannot be split that way.

    One GPU becomes several by data parallelism. A job that specifies its GPUs wants exactly that many.
    """
    if gpus == training.gpus:
        return training
    if training.gpus != 1:
        return None
    if training.accumulation % gpus == 0:
        return replace(training, gpus=gpus, accumulation=training.accumulation // gpus)
    if training.batch_size % gpus == 0:
        return replace(training, gpus=gpus, batch_size=training.batch_size // gpus)
    return None


def _cannot_split(training: Training, gpus: int) -> Rate:
    if training.gpus != 1:
        return Rate(0.0, say("fit.wants_gpus", n=training.gpus, gpus=gpus))
    return Rate(0.0, say("fit.step_cannot_split", n=training.effective_batch, gpus=gpus))


def _judged(answer: Estimate | InferenceEstimate, tokens_per_s: float) -> Rate:
    if answer.fits:
        return Rate(tokens_per_s)
    return Rate(0.0, say("fit.short_by", size=Size(answer.short_bytes)))


def _with_refusals(rate: Rates) -> Rates:
    def asked(gpu: Gpu, gpus: int) -> Rate:
        try:
            return rate(gpu, gpus)
        except BrimfulError as error:  # for example a number format this card does not support
            said = error.said
            return Rate(0.0, said if isinstance(said, Sentence) else verbatim(error.problem))

    return asked
