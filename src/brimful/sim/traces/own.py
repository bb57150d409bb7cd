"""brimful's own trace format: a CSV with one job a row.

Columns: job, submit_s, run_s, gpus; and if wanted: name, tenant, priority, gpu (an allowed GPU type).
Times are whole seconds, rows stand in order of submit_s.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from brimful.errors import BadInput, NotFound, WorldFailed
from brimful.fleet.job import PRIORITIES, Job
from brimful.sim.world import Arrival

NEEDED = ("job", "submit_s", "run_s", "gpus")
# Ten years and a million GPUs: past these a number is a slip of the pen, not a wish.
MAX_S = 10 * 366 * 86400
MAX_GPUS = 1_000_000


def read_trace(path: Path) -> list[Arrival]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return parse(file, name=str(path))
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="give the path of a CSV trace") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not a text file", hint="a trace is a CSV in UTF-8") from error
    except IsADirectoryError as error:
        raise BadInput(f"{path} is a folder", hint="give the path of a CSV trace") from error
    except OSError as error:
        raise WorldFailed(f"cannot read {path}: {error.strerror}") from error


def parse(lines: Iterable[str], *, name: str = "the trace") -> list[Arrival]:
    rows = csv.DictReader(lines, strict=True)
    arrivals: list[Arrival] = []
    seen: set[str] = set()
    try:
        missing = [column for column in NEEDED if column not in (rows.fieldnames or [])]
        if missing:
            raise BadInput(
                f"{name} has no column {', '.join(missing)}",
                hint=f"the first row names the columns; needed are {', '.join(NEEDED)}",
            )
        for row in rows:
            where = f"{name} row {rows.line_num}"
            arrival = _arrival(row, where)
            if arrival.job.job in seen:
                raise BadInput(f"{where}: job {arrival.job.job!r} was there before", hint="ids are unique")
            if arrivals and arrival.at_s < arrivals[-1].at_s:
                raise BadInput(
                    f"{where}: submit_s {arrival.at_s} is before the previous row's {arrivals[-1].at_s}",
                    hint="sort the rows by submit_s",
                )
            seen.add(arrival.job.job)
            arrivals.append(arrival)
    except csv.Error as error:
        raise BadInput(f"{name} row {rows.line_num}: {error}", hint="a trace is a plain CSV") from error
    if not arrivals:
        raise BadInput(f"{name} has no jobs", hint="add at least one row below the column names")
    return arrivals


def _arrival(row: dict[str, str | None], where: str) -> Arrival:
    name = (row["job"] or "").strip()
    if not name:
        raise BadInput(f"{where}: job is empty", hint="every row needs an id of its own")
    priority = (row.get("priority") or "normal").strip()
    if priority not in PRIORITIES:
        raise BadInput(f"{where}: priority {priority!r} is not known", hint=f"one of {', '.join(PRIORITIES)}")
    gpu = (row.get("gpu") or "").strip()
    job = Job(
        job=name,
        gpus=_whole(row, "gpus", where, low=1, high=MAX_GPUS),
        name=(row.get("name") or "").strip(),
        tenant=(row.get("tenant") or "default").strip(),
        priority=priority,
        gpu_types=(gpu,) if gpu else (),
    )
    return Arrival(
        at_s=_whole(row, "submit_s", where, low=0, high=MAX_S),
        job=job,
        work_s=_whole(row, "run_s", where, low=0, high=MAX_S),
    )


def _whole(row: dict[str, str | None], column: str, where: str, *, low: int, high: int) -> int:
    text = (row[column] or "").strip()
    try:
        value = int(text) if len(text) <= 20 else None
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise BadInput(f"{where}: {column} is {text[:40]!r}", hint=f"a whole number from {low:,} to {high:,}")
    return value
