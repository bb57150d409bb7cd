"""The rehearsing process: one question on standard input, one answer on standard output.

It reads the log from the database itself, so that this costs the server nothing. It yields to everything else
on the machine, and exits when it has used up its CPU time or memory.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.events import Event, PolicyRehearsed, to_record
from brimful.market.pools import Market
from brimful.sim.past import PastReader, rehearse_all, resized

MEMORY_BYTES = 4 << 30
NICE = 10  # the loop has -10, if the server may set it


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    database: str
    start_s: int
    end_s: int
    policies: tuple[str, ...]
    market: Market | None
    cpu_s: int
    sizes: tuple[int, ...] = (0,)  # nodes added or removed


def answered(asked: Question) -> list[PolicyRehearsed]:
    """One per size."""
    reader = PastReader()
    reader.expect(asked.start_s)
    store = SqlStore(asked.database)
    try:
        reader.read(_events(store))
    finally:
        store.close()
    past = reader.past(asked.start_s, asked.end_s)
    return [rehearse_all(resized(past, nodes), asked.policies, market=asked.market) for nodes in asked.sizes]


def _events(store: SqlStore) -> Iterator[Event]:
    """Events that existed when it started: a busy log would never end.

    Not cut by time: engines report their own times, so an event can be a second older than the previous event
    in the log, on which it depends.
    """
    seq, end = 0, store.end()
    while seq < end and (more := store.since(seq)):
        yield from more[: end - seq]
        seq += len(more)


def main() -> None:
    os.nice(NICE)
    asked: Question = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the server that started us
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (asked.cpu_s, asked.cpu_s))
    found = [to_record(each) for each in answered(asked)]
    used = resource.getrusage(resource.RUSAGE_SELF)
    for record in found:
        record[2]["cpu_ms"] = round(1000 * (used.ru_utime + used.ru_stime))  # all of it, also reading the log
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
