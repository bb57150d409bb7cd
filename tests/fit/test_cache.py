"""The allocator's cache: whole blocks of the largest tensor that smaller tensors make useless."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brimful.fit.cache import (
    CHECKPOINTED_CACHE_FRAC,
    COMPILED_CACHE_FRAC,
    GRADIENT_FRAC,
    RECOMPUTED_FRAC,
    cached_bytes,
    rounding_frac,
)
from brimful.fit.states import gradient_bytes, optimizer_bytes
from brimful.units import GIB
from tests.fit.builders import a_model, a_training

MOVING, GATHERED = 10 * GIB, GIB


def cached(model: Any = None, **fields: Any) -> float:
    fields = {"accumulation": 1, "compiled": False, **fields}
    return cached_bytes(model or a_model(), a_training(**fields), MOVING, GATHERED).likely


def a_block(tokens: int) -> int:
    return 4 * tokens * a_model().vocab


def of_gradients() -> float:
    return GRADIENT_FRAC * gradient_bytes(a_model(), a_training())


def test_without_state_a_step_holds_one_more_block_of_logits() -> None:
    sgd = cached(optimizer="sgd", batch_size=12, sequence_tokens=1024)

    assert sgd == pytest.approx(a_block(12 * 1024) + of_gradients(), rel=1e-6)


def test_state_that_lies_in_the_block_is_not_free() -> None:
    state = optimizer_bytes(a_model(), a_training())

    adamw = cached(batch_size=12, sequence_tokens=1024)

    assert state < a_block(12 * 1024) / 2
    assert adamw == pytest.approx(a_block(12 * 1024) - state + of_gradients(), rel=1e-6)


def test_waiting_gradients_leave_no_block_whole() -> None:
    alone, waiting = (cached(batch_size=12, sequence_tokens=1024, accumulation=count) for count in (1, 2))

    assert waiting - alone == pytest.approx(optimizer_bytes(a_model(), a_training()), rel=1e-6)


def test_more_tokens_never_leave_less_in_the_cache() -> None:
    found = [cached(batch_size=size, sequence_tokens=256) for size in range(1, 65)]

    assert found == sorted(found)


def test_a_loss_in_chunks_has_no_block_of_all_logits() -> None:
    assert cached(loss_chunks=8) < cached() / 2


def test_half_of_a_recomputed_layer_is_counted() -> None:
    """Twice the width of the MLP is one more tensor of that size inside the layer, before and after GELU."""
    wide = replace(a_model(), mlp_width=2 * a_model().mlp_width)

    def more(checkpointing: str) -> float:
        fields: dict[str, Any] = {"checkpointing": checkpointing, "accumulation": 2}
        return cached(wide, **fields) - cached(**fields)

    added = 2 * 2 * a_training().micro_tokens * a_model().mlp_width
    assert more("full") - more("none") == pytest.approx(RECOMPUTED_FRAC * added, rel=0.01)


def test_what_no_trace_covers_is_a_share_of_what_moves() -> None:
    sharded = cached(sharding="zero3", gpus=2, checkpointing="full")
    block = a_training().micro_tokens * a_model().width * 2

    assert sharded == pytest.approx(CHECKPOINTED_CACHE_FRAC[1] * (MOVING + GATHERED), rel=1e-6)
    assert cached(compiled=True) == pytest.approx(
        (COMPILED_CACHE_FRAC[1] + rounding_frac(block)) * MOVING, rel=1e-6
    )
