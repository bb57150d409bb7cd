"""One estimate in a running process, and a search over thousands: the cost for a scheduler or a search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from bench.measure import CALIBRATION, ROOT, Benchmark, Subject, body, calibration
from brimful.configs.nanogpt import read_nanogpt
from brimful.fit.fit import estimate, fit
from brimful.specs.gpu import find_gpu
from brimful.specs.model import Model
from brimful.specs.training import Attention, Checkpointing, Training

TITLE = "Fit, in one process"
CONFIG = ROOT / "examples" / "nanogpt" / "train_fineweb.py"
# Promised CPU seconds: absolute limits in place of a peer's time.
ESTIMATE_S, SEARCH_S = 200e-6, 4.0
SEARCHED = 10_000
CHECKPOINTINGS: tuple[Checkpointing, ...] = ("none", "selective", "full")
ATTENTIONS: tuple[Attention, ...] = ("flash", "math")


def benchmarks() -> Iterator[Benchmark]:
    reading, gpu = read_nanogpt(CONFIG), find_gpu("rtx-4070")
    model, training = reading.model, reading.training
    yield _beside_calibration("read the config", body(lambda: read_nanogpt(CONFIG)))
    yield Benchmark(
        name="estimate",
        subject=body(lambda: estimate(model, training, gpu, correction=None)),
        peer_name="promise",
        peer=lambda: ESTIMATE_S,
        bar=1,
    )
    yield Benchmark(
        name=f"estimate {SEARCHED:,} configurations and take the fastest that fits",
        subject=body(lambda: fastest(model, training)),
        peer_name="promise",
        peer=lambda: SEARCH_S,
        bar=1,
    )
    yield _beside_calibration("fit, with advice", body(lambda: fit(model, training, gpu)))


def _beside_calibration(name: str, subject: Subject) -> Benchmark:
    return Benchmark(name=name, subject=subject, peer_name=CALIBRATION, peer=calibration)


def configurations(training: Training) -> list[Training]:
    """Ten thousand ways to train one model: everything a search may try."""
    tried = product(
        range(1, 33),
        (1, 2, 4, 8),
        CHECKPOINTINGS,
        (True, False),
        (1, 8),
        ("adamw", "adam8bit", "sgd"),
        ATTENTIONS,
        (512, 1024, 2048),
    )
    made = [
        replace(
            training,
            batch_size=batch,
            accumulation=accumulation,
            checkpointing=checkpointing,
            compiled=compiled,
            loss_chunks=chunks,
            optimizer=optimizer,
            attention=attention,
            sequence_tokens=tokens,
        )
        for batch, accumulation, checkpointing, compiled, chunks, optimizer, attention, tokens in tried
    ]
    # Every second or third one, so that all of the choices above occur.
    return [made[i * len(made) // SEARCHED] for i in range(SEARCHED)]


def fastest(model: Model, training: Training) -> Training:
    """The search itself, including making the configurations."""
    gpu = find_gpu("rtx-4070")
    best, most = None, 0.0
    for each in configurations(training):
        answer = estimate(model, each, gpu, correction=None)
        if answer.fits and answer.speed.tokens_per_s.likely > most:
            best, most = each, answer.speed.tokens_per_s.likely
    assert best is not None
    return best
