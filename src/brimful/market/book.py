"""A book as users write it: JSON in, a `Book` out, or an error that names the entry. All or nothing.

There, money is in dollars per GPU-hour; it is rounded to the micro-dollar once, here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NoReturn

from brimful.errors import BadInput
from brimful.language import Plain, Quoted, Sentence, Usd, count, either, say
from brimful.market.bid import PRESETS, Bid, Book, Step, preset_limit
from brimful.units import MICROUSD

MOST_UNITS = 65_536
MOST_BIDS = 1_000_000
MOST_USD = 1_000_000  # per GPU-hour: more is a typing error
_MOST_DIGITS = 100

_NAMES: dict[str, tuple[str, ...]] = {
    "bid": ("bid", "id", "name"),
    "quantity": ("quantity", "gpus"),
    "min_quantity": ("min_quantity", "min_gpus", "min"),
    "limit": ("limit", "limit_usd", "limit_usd_per_gpu_hour"),
    "ask": ("ask", "ask_usd", "price"),
}
_BOOK = ("pool", "floor", "bonus_percent", "supply", "last_price", "bids")
_STEP = (*_NAMES["quantity"], *_NAMES["ask"], "bought", "seller")
_BID = (
    *(name for key in ("bid", "quantity", "min_quantity", "limit") for name in _NAMES[key]),
    *("arrival", "hours", "loss_hours", "running", "owner", "priority"),
)


def parse_book(text: str) -> Book:
    """The book in a JSON text."""
    try:
        # Decimal keeps the digits as written. Anything that is not a number is refused when its entry is
        # read.
        body: object = json.loads(text, parse_float=_decimal, parse_int=_integer, parse_constant=Decimal)
    except (ValueError, RecursionError) as error:
        raise BadInput(say("market.book_not_json", error=error)) from error
    if not isinstance(body, dict):
        raise BadInput(say("market.book_not_object"))
    book = say("market.book")
    _check_spelling(body, book, _BOOK)
    floor = _money(body.get("floor", 0), book, "floor", zero=True)
    bonus = body.get("bonus_percent", 25)
    if not _is_integer(bonus) or not 0 <= bonus <= 100:
        _bad(say("market.bad_bonus", value=_shown(bonus)))
    supply = _supply(body.get("supply"), floor)
    last = _money(body.get("last_price", 0), book, "last_price", zero=True)
    bids = _bids(body.get("bids"), reference=max(floor, last))
    return Book(pool=str(body.get("pool", "pool"))[:200], supply=supply, bids=bids, bonus_percent=int(bonus))


def _supply(given: object, floor: int) -> tuple[Step, ...]:
    if _is_integer(given):
        given = [{"quantity": given}]
    if not isinstance(given, list) or not given:
        _bad(say("market.bad_supply", value=_shown(given)))
    steps: list[Step] = []
    for i, entry in enumerate(given):
        where = say("market.supply_entry", entry=Plain(i + 1))
        if not isinstance(entry, dict):
            _bad(say("market.bad_step", where=where, value=_shown(entry)))
        _check_spelling(entry, where, _STEP)
        ask = _money(_get(entry, "ask"), where, "ask") if _get(entry, "ask") is not None else floor
        if ask < floor:
            _bad(say("market.ask_below_floor", where=where, ask=Usd(ask), floor=Usd(floor)))
        if steps and ask < steps[-1].ask:
            _bad(say("market.asks_fall", where=where, ask=Usd(ask), before=Usd(steps[-1].ask)))
        step = Step(
            quantity=_count(_get(entry, "quantity"), where, "quantity", most=MOST_UNITS),
            ask=ask,
            bought=_flag(entry.get("bought", False), where, "bought"),
            seller=_name(entry.get("seller")),
        )
        steps.append(step)
    if (units := sum(step.quantity for step in steps)) > MOST_UNITS:
        _bad(say("market.supply_too_large", gpus=count("gpu", units), most=MOST_UNITS))
    return tuple(steps)


def _bids(given: object, *, reference: int) -> tuple[Bid, ...]:
    if not isinstance(given, list):
        _bad(say("market.bids_not_list", value=_shown(given)))
    if len(given) > MOST_BIDS:
        _bad(say("market.too_many_bids", bids=len(given), most=MOST_BIDS))
    bids: list[Bid] = []
    seen: dict[str, int] = {}
    for i, entry in enumerate(given):
        if not isinstance(entry, dict):
            _bad(say("market.bad_bid", entry=Plain(i + 1), value=_shown(entry)))
        bid = _bid(entry, i, reference=reference)
        if bid.bid in seen:
            _bad(say("market.same_name", where=_entry(bid.bid, i), other=Plain(seen[bid.bid] + 1)))
        if bids and bid.arrival < bids[-1].arrival:
            before = Plain(bids[-1].arrival)
            where = _entry(bid.bid, i)
            _bad(say("market.arrivals_fall", where=where, arrival=Plain(bid.arrival), before=before))
        seen[bid.bid] = i
        bids.append(bid)
    return tuple(bids)


def _entry(name: str, i: int) -> Sentence:
    return say("market.bid_entry", bid=Quoted(name), entry=Plain(i + 1))


def _bid(entry: Mapping[str, Any], i: int, *, reference: int) -> Bid:
    name = _get(entry, "bid")
    if not isinstance(name, str | int) or isinstance(name, bool) or not str(name).strip():
        _bad(say("market.no_name", entry=Plain(i + 1)))
    name = str(name)[:200]
    where = _entry(name, i)
    _check_spelling(entry, where, _BID)
    quantity = _count(_get(entry, "quantity"), where, "quantity", most=1_000_000)
    least = _get(entry, "min_quantity")
    least = quantity if least is None else _count(least, where, "min_quantity", most=1_000_000)
    if least > quantity:
        _bad(say("market.least_above_quantity", where=where, least=least, quantity=quantity))
    arrival = entry.get("arrival", i)
    if not _is_integer(arrival) or abs(arrival) > 2**62:
        _bad(say("market.bad_arrival", where=where, value=_shown(arrival)))
    hours, lost = entry.get("hours"), entry.get("loss_hours")
    return Bid(
        bid=name,
        quantity=quantity,
        min_quantity=least,
        limit=_limit(entry, where, reference),
        arrival=int(arrival),
        running=_flag(entry.get("running", False), where, "running"),
        owner=_name(entry.get("owner")),
        expected_s=None if hours is None else int(_number(hours, where, "hours") * 3600),
        loss_s=0 if lost is None else int(_number(lost, where, "loss_hours") * 3600),
    )


def _limit(entry: Mapping[str, Any], where: Sentence, reference: int) -> int:
    given, priority = _get(entry, "limit"), entry.get("priority")
    if given is None and isinstance(priority, str):
        if priority not in PRESETS:
            _bad(say("market.no_such_class", where=where, value=_shown(priority), known=either([*PRESETS])))
        if not reference:
            _bad(say("market.class_without_price", where=where))
        return preset_limit(priority, price=reference)
    return _money(given, where, "limit")


def _name(given: object) -> str:
    """Name of an owner or a seller. Null is anonymous: two of them are not the same one."""
    return "" if given is None else str(given)[:200]


def _get(entry: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - JSON
    return next((entry[name] for name in _NAMES[key] if name in entry), None)


def _check_spelling(entry: Mapping[str, Any], where: Sentence, known: tuple[str, ...]) -> None:
    """Refuse a misspelt field: it would be ignored silently. Unrelated extra fields are fine."""
    for field in entry:
        if field not in known and (near := _near(field[:60], known)):
            _bad(say("market.misspelt", where=where, field=field[:60], name=near))


@lru_cache(maxsize=256)  # a book may have a million bids with the same fields
def _near(field: str, known: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(field, known, n=1, cutoff=0.8)), "")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(value: object, where: Sentence, field: str, *, most: int) -> int:
    if isinstance(value, Decimal) and value == value.to_integral_value() and abs(value) < 10**12:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        _bad(say("market.bad_count", where=where, field=field, value=_shown(value), most=most))
    return value


def _number(value: object, where: Sentence, field: str) -> Decimal:
    number = Decimal("NaN")
    if isinstance(value, int | float | str | Decimal) and not isinstance(value, bool):
        with suppress(InvalidOperation):
            number = Decimal(str(value).removeprefix("$")) if len(str(value)) < _MOST_DIGITS else number
    if not number.is_finite() or not 0 <= number <= MOST_USD:
        _bad(say("market.bad_number", where=where, field=field, value=_shown(value), most=MOST_USD))
    return number


def _money(value: object, where: Sentence, field: str, *, zero: bool = False) -> int:
    if value is None:
        _bad(say("market.missing", where=where, field=field))
    microusd = round(_number(value, where, field) * MICROUSD)
    if microusd == 0 and not zero:
        _bad(say("market.too_little", where=where, field=field, value=_shown(value)))
    return microusd


def _flag(value: object, where: Sentence, field: str) -> bool:
    if not isinstance(value, bool):
        _bad(say("market.bad_flag", where=where, field=field, value=_shown(value)))
    return value


def _decimal(digits: str) -> Decimal | str:
    try:
        return Decimal(digits)
    except InvalidOperation:  # an absurd exponent
        return digits


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < _MOST_DIGITS else digits


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 40 else text[:40] + "…"


def _bad(said: Sentence) -> NoReturn:
    raise BadInput(said, code="bad_book")
