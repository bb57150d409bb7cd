"""Numbers as people read and write them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.units import (
    CENT,
    GIB,
    MIB,
    bytes_from_text,
    cents_that_add_up,
    integer_from_text,
    microusd_from_usd,
    show_bytes,
    show_seconds,
    show_usd,
    spans,
)


@pytest.mark.parametrize(
    ("n", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (2048, "2 KiB"), (1.5 * MIB, "2 MiB"), (16 * 1024 * 50304 * 2, "1.54 GiB"),
     (-3 * GIB, "-3.00 GiB")],
)  # fmt: skip
def test_bytes(n: float, shown: str) -> None:
    assert show_bytes(n) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (0.0123, "12 ms"), (7, "7 s"), (42.34, "42.3 s"), (0.9999, "1 s"), (59.97, "1 min 00 s"),
     (60, "1 min 00 s"), (3599, "1 h 00 min"),
     (11100, "3 h 05 min"), (86400 * 2, "2 d 0 h"), (-7, "-7 s")],
)  # fmt: skip
def test_seconds(seconds: float, shown: str) -> None:
    assert show_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("microusd", "shown"),
    [(0, "$0.00"), (55, "$0.000055"), (500, "$0.0005"), (6_583, "$0.0066"), (10_000, "$0.01"),
     (1_234_567_890, "$1,234.57"),
     (-2_000_000, "-$2.00")],
)  # fmt: skip
def test_money(microusd: int, shown: str) -> None:
    assert show_usd(microusd) == shown


@given(st.integers(0, 10**17))
def test_money_survives_being_written_and_read(microusd: int) -> None:
    assert microusd_from_usd(f"{microusd // 10**6}.{microusd % 10**6:06d}") == microusd


@pytest.mark.parametrize(
    "text", ["", ".", "-1", "1e9", "nan", "1.2345678", "1,50", "٣", "1" * 20, "$", "1.x"]
)
def test_what_is_no_sum_of_money_is_none(text: str) -> None:
    assert microusd_from_usd(text) is None


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("12GiB", 12 * 2**30),
        (" 12 GB ", 12 * 10**9),
        ("80g", 80 * 2**30),
        ("1.5T", 3 * 2**39),
        ("512mib", 2**29),
        ("4096", 4096),
        ("7 B", 7),
        ("", None),
        ("GiB", None),
        ("12 gigs", None),
        ("1.2.3G", None),
        ("-5G", None),
        ("9" * 30, None),
    ],
)
def test_sizes_are_read_with_the_unit_they_are_written_with(text: str, nbytes: int | None) -> None:
    assert bytes_from_text(text) == nbytes


def test_neighbouring_gpus_are_written_as_a_span() -> None:
    assert spans([6, 0, 1, 2, 3]) == "0–3, 6"
    assert spans([]) == ""


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("99", 99), ("07", 7), ("0", None), ("100", None), ("007", None), ("", None), ("-1", None),
     ("1_0", None), (" 7", None), ("7.0", None), ("٧", None), ("²", None), ("9" * 5000, None)],
)  # fmt: skip
def test_integers_are_plain_digits_within_bounds(text: str, number: int | None) -> None:
    assert integer_from_text(text, low=1, high=99) == number


@pytest.mark.parametrize(
    ("amounts", "shown"),
    [
        ([333_333, 333_333, 333_334], [330_000, 330_000, 340_000]),
        ([5_000, 5_000, 990_000], [10_000, 0, 990_000]),
        ([3, 4], [3, 4]),
        ([], []),
    ],
)
def test_amounts_above_a_sum_add_up_to_it(amounts: list[int], shown: list[int]) -> None:
    assert cents_that_add_up(amounts) == shown


def test_amounts_in_cents_add_up_whatever_they_are() -> None:
    rng = random.Random(7)
    for _ in range(500):
        amounts = [rng.randrange(10**7) for _ in range(rng.randrange(1, 40))]
        shown = cents_that_add_up(amounts)
        assert sum(shown) == (sum(amounts) + CENT // 2) // CENT * CENT
        assert all(abs(a - b) < CENT for a, b in zip(amounts, shown, strict=True))
