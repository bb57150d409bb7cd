"""Spot clearing of one pool at one moment: which bids win, at which single price, and why the others lose.

Winners are the exact optimum of ranking values over the units (optimum.py). The price is

    max(floor, highest losing limit not above the lowest winning limit)

among bids that the pool could hold at all. The floor is the highest ask of supply in use, so the price is
never above a winner's limit or below a seller's ask. A loser above the price is the known cost of this rule:
with gangs no single price suits everyone, and an in-the-money gang may be rejected while an out-of-the-money
one is never accepted. Each loser gets its reason and its shadow price, the limit at which it would have drawn
level. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from brimful.language import Sentence, Several, Usd, count, say
from brimful.market.bid import Bid, Book, Step
from brimful.market.optimum import Item, Optimum

# Returns which of these (bid, units), in rank order, cannot be placed together. The scheduler knows the
# topology; this module does not. A bid with sizes is refused at this one only.
Placeable = Callable[[Sequence[tuple[Bid, int]]], Iterable[str]]

BELOW_PRICE = "below_price"
DISPLACED = "displaced"
BLOCKED_BY_SIZE = "blocked_by_size"
UNPLACEABLE = "unplaceable"
OWN_SUPPLY = "own_supply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Win:
    bid: Bid
    units: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a bid did not win. `shadow_price` is the limit at which it would draw level; None: at no limit."""

    bid: Bid
    reason: str
    shadow_price: int | None
    price: int  # the pool's price, to which it was compared
    units_left: int = 0  # of the pool, after the winners
    displaced_by: tuple[str, ...] = ()

    @property
    def short(self) -> int | None:
        """How far its limit is below drawing level, per GPU-hour."""
        return None if self.shadow_price is None else max(0, self.shadow_price - self.bid.limit)

    @property
    def detail(self) -> Sentence:
        """The reason with its numbers. Built on request: thousands lose and few are looked at."""
        bid, gpus = self.bid, count("gpu", self.bid.min_quantity)
        if self.reason == BELOW_PRICE:
            return say("market.below_price", limit=Usd(bid.limit), price=Usd(self.price))
        if self.reason == OWN_SUPPLY:
            return say("market.own_supply", owner=bid.owner)
        more = ("…",) if len(self.displaced_by) > 5 else ()
        others = Several((*self.displaced_by[:5], *more))
        if self.short is None:
            code = "market.unplaceable" if self.reason == UNPLACEABLE else "market.larger_than_pool"
            # The other case: GPUs are kept for a gang that has waited too long.
            kept = say("market.kept_for", gpus=gpus, left=self.units_left, others=others)
            return kept if self.displaced_by else say(code, gpus=gpus)
        if not self.displaced_by:
            return say("market.supply_dearer", gpus=gpus, price=Usd(bid.limit + self.short))
        short = Usd(self.short)
        if self.reason == DISPLACED:
            return say("market.outranked", others=others, short=short)
        return say("market.outweighed", gpus=gpus, left=self.units_left, others=others, short=short)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    pool: str
    price: int  # micro-dollars per GPU-hour
    floor: int  # the highest ask of supply in use
    wins: tuple[Win, ...]
    losses: tuple[Loss, ...] = field(repr=False)

    @property
    def units(self) -> int:
        return sum(win.units for win in self.wins)


def clear(book: Book, *, placeable: Placeable | None = None, first: Collection[str] = ()) -> Cleared:
    """Clear the pool. `first` names bids that have waited long enough: they win, the rest is optimal."""
    sellers = {step.seller for step in book.supply if step.seller}
    ranked = book.ranked()
    own = {bid.bid for bid in ranked if bid.owner in sellers}
    unplaced: set[str] = set()
    while True:
        able = [bid for bid in ranked if bid.bid not in own and bid.bid not in unplaced]
        levels = _levels(book, able, first=first)
        best = max(levels, key=lambda level: level.net, default=None)  # the lowest ask on a tie
        winners = [] if best is None else best.winners()
        refused = set(placeable(winners)) if placeable and winners else set()
        if not refused:
            break
        assert refused <= {bid.bid for bid, _ in winners}, "only a winner can fail to be placed"
        smaller = {bid.bid: bid.without(units) for bid, units in winners if bid.bid in refused}
        unplaced |= {name for name, bid in smaller.items() if bid is None}
        ranked = [smaller.get(bid.bid) or bid for bid in ranked]
    floor = _floor(book, winners)
    won = {bid.bid for bid, _ in winners}
    losers = [bid for bid in ranked if bid.bid not in won]
    rivals = [bid for bid in losers if bid.sets_price and bid.bid not in own]
    price = _price(floor, winners, [bid for bid in rivals if bid.min_quantity <= book.units])
    why = _Why(book, levels, best, price=price, own=own, unplaced=unplaced)
    return Cleared(
        pool=book.pool,
        price=price,
        floor=floor,
        wins=tuple(Win(bid=bid, units=units) for bid, units in winners),
        losses=tuple(why.loss(bid) for bid in losers),
    )


def _price(floor: int, winners: Sequence[tuple[Bid, int]], losers: Sequence[Bid]) -> int:
    if not winners:
        return floor
    lowest = min(bid.limit for bid, _ in winners)
    return max([floor, *(bid.limit for bid in losers if bid.limit <= lowest)])


def _floor(book: Book, winners: Sequence[tuple[Bid, int]]) -> int:
    """The highest ask of supply in use; the lowest ask if none is used."""
    if not book.supply:
        return 0
    used, floor = sum(units for _, units in winners), book.supply[0].ask
    for step in book.supply:
        if used <= 0:
            break
        floor, used = step.ask, used - step.quantity
    return floor


class _Level:
    """The supply up to one step, the bids that reach its ask, and their optimum.

    All winners pay one price and no seller gets less than its ask: using a step means that no bid with a
    limit below its ask wins. So each step is tried with the bids that remain.
    """

    def __init__(
        self, book: Book, steps: Sequence[Step], bids: Sequence[Bid], *, first: Sequence[Bid]
    ) -> None:
        self.ask, self.first = steps[-1].ask, first
        self.bids = [bid for bid in bids if bid.limit >= self.ask and bid not in first]
        units = sum(step.quantity for step in steps)
        kept = sum(bid.min_quantity for bid in first)
        self.cost = _costs(steps)[kept:]
        # Reasons need the optimum of what any one bid would leave to the others; costs need all of them.
        widest = max((bid.quantity for bid in bids), default=0)
        self.since = 0 if self.cost[-1] else max(0, units - kept - widest)
        self._solve(book)

    def _solve(self, book: Book) -> None:
        items = [
            Item(bid.min_quantity, bid.quantity, book.weight(bid), book.choices(bid)) for bid in self.bids
        ]
        self.optimum = Optimum(items, len(self.cost) - 1, since=self.since)
        self.net, self.at = self._best(self.optimum.worth)
        self._holders: dict[int, dict[str, int]] = {}

    def _best(self, worth: Sequence[int]) -> tuple[int, int]:
        """(net worth, units): the fewest units on a tie."""
        if not self.cost[-1]:
            return worth[-1], len(worth) - 1
        at = max(range(len(worth)), key=lambda k: worth[k] - self.cost[k])
        return worth[at] - self.cost[at], at

    def winners(self) -> list[tuple[Bid, int]]:
        chosen = [(self.bids[i], units) for i, units in self.optimum.chosen(self.at).items()]
        return [(bid, bid.min_quantity) for bid in self.first] + chosen

    def holders(self, units: int) -> dict[str, int]:
        """Units per bid in the best use of this many units."""
        if units not in self._holders:
            chosen = {self.bids[i].bid: many for i, many in self.optimum.chosen(units).items()}
            self._holders[units] = chosen | {bid.bid: bid.min_quantity for bid in self.first}
        return self._holders[units]

    def without(self, book: Book, bid: Bid) -> _Level:
        """The same supply without this bid."""
        level = object.__new__(_Level)
        level.ask, level.first, level.cost, level.since = self.ask, self.first, self.cost, self.since
        level.bids = [each for each in self.bids if each is not bid]
        level._solve(book)
        return level


def _levels(book: Book, bids: Sequence[Bid], *, first: Collection[str]) -> list[_Level]:
    reserved: list[Bid] = []
    for bid in bids:
        if bid.bid in first and sum(each.min_quantity for each in (*reserved, bid)) <= book.units:
            reserved.append(bid)
    levels: list[_Level] = []
    units = 0
    for i, step in enumerate(book.supply):
        units += step.quantity
        if i + 1 < len(book.supply) and book.supply[i + 1].ask == step.ask:
            continue  # one level per ask
        able = [bid for bid in reserved if bid.limit >= step.ask]
        if sum(bid.min_quantity for bid in able) <= units:
            levels.append(_Level(book, book.supply[: i + 1], bids, first=able))
    return levels


def _costs(steps: Sequence[Step]) -> list[int]:
    """Cost of the first k units, in hundredths of a micro-dollar like the ranking."""
    costs = [0]
    for step in steps:
        each = 100 * step.ask if step.bought else 0
        costs += [costs[-1] + each * n for n in range(1, step.quantity + 1)]
    return costs


class _Why:
    """Reasons, in numbers. What bids of one size have in common is computed once."""

    def __init__(
        self,
        book: Book,
        levels: Sequence[_Level],
        best: _Level | None,
        *,
        price: int,
        own: set[str],
        unplaced: set[str],
    ) -> None:
        self._book, self._levels, self._best, self._price = book, levels, best, price
        self._own, self._unplaced = own, unplaced
        self._winners = [] if best is None else best.winners()
        self._left = book.units - sum(units for _, units in self._winners)
        # By size: the limit required, and which bids would then have the rest.
        self._room: list[dict[tuple[object, ...], tuple[int, dict[str, int]]]] = [{} for _ in levels]

    def loss(self, bid: Bid) -> Loss:
        if bid.bid in self._own:
            return Loss(bid, OWN_SUPPLY, None, self._price)
        if bid.min_quantity > self._book.units:
            return Loss(bid, BLOCKED_BY_SIZE, None, self._price, self._left)
        if bid.bid in self._unplaced:
            return Loss(bid, UNPLACEABLE, None, self._price, self._left)
        shadow, stay = self._shadow(bid)
        if bid.limit <= self._price:
            return Loss(bid, BELOW_PRICE, shadow, self._price)
        displaced = [each for each, units in self._winners if stay.get(each.bid, 0) < units]
        weight = self._book.weight(bid)
        ranks_last = displaced and all(self._book.weight(each) >= weight for each in displaced)
        reason = DISPLACED if ranks_last else BLOCKED_BY_SIZE
        return Loss(bid, reason, shadow, self._price, self._left, tuple(each.bid for each in displaced))

    def _shadow(self, bid: Bid) -> tuple[int | None, dict[str, int]]:
        """(the limit at which it would draw level, which bids would then have how many units)."""
        found: tuple[int, dict[str, int]] | None = None
        key = (bid.min_quantity, bid.quantity, self._book.percent(bid), bid.sizes, bid.held)
        for level, rooms in zip(self._levels, self._room, strict=True):
            if bid.min_quantity >= len(level.cost):
                continue
            room = rooms.get(key)
            if room is None:
                room = rooms[key] = self._make_room(level, bid)
            needed, stay = room
            if bid.bid in stay:  # it would compete with itself
                needed, stay = self._make_room(level.without(self._book, bid), bid)
            if found is None or needed < found[0]:
                found = (needed, stay)
        return found or (None, {})

    def _make_room(self, level: _Level, bid: Bid) -> tuple[int, dict[str, int]]:
        assert self._best is not None
        needed, left = _easiest(self._best.net, level, bid, self._book)
        return needed, level.holders(left)


def _easiest(net: int, level: _Level, bid: Bid, book: Book) -> tuple[int, int]:
    """(the lowest limit that makes up for what it displaces, the units it then leaves to the others)."""
    worth, cost = level.optimum.worth, level.cost
    last = len(worth) - 1
    totals = range(bid.min_quantity, last + 1) if cost[-1] else (last,)
    least: tuple[int, int] | None = None
    factors = {units: units * book.percent(bid, units) for units in bid.units if units <= last}
    for at in totals:
        for units, factor in factors.items():
            if units > at:
                break
            needed = -((worth[at - units] - cost[at] - net) // factor)
            if least is None or needed < least[0]:
                least = (needed, at - units)
    assert least is not None, "the level holds its smallest quantity"
    return max(level.ask, least[0]), least[1]
