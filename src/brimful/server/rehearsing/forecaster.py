"""When a job that somebody is writing would start: rehearsed beside the server and cached for a minute."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

from brimful.adapters.stores.sql import SqlStore
from brimful.client.checks import ForecastAnswer
from brimful.fleet.job import Job
from brimful.server.rehearsing import forecast_worker
from brimful.server.rehearsing.forecast_worker import Foreseer, Question, packed
from brimful.server.service.log_reader import LogReader
from brimful.server.service.reader import Reader
from brimful.sim.forecast import Start

log = logging.getLogger("brimful")

SMALL = 300  # events, and jobs: small enough to rehearse here in milliseconds; a process costs more
SMALL_CPU_S = 0.1
CPU_S = 2.0  # CPU seconds per answer; the first read of a log comes on top
FRESH_S = 60
MOST_KEPT = 200
MOST_ASKED = 8  # waiting for the process; others must ask again
MOST_OF_ONE = 3  # of those, for one team: a team that changes its job with every question leaves room


@dataclass(frozen=True, slots=True)
class Kept:
    at_s: int
    answer: ForecastAnswer | None  # None: it could not be rehearsed


class Forecaster:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._here = Foreseer(lambda seq: reader.store.since(seq))  # noqa: PLW0108 - a schema has no store
        self.log_reader = LogReader(forecast_worker.__name__)
        self._one_at_a_time, self._keeping = threading.Lock(), threading.Lock()
        self._kept: dict[Job, Kept] = {}
        self._asked: set[Job] = set()

    def so_far(self, job: Job) -> tuple[ForecastAnswer | None, bool]:
        """The newest answer so far, and whether one is being rehearsed. Never blocks for long."""
        # What the job runs does not matter here, and changes with every keystroke.
        job = replace(job, command=(), folder="", env=(), key="", code="")
        now_s = self._reader.now_s()
        with self._keeping:
            kept = self._kept.get(job)
            if kept is not None and now_s < kept.at_s + FRESH_S:
                return kept.answer, False
            is_small = self._is_small()
            if not is_small and job not in self._asked and self._has_place(job):
                self._asked.add(job)
                threading.Thread(target=self._rehearse, args=(job,), name="forecast", daemon=True).start()
        if is_small:
            return self._rehearse(job), False
        return None if kept is None else kept.answer, True

    def _has_place(self, job: Job) -> bool:
        theirs = sum(each.tenant == job.tenant for each in self._asked)
        return len(self._asked) < MOST_ASKED and theirs < MOST_OF_ONE

    def _is_small(self) -> bool:
        reader = self._reader
        return (reader.fleet.seq <= SMALL and len(reader.fleet.jobs) <= SMALL) or not isinstance(
            reader.store, SqlStore
        )

    def _rehearse(self, job: Job) -> ForecastAnswer | None:
        found: ForecastAnswer | None = None
        now_s = self._reader.now_s()
        try:
            with self._one_at_a_time:
                found = _answer(self._starts(job, now_s))
        except Exception:  # a forecast is optional: without one the page says less
            log.exception("internal error in a forecast")
        finally:
            with self._keeping:
                self._asked.discard(job)
                if len(self._kept) >= MOST_KEPT:
                    self._kept.clear()
                self._kept[job] = Kept(now_s, found)
        return found

    def _starts(self, job: Job, now_s: int) -> list[Start]:
        reader, is_small = self._reader, self._is_small()
        asked = Question(
            job=job,
            rules=reader.rules,
            market=reader.market,
            now_s=now_s,
            cpu_s=SMALL_CPU_S if is_small else CPU_S,
        )
        if is_small or not isinstance(reader.store, SqlStore):
            return self._here.answer(asked)
        for said in self.log_reader.ask(reader.store, packed(asked)):
            return [Start(**each) for each in said["starts"]]
        return []

    def close(self) -> None:
        self.log_reader.close()


def _answer(starts: list[Start]) -> ForecastAnswer | None:
    """The median of the tries and their range; a job that did not start in a try starts after its end."""
    if not starts:
        return None
    by_start = sorted(starts, key=lambda each: (each.at_s is None, each.at_s or each.until_s))
    likely = by_start[(len(by_start) - 1) // 2]
    return {
        "earliest_s": by_start[0].at_s,
        "likely_s": likely.at_s,
        "latest_s": by_start[-1].at_s,
        "until_s": min(each.until_s for each in starts if each.at_s is None)
        if by_start[-1].at_s is None
        else None,
        "site": likely.site,
        "gpu": likely.gpu,
        "tries": len(starts),
    }
