"""`fit`: will it fit, how fast is it, and what should change?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import inf

from brimful.configs.reading import FLAGS, Dialect, Reading
from brimful.errors import BadInput
from brimful.fit.advice.advise import Predict, enough_gpus, faster, fixes, largest_batch
from brimful.fit.correction import Correction, calibrated
from brimful.fit.count import active_parameters, parameters
from brimful.fit.memory import peak_memory
from brimful.fit.roofline import peak_format, predict_speed
from brimful.language import Sentence, say
from brimful.specs.desktop import others_on
from brimful.specs.estimate import Assumption, Estimate, Interval, Speed
from brimful.specs.framework import Framework, find_framework
from brimful.specs.gpu import Gpu, find_gpu
from brimful.specs.model import Model
from brimful.specs.torch import Torch, find_torch
from brimful.specs.training import Training

# How much one fallback for an unknown word may change memory and time; several add up, to a limit.
_UNSURE_FRAC, _MOST_UNSURE_FRAC = 0.10, 0.40


def estimate(
    model: Model,
    training: Training,
    gpu: Gpu,
    other_bytes: int | None = None,
    *,
    correction: Correction | None,
    unsure: int = 0,
) -> Estimate:
    """The single entry point for an estimate: memory and speed, without advice. Searches call it in bulk.

    `other_bytes` is what other programs hold of the card; None: a desktop's share on a GeForce, else nothing.
    `unsure` is how many words of the input got a fallback: each widens every interval at both ends.
    `correction` comes from the user's own runs; no default: leaving it out is a visible choice.
    """
    if training.fp8 and "fp8" not in gpu.dense_flops_per_s:  # it would run, and only be slower
        raise BadInput(say("fit.no_fp8", title=gpu.title, architecture=gpu.architecture))
    if model.tied and not training.framework.ties:
        model = replace(model, tied=False)
    others = others_on(gpu, other_bytes)
    memory = peak_memory(model, training, gpu, others)
    speed = predict_speed(model, training, gpu)
    widen = widening(unsure)
    found = Estimate(
        gpu=gpu.name,
        parameters=parameters(model),
        usable_bytes=gpu.memory_bytes,
        memory=memory.each(lambda counter: _wider(counter, widen)) if widen else memory,
        speed=_wider_speed(speed, widen) if widen else speed,
        others=others,
        active_parameters=active_parameters(model) if model.experts is not None else None,
        sequence_tokens=training.sequence_tokens if model.images is not None else 0,
    )
    return calibrated(found, correction)


def predictor(reading: Reading, gpu: Gpu, other_bytes: int | None, correction: Correction | None) -> Predict:
    """`estimate` as a function of the training, for the model of a reading; cached per training."""

    @cache
    def predict(training: Training) -> Estimate:
        return estimate(
            reading.model, training, gpu, other_bytes, unsure=reading.unsure, correction=correction
        )

    return predict


def fit(
    model: Model | str,
    training: Training,
    gpu: Gpu | str,
    other_bytes: int | None = None,
    *,
    assumed: Sequence[Assumption] = (),
    warnings: Sequence[Sentence] = (),
    unsure: int = 0,
    dialect: Dialect = FLAGS,
    correction: Correction | None = None,
    framework: Framework | str | None = None,
    torch: Torch | str | None = None,
) -> Estimate:
    """The whole answer: memory, speed, what was assumed, and what to change.

    `model` and `gpu` may be names, written as people write them; `other_bytes`, `unsure` and `correction` are
    those of `estimate`. `assumed`, `warnings` and `dialect` come from a reader: what it assumed, and how its
    kind of config spells a change. `framework`, by name, says which code trains it, and `torch`, as PyTorch
    prints its release, which version; without them `training` has its own, current plain PyTorch.
    """
    from brimful.specs.presets import find_preset

    if framework is not None:
        code = find_framework(framework) if isinstance(framework, str) else framework
        training = replace(training, framework=code)
    if torch is not None:
        training = replace(training, torch=find_torch(torch) if isinstance(torch, str) else torch)
    reading = Reading(
        model=find_preset(model).model if isinstance(model, str) else model,
        training=training,
        assumed=tuple(assumed),
        warnings=tuple(warnings),
        unsure=unsure,
        dialect=dialect,
    )
    return fit_reading(
        reading, find_gpu(gpu) if isinstance(gpu, str) else gpu, other_bytes, correction=correction
    )


def fit_reading(
    reading: Reading, gpu: Gpu, other_bytes: int | None = None, *, correction: Correction | None
) -> Estimate:
    """`fit` for a config that was read. The correction also applies to fixes and the largest batch."""
    training, dialect = reading.training, reading.dialect
    predict = predictor(reading, gpu, other_bytes, correction)
    answer = predict(training)
    found = () if answer.verdict == "fits" else fixes(training, predict, gpu, dialect)
    said = [*reading.warnings, *_warnings(reading.model, training, gpu)]
    if correction is not None and correction.factors:
        said.append(correction.note(gpu.name))
    if not answer.fits and not any(fix.fits for fix in found):
        many = enough_gpus(training, predict, gpu, dialect)
        said.append(_nothing_fits(training, gpu, many))
    return replace(
        answer,
        assumed=reading.assumed,
        warnings=tuple(said),
        fixes=found,
        faster=faster(training, predict, gpu, dialect) if answer.fits and not found else (),
        largest_batch=largest_batch(training, predict, ("fits", "at_risk")),
        sure_batch=largest_batch(training, predict, ("fits",)),
    )


def widening(unsure: int) -> float:
    """How much wider an interval becomes for this many words that got a fallback."""
    return min(_MOST_UNSURE_FRAC, _UNSURE_FRAC * unsure)


def _wider_speed(speed: Speed, widen: float) -> Speed:
    return replace(
        speed,
        step_s=_wider(speed.step_s, widen),
        tokens_per_s=_wider(speed.tokens_per_s, widen),
        mfu=_wider(speed.mfu, widen, most=1.0),
        hfu=_wider(speed.hfu, widen, most=1.0),
    )


def _wider(interval: Interval, widen: float, most: float = inf) -> Interval:
    high = min(most, interval.high * (1 + widen))
    return Interval(interval.low * (1 - widen), interval.likely, high)


# Compute capability below 7.0. Source: Triton's own refusal, karpathy/nanoGPT issues 157 and 326.
NO_TRITON = ("Kepler", "Maxwell", "Pascal")


def _nothing_fits(training: Training, gpu: Gpu, enough: int | None) -> Sentence:
    if training.gpus == 1:
        if enough is None:
            return say("fit.nothing_fits_one", gpu=gpu.title)
        return say("fit.nothing_fits_one_enough", gpu=gpu.title, enough=enough)
    if enough is None:
        return say("fit.nothing_fits_several", n=training.gpus, gpu=gpu.title)
    return say("fit.nothing_fits_several_enough", n=training.gpus, gpu=gpu.title, enough=enough)


def _warnings(model: Model, training: Training, gpu: Gpu) -> list[Sentence]:
    said = []
    if training.compiled and gpu.architecture in NO_TRITON:
        said.append(say("fit.no_triton", gpu=gpu.title))
    if training.dtype == "bfloat16" and not gpu.bf16:
        peak = peak_format(training, gpu)
        faster_fp16 = gpu.dense_flops_per_s.get("fp16", 0) > gpu.dense_flops_per_s[peak]
        if faster_fp16:
            said.append(say("fit.no_bf16_float16_faster", gpu=gpu.title, dtype=peak))
        else:
            said.append(say("fit.no_bf16", gpu=gpu.title, dtype=peak))
    if model.classes is None and model.vocab % 64:
        padded = -(-model.vocab // 64) * 64
        said.append(say("fit.vocabulary_not_multiple", n=model.vocab, padded=padded))
    if model.experts is not None:
        said.append(say("fit.experts_speed_derived"))
    if gpu.memory_basis == "recalled":
        said.append(say("fit.memory_recalled", gpu=gpu.title))
    elif gpu.memory_basis == "estimated":
        said.append(say("fit.memory_estimated", gpu=gpu.title))
    return said
