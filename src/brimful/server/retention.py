"""What is kept of finished jobs, and for how long: by age, by size, or by number.

What a job still needs is never considered: no lease, checkpoint or code of a job that is not over or that the
log does not know. The log says when a job ended, because a job can set any date on its files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from brimful.adapters.code import CodeStore
from brimful.adapters.files import discard
from brimful.adapters.identity.store import AccessStore
from brimful.adapters.stores.notices import NotifyStore
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BadInput, NotFound
from brimful.fleet.job import Job
from brimful.fleet.state import OVER, Fleet, JobState
from brimful.language import Quoted, say

Kind = Literal["leases", "checkpoints", "code", "audit"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DEFAULT = "leases=30d checkpoints=30d code=30d audit=365d"
LIMIT = re.compile(r"(\d{1,9})(s|m|h|d|MiB|GiB|TiB|)", re.ASCII)
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
BYTES = {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
EVERY_S = 3600.0
SETTLED_S = 3600  # newer code may be about to be submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """None: no limit of this kind."""

    age_s: int | None = None
    size: int | None = None  # bytes in total
    last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    kind: Kind
    name: str
    path: Path
    size: int
    last_s: int  # when it was last needed


def read_keep(text: str) -> dict[Kind, Keep]:
    """`leases=30d,50GiB,5000 checkpoints=14d`: age, size and number, each optional."""
    found: dict[Kind, Keep] = {}
    for part in text.split():
        name, _, limits = part.partition("=")
        kind = next((each for each in KINDS if each == name), None)
        matches = [LIMIT.fullmatch(each) for each in limits.split(",")]
        if kind is None or not all(matches):
            raise BadInput(say("server.bad_keep", part=Quoted(part[:60]), kinds=", ".join(KINDS)))
        given: dict[str, int] = {}
        for match in filter(None, matches):
            number, unit = int(match[1]), match[2]
            of = "age_s" if unit in SECONDS else "size" if unit in BYTES else "last"
            given[of] = number * (SECONDS | BYTES).get(unit, 1)
        found[kind] = Keep(**given)
    return found


def surplus(items: Iterable[Item], keep: Mapping[Kind, Keep], *, now_s: int) -> list[Item]:
    """What exceeds a limit of its kind, keeping the newest. Pure."""
    kept: dict[Kind, tuple[int, int]] = {}  # count and bytes
    gone = []
    for item in sorted(items, key=lambda each: (-each.last_s, each.name)):
        rule, (count, size) = keep.get(item.kind), kept.get(item.kind, (0, 0))
        if rule is None:
            continue
        is_old = rule.age_s is not None and now_s - item.last_s >= rule.age_s
        is_many = rule.last is not None and count >= rule.last
        is_large = rule.size is not None and size + item.size > rule.size
        if is_old or is_many or is_large:
            gone.append(item)
        else:
            kept[item.kind] = (count + 1, size + item.size)
    return gone


class Jobs:
    """What the log knows of jobs, in memory or past."""

    def __init__(self, fleet: Fleet, find: Callable[[str], JobState]) -> None:
        self._fleet, self._find = fleet, find

    def ended_s(self, name: str) -> int | None:
        """When the job ended; None if it has not, or is unknown."""
        try:
            state = self._find(name)
        except NotFound:
            return None
        return state.ended_s if state.phase in OVER else None

    def going(self) -> Iterator[Job]:
        return (state.job for state in list(self._fleet.jobs.values()) if state.phase not in OVER)


def unneeded(engines: Path, jobs: Jobs, *, now_s: int) -> Iterator[Item]:
    """Everything that could be deleted: no job needs any of it."""
    for root in [engines / "leases", *sorted((engines / "sites").glob("*"))]:
        yield from _of_jobs(root, "leases", jobs, lambda name: name.rpartition(".")[0])
        yield from _of_jobs(root / ".checkpoints", "checkpoints", jobs, lambda name: name)
    code = CodeStore(engines / "code")
    needed = {code.path(job.tenant, job.code) for job in jobs.going() if job.code}
    for path in sorted(code.root.glob("*/*.tar")):
        facts = path.lstat()
        if path not in needed and now_s - facts.st_mtime >= SETTLED_S:
            name = f"{path.parent.name}/{path.stem}"
            yield Item(kind="code", name=name, path=path, size=facts.st_size, last_s=int(facts.st_mtime))


def _of_jobs(root: Path, kind: Kind, jobs: Jobs, job_of: Callable[[str], str]) -> Iterator[Item]:
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        ended_s = None if path.name.startswith(".") else jobs.ended_s(job_of(path.name))
        if ended_s is not None:
            yield Item(kind=kind, name=path.name, path=path, size=_size(path), last_s=ended_s)


def _size(path: Path) -> int:
    """Disk usage of everything in it, without following links."""
    total, todo = 0, [path]
    while todo:
        at = todo.pop()
        try:
            facts = at.lstat()
            total += facts.st_blocks * 512
            if at.is_dir() and not at.is_symlink():
                todo += at.iterdir()
        except OSError:
            continue  # it was just deleted
    return total


def remove(items: Iterable[Item], jobs: Jobs, *, now_s: int, engines: Path) -> list[Item]:
    """Delete them, each checked again first: somebody may need one by now."""
    gone = []
    still = {item.path for item in unneeded(engines, jobs, now_s=now_s)}
    for item in items:
        if item.path in still:
            discard(item.path)
            if not os.path.lexists(item.path):
                gone.append(item)
    return gone


def clean_tables(store: SqlStore, keep: Mapping[Kind, Keep], *, now_s: int, dry_run: bool) -> int:
    """Audit log lines beyond their age or number, and undeliverable notices; returns how many lines."""
    rule = keep.get("audit")
    if rule is None:
        return 0
    before_s = None if rule.age_s is None else now_s - rule.age_s
    if before_s is not None and not dry_run:
        NotifyStore(store).forget_dead(before_s=before_s)
    return AccessStore(store).forget_deeds(before_s=before_s, last=rule.last, dry_run=dry_run)
