"""GPUs of a market pool that a tenant has paid for or was granted: who holds and lends them, what comes back.

    bought ──▶ idle ◀──▶ used (leases of its owner, at no extra cost)
                └◀──▶ paused ──▶ returned           idle for a while, or paused: lent to the spot pool

Hours are counted by the second and only within the window. The payment stays in the reservation's own
account; credits leave it as they become certain, and the rest is posted when the window is over. So credits
cannot exceed what was paid, and no hour is credited twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from brimful.fleet import events
from brimful.fleet.node import Pool
from brimful.fleet.reservations.lent import Borrower, Lending
from brimful.units import HOUR_S

LEAST_PAUSE_S = HOUR_S  # a shorter one earns nothing: too short to lend
ENDED_KEPT = 1000  # ended reservations that are still reported

# Events that concern only reservations.
RESERVING: tuple[type[events.Event], ...] = (
    events.ReservationBought,
    events.ReservationExtended,
    events.ReservationChanged,
    events.ReservationShort,
    events.ReservationEnded,
    events.CreditsExpired,
    events.ReservedLent,
)

MoveKind = Literal["reserve", "spend_credit", "credit", "post", "expire", "lent", "earn"]


@dataclass(frozen=True, slots=True)
class Moved:
    """Money that a reservation moves: out of a purse or credit into it, or from it to credit or its site;
    or its owner's part of what its site earned, to the owner or, of a quota, to its budget."""

    kind: MoveKind
    tenant: str
    microusd: int
    reservation: str = ""
    site: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Part of a window with its own prices; an extension adds another one."""

    start_s: int
    end_s: int
    microusd_per_gpu_hour: int
    pause_microusd_per_gpu_hour: int
    return_microusd_per_gpu_hour: int

    def within(self, from_s: int, to_s: int) -> int:
        return max(0, min(self.end_s, to_s) - max(self.start_s, from_s))


@dataclass(slots=True)
class Stretches:
    """GPUs in one condition, and since when; last in, first out."""

    _since: list[tuple[int, int]] = field(default_factory=list)  # (GPUs, since), oldest first

    @property
    def gpus(self) -> int:
        return sum(n for n, _ in self._since)

    def older(self, than_s: int) -> int:
        """GPUs that have been in it since then or longer."""
        return sum(n for n, since_s in self._since if since_s <= than_s)

    def changes_s(self) -> Iterator[int]:
        return (since_s for _, since_s in self._since)

    def add(self, gpus: int, *, at_s: int) -> None:
        if gpus:
            self._since.append((gpus, at_s))

    def take(self, gpus: int) -> Iterator[tuple[int, int]]:
        """(GPUs, since when), newest first."""
        while gpus:
            assert self._since, "there are as many"
            n, since_s = self._since.pop()
            if n > gpus:
                self._since.append((n - gpus, since_s))
                n = gpus
            gpus -= n
            yield n, since_s


@dataclass(slots=True)
class Credit:
    """A tenant's credit: it pays for reservations, and only until it expires."""

    microusd: int
    expires_s: int


@dataclass(slots=True, kw_only=True)
class Reservation:
    reservation: str
    tenant: str
    pool: Pool
    gpus: int  # that remain in it
    spans: list[Span]
    share_permille: int  # the owner's share of what its lent GPUs earn
    idle_s: int  # unused for this long, they are lent
    credit_s: int  # how long credits are valid
    at_s: int  # up to when it has been counted
    granted: bool = False  # a quota: free of charge, and what it earns is added to its owner's budget
    keys: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # (who, key) -> GPUs, hours
    paid_microusd: int = 0
    paid_with: list[Credit] = field(default_factory=list)  # earlier credits, last to expire first
    cash_microusd: int = 0  # the rest of what was paid, as far as no credit gave it back
    pause_credit_microusd: int = 0
    return_credit_microusd: int = 0
    refund_microusd: int = 0  # for hours in which nodes were gone
    earned_microusd: int = 0  # its owner's part of what borrowers paid
    idle: Stretches = field(default_factory=Stretches)
    paused: Stretches = field(default_factory=Stretches)
    lent: int = 0  # in the spot pool now
    short: int = 0  # of the idle ones, unavailable now
    bought_gpu_s: int = 0
    returned_gpu_s: int = 0
    used_gpu_s: int = 0
    idle_gpu_s: int = 0
    paused_gpu_s: int = 0
    lent_gpu_s: int = 0  # of the previous two
    short_gpu_s: int = 0  # of the idle ones
    _refund: int = 0  # micro-dollars per hour x GPU-seconds
    ended_s: int | None = None

    @property
    def start_s(self) -> int:
        return self.spans[0].start_s

    @property
    def end_s(self) -> int:
        return self.spans[-1].end_s

    @property
    def used(self) -> int:
        return self.gpus - self.idle.gpus - self.paused.gpus

    @property
    def credits_microusd(self) -> int:
        return self.pause_credit_microusd + self.return_credit_microusd + self.refund_microusd

    def young(self, now_s: int) -> int:
        """Unused GPUs kept for the owner: not idle long enough to be lent."""
        return self.idle.gpus - self.idle.older(now_s - self.idle_s)

    def advance(self, at_s: int) -> int:
        """Count up to this time, and return it: a clock that was set back does not undo what was counted."""
        at_s = max(at_s, self.at_s)
        seconds = max(0, min(at_s, self.end_s) - max(self.at_s, self.start_s))
        self.used_gpu_s += self.used * seconds
        self.idle_gpu_s += self.idle.gpus * seconds
        self.paused_gpu_s += self.paused.gpus * seconds
        self.lent_gpu_s += self.lent * seconds
        # Only idle ones: an hour that is used, paused or returned is settled in another way.
        short = min(self.short, self.idle.gpus)
        self.short_gpu_s += short * seconds
        spans = self.spans if short else ()
        self._refund += short * sum(
            each.microusd_per_gpu_hour * each.within(self.at_s, at_s) for each in spans
        )
        self.at_s = at_s
        return at_s

    def end_pauses(self, gpus: int, *, at_s: int) -> int:
        """Paused GPUs leave that state; returns what their pauses of an hour or more earned."""
        earned = 0
        for n, since_s in self.paused.take(gpus):
            if min(at_s, self.end_s) - max(since_s, self.start_s) >= LEAST_PAUSE_S:
                earned += sum(
                    span.pause_microusd_per_gpu_hour * n * span.within(since_s, at_s) for span in self.spans
                )
        credit = earned // HOUR_S
        self.pause_credit_microusd += credit
        return credit

    def refund(self) -> int:
        """The refund for unavailable GPUs not yet refunded, at the price that was paid."""
        microusd, self._refund = divmod(self._refund, HOUR_S)
        self.refund_microusd += microusd
        return microusd

    def credited(self, microusd: int, *, at_s: int) -> Iterator[Credit]:
        """Money that comes back, by when it expires: first what was paid out of a purse, which lasts from
        now; then earlier credits, which last no longer than before. Otherwise a credit would never expire."""
        fresh = min(microusd, self.cash_microusd)
        self.cash_microusd -= fresh
        yield Credit(fresh, at_s + self.credit_s)
        microusd -= fresh
        for each in self.paid_with:
            part = min(microusd, each.microusd)
            each.microusd, microusd = each.microusd - part, microusd - part
            yield Credit(part, each.expires_s)
        assert not microusd, "no more comes back than was paid"

    def give_back(self, gpus: int, *, at_s: int) -> int:
        """Unused GPUs leave the reservation, paused ones first; returns the worth of their remaining
        window."""
        paused = min(gpus, self.paused.gpus)
        credit = self.end_pauses(paused, at_s=at_s)
        for _ in self.idle.take(gpus - paused):
            pass
        self.gpus -= gpus
        self.lent = min(self.lent, self.gpus - self.used)
        left = [(span, span.within(at_s, self.end_s)) for span in self.spans]
        self.returned_gpu_s += gpus * sum(seconds for _, seconds in left)
        worth = sum(span.return_microusd_per_gpu_hour * gpus * seconds for span, seconds in left) // HOUR_S
        self.return_credit_microusd += worth
        return credit + worth


@dataclass(slots=True)
class Reservations:
    """All reservations and their owners' credits. Fleet and ledger each fold one; it reports money moves."""

    by_name: dict[str, Reservation] = field(default_factory=dict)  # those that are not over
    ended: dict[str, Reservation] = field(default_factory=dict)  # the most recent ones
    credits: dict[str, list[Credit]] = field(default_factory=dict)  # by tenant, first to expire first
    bought: int = 0  # ever; the number of the next one
    lending: dict[Pool, events.ReservedLent] = field(default_factory=dict)  # as last reported
    earnings: Lending = field(default_factory=Lending)
    _leases: dict[str, tuple[str, int]] = field(default_factory=dict)  # lease -> reservation, GPUs

    def __bool__(self) -> bool:
        return bool(self.by_name or self._leases or self.credits or self.lending)

    def find(self, name: str) -> Reservation | None:
        return self.by_name.get(name) or self.ended.get(name)

    def keyed(self, by: str, key: str) -> Reservation | None:
        """The one that was bought or extended under this key."""
        every = (*self.by_name.values(), *self.ended.values()) if key else ()
        return next((each for each in every if (by, key) in each.keys), None)

    def credit_microusd(self, tenant: str, *, now_s: int) -> int:
        return sum(each.microusd for each in self.credits.get(tenant, ()) if each.expires_s > now_s)

    def to_spend(self, tenant: str, microusd: int, *, now_s: int) -> tuple[tuple[int, int], ...]:
        """Which credits pay this much, or as much as there is: (micro-dollars, when they expire)."""
        found = []
        for each in self.credits.get(tenant, ()):
            if microusd and each.expires_s > now_s:
                found.append((min(microusd, each.microusd), each.expires_s))
                microusd -= found[-1][0]
        return tuple(found)

    def apply(self, event: events.Event) -> list[Moved]:
        """Apply an event; returns the money it moved."""
        match event:
            case events.ReservationBought():
                return self._bought(event)
            case events.ReservationExtended():
                return self._extended(event)
            case events.CreditsExpired(tenant=tenant, at_s=at_s):
                return self._expire(tenant, at_s=at_s)
            case events.ReservedLent():
                self.lending[event.pool] = event
                self.earnings.lend(event, self.by_name, self.find)
                for name, gpus in event.lent:
                    if name in self.by_name:
                        self.by_name[name].advance(event.at_s)
                        self.by_name[name].lent = gpus
            case events.ReservationShort(reservation=name):
                self.by_name[name].advance(event.at_s)
                self.by_name[name].short = event.gpus
            case events.ReservationChanged() | events.ReservationEnded():
                return self._change(event)
            case _:
                pass
        return []

    def lease_granted(self, event: events.LeaseGranted, pool: Pool, *, tenant: str, gpus: int) -> None:
        """A reservation has paid for its GPUs, or its tenant pays, and its pool's lenders earn."""
        name = event.reservation
        if not name:
            self.earnings.borrowers[event.lease] = Borrower(pool, tenant, gpus)
            return
        found = self.by_name[name]
        found.advance(event.at_s)
        for _ in found.idle.take(gpus):
            pass
        self._leases[event.lease] = (name, gpus)

    def lease_ended(self, event: events.LeaseEnded, *, owed: int) -> list[Moved]:
        """Its GPUs are unused from here on, if a reservation paid for them and is not over; if not, lenders
        get their part of what it owed."""
        name, gpus = self._leases.pop(event.lease, ("", 0))
        if name in self.by_name:
            self.by_name[name].idle.add(gpus, at_s=self.by_name[name].advance(event.at_s))
        ended = self.earnings.ended(event.lease, self.find, owed=owed, at_s=event.at_s)
        return [self._earn(found, microusd) for found, microusd in ended]

    def _earn(self, found: Reservation, microusd: int) -> Moved:
        found.earned_microusd += microusd
        kind: MoveKind = "earn" if found.granted else "lent"
        return Moved(kind, found.tenant, microusd, found.reservation, found.pool.site)

    def paid_by(self, event: events.Event) -> list[tuple[str, int]]:
        """The same; returns only who paid how much out of a purse."""
        return [(each.tenant, each.microusd) for each in self.apply(event) if each.kind == "reserve"]

    def _bought(self, event: events.ReservationBought) -> list[Moved]:
        assert event.reservation not in self.by_name, f"{event.reservation} was bought twice"
        found = Reservation(
            reservation=event.reservation,
            tenant=event.tenant,
            pool=event.pool,
            gpus=event.gpus,
            spans=[_span(event, start_s=event.start_s)],
            share_permille=event.share_permille,
            idle_s=event.idle_s,
            credit_s=event.credit_s,
            granted=event.granted,
            at_s=event.at_s,
            bought_gpu_s=event.gpus * (event.end_s - event.start_s),
        )
        found.idle.add(event.gpus, at_s=max(event.at_s, event.start_s))
        if event.key:
            found.keys[event.by, event.key] = (event.gpus, _hours(event.start_s, event.end_s))
        self.by_name[event.reservation] = found
        self.bought += 1
        return list(self._pay(found, event))

    def _extended(self, event: events.ReservationExtended) -> list[Moved]:
        found = self.by_name[event.reservation]
        found.advance(event.at_s)
        found.bought_gpu_s += found.gpus * (event.end_s - found.end_s)
        if event.key:
            found.keys[event.by, event.key] = (0, _hours(found.end_s, event.end_s))
        found.spans.append(_span(event, start_s=found.end_s))
        self.earnings.change(found, is_over=False, at_s=event.at_s)
        return list(self._pay(found, event))

    def _pay(
        self, found: Reservation, event: events.ReservationBought | events.ReservationExtended
    ) -> Iterator[Moved]:
        """Up front: out of credit, as far as the buyer had any, and out of its purse."""
        found.paid_microusd += event.paid_microusd
        left = event.credit_microusd
        for each in self.credits.get(found.tenant, ()):
            if each.expires_s > event.at_s:
                used = min(left, each.microusd)
                each.microusd, left = each.microusd - used, left - used
        assert not left, "no more credit is spent than there is"
        self._tidy(found.tenant)
        name, known = found.reservation, [Credit(*each) for each in event.credits]
        # Older logs do not say which credits paid: what comes back of them is new, as it was then.
        found.cash_microusd += event.paid_microusd - sum(each.microusd for each in known)
        found.paid_with = sorted([*found.paid_with, *known], key=lambda each: -each.expires_s)
        if event.credit_microusd:
            yield Moved("spend_credit", found.tenant, event.credit_microusd, name)
        yield Moved("reserve", found.tenant, event.paid_microusd - event.credit_microusd, name)

    def _change(self, event: events.ReservationChanged | events.ReservationEnded) -> list[Moved]:
        found = self.by_name[event.reservation]
        at_s, credit = found.advance(event.at_s), 0
        if isinstance(event, events.ReservationEnded):
            credit = found.end_pauses(found.paused.gpus, at_s=min(at_s, found.end_s))
        elif event.verb == "pause":
            for _ in found.idle.take(event.gpus):
                pass
            found.paused.add(event.gpus, at_s=at_s)
        elif event.verb == "resume":
            credit = found.end_pauses(event.gpus, at_s=at_s)
            # The owner wants them back: they count as unused from now, not since long ago.
            found.idle.add(event.gpus, at_s=max(at_s, found.start_s))
        else:
            credit = found.give_back(event.gpus, at_s=at_s)
        is_over = isinstance(event, events.ReservationEnded) or not found.gpus
        moved = self._grant(found, found.credited(credit, at_s=at_s))
        if is_over and (refund := found.refund()):
            # The owner did not choose these hours: whatever paid for them, they come back as new credit.
            moved += self._grant(found, [Credit(refund, at_s + found.credit_s)])
        if is_over:
            moved.append(self._end(found, at_s=at_s))
        self.earnings.change(found, is_over=is_over, at_s=event.at_s)
        return moved

    def _grant(self, found: Reservation, granted: Iterable[Credit]) -> list[Moved]:
        new = [each for each in granted if each.microusd]
        if not new:
            return []
        credits = self.credits.setdefault(found.tenant, [])
        credits += new
        credits.sort(key=lambda each: each.expires_s)
        return [Moved("credit", found.tenant, sum(each.microusd for each in new), found.reservation)]

    def _end(self, found: Reservation, *, at_s: int) -> Moved:
        """Its window is over, or nothing is left of it: what no credit has taken goes to its site."""
        found.ended_s, found.lent = min(at_s, found.end_s), 0
        self.ended[found.reservation] = self.by_name.pop(found.reservation)
        while len(self.ended) > ENDED_KEPT:
            del self.ended[next(iter(self.ended))]
        rest = found.paid_microusd - found.credits_microusd
        return Moved("post", found.tenant, rest, found.reservation, found.pool.site)

    def _expire(self, tenant: str, *, at_s: int) -> list[Moved]:
        gone = sum(each.microusd for each in self.credits.get(tenant, ()) if each.expires_s <= at_s)
        self.credits[tenant] = [each for each in self.credits.get(tenant, ()) if each.expires_s > at_s]
        self._tidy(tenant)
        return [Moved("expire", tenant, gone)] if gone else []

    def _tidy(self, tenant: str) -> None:
        left = [each for each in self.credits.pop(tenant, ()) if each.microusd]
        if left:
            self.credits[tenant] = left


def _hours(start_s: int, end_s: int) -> int:
    return (end_s - start_s) // HOUR_S


def _span(event: events.ReservationBought | events.ReservationExtended, *, start_s: int) -> Span:
    return Span(
        start_s=start_s,
        end_s=event.end_s,
        microusd_per_gpu_hour=event.microusd_per_gpu_hour,
        pause_microusd_per_gpu_hour=event.pause_microusd_per_gpu_hour,
        return_microusd_per_gpu_hour=event.return_microusd_per_gpu_hour,
    )
