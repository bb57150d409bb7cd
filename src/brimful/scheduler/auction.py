"""Market pools inside a decision: books out of the fleet, clearing, and winners onto GPUs.

Clearing (market/) says who should hold GPUs and at what price. Here is what only the scheduler knows: who can
be placed, where, and whom it takes to make a whole node (winners.py). A winner is given its place in
the pool as it will be once the losers are gone; it starts when those GPUs are free, and until then nobody
else gets them.
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
from brimful.market.spot import PoolState, Round, next_round
from brimful.scheduler.budgets import Money
from brimful.scheduler.winners import Winners
from brimful.units import HOUR_S

NotNow = Callable[[JobState], Said | None]


@dataclass(slots=True)
class Auctioned:
    """What the market pools came to in one decision."""

    pools: frozenset[Pool] = frozenset()
    prices: dict[Pool, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    starts: list[tuple[JobState, Parts]] = field(default_factory=list)
    stops: list[tuple[Lease, Said | None]] = field(default_factory=list)  # and why
    look_again_s: int | None = None


@dataclass(frozen=True, slots=True)
class _Open:
    """One pool as it stands before it is cleared."""

    pool: Pool
    book: Book
    running: Mapping[str, Lease]  # who bids with GPUs in hand, by job
    leases: Mapping[str, Lease]  # these, and those that are leaving
    leaving: list[int]  # the limits of the latter
    state: PoolState

    def key(self, fleet: Fleet) -> tuple[object, ...]:
        """Equal where only time has passed."""
        index = fleet.capacity.pools[self.pool]
        free = tuple(map(tuple, index.buckets))
        return (self.book, self.state.held, self.state.notices, self.leaving, index.free, free)


@dataclass(slots=True)
class _Known:
    """A pool as it was cleared last: an unchanged book is not solved again."""

    key: tuple[object, ...]
    round: Round
    winners: Winners
    # Whether anything followed from it. The log may have moved on before that was written; where it was
    # written the key is another, or it is worked out once more in vain.
    acts: bool = False
    by_name: dict[str, Loss] | None = None  # once somebody asks

    def loss(self, name: str) -> Loss | None:
        if self.by_name is None:
            self.by_name = {each.bid.bid: each for each in self.round.cleared.losses}
        return self.by_name.get(name)


class Auctions:
    """The market pools of one fleet, from look to look. All it keeps could be worked out again."""

    def __init__(self, market: Market) -> None:
        self.market = market
        self._known: dict[Pool, _Known] = {}
        self._kept_back: dict[str, Said] = {}  # jobs that did not bid, and why
        self._won: dict[str, Pool] = {}

    def hold(
        self,
        fleet: Fleet,
        *,
        now_s: int,
        unreachable: Collection[str] = (),
        money: Money | None = None,
        not_now: NotNow = lambda _state: None,
    ) -> Auctioned:
        """Clear every pool. Who has won in one does not bid in the next."""
        pools = self.market.in_fleet(fleet)
        found = Auctioned(pools=frozenset(pools))
        self._known = {pool: known for pool, known in self._known.items() if pool in found.pools}
        self._kept_back, self._won = {}, {}
        waiting = self._bidders(fleet, found.pools, not_now, now_s=now_s)
        blocked: dict[str, bool] = {}
        for pool in pools:
            if pool.site in unreachable or pool.site in fleet.silent:
                if pool in fleet.prices:
                    found.prices[pool] = fleet.prices[pool].last.microusd_per_gpu_hour
                continue
            before = self._open(fleet, pool, waiting.get(pool, ()), money, now_s=now_s)
            done = self._clear(fleet, before, found, now_s=now_s)
            for bid in before.book.bids:
                blocked[bid.bid] = blocked.get(bid.bid, False) or bid.bid in done.blocked
        found.events += _blocked_changes(fleet, blocked, now_s=now_s)
        return found

    def why(self, state: JobState, fleet: Fleet, *, now_s: int) -> Said | None:
        """Why the market does not let it run now, with numbers; None where it has nothing to do with it."""
        name = state.job.job
        if name in self._kept_back:
            return self._kept_back[name]
        if name in self._won:
            return self._why_winner_waits(self._won[name], fleet, now_s=now_s)
        losses = [
            (pool, loss) for pool, known in self._known.items() if (loss := known.loss(name)) is not None
        ]
        if not losses:
            return None
        pool, loss = min(losses, key=lambda each: each[1].short if each[1].short is not None else 1 << 62)
        drain = self._known[pool].round.state.drain  # the gang that GPUs are kept for
        values = {"limit": Usd(loss.bid.limit), "gpu": pool.gpu, "site": pool.site, "loss": loss.detail}
        if drain is None:
            return say("scheduler.lost_bid", **values)
        return say(
            "scheduler.lost_bid_kept", **values, drain=say("scheduler.itself") if drain == name else drain
        )

    def _why_winner_waits(self, pool: Pool, fleet: Fleet, *, now_s: int) -> Sentence:
        leaving = [
            each for each in _leases(fleet, pool) if each.phase == "ending" or each.notice_s is not None
        ]
        ends = [each.notice_s for each in leaving if each.notice_s is not None and each.phase != "ending"]
        first = sorted(lease.job for lease in leaving)[:5]
        values = {
            "gpu": pool.gpu,
            "site": pool.site,
            "price": Usd(self._known[pool].round.billed),
            "leaving": Several(tuple(first)) if first else say("scheduler.others"),
        }
        if not ends:
            return say("scheduler.winner_waits", **values)
        return say("scheduler.winner_waits_until", **values, left=Seconds(max(0, max(ends) - now_s)))

    def _bidders(
        self, fleet: Fleet, sold: Collection[Pool], not_now: NotNow, *, now_s: int
    ) -> dict[Pool, list[JobState]]:
        """Waiting jobs by the market pools they may bid in."""
        by_shape: dict[int, list[Pool]] = {}
        found: dict[Pool, list[JobState]] = {}
        for state in fleet.waiting.values():
            job = state.job
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
            for pool in able:
                avoided = pool.site == state.avoid_site and now_s < state.avoid_until_s
                if not avoided or len(able) == 1:
                    found.setdefault(pool, []).append(state)
        return found

    def _open(
        self, fleet: Fleet, pool: Pool, waiting: Sequence[JobState], money: Money | None, *, now_s: int
    ) -> _Open:
        leases = {lease.job: lease for lease in _leases(fleet, pool)}
        nodes = [slot.node for slot in fleet.capacity.slots.values() if slot.pool == pool]
        floor, line = floor_of(nodes), fleet.prices.get(pool)
        running = {
            name: lease
            for name, lease in leases.items()
            if lease.phase != "ending" and lease.node in fleet.capacity.by_name
        }
        bids = [bid_of(fleet.jobs[name], floor=floor, running=True, now_s=now_s) for name in running]
        new = [
            bid_of(state, floor=floor, running=False, now_s=now_s)
            for state in waiting
            if state.job.job not in self._won
        ]
        bids += new if money is None else self._who_can_pay(fleet, new, money)
        blocked_s = {bid.bid: fleet.jobs[bid.bid].blocked_for_s(now_s) for bid in bids}
        return _Open(
            pool=pool,
            book=Book(
                pool=f"{pool.gpu} at {pool.site}",
                supply=supply_of(pool, nodes),
                bids=tuple(sorted(bids, key=lambda bid: bid.arrival)),
                bonus_percent=self.market.bonus_percent,
            ),
            running=running,
            leases=leases,
            leaving=sorted(limit_of(fleet.jobs[n].job, floor=floor) for n in leases if n not in running),
            state=PoolState(
                at_s=line.last.at_s if line else 0,
                billed=line.last.microusd_per_gpu_hour if line else None,
                held={name: lease.size for name, lease in running.items()},
                notices={name: each.notice_s for name, each in running.items() if each.notice_s is not None},
                blocked_s={
                    name: seconds
                    for name, seconds in blocked_s.items()
                    if seconds or fleet.jobs[name].blocked_since_s is not None
                },
            ),
        )

    def _who_can_pay(self, fleet: Fleet, bids: Sequence[Bid], money: Money) -> Iterator[Bid]:
        """Those whose tenant has what a period at their limit may cost; the others are told."""
        for bid in bids:
            worst = max(1, bid.limit * bid.quantity * self.market.terms.period_s // HOUR_S)
            reason = money.lacks(fleet.jobs[bid.bid].job, worst)
            if reason is None:
                yield bid
            else:
                self._kept_back[bid.bid] = reason

    def _clear(self, fleet: Fleet, before: _Open, found: Auctioned, *, now_s: int) -> Round:
        pool, key = before.pool, before.key(fleet)
        known = self._known.get(pool)
        if known is not None and known.key != key:
            known = None
        if known is not None and not known.acts and _nothing_due(known.round, before.state.billed, now_s):
            done = known.round
        else:
            again = None if known is None or known.round.was_due else known
            winners = Winners(fleet, pool, before.leases, before.book) if again is None else again.winners
            done = next_round(
                before.state,
                before.book,
                now_s=now_s,
                terms=self.market.terms,
                placeable=winners,
                moving=lambda: winners.moves,
                leaving=before.leaving,
                known=None if again is None else again.round.cleared,
            )
            acts = _carry_out(fleet, before, done, winners, found, now_s=now_s)
            self._known[pool] = _Known(key, done, winners, acts=acts)
        self._won |= {win.bid.bid: pool for win in done.cleared.wins if win.bid.bid not in before.running}
        found.prices[pool] = done.billed
        times = (found.look_again_s, done.look_again_s)
        found.look_again_s = min((at for at in times if at is not None), default=None)
        return done


def _carry_out(
    fleet: Fleet, before: _Open, done: Round, winners: Winners, found: Auctioned, *, now_s: int
) -> bool:
    """What follows from a clearing, as events, starts and stops; whether anything does."""
    so_far = len(found.events) + len(found.starts) + len(found.stops)
    running, line = before.running, fleet.prices.get(before.pool)
    starts = [name for name in done.starts if name in winners.ready and name not in running]
    staying = sum(lease.size for name, lease in running.items() if name not in done.preempted)
    priced = PoolPriced(
        at_s=now_s,
        **before.pool._asdict(),
        microusd_per_gpu_hour=done.billed,
        cleared_microusd_per_gpu_hour=done.cleared.price,
        held=staying + sum(fleet.jobs[name].job.gpus for name in starts),
        wanted=sum(bid.quantity for bid in before.book.bids),
        gpus=before.book.units,
    )
    # Also where the price stays: who looks back at how full a pool was would else see it full for ever.
    if line is None or line.last != replace(priced, at_s=line.last.at_s):
        found.events.append(priced)
    losses = {loss.bid.bid: loss for loss in done.cleared.losses} if done.notices else {}
    for name in done.notices:
        reason = _why_noticed(name, losses.get(name), winners, done)
        until_s = done.state.notices.get(name, now_s)
        found.events.append(
            NoticeGiven(at_s=now_s, lease=running[name].lease, until_s=until_s, reason=reason)
        )
    found.events += [NoticeWithdrawn(at_s=now_s, lease=running[name].lease) for name in done.restored]
    found.stops += [(running[name], running[name].notice) for name in done.preempted]
    found.starts += [(fleet.jobs[name], winners.parts[name]) for name in starts]
    return len(found.events) + len(found.starts) + len(found.stops) > so_far


def _nothing_due(known: Round, billed: int | None, now_s: int) -> bool:
    return known.billed == billed and (known.look_again_s is None or now_s < known.look_again_s)


def _leases(fleet: Fleet, pool: Pool) -> Iterator[Lease]:
    """Whoever is billed at its price, also on a node that has left since."""
    line = fleet.prices.get(pool)
    for lease in fleet.leases_at.get(pool.site, {}).values():
        node = fleet.nodes.get(lease.node)
        if (node is not None and node.pool == pool) or (line is not None and lease.line is line):
            yield lease


def _why_noticed(name: str, loss: Loss | None, winners: Winners, done: Round) -> Sentence:
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
