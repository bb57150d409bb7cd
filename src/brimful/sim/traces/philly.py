"""Microsoft's Philly trace of 2017, as published and in the short form others made of it.

The published `cluster_job_log` is a JSON list of jobs: jobid, vc, user, status, submitted_time and
attempts, each with start_time, end_time and detail = [{ip, gpus: [...]}]. The short form is a CSV with
timestamp, duration, num_gpus and, if known, cluster (the virtual cluster). Times are local and without a
zone; only differences count. Source: github.com/msr-fiddle/philly-traces; Jeon et al., Analysis of Large-
Scale Multi-Tenant GPU Clusters, USENIX ATC 2019.

A job's work is the sum of its attempts. Jobs that never held a GPU are left out, and counted in a note.
Gangs may use any GPUs: Philly's own scheduler gave up locality for those that waited.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from brimful.errors import BadInput
from brimful.fleet.job import Job
from brimful.language import Number, Quoted, count, say
from brimful.sim.traces.reading import (
    MAX_GPUS,
    MAX_S,
    RESTART_S,
    Row,
    Skips,
    Source,
    Trace,
    entry,
    from_zero,
    in_order,
    integer,
    number,
    second,
    table,
)
from brimful.sim.world import Arrival

COLUMNS = ("timestamp", "duration", "num_gpus")


def recognises_csv(head: str) -> bool:
    return set(COLUMNS) <= {column.strip() for column in head.partition("\n")[0].split(",")}


def recognises_json(head: str) -> bool:
    return head.lstrip().startswith("[") and '"submitted_time"' in head and '"attempts"' in head


def read_csv(source: Source, skips: Skips) -> Trace:
    found = from_zero(_rows(source.lines(), source.name, skips), skips)
    arrivals = in_order(found, name=source.name, skips=skips, sort=True)
    return Trace(format="Philly", arrivals=arrivals)


def read_json(source: Source, skips: Skips) -> Trace:
    try:
        jobs = json.loads(source.text())
    except (ValueError, RecursionError) as error:
        raise BadInput(say("sim.not_json", name=source.name, error=error)) from error
    if not isinstance(jobs, list):
        raise BadInput(say("sim.not_a_job_list", name=source.name))
    idle: list[str] = []
    found = from_zero(_jobs(jobs, source.name, skips, idle), skips)
    arrivals = in_order(found, name=source.name, skips=skips, sort=True)
    notes = [say("sim.left_out_never_held", jobs=count("job", len(idle)))] if idle else []
    return Trace(format="Philly", arrivals=arrivals, notes=notes)


def _rows(lines: Iterable[str], name: str, skips: Skips) -> Iterator[tuple[str, Arrival]]:
    for i, (where, row) in enumerate(table(lines, name=name, needed=COLUMNS, skips=skips)):
        try:
            yield where, _row(row, where, job=f"philly-{i}")
        except BadInput as error:
            skips.note(error)


def _row(row: Row, where: str, *, job: str) -> Arrival:
    return Arrival(
        at_s=_second(entry(row, "timestamp"), "timestamp", where),
        job=Job(
            job=job,
            gpus=integer(row, "num_gpus", where, low=1, high=MAX_GPUS),
            within="any",
            tenant=entry(row, "cluster") or "default",
            checkpoint_interval_s=0,
            checkpoint_cost_s=RESTART_S,
        ),
        work_s=number(row, "duration", where, low=0, high=MAX_S),
    )


def _jobs(jobs: list[Any], name: str, skips: Skips, idle: list[str]) -> Iterator[tuple[str, Arrival]]:
    for i, record in enumerate(jobs, start=1):
        where = f"{name} job {i}"
        try:
            arrival = _job(record, where)
        except BadInput as error:
            skips.note(error)
            continue
        if arrival is None:
            idle.append(where)
        else:
            yield where, arrival


def _job(record: object, where: str) -> Arrival | None:
    if not isinstance(record, dict) or not isinstance(record.get("attempts"), list):
        raise BadInput(say("sim.no_attempts", where=where))
    job = str(record.get("jobid") or "")
    if not job:
        raise BadInput(say("sim.no_id", where=where, column="jobid"))
    run_s, gpus = 0, 0
    for attempt in record["attempts"]:
        if not isinstance(attempt, dict):
            raise BadInput(say("sim.bad_attempt", where=where, attempt=Quoted(attempt)))
        began, ended = attempt.get("start_time"), attempt.get("end_time")
        if _missing(began) or _missing(ended):
            continue
        spent = _second(str(ended), "end_time", where) - _second(str(began), "start_time", where)
        if spent < 0:
            raise BadInput(say("sim.attempt_ends_early", where=where, seconds=Number(-spent)))
        run_s += spent
        gpus = max(gpus, _gpus(attempt.get("detail"), where))
    if gpus == 0:
        return None
    return Arrival(
        at_s=_second(str(record.get("submitted_time")), "submitted_time", where),
        job=Job(
            job=job,
            gpus=gpus,
            within="any",
            name=str(record.get("user") or ""),
            tenant=str(record.get("vc") or "default"),
            checkpoint_interval_s=0,
            checkpoint_cost_s=RESTART_S,
        ),
        work_s=run_s,
    )


def _missing(value: object) -> bool:
    return value is None or str(value).strip() in ("", "None")


def _gpus(detail: object, where: str) -> int:
    if not isinstance(detail, list):
        return 0
    if not all(isinstance(node, dict) and isinstance(node.get("gpus", []), list) for node in detail):
        raise BadInput(say("sim.detail_not_nodes", where=where))
    return sum(len(node.get("gpus", [])) for node in detail)


def _second(text: str, column: str, where: str) -> int:
    return second(text, column, where, like="2017-10-09 07:01:55")
