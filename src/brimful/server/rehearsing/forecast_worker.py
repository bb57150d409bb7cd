"""When a job would start, from the log alone; also runs as a process (`log_reader.py`)."""

from __future__ import annotations

import base64
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.events import Event
from brimful.fleet.job import Job
from brimful.market.pools import Market
from brimful.scheduler.rules import Rules
from brimful.server.service.log_reader import answer_lines
from brimful.sim.forecast import Start, starts_of
from brimful.sim.past import PastReader
from brimful.sim.world import gc_paused


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    job: Job
    rules: Rules
    market: Market | None
    now_s: int
    cpu_s: float  # CPU limit for the answer


class Foreseer:
    """The log so far. What was read is kept, so that the next question reads only what came after."""

    def __init__(self, since: Callable[[int], Sequence[Event]]) -> None:
        self._since, self._past, self._seq = since, PastReader(), 0

    def answer(self, asked: Question) -> list[Start]:
        while more := self._since(self._seq):
            self._past.read(more)
            self._seq += len(more)
        until_s = time.thread_time() + asked.cpu_s
        return starts_of(
            self._past,
            asked.job,
            asked.rules,
            now_s=asked.now_s,
            market=asked.market,
            is_spent=lambda: time.thread_time() > until_s,
        )


def packed(asked: Question) -> dict[str, str]:
    return {"asked": base64.b64encode(pickle.dumps(asked)).decode()}


def begin(store: SqlStore) -> Callable[[dict[str, Any]], Iterator[dict[str, Any]]]:
    foreseer = Foreseer(store.since)

    def answers(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
        asked: Question = pickle.loads(base64.b64decode(line["asked"]))  # noqa: S301 - from our server
        with gc_paused():
            found = foreseer.answer(asked)
        yield {"starts": [asdict(each) for each in found]}

    return answers


if __name__ == "__main__":
    answer_lines(begin)
