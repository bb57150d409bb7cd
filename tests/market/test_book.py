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
    ("text", "code", "entry", "field"),
    [
        (book(GOOD, {**X, "limit": float("nan")}), "bad_number", 2, "limit"),
        (book(GOOD, {**X, "limit": float("inf")}), "bad_number", 2, "limit"),
        (book(GOOD, {**X, "quantity": float("nan")}), "bad_count", 2, "quantity"),
        (book(GOOD, {**X, "quantity": float("-inf")}), "bad_count", 2, "quantity"),
        (book(GOOD, {**X, "arrival": float("nan")}), "bad_arrival", 2, None),
        (book(GOOD, {**X, "hours": float("nan")}), "bad_number", 2, "hours"),
        (book(GOOD, {**X, "limit": 7}).replace("7", "1e" + 30 * "9"), "bad_number", 2, "limit"),
        (book(GOOD, {**X, "quantity": 7}).replace("7", "1e" + 30 * "9"), "bad_count", 2, "quantity"),
        (book(GOOD, {**X, "limit": 7}).replace("7", 5000 * "9"), "bad_number", 2, "limit"),
        (book(GOOD, {**X, "quantity": 7}).replace("7", 5000 * "9"), "bad_count", 2, "quantity"),
        (book(supply=[{"quantity": 4, "ask": float("nan")}]), "bad_number", 1, "ask"),
        (book(supply=float("nan")), "bad_supply", None, None),
        (book(supply=[7]), "bad_step", 1, None),
        (book(supply=[{"quantity": 4, "bought": "yes"}]), "bad_flag", 1, "bought"),
        (book(supply=2 * [{"quantity": 65_536}]), "supply_too_large", None, None),
        (book(floor=float("nan")), "bad_number", None, "floor"),
        (book(bonus_percent=101), "bad_bonus", None, None),
        (book(bids=7), "bids_not_list", None, None),
        (book(GOOD, {**X, "limit": "nan"}), "bad_number", 2, "limit"),
        (book(GOOD, {**X, "limit": True}), "bad_number", 2, "limit"),
        (book(GOOD, {**X, "limit": -1}), "bad_number", 2, "limit"),
        (book(GOOD, {**X, "quantity": -4}), "bad_count", 2, "quantity"),
        (book(GOOD, {**X, "quantity": 0}), "bad_count", 2, "quantity"),
        (book(GOOD, {**X, "limit": 0}), "too_little", 2, "limit"),
        (book(GOOD, {**X, "limit": 10**30}), "bad_number", 2, "limit"),
        (book(GOOD, {**X, "quantity": 10**30}), "bad_count", 2, "quantity"),
        (book(GOOD, {**X, "quantity": 1.5}), "bad_count", 2, "quantity"),
        (book(GOOD, {"bid": "x", "quantity": 1}), "missing", 2, "limit"),
        (book({"bid": "x", "quantity": 1, "priority": "soon"}), "no_such_class", 1, None),
        (book({"bid": "x", "quantity": 1, "priority": "urgent"}, floor=0), "class_without_price", 1, None),
        (book(GOOD, GOOD), "same_name", 2, None),
        (book({**GOOD, "arrival": 7}, {**GOOD, "bid": "x", "arrival": 5}), "arrivals_fall", 2, None),
        (book({**GOOD, "min_quantity": 2}), "least_above_quantity", 1, None),
        (book({"quantity": 1, "limit": 1}), "no_name", 1, None),
        (book(GOOD, 7), "bad_bid", 2, None),  # type: ignore[arg-type]
        (book(supply=[{"quantity": 4, "ask": 2}, {"quantity": 4, "ask": 1}]), "asks_fall", 2, None),
        (book(supply=[{"quantity": 4}, {"quantity": 0, "ask": 1}]), "bad_count", 2, "quantity"),
        (book(supply=[{"quantity": 4, "ask": 0}]), "too_little", 1, "ask"),
        (book(supply=[{"quantity": 4, "ask": 0.1}]), "ask_below_floor", 1, None),
        (book(supply=10**9), "bad_count", 1, "quantity"),
        (book(floor=-1), "bad_number", None, "floor"),
        (book(GOOD, {**X, "min_quantiy": 1}), "misspelt", 2, "min_quantiy"),
        (book(supply=[{"quantity": 4, "bougth": True}]), "misspelt", 1, "bougth"),
        (book(flor=1), "misspelt", None, "flor"),
        ("[]", "book_not_object", None, None),
        ("{", "book_not_json", None, None),
    ],
)
def test_a_bad_book_is_refused_by_the_name_of_its_entry(
    text: str, code: str, entry: int | None, field: str | None
) -> None:
    with pytest.raises(BadInput) as refused:
        parse_book(text)
    said = refused.value.said.as_dict()
    where = said.get("where", said)
    assert (said["code"], where.get("entry"), said.get("field")) == (f"market.{code}", entry, field)
    assert refused.value.hint


def test_a_field_unlike_any_of_a_book_is_left_alone() -> None:
    assert parse_book(book({**GOOD, "note": "for Friday"})) == parse_book(book(GOOD))


def test_nobody_does_not_sell_to_nobody() -> None:
    read = parse_book(book({**GOOD, "owner": None}, supply=[{"quantity": 1, "seller": None}]))
    assert [win.bid.bid for win in clear(read).wins] == ["good"]
