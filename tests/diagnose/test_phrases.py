"""Every phrase that Fit writes is known as a sentence, so that it can be told in other languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from brimful.configs.reading import Reading
from brimful.diagnose.advice import _PARTS
from brimful.diagnose.phrases import known
from brimful.fit.fit import fit_reading
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import find_gpu
from tests.fit.builders import a_model, a_training
from tests.fit.test_direction import FAMILIES, SPREADS, TUNINGS

CARDS = ("rtx-4070", "v100-sxm-16gb", "p100-pcie-16gb", "k80", "h100-sxm-80gb", "mi210")
TRAININGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "eager fp32": {"compiled": False, "dtype": "float32", "attention": "math", "tf32": False},
    "one step": {"accumulation": 1, "batch_size": 480},
    "checkpointed": {"checkpointing": "full", "optimizer_kernel": "foreach"},
    "chunks": {"loss_chunks": 8, "checkpointing": "selective"},
}


def answers() -> Iterator[Estimate]:
    """Small models on every kind of card; one far too large for any, which asks for more changes at once."""
    large = {"layers": 48, "width": 6144, "heads": 48}
    for changes in (*TRAININGS.values(), *TUNINGS.values(), *SPREADS.values()):
        for card in CARDS:
            yield an_answer("gpt2", {}, changes, card)
        yield an_answer("llama", {}, changes, "rtx-4070")
    for changes in ({}, TUNINGS["LoRA"], SPREADS["DDP"]):
        yield an_answer("llama", large, changes, "v100-sxm-16gb")


def an_answer(family: str, size: dict[str, int], changes: dict[str, Any], card: str) -> Estimate:
    model = a_model(vocab=50257, **size, **FAMILIES[family])
    reading = Reading(model=model, training=a_training(**changes), assumed=(), warnings=())
    return fit_reading(reading, find_gpu(card))


@pytest.fixture(scope="module")
def told() -> list[Estimate]:
    return list(answers())


def test_every_part_of_the_memory_has_a_name(told: list[Estimate]) -> None:
    names = {item.name for answer in told for item in answer.memory.items}

    assert names <= _PARTS.keys(), "give them a sentence in diagnose/advice.py"


def test_every_note_and_warning_is_known(told: list[Estimate]) -> None:
    parts = {part for answer in told for part in answer.memory.peak_at.split(", ")}
    for answer in told:
        for text in (*answer.warnings, *(fix.note for fix in (*answer.fixes, *answer.faster))):
            parts.update(text.split("; "))
    unknown = sorted(part for part in parts if known(part) is None)

    assert len(parts) > 30
    assert not unknown, "give them a sentence in diagnose/phrases.py"


def test_why_a_part_is_there_is_known(told: list[Estimate]) -> None:
    reasons = {item.why for answer in told for item in answer.memory.items}
    unknown = sorted(why for why in reasons if known(why) is None)

    assert len(reasons) > 20
    assert not unknown, "give them a sentence in diagnose/phrases.py"
