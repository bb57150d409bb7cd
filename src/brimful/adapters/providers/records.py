"""Recorded load and prices for a forecast, read from a file or refused with a clear reason.

Load: a CSV (or .csv.gz) with a row per hour and a column `gpus_NAME` for each pool.
Prices: a CSV with the columns instance_type, az, series; a series is `minutes:price` pairs separated by
spaces. Minutes count from the previous pair (the first: from 1970); an empty price means not listed from then
on.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from brimful.errors import BadInput, WorldFailed
from brimful.language import Quoted, os_words, say
from brimful.market.forecast import PriceSeries

_LONGEST = 4_000_000  # characters of one price series


def read_loads(path: Path) -> dict[str, list[float]]:
    """By pool, hour by hour."""
    loads: dict[str, list[float]] = {}
    for line, row in _rows(path):
        for column, text in row.items():
            if column.startswith("gpus_"):
                loads.setdefault(column.removeprefix("gpus_"), []).append(_number(text, path, line))
    if not loads:
        raise BadInput(say("adapters.no_loads", file=path.name))
    return loads


def read_prices(path: Path) -> dict[str, PriceSeries]:
    """By instance type and zone."""
    found: dict[str, PriceSeries] = {}
    for line, row in _rows(path):
        at_h: list[float] = []
        prices: list[float | None] = []
        minutes = 0.0
        for entry in (row.get("series") or "").split():
            passed, _, price = entry.partition(":")
            minutes += _number(passed, path, line)
            at_h.append(minutes / 60)
            prices.append(_number(price, path, line) or None if price else None)
        if at_h:
            name = f"{row.get('instance_type') or ''} {row.get('az') or ''}".strip()
            found[name] = PriceSeries(at_h, prices)
    if not found:
        raise BadInput(say("adapters.no_price_series", file=path.name))
    return found


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    opened = gzip.open if path.suffix == ".gz" else open
    csv.field_size_limit(_LONGEST)
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            yield from enumerate(csv.DictReader(file), 2)
    except OSError as error:
        raise WorldFailed(say("adapters.record_unreadable", file=path.name, error=os_words(error))) from error
    except (UnicodeDecodeError, csv.Error, EOFError) as error:
        raise BadInput(say("adapters.record_unreadable", file=path.name, error=str(error))) from error


def _number(text: str | None, path: Path, line: int) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e12:
        raise BadInput(
            say("adapters.record_number", file=path.name, line=line, text=Quoted((text or "")[:40]))
        )
    return value
