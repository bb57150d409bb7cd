"""Slurm's records: `sacct -P` and `sacct --json`, `squeue` and `sinfo` as JSON (21.08 to 26.05) and as text.

    sacct -P -a -X -S 2026-05-01 -E 2026-06-01 -o JobID,User,Account,Partition,Submit,Eligible,Start,End,\\
      State,ExitCode,AllocTRES,ReqTRES,NodeList,Reason,AdminComment

Times without a zone are in the zone of `--zone`. A job's outcome is its state, never its exit code: Slurm
22.05 writes SUCCESS and 0 into the JSON of failed jobs. A job could run from `Eligible` on: before that it
was held or waited for another job, and was not demand.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from math import prod
from typing import Any

from brimful.audit.readers import jobstats
from brimful.audit.records import Down, Outcome, Paid, Part, Records, Run, Wait

OUTCOMES: dict[str, Outcome] = {
    "COMPLETED": "kept",
    **dict.fromkeys(("FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"), "lost"),
}
# CANCELLED, TIMEOUT and PREEMPTED may have saved their work: unknown.
STATES = {
    "0": "PENDING",
    "1": "RUNNING",
    "3": "COMPLETED",
    "4": "CANCELLED",
    "5": "FAILED",
    "6": "TIMEOUT",
    "7": "NODE_FAIL",
}
NOT_DEMAND = ("Dependency", "JobHeld", "BeginTime", "JobArrayTaskLimit")
BLOCKED = ("QOS", "Assoc", "Reservation", "MaxGRES")
PLANNED = ("MAINT", "RESERVED", "PLANNED", "POWER")
BROKEN = ("DOWN", "DRAIN", "FAIL", "ERROR", "UNKNOWN", "NO_RESPOND")
GPU_TRES = re.compile(r"gres/gpu(?::([^=,]+))?=(\d{1,7})")
GRES = re.compile(r"gpu(?::([A-Za-z0-9._-]*[A-Za-z_][A-Za-z0-9._-]*))?:(\d{1,4})(?=[,(]|$)")
HOSTS = re.compile(r"(?:[^,\[]|\[[^\[\]]*\])+")  # one name of a list, which may have several brackets
SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
MOST_HOSTS = 100_000
NODES = re.compile(r"(?:^|,)node=([1-9]\d{0,5})(?:,|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A row of any of these sources. Times are None if there is none yet."""

    job: str
    user: str
    team: str
    partition: str
    submit_s: int | None
    eligible_s: int | None
    start_s: int | None
    end_s: int | None
    state: str
    exit_code: int | None
    tres: str
    nodes: str
    reason: str
    comment: str
    name: str = ""  # JobName
    shown: str = ""  # 12_3 of an array, if `job` is Slurm's number for it
    cluster: str = ""
    seen_s: int | None = None  # when it was observed, if it has not ended


class Jobs:
    """Every job once, however many files contain it: by number and submit time, as in Slurm's own database.
    Later information (it has ended) wins, and text wins over JSON, which has been seen with wrong exit codes.
    """

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self._known: dict[tuple[str, int | None], list[tuple[SlurmJob, bool]]] = {}

    def add_all(self, told: Iterable[SlurmJob], *, is_json: bool = False) -> None:
        """Jobs of one file. Those that have not ended are assumed to run until the file's last timestamp."""
        jobs = list(told)
        times = (at_s for job in jobs for at_s in (job.submit_s, job.start_s, job.end_s, job.seen_s))
        now_s = max((at_s for at_s in times if at_s is not None), default=None)
        for job in jobs:
            self._add(replace(job, seen_s=now_s) if job.end_s is None else job, is_json=is_json)

    def _add(self, job: SlurmJob, *, is_json: bool) -> None:
        there = self._known.setdefault((job.shown or job.job, job.submit_s), [])
        for i, (before, was_json) in enumerate(there):
            if not _another(before, job):
                there[i] = self._joined((before, was_json), (job, is_json))
                return
        there.append((job, is_json))

    def _joined(self, *told: tuple[SlurmJob, bool]) -> tuple[SlurmJob, bool]:
        (one, one_json), (other, other_json) = told
        self.left_out["counted_once"] += 1
        if one.end_s is not None and other.end_s is not None and one_json != other_json:
            self.left_out["exit_code_wrong"] += len({one.exit_code, other.exit_code} - {None}) > 1
            self.left_out["state_contradicts"] += _state(one) != _state(other)
        (best, is_json), (rest, _) = sorted(
            told,
            key=lambda each: (
                each[0].end_s is None,
                each[0].start_s is None,
                -(each[0].seen_s or 0),
                each[1],
            ),
        )
        return replace(best, comment=best.comment or rest.comment, name=best.name or rest.name), is_json

    def settle(self, records: Records) -> None:
        for there in self._known.values():
            for job, _ in there:
                add_job(job, records)
        records.left_out.update(self.left_out)
        self._known.clear()


def _another(one: SlurmJob, other: SlurmJob) -> bool:
    """Two clusters can assign the same number in the same second."""
    if one.cluster and other.cluster:
        return one.cluster != other.cluster
    return bool(one.user and other.user and one.user != other.user)


def _state(job: SlurmJob) -> str:
    return job.state.split()[0].rstrip("+") if job.state else ""


def gpus_of(tres: str) -> dict[str, int]:
    """'gres/gpu=8,gres/gpu:a100=8' -> {'a100': 8}: the total is not counted in addition to its types."""
    found = {kind or "": int(n) for kind, n in GPU_TRES.findall(tres)}
    typed = {kind: n for kind, n in found.items() if kind and n}
    return typed or {kind: n for kind, n in found.items() if n}


def hosts(text: str) -> list[str]:
    """'a[1-2,05],b3' -> a1, a2, a05, b3."""
    found: list[str] = []
    for name in HOSTS.findall(text):
        # Names at even positions, bracket contents at odd ones.
        pieces = re.split(r"[\[\]]", name)
        choices = [_span(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
        if len(found) + prod(map(len, choices)) <= MOST_HOSTS:
            found += map("".join, itertools.product(*choices))
    return found


def _span(text: str) -> list[str]:
    """'1-2,05' -> 1, 2, 05."""
    found: list[str] = []
    for part in text.split(","):
        span = SPAN.fullmatch(part)
        if span and len(found) <= MOST_HOSTS:
            low, high = span[1], span[2] or span[1]
            last = min(int(high), int(low) + MOST_HOSTS)
            found += [f"{i:0{len(low)}d}" for i in range(int(low), last + 1)]
    return found


def add_job(job: SlurmJob, records: Records) -> None:
    """A job's time in the queue and on GPUs."""
    now_s = job.seen_s
    types = gpus_of(job.tres)
    if not types:
        records.left_out["no_gpu_job"] += 1
        return
    state = _state(job)
    if job.exit_code == 0 and OUTCOMES.get(state) == "lost":
        records.left_out["exit_code_contradicts"] += 1
    names = hosts(job.nodes) if job.start_s is not None else []
    ready_s = job.eligible_s
    asked = NODES.search(job.tres)
    nodes = len(names) or (int(asked[1]) if asked else 0)  # 0: unknown
    until_s = job.start_s or job.end_s or now_s
    is_demand = not job.reason.startswith(NOT_DEMAND) or job.start_s is not None
    for kind, gpus in types.items():
        if is_demand and ready_s is not None and until_s is not None and ready_s < until_s:
            records.waits.append(
                Wait(
                    start_s=ready_s,
                    end_s=until_s,
                    gpus=gpus,
                    per_node=-(-gpus // nodes) if nodes else 1 if gpus == 1 else None,
                    job=job.job,
                    wall=job.partition,
                    gpu=kind,
                    blocked=job.reason.startswith(BLOCKED),
                )
            )
        end_s = job.end_s if job.end_s is not None else now_s
        if job.start_s is None or end_s is None or end_s <= job.start_s:
            records.left_out["bad_row"] += (end_s or 0) < (job.start_s or 0) and end_s is not None
            continue
        even, more = divmod(gpus, len(names) or 1)
        if more:
            records.left_out["uneven_gang"] += 1
        parts = (Part(place=name, gpus=even + (i < more)) for i, name in enumerate(names[:gpus] or [""]))
        records.runs.append(
            Run(
                job=job.job,
                start_s=job.start_s,
                end_s=end_s,
                parts=tuple(parts),
                gpu=kind,
                outcome=OUTCOMES.get(state, "unknown"),
                user=job.user,
                team=job.team,
                wall=job.partition,
                submit_s=ready_s,
                name=job.name,
            )
        )
    if job.comment.startswith(jobstats.PREFIX):
        jobstats.add(job.job, job.comment, records)
    records.knows_queue = True


# -- text --------------------------------------------------------------------------------------------------


def is_sacct(head: str) -> bool:
    return {"JobID", "Submit"} <= set(head.partition("\n")[0].split("|"))


MOST_LINES = 1000  # per row


def _whole_rows(lines: Iterator[str]) -> Iterator[str]:
    """A job's name may contain newlines: lines are joined until all cells are there."""
    head = next(lines, "")
    yield head
    held: list[str] = []
    cells, seen = head.count("|"), 0
    for line in lines:
        here = line.count("|")
        if held and seen + here > cells:
            yield " ".join(held)
            held, seen = [], 0
        held.append(line.rstrip("\r\n"))
        seen += here
        if seen >= cells or len(held) > MOST_LINES:
            yield " ".join(held)
            held, seen = [], 0
    yield " ".join(held)


def sacct_rows(lines: Iterator[str], left_out: Counter[str], zone: tzinfo) -> Iterator[SlurmJob]:
    for row in csv.DictReader(_whole_rows(lines), delimiter="|", quoting=csv.QUOTE_NONE):
        if None in row.values() or not row["JobID"][:1].isdigit():  # cells are missing, or of another row
            left_out["bad_row"] += 1
            continue
        job = {key: value or "" for key, value in row.items() if isinstance(value, str) or value is None}
        if "." in job.get("JobID", "."):
            left_out["step"] += 1
            continue
        try:
            at = _moments(job, zone)
        except (ValueError, OverflowError):
            left_out["bad_row"] += 1
            continue
        yield SlurmJob(
            job=job.get("JobIDRaw") or job["JobID"],
            shown=job["JobID"],
            cluster=job.get("Cluster", ""),
            name=job.get("JobName", ""),
            user=job.get("User", ""),
            team=job.get("Account", "") or job.get("User", ""),
            partition=job.get("Partition", ""),
            submit_s=at["Submit"],
            eligible_s=at["Eligible"] if "Eligible" in job else at["Submit"],
            start_s=at["Start"],
            end_s=at["End"],
            state=job.get("State", ""),
            exit_code=_exit(job.get("ExitCode", "")),
            tres=job.get("AllocTRES") or job.get("ReqTRES") or "",
            nodes="" if job.get("NodeList") == "None assigned" else job.get("NodeList", ""),
            reason=job.get("Reason", ""),
            comment=job.get("AdminComment", ""),
        )


LAST_S = 2**33  # in the year 2242: anything later is not a time


def _moments(job: Mapping[str, str], zone: tzinfo) -> dict[str, int | None]:
    """For the hour that a clock shows twice: the second, if the job would otherwise end before it started."""
    found: dict[str, int | None] = {}
    last_s = 0
    for column in ("Submit", "Eligible", "Start", "End"):
        first, second = (moment(job.get(column, ""), zone, fold=fold) for fold in (0, 1))
        found[column] = second if first is not None and first < last_s else first
        last_s = found[column] or last_s
    return found


def moment(text: str, zone: tzinfo, *, fold: int = 0) -> int | None:
    """2026-05-01T10:00:00, seconds, or one of Slurm's words for none."""
    if text in ("", "Unknown", "None", "N/A", "0", "NULL"):
        return None
    if text.isascii() and text.replace(".", "", 1).isdigit() and "-" not in text:
        at_s = float(text)
    else:
        when = datetime.fromisoformat(text)
        at_s = (when if when.tzinfo else when.replace(tzinfo=zone, fold=fold)).timestamp()
    if not 0 <= at_s < LAST_S:
        raise ValueError(text[:40])
    return int(at_s)


def _exit(text: str) -> int | None:
    code = text.partition(":")[0]
    return int(code) if code.isdigit() else None


def is_database(head: str) -> bool:
    """The job table of slurmdbd as a CSV, as MIT Supercloud publishes it."""
    return {"id_job", "time_eligible", "tres_alloc"} <= set(head.partition("\n")[0].split(","))


def database_rows(lines: Iterator[str], zone: tzinfo) -> Iterator[SlurmJob]:
    for row in csv.DictReader(lines):
        tres = dict(part.partition("=")[::2] for part in row["tres_alloc"].split(","))
        gpus = sum(int(n) for kind, n in tres.items() if kind in ("1001", "1002") and n.isdigit())
        yield SlurmJob(
            job=row["id_job"],
            user=row.get("id_user", ""),
            team=row.get("id_user", ""),
            partition=row.get("partition", ""),
            submit_s=moment(row.get("time_submit", ""), zone),
            eligible_s=moment(row["time_eligible"], zone),
            start_s=moment(row.get("time_start", ""), zone),
            end_s=moment(row.get("time_end", ""), zone),
            state=STATES.get(row.get("state", ""), ""),
            exit_code=None,
            tres=f"gres/gpu={gpus}" if gpus else "",
            nodes=",".join(re.findall(r"'([^']+)'", row.get("nodelist", ""))),
            reason="",
            comment="",
        )


def is_sinfo(head: str) -> bool:
    words = head.partition("\n")[0].split()
    return len(words) == 8 and words[3].count("/") == 3


def read_sinfo(lines: Iterator[str], records: Records, start_s: int, end_s: int) -> None:
    """`sinfo -h -N -O NodeList,…,StateLong,Partition,Gres,GresUsed`: a line per node and partition."""
    seen: dict[str, tuple[str, str, set[str]]] = {}
    for line in lines:
        words = line.split()
        if len(words) != 8:
            records.left_out["bad_row"] += bool(words)
            continue
        seen.setdefault(words[0], (words[6], words[4], set()))[2].add(words[5].rstrip("*"))
    for node, (gres, state, partitions) in seen.items():
        _add_node(
            node,
            gres,
            state=state.upper(),
            partitions=partitions,
            since_s=None,
            records=records,
            window=(start_s, end_s),
        )


def _add_node(
    node: str,
    gres: str,
    *,
    state: str,
    partitions: set[str],
    since_s: int | None,
    records: Records,
    window: tuple[int, int],
) -> None:
    start_s, end_s = window
    types = {kind or "": int(n) for kind, n in GRES.findall(gres)}
    if not types:
        records.left_out["no_gpu_node"] += 1
    for kind, gpus in types.items():
        records.nodes.append(
            Paid(place=node, gpu=kind, gpus=gpus, start_s=start_s, end_s=end_s, walls=frozenset(partitions))
        )
    planned, broken = any(word in state for word in PLANNED), any(word in state for word in BROKEN)
    if planned or broken:
        if since_s is None:
            if types:
                records.left_out["down_since_unknown"] += 1
            return
        leaf = f"out_of_service.{'broken' if broken else 'planned'}"
        records.downs.append(Down(place=node, start_s=since_s, end_s=end_s, leaf=leaf))


# -- JSON --------------------------------------------------------------------------------------------------


def number(value: object) -> int | None:
    """A plain number, or as Slurm 23.02 and newer wrap it: {'set': true, 'number': 6}."""
    if isinstance(value, dict):
        return int(value.get("number", 0)) if value.get("set") and not value.get("infinite") else None
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def word(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def json_jobs(told: Sequence[Any], left_out: Counter[str]) -> Iterator[SlurmJob]:
    for job in told:
        if isinstance(job, dict):
            try:
                made = _sacct_job(job) if "time" in job else _squeue_job(job)
            except (ValueError, OverflowError):
                left_out["bad_row"] += 1
                continue
            name, cluster = word(job.get("name")), word(job.get("cluster"))
            yield replace(made, shown=_shown(job), name=name, cluster=cluster)


def read_nodes(found: Mapping[str, Any], records: Records, window: tuple[int, int]) -> None:
    nodes: Sequence[Any] = found.get("nodes") or ()
    for node in nodes:
        if isinstance(node, dict):
            flags = word(node.get("state")) + " " + word(node.get("state_flags"))
            since = number(node.get("reason_changed_at"))
            _add_node(
                word(node.get("name")),
                word(node.get("gres")),
                state=flags.upper(),
                partitions=set(node.get("partitions") or ()),
                since_s=since or None,
                records=records,
                window=window,
            )


def _when(value: object) -> int | None:
    """A time; 0 means none."""
    at_s = number(value)
    if at_s is not None and not 0 <= at_s < LAST_S:
        raise ValueError(at_s)
    return at_s or None


def _tres(parts: object) -> str:
    found = []
    for part in parts if isinstance(parts, list) else ():
        name = f"{part.get('type')}/{part['name']}" if part.get("name") else str(part.get("type"))
        found.append(f"{name}={number(part.get('count')) or 0}")
    return ",".join(found)


def _shown(job: Mapping[str, Any]) -> str:
    """Its name in `sacct -P`: 12_3 for an array task."""
    array = job["array"] if isinstance(job.get("array"), dict) else {}
    task = number(array.get("task_id", job.get("array_task_id")))
    of = number(array.get("job_id", job.get("array_job_id")))
    return f"{of}_{task}" if of and task is not None else word(job.get("job_id"))


def _sacct_job(job: Mapping[str, Any]) -> SlurmJob:
    times, tres = job["time"], job.get("tres") or {}
    state = job.get("state") or {}
    code = (job.get("exit_code") or {}).get("return_code")
    nodes = word(job.get("nodes"))
    return SlurmJob(
        job=word(job.get("job_id")),
        user=word(job.get("user")),
        team=word(job.get("account")) or word(job.get("user")),
        partition=word(job.get("partition")),
        submit_s=_when(times.get("submission")),
        eligible_s=_when(times.get("eligible")),
        start_s=_when(times.get("start")),
        end_s=_when(times.get("end")),
        state=word(state.get("current")),
        exit_code=number(code),
        tres=_tres(tres.get("allocated")) or _tres(tres.get("requested")),
        nodes="" if nodes == "None assigned" else nodes,
        reason=word(state.get("reason")),
        comment=word((job.get("comment") or {}).get("administrator")),
    )


def _squeue_job(job: Mapping[str, Any]) -> SlurmJob:
    state = word(job.get("job_state"))
    ended = state in OUTCOMES or state in ("CANCELLED", "TIMEOUT")
    return SlurmJob(
        job=word(job.get("job_id")),
        user=word(job.get("user_name")),
        team=word(job.get("account")) or word(job.get("user_name")),
        partition=word(job.get("partition")),
        submit_s=_when(job.get("submit_time")),
        eligible_s=_when(job.get("eligible_time")),
        start_s=_when(job.get("start_time")) if state != "PENDING" else None,
        # For a running job, squeue reports when its limit will end it.
        end_s=_when(job.get("end_time")) if ended else None,
        seen_s=_when(job.get("last_sched_evaluation")),
        state=state,
        exit_code=number((job.get("exit_code") or {}).get("return_code"))
        if isinstance(job.get("exit_code"), dict)
        else None,
        tres=word(job.get("tres_alloc_str")) or word(job.get("tres_req_str")),
        nodes=word(job.get("nodes")),
        reason=word(job.get("state_reason")),
        comment=word(job.get("admin_comment")),
    )
