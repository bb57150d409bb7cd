"""The chance that a traced program runs out of memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brimful.allocator import FREE, MALLOC, Request, Settings
from brimful.specs.estimate import Interval
from brimful.specs.gpu import Gpu, find_gpu
from brimful.tracing.chance import chance, least_bytes
from brimful.units import GIB, MIB

CONTEXT = Interval(0, 0, 0)
GROWS = [  # 1 GiB is free when 1.5 GiB are asked for: cached on a large card, returned on a full one
    Request(MALLOC, 1, 1 * GIB),
    Request(FREE, 1),
    Request(MALLOC, 2, 3 * GIB // 2),
]
PEAKS = {"allocated_bytes": 3 * GIB // 2, "reserved_bytes": 5 * GIB // 2}


def a_card(memory_bytes: float) -> Gpu:
    return replace(find_gpu("rtx-4090"), memory_bytes=round(memory_bytes))


def odds(memory_bytes: float) -> float:
    return chance(GROWS, Settings(), a_card(memory_bytes), CONTEXT, **PEAKS)


def test_a_program_needs_its_cache_only_where_there_is_room_for_it() -> None:
    found = least_bytes(GROWS, Settings(), low=PEAKS["allocated_bytes"], high=PEAKS["reserved_bytes"])

    assert found == pytest.approx(3 * GIB // 2, abs=8 * MIB)


def test_a_program_that_just_fills_the_card_is_at_even_odds() -> None:
    assert odds(least_bytes(GROWS, Settings(), low=3 * GIB // 2, high=5 * GIB // 2)) == pytest.approx(0.5)


def test_a_larger_card_never_runs_out_more_likely() -> None:
    found = [odds(GIB * tenths / 10) for tenths in range(8, 40)]

    assert found == sorted(found, reverse=True)
    assert (found[0], found[-1]) == (1, 0)


def test_an_uncertain_context_makes_a_nearly_full_card_less_sure() -> None:
    card = a_card(1.6 * GIB)

    sure, unsure = (chance(GROWS, Settings(), card, Interval(0, 0, high), **PEAKS) for high in (0, GIB // 2))

    assert sure < unsure < 0.5
