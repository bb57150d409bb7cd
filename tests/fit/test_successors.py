"""A card that succeeds another, with a higher peak and more bandwidth, is never predicted to be slower."""

from __future__ import annotations

from itertools import permutations

import pytest

from brimful.fit.roofline import peak_format, predict_speed
from brimful.specs.gpu import Gpu, all_gpus
from brimful.specs.training import Training
from brimful.tracing.speed import Cost, pace
from tests.fit.builders import a_model, a_training

_FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8")


def _succeeds(new: Gpu, old: Gpu) -> bool:
    """Of the same make and kind, a later architecture, and by its data sheet nowhere behind.

    Variants of one chip are left out: a PCIe card has its SXM sister's peak, and was measured to reach less.
    """
    if new.vendor != old.vendor or new.geforce != old.geforce:
        return False
    if new.year <= old.year or new.architecture == old.architecture:
        return False
    if new.bandwidth_bytes_per_s < old.bandwidth_bytes_per_s or new.bf16 < old.bf16:
        return False
    return all(new.dense_flops_per_s.get(name, 0) >= old.dense_flops_per_s.get(name, 0) for name in _FORMATS)


PAIRS = [(new, old) for new, old in permutations(all_gpus(), 2) if _succeeds(new, old)]
RUNS = [
    a_training(batch_size=8, compiled=True),
    a_training(batch_size=1, compiled=False),
    a_training(batch_size=64, dtype="float16"),
    a_training(dtype="float32", tf32=False),
    a_training(sequence_tokens=8192),
]


def test_there_are_pairs_of_every_make_and_kind() -> None:
    assert len(PAIRS) > 100
    assert {(new.vendor, new.geforce) for new, _ in PAIRS} >= {("NVIDIA", True), ("NVIDIA", False)}
    names = {(new.name, old.name) for new, old in PAIRS}
    assert ("rtx-5090", "rtx-4090") in names


@pytest.mark.parametrize("training", RUNS, ids=("compiled", "eager", "fp16", "fp32", "long"))
def test_a_successor_is_never_slower_in_the_closed_form(training: Training) -> None:
    model = a_model()
    slower = []
    for new, old in PAIRS:
        if peak_format(training, new) != peak_format(training, old):
            continue
        now, before = (predict_speed(model, training, gpu) for gpu in (new, old))
        if now.step_s.likely > 1.0001 * before.step_s.likely:
            slower.append((new.name, old.name, now.step_s.likely / before.step_s.likely))

    assert not slower


def test_a_successor_is_never_slower_in_a_trace() -> None:
    costs = {
        ("aten.mm", "float16"): Cost(calls=100, flops=10**14, bytes=10**10),
        ("aten._scaled_dot_product_flash_attention", "float16"): Cost(calls=10, flops=10**13, bytes=10**8),
        ("aten.add", "float16"): Cost(calls=500, flops=0, bytes=10**11),
    }
    slower = []
    for new, old in PAIRS:
        if ("fp16" in new.dense_flops_per_s) != ("fp16" in old.dense_flops_per_s):
            continue
        now, before = (pace(costs, gpu, tf32=True) for gpu in (new, old))
        assert now is not None
        assert before is not None
        if now.step_s.likely > 1.0001 * before.step_s.likely:
            slower.append((new.name, old.name))

    assert not slower
