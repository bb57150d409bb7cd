"""Microsoft's Philly trace of 2017, as published and in a short form that others made of it.

The published `cluster_job_log` is a JSON list of jobs: jobid, vc, user, status, submitted_time and attempts,
each with start_time, end_time and detail = [{ip, gpus: [...]}]. The short form is a CSV with timestamp,
duration, num_gpus and, if known, cluster (the virtual cluster). Times are local and without a zone; only
differences count. Source: github.com/msr-fiddle/philly-traces; Jeon et al., Analysis of Large-Scale
Multi-Tenant GPU Clusters, USENIX ATC 2019.

A job's work is the sum of its attempts. Jobs that never held a GPU are left out, and counted in a note. Gangs
may use any GPUs: Philly's own scheduler gave up locality for jobs that waited.
"""

from __future__ import annotations

import itertools
import json
from functools import partial

from brimful.errors import BadInput
from brimful.language import Number, Quoted, count, say
from brimful.sim.traces.reading import MAX_GPUS, MAX_S, Row, Source, Trace, saving_job
from brimful.sim.world import Arrival

COLUMNS = ("timestamp", "duration", "num_gpus")
LIKE = "2017-10-09 07:01:55"


def read_csv(source: Source) -> Trace:
    number = itertools.count()
    rows = source.table(COLUMNS)
    found = source.usable(rows, lambda row: _row(row, job=f"philly-{next(number)}"))
    arrivals = source.in_order(found, calendar=True)
    return Trace(format="Philly", arrivals=arrivals)


def read_json(source: Source) -> Trace:
    try:
        jobs = json.loads(source.text())
    except (ValueError, RecursionError) as error:
        raise BadInput(say("sim.not_json", name=source.name, error=error)) from error
    if not isinstance(jobs, list):
        raise BadInput(say("sim.not_a_job_list", name=source.name))
    rows = [
        Row(f"{source.name} job {i}", record if isinstance(record, dict) else {})
        for i, record in enumerate(jobs, start=1)
    ]
    idle: list[Row] = []
    arrivals = source.in_order(source.usable(rows, partial(_job, idle)), calendar=True)
    notes = [say("sim.left_out_never_held", jobs=count("job", len(idle)))] if idle else []
    return Trace(format="Philly", arrivals=arrivals, notes=notes)


def _row(row: Row, *, job: str) -> Arrival:
    return Arrival(
        at_s=row.second("timestamp", like=LIKE),
        job=saving_job(
            job=job,
            gpus=row.integer("num_gpus", low=1, high=MAX_GPUS),
            within="any",
            tenant=row["cluster"] or "default",
        ),
        work_s=row.number("duration", low=0, high=MAX_S),
    )


def _job(idle: list[Row], record: Row) -> Arrival | None:
    attempts = record.cells.get("attempts")
    if not isinstance(attempts, list):
        raise record.refused("sim.no_attempts")
    job = record.name("jobid")
    run_s, gpus = 0, 0
    for attempt in attempts:
        if not isinstance(attempt, dict):
            raise record.refused("sim.bad_attempt", attempt=Quoted(attempt))
        tried = Row(record.where, attempt)
        if {tried["start_time"], tried["end_time"]} & {"", "None"}:
            continue
        spent = tried.second("end_time", like=LIKE) - tried.second("start_time", like=LIKE)
        if spent < 0:
            raise record.refused("sim.attempt_ends_early", seconds=Number(-spent))
        run_s += spent
        gpus = max(gpus, _gpus(tried))
    if gpus == 0:
        idle.append(record)
        return None
    return Arrival(
        at_s=record.second("submitted_time", like=LIKE),
        job=saving_job(
            job=job, gpus=gpus, within="any", name=record["user"], tenant=record["vc"] or "default"
        ),
        work_s=run_s,
    )


def _gpus(attempt: Row) -> int:
    detail = attempt.cells.get("detail")
    if not isinstance(detail, list):
        return 0
    if not all(isinstance(node, dict) and isinstance(node.get("gpus", []), list) for node in detail):
        raise attempt.refused("sim.detail_not_nodes")
    return sum(len(node.get("gpus", [])) for node in detail)
