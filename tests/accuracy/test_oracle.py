"""The closed form beside traces of the frameworks' own models: the table of `make oracle`."""

from __future__ import annotations

import pytest

from tools.oracle import MEASURED, Row, compared, draw, read, summary

# Median, 90th percentile and worst error of the allocated peak; the first two of the reserved one.
ALLOCATED, RESERVED = (0.01, 0.03, 0.06), (0.04, 0.10)
ROWS = [row for row in read() if row["allocated_bytes"]]


def within(rows: list[Row]) -> tuple[bool, ...]:
    found = summary([allocated for _, allocated, _ in compared(rows)])
    return tuple(error <= bar for error, bar in zip(found, ALLOCATED, strict=True))


@pytest.mark.parametrize("half", ["open", "held"])
def test_models_of_full_depth_are_near_their_traced_peaks(half: str) -> None:
    rows = [row for row in ROWS if (row["half"], row["depth"]) == (half, "full")]

    assert len(rows) >= 5, "too few rows are traced: make oracle"
    assert within(rows) == (True, True, True)


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_all_rows_of_the_open_half_are_near_their_traced_peaks(tuning: str) -> None:
    rows = [row for row in ROWS if (row["half"], row["tuning"]) == ("open", tuning)]

    assert within(rows) == (True, True, True)


def test_the_held_half_is_within_1_percent_and_3_at_p90() -> None:
    """Its worst row is not within the bar yet: docs/contributing/under-way.md."""
    assert within([row for row in ROWS if row["half"] == "held"])[:2] == (True, True)


@pytest.mark.parametrize("half", ["open", "held"])
def test_reserved_memory_is_within_4_percent_and_10_at_p90(half: str) -> None:
    found = summary([reserved for row, _, reserved in compared(ROWS) if row["half"] == half])

    assert found[1] <= RESERVED[1]
    if half == "open":  # the held half's median is 4.2 %: docs/contributing/under-way.md
        assert found[0] <= RESERVED[0]


@pytest.mark.torch
def test_the_configs_are_those_that_the_seed_draws() -> None:
    drawn = [{name: value for name, value in row.items() if name not in MEASURED} for row in read()]
    assert drawn == draw()


@pytest.mark.torch
def test_a_row_traced_again_has_the_same_numbers() -> None:
    """The shallowest of transformers; `python -m tools.oracle again 20` does more."""
    from tools.oracle import traced

    row = min((row for row in ROWS if row["framework"] == "transformers"), key=lambda row: int(row["layers"]))
    assert {name: row[name] for name in MEASURED} == traced(row)
