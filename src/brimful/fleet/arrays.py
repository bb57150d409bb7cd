"""How people write arrays and dependencies: `0-99%4`, `1,3,8-20:4`, `job-7:any`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from brimful.errors import BadInput
from brimful.fleet.job import Job
from brimful.language import Number, Quoted, say

TASKS_ENV = ("SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX")
MAX_TASKS = 1000
MAX_INDEX = 10**6
MAX_AFTER = 100
RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)
AFTER = re.compile(r"([A-Za-z0-9][\w.-]{0,99})(?::(ok|any))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tasks:
    indices: tuple[int, ...]
    at_most: int | None = None  # tasks that may ask for or hold GPUs at once

    def env(self) -> dict[str, str]:
        """What every task is told about its array, under Slurm's names."""
        first, last = self.indices[0], self.indices[-1]
        return dict(zip(TASKS_ENV, map(str, (len(self.indices), first, last)), strict=True))


def task_env(job: Job) -> dict[str, str]:
    """What a task is told about its index, and an elastic gang about its size; empty if it is neither."""
    ours: dict[str, str] = {}
    if job.max_gpus:
        # With this many gradient accumulation steps its effective batch is that of its largest size.
        ours = {"BRIMFUL_GANG_GPUS": str(job.gpus), "BRIMFUL_ACCUMULATE": str(job.max_gpus // job.gpus)}
    if not job.array:
        return ours
    index = str(job.array_index)
    ours |= {"BRIMFUL_ARRAY": job.array, "BRIMFUL_ARRAY_INDEX": index}
    return ours | {"SLURM_ARRAY_JOB_ID": job.array, "SLURM_ARRAY_TASK_ID": index}


def tasks_from(text: str) -> Tasks:
    """Slurm's syntax: indices and ranges with a step, then % and how many at once."""
    ranges, percent, most = text.replace(" ", "").partition("%")
    found: set[int] = set()
    for part in ranges.split(","):
        match = RANGE.fullmatch(part)
        if match is None:
            raise BadInput(say("fleet.bad_array", given=Quoted(text[:60])))
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step < 1 or last > MAX_INDEX:
            raise BadInput(say("fleet.bad_array_range", given=Quoted(part), most=Number(MAX_INDEX)))
        if (last - first) // step >= MAX_TASKS:  # checked before building the list
            raise _too_many((last - first) // step + 1)
        found.update(range(first, last + 1, step))
    if len(found) > MAX_TASKS:
        raise _too_many(len(found))
    if percent and not (most.isascii() and most.isdigit() and 1 <= int(most[:9]) <= MAX_INDEX):
        raise BadInput(say("fleet.bad_array", given=Quoted(text[:60])))
    return Tasks(tuple(sorted(found)), int(most) if percent else None)


def _too_many(tasks: int) -> BadInput:
    return BadInput(say("fleet.array_too_large", tasks=Number(tasks), most=Number(MAX_TASKS)))


def after_from(text: str) -> tuple[str, str]:
    """(job or array, "ok" | "any"); "ok" by default."""
    match = AFTER.fullmatch(text)
    if match is None:
        raise BadInput(say("fleet.bad_after", given=Quoted(text[:60])))
    return match[1], match[2] or "ok"
