"""A pool from tick to tick: notice before preemption, return with the old age, one billed price, drains.

    next_round(state, book) -> what changed, and the next state

Clearing (auction.py) says which bids should hold GPUs. A running bid that should not is given notice and
keeps its GPUs until the notice ends; if it should again by then, the notice is withdrawn. So is a bid with
sizes that should hold another number: it restarts. A winner starts when its GPUs are free and the billed
price has fallen to its limit. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, log

from brimful.market.auction import UNPLACEABLE, Cleared, Placeable, clear
from brimful.market.bid import Book

# For a rise by this factor, steps leave `smooth_s` of it unbilled, as much as they overbill in a fall to
# nothing: R ln R = 2 (R - 1).
_FAR_TENTHS = 49
_LEAST = 10_000  # a cent: from zero, a share of the price would never rise


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the operator promises."""

    notice_s: int = 300
    # How often the billed price may change, and the longest time between two looks at the market.
    period_s: int = 120
    step_permille: int = 95  # and by how much at most each time
    max_wait_s: int = 4 * 3600  # a gang kept out only by its size starts within this
    drain_s: int = 600  # this long before it is due, GPUs that become free are kept for it

    @property
    def smooth_s(self) -> int:
        """How much of a fall to nothing is still billed while the bill follows by steps: 21 minutes."""
        return self.period_s * 1000 // self.step_permille


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """What a pool remembers between ticks."""

    at_s: int = 0
    billed: int | None = None  # micro-dollars per GPU-hour
    cleared: int = 0  # the clearing price at that time
    used: int = 0  # GPUs held since then
    owed: int = 0  # micro-dollars per hour x GPU-seconds that were cleared and not billed yet
    held: Mapping[str, int] = field(default_factory=dict)  # bid -> GPUs
    notices: Mapping[str, int] = field(default_factory=dict)  # bid -> when its notice ends
    blocked_s: Mapping[str, int] = field(
        default_factory=dict
    )  # gang -> how long it was kept out at the price
    drains: tuple[str, ...] = ()  # gangs that GPUs are kept for, longest wait first


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one look at a pool decided."""

    state: PoolState
    cleared: Cleared
    billed: int
    starts: Mapping[str, int] = field(default_factory=dict)  # bid -> GPUs, from now on
    notices: tuple[str, ...] = ()  # given notice now
    restored: tuple[str, ...] = ()  # notice withdrawn
    preempted: tuple[str, ...] = ()  # their notice is over; they wait again with their old arrival
    blocked: frozenset[str] = frozenset()  # gangs that would pay the price but are kept out by their size
    was_due: bool = False  # whether a gang that GPUs were kept for was admitted before all others
    look_again_s: int | None = None  # when time alone may change something


def priced(
    state: PoolState,
    cleared: Cleared,
    *,
    now_s: int,
    units: int,
    lowest_limit: int | None,
    terms: Terms,
    lowest_waiting: int | None = None,
) -> PoolState:
    """The pool from now on, with one price for all holders and what it has not billed yet.

        owed = cleared - billed so far

    At most once per period the bill moves towards the clearing price plus what is owed, spread over
    `smooth_s` of the whole pool's time, by at most `step_permille`, never above a holder's limit or below an
    ask in use. It never rises above the clearing price: what is owed is billed by falling later. Steps suit a
    fall, which overbills `smooth_s` of the difference and no more; from a cent to a dollar they would take
    hours. So a rise too large for steps is billed at once when a notice's worth of it is owed: holders who do
    not pay it are gone by then.

    While a winner waits with a limit below the bill (`lowest_waiting`), the bill falls towards it by steps,
    whatever is owed.
    """
    first = _between(cleared.price, lowest_limit, cleared.floor)
    before = price = first if state.billed is None else state.billed
    now_s = max(now_s, state.at_s)  # a clock that was set back does not undo what was counted
    owed = state.owed + (state.cleared - before) * state.used * (now_s - state.at_s)
    if state.billed is not None and now_s // terms.period_s > state.at_s // terms.period_s:
        price = _next_bill(before, cleared.price, owed, units, terms, lowest_waiting=lowest_waiting)
    price = _between(price, lowest_limit, cleared.floor)
    return replace(
        state, at_s=now_s, billed=price, cleared=cleared.price, used=sum(state.held.values()), owed=owed
    )


def _next_bill(
    before: int, cleared: int, owed: int, units: int, terms: Terms, *, lowest_waiting: int | None
) -> int:
    """The bill after one more period, before limits and asks."""
    is_far = 10 * cleared > _FAR_TENTHS * before
    wait_s = min(terms.notice_s, terms.smooth_s)
    if is_far and owed >= (cleared - before) * max(1, units) * wait_s:
        return cleared
    whole = max(1, units) * terms.smooth_s
    step = -(-max(before, _LEAST) * terms.step_permille // 1000)
    price = min(cleared + owed // whole, before + step, max(cleared, before))
    if lowest_waiting is not None:
        price = min(price, lowest_waiting)
    return max(price, before - step)


def falls_in_s(price: int, limit: int, terms: Terms) -> int:
    """How long the bill takes to fall to a limit by steps, if nothing else moves it."""
    return terms.period_s * ceil(log(max(1, limit) / price) / log(1 - terms.step_permille / 1000))


def _between(price: int, lowest_limit: int | None, floor: int) -> int:
    return max(price, floor) if lowest_limit is None else min(max(price, floor), lowest_limit)


def next_round(
    state: PoolState,
    book: Book,
    *,
    now_s: int,
    terms: Terms | None = None,
    placeable: Placeable | None = None,
    moving: Callable[[], Collection[str]] = tuple,
    leaving: Collection[int] = (),
    known: Cleared | None = None,
) -> Round:
    """One look. `book.bids` are all open bids; the state says which of them run.

    `moving`, called after clearing, names winners that must leave their GPUs so that others can be placed:
    they are given notice too, and start again elsewhere in the pool. `leaving` are the limits of holders that
    no longer bid: they are billed like all others until they are gone. `known` is the last clearing of this
    same book, if only time has passed since.
    """
    terms = terms or Terms()
    bids = {bid.bid: bid for bid in book.bids}
    held = {name: units for name, units in state.held.items() if name in bids}
    drains = _drains(state, book, held, terms)
    due = _due(drains, state, book, held, terms)
    # Bids leaving for a gang that is due stay chosen: if the notice moved from bid to bid, none would ever
    # leave.
    leaving_for_it = state.notices.keys() if due else ()
    bids = {
        name: replace(bid, running=name in held and name not in leaving_for_it) for name, bid in bids.items()
    }
    book = replace(book, bids=tuple(bids.values()))
    cleared = known
    if cleared is None or due:
        cleared = clear(book, placeable=placeable, first=due)
    won = {win.bid.bid: win.units for win in cleared.wins}
    resized = {win.bid.bid for win in cleared.wins if win.bid.held not in (0, win.units)}
    staying = won.keys() - set(moving()) - resized

    limits = [*leaving, *(bids[name].limit for name in held)]
    notices, given, restored, preempted = _notices(state, held, staying, terms, now_s=now_s)
    leaving_units = _leaving_in_time(due, held, notices, state, terms, now_s=now_s)
    low = min(limits, default=None)
    waiting = min((bids[name].limit for name in won.keys() - held.keys()), default=None)
    after = priced(
        state, cleared, now_s=now_s, units=book.units, lowest_limit=low, lowest_waiting=waiting, terms=terms
    )
    assert after.billed is not None
    # A winner with a limit below the bill waits for the bill to fall, or one low limit would pull it down for
    # all who pay it. Not if nobody pays it, and not beyond a gang's longest wait.
    bill = after.billed
    may_start = {name: n for name, n in won.items() if not limits or bids[name].limit >= bill or name in due}
    starts = _start(book, held, may_start, drains=drains, leaving=leaving_units, state=state, terms=terms)
    drains = tuple(name for name in drains if name not in held)
    blocked_s, blocked = _blocked(state, cleared, held, now_s=now_s)
    bill = min([bill, *(bids[name].limit for name in starts)])
    after = replace(after, billed=bill, used=sum(held.values()), held=held, notices=notices)
    after = replace(after, blocked_s=blocked_s, drains=drains)
    is_moving = bool(blocked_s) or bill != cleared.price or after.owed < 0
    periods = [(now_s // terms.period_s + 1) * terms.period_s] if is_moving else []
    return Round(
        state=after,
        cleared=cleared,
        billed=bill,
        starts=starts,
        notices=tuple(given),
        restored=tuple(restored),
        preempted=tuple(preempted),
        blocked=blocked,
        was_due=bool(due),
        look_again_s=min([*notices.values(), *periods], default=None),
    )


def _notices(
    state: PoolState, held: dict[str, int], staying: Collection[str], terms: Terms, *, now_s: int
) -> tuple[dict[str, int], list[str], list[str], list[str]]:
    """(when each notice ends, bids given notice now, notices withdrawn, bids whose notice is over)."""
    notices = dict(state.notices)
    given, preempted = [], []
    restored = [name for name in held if name in staying and notices.pop(name, None) is not None]
    for name in [name for name in held if name not in staying]:
        if name not in notices:
            notices[name] = now_s + terms.notice_s
            given.append(name)
        elif now_s >= notices[name]:
            preempted.append(name)
            del held[name]
    return {name: end_s for name, end_s in notices.items() if name in held}, given, restored, preempted


def _drains(state: PoolState, book: Book, held: Mapping[str, int], terms: Terms) -> tuple[str, ...]:
    """The gangs that GPUs are kept for: the one blocked longest, and all that become due meanwhile as far as
    they fit beside it. Served one by one, gangs that arrived together would wait for each other's notices."""
    waiting = {bid.bid: bid for bid in book.bids if bid.bid not in held}
    late = _last_call_s(terms) - terms.drain_s
    found = [name for name in state.drains if name in waiting]
    new = [name for name, s in state.blocked_s.items() if s >= late and name in waiting and name not in found]
    new.sort(key=lambda name: (-state.blocked_s[name], waiting[name].arrival))
    kept = sum(waiting[name].min_quantity for name in found)
    for name in new:
        if kept + waiting[name].min_quantity <= book.units:
            kept += waiting[name].min_quantity
            found.append(name)
    return tuple(found)


def _last_call_s(terms: Terms) -> int:
    """The wait after which notice must be given: two periods early, since that may be the next look."""
    return terms.max_wait_s - terms.notice_s - 2 * terms.period_s


def _due(
    drains: Sequence[str], state: PoolState, book: Book, held: Mapping[str, int], terms: Terms
) -> tuple[str, ...]:
    """Gangs for which enough is already free, or whose bound is near, so that others must get notice."""
    least = {bid.bid: bid.min_quantity for bid in book.bids}
    free = book.units - sum(held.values())
    due = []
    for name in drains:
        if least[name] <= free or state.blocked_s.get(name, 0) >= _last_call_s(terms):
            due.append(name)
            free -= least[name]
    return tuple(due)


def _leaving_in_time(
    due: Collection[str],
    held: Mapping[str, int],
    notices: Mapping[str, int],
    state: PoolState,
    terms: Terms,
    *,
    now_s: int,
) -> int:
    """Once a gang is due: GPUs of bids that will be gone before its wait is over."""
    if not due:
        return 0
    left_s = terms.max_wait_s - terms.period_s - max(state.blocked_s.get(name, 0) for name in due)
    return sum(held[name] for name, end_s in notices.items() if end_s - now_s <= left_s)


def _blocked(
    state: PoolState, cleared: Cleared, held: Mapping[str, int], *, now_s: int
) -> tuple[dict[str, int], frozenset[str]]:
    """How long each waiting gang has been kept out although it would pay the price, and which are now. Time
    below the price does not count.

    A limit equal to the price counts: a gang without room is often the very loser that sets the price.
    """
    since = max(0, now_s - state.at_s) if state.billed is not None else 0
    blocked: dict[str, int] = {}
    now: set[str] = set()
    for loss in cleared.losses:
        name = loss.bid.bid
        before = state.blocked_s.get(name, 0)
        can_win = loss.shadow_price is not None or loss.reason == UNPLACEABLE
        if (
            can_win
            and loss.bid.min_quantity > 1
            and loss.bid.limit >= cleared.price
            and name not in state.held
        ):
            now.add(name)
            blocked[name] = before + since if name in state.blocked_s else 0
        elif before:
            blocked[name] = before
    for win in cleared.wins:  # a winner that waits for others to leave is still waiting
        name = win.bid.bid
        if win.bid.min_quantity > 1 and name not in held:
            now.add(name)
            blocked[name] = state.blocked_s[name] + since if name in state.blocked_s else 0
    return blocked, frozenset(now)


def _start(
    book: Book,
    held: dict[str, int],
    won: Mapping[str, int],
    *,
    drains: Sequence[str],
    leaving: int,
    state: PoolState,
    terms: Terms,
) -> dict[str, int]:
    """Give free GPUs to winners in rank order; those kept for gangs go only to bids that end before the gangs
    are due. Once they are due, that is what they need beyond the GPUs of the bids `leaving`."""
    restart = {bid.bid for bid in book.bids if bid.held}  # for another size
    for name, units in held.items():
        if name not in restart:
            held[name] = min(units, won.get(name, units))  # an elastic bid gives back at once
    free = book.units - sum(held.values())
    kept = max(0, sum(bid.min_quantity for bid in book.bids if bid.bid in drains) - leaving)
    left_s = _last_call_s(terms) - max((state.blocked_s.get(name, 0) for name in drains), default=0)
    starts: dict[str, int] = {}
    order = {win: i for i, win in enumerate(won)}
    for bid in sorted(book.bids, key=lambda bid: order.get(bid.bid, len(order))):
        if bid.bid not in won:
            break
        more = won[bid.bid] - held.get(bid.bid, 0)
        is_gone = bid.expected_s is not None and bid.expected_s <= left_s
        may_use_all = is_gone or bid.bid in drains or (bid.bid in held and not drains)
        units = min(more, free if may_use_all else max(0, free - kept))
        if units <= 0 or held.get(bid.bid, 0) + units < bid.min_quantity:
            continue
        if bid.sizes and (units < more or bid.bid in restart):
            continue
        held[bid.bid] = held.get(bid.bid, 0) + units
        starts[bid.bid] = held[bid.bid]
        free -= units
        kept = max(0, kept - bid.min_quantity) if bid.bid in drains else kept
    return starts
