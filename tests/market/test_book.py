"""Books as people write them: a bad one is refused by the name of its entry, whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brimful.errors import BadInput
from brimful.market.auction import clear
from brimful.market.book import parse_book


def book(*bids: dict[str, Any], **more: Any) -> str:
    return json.dumps({"pool": "p", "floor": 0.5, "supply": 8, "bids": list(bids), **more})


def test_dollars_become_micro_dollars_and_left_out_fields_their_defaults() -> None:
    read = parse_book(
        book({"bid": "a", "quantity": 4, "limit": 1.25}, {"bid": "b", "gpus": 2, "min_gpus": 1, "limit": "2"})
    )
    assert [(bid.limit, bid.min_quantity, bid.arrival) for bid in read.bids] == [
        (1_250_000, 4, 0),
        (2_000_000, 1, 1),
    ]
    assert [(step.quantity, step.ask) for step in read.supply] == [(8, 500_000)]


def test_a_class_is_a_preset_bid() -> None:
    read = parse_book(book({"bid": "a", "quantity": 1, "priority": "urgent"}, last_price=1))
    assert read.bids[0].limit == 4_000_000


GOOD = {"bid": "good", "quantity": 1, "limit": 1}
X = {"bid": "x", "quantity": 1, "limit": 1}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (book(GOOD, {**X, "limit": float("nan")}), "the limit of bid 'x' (entry 2) is NaN"),
        (book(GOOD, {**X, "limit": float("inf")}), "the limit of bid 'x' (entry 2) is Infinity"),
        (book(GOOD, {**X, "quantity": float("nan")}), "the quantity of bid 'x' (entry 2) is NaN"),
        (book(GOOD, {**X, "quantity": float("-inf")}), "the quantity of bid 'x' (entry 2) is -Infinity"),
        (book(GOOD, {**X, "arrival": float("nan")}), "bid 'x' (entry 2)"),
        (book(GOOD, {**X, "hours": float("nan")}), "the hours of bid 'x' (entry 2)"),
        (book(GOOD, {**X, "limit": 7}).replace("7", "1e" + 30 * "9"), "the limit of bid 'x' (entry 2)"),
        (book(GOOD, {**X, "quantity": 7}).replace("7", "1e" + 30 * "9"), "the quantity of bid 'x' (entry 2)"),
        (book(GOOD, {**X, "limit": 7}).replace("7", 5000 * "9"), "the limit of bid 'x' (entry 2)"),
        (book(GOOD, {**X, "quantity": 7}).replace("7", 5000 * "9"), "the quantity of bid 'x' (entry 2)"),
        (book(supply=[{"quantity": 4, "ask": float("nan")}]), "supply entry 1"),
        (book(supply=float("nan")), "supply"),
        (book(floor=float("nan")), "the book's floor is NaN"),
        (book(GOOD, {"bid": "x", "quantity": 1, "limit": "nan"}), "bid 'x' (entry 2)"),
        (book(GOOD, {"bid": "x", "quantity": 1, "limit": -1}), "bid 'x' (entry 2)"),
        (book(GOOD, {"bid": "x", "quantity": -4, "limit": 1}), "bid 'x' (entry 2)"),
        (book(GOOD, {"bid": "x", "quantity": 0, "limit": 1}), "bid 'x' (entry 2)"),
        (book(GOOD, {"bid": "x", "quantity": 1, "limit": 0}), "bid 'x' (entry 2)"),
        (book(GOOD, {"bid": "x", "quantity": 1, "limit": 10**30}), "bid 'x' (entry 2)"),
        (book(GOOD, {"bid": "x", "quantity": 10**30, "limit": 1}), "bid 'x' (entry 2)"),
        (book(GOOD, {"bid": "x", "quantity": 1.5, "limit": 1}), "bid 'x' (entry 2)"),
        (book(GOOD, {"bid": "x", "quantity": 1}), "the limit of bid 'x' (entry 2) is missing"),
        (book(GOOD, GOOD), "bid 'good' (entry 2)"),
        (book({**GOOD, "arrival": 7}, {**GOOD, "bid": "x", "arrival": 5}), "bid 'x' (entry 2)"),
        (book({**GOOD, "min_quantity": 2}), "min_quantity 2"),
        (book({"quantity": 1, "limit": 1}), "bid entry 1"),
        (book(GOOD, 7), "bid entry 2"),  # type: ignore[arg-type]
        (book(supply=[{"quantity": 4, "ask": 2}, {"quantity": 4, "ask": 1}]), "supply entry 2"),
        (book(supply=[{"quantity": 4}, {"quantity": 0, "ask": 1}]), "supply entry 2"),
        (book(supply=[{"quantity": 4, "ask": 0}]), "supply entry 1"),
        (book(supply=10**9), "supply entry 1"),
        (book(floor=-1), "floor"),
        ("[]", "JSON object"),
        ("{", "not JSON"),
    ],
)
def test_a_bad_book_is_refused_by_the_name_of_its_entry(text: str, named: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_book(text)
    assert named in refused.value.problem
    assert refused.value.hint


def test_nobody_does_not_sell_to_nobody() -> None:
    read = parse_book(book({**GOOD, "owner": None}, supply=[{"quantity": 1, "seller": None}]))
    assert [win.bid.bid for win in clear(read).wins] == ["good"]
