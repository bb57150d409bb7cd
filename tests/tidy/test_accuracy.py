"""The page on accuracy: its places, and that an old cross-validation says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.predict.roofline import RATES
from tests.predict.test_refit import runs_of
from tools.accuracy import CROSS, OLD, PAGE, accuracy_page, block, dated, put, stamped

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
