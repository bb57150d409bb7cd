"""A checksum over the whole log: each event's covers its own text and the checksum before it.

So no event can be changed, left out or put in without every later one disagreeing. It finds what disks and
people do; who can write the database can also write a new chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

BEGIN = ""  # what stands before the first


def link(before: str, row: Any) -> str:  # noqa: ANN401 - a row of the events table, or what becomes one
    """The checksum of this event after `before`."""
    text = f"{before}\n{row['seq']}\n{row['at_s']}\n{row['kind']}\n{row['version']}\n{row['body']}"
    return hashlib.sha256(text.encode()).hexdigest()


def linked(before: str | None, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows with their checksums, to be written after an event that has this one."""
    chain = before or BEGIN
    for row in rows:
        chain = link(chain, row)
        yield {**row, "chain": chain}


def first_wrong(rows: Iterable[Any], *, begins: int) -> int | None:
    """The first event whose checksum is not what it must be; `begins`: the first that has one."""
    chain = BEGIN
    for row in rows:
        if row["seq"] < begins:
            continue
        chain = link(chain, row)
        if row["chain"] != chain:
            return int(row["seq"])
    return None
