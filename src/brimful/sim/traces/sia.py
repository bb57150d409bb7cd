"""Sia's workload CSV: name, time, application, num_replicas, batch_size, as in its `workloads` folders.

A file that holds several workloads has a column `workload`; choose one with `FILE?workload=NAME`. Source:
Jayaram Subramanya et al., Sia, SOSP 2023; the applications are those of Pollux (Qiao et al., OSDI 2021).

The file does not say how long a job runs: Sia computes that from profiles. Here a job has the work of its
category in Pollux's table 1, at the geometric middle of its range of GPU-hours: small 0-1 (CIFAR-10 and
recommendation; taken as 0.3), medium 1-10, large 10-100, extra large 100-1000. The mix is right, a single
job is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from brimful.errors import BadInput
from brimful.fleet.job import Job
from brimful.language import Quoted, say
from brimful.sim.traces.reading import (
    MAX_GPUS,
    MAX_S,
    Row,
    Skips,
    Source,
    Trace,
    entry,
    in_order,
    integer,
    number,
    table,
)
from brimful.sim.world import Arrival
from brimful.units import HOUR_S

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
GPU_HOURS = {
    "cifar10": 0.3,
    "ncf": 0.3,
    "bert": 3.2,
    "deepspeech2": 3.2,
    "yolov3": 32.0,
    "imagenet": 316.0,
}
# Sia's checkpoint-restore takes 25 to 250 s by model.
RESTART_S = {"cifar10": 25, "ncf": 25, "bert": 120, "deepspeech2": 60, "yolov3": 80, "imagenet": 250}


def recognises(head: str) -> bool:
    return {"application", "num_replicas", "time"} <= {c.strip() for c in head.partition("\n")[0].split(",")}


def read(source: Source, *, workload: str | None, skips: Skips) -> Trace:
    found = _rows(source.lines(), source.name, workload, skips)
    arrivals = in_order(found, name=source.name, skips=skips, sort=False)
    return Trace(format="Sia", arrivals=arrivals, notes=[say("sim.sia_no_run_times")])


def _rows(
    lines: Iterable[str], name: str, workload: str | None, skips: Skips
) -> Iterator[tuple[str, Arrival]]:
    first: str | None = None
    there: dict[str, None] = {}
    for where, row in table(lines, name=name, needed=COLUMNS, skips=skips):
        mine = entry(row, "workload")
        first = mine if first is None else first
        if workload is None and mine != first:
            raise BadInput(
                say(
                    "sim.several_workloads",
                    where=where,
                    first=Quoted(first),
                    other=Quoted(mine),
                    name=name,
                    workload=first,
                )
            )
        there[mine] = None
        if workload is not None and mine != workload:
            continue
        try:
            yield where, _row(row, where)
        except BadInput as error:
            skips.note(error)
    if workload is not None and there and workload not in there:
        raise BadInput(
            say(
                "sim.no_workload",
                name=name,
                workload=Quoted(workload),
                has=", ".join(filter(None, there)) or "one",
            )
        )


def _row(row: Row, where: str) -> Arrival:
    name, application = entry(row, "name"), entry(row, "application")
    if not name:
        raise BadInput(say("sim.no_id", where=where, column="name"))
    if application not in GPU_HOURS:
        raise BadInput(
            say(
                "sim.application_unknown",
                where=where,
                application=Quoted(application),
                known=", ".join(GPU_HOURS),
            )
        )
    gpus = integer(row, "num_replicas", where, low=1, high=MAX_GPUS)
    return Arrival(
        at_s=int(number(row, "time", where, low=0, high=MAX_S)),
        job=Job(
            job=name,
            gpus=gpus,
            within="any",
            name=application,
            checkpoint_interval_s=0,
            checkpoint_cost_s=RESTART_S[application],
        ),
        work_s=GPU_HOURS[application] * HOUR_S / gpus,
    )
