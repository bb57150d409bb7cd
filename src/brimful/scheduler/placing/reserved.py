"""Reservations inside a decision: which waiting jobs they pay for, what is kept for owners, what is lent.

A job of the owner that fits whole into what is left of a reservation does not bid: its GPUs are taken out of
the spot supply, and jobs that must leave for it get the ordinary notice. Unused reserved GPUs are kept out
too, until they have been idle long enough to be lent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from brimful.fleet.events import (
    CreditsExpired,
    Event,
    NoticeGiven,
    ReservationEnded,
    ReservationShort,
    ReservedLent,
)
from brimful.fleet.job import PRIORITIES, WHOLE_GPU
from brimful.fleet.node import Pool
from brimful.fleet.reservations.reservation import Reservation
from brimful.fleet.state import Fleet, JobState, Lease
from brimful.language import say
from brimful.market.bid import Step


@dataclass(slots=True)
class Reserved:
    """What reservations in force claim of one pool, at one moment."""

    covers: dict[str, str] = field(default_factory=dict)  # waiting job -> reservation that pays for it
    claimed: int = 0  # GPUs not for borrowers: in use, awaited by their owner, or kept for it
    lent: tuple[tuple[str, int], ...] = ()  # (reservation, GPUs) that are part of the spot supply
    lenders: set[str] = field(default_factory=set)  # tenants that lend GPUs, paused or idle

    def supply(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """The supply without what is claimed."""
        claimed, left = self.claimed, list[Step]()
        for step in steps:
            taken = min(claimed, step.quantity)
            claimed -= taken
            if step.quantity > taken:
                left.append(replace(step, quantity=step.quantity - taken))
        return tuple(left)

    def lent_now(
        self, fleet: Fleet, pool: Pool, supply: int, winners: Collection[str], *, now_s: int
    ) -> Iterable[Event]:
        """An event if what is lent has changed, or the supply it is part of.

        A lender that wins GPUs here could push up the price it earns: its part is zero meanwhile.
        """
        before, tenants = fleet.reservations.lending.get(pool), fleet.reservations.by_name
        lent = tuple((name, 0 if tenants[name].tenant in winners else gpus) for name, gpus in self.lent)
        total = sum(gpus for _, gpus in lent)
        if total > supply:  # nodes have left: each lends less
            lent = tuple((name, gpus * supply // total) for name, gpus in lent)
        if not lent and (before is None or not before.lent):
            return
        now = ReservedLent(at_s=now_s, **pool._asdict(), gpus=supply, lent=lent)
        if before is None or (before.gpus, before.lent) != (now.gpus, now.lent):
            yield now


def reserved_in(fleet: Fleet, pools: Iterable[Pool], *, notice_s: int, now_s: int) -> dict[Pool, Reserved]:
    """By market pool; each job is paid for by at most one reservation."""
    found: dict[Pool, Reserved] = {}
    in_force = [
        each for each in fleet.reservations.by_name.values() if each.start_s - notice_s <= now_s < each.end_s
    ]
    bidding: set[tuple[Pool, str]] = set()  # (pool, tenant) whose jobs hold GPUs of the spot supply
    for lease in fleet.open_leases.values() if fleet.reservations else ():
        slot = fleet.capacity.by_name.get(lease.node)
        if slot is not None and lease.reservation:
            found.setdefault(slot.pool, Reserved()).claimed += lease.size
        elif slot is not None:
            bidding.add((slot.pool, fleet.jobs[lease.job].job.tenant))
    if not in_force:
        return found
    waiting: dict[str, list[JobState]] = {}
    for state in fleet.waiting.values():
        waiting.setdefault(state.job.tenant, []).append(state)
    settled: set[str] = set()
    sold = frozenset(pools)
    for each in in_force:
        if each.pool not in sold:
            continue
        here = found.setdefault(each.pool, Reserved())
        if now_s < each.start_s:  # it begins soon: the jobs there are on notice
            here.claimed += each.idle.gpus
            continue
        covered = 0
        if now_s < each.end_s - notice_s:
            jobs = [state for state in waiting.get(each.tenant, ()) if state.job.job not in settled]
            for state in _covered(fleet, each, jobs, now_s=now_s):
                here.covers[state.job.job] = each.reservation
                settled.add(state.job.job)
                covered += state.job.gpus
        kept = max(covered, each.young(now_s))
        lent = each.idle.gpus - kept + each.paused.gpus
        here.claimed += kept
        # The same for a tenant that holds borrowed GPUs here.
        here.lent += ((each.reservation, 0 if (each.pool, each.tenant) in bidding else lent),)
        if lent:
            here.lenders.add(each.tenant)
    return found


def _covered(fleet: Fleet, each: Reservation, jobs: Sequence[JobState], *, now_s: int) -> Iterable[JobState]:
    """Jobs that fit whole into its unused GPUs, by class and then by age."""
    left = each.idle.gpus
    for state in sorted(jobs, key=lambda state: (PRIORITIES[state.job.priority], state.serial)):
        job, able = state.job, fleet.able_pools(state.shape)
        avoids = each.pool.site == state.avoid_site and now_s < state.avoid_until_s
        elsewhere = avoids and any(pool.site != each.pool.site for pool in able)
        if 0 < job.gpus <= left and job.gpu_milli == WHOLE_GPU and each.pool in able and not elsewhere:
            left -= job.gpus
            yield state


def due_events(fleet: Fleet, *, now_s: int) -> Iterable[Event]:
    """Windows that are over, GPUs that are unavailable, and credits that have expired."""
    there = {pool: counted.gpus for pool, counted in fleet.capacity.pools.items()}
    for each in fleet.reservations.by_name.values():  # earlier buyers get what there is
        if now_s >= each.end_s:
            yield ReservationEnded(at_s=now_s, reservation=each.reservation)
        elif each.start_s <= now_s:
            short = max(0, each.gpus - there.get(each.pool, 0))
            there[each.pool] = max(0, there.get(each.pool, 0) - each.gpus)
            if short != each.short:
                yield ReservationShort(at_s=now_s, reservation=each.reservation, gpus=short)
    for tenant, credits in fleet.reservations.credits.items():
        if credits[0].expires_s <= now_s:
            yield CreditsExpired(at_s=now_s, tenant=tenant)


def ending_leases(fleet: Fleet, *, notice_s: int, now_s: int) -> tuple[list[Event], list[Lease]]:
    """(notices to leases whose window ends soon, leases whose window is over)."""
    notices: list[Event] = []
    over: list[Lease] = []
    for lease in fleet.open_leases.values():
        if not lease.reservation or lease.phase == "ending":
            continue
        found = fleet.reservations.by_name.get(lease.reservation)
        end_s = now_s if found is None else found.end_s
        if now_s >= end_s:
            over.append(lease)
        elif now_s >= end_s - notice_s and lease.notice_s != end_s and lease.phase == "running":
            reason = say("scheduler.reservation_ends", reservation=lease.reservation)
            notices.append(NoticeGiven(at_s=now_s, lease=lease.lease, until_s=end_s, reason=reason))
    return notices, over


def withdrawn(fleet: Fleet, *, notice_s: int, now_s: int) -> Iterable[Lease]:
    """Leases whose reservation was extended after their notice."""
    for lease in fleet.warned.values():
        found = fleet.reservations.by_name.get(lease.reservation) if lease.reservation else None
        if found is not None and lease.notice_s is not None and now_s < found.end_s - notice_s:
            yield lease


def next_change_s(fleet: Fleet, *, notice_s: int, now_s: int) -> int | None:
    """When time alone changes something: a window begins or ends, GPUs have been idle, credit expires."""
    times: list[int] = []
    for each in fleet.reservations.by_name.values():
        times += (each.start_s - notice_s, each.start_s, each.end_s - notice_s, each.end_s)
        times += (since_s + each.idle_s for since_s in each.idle.changes_s())
    times += (credits[0].expires_s for credits in fleet.reservations.credits.values())
    return min((at_s for at_s in times if at_s > now_s), default=None)
