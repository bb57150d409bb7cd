"""Sia's workload CSV: name, time, application, num_replicas, batch_size, as in its `workloads` folders.

A file that holds several workloads has a column `workload`; choose one with `FILE?workload=NAME`. Source:
Jayaram Subramanya et al., Sia, SOSP 2023; the applications are those of Pollux (Qiao et al., OSDI 2021).

The file does not say how long a job runs: Sia computes that from profiles. Here a job has the work of its
category in Pollux's table 1, at the geometric middle of its range of GPU-hours: small 0-1 (CIFAR-10 and
recommendation; taken as 0.3), medium 1-10, large 10-100, extra large 100-1000. The mix is right, a single job
is not.

With `profiles=FOLDER`, the `traces` folder of Sia's simulator, run times and speeds are as measured there
(sia_profiles.py): for a gang of fixed size with its own batch; with `gpus=1..16` for an elastic one, whose
batch stays as it is or, with `batch=tuned`, follows its size as Sia's adaptive jobs do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from brimful.errors import BadInput
from brimful.fleet.elastic.written import range_from
from brimful.language import Quoted, say
from brimful.sim.traces import sia_profiles
from brimful.sim.traces.reading import MAX_GPUS, MAX_S, Row, Source, Trace, saving_job
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


def read(source: Source) -> Trace:
    profiles = source.options.get("profiles")
    if profiles:
        folder, known = Path(profiles), source.options
        least, most = range_from(known["gpus"]) if "gpus" in known else (0, 0)
        tuned = known.get("batch") == "tuned"
        found = source.usable(_rows(source), lambda row: _profiled(row, folder, least, most, tuned=tuned))
        return Trace(format="Sia", arrivals=source.in_order(found), notes=[say("sim.sia_profiled")])
    for option in source.options.keys() & {"gpus", "batch"}:
        raise BadInput(say("sim.sia_needs_profiles", option=option))
    arrivals = source.in_order(source.usable(_rows(source), _arrival))
    return Trace(format="Sia", arrivals=arrivals, notes=[say("sim.sia_no_run_times")])


def _rows(source: Source) -> Iterator[Row]:
    """The rows of the named workload, or of the only one there is."""
    wanted, there = source.options.get("workload"), dict[str, None]()
    for row in source.table(COLUMNS):
        mine = row["workload"]
        there[mine] = None
        if wanted is None and len(there) > 1:
            first = next(iter(there))
            known = {"name": source.name, "workload": first}
            raise row.refused("sim.several_workloads", first=Quoted(first), other=Quoted(mine), **known)
        if wanted in (None, mine):
            yield row
    if wanted is not None and there and wanted not in there:
        has = ", ".join(filter(None, there)) or "one"
        raise BadInput(say("sim.no_workload", name=source.name, workload=Quoted(wanted), has=has))


def _application(row: Row) -> str:
    name = row["application"]
    if name not in GPU_HOURS:
        raise row.refused("sim.application_unknown", application=Quoted(name), known=", ".join(GPU_HOURS))
    return name


def _arrival(row: Row) -> Arrival:
    name, application = row.name("name"), _application(row)
    gpus = row.integer("num_replicas", low=1, high=MAX_GPUS)
    job = saving_job(
        job=name, gpus=gpus, within="any", name=application, checkpoint_cost_s=RESTART_S[application]
    )
    at_s = int(row.number("time", low=0, high=MAX_S))
    return Arrival(at_s=at_s, job=job, work_s=GPU_HOURS[application] * HOUR_S / gpus)


def _profiled(row: Row, folder: Path, least: int, most: int, *, tuned: bool) -> Arrival:
    name, kind = row.name("name"), _application(row)
    batch = row.integer("batch_size", low=1, high=10**9)
    one = row.integer("num_replicas", low=1, high=MAX_GPUS)
    sizes = [n for n in range(least, most + 1) if most % n == 0] if most else [one]
    app = sia_profiles.application(folder, kind)
    runs: dict[str, dict[int, float]] = {}
    for cluster, (gpu, _) in sia_profiles.CLUSTERS.items():
        found = {n: app.run_s(cluster, n, None if tuned else batch) for n in sizes}
        if found[sizes[0]] is not None:
            runs[gpu] = {n: run_s for n, run_s in found.items() if run_s is not None}
    if not runs:
        raise row.refused("sim.sia_cannot_run", gpus=sizes[0], batch=batch)
    work_s = max(run[sizes[0]] for run in runs.values())
    curves = [(gpu, _curve(run)) for gpu, run in runs.items()] if most else []
    job = saving_job(
        job=name,
        gpus=sizes[0],
        min_gpus=least,
        max_gpus=most,
        curves=tuple(curves),
        within="any",
        name=kind,
        rates=tuple((gpu, work_s / run[sizes[0]]) for gpu, run in runs.items()),
        checkpoint_cost_s=sia_profiles.RESTART_S[kind],
    )
    at_s, first_s = int(row.number("time", low=0, high=MAX_S)), sia_profiles.RESTART_S[kind]
    return Arrival(at_s=at_s, job=job, work_s=work_s, first_s=first_s)


def _curve(run: dict[int, float]) -> tuple[tuple[int, float], ...]:
    """Speedup over its minimum size; a size slower than a smaller one counts as the smaller one."""
    first, best = next(iter(run.values())), 1.0
    return tuple((n, best := max(best, first / run_s)) for n, run_s in run.items())
