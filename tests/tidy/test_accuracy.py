"""The page on accuracy: its places, and that an old cross-validation says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brimful.fit import memory, roofline
from brimful.fit.roofline import RATES
from brimful.specs.parts import moment as moment_says
from tests.accuracy.test_refit import runs_of
from tests.fit.builders import a_model, a_training
from tools.accuracy import CROSS, OLD, PAGE, accuracy_page, block, dated, edges_table, put, stamped
from tools.refit import COUNTED, LIMITS

RUNS = runs_of(RATES)


def test_the_page_is_as_the_code_counts_today(shared_data: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert accuracy_page(text, shared_data / "runs") == text, "run `make generate`"


def test_a_table_goes_into_its_place() -> None:
    page = "a\n<!-- accuracy: x -->\nold\n<!-- end -->\nb\n"

    assert put(page, "x", "new\n") == page.replace("old", "new")
    with pytest.raises(AssertionError, match="0 places"):
        put(page, "y", "new")


def test_a_cross_validation_older_than_the_formulas_says_so_once() -> None:
    fresh = stamped("| table |\n", RUNS)

    assert dated(fresh, RUNS) == fresh
    old = dated(fresh, RUNS[1:])
    assert old.startswith(OLD)
    assert dated(old, RUNS[1:]) == old
    assert dated(old, RUNS) == fresh


def test_the_page_tells_the_cross_validated_error() -> None:
    table = block(PAGE.read_text(encoding="utf-8"), CROSS)

    assert "left out by family" in table
    assert "left out by source" in table


def test_the_page_names_every_constant_of_speed_that_nobody_fitted() -> None:
    sourced = {"LARGE_FRAC", "SMALL_FRAC", "AMD_FRAC", "SMALL_CHIP_FLOPS_PER_S", "HOPPER_ATTENTION_FRAC"}
    sourced |= {"NEWTON_SCHULZ_STEPS", "HOP_S", "BUCKET_BYTES"}  # PyTorch, NCCL
    sourced |= {"TRITON_ATTENTION_FRAC"}  # FlashAttention-2
    elsewhere = {"RATES", "NODE_GPUS", "FASTER", "SLOWER", "FASTER_AMD", "SLOWER_AMD"}
    table = block(PAGE.read_text(encoding="utf-8"), "judged")

    for name in {name for name in vars(roofline) if name.isupper()} - sourced - elsewhere:
        assert f"`{name}`" in table, f"{name} of roofline.py: say in tools/accuracy.py where it comes from"


def test_a_constant_at_the_edge_of_its_search_is_named_and_one_in_the_middle_is_not() -> None:
    assert edges_table(COUNTED).count("\n") == 1

    table = edges_table(replace(COUNTED, launch_s=LIMITS["launch_s"][1]))
    assert "`launch_s`" in table
    assert "highest" in table
    assert "`eager_bytes`" not in table


def test_the_page_on_memory_says_the_shares_and_moments_of_the_code() -> None:
    page = " ".join((PAGE.parent / "memory.md").read_text(encoding="utf-8").split())

    for low, high in (memory._TRAINED_FRAC, memory._FROZEN_FRAC):
        assert f"-{low:.0%}".replace("%", " %") + f" to +{high:.0%}".replace("%", " %") in page
    moments = memory._moments(a_model(), a_training())
    count = {5: "Five", 6: "Six", 7: "Seven", 8: "Eight"}[len(moments)]
    assert f"{count} moments can be the peak" in page
    for moment in moments:
        assert str(moment_says(moment.code)) in page
