"""Slurm's accounting, as `sacct` prints it with -P (fields separated by |, names in the first row).

    sacct -P -a -X -S 2026-01-01 -o JobID,User,Account,Partition,Submit,ElapsedRaw,AllocTRES,State

Needed: JobID, Submit, ElapsedRaw or Elapsed, and AllocTRES or ReqTRES; User, Account and JobName are used if
present. A job on one node stays on one node, others may use any. Steps (JobIDs with a dot) are parts of a job
and jobs without GPUs hold none: both are left out, and counted in a note. `gres/gpu:a100=8` names a GPU type,
to which the job is then bound; append `?types=any` to the file's name to let it run on any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from brimful.errors import BadInput
from brimful.language import Quoted, Several, count, say
from brimful.sim.traces.reading import MAX_GPUS, MAX_S, Row, Source, Trace, saving_job
from brimful.sim.world import Arrival
from brimful.units import integer_from_text

ASK = say("sim.hint_sacct")
ELAPSED = re.compile(r"(?:(\d{1,5})-)?(\d{1,2}):(\d{2}):(\d{2})")
MEMORY = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([KMGT]?)")
MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


def read(source: Source) -> Trace:
    left_out = {"step": 0, "no_gpus": 0, "never_ran": 0}
    any_type = source.options.get("types") == "any"
    found = list(source.usable(_rows(source), lambda row: _arrival(row, left_out, any_type)))
    notes = [
        say(f"sim.left_out_{what}", left=count("step" if what == "step" else "job", n))
        for what, n in left_out.items()
        if n
    ]
    if notes and not found and not source.skips.count:
        raise BadInput(say("sim.no_gpu_jobs", name=source.name, notes=Several(tuple(notes), "; ")))
    arrivals = source.in_order(found, calendar=True)
    return Trace(format="sacct", arrivals=arrivals, notes=notes, gangs_may_spread=True)


def _rows(source: Source) -> Iterator[Row]:
    # sacct does not quote: a quote in a job's name is an ordinary character.
    for row in source.table(("JobID", "Submit"), delimiter="|", quoted=False):
        for either in (("AllocTRES", "ReqTRES"), ("ElapsedRaw", "Elapsed")):
            if not any(column in row.cells for column in either):
                raise BadInput(
                    say("sim.no_column_of", name=source.name, either=" or ".join(either)), hint=ASK
                )
        yield row


def _arrival(row: Row, left_out: dict[str, int], any_type: bool) -> Arrival | None:
    if "." in row["JobID"]:
        left_out["step"] += 1
        return None
    types, gpus, cpus, memory_mib, one_node = _tres(row)
    run_s = _elapsed(row)
    if gpus == 0 or run_s == 0:
        left_out["no_gpus" if gpus == 0 else "never_ran"] += 1
        return None
    job = saving_job(
        job=row["JobID"],
        gpus=gpus,
        within="node" if one_node else "any",
        name=row["JobName"],
        tenant=row["Account"] or row["User"] or "default",
        gpu_types=() if any_type else types,
        cpu_milli=cpus * 1000,
        memory_mib=memory_mib,
    )
    # SLURM_TIME_FORMAT=%s prints seconds.
    at = row["Submit"]
    plain = integer_from_text(at, low=0, high=10**12 - 1)
    at_s = row.second("Submit", like="2026-10-09T07:01:55") if plain is None else plain
    return Arrival(at_s=at_s, job=job, work_s=run_s)


def _tres(row: Row) -> tuple[tuple[str, ...], int, int, int, bool]:
    """'billing=8,cpu=64,gres/gpu:a100=8,gres/gpu=8,mem=512G,node=1' -> (('a100',), 8, 64, 524288, True)."""
    parts = (row["AllocTRES"] or row["ReqTRES"]).split(",")
    types: list[str] = []
    gpus = typed = cpus = memory_mib = 0
    for part in parts:
        name, _, value = part.partition("=")
        if name.startswith("gres/gpu") or name == "cpu":
            number = Row(row.where, {name: value}).integer(name, low=0, high=MAX_GPUS)
            if name == "cpu":
                cpus = number
            elif name == "gres/gpu":
                gpus = number
            elif name.startswith("gres/gpu:") and number:
                types.append(name.removeprefix("gres/gpu:"))
                typed += number
        elif name == "mem" and (found := MEMORY.fullmatch(value)):
            memory_mib = int(float(found[1]) * MIB[found[2]])
    return tuple(types), gpus or typed, cpus, memory_mib, "node=1" in parts


def _elapsed(row: Row) -> int:
    if row["ElapsedRaw"]:
        return row.integer("ElapsedRaw", low=0, high=MAX_S)
    found = ELAPSED.fullmatch(row["Elapsed"])
    if found is None:
        raise row.refused("sim.bad_elapsed", entry=Quoted(row["Elapsed"][:40]))
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
