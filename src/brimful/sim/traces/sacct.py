"""Slurm's accounting, as `sacct` prints it with -P (fields between bars, names in the first row).

    sacct -P -a -X -S 2026-01-01 -o JobID,User,Account,Partition,Submit,ElapsedRaw,AllocTRES,State

Needed: JobID, Submit, ElapsedRaw or Elapsed, and AllocTRES or ReqTRES; User, Account and JobName are taken
where they are there. A job on one node stays on one node, others may use any. Steps (JobIDs with a dot) are
parts of a job and jobs without GPUs hold none: both are left out, and counted in a note. `gres/gpu:a100=8`
names a GPU type, which the job is then bound to; add `?types=any` to the file's name to let it run on any.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from brimful.errors import BadInput
from brimful.fleet.job import Job
from brimful.language import Quoted, Several, count, say
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
    second,
    table,
)
from brimful.sim.world import Arrival

ASK = say("sim.hint_sacct")
ELAPSED = re.compile(r"(?:(\d{1,5})-)?(\d{1,2}):(\d{2}):(\d{2})")
MEMORY = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([KMGT]?)")
MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


def recognises(head: str) -> bool:
    columns = {column.strip() for column in head.partition("\n")[0].split("|")}
    return "JobID" in columns and "Submit" in columns


def read(source: Source, *, any_type: bool, skips: Skips) -> Trace:
    left_out = {"step": 0, "no_gpus": 0, "never_ran": 0}
    found = list(from_zero(_rows(source.lines(), source.name, left_out, skips, any_type=any_type), skips))
    notes = [
        say(f"sim.left_out_{what}", left=count("step" if what == "step" else "job", n))
        for what, n in left_out.items()
        if n
    ]
    if notes and not found and not skips.count:
        raise BadInput(say("sim.no_gpu_jobs", name=source.name, notes=Several(tuple(notes), "; ")))
    arrivals = in_order(found, name=source.name, skips=skips, sort=True)
    return Trace(format="sacct", arrivals=arrivals, notes=notes, gangs_may_spread=True)


def _rows(
    lines: Iterable[str], name: str, left_out: dict[str, int], skips: Skips, *, any_type: bool
) -> Iterator[tuple[str, Arrival]]:
    # sacct quotes nothing: a quote in a job's name is a letter like any other.
    for where, row in table(
        lines, name=name, needed=("JobID", "Submit"), skips=skips, delimiter="|", quoted=False
    ):
        for either in (("AllocTRES", "ReqTRES"), ("ElapsedRaw", "Elapsed")):
            if not any(column in row for column in either):
                raise BadInput(say("sim.no_column_of", name=name, either=" or ".join(either)), hint=ASK)
        try:
            if "." in entry(row, "JobID"):
                left_out["step"] += 1
                continue
            types, gpus, cpus, memory_mib, one_node = _tres(
                entry(row, "AllocTRES") or entry(row, "ReqTRES"), where
            )
            run_s = _elapsed(row, where)
            if gpus == 0 or run_s == 0:
                left_out["no_gpus" if gpus == 0 else "never_ran"] += 1
                continue
            job = Job(
                job=entry(row, "JobID"),
                gpus=gpus,
                within="node" if one_node else "any",
                name=entry(row, "JobName"),
                tenant=entry(row, "Account") or entry(row, "User") or "default",
                gpu_types=() if any_type else types,
                cpu_milli=cpus * 1000,
                memory_mib=memory_mib,
                checkpoint_interval_s=0,
                checkpoint_cost_s=RESTART_S,
            )
            yield where, Arrival(at_s=_second(row, where), job=job, work_s=run_s)
        except BadInput as error:
            skips.note(error)


def _tres(text: str, where: str) -> tuple[tuple[str, ...], int, int, int, bool]:
    """'billing=8,cpu=64,gres/gpu:a100=8,gres/gpu=8,mem=512G,node=1' -> (('a100',), 8, 64, 524288, True)."""
    types: list[str] = []
    gpus = typed = cpus = memory_mib = 0
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name.startswith("gres/gpu") or name == "cpu":
            number = integer({name: value}, name, where, low=0, high=MAX_GPUS)
            if name == "cpu":
                cpus = number
            elif name == "gres/gpu":
                gpus = number
            elif name.startswith("gres/gpu:") and number:
                types.append(name.removeprefix("gres/gpu:"))
                typed += number
        elif name == "mem" and (found := MEMORY.fullmatch(value)):
            memory_mib = int(float(found[1]) * MIB[found[2]])
    return tuple(types), gpus or typed, cpus, memory_mib, "node=1" in text.split(",")


def _elapsed(row: Row, where: str) -> int:
    if entry(row, "ElapsedRaw"):
        return integer(row, "ElapsedRaw", where, low=0, high=MAX_S)
    found = ELAPSED.fullmatch(entry(row, "Elapsed"))
    if found is None:
        raise BadInput(say("sim.bad_elapsed", where=where, entry=Quoted(entry(row, "Elapsed")[:40])))
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _second(row: Row, where: str) -> int:
    text = entry(row, "Submit")
    if text.isdigit() and len(text) <= 12:  # SLURM_TIME_FORMAT=%s
        return int(text)
    return second(text, "Submit", where, like="2026-10-09T07:01:55")
