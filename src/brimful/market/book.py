"""A book as people write it: JSON in, a `Book` out, or an error that names the entry. Nothing is half-read.

Money is in dollars per GPU-hour there and is rounded to the micro-dollar once, here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from brimful.errors import BadInput
from brimful.language import say
from brimful.market.bid import PRESETS, Bid, Book, Step, preset_limit
from brimful.units import MICROUSD

MOST_UNITS = 65_536
MOST_BIDS = 1_000_000
MOST_USD = 1_000_000  # per GPU-hour: above this it is a slip of the pen
_MOST_DIGITS = 100

_NAMES: dict[str, tuple[str, ...]] = {
    "bid": ("bid", "id", "name"),
    "quantity": ("quantity", "gpus"),
    "min_quantity": ("min_quantity", "min_gpus", "min"),
    "limit": ("limit", "limit_usd", "limit_usd_per_gpu_hour"),
    "ask": ("ask", "ask_usd", "price"),
}


def parse_book(text: str) -> Book:
    """The book in a JSON text."""
    try:
        # Decimal keeps the digits as they were written. What is no number is refused where its entry is read.
        body: object = json.loads(text, parse_float=_decimal, parse_int=_integer, parse_constant=Decimal)
    except (ValueError, RecursionError) as error:
        raise BadInput(say("market.book_not_json", error=error)) from error
    if not isinstance(body, dict):
        raise BadInput(say("market.book_not_json_object"))
    return read_book(body)


def read_book(body: Mapping[str, Any]) -> Book:
    floor = _money(body.get("floor", 0), "the book's floor", zero=True)
    bonus = body.get("bonus_percent", 25)
    if not _is_integer(bonus) or not 0 <= bonus <= 100:
        _bad("the book's bonus_percent", f"is {_shown(bonus)}", "a whole number from 0 to 100")
    supply = _supply(body.get("supply"), floor)
    last = _money(body.get("last_price", 0), "the book's last_price", zero=True)
    bids = _bids(body.get("bids"), reference=max(floor, last))
    return Book(pool=str(body.get("pool", "pool"))[:200], supply=supply, bids=bids, bonus_percent=int(bonus))


def _supply(given: object, floor: int) -> tuple[Step, ...]:
    if _is_integer(given):
        given = [{"quantity": given}]
    if not isinstance(given, list) or not given:
        _bad("the book's supply", f"is {_shown(given)}", "a number of GPUs, or a list of steps")
    steps: list[Step] = []
    for i, entry in enumerate(given):
        where = f"supply entry {i + 1}"
        if not isinstance(entry, dict):
            _bad(where, f"is {_shown(entry)}", 'an object such as {"quantity": 8, "ask": 1.25}')
        ask = _money(_get(entry, "ask"), f"the ask of {where}") if _get(entry, "ask") is not None else floor
        if ask < floor:
            _bad(
                where,
                f"asks {ask / MICROUSD:g}, below the floor {floor / MICROUSD:g}",
                "raise it or drop the floor",
            )
        if steps and ask < steps[-1].ask:
            _bad(where, f"asks {ask / MICROUSD:g} after {steps[-1].ask / MICROUSD:g}", "the cheapest first")
        step = Step(
            quantity=_count(_get(entry, "quantity"), f"the quantity of {where}", most=MOST_UNITS),
            ask=ask,
            bought=_flag(entry.get("bought", False), f"`bought` of {where}"),
            seller=_name(entry.get("seller")),
        )
        steps.append(step)
    if (units := sum(step.quantity for step in steps)) > MOST_UNITS:
        _bad("the book's supply", f"is {units:,} GPUs", f"at most {MOST_UNITS:,} in one pool")
    return tuple(steps)


def _bids(given: object, *, reference: int) -> tuple[Bid, ...]:
    if not isinstance(given, list):
        _bad("the book's bids", f"are {_shown(given)}", "a list")
    if len(given) > MOST_BIDS:
        _bad("the book's bids", f"are {len(given):,}", f"at most {MOST_BIDS:,}")
    bids: list[Bid] = []
    seen: dict[str, int] = {}
    for i, entry in enumerate(given):
        if not isinstance(entry, dict):
            _bad(
                f"bid entry {i + 1}",
                f"is {_shown(entry)}",
                'an object such as {"bid": "a", "quantity": 8, "limit": 2}',
            )
        bid = _bid(entry, i, reference=reference)
        where = f"bid {bid.bid!r} (entry {i + 1})"
        if bid.bid in seen:
            _bad(where, f"has the name of entry {seen[bid.bid] + 1}", "a name of its own")
        if bids and bid.arrival < bids[-1].arrival:
            _bad(where, f"has arrival {bid.arrival} after {bids[-1].arrival}", "entries in order of arrival")
        seen[bid.bid] = i
        bids.append(bid)
    return tuple(bids)


def _bid(entry: Mapping[str, Any], i: int, *, reference: int) -> Bid:
    name = _get(entry, "bid")
    if not isinstance(name, str | int) or isinstance(name, bool) or not str(name).strip():
        _bad(f"bid entry {i + 1}", "has no name", '"bid": a name of its own')
    name = str(name)[:200]
    where = f"bid {name!r} (entry {i + 1})"
    quantity = _count(_get(entry, "quantity"), f"the quantity of {where}", most=1_000_000)
    least = _get(entry, "min_quantity")
    least = quantity if least is None else _count(least, f"the min_quantity of {where}", most=1_000_000)
    if least > quantity:
        _bad(
            where,
            f"has min_quantity {least} above its quantity {quantity}",
            "a minimum of at most the quantity",
        )
    arrival = entry.get("arrival", i)
    if not _is_integer(arrival) or abs(arrival) > 2**62:
        _bad(where, f"has arrival {_shown(arrival)}", "a whole number")
    hours = entry.get("hours")
    return Bid(
        bid=name,
        quantity=quantity,
        min_quantity=least,
        limit=_limit(entry, where, reference),
        arrival=int(arrival),
        running=_flag(entry.get("running", False), f"`running` of {where}"),
        owner=_name(entry.get("owner")),
        expected_s=None if hours is None else int(_number(hours, f"the hours of {where}") * 3600),
    )


def _limit(entry: Mapping[str, Any], where: str, reference: int) -> int:
    given, priority = _get(entry, "limit"), entry.get("priority")
    if given is None and isinstance(priority, str):
        if priority not in PRESETS:
            _bad(where, f"has priority {_shown(priority)}", " or ".join(PRESETS))
        if not reference:
            _bad(
                where,
                "names a class, and there is no price to take a multiple of",
                "last_price or floor in the book",
            )
        return preset_limit(priority, price=reference)
    return _money(given, f"the limit of {where}")


def _name(given: object) -> str:
    """Of an owner or a seller. Null is nobody: two of them are not the same one."""
    return "" if given is None else str(given)[:200]


def _get(entry: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - JSON
    return next((entry[name] for name in _NAMES[key] if name in entry), None)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(value: object, what: str, *, most: int) -> int:
    if isinstance(value, Decimal) and value == value.to_integral_value() and abs(value) < 10**12:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        _bad(what, f"is {_shown(value)}", "a whole number of GPUs")
    if not 1 <= value <= most:
        _bad(what, f"is {_shown(value)}", f"from 1 to {most:,}")
    return value


def _number(value: object, what: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        _bad(what, f"is {_shown(value)}", "a number")
    try:
        number = Decimal(str(value).removeprefix("$")) if len(str(value)) < _MOST_DIGITS else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        _bad(what, f"is {_shown(value)}", "a number")
    if number < 0:
        _bad(what, f"is {_shown(value)}", "zero or more")
    if number > MOST_USD:
        _bad(what, f"is {_shown(value)}", f"at most {MOST_USD:,}")
    return number


def _money(value: object, what: str, *, zero: bool = False) -> int:
    if value is None:
        _bad(what, "is missing", "dollars per GPU-hour")
    microusd = round(_number(value, what) * MICROUSD)
    if microusd == 0 and not zero:
        _bad(what, f"is {_shown(value)}", "at least a millionth of a dollar per GPU-hour")
    return microusd


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        _bad(what, f"is {_shown(value)}", "true or false")
    return value


def _decimal(digits: str) -> Decimal | str:
    try:
        return Decimal(digits)
    except InvalidOperation:  # an exponent beyond all reason
        return digits


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < _MOST_DIGITS else digits


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 40 else text[:40] + "…"


def _bad(what: str, problem: str, wanted: str) -> NoReturn:
    raise BadInput(say("market.what_problem", what=what, problem=problem, wanted=wanted), code="bad_book")
