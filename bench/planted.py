"""A month of a cluster with waste planted in every leaf that files can show, and the true values beside it.

Every two hours each node starts something new: a job of a known kind, an outage, or nothing. Jobs wait at
known times. The true values are added up slot by slot, by rules written here and not by those of
`brimful.audit`.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from brimful.meter.samples import GpuSample, RunSample, Sample, StepSample, as_line

START_S = 1_777_593_600  # 2026-05-01
SLOT_S = 7200
STEP_S = 60
GPUS = 8
DAYS = 30
# Kind of job -> (level, minutes) of its two hours, and the leaf of each level.
KINDS: dict[str, list[tuple[float, int, str]]] = {
    "busy": [(0.9, 120, "active.working.unknown")],
    "setup": [(0.0, 20, "idle.setup"), (0.9, 100, "active.working.unknown")],
    "gap": [(0.9, 40, "active.working.unknown"), (0.0, 30, "idle.gap"), (0.9, 50, "active.working.unknown")],
    "short": [
        (0.9, 60, "active.working.unknown"),
        (0.0, 4, "idle.short"),
        (0.9, 56, "active.working.unknown"),
    ],
    "tail": [(0.9, 80, "active.working.unknown"), (0.0, 40, "idle.tail")],
    "never": [(0.0, 120, "idle.never_used")],
    "starved": [(0.1, 120, "active.starved")],
    "unseen": [(-1.0, 120, "unknown")],
}
# What jobs use of their card, in MiB of its 80 GiB, and the resulting leaf: two of the small ones would fit.
SIZES = {20_480: "larger_card", 61_440: "right_card", 0: "unknown"}
MEMORY_STEP_S = 300  # memory is scraped less often
METERED = 3  # this node's jobs run under a Meter, which reports the parts of their steps
# A Meter sees pauses of five minutes and more, and no starving.
METERED_KINDS = ("busy", "gap", "setup", "tail")
STEP_OF_METER_S = 120
STATES = {"COMPLETED": "kept", "FAILED": "lost", "CANCELLED": "unknown"}


@dataclass(slots=True)
class Month:
    """What is written to files, and GPU-seconds by leaf."""

    nodes: int
    days: int
    jobs: list[str] = field(default_factory=list)
    paid: list[str] = field(default_factory=list)
    downs: list[dict[str, object]] = field(default_factory=list)
    levels: dict[int, list[float]] = field(default_factory=dict)  # node -> a level for every minute
    owners: dict[int, list[str]] = field(default_factory=dict)  # node -> a job for every slot
    memory: dict[str, int] = field(default_factory=dict)  # job -> MiB that each of its cards held
    meters: dict[str, Metered] = field(default_factory=dict)
    truth: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Metered:
    """A job under a Meter; shares are twentieths of its steps, so that the results are whole seconds."""

    at_s: int
    kind: str
    node: int
    gpus: int
    input_wait: int
    communication: int
    mfu: int | None

    def leaves(self, size: str) -> Iterator[tuple[str, int]]:
        """Leaf and twentieths of the time it worked."""
        rest = 20 - self.input_wait - self.communication
        root = f"active.working.{size}"
        yield f"{root}.input_wait", self.input_wait
        yield f"{root}.communication", self.communication
        yield f"{root}.computing.{'unknown' if self.mfu is None else 'below_peak'}", rest - (self.mfu or 0)
        yield f"{root}.computing.mfu", self.mfu or 0


SPARE = 2  # nodes of a queue that nobody uses
# How full a queue is in a slot: the probability that a node is free, and that its job leaves three GPUs.
FULLNESS = ((0.2, 0.15), (0.2, 0.15), (0.0, 0.15), (0.0, 0.02))


def partition(node: int, nodes: int) -> str:
    return "spare" if node < SPARE else "left" if node < nodes // 2 else "right"


def plant(nodes: int = 75, days: int = DAYS, seed: int = 0) -> Month:
    month, dice = Month(nodes, days), random.Random(seed)
    for node in range(nodes):
        month.levels[node], month.owners[node] = [], []
    number = 0
    # The last nodes are down from the middle of the month on: sinfo says since when.
    broken, planned = nodes - 1, nodes - 2
    middle = days * 43200 // SLOT_S * SLOT_S
    for slot in range(days * 86400 // SLOT_S):
        at = START_S + slot * SLOT_S
        free: dict[str, list[int]] = {"left": [], "right": [], "spare": []}  # free GPUs of each node
        fullness = {"left": dice.choice(FULLNESS), "right": dice.choice(FULLNESS), "spare": (1.0, 0.0)}
        for node in range(nodes):
            is_down = node in (broken, planned) and slot * SLOT_S >= middle
            is_free, leaves_some = fullness[partition(node, nodes)]
            kinds = METERED_KINDS if node == METERED else sorted(KINDS)
            kind = "" if is_down or dice.random() < is_free else dice.choice(kinds)
            gpus = 5 if dice.random() < leaves_some else GPUS
            if not kind:
                month.levels[node] += [0.0] * (SLOT_S // STEP_S)
                month.owners[node].append("")
                leaf = "out_of_service.broken" if node == broken else "out_of_service.planned"
                if is_down:
                    month.truth[leaf] += GPUS * SLOT_S
                else:
                    free[partition(node, nodes)].append(GPUS)
                continue
            number += 1
            state = dice.choice(sorted(STATES))
            month.jobs.append(_row(number, at, state, gpus=gpus, node=node, nodes=nodes, runs=True))
            month.owners[node].append(f"{number}/{gpus}")
            month.levels[node] += [level for level, minutes, _ in KINDS[kind] for _ in range(minutes)]
            job = Metered(
                at,
                kind,
                node,
                gpus,
                input_wait=dice.randrange(1, 6),
                communication=dice.randrange(1, 4),
                mfu=dice.choice((None, dice.randrange(4, 12))),
            )
            _held(month, str(number), f"allocated.{STATES[state]}", job, dice.choice(sorted(SIZES)))
            if gpus < GPUS:
                free[partition(node, nodes)].append(GPUS - gpus)
        number = _waiting(month, dice, number, at, free)
    _no_demand(month)
    _paid(month)
    for node, reason in ((broken, "DOWN"), (planned, "MAINT")):
        month.downs.append({"name": f"n{node}", "state": reason, "reason_changed_at": START_S + middle})
    return month


def _held(month: Month, number: str, root: str, job: Metered, mib: int) -> None:
    """What a job's cards did: work is divided by memory, where that is scraped, and by a Meter's steps."""
    if job.node == METERED:
        mib = mib or max(SIZES)
        month.meters[number] = job
    month.memory[number] = mib
    for _, minutes, leaf in KINDS[job.kind]:
        parts = [(leaf, 20)]
        if leaf == "active.working.unknown" and mib:
            parts = [(f"active.working.{SIZES[mib]}.unknown", 20)]
            if job.node == METERED:
                parts = list(job.leaves(SIZES[mib]))
        for part, twentieths in parts:
            month.truth[f"{root}.{part}"] += job.gpus * minutes * 3 * twentieths


def _row(number: int, at: int, state: str, *, gpus: int, node: int, nodes: int, runs: bool) -> str:
    where, began = (f"n{node}", str(at)) if runs else ("None assigned", "Unknown")
    queue, tres = partition(node, nodes), f"gres/gpu={gpus},node=1"
    who = f"{number}|u{number % 40}|team{number % 7}"
    return f"{who}|{queue}|{at}|{at}|{began}|{at + SLOT_S}|{state}|{tres}|{where}"


def _waiting(month: Month, dice: random.Random, number: int, at: int, free: dict[str, list[int]]) -> int:
    """In some slots one job waits, and is cancelled at its end: the effect on the free GPUs."""
    rest = {name: sum(gpus) for name, gpus in free.items()}
    if dice.random() < 0.5:
        number += 1
        mine, other = dice.choice((("left", "right"), ("right", "left")))
        need = dice.choice((4, GPUS))
        node = SPARE if mine == "left" else month.nodes - 1
        month.jobs.append(_row(number, at, "CANCELLED", gpus=need, node=node, nodes=month.nodes, runs=False))
        own = min(need, rest[mine])
        if any(gpus >= need for gpus in free[mine]):
            leaf = "fits"
        else:
            leaf = "fragmented" if rest[mine] >= need else "held"
        walled = min(need - own, rest[other] + rest["spare"])
        month.truth[f"unallocated.own_queue.{leaf}"] += own * SLOT_S
        month.truth["unallocated.walled"] += walled * SLOT_S
        rest[mine] -= own
        rest["spare"] -= walled  # from here on only their sum counts
    month.truth["no demand"] += sum(rest.values()) * SLOT_S
    month.truth["least idle"] = min(month.truth.get("least idle", 10**9), sum(rest.values()))
    return number


def _no_demand(month: Month) -> None:
    """What is above the peak was never needed: the minimum of GPUs without demand, all the time."""
    never = month.truth.pop("least idle") * month.days * 86400
    month.truth["unallocated.no_demand.never_needed"] = never
    month.truth["unallocated.no_demand.peaks"] = month.truth.pop("no demand") - never


def _paid(month: Month) -> None:
    start, end = (_iso(START_S + days * 86400) for days in (0, month.days))
    for node in range(month.nodes):
        queue = partition(node, month.nodes)
        month.paid.append(f"n{node},a100-sxm-80gb,{GPUS},{start},{end},1.80,paid,{queue}")
    month.paid.append(f"reserved,a100-sxm-80gb,{GPUS},{start},{end},1.20,unused,")
    month.truth["not_delivered.unused"] += GPUS * month.days * 86400


def _iso(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat()


def write(month: Month, folder: Path) -> int:
    """sacct, sinfo, a CSV of what is paid, and a Prometheus range answer a day; returns how many samples."""
    names = "JobID|User|Account|Partition|Submit|Eligible|Start|End|State|AllocTRES|NodeList"
    (folder / "sacct.txt").write_text("\n".join((names, *month.jobs)) + "\n")
    (folder / "paid.csv").write_text(
        "\n".join(("place,gpu,gpus,start,end,usd_per_gpu_hour,kind,queues", *month.paid)) + "\n"
    )
    (folder / "sinfo.json").write_text(json.dumps({"nodes": month.downs}))
    (folder / "meter").mkdir()
    for number, job in month.meters.items():
        for card in range(job.gpus):
            path = folder / "meter" / f"{number}-{card}.jsonl"
            path.write_text("".join(f"{as_line(each)}\n" for each in _steps(month, number, job, card)))
    return sum(_write_day(month, day, folder / f"day-{day:02}.json") for day in range(month.days))


def _steps(month: Month, number: str, job: Metered, card: int) -> Iterator[Sample]:
    """What the Meter of one process wrote: it runs from the job's first to its last second."""
    host, used_bytes = f"n{job.node}", month.memory[number] * 2**20
    yield RunSample(at_s=job.at_s, pid=1, host=host, job=number, device=f"cuda:{card}")
    at_s, step = job.at_s, 0
    for level, minutes, _ in KINDS[job.kind]:
        for _ in range(minutes * 60 // STEP_OF_METER_S):
            at_s += STEP_OF_METER_S
            if level > 0:
                step += 1
                rest = 20 - job.input_wait - job.communication
                yield StepSample(
                    at_s=at_s,
                    step=step,
                    step_s=STEP_OF_METER_S,
                    data_s=STEP_OF_METER_S * job.input_wait / 20,
                    comm_s=STEP_OF_METER_S * job.communication / 20,
                    other_s=STEP_OF_METER_S * rest / 20,
                    mfu=None if job.mfu is None else job.mfu / 20,
                    peak_reserved_bytes=used_bytes,
                )
    yield GpuSample(at_s=at_s, index=card, memory_total_bytes=80 * 2**30, memory_used_bytes=used_bytes)


def _write_day(month: Month, day: int, path: Path) -> int:
    count = 0
    with path.open("w") as file:
        file.write('{"status":"success","data":{"resultType":"matrix","result":[')
        for i, (labels, values) in enumerate(_series(month, day)):
            file.write(
                "," * (i > 0) + '{"metric":' + json.dumps(labels) + ',"values":[' + ",".join(values) + "]}"
            )
            count += len(values)
        file.write("]}}")
    return count


def _series(month: Month, day: int) -> Iterator[tuple[dict[str, str], list[str]]]:
    """A series per card and job, labelled like DCGM's exporter; a free card has a separate one."""
    per_slot = SLOT_S // STEP_S
    for node in range(month.nodes):
        for slot in range(day * 86400 // SLOT_S, (day + 1) * 86400 // SLOT_S):
            job, _, gpus = month.owners[node][slot].partition("/")
            levels = month.levels[node][slot * per_slot : (slot + 1) * per_slot]
            at = START_S + slot * SLOT_S
            texts = [f'[{at + STEP_S * k},"{level}"]' for k, level in enumerate(levels) if level >= 0]
            idle = [f'[{at + STEP_S * k},"0.0"]' for k in range(per_slot)]
            for card in range(GPUS):
                labels = {"__name__": "DCGM_FI_PROF_SM_ACTIVE", "Hostname": f"n{node}", "gpu": str(card)}
                if job and card < int(gpus):
                    labels["hpc_job"] = job
                    yield labels, texts
                    if mib := month.memory[job]:
                        used = [f'[{at + k},"{mib}"]' for k in range(0, SLOT_S, MEMORY_STEP_S)]
                        yield {**labels, "__name__": "DCGM_FI_DEV_FB_USED"}, used
                else:
                    yield labels, idle
