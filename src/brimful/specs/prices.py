"""Prices of a GPU-hour: the dated table shipped with brimful, or the user's own."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from brimful.errors import BadInput, NotFound
from brimful.files import read_given
from brimful.language import Quoted, os_words, say
from brimful.specs.gpu import find_gpu
from brimful.specs.names import read_table
from brimful.specs.toml import parse_toml
from brimful.units import MICROUSD, microusd_from_usd

_MAX_BYTES = 1_000_000
_OTHER_CURRENCIES = ("eur", "€", "gbp", "£", "chf", "cny", "rmb", "jpy", "¥", "inr", "cad", "aud")
_HINT = say("specs.how_to_write_prices")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    as_of: str
    source: str
    microusd_per_gpu_hour: dict[str, int]  # of one GPU on demand, by its name


@cache
def known_prices() -> Prices:
    """The table shipped with brimful; `prices.toml` says how it was made."""
    table = read_table("prices.toml")
    rows = {
        name: round(row["usd_per_hour"] * MICROUSD) for name, row in table.items() if isinstance(row, dict)
    }
    return Prices(as_of=table["as_of"], source=table["source"], microusd_per_gpu_hour=rows)


def read_prices(path: Path, names: Collection[str] = ()) -> Prices:
    """The user's own: TOML `name = dollars`, or a CSV of name and dollars; any name `brimful gpus` accepts.

    `names` are types as others spell them: Slurm's a100 may be any of four, and still has a price.
    """

    def too_long(_: int) -> BadInput:
        return BadInput(say("specs.prices_too_long", path=path), hint=_HINT)

    try:
        text = read_given(path, most=_MAX_BYTES, too_large=too_long).decode("utf-8")
    except OSError as error:
        raise BadInput(
            say("specs.cannot_read_prices", path=path, error=os_words(error)), hint=_HINT
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(say("specs.not_text", path=path), hint=_HINT) from error
    pairs = _csv(text, path) if path.suffix.lower() == ".csv" else _toml(text, path)
    rows = {}
    for name, dollars in pairs:
        try:
            gpu = name if name in names else find_gpu(name).name
        except NotFound as error:
            raise BadInput(
                say("specs.path_problem", path=path, problem=error.problem), hint=error.way_out
            ) from error
        microusd = microusd_from_usd(dollars)
        if not microusd:
            raise BadInput(
                say("specs.no_price", path=path, dollars=Quoted(dollars[:40]), gpu=gpu), hint=_HINT
            )
        rows[gpu] = microusd
    if not rows:
        raise BadInput(say("specs.no_prices", path=path), hint=_HINT)
    return Prices(as_of="", source=str(path), microusd_per_gpu_hour=rows)


def _csv(text: str, path: Path) -> list[tuple[str, str]]:
    import csv

    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    # The first line may be a header: it has no price, and its first word is not a card, since all of those
    # have digits.
    head = rows[0] if rows else []
    if len(head) > 1 and not microusd_from_usd(head[1]) and not any(sign.isdigit() for sign in head[0]):
        rows = rows[1:]
        if any(other in head[1].lower() for other in _OTHER_CURRENCIES):
            raise BadInput(say("specs.prices_in_dollars", path=path, unit=Quoted(head[1][:40])), hint=_HINT)
    wrong = next((row for row in rows if len(row) < 2 or any(row[2:])), None)
    if wrong is not None:  # 1,80 would be read as 1
        raise BadInput(say("specs.price_row", path=path, row=Quoted(",".join(wrong)[:60])), hint=_HINT)
    return [(row[0], row[1]) for row in rows]


def _toml(text: str, path: Path) -> list[tuple[str, str]]:
    try:
        table: dict[str, Any] = parse_toml(text, name=str(path))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(say("specs.not_toml", path=path, problem=str(error)[:120]), hint=_HINT) from error
    return [(name, str(value)) for name, value in table.items() if isinstance(value, int | float | str)]
