"""What Slurm's commands print, as data.

Text, never `--json`: with the controller down that answers with rc 0 and a document without nodes, and
`sacct --json` calls a job that exited with 3 a success (22.05).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from brimful.errors import WorldFailed
from brimful.language import Quoted, say

MOST_HOSTS = 100_000
GPU = re.compile(r"(?:^|[,/:])gpu(?::(?P<kind>[A-Za-z][\w.+-]*))?:(?P<total>\d+)")
ALLOCATED = re.compile(r"(?:^|,)gres/gpu=(\d+)")
SWITCH = re.compile(r"SwitchName=(\S+) Level=0 .*?Nodes=(\S+)")

# Widths that nothing is cut at; a suffix parts them, since a reason may hold spaces.
NODE_FIELDS = "NodeList:128|,Gres:128|,GresUsed:128|,StateComplete:96|,NodeAddr:128|,Reason:256|"
WATCH_FORMAT = "%i|%T|%u|%D|%b|%V|%S|%e|%N|%r"  # without names, which may hold anything, ends of lines too
NOT_BEGUN = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
NOT_OVER = NOT_BEGUN | {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
JOB_FORMAT = "%i|%A|%T|%N|%b|%U|%r|%j"  # the name last: a stranger's may hold anything
HOLD_FIELDS = "JobID:24|,NumNodes:12|,tres-alloc:256|,NodeList:2048|"
HOLDING = "RUNNING,COMPLETING,CONFIGURING,SUSPENDED,STOPPED,SIGNALING,STAGE_OUT,RESIZING"


class Gpus(NamedTuple):
    kind: str  # empty: the site does not say
    total: int


class NodeRow(NamedTuple):
    node: str
    gpus: Gpus
    used: int
    states: frozenset[str]  # in lower case: idle, mixed, allocated, down, drain, …
    address: str
    reason: str


class JobRow(NamedTuple):
    job: str  # the number; of a heterogeneous job, its first
    number: str  # of each of its parts another
    state: str
    nodes: tuple[str, ...]
    gpus_per_node: int
    reason: str
    uid: int
    name: str


class HoldRow(NamedTuple):
    """What a job of anybody has been given."""

    number: str
    gpus: int  # in all
    nodes: tuple[str, ...]


class ForeignRow(NamedTuple):
    """A job of anybody."""

    job: str
    user: str
    gpus: Gpus  # on each node
    nodes: int
    submitted_s: int
    started_s: int | None
    ended_s: int | None
    places: tuple[str, ...]
    state: str
    reason: str


class EndRow(NamedTuple):
    """What accounting kept of a job."""

    job: str
    name: str
    state: str
    exit_code: int | None


def nodes_from(text: str) -> Iterator[NodeRow]:
    """Of `sinfo -h -N -O NODE_FIELDS`: those with GPUs, each once."""
    seen: set[str] = set()
    for line in text.splitlines():
        fields = [each.strip() for each in line.split("|")]
        if len(fields) < 6:
            raise _strange("sinfo", line)
        name, gres, used, state, address, reason = fields[:6]
        gpus = gpus_in(gres)
        if gpus.total and name not in seen:
            seen.add(name)
            # With marks: * not responding, ~ powered off, # powering up, $ reserved for maintenance, …
            states = frozenset(re.findall(r"[a-z_]+|[*~#%$@^!-]", state.lower().replace("+", " ")))
            held = gpus_in(used, gpus.kind).total
            yield NodeRow(name, gpus, held, states, address, "" if reason == "none" else reason)


def gpus_in(gres: str, kind: str | None = None) -> Gpus:
    """`gpu:a100:8(S:0-1),tmp:1` is eight a100. Of several types the one asked for, else the first."""
    bare = re.sub(r"\([^)]*\)", "", gres)
    found = [Gpus(each["kind"] or "", int(each["total"])) for each in GPU.finditer(bare)]
    if kind is not None:
        found = [each for each in found if each.kind in ("", kind)]
    return found[0] if found else Gpus("", 0)


def jobs_from(text: str, *, prefix: str) -> Iterator[JobRow]:
    """Of `squeue -h -t all -o JOB_FORMAT`: those whose name begins so."""
    for line in text.split("\n"):
        if not line:
            continue
        fields = line.split("|", 7)
        if len(fields) < 8 or not fields[5].isdecimal():
            raise _strange("squeue", line)
        job, number, state, nodes, gres, uid, reason, name = fields
        if name.startswith(prefix):
            places = tuple(hosts(nodes))
            yield JobRow(job, number, state, places, gpus_in(gres).total, reason, int(uid), name)


def marked(text: str, mark: str) -> str:
    """The lines that begin so, without the mark; others are what a job's name made look like lines."""
    lines = (line for line in text.split("\n") if line.startswith(mark))
    return "\n".join(line.removeprefix(mark) for line in lines)


def holds_from(text: str) -> Iterator[HoldRow]:
    """Of `squeue -h -t HOLDING -O HOLD_FIELDS`: those with GPUs."""
    for line in text.splitlines():
        fields = [each.strip() for each in line.split("|")]
        if len(fields) < 4:
            raise _strange("squeue", line)
        found = ALLOCATED.search(fields[2])
        if found:
            yield HoldRow(fields[0], int(found[1]), tuple(hosts(fields[3])))


def everybodys_from(text: str) -> Iterator[ForeignRow]:
    """Of `squeue -h -r -t all -o WATCH_FORMAT`, in UTC. The start of a job that waits is an estimate, the end
    of one that runs its time limit: neither has happened."""
    for line in text.splitlines():
        fields = line.split("|", 9)
        if len(fields) < 10:
            raise _strange("squeue", line)
        job, state, user, nodes, gres, *times, places, reason = fields
        submitted_s, started_s, ended_s = map(_moment, times)
        if submitted_s is None or not nodes.isdigit():
            raise _strange("squeue", line)
        has_begun, is_over = state not in NOT_BEGUN, state not in NOT_OVER
        began_s = started_s if has_begun and (not is_over or started_s != ended_s) else None
        row_end_s = ended_s if is_over else None
        names = () if began_s is None else tuple(hosts(places))
        yield ForeignRow(
            job, user, gpus_in(gres), int(nodes), submitted_s, began_s, row_end_s, names, state, reason
        )


def _moment(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None  # N/A, NONE, Unknown


def ends_from(text: str) -> Iterator[EndRow]:
    """Of `sacct -n -P -X -o JobID,JobName,State,ExitCode`. `CANCELLED by 0` is one state."""
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < 4:
            raise _strange("sacct", line)
        code = fields[3].partition(":")[0]
        yield EndRow(fields[0], fields[1], fields[2].split(" ")[0], int(code) if code.isdigit() else None)


def racks_from(text: str) -> dict[str, str]:
    """Of `scontrol -o show topology`: by node, its leaf switch."""
    return {host: match[1] for match in SWITCH.finditer(text) for host in hosts(match[2])}


def hosts(text: str) -> Iterator[str]:
    """The names that `a[1-2,05],b` stands for."""
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        yield from _expanded(part)


def _expanded(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inner, _, tail = rest.partition("]")
    for piece in inner.split(","):
        low, _, high = piece.partition("-")
        last = high or low
        if not low.isdigit() or not last.isdigit() or not 0 <= int(last) - int(low) < MOST_HOSTS:
            raise _strange("a list of nodes", part)
        for number in range(int(low), int(last) + 1):
            yield from (f"{head}{number:0{len(low)}d}{end}" for end in _expanded(tail))


def _strange(command: str, line: str) -> WorldFailed:
    return WorldFailed(say("slurm.strange_answer", command=command, line=Quoted(line[:120])))
