"""brimful's own trace format: a CSV with one job per row.

Columns: job, submit_s, run_s, gpus; optional: name, tenant, priority, gpu (an allowed GPU type, or several
separated by |), rate (how fast the gang is; one number, or one for each type of `gpu` separated by |; 1 is
the speed that run_s refers to), peak_mib (predicted peak on a GPU, in the same form), within, cpu_milli,
memory_mib, gpu_milli, predicted_work_s, deadline_s, checkpoint_interval_s, checkpoint_cost_s, min_run_s,
max_run_s, after (jobs of rows above, separated by |: JOB, JOB:ok or JOB:any). Times are whole seconds, rows
are in order of submit_s; `run_s` is how long the gang runs on GPUs of its reference type.
"""

from __future__ import annotations

from brimful.errors import BadInput
from brimful.fleet.arrays import after_from
from brimful.fleet.job import PRIORITIES, WHOLE_GPU, WITHIN, Job
from brimful.language import Quoted, say
from brimful.sim.traces.reading import MAX_GPUS, MAX_S, Row, Source, Trace, columns_of
from brimful.sim.world import Arrival
from brimful.units import MIB

MAX_MIB = 1 << 30
MIN_RATE, MAX_RATE = 0.001, 1000.0
NEEDED = ("job", "submit_s", "run_s", "gpus")
# Column of the CSV and field of Job -> its allowed range.
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
COLUMNS = (
    *NEEDED,
    "name",
    "tenant",
    "priority",
    "within",
    "gpu",
    "rate",
    "peak_mib",
    "after",
    *WHOLE_NUMBERS,
)


def read(source: Source) -> Trace:
    known: set[str] = set()

    def arrival(row: Row) -> Arrival:
        made = _arrival(row)
        missing = [name for name, _ in made.job.after if name not in known]
        if missing:
            raise row.refused("sim.after_unknown", job=Quoted(missing[0][:40]))
        known.add(made.job.job)
        return made

    found = source.usable(source.table(NEEDED), arrival)
    arrivals = source.in_order(found)
    unknown = [column for column in columns_of(source.head()) if column and column not in COLUMNS]
    notes = [say("sim.columns_not_used", columns=", ".join(unknown)[:200])] if unknown else []
    return Trace(format="brimful", arrivals=arrivals, notes=notes)


def _arrival(row: Row) -> Arrival:
    name = row["job"]
    if not name or not name.isprintable():
        raise row.bad("job", say("sim.hint_plain_id"))
    priority = row["priority"] or "normal"
    if priority not in PRIORITIES:
        known = ", ".join(PRIORITIES)
        raise row.refused("sim.priority_unknown", priority=Quoted(priority), known=known)
    within = row["within"] or "node"
    if within not in WITHIN:
        raise row.refused("sim.within_unknown", within=Quoted(within), known=", ".join(WITHIN))
    more = {
        column: row.integer(column, low=low, high=high)
        for column, (low, high) in WHOLE_NUMBERS.items()
        if row[column]
    }
    gpus = row.integer("gpus", low=1, high=MAX_GPUS)
    at_s = row.integer("submit_s", low=0, high=MAX_S)
    if gpus > 1 and more.get("gpu_milli", WHOLE_GPU) < WHOLE_GPU:
        raise row.refused("sim.shared_gpus", gpus=gpus, milli=more["gpu_milli"])
    if more.get("deadline_s", at_s) < at_s:
        raise row.refused("sim.deadline_before_submit", deadline_s=more["deadline_s"], submit_s=at_s)
    gpu_types = tuple(gpu for gpu in row["gpu"].split("|") if gpu)
    # '1|2.5' beside 'v100|a100': `run_s` refers to the V100, and the A100 takes 0.4 of the time.
    rates = [cell.number("rate", low=MIN_RATE, high=MAX_RATE) for cell in _by_type(row, "rate", gpu_types)]
    peaks = [cell.integer("peak_mib", low=0, high=MAX_MIB) for cell in _by_type(row, "peak_mib", gpu_types)]
    job = Job(
        job=name,
        gpus=gpus,
        name=row["name"],
        tenant=row["tenant"] or "default",
        priority=priority,
        gpu_types=gpu_types,
        rates=tuple(zip(gpu_types, rates, strict=False)),
        peak_bytes=tuple((gpu, mib * MIB) for gpu, mib in zip(gpu_types, peaks, strict=False)),
        within=within,
        after=_after(row),
        **more,  # type: ignore[arg-type]
    )
    return Arrival(at_s=at_s, job=job, work_s=row.integer("run_s", low=0, high=MAX_S))


def _after(row: Row) -> tuple[tuple[str, str], ...]:
    try:
        return tuple(after_from(word.strip()) for word in row["after"].split("|") if word.strip())
    except BadInput as error:
        raise row.bad("after", say("sim.hint_after")) from error


def _by_type(row: Row, column: str, gpu_types: tuple[str, ...]) -> list[Row]:
    """The cell's numbers, one per type; a single one applies to all of them."""
    cells = [Row(row.where, {column: cell}) for cell in row[column].split("|") if cell.strip()]
    if cells and (len(cells) not in (1, len(gpu_types)) or not gpu_types):
        raise row.refused("sim.numbers_per_type", column=column, cells=len(cells), gpu_types=len(gpu_types))
    return cells * len(gpu_types) if len(cells) == 1 else cells
