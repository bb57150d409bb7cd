"""`fit`: will it fit, how fast is it, and what should change?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from brimful.predict.advise import fixes, largest_batch
from brimful.predict.count import parameters
from brimful.predict.memory import peak_memory
from brimful.predict.roofline import peak_format, predict_speed
from brimful.specs.estimate import Assumption, Estimate
from brimful.specs.gpu import Gpu, find_gpu
from brimful.specs.model import Model
from brimful.specs.training import Training


def fit(
    model: Model,
    training: Training,
    gpu: Gpu | str,
    other_bytes: int = 0,
    *,
    assumed: Sequence[Assumption] = (),
    warnings: Sequence[str] = (),
) -> Estimate:
    """The whole answer: memory, speed, what was taken for granted, and fixes where it does not fit.

    `gpu` may be a name, written as people write it.
    `other_bytes` is what other programs hold of the card. `assumed` and `warnings` come from a reader
    and are passed on.
    """

    card = find_gpu(gpu) if isinstance(gpu, str) else gpu

    def again(changed: Training) -> Estimate:
        return estimate(model, changed, card, other_bytes)

    answer = again(training)
    return replace(
        answer,
        assumed=tuple(assumed),
        warnings=(*warnings, *_warnings(training, card)),
        fixes=() if answer.fits else fixes(training, again),
        largest_batch=largest_batch(training, again),
    )


def estimate(model: Model, training: Training, gpu: Gpu, other_bytes: int = 0) -> Estimate:
    """Memory and speed alone, without advice: what a search or a scheduler asks thousands of times."""
    assert other_bytes >= 0
    return Estimate(
        gpu=gpu.name,
        parameters=parameters(model),
        usable_bytes=gpu.memory_bytes,
        memory=peak_memory(model, training, gpu, other_bytes=other_bytes),
        speed=predict_speed(model, training, gpu),
    )


def _warnings(training: Training, gpu: Gpu) -> list[str]:
    said = []
    if training.dtype == "bfloat16" and not gpu.bf16:
        peak = peak_format(training, gpu)
        said.append(
            f"{gpu.title} has no bf16 hardware: speed is taken at its {peak} peak; dtype='float16' is faster"
        )
    if gpu.memory_basis != "seen":
        said.append(f"the memory {gpu.title} shows to a framework is {gpu.memory_basis}, not read off one")
    return said
