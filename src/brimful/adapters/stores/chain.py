"""A checksum over the whole log: each event's covers its own text and the previous checksum.

So no event can be changed, removed or inserted without breaking every later one. It catches faults of disks
and people; anyone who can write to the database can also write a new chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

BEGIN = ""  # before the first event


def link(before: str, row: Any) -> str:  # noqa: ANN401 - a row of the events table, or what becomes one
    """The checksum of this event after `before`."""
    text = f"{before}\n{row['seq']}\n{row['at_s']}\n{row['kind']}\n{row['version']}\n{row['body']}"
    return hashlib.sha256(text.encode()).hexdigest()


def linked(before: str | None, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows with their checksums, to be appended after the event with this one."""
    chain = before or BEGIN
    for row in rows:
        chain = link(chain, row)
        yield {**row, "chain": chain}


def first_wrong(rows: Iterable[Any], *, begins: int) -> int | None:
    """The first event with a wrong checksum; `begins`: the first event that has one."""
    chain = BEGIN
    for row in rows:
        if row["seq"] < begins:
            continue
        chain = link(chain, row)
        if row["chain"] != chain:
            return int(row["seq"])
    return None
