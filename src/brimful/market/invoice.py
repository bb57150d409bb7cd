"""Who is billed what, and what of it was waste: folded from the log beside the ledger. Pure.

A line is one lease as it was posted; bills are sums of lines. Waste that the log can tell: runs that failed,
and work that was done again because a stop lost it. Time held idle is waste too: it is not measured yet, and
not zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from brimful.fleet.events import Event, LeaseEnded, LeaseEnding, NoticeGiven, NoticeWithdrawn
from brimful.market.ledger import Ledger, Unposted


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One lease on a bill."""

    team: str
    job: str
    lease: str
    gpu: str
    gpu_s: int
    microusd: int
    failed_microusd: int = 0  # it ended with an error of its own
    lost_microusd: int = 0  # paid for work that a later lease did again


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The lines of one team, job or GPU type."""

    of: str
    leases: int
    gpu_s: int
    microusd: int
    failed_microusd: int
    lost_microusd: int
    idle_microusd: int | None = None  # paid while GPUs were held idle; None: nobody has measured that


class Invoices:
    """Every posted lease so far. What was posted is the ledger's word; this only says for what."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self.lines: list[Line] = []
        self._told: set[str] = set()  # leases that were told to stop, by us

    def apply(self, event: Event) -> None:
        match event:
            case LeaseEnding(lease=lease) | NoticeGiven(lease=lease):
                self._told.add(lease)
            case NoticeWithdrawn(lease=lease):
                self._told.discard(lease)
            case LeaseEnded():
                self._post(event)
                return
            case _:
                pass
        self.ledger.apply(event)

    def _post(self, event: LeaseEnded) -> None:
        charge, known = self.ledger.unposted[event.lease], len(self.ledger.transfers)
        self.ledger.apply(event)
        posted = sum(t.microusd for t in self.ledger.transfers[known:] if t.kind == "post")
        is_told = event.lease in self._told
        self._told.discard(event.lease)
        self.lines.append(_line(event, charge, posted, is_told=is_told))


def _line(event: LeaseEnded, charge: Unposted, posted: int, *, is_told: bool) -> Line:
    job, gpu, seconds = charge.job, charge.pool.gpu, charge.billed_s(event.at_s)
    has_failed = not is_told and event.exit_code not in (0, None)
    lost = 0
    if is_told and event.kept_work_s is not None and seconds:
        kept_s = min(seconds, int(event.kept_work_s / (job.rate(gpu) or 1.0)))
        lost = posted * (seconds - kept_s) // seconds
    return Line(
        team=job.tenant,
        job=job.job,
        lease=event.lease,
        gpu=gpu,
        gpu_s=charge.size * seconds,
        microusd=posted,
        failed_microusd=posted if has_failed else 0,
        lost_microusd=lost,
    )


def bills(found: Iterable[Line], *, by: str) -> list[Bill]:
    """One bill for each `team`, `job` or `gpu` type, dearest first."""
    groups: dict[str, list[Line]] = {}
    for line in found:
        groups.setdefault(getattr(line, by), []).append(line)
    made = [
        Bill(
            of=name,
            leases=len(group),
            gpu_s=sum(line.gpu_s for line in group),
            microusd=sum(line.microusd for line in group),
            failed_microusd=sum(line.failed_microusd for line in group),
            lost_microusd=sum(line.lost_microusd for line in group),
        )
        for name, group in groups.items()
    ]
    return sorted(made, key=lambda bill: (-bill.microusd, bill.of))
