"""Who is billed what, and how much of it was waste: folded from the log beside the ledger. Pure.

A line is one lease as it was posted; bills are sums of lines, updated line by line. Waste that the log shows:
runs that failed, work that was repeated because a stop lost it, and time in which GPUs were held idle. If a
lease's work could not be observed, its idle time is unknown, not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from brimful.fleet.events import (
    Event,
    LeaseBusy,
    LeaseEnded,
    LeaseEnding,
    LeaseIdle,
    NoticeGiven,
    NoticeWithdrawn,
)
from brimful.fleet.reservations.reservation import RESERVING, Reservation
from brimful.market.ledger import Ledger, Unposted

DAYS_KEPT = 92
MONTH = r"^\d{4}-(0[1-9]|1[0-2])$"  # 2026-03
SPLITS = ("team", "user", "gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One lease on a bill."""

    leases: ClassVar[int] = 1
    team: str
    job: str
    lease: str
    site: str
    gpu: str
    gpu_s: int
    microusd: int
    failed_microusd: int = 0  # it ended with its own error
    lost_microusd: int = 0  # paid for work that a later lease repeated
    idle_microusd: int | None = None  # paid while its GPUs were held idle; None: could not be observed
    moved_bytes: int = 0  # of its checkpoints, to and from a store
    egress_microusd: int = 0  # paid for moving them
    user: str = ""
    day: str = ""  # the day it ended, in UTC
    name: str = ""  # of the job


@dataclass(slots=True, kw_only=True)
class Bill:
    """The lines of one team, user, job, site, GPU type or day, added up."""

    of: str
    name: str = ""  # of the job, in bills by job
    leases: int = 0
    gpu_s: int = 0
    microusd: int = 0
    failed_microusd: int = 0
    lost_microusd: int = 0
    idle_microusd: int | None = None  # paid while GPUs were held idle; None: not measured
    moved_bytes: int = 0
    egress_microusd: int = 0

    def add(self, part: Line | Bill) -> None:
        self.leases += part.leases
        self.gpu_s += part.gpu_s
        self.microusd += part.microusd
        self.failed_microusd += part.failed_microusd
        self.lost_microusd += part.lost_microusd
        if part.idle_microusd is not None:
            self.idle_microusd = (self.idle_microusd or 0) + part.idle_microusd
        self.moved_bytes += part.moved_bytes
        self.egress_microusd += part.egress_microusd


class Sums:
    """Bills of each team by `team`, `user`, `job`, `site`, `gpu` type or `day`, whichever are requested: a
    line is added to each once, and readers add up bills of teams and months (UTC), not lines."""

    def __init__(self, *by: str) -> None:
        # by -> month -> team -> of
        self._by: dict[str, dict[str, dict[str, dict[str, Bill]]]] = {each: {} for each in by}

    def add(self, lines: Iterable[Line]) -> None:
        for line in lines:
            for by, months in self._by.items():
                name, teams = line.name if by == "job" else "", months.setdefault(line.day[:7], {})
                _add(teams.setdefault(line.team, {}), getattr(line, by), line, name=name)

    def bills(
        self, by: str, is_wanted: Callable[[str], bool] = lambda _team: True, *, month: str | None = None
    ) -> list[Bill]:
        """The bills of the wanted teams, of one month or since the first, combined, most expensive first."""
        made: dict[str, Bill] = {}
        for each, teams in self._by[by].items():
            for team, bills in teams.items() if month in (None, each) else ():
                if is_wanted(team):
                    for of, bill in bills.items():
                        _add(made, of, bill, name=bill.name)
        return sorted(made.values(), key=lambda bill: (-bill.microusd, bill.of))

    def months(self, by: str, is_wanted: Callable[[str], bool] = lambda _team: True) -> list[str]:
        """In which the wanted teams have a bill, newest first."""
        return sorted(
            (each for each, teams in self._by[by].items() if any(map(is_wanted, teams))), reverse=True
        )


def _add(bills: dict[str, Bill], of: str, part: Line | Bill, *, name: str) -> None:
    if of not in bills:
        bills[of] = Bill(of=of, name=name)
    bills[of].add(part)


class Days:
    """What was billed on each day (UTC), split by team, user and GPU type; the newest `DAYS_KEPT` days."""

    def __init__(self) -> None:
        self._days: dict[
            str, dict[tuple[str, str, str], int]
        ] = {}  # day -> (split, team, of) -> micro-dollars

    def add(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if line.day not in self._days:
                self._days[line.day] = {}
                if len(self._days) > DAYS_KEPT:
                    del self._days[min(self._days)]
            spent = self._days.get(line.day, {})
            for by in SPLITS:
                key = (by, line.team, getattr(line, by))
                spent[key] = spent.get(key, 0) + line.microusd

    def of(self, day: str, by: str, is_wanted: Callable[[str], bool] = lambda _team: True) -> dict[str, int]:
        """What the wanted teams were billed that day, by `by`."""
        found: dict[str, int] = {}
        for (split, team, of), microusd in self._days.get(day, {}).items():
            if split == by and is_wanted(team):
                found[of] = found.get(of, 0) + microusd
        return found


class Invoices:
    """What each event adds to a bill. The ledger decides what was posted; this only says what for."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self._told: set[str] = set()  # leases that we told to stop
        self._idle: dict[str, _Idle] = {}  # leases whose work could be observed

    def apply(self, event: Event) -> list[Line]:
        """The lines that it adds."""
        match event:
            case LeaseEnding(lease=lease) | NoticeGiven(lease=lease):
                self._told.add(lease)
            case NoticeWithdrawn(lease=lease):
                self._told.discard(lease)
            case LeaseIdle(lease=lease, since_s=since_s):
                self._idle.setdefault(lease, _Idle()).since_s = since_s
            case LeaseBusy(lease=lease, at_s=at_s):
                self._idle.setdefault(lease, _Idle()).end(at_s)
            case LeaseEnded():
                return [self._post(event)]
            case _:
                if isinstance(event, RESERVING):
                    return self._reserve(event)
        self.ledger.apply(event)
        return []

    def _reserve(self, event: Event) -> list[Line]:
        """A reservation that is over is a separate line, for what no credit has taken."""
        known = len(self.ledger.transfers)
        self.ledger.apply(event)
        posted = [moved for moved in self.ledger.transfers[known:] if moved.kind == "post"]
        found = ((self.ledger.reservations.find(moved.reservation), moved.microusd) for moved in posted)
        return [_reserved_line(each, microusd, event.at_s) for each, microusd in found if each is not None]

    def _post(self, event: LeaseEnded) -> Line:
        charge, known = self.ledger.unposted[event.lease], len(self.ledger.transfers)
        self.ledger.apply(event)
        posted = sum(t.microusd for t in self.ledger.transfers[known:] if t.kind == "post")
        is_told = event.lease in self._told
        self._told.discard(event.lease)
        idle = self._idle.pop(event.lease, None)
        idle_s = None if idle is None else idle.end(event.at_s)
        return _line(event, charge, posted, is_told=is_told, idle_s=idle_s)


@dataclass(slots=True)
class _Idle:
    seconds: int = 0
    since_s: int | None = None

    def end(self, at_s: int) -> int:
        """How long it was idle until then."""
        if self.since_s is not None:
            self.seconds, self.since_s = self.seconds + max(0, at_s - self.since_s), None
        return self.seconds


def _line(event: LeaseEnded, charge: Unposted, posted: int, *, is_told: bool, idle_s: int | None) -> Line:
    job, gpu, seconds = charge.job, charge.pool.gpu, charge.billed_s(event.at_s)
    egress = min(posted, charge.egress_microusd)
    gpus = posted - egress  # the part that can be waste
    has_failed = not is_told and event.exit_code not in (0, None)
    failed = gpus if has_failed else 0
    idle = None
    if idle_s is not None:
        share = gpus * min(idle_s, seconds) // seconds if seconds else 0
        idle = min(share, gpus - failed)
    lost = 0
    if is_told and event.kept_work_s is not None and seconds:
        kept_s = min(seconds, int(event.kept_work_s / (job.rate(gpu) or 1.0)))
        # No waste is counted twice: an idle job had no work to lose.
        lost = min(gpus * (seconds - kept_s) // seconds, gpus - failed - (idle or 0))
    return Line(
        team=job.tenant,
        job=job.job,
        lease=event.lease,
        site=charge.pool.site,
        gpu=gpu,
        gpu_s=charge.size * seconds,
        microusd=posted,
        failed_microusd=failed,
        lost_microusd=lost,
        idle_microusd=idle,
        moved_bytes=event.moved_bytes,
        egress_microusd=egress,
        user=job.user,
        name=job.name,
        day=day_of(event.at_s),
    )


def day_of(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d}"


def _reserved_line(found: Reservation, posted: int, at_s: int) -> Line:
    gpu_s = found.used_gpu_s + found.idle_gpu_s + found.paused_gpu_s
    waste_s = max(0, gpu_s - found.used_gpu_s - found.lent_gpu_s)
    return Line(
        team=found.tenant,
        job=found.reservation,
        lease=found.reservation,
        site=found.pool.site,
        gpu=found.pool.gpu,
        gpu_s=gpu_s,
        microusd=posted,
        idle_microusd=posted * waste_s // gpu_s if gpu_s else 0,  # neither used nor lent
        day=day_of(at_s),
    )
