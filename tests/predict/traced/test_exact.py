"""Traces against recordings of real GPUs, to the byte."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import brimful
from brimful.predict.allocator import FREE, MALLOC
from tests.predict.traced import programs

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
