"""Gavel's traces and throughputs, as published with it.

A trace is tab-separated without column names, ten fields per job: type, command, working directory, name of
the steps argument, whether it needs data, total steps, GPUs (scale factor), priority weight, SLO, arrival
second.
`*_throughputs.json` holds steps per second by GPU type and (job type, GPUs): alone under "null", and together
with another job on the same GPU (0 where the two ran out of memory). `v100_unconsolidated` is the speed of a
gang spread over nodes.
Source: github.com/stanford-futuredata/gavel; Narayanan et al., OSDI 2020.

A job's work is in seconds on the reference type (the V100, if present); its rates are relative to that. Jobs
save when they are told to stop and restart at no cost, as in Gavel's simulator.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from brimful.errors import BadInput
from brimful.fleet.job import Job, Pairs
from brimful.language import Number, Quoted, say
from brimful.sim.traces.reading import MAX_GPUS, MAX_S, Row, Source, Throughputs, Trace
from brimful.sim.world import Arrival
from brimful.units import counted

FIELDS = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival_time",
)
SPREAD = "_unconsolidated"
REFERENCE = "v100"
MAX_STEPS = 10**15


def recognises(head: str) -> bool:
    fields = head.partition("\n")[0].rstrip("\r").split("\t")
    return len(fields) in (7, len(FIELDS)) and not head.startswith("job\t")


def read_throughputs(source: Source) -> Trace:
    try:
        tables = json.loads(source.text())
        source.skips.throughputs = {
            gpu: {_key(kind): _speed(speeds["null"]) for kind, speeds in kinds.items() if "null" in speeds}
            for gpu, kinds in tables.items()
        }
        source.skips.pairs = _pairs(tables)
    except TypeError as error:
        raise BadInput(say("sim.throughputs_misshapen", name=source.name)) from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise BadInput(say("sim.no_throughputs", name=source.name, error=error)) from error
    return Trace(format="Gavel")


def _pairs(tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, tuple[Pairs, ...]]:
    """For each kind of single-GPU job: by type, the share of its speed it keeps beside each other kind."""
    found: dict[str, list[Pairs]] = {}
    for gpu, kinds in tables.items():
        for kind, speeds in kinds.items():
            name, gpus = _key(kind)
            alone = _speed(speeds.get("null", 0.0))
            if gpus != 1 or not alone or gpu.endswith(SPREAD):
                continue
            beside = []
            for other, both in speeds.items():
                if other != "null" and _key(other)[1] == 1:
                    mine, theirs = map(_speed, both)
                    if mine and theirs:
                        beside.append((_key(other)[0], min(1.0, mine / alone)))
            if beside:
                found.setdefault(name, []).append((gpu, tuple(sorted(beside))))
    return {name: tuple(sorted(pairs)) for name, pairs in found.items()}


def _speed(value: object) -> float:
    speed = float(value)  # type: ignore[arg-type]
    if not 0 <= speed < inf:  # NaN fails this too
        raise ValueError(f"{value} steps per second")
    return speed


def _key(text: str) -> tuple[str, int]:
    """\"('LM (batch size 5)', 2)\" -> its two parts; only plain words and numbers are accepted."""
    kind, gpus = literal_eval(text)
    return str(kind), int(gpus)


def read_trace(source: Source) -> Trace:
    throughputs = source.skips.throughputs
    if throughputs is None:
        raise BadInput(say("sim.gavel_without_throughputs", name=source.name))
    found = source.usable(_rows(source), lambda row: _job(row, throughputs, source.skips.pairs))
    arrivals = source.in_order(found)
    return Trace(format="Gavel", arrivals=arrivals, gangs_may_spread=True)


def _rows(source: Source) -> Iterator[Row]:
    for i, line in enumerate(source.lines()):
        if not line.strip():
            continue
        fields = line.rstrip("\r\n").split("\t")
        row = Row(
            f"{source.name} row {i + 1}", {**dict(zip(FIELDS, fields, strict=False)), "job": f"gavel-{i}"}
        )
        if len(fields) == len(FIELDS):
            yield row
        else:
            wanted = {"wanted": len(FIELDS), "names": ", ".join(FIELDS)}
            source.skips.note(row.refused("sim.field_count", fields=len(fields), **wanted))


def _job(row: Row, throughputs: Throughputs, pairs: Mapping[str, tuple[Pairs, ...]]) -> Arrival:
    gpus = row.integer("scale_factor", low=1, high=MAX_GPUS)
    kind = (row["job_type"], gpus)
    speeds = {gpu: speed[kind] for gpu, speed in throughputs.items() if speed.get(kind, 0.0) > 0}
    together = {gpu: speed for gpu, speed in speeds.items() if not gpu.endswith(SPREAD)}
    if not together:
        raise row.refused("sim.throughput_unknown", kind=Quoted(kind[0]), gpus=counted(gpus, "GPU"))
    reference = REFERENCE if REFERENCE in together else max(together, key=lambda gpu: together[gpu])
    work_s = row.integer("total_steps", low=0, high=MAX_STEPS) / together[reference]
    if work_s > MAX_S:
        raise row.refused("sim.work_too_long", work_s=Number(work_s), most=Number(MAX_S))
    spread = speeds.get(reference + SPREAD, together[reference])
    at_s = row.number("arrival_time", low=0, high=MAX_S)
    slo = row.number("SLO", low=-1, high=MAX_S)
    job = Job(
        job=row["job"],
        gpus=gpus,
        name=kind[0],
        rates=tuple(sorted((gpu, speed / together[reference]) for gpu, speed in together.items())),
        spread_rate=min(1.0, spread / together[reference]) if gpus > 1 else 1.0,
        # In Gavel an SLO is a multiple of the job's own duration.
        deadline_s=int(at_s + slo * work_s) if slo > 0 else None,
        checkpoint_interval_s=0,
        pairs=pairs.get(kind[0], ()) if gpus == 1 else (),
    )
    return Arrival(at_s=int(at_s), job=job, work_s=work_s)
