"""Traces against recordings of real GPUs, to the byte."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import brimful
from bench.groups.trace import a_gpt2
from brimful.allocator import FREE, MALLOC
from brimful.units import GIB
from tests.tracing import decoder, programs

pytestmark = pytest.mark.torch


def recorded(path: Path) -> list[tuple[str, int]]:
    """(malloc | free, requested bytes) of a recording, in order."""
    snapshot: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    names = {"alloc": MALLOC, "free_completed": FREE}
    return [(names[event[0]], event[2]) for event in snapshot["device_traces"][0] if event[0] in names]


def test_attention_by_hand_is_exact_in_every_counter_and_every_event(shared_data: Path) -> None:
    peak = brimful.trace(programs.attention_by_hand, gpu="rtx-4090", settings="")

    assert peak.requested_bytes == 3_249_143_816
    assert peak.allocated_bytes == 3_249_144_832
    assert peak.reserved_bytes == 3_781_165_056
    events = [(action, peak.tape.blocks[number].bytes) for action, number in peak.tape.events]
    real = recorded(shared_data / "snapshots" / "silmont__mem_snapshot.json.gz")
    assert (
        events[: len(real)] == real
    )  # what follows is the end of the function that the recording does not see
    assert all(action == FREE for action, _ in events[len(real) :])


def test_gpt2_124m_holds_12_39_gib_of_tensors_and_more_than_half_of_it_is_the_loss() -> None:
    peak = brimful.trace(a_gpt2("gpt2"), gpu="h100-sxm-80gb", settings="")

    batch, tokens, vocab, width, layers = 12, 1024, 50304, 768, 12
    weights = (vocab + tokens) * width + layers * (12 * width**2 + 2 * width) + width
    logits = batch * tokens * vocab
    items = {item.code: item.bytes for item in peak.items}
    assert items["weights"] == 4 * weights
    assert items["logits_loss"] - (2 + 2 + 4 + 4) * logits == pytest.approx(0, abs=64)  # and the loss
    assert round(peak.tensor_bytes / GIB, 2) == 12.39
    assert items["logits_loss"] > peak.tensor_bytes / 2
    assert round(peak.allocated_bytes / GIB, 2) == 12.46


# Recording -> tokens, autocast. Which runs had autocast on is not written in them: their sizes tell.
# `make bench ARGS=trace` compares all of them, with their warm-up steps and reserved bytes.
TRAINING = {"wedsonlin__medium_1024_training": (1024, True)}
INFERENCE = {"wedsonlin__medium_128_inference": (128, False)}


def last_step(program: Any, **how: Any) -> list[tuple[str, int]]:
    """Events between the two marks of a program, which begin and end what was recorded."""
    from brimful.specs.gpu import find_gpu
    from brimful.tracing.cuda_device import cuda_device
    from brimful.tracing.session import recording

    marks: list[int] = []
    with recording(cuda_device(find_gpu("rtx-4090")), steps=99) as recorder:
        program(mark=lambda: marks.append(len(recorder.tape.events)), **how)()
    tape = recorder.tape
    return [(action, tape.blocks[number].bytes) for action, number in tape.events[marks[0] : marks[1]]]


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_step_of_a_24_layer_decoder_makes_every_recorded_request_in_order(
    name: str, shared_data: Path
) -> None:
    tokens, autocast = TRAINING[name]
    ours = last_step(decoder.train, tokens=tokens, autocast=autocast, warm_up=1)
    real = recorded(shared_data / "snapshots" / f"{name}.json.gz")

    assert [size for action, size in ours if action == MALLOC] == [
        s for action, s in real if action == MALLOC
    ]
    assert highest(ours) == highest(real)


@pytest.mark.parametrize("name", INFERENCE)
def test_inference_of_the_same_decoder_makes_every_recorded_request_in_order(
    name: str, shared_data: Path
) -> None:
    tokens, autocast = INFERENCE[name]
    ours = last_step(decoder.infer, tokens=tokens, autocast=autocast, warm_up=1)
    real = recorded(shared_data / "snapshots" / f"{name}.json.gz")

    assert [size for action, size in ours if action == MALLOC] == [
        s for action, s in real if action == MALLOC
    ]
    assert highest(ours) == highest(real)


def highest(events: list[tuple[str, int]]) -> int:
    """The most that is held at once, above what was held before."""
    held = peak = 0
    for action, size in events:
        held += size if action == MALLOC else -size
        peak = max(peak, held)
    return peak
