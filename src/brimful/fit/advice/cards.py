"""Which card? The same training on every card of the catalog, by the cost of a million tokens.

Each card gets the config unchanged, except where it could not run: a supported number format, code it can
compile, and the largest micro-batch that fits and keeps the sequences of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from brimful.configs.reading import Reading
from brimful.fit.advice.advise import Predict, largest_that, smaller_batches
from brimful.fit.correction import Correction
from brimful.fit.fit import NO_TRITON, predictor
from brimful.fit.inference import InferenceEstimate, Serving, filled, infer, usd_per_million
from brimful.language import Language, Sentence, Several, Size, say
from brimful.specs.estimate import Estimate, Interval, as_json
from brimful.specs.gpu import Gpu, all_gpus
from brimful.specs.prices import Prices
from brimful.specs.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCard:
    """One card: the cost of a million tokens on it, or why it is not ranked."""

    gpu: Gpu
    estimate: Estimate | InferenceEstimate
    tokens_per_s: Interval
    settled: Sentence  # the reason for its rank, if it fits and has a price
    microusd_per_gpu_hour: int | None
    gpus: int = 1
    caveats: tuple[Sentence, ...] = ()  # on "it fits": at risk, or only in smaller batches

    @property
    def usd_per_million(self) -> float | None:
        """None: it does not fit, or has no price."""
        price = self.microusd_per_gpu_hour
        if price is None or not self.estimate.fits:
            return None
        return usd_per_million(self.tokens_per_s.likely, price, self.gpus)

    @property
    def why(self) -> Sentence:
        if not self.estimate.fits:
            return say("fit.does_not_fit_by", size=Size(self.estimate.short_bytes))
        return say("fit.fits_unpriced") if self.microusd_per_gpu_hour is None else self.settled

    def _common(self, spoken: Language) -> dict[str, Any]:
        return {
            "year": self.gpu.year,
            "microusd_per_gpu_hour": self.microusd_per_gpu_hour,
            "usd_per_million_tokens": self.usd_per_million,
            "why": spoken.text(self.why),
            "reason": self.why.as_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked(OnCard):
    training: Training
    estimate: Estimate

    def as_dict(self, spoken: Language) -> dict[str, Any]:
        estimate = self.estimate
        return {
            **as_json(estimate, "gpu", "fits", "verdict"),
            **as_json(estimate.memory, "device_bytes"),
            "usable_bytes": estimate.usable_bytes,
            "other_programs": estimate.others.as_dict(),
            **as_json(estimate.speed, "tokens_per_s", "mfu"),
            **as_json(self.training, "batch_size", "accumulation", "dtype"),
            **self._common(spoken),
        }


def rank(
    reading: Reading, prices: Prices, other_bytes: int | None = None, *, correction: Correction | None
) -> tuple[Ranked, ...]:
    """Cheapest first; then those that fit without a price, then those that do not fit, by what is missing."""
    found = (
        _one(reading, gpu, prices, predictor(reading, gpu, other_bytes, correction)) for gpu in all_gpus()
    )
    return tuple(sorted(found, key=_order))


def _order(one: OnCard) -> tuple[int, float]:
    if one.usd_per_million is not None:
        return 0, one.usd_per_million
    return (1, -one.tokens_per_s.likely) if one.estimate.fits else (2, one.estimate.short_bytes)


def _one(reading: Reading, gpu: Gpu, prices: Prices, predict: Predict) -> Ranked:
    training, changed = _runnable(reading.training, gpu)
    answer = predict(training)
    if not answer.fits and (sizes := smaller_batches(training)):
        size = largest_that(sizes, lambda size: predict(training.in_batches_of(size)).fits)
        smaller = training.in_batches_of(size)
        if predict(smaller).fits:
            training, answer = smaller, predict(smaller)
            changed.append(say("fit.batch_size", size=training.batch_size))
    bound = say(f"fit.bound_{answer.speed.bound_by}")
    risk = (say("fit.at_risk"),) if answer.verdict == "at_risk" else ()
    return Ranked(
        gpu=gpu,
        training=training,
        estimate=answer,
        tokens_per_s=answer.speed.tokens_per_s,
        settled=say("fit.reasons", reasons=Several((*risk, *changed, bound), between="; ")),
        microusd_per_gpu_hour=prices.microusd_per_gpu_hour.get(gpu.name),
        gpus=training.gpus,
        caveats=(*risk, *(changed[-1:] if training.batch_size < reading.training.batch_size else ())),
    )


def _runnable(training: Training, gpu: Gpu) -> tuple[Training, list[Sentence]]:
    """The training in a format and a mode this card can run."""
    changed = []
    if training.fp8 and "fp8" not in gpu.dense_flops_per_s:
        training = replace(training, fp8=False, fp8_inputs=False)
        changed.append(say("fit.without_fp8"))
    if training.dtype == "bfloat16" and not gpu.bf16 and "fp16" in gpu.dense_flops_per_s:
        training = replace(training, dtype="float16")
        changed.append(say("fit.float16"))
    if training.compiled and gpu.architecture in NO_TRITON:
        training = replace(training, compiled=False)
        changed.append(say("fit.not_compiled"))
    return training, changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Served(OnCard):
    """At the requested batch, or the largest that fits."""

    serving: Serving
    estimate: InferenceEstimate

    def as_dict(self, spoken: Language) -> dict[str, Any]:
        batch = {"batch_size": self.serving.batch_size}
        return {**self.estimate.as_dict(), **batch, **self._common(spoken)}


def rank_serving(
    reading: Reading, serving: Serving, prices: Prices, other_bytes: int | None = None, *, fill: bool = True
) -> tuple[Served, ...]:
    """Cheapest first, like `rank`; `fill` uses the largest batch each card holds."""
    served = []
    for gpu in all_gpus():
        if fill:
            own, answer = filled(reading.model, serving, gpu, other_bytes)
        else:
            own, answer = serving, infer(reading.model, serving, gpu, other_bytes)
        full = own.batch_size == answer.largest_batch
        served.append(
            Served(
                gpu=gpu,
                serving=own,
                estimate=answer,
                tokens_per_s=answer.tokens_per_s,
                settled=say("fit.memory_full") if full else say("fit.room_left"),
                microusd_per_gpu_hour=prices.microusd_per_gpu_hour.get(gpu.name),
            )
        )
    return tuple(sorted(served, key=_order))
