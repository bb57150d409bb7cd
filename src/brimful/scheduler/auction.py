"""Market pools inside a decision: build order books from the fleet, clear them, put winners on GPUs.

Clearing (market/) says which jobs should hold GPUs and at what price. This module adds what only the
scheduler knows: which jobs can be placed, where, and which must move to free a whole node (winners.py). A
winner gets its place in the pool as it will be once the losers are gone; it starts when those GPUs are free,
and until then no other job gets them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from brimful.errors import Said
from brimful.fleet.events import Event, GangBlocked, NoticeGiven, NoticeWithdrawn, Parts, PoolPriced
from brimful.fleet.job import WHOLE_GPU
from brimful.fleet.state import Fleet, JobState, Lease, Pool
from brimful.language import Seconds, Sentence, Several, Usd, say
from brimful.market.auction import Loss
from brimful.market.bid import Bid, Book
from brimful.market.pools import Market, bid_of, floor_of, limit_of, supply_of
from brimful.market.spot import PoolState, Round, falls_in_s, next_round
from brimful.scheduler.budgets import Money, Payers
from brimful.scheduler.placing.reserved import Reserved, reserved_in
from brimful.scheduler.placing.victims import lost_gpu_s
from brimful.scheduler.quotas import Shares
from brimful.scheduler.winners import Winners
from brimful.units import HOUR_S

LOSS_EVERY_S = 300
RESIZED = "scheduler.resized"

NotNow = Callable[[JobState], Said | None]
Planned = Callable[[JobState, list[Pool]], list[Pool]]
Sizes = Callable[[JobState, Pool], Sequence[int]]


@dataclass(slots=True)
class Auctioned:
    """The outcome of the market pools in one decision."""

    pools: frozenset[Pool] = frozenset()
    prices: dict[Pool, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    starts: list[tuple[JobState, Parts]] = field(default_factory=list)
    stops: list[tuple[Lease, Said | None]] = field(default_factory=list)  # and why
    # Of the starts: job -> the reservation that has paid.
    reserved: dict[str, str] = field(default_factory=dict)
    look_again_s: int | None = None


@dataclass(frozen=True, slots=True)
class _Open:
    """One pool before clearing."""

    pool: Pool
    book: Book
    running: Mapping[str, Lease]  # bidders that hold GPUs, by job
    leases: Mapping[str, Lease]  # those, and the ones that are leaving
    leaving: list[int]  # the limits of those leaving
    state: PoolState
    covers: Mapping[str, str]  # jobs that a reservation pays for

    def key(self, fleet: Fleet) -> tuple[object, ...]:
        """Equal if only time has passed."""
        index = fleet.capacity.pools[self.pool]
        free = tuple(map(tuple, index.buckets))
        covers = tuple(self.covers)
        return (self.book, self.state.held, self.state.notices, self.leaving, index.free, free, covers)


@dataclass(slots=True)
class _Known:
    """A pool's last clearing: an unchanged book is not solved again."""

    key: tuple[object, ...]
    round: Round
    winners: Winners
    # Whether anything followed from it; then it is not reused, since the log may have moved on before that
    # was written. If it was written, the key has changed anyway, or the work is repeated for nothing.
    acts: bool = False
    # Jobs that would win if their tenant had the money, or their queue the quota.
    unpaid: Mapping[str, Said] = field(default_factory=dict)
    by_name: dict[str, Loss] | None = None  # built on first use

    def loss(self, name: str) -> Loss | None:
        if self.by_name is None:
            self.by_name = {each.bid.bid: each for each in self.round.cleared.losses}
        return self.by_name.get(name)


class Auctions:
    """The market pools of one fleet, from look to look. Everything it keeps could be recomputed."""

    def __init__(self, market: Market) -> None:
        self.market = market
        self._known: dict[Pool, _Known] = {}
        self._kept_back: dict[str, Said] = {}  # jobs that did not bid, and why
        self._won: dict[str, Pool] = {}
        self._reserved: Mapping[Pool, Reserved] = {}

    def hold(
        self,
        fleet: Fleet,
        *,
        now_s: int,
        unreachable: Collection[str] = (),
        money: Money | None = None,
        not_now: NotNow = lambda _state: None,
        planned: Planned = lambda _state, pools: pools,
        sizes: Sizes = lambda _state, _pool: (),
        shares: Shares | None = None,
        leaving: Collection[str] = (),
    ) -> Auctioned:
        """Clear every pool. A winner in one pool does not bid in the next.

        `planned`: the market pools that each job with a deadline may use now. `sizes`: those that an elastic
        gang may have there. `shares`: what queues may win together. `leaving`: leases that this decision
        ends.
        """
        pools = self.market.in_fleet(fleet)
        found = Auctioned(pools=frozenset(pools))
        self._known = {pool: known for pool, known in self._known.items() if pool in found.pools}
        self._kept_back, self._won = {}, {}
        if fleet.reservations:
            self._reserved = reserved_in(fleet, pools, notice_s=self.market.terms.notice_s, now_s=now_s)
        elif self._reserved:
            self._reserved = {}
        waiting = self._bidders(fleet, found.pools, not_now, planned, now_s=now_s)
        blocked: dict[str, bool] = {}
        for pool in pools:
            if pool.site in unreachable or pool.site in fleet.silent:
                if pool in fleet.prices:
                    found.prices[pool] = fleet.prices[pool].last.microusd_per_gpu_hour
                continue
            before = self._open(
                fleet, pool, waiting.get(pool, ()), money, sizes=sizes, ending=leaving, now_s=now_s
            )
            done = self._clear(fleet, before, found, money, shares, now_s=now_s)
            if fleet.reservations:
                here = self._reserved.get(pool, Reserved())
                winners = {win.bid.owner for win in done.cleared.wins}
                found.events += here.lent_now(fleet, pool, before.book.units, winners, now_s=now_s)
            for bid in before.book.bids:
                blocked[bid.bid] = blocked.get(bid.bid, False) or bid.bid in done.blocked
        found.events += _blocked_changes(fleet, blocked, now_s=now_s)
        return found

    def why(self, state: JobState, fleet: Fleet, *, now_s: int) -> Said | None:
        """Why the market does not let it run now, with numbers; None if the market is not the reason."""
        name = state.job.job
        if name in self._kept_back:
            return self._kept_back[name]
        for pool, here in self._reserved.items():
            if name in here.covers:
                return self._why_owner_waits(pool, here.covers[name], fleet, now_s=now_s)
        if name in self._won:
            return self._why_winner_waits(name, self._won[name], fleet, now_s=now_s)
        losses = [
            (pool, loss) for pool, known in self._known.items() if (loss := known.loss(name)) is not None
        ]
        if not losses:
            return None
        pool, loss = min(losses, key=lambda each: each[1].short if each[1].short is not None else 1 << 62)
        drains = self._known[pool].round.state.drains  # the gangs that GPUs are kept for
        detail = loss.detail
        if pool in self._reserved and self._reserved[pool].claimed:
            detail = say("scheduler.beside_reserved", loss=detail, gpus=self._reserved[pool].claimed)
        values = {"limit": Usd(loss.bid.limit), "gpu": pool.gpu, "site": pool.site, "loss": detail}
        if not drains:
            return say("scheduler.lost_bid", **values)
        kept_for = say("scheduler.itself") if name in drains else drains[0]
        return say("scheduler.lost_bid_kept", **values, drain=kept_for)

    def _why_owner_waits(self, pool: Pool, reservation: str, fleet: Fleet, *, now_s: int) -> Sentence:
        ends = [each.notice_s for each in _leases(fleet, pool) if each.notice_s is not None]
        values = {"reservation": reservation, "gpu": pool.gpu, "site": pool.site}
        if not ends:
            return say("scheduler.reserved_waits", **values)
        return say("scheduler.reserved_waits_until", **values, left=Seconds(max(0, max(ends) - now_s)))

    def _why_winner_waits(self, name: str, pool: Pool, fleet: Fleet, *, now_s: int) -> Sentence:
        done = self._known[pool].round
        limit = next(win.bid.limit for win in done.cleared.wins if win.bid.bid == name)
        if limit < done.billed:
            fall = {"limit": Usd(limit), "price": Usd(done.billed), "gpu": pool.gpu, "site": pool.site}
            left = Seconds(falls_in_s(done.billed, limit, self.market.terms))
            return say("scheduler.winner_waits_for_price", **fall, left=left)
        leaving = [
            each for each in _leases(fleet, pool) if each.phase == "ending" or each.notice_s is not None
        ]
        ends = [each.notice_s for each in leaving if each.notice_s is not None and each.phase != "ending"]
        first = sorted(lease.job for lease in leaving)[:5]
        values = {
            "gpu": pool.gpu,
            "site": pool.site,
            "price": Usd(done.billed),
            "leaving": Several(tuple(first)) if first else say("scheduler.others"),
        }
        if not ends:
            return say("scheduler.winner_waits", **values)
        return say("scheduler.winner_waits_until", **values, left=Seconds(max(0, max(ends) - now_s)))

    def _bidders(
        self, fleet: Fleet, sold: Collection[Pool], not_now: NotNow, planned: Planned, *, now_s: int
    ) -> dict[Pool, list[JobState]]:
        """Waiting jobs by the market pools they may bid in."""
        by_shape: dict[int, list[Pool]] = {}
        found: dict[Pool, list[JobState]] = {}
        covered = {name for here in self._reserved.values() for name in here.covers}
        for state in fleet.waiting.values():
            job = state.job
            if job.job in covered:  # it does not need to bid
                continue
            if state.shape not in by_shape:
                by_shape[state.shape] = [pool for pool in fleet.able_pools(state.shape) if pool in sold]
            able = by_shape[state.shape]
            if not able:
                continue
            whole_gpus = job.gpus and job.gpu_milli == WHOLE_GPU
            reason = not_now(state) if whole_gpus else say("scheduler.whole_gpus_only")
            if reason is not None:
                self._kept_back[job.job] = reason
                continue
            for pool in planned(state, able):
                avoided = pool.site == state.avoid_site and now_s < state.avoid_until_s
                if not avoided or len(able) == 1:
                    found.setdefault(pool, []).append(state)
        return found

    def _open(
        self,
        fleet: Fleet,
        pool: Pool,
        waiting: Sequence[JobState],
        money: Money | None,
        *,
        sizes: Sizes,
        ending: Collection[str],
        now_s: int,
    ) -> _Open:
        leases = {lease.job: lease for lease in _leases(fleet, pool) if not lease.reservation}
        reserved = self._reserved.get(pool) or Reserved()
        nodes = [slot.node for slot in fleet.capacity.slots.values() if slot.pool == pool]
        floor, line = floor_of(nodes), fleet.prices.get(pool)
        running = {
            name: lease
            for name, lease in leases.items()
            if lease.phase != "ending" and lease.lease not in ending and lease.node in fleet.capacity.by_name
        }
        bids = self._bids(
            fleet,
            pool,
            running,
            (*waiting, *_restarting(fleet, leases)),
            money=money,
            sizes=sizes,
            floor=floor,
            now_s=now_s,
        )
        blocked_s = {bid.bid: fleet.jobs[bid.bid].blocked_for_s(now_s) for bid in bids}
        return _Open(
            pool=pool,
            book=Book(
                pool=f"{pool.gpu} at {pool.site}",
                supply=reserved.supply(supply_of(pool, nodes)),
                bids=tuple(sorted(bids, key=lambda bid: bid.arrival)),
                bonus_percent=self.market.bonus_percent,
            ),
            running=running,
            leases=leases,
            covers=reserved.covers,
            leaving=sorted(limit_of(fleet.jobs[n].job, floor=floor) for n in leases if n not in running),
            state=PoolState(
                at_s=line.last.at_s if line else 0,
                billed=line.last.microusd_per_gpu_hour if line else None,
                cleared=line.last.cleared_microusd_per_gpu_hour if line else 0,
                used=line.last.held if line else 0,
                owed=line.last.owed if line else 0,
                held={name: lease.size for name, lease in running.items()},
                notices={name: each.notice_s for name, each in running.items() if each.notice_s is not None},
                blocked_s={
                    name: seconds
                    for name, seconds in blocked_s.items()
                    if seconds or fleet.jobs[name].blocked_since_s is not None
                },
            ),
        )

    def _bids(
        self,
        fleet: Fleet,
        pool: Pool,
        running: Mapping[str, Lease],
        waiting: Sequence[JobState],
        *,
        money: Money | None,
        sizes: Sizes,
        floor: int,
        now_s: int,
    ) -> list[Bid]:
        bids = [
            bid_of(
                state := fleet.jobs[name],
                floor=floor,
                running=True,
                now_s=now_s,
                loss_s=_loss_s(state, lease, now_s),
                sizes=sizes(state, pool),
            )
            for name, lease in running.items()
        ]
        new = [
            bid_of(state, floor=floor, running=False, now_s=now_s, sizes=sizes(state, pool))
            for state in waiting
            if state.job.job not in self._won
        ]
        bids += new if money is None else self._who_can_pay(fleet, new, money)
        # In any pool: two tenants lending in two pools could otherwise push up each other's price.
        if lenders := {tenant for each in self._reserved.values() for tenant in each.lenders}:
            bids = [replace(bid, sets_price=bid.owner not in lenders) for bid in bids]
        return bids

    def _who_can_pay(self, fleet: Fleet, bids: Sequence[Bid], money: Money) -> Iterator[Bid]:
        """The bids whose tenant can pay for one period at the limit; the other jobs are told why not."""
        alone = Payers(fleet, money, (), period_s=self.market.terms.period_s)
        for bid in bids:
            reason = money.lacks(fleet.jobs[bid.bid].job, alone.worst(bid, bid.min_quantity))
            if reason is None:
                yield bid
            else:
                self._kept_back[bid.bid] = reason

    def _clear(
        self,
        fleet: Fleet,
        before: _Open,
        found: Auctioned,
        money: Money | None,
        shares: Shares | None,
        *,
        now_s: int,
    ) -> Round:
        checks: list[Payers | Shares] = []
        key = before.key(fleet)
        if money is not None:
            payers = Payers(fleet, money, before.running, period_s=self.market.terms.period_s)
            checks, key = [payers], (*key, payers.tight(before.book.bids))
        if shares is not None:
            checks, key = [*checks, shares], (*key, tuple(shares.held.items()))
        pool = before.pool
        known = self._known.get(pool)
        if known is not None and known.key != key:
            known = None
        if known is None or known.acts or not _nothing_due(known.round, before.state.billed, now_s):
            again = None if known is None or known.round.was_due else known
            known = self._known[pool] = self._solve(
                fleet, before, found, checks=checks, again=again, key=key, now_s=now_s
            )
        done = known.round
        self._kept_back |= known.unpaid
        new = [(win.bid, win.units) for win in done.cleared.wins if win.bid.bid not in before.running]
        self._won |= {bid.bid: pool for bid, _ in new}
        for check in checks:
            check.promise(new)  # the next pool sees what is left
        found.prices[pool] = done.billed
        times = (found.look_again_s, done.look_again_s)
        found.look_again_s = min((at for at in times if at is not None), default=None)
        return done

    def _solve(
        self,
        fleet: Fleet,
        before: _Open,
        found: Auctioned,
        *,
        checks: Sequence[Payers | Shares],
        again: _Known | None,
        key: tuple[object, ...],
        now_s: int,
    ) -> _Known:
        """Clear the book, or reuse the last clearing if only time has passed, and carry it out."""
        if again is None:
            places = Winners(fleet, before.pool, before.leases, before.book, before.covers)
        else:
            places = again.winners
        done = next_round(
            before.state,
            before.book,
            now_s=now_s,
            terms=self.market.terms,
            placeable=lambda won: [*places(won), *(name for check in checks for name in check(won))],
            moving=lambda: places.moves,
            leaving=before.leaving,
            known=None if again is None else again.round.cleared,
        )
        if before.covers and not done.cleared.wins:
            places(())
        refused = {name: why for check in checks for name, why in check.reasons.items()}
        unpaid: Mapping[str, Said] = refused if again is None else again.unpaid
        if unpaid:  # not those that win with fewer GPUs
            won = {win.bid.bid for win in done.cleared.wins}
            unpaid = {name: reason for name, reason in unpaid.items() if name not in won}
        acts = _carry_out(fleet, before, done, places, found, now_s=now_s)
        return _Known(key, done, places, acts=acts, unpaid=unpaid)


def _carry_out(
    fleet: Fleet, before: _Open, done: Round, winners: Winners, found: Auctioned, *, now_s: int
) -> bool:
    """Turn a clearing into events, starts and stops; returns whether there were any."""
    so_far = len(found.events) + len(found.starts) + len(found.stops)
    running, line = before.running, fleet.prices.get(before.pool)
    starts = [name for name in done.starts if name in winners.ready]
    staying = sum(lease.size for name, lease in running.items() if name not in done.preempted)
    priced = PoolPriced(
        at_s=now_s,
        **before.pool._asdict(),
        microusd_per_gpu_hour=done.billed,
        cleared_microusd_per_gpu_hour=done.cleared.price,
        held=staying + sum(done.starts[name] for name in starts),
        wanted=sum(bid.quantity for bid in before.book.bids),
        gpus=before.book.units,
        owed=done.state.owed,
    )
    # Also when the price stays: otherwise a reader of past load would see the pool full forever. What is owed
    # follows from the point before.
    if line is None or line.last != replace(priced, at_s=line.last.at_s, owed=line.last.owed):
        found.events.append(priced)
    losses = {loss.bid.bid: loss for loss in done.cleared.losses} if done.notices else {}
    for name in done.notices:
        reason = _why_noticed(running[name], losses.get(name), before.pool, winners, done)
        until_s = done.state.notices.get(name, now_s)
        found.events.append(
            NoticeGiven(at_s=now_s, lease=running[name].lease, until_s=until_s, reason=reason)
        )
    found.events += [NoticeWithdrawn(at_s=now_s, lease=running[name].lease) for name in done.restored]
    found.stops += [(running[name], running[name].notice) for name in done.preempted]
    owners = [name for name in before.covers if name in winners.ready]
    found.reserved |= {name: before.covers[name] for name in owners}
    found.starts += [(fleet.jobs[name], winners.parts[name]) for name in (*owners, *starts)]
    return len(found.events) + len(found.starts) + len(found.stops) > so_far


def _loss_s(state: JobState, lease: Lease, now_s: int) -> int:
    """What a stop would throw away, per GPU. A job on notice will have saved by then.

    Sampled on a grid of a few minutes, so that a book does not change between two samples.
    """
    if lease.notice_s is not None:
        return state.job.checkpoint_cost_s
    lost_s = lost_gpu_s(state, lease, now_s=now_s - now_s % LOSS_EVERY_S) / lease.size
    return min(HOUR_S, int(lost_s) // LOSS_EVERY_S * LOSS_EVERY_S)


def _nothing_due(known: Round, billed: int | None, now_s: int) -> bool:
    return known.billed == billed and (known.look_again_s is None or now_s < known.look_again_s)


def _leases(fleet: Fleet, pool: Pool) -> Iterator[Lease]:
    """All leases billed at its price, including those on a node that has since left."""
    line = fleet.prices.get(pool)
    for lease in fleet.leases_at.get(pool.site, {}).values():
        node = fleet.nodes.get(lease.node)
        if (node is not None and node.pool == pool) or (line is not None and lease.line is line):
            yield lease


def _restarting(fleet: Fleet, leases: Mapping[str, Lease]) -> Iterator[JobState]:
    """Elastic gangs that are being stopped and will bid again: until then, others may not have their GPUs."""
    for name, lease in leases.items():
        state = fleet.jobs[name]
        may_return = lease.requeue and not state.cancel_requested and not state.hold
        if lease.phase == "ending" and state.job.max_gpus and may_return:
            yield state


def _why_noticed(lease: Lease, loss: Loss | None, pool: Pool, winners: Winners, done: Round) -> Sentence:
    name = lease.job
    won = next((win.units for win in done.cleared.wins if win.bid.bid == name), lease.size)
    if won != lease.size:
        return say(RESIZED, was=lease.size, gpus=won, where=pool.gpu)
    if name in winners.moves:
        return say("scheduler.moves_within_pool", job=winners.moves[name])
    new = [win.bid.bid for win in done.cleared.wins if not win.bid.running]
    price = Usd(done.cleared.price)
    outbid = say("scheduler.outbid", price=price)
    if new:
        jobs = Several((*new[:3], "…") if len(new) > 3 else tuple(new))
        outbid = say("scheduler.outbid_by", jobs=jobs, price=price)
    if loss is None or loss.shadow_price is None:
        return outbid
    limit, above = Usd(loss.bid.limit), Usd(loss.shadow_price)
    return say("scheduler.outbid_short", outbid=outbid, limit=limit, above=above)


def _blocked_changes(fleet: Fleet, blocked: Mapping[str, bool], *, now_s: int) -> Iterator[Event]:
    for name, is_blocked in blocked.items():
        state = fleet.jobs[name]
        if is_blocked != (state.blocked_since_s is not None) and state.phase == "waiting":
            yield GangBlocked(at_s=now_s, job=name, blocked=is_blocked)
