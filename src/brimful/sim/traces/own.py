"""brimful's own trace format: a CSV with one job a row.

Columns: job, submit_s, run_s, gpus; and if wanted: name, tenant, priority, gpu (an allowed GPU type, or
several with | between), rate (how fast the gang is; one number, or one for each type of `gpu` with | between;
1 is the speed that run_s is told for), peak_mib (predicted peak on a GPU, told in the same way), within,
cpu_milli, memory_mib, gpu_milli, predicted_work_s, deadline_s, checkpoint_interval_s, checkpoint_cost_s,
min_run_s, max_run_s. Times are whole seconds, rows stand in order of submit_s; `run_s` is how long the gang
runs on GPUs of its reference type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from brimful.errors import BadInput
from brimful.fleet.job import PRIORITIES, WHOLE_GPU, WITHIN, Job
from brimful.language import Quoted, say
from brimful.sim.traces.reading import (
    MAX_GPUS,
    MAX_S,
    Row,
    Skips,
    Source,
    bad_entry,
    entry,
    in_order,
    integer,
    number,
    table,
)
from brimful.sim.world import Arrival
from brimful.units import MIB

MAX_MIB = 1 << 30
MIN_RATE, MAX_RATE = 0.001, 1000.0
NEEDED = ("job", "submit_s", "run_s", "gpus")
# Column of the CSV, and field of Job -> the range it may have.
WHOLE_NUMBERS = {
    "cpu_milli": (0, 10**9),
    "memory_mib": (0, 10**9),
    "gpu_milli": (1, WHOLE_GPU),
    "predicted_work_s": (0, MAX_S),
    "deadline_s": (0, MAX_S),
    "checkpoint_interval_s": (0, MAX_S),
    "checkpoint_cost_s": (0, MAX_S),
    "min_run_s": (0, MAX_S),
    "max_run_s": (0, MAX_S),
    "retries": (0, 100),
}
COLUMNS = (*NEEDED, "name", "tenant", "priority", "within", "gpu", "rate", "peak_mib", *WHOLE_NUMBERS)


def recognises(head: str) -> bool:
    columns = {column.strip() for column in head.partition("\n")[0].split(",")}
    return {"submit_s", "run_s"} <= columns or {"job", "submit_s"} <= columns


def read_trace(path: Path) -> list[Arrival]:
    source = Source(path)
    return parse(source.lines(), name=source.name)


def parse(lines: Iterable[str], *, name: str = "the trace", skips: Skips | None = None) -> list[Arrival]:
    skips = skips or Skips()
    return in_order(_arrivals(lines, name, skips), name=name, skips=skips, sort=False)


def _arrivals(lines: Iterable[str], name: str, skips: Skips) -> Iterator[tuple[str, Arrival]]:
    for where, row in table(lines, name=name, needed=NEEDED, skips=skips):
        try:
            yield where, _arrival(row, where)
        except BadInput as error:
            skips.note(error)


def _arrival(row: Row, where: str) -> Arrival:
    name = entry(row, "job")
    if not name or not name.isprintable():
        raise BadInput(bad_entry(where, "job", name), hint=say("sim.hint_plain_id"))
    priority = entry(row, "priority") or "normal"
    if priority not in PRIORITIES:
        raise BadInput(
            say(
                "sim.priority_unknown",
                where=where,
                priority=Quoted(priority),
                known=", ".join(PRIORITIES),
            )
        )
    within = entry(row, "within") or "node"
    if within not in WITHIN:
        raise BadInput(say("sim.within_unknown", where=where, within=Quoted(within), known=", ".join(WITHIN)))
    more = {
        column: integer(row, column, where, low=low, high=high)
        for column, (low, high) in WHOLE_NUMBERS.items()
        if entry(row, column)
    }
    gpus, at_s = (
        integer(row, "gpus", where, low=1, high=MAX_GPUS),
        integer(row, "submit_s", where, low=0, high=MAX_S),
    )
    if gpus > 1 and more.get("gpu_milli", WHOLE_GPU) < WHOLE_GPU:
        raise BadInput(say("sim.shared_gpus", where=where, gpus=gpus, milli=more["gpu_milli"]))
    if more.get("deadline_s", at_s) < at_s:
        raise BadInput(
            say("sim.deadline_before_submit", where=where, deadline_s=more["deadline_s"], submit_s=at_s)
        )
    job = Job(
        job=name,
        gpus=gpus,
        name=entry(row, "name"),
        tenant=entry(row, "tenant") or "default",
        priority=priority,
        gpu_types=(gpu_types := tuple(gpu for gpu in entry(row, "gpu").split("|") if gpu)),
        rates=_rates(row, where, gpu_types),
        peak_bytes=_peak_bytes(row, where, gpu_types),
        within=within,
        **more,  # type: ignore[arg-type]
    )
    return Arrival(
        at_s=at_s,
        job=job,
        work_s=integer(row, "run_s", where, low=0, high=MAX_S),
    )


def _peak_bytes(row: Row, where: str, gpu_types: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """'20480|24000' beside two GPU types, or one number for all of them."""
    cells = _by_type(row, "peak_mib", where, gpu_types)
    sizes = [integer({"peak_mib": cell}, "peak_mib", where, low=0, high=MAX_MIB) * MIB for cell in cells]
    return tuple(zip(gpu_types, sizes, strict=True)) if sizes else ()


def _rates(row: Row, where: str, gpu_types: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
    """'1|2.5' beside 'v100|a100': `run_s` is meant for the V100, and the A100 does it in 0.4 of the time."""
    cells = _by_type(row, "rate", where, gpu_types)
    rates = [number({"rate": cell}, "rate", where, low=MIN_RATE, high=MAX_RATE) for cell in cells]
    return tuple(zip(gpu_types, rates, strict=True)) if rates else ()


def _by_type(row: Row, column: str, where: str, gpu_types: tuple[str, ...]) -> list[str]:
    """The cell's numbers, one for each type; a single one counts for all of them."""
    cells = [cell.strip() for cell in entry(row, column).split("|") if cell.strip()]
    if cells and (len(cells) not in (1, len(gpu_types)) or not gpu_types):
        raise BadInput(
            say(
                "sim.numbers_per_type",
                where=where,
                column=column,
                cells=len(cells),
                gpu_types=len(gpu_types),
            )
        )
    return cells * len(gpu_types) if len(cells) == 1 else cells
