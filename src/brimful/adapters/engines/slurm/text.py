"""Parses the output of Slurm's commands.

Text, never `--json`: if the controller is down, that exits with 0 and a document without nodes, and `sacct
--json` calls a job that exited with 3 a success (22.05).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from brimful.errors import WorldFailed
from brimful.language import Quoted, say

MOST_HOSTS = 100_000
GPU = re.compile(r"(?:^|[,/:])gpu(?::(?P<kind>[A-Za-z][\w.+-]*))?:(?P<total>\d{1,9})(?!\d)")
SWITCH = re.compile(r"SwitchName=(\S+) Level=0 .*?Nodes=(\S+)")

# Wide enough that nothing is cut.
NODE_FIELDS = ("NodeList:128", "Gres:128", "GresUsed:128", "StateComplete:96", "NodeAddr:128", "Reason:256")
HOLDERS_FORMAT = "%A|%u|%b|%N"
WATCH_FORMAT = "%i|%T|%u|%D|%b|%V|%S|%e|%N|%r"  # without names, which may contain anything, even newlines
NOT_BEGUN = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
NOT_OVER = NOT_BEGUN | {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
JOB_FORMAT = "%i|%A|%T|%N|%b|%U|%S|%e|%r|%j"  # the name last: a stranger's may contain anything
END_FIELDS = "JobID,State,Start,End,JobName"
# Jobs in these states may have ended without starting: they were still waiting.
MAY_NOT_HAVE_BEGUN = frozenset({"CANCELLED", "DEADLINE", "REVOKED"})
PASSING = frozenset({"CONFIGURING", "COMPLETING"})  # its GPUs may or may not count as used
HOLDING = (NOT_OVER - NOT_BEGUN) | PASSING


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


class Span(NamedTuple):
    """When a job started and ended, in UTC by the controller's clock; None: not yet."""

    began_s: int | None = None
    ended_s: int | None = None


class JobRow(NamedTuple):
    job: str  # the number; for a heterogeneous job, the first
    number: str  # different for each of its parts
    state: str
    nodes: tuple[str, ...]
    gpus_per_node: int
    reason: str
    uid: int
    name: str
    span: Span


class ForeignRow(NamedTuple):
    """Anyone's job."""

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

    job: str  # a heterogeneous job has a row per part: 7+0, 7+1
    state: str
    span: Span
    name: str


def nodes_from(text: str, *, mark: str = "|") -> Iterator[NodeRow]:
    """Parses `sinfo -h -N -O NODE_FIELDS`, with the mark after each field: nodes with GPUs, each once.

    A reason may contain anything, even newlines: a line without marks continues one.
    """
    seen: set[str] = set()
    rows = [fields for line in text.split("\n") if len(fields := line.split(mark)) >= len(NODE_FIELDS)]
    if text.strip() and not rows:
        raise strange("sinfo", text)
    for row in rows:
        name, gres, used, state, address, reason = (each.strip() for each in row[: len(NODE_FIELDS)])
        gpus = gpus_in(gres)
        if gpus.total and name not in seen:
            seen.add(name)
            # Suffixes: * not responding, ~ powered off, # powering up, $ reserved for maintenance, …
            states = frozenset(re.findall(r"[a-z_]+|[*~#%$@^!-]", state.lower().replace("+", " ")))
            held = gpus_in(used, gpus.kind).total
            yield NodeRow(name, gpus, held, states, address, "" if reason == "none" else reason)


def gpus_in(gres: str, kind: str | None = None) -> Gpus:
    """`gpu:a100:8(S:0-1),tmp:1` is eight a100. Of several types the requested one, otherwise the first."""
    bare = re.sub(r"\([^)]*\)", "", gres)
    found = [Gpus(each["kind"] or "", int(each["total"])) for each in GPU.finditer(bare)]
    if kind is not None:
        found = [each for each in found if each.kind in ("", kind)]
    return found[0] if found else Gpus("", 0)


def jobs_from(text: str, *, prefix: str) -> Iterator[JobRow]:
    """Parses `squeue -h -t all -o JOB_FORMAT`: jobs whose name starts with the prefix."""
    for line in text.split("\n"):
        if not line:
            continue
        fields = line.split("|", 9)
        if len(fields) < 10 or not fields[5].isdecimal():
            raise strange("squeue", line)
        job, number, state, nodes, gres, uid, began, ended, reason, name = fields
        if name.startswith(prefix):
            # A completing job has an end time, and something of it may still run.
            span = _span(state, began, ended, lives=NOT_OVER - {"COMPLETING"})
            places = tuple(hosts(nodes))
            yield JobRow(job, number, state, places, gpus_in(gres).total, reason, int(uid), name, span)


def marked(text: str, mark: str) -> str:
    """The lines that start with the mark, without it; other lines come from newlines in a job's name."""
    lines = (line for line in text.split("\n") if line.startswith(mark))
    return "\n".join(line.removeprefix(mark) for line in lines)


def everybodys_from(text: str) -> Iterator[ForeignRow]:
    """Parses `squeue -h -r -t all -o WATCH_FORMAT`, in UTC."""
    for line in text.splitlines():
        fields = line.split("|", 9)
        if len(fields) < 10:
            raise strange("squeue", line)
        job, state, user, nodes, gres, submitted, began, ended, places, reason = fields
        submitted_s, span = _moment(submitted), _span(state, began, ended)
        if submitted_s is None or not nodes.isdigit():
            raise strange("squeue", line)
        names = () if span.began_s is None else tuple(hosts(places))
        yield ForeignRow(job, user, gpus_in(gres), int(nodes), submitted_s, *span, names, state, reason)


def holders_from(text: str, *, but: Collection[str]) -> dict[str, list[str]]:
    """Parses `squeue -h -o HOLDERS_FORMAT`: by node, whose jobs hold GPUs; `but` jobs with these numbers."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != 4:
            raise strange("squeue", line)
        number, user, gres, nodes = fields
        for node in hosts(nodes) if gpus_in(gres).total and number not in but else ():
            users = found.setdefault(node, [])
            users += [] if user in users else [user]
    return found


def _span(state: str, began: str, ended: str, *, lives: Collection[str] = NOT_OVER) -> Span:
    """A waiting job's start is an estimate, a running job's end its time limit: neither has happened. A job
    that was cancelled while waiting started when it ended; any other has run, however briefly."""
    began_s, ended_s = _moment(began), _moment(ended)
    if state in lives:
        ended_s = None
    has_not = state in NOT_BEGUN or (state in MAY_NOT_HAVE_BEGUN and began_s == ended_s)
    return Span(None if has_not else began_s, ended_s)


def _moment(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None  # N/A, NONE, Unknown


def ends_from(text: str, *, mark: str) -> Iterator[EndRow]:
    """Parses `sacct -n -P --delimiter=MARK -o END_FIELDS`. Nobody can have put the mark into a name, so
    newlines in a name cannot fake a row. `CANCELLED by 0` is one state."""
    for line in text.split("\n"):
        fields = line.split(mark)
        if len(fields) == 5:
            job, state, began, ended, name = fields
            state = state.split(" ")[0]
            yield EndRow(job, state, _span(state, began, ended), name)


def racks_from(text: str) -> dict[str, str]:
    """Parses `scontrol -o show topology`: each node's leaf switch."""
    return {host: match[1] for match in SWITCH.finditer(text) for host in hosts(match[2])}


def hosts(text: str) -> Iterator[str]:
    """Expands `a[1-2,05],b` to host names."""
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
            raise strange("a list of nodes", part)
        for number in range(int(low), int(last) + 1):
            yield from (f"{head}{number:0{len(low)}d}{end}" for end in _expanded(tail))


def strange(command: str, line: str) -> WorldFailed:
    return WorldFailed(say("slurm.strange_answer", command=command, line=Quoted(line[:120])))
