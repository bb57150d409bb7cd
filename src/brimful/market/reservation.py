"""GPUs of a market pool for a window: what they cost ahead, and what may be done with them. Pure.

    unit price   the average billed price of the pool over the last week, at least its floor, and at least
                 the current price if the window begins within a day; plus a premium
    pause price  a part of it, for each paused hour; the GPUs are lent and can be taken back
    return price a larger part, for each remaining hour of GPUs that are given up for good

An operator may also grant a window, as a quota: it is free of charge, so nothing comes back of it, and what
its GPUs earn while others use them is added to its owner's budget.

Each verb looks at the current fleet and makes the event, or refuses with numbers; nothing is written here.
"""

from __future__ import annotations

from dataclasses import dataclass

from brimful.errors import BadInput, NotFound, Refused
from brimful.fleet.events import (
    ReservationBought,
    ReservationChanged,
    ReservationExtended,
)
from brimful.fleet.money.prices import PriceLine
from brimful.fleet.node import Pool
from brimful.fleet.reservations.reservation import Reservation
from brimful.fleet.state import Fleet
from brimful.language import Quoted, Usd, count, say
from brimful.market.pools import BOUGHT, Market, ReserveTerms, floor_of
from brimful.units import DAY_S, HOUR_S

GRANT_HOURS = 10_000  # the longest quota: a good year
LOOK_BACK_S = 7 * DAY_S
SOON_S = DAY_S  # a window that begins by then costs at least the pool's current price


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    pool: Pool
    gpus: int
    start_s: int
    end_s: int
    microusd_per_gpu_hour: int
    pause_microusd_per_gpu_hour: int
    return_microusd_per_gpu_hour: int
    share_permille: int
    free_gpus: int  # GPUs that could be reserved for this window, these included
    granted: bool = False

    @property
    def hours(self) -> int:
        return (self.end_s - self.start_s) // HOUR_S

    @property
    def total_microusd(self) -> int:
        return self.microusd_per_gpu_hour * self.gpus * self.hours


def quote(
    fleet: Fleet,
    market: Market | None,
    pool: Pool,
    *,
    gpus: int,
    hours: int,
    now_s: int,
    start_s: int | None = None,
    granted: bool = False,
) -> Quote:
    """The price of this many GPUs for a window of whole hours; a start in the past means now."""
    market = _market_of(fleet, market, pool)
    terms = market.reserve
    start_s = now_s if start_s is None else max(now_s, start_s)
    _check_counts(gpus=gpus, hours=hours, longest=GRANT_HOURS if granted else terms.longest_hours)
    if start_s - now_s > terms.ahead_s:
        raise Refused(
            say("market.reserve_too_far", days=terms.ahead_s // DAY_S, asked=(start_s - now_s) // DAY_S),
            code="too_far_ahead",
        )
    end_s = start_s + hours * HOUR_S
    return _offer(fleet, market, pool, gpus=gpus, start_s=start_s, end_s=end_s, now_s=now_s, granted=granted)


def buy(
    fleet: Fleet,
    offered: Quote,
    terms: ReserveTerms,
    *,
    tenant: str,
    now_s: int,
    at_most: int | None = None,
    by: str = "",
    key: str = "",
) -> ReservationBought:
    """Pay for the whole window. A quote that has risen above `at_most` fails instead of charging more."""
    credits = _pay(fleet, offered, tenant=tenant, at_most=at_most, now_s=now_s)
    return ReservationBought(
        at_s=now_s,
        reservation=f"r{fleet.reservations.bought + 1}",
        tenant=tenant,
        **offered.pool._asdict(),
        gpus=offered.gpus,
        start_s=offered.start_s,
        end_s=offered.end_s,
        microusd_per_gpu_hour=offered.microusd_per_gpu_hour,
        pause_microusd_per_gpu_hour=offered.pause_microusd_per_gpu_hour,
        return_microusd_per_gpu_hour=offered.return_microusd_per_gpu_hour,
        share_permille=offered.share_permille,
        idle_s=terms.idle_s,
        credit_s=terms.credit_s,
        paid_microusd=offered.total_microusd,
        credit_microusd=sum(microusd for microusd, _ in credits),
        credits=credits,
        by=by,
        key=key,
        granted=offered.granted,
    )


def quote_extension(fleet: Fleet, market: Market | None, name: str, *, hours: int, now_s: int) -> Quote:
    """The same GPUs for more hours, at current prices; a quota stays free of charge."""
    found = _open(fleet, name, now_s=now_s)
    market = _market_of(fleet, market, found.pool)
    bought = (found.end_s - found.start_s) // HOUR_S
    longest = GRANT_HOURS if found.granted else market.reserve.longest_hours
    _check_counts(gpus=found.gpus, hours=hours, longest=longest - bought)
    start_s, end_s = found.end_s, found.end_s + hours * HOUR_S
    window = {"gpus": found.gpus, "start_s": start_s, "end_s": end_s}
    return _offer(fleet, market, found.pool, **window, now_s=now_s, granted=found.granted)


def extend(
    fleet: Fleet,
    name: str,
    offered: Quote,
    *,
    now_s: int,
    at_most: int | None = None,
    by: str = "",
    key: str = "",
) -> ReservationExtended:
    found = _open(fleet, name, now_s=now_s)
    credits = _pay(fleet, offered, tenant=found.tenant, at_most=at_most, now_s=now_s)
    return ReservationExtended(
        at_s=now_s,
        reservation=name,
        end_s=offered.end_s,
        microusd_per_gpu_hour=offered.microusd_per_gpu_hour,
        pause_microusd_per_gpu_hour=offered.pause_microusd_per_gpu_hour,
        return_microusd_per_gpu_hour=offered.return_microusd_per_gpu_hour,
        paid_microusd=offered.total_microusd,
        credit_microusd=sum(microusd for microusd, _ in credits),
        credits=credits,
        by=by,
        key=key,
    )


def pause(fleet: Fleet, name: str, *, gpus: int | None, now_s: int, by: str = "") -> ReservationChanged:
    """Lend unused GPUs until they are resumed; None: all that are unused."""
    found = _open(fleet, name, now_s=now_s)
    unused = found.idle.gpus
    gpus = _within(gpus, unused, "market.reserve_in_use", found)
    return ReservationChanged(at_s=now_s, reservation=name, verb="pause", gpus=gpus, by=by)


def resume(fleet: Fleet, name: str, *, gpus: int | None, now_s: int, by: str = "") -> ReservationChanged:
    """Take paused GPUs back, after the borrowers' notice; None: all of them."""
    found = _open(fleet, name, now_s=now_s)
    gpus = _within(gpus, found.paused.gpus, "market.reserve_not_paused", found)
    return ReservationChanged(at_s=now_s, reservation=name, verb="resume", gpus=gpus, by=by)


def give_back(fleet: Fleet, name: str, *, gpus: int | None, now_s: int, by: str = "") -> ReservationChanged:
    """Give up GPUs that no job of the owner holds, for the rest of the window; None: all of these."""
    found = _open(fleet, name, now_s=now_s)
    gpus = _within(gpus, found.gpus - found.used, "market.reserve_in_use", found)
    return ReservationChanged(at_s=now_s, reservation=name, verb="return", gpus=gpus, by=by)


def free_gpus(fleet: Fleet, pool: Pool, *, start_s: int, end_s: int) -> int:
    """GPUs of the pool that no reservation holds at any moment of the window."""
    others = [each for each in fleet.reservations.by_name.values() if each.pool == pool]
    overlapping = [each for each in others if each.start_s < end_s and start_s < each.end_s]
    moments = [start_s, *(each.start_s for each in overlapping if each.start_s > start_s)]
    taken = max(sum(each.gpus for each in overlapping if each.start_s <= at < each.end_s) for at in moments)
    return max(0, fleet.capacity.pools[pool].gpus - taken)


def spendable_microusd(fleet: Fleet, tenant: str, *, now_s: int) -> int | None:
    """What is left up to a hard budget, after the cost so far of running leases; None: there is none."""
    purses = fleet.purses
    payers = list(purses.payers(tenant)) if tenant in purses.budgets else []
    if not payers or not payers[-1].hard:
        return None
    left = {name: budget.left_microusd for name, budget in purses.budgets.items()}
    for name, lease in fleet.open_leases.items():
        job = fleet.jobs[lease.job].job
        near = purses.near(job) if job.budget_microusd is None else ""
        purses.draw(left, near, max(0, lease.cost_microusd(now_s) - purses.due_microusd(name)))
    return max(0, sum(left[budget.name] for budget in payers))


def _pay(
    fleet: Fleet, offered: Quote, *, tenant: str, at_most: int | None, now_s: int
) -> tuple[tuple[int, int], ...]:
    """The credits that pay part of it; refuses what the tenant cannot pay or did not agree to."""
    price, total = offered.microusd_per_gpu_hour, offered.total_microusd
    if at_most is not None and price > at_most:
        raise Refused(say("market.reserve_moved", price=Usd(price), limit=Usd(at_most)), code="price_moved")
    credits = fleet.reservations.to_spend(tenant, total, now_s=now_s)
    credit = sum(microusd for microusd, _ in credits)
    left = spendable_microusd(fleet, tenant, now_s=now_s)
    if left is not None and total - credit > left:
        raise Refused(
            say(
                "market.reserve_lacks",
                tenant=tenant,
                cost=Usd(total),
                left=Usd(left + credit),
                short=Usd(total - credit - left),
            ),
            code="budget_too_small",
        )
    return credits


def _offer(
    fleet: Fleet,
    market: Market,
    pool: Pool,
    *,
    gpus: int,
    start_s: int,
    end_s: int,
    now_s: int,
    granted: bool,
) -> Quote:
    free = free_gpus(fleet, pool, start_s=start_s, end_s=end_s)
    if gpus > free:
        raise Refused(
            say("market.reserve_full", gpus=count("gpu", gpus), free=free, gpu=pool.gpu, site=pool.site),
            code="not_enough_gpus",
        )
    terms = market.reserve
    unit = 0 if granted else _unit_price(fleet, terms, pool, start_s=start_s, now_s=now_s)
    return Quote(
        pool=pool,
        gpus=gpus,
        start_s=start_s,
        end_s=end_s,
        microusd_per_gpu_hour=unit,
        pause_microusd_per_gpu_hour=unit * terms.pause_permille // 1000,
        return_microusd_per_gpu_hour=unit * terms.return_permille // 1000,
        share_permille=terms.share_permille,
        free_gpus=free,
        granted=granted,
    )


def _unit_price(fleet: Fleet, terms: ReserveTerms, pool: Pool, *, start_s: int, now_s: int) -> int:
    floor = floor_of(slot.node for slot in fleet.capacity.slots.values() if slot.pool == pool)
    line = fleet.prices.get(pool)
    worth = max(floor, usual_price(line, now_s=now_s))
    if line is not None and line.points and start_s - now_s < SOON_S:
        # Otherwise a tenant that buys while the pool is expensive and lends at once would earn more than it
        # paid.
        worth = max(worth, line.last.microusd_per_gpu_hour, line.last.cleared_microusd_per_gpu_hour)
    if not worth:  # otherwise one tenant could take the whole pool for weeks, for nothing
        raise Refused(say("market.reserve_free", gpu=pool.gpu, site=pool.site), code="no_price")
    return -(-worth * (1000 + terms.premium_permille) // 1000)


def usual_price(line: PriceLine | None, *, now_s: int) -> int:
    """The time-weighted average price billed in the last week; 0 if unknown."""
    if line is None or not line.points:
        return 0
    last = line.last
    since_s = max(line.points[0].at_s, now_s - LOOK_BACK_S)
    if now_s <= since_s:
        return last.microusd_per_gpu_hour
    granted = last.microusd_per_gpu_hour
    return line.between(since_s, now_s, granted_s=line.points[0].at_s, granted=granted) // (now_s - since_s)


def _market_of(fleet: Fleet, market: Market | None, pool: Pool) -> Market:
    """The market, if the operator may reserve GPUs of this pool."""
    if pool not in fleet.capacity.pools:
        known = ", ".join(f"{each.gpu} at {each.site}" for each in sorted(fleet.capacity.pools))
        raise NotFound(say("market.reserve_no_pool", gpu=Quoted(pool.gpu), site=pool.site, known=known))
    if market is None or not market.covers(pool):
        raise Refused(say("market.reserve_queue_pool", gpu=pool.gpu, site=pool.site), code="queue_pool")
    slots = [slot.node for slot in fleet.capacity.slots.values() if slot.pool == pool]
    if pool.tier in BOUGHT or any(node.owner for node in slots):
        raise Refused(say("market.reserve_not_ours", gpu=pool.gpu, site=pool.site), code="not_reservable")
    return market


def _check_counts(*, gpus: int, hours: int, longest: int) -> None:
    if gpus < 1 or hours < 1:
        raise BadInput(say("market.reserve_counts", gpus=gpus, hours=hours))
    if hours > longest:
        raise Refused(say("market.reserve_too_long", hours=hours, longest=max(0, longest)), code="too_long")


def _open(fleet: Fleet, name: str, *, now_s: int) -> Reservation:
    found = fleet.reservations.by_name.get(name)
    if found is None or now_s >= found.end_s:
        raise NotFound(say("market.no_reservation", reservation=Quoted(name[:40])))
    return found


def _within(gpus: int | None, most: int, code: str, found: Reservation) -> int:
    asked = most if gpus is None else gpus
    if gpus is not None and gpus < 1:
        raise BadInput(say("market.reserve_counts", gpus=gpus, hours=1))
    if asked > most or not asked:
        counts = {"asked": asked, "most": most, "used": found.used, "gpus": found.gpus}
        raise Refused(say(code, reservation=found.reservation, **counts), code=code.removeprefix("market."))
    return asked
