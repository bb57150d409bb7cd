"""A pool from tick to tick: notice, return, the billed price, and gangs that get their turn."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import pytest

from brimful.market.auction import Cleared
from brimful.market.bid import Bid, Book, Step, preset_limit
from brimful.market.spot import PoolState, Round, Terms, falls_in_s, next_round, priced
from tests.market.books import USD, a_bid, a_book

TICK_S = 120
UNITS = 64
FLOOR = USD  # an hour of an H100 cost at least a dollar on the best known market of this kind


@dataclass
class Day:
    """What happened in a simulated pool."""

    turns: list[Round] = field(default_factory=list)
    waits: dict[str, int] = field(default_factory=dict)  # bid -> seconds until its first start
    sizes: dict[str, int] = field(default_factory=dict)
    used: list[int] = field(default_factory=list)

    @property
    def preemptions(self) -> int:
        return sum(len(each.preempted) for each in self.turns)

    def wait_of_singles(self) -> float:
        return fmean(wait for bid, wait in self.waits.items() if self.sizes[bid] == 1)


def a_day(
    seed: int,
    *,
    bonus: int = 25,
    terms: Terms | None = None,
    ticks: int = 300,
    load: float = 1.2,
    gangs: bool = True,
    guest: Bid | None = None,
    spread: float = 0.2,
    floor: int = FLOOR,
    saves: int = 15,
) -> Day:
    """Bids come and go by chance; `load` is what they ask for over what there is. Time counts only while
    held.

    Two thirds of all limits lie within a factor e^spread of 1.65 dollars. Everybody saves every half hour (15
    ticks) of holding GPUs, and takes five minutes to start.
    """
    r = random.Random(seed)
    state, day = PoolState(), Day()
    bids: dict[str, Bid] = {}
    left: dict[str, int] = {}
    came: dict[str, int] = {}
    began: dict[str, int] = {}
    hold = 30
    sizes = (1, 1, 1, 1, 2, 2, 4, 8) if gangs else (1,)
    rate = load * UNITS / (fmean(sizes) * hold)
    for n in range(ticks):
        for k in range(_poisson(r, rate)):
            name = f"b{n}.{k}"
            size = r.choice(sizes)
            bids[name] = a_bid(name, size, usd=r.lognormvariate(0.5, spread), arrival=len(came))
            left[name] = 1 + round(r.expovariate(1 / hold))
            came[name], day.sizes[name] = n, size
        if guest is not None and n == ticks // 4:
            bids[guest.bid], left[guest.bid], came[guest.bid] = guest, 30, n
            day.sizes[guest.bid] = guest.quantity
        book = Book(
            pool="p",
            supply=(Step(quantity=UNITS, ask=floor),),
            bids=tuple(
                replace(bid, loss_s=300 + (n - began[name]) % saves * TICK_S * (name not in state.notices))
                if name in state.held
                else bid
                for name, bid in bids.items()
            ),
            bonus_percent=bonus,
        )
        done = next_round(state, book, now_s=n * TICK_S, terms=terms)
        _check(done, book)
        began |= dict.fromkeys(done.starts, n)
        state = done.state
        day.turns.append(done)
        day.used.append(sum(state.held.values()))
        for name in state.held:
            day.waits.setdefault(name, (n - came[name]) * TICK_S)
            left[name] -= 1
            if left[name] <= 0:
                del bids[name]
    for name in bids:  # who never started has waited at least until now
        if name not in state.held:
            day.waits.setdefault(name, (ticks - came[name]) * TICK_S)
    return day


def _check(done: Round, book: Book) -> None:
    limits = {bid.bid: bid.limit for bid in book.bids}
    sizes = {bid.bid: bid for bid in book.bids}
    held = done.state.held
    assert sum(held.values()) <= book.units
    assert all(done.billed <= limits[name] for name in held)
    assert done.billed >= book.supply[0].ask
    assert all(sizes[name].min_quantity <= units <= sizes[name].quantity for name, units in held.items())
    assert set(done.state.notices) <= set(held)


def _poisson(r: random.Random, mean: float) -> int:
    count, total = 0, r.expovariate(1.0)
    while total < mean:
        count, total = count + 1, total + r.expovariate(1.0)
    return count


@dataclass(frozen=True)
class Draw:
    """A market drawn by chance: how far limits lie apart, what the floor is, how much is asked for."""

    seed: int
    spread: float
    floor: int
    load: float

    def day(self, **more: Any) -> Day:
        return a_day(self.seed, spread=self.spread, floor=self.floor, load=self.load, **more)


def draws(count: int, *, name: str) -> list[Draw]:
    """Not chosen: the first of their name, whatever they are."""
    r = random.Random(name)
    return [
        Draw(
            seed=seed,
            spread=r.choice((0.1, 0.2, 0.4, 0.6)),
            floor=r.choice((USD // 100, USD // 2, USD)),
            load=r.choice((0.8, 1.0, 1.2, 1.5)),
        )
        for seed in range(count)
    ]


@pytest.mark.parametrize(("spread", "saved"), [(None, 0.4), (0.6, 0.25)])
def test_the_bonus_and_what_would_be_lost_save_preemptions_at_equal_fill(
    spread: float | None, saved: float
) -> None:
    """Over markets of all kinds together, and where limits lie far apart."""
    without = with_it = 0
    for draw in draws(8, name="bonus"):
        market = draw if spread is None else replace(draw, spread=spread)
        before, after = market.day(bonus=0, ticks=200), market.day(bonus=25, ticks=200)
        without, with_it = without + before.preemptions, with_it + after.preemptions
        assert abs(fmean(before.used) - fmean(after.used)) < 0.01 * UNITS, market
        assert after.preemptions <= before.preemptions, market
    assert without > 100
    assert with_it <= (1 - saved) * without, (without, with_it)


def test_of_equal_bids_who_loses_least_by_a_stop_is_stopped() -> None:
    for much, little in (("a", "b"), ("b", "a")):
        loss = {much: 600, little: 120}
        running = [a_bid(each, 4, usd=2, running=True, loss_s=loss[each]) for each in ("a", "b")]
        state = PoolState(at_s=0, billed=USD, held={"a": 4, "b": 4})
        done = next_round(state, a_book(*running, a_bid("new", 4, usd=9, arrival=1)), now_s=120)
        assert done.notices == (little,)


def test_classes_stay_in_order_whatever_would_be_lost() -> None:
    book = a_book()
    for low, high in (("background", "normal"), ("normal", "urgent")):
        running = Bid(
            bid="low",
            quantity=1,
            min_quantity=1,
            limit=preset_limit(low, price=USD),
            arrival=0,
            running=True,
            loss_s=10**9,
        )
        assert book.weight(running) < 100 * preset_limit(high, price=USD)


def moves(prices: list[int]) -> int:
    return sum(abs(b - a) > 0.1 * a for a, b in itertools.pairwise(prices))


def test_the_billed_price_jumps_at_most_a_tenth_as_often_as_the_clearing_price() -> None:
    raw = billed = 0
    for draw in draws(6, name="billed"):
        turns = draw.day(ticks=280).turns[80:]  # the pool begins empty; leave that out
        cleared = moves([each.cleared.price for each in turns])
        smooth = moves([each.billed for each in turns])
        assert smooth * 720 / len(turns) <= 10, draw
        raw, billed = raw + cleared, billed + smooth
    assert raw > 30
    assert billed <= raw / 10, (raw, billed)


def test_a_gang_of_half_the_pool_starts_in_time_and_the_small_ones_wait_at_most_twice_as_long() -> None:
    terms, never = Terms(max_wait_s=2 * 3600), Terms(max_wait_s=10**9)
    gang = a_bid("gang", UNITS // 2, usd=1.65, arrival=10**6)
    late, waits, usual = 0, 0.0, 0.0
    for draw in [each for each in draws(9, name="gang") if each.load > 1]:
        with_it = draw.day(terms=terms, guest=gang, ticks=200)
        could_not_pay_s = TICK_S * sum(
            loss.bid.bid == "gang" and loss.bid.limit < each.cleared.price
            for each in with_it.turns
            for loss in each.cleared.losses
        )
        assert with_it.waits["gang"] <= terms.max_wait_s + could_not_pay_s, draw
        without = draw.day(terms=never, guest=gang, ticks=200)
        late += without.waits["gang"] > 2 * terms.max_wait_s
        waits, usual = waits + with_it.wait_of_singles(), usual + without.wait_of_singles()
        if with_it.wait_of_singles() > 2 * without.wait_of_singles():
            # Half of the pool is gone for an hour, however the gang came by it. So it is in a quiet market:
            # then hold it against a gang that simply pays its way in.
            pays = draw.day(terms=terms, guest=replace(gang, limit=9 * USD), ticks=200)
            assert with_it.wait_of_singles() <= 2 * pays.wait_of_singles(), draw
    assert late > 0  # without the reservation some would still be waiting
    assert waits <= 2 * usual, (waits, usual)


def test_a_victim_has_its_notice_and_returns_with_its_old_age() -> None:
    low, high = a_bid("low", 8, usd=1, arrival=1), a_bid("high", 8, usd=3, arrival=2)
    one = next_round(PoolState(), a_book(low), now_s=0)
    assert one.starts == {"low": 8}
    two = next_round(one.state, a_book(low, high), now_s=120)
    assert (two.notices, two.starts, two.state.notices) == (("low",), {}, {"low": 420})
    three = next_round(two.state, a_book(low, high), now_s=300)
    assert three.preempted == ()
    four = next_round(three.state, a_book(low, high), now_s=420)
    assert (four.preempted, four.starts) == (("low",), {"high": 8})
    five = next_round(four.state, a_book(low), now_s=540)  # the other has ended; `low` never left the book
    assert five.starts == {"low": 8}


def test_a_notice_is_taken_back_when_the_price_falls() -> None:
    low, high = a_bid("low", 8, usd=1, arrival=1), a_bid("high", 8, usd=3, arrival=2)
    state = next_round(PoolState(), a_book(low), now_s=0).state
    state = next_round(state, a_book(low, high), now_s=120).state
    back = next_round(state, a_book(low), now_s=240)
    assert (back.restored, back.state.notices, back.state.held) == (("low",), {}, {"low": 8})


def test_nobody_pays_above_their_limit_while_on_notice() -> None:
    low, high = a_bid("low", 4, usd=1), a_bid("high", 8, usd=3, arrival=1)
    state = next_round(PoolState(), a_book(low), now_s=0).state
    done = next_round(state, a_book(low, high, a_bid("other", 8, usd=2.5, arrival=2)), now_s=120)
    assert done.cleared.price == 2_500_000
    assert done.billed <= USD


def test_a_winner_below_the_bill_starts_when_the_bill_has_fallen_to_its_limit_by_steps() -> None:
    holder, low = a_bid("holder", 4, usd=3), a_bid("low", 4, usd=1, arrival=1)
    state = PoolState(billed=2 * USD, cleared=2 * USD, used=4, owed=10**15, held={"holder": 4})
    bills = [2 * USD]
    for now_s in range(TICK_S, TICK_S * 20, TICK_S):
        done = next_round(state, a_book(holder, low), now_s=now_s)
        state = done.state
        bills.append(done.billed)
        if done.starts:
            break
    assert done.starts == {"low": 4}
    assert bills[-1] == USD  # as far as it had to, whatever is owed
    assert all(b >= a - -(-a * 95 // 1000) for a, b in itertools.pairwise(bills))
    assert (len(bills) - 1) * TICK_S == falls_in_s(2 * USD, USD, Terms())


def test_where_nobody_holds_gpus_a_winner_below_the_bill_starts_at_once() -> None:
    state = PoolState(billed=2 * USD, cleared=2 * USD)
    done = next_round(state, a_book(a_bid("low", 4, usd=1)), now_s=TICK_S)
    assert (done.starts, done.billed) == ({"low": 4}, USD)


def test_a_gang_whose_time_has_come_starts_at_once_even_below_the_bill() -> None:
    terms = Terms()
    holder, gang = a_bid("holder", 4, usd=3), a_bid("gang", 4, usd=1, arrival=1)
    state = PoolState(billed=2 * USD, cleared=USD, used=4, held={"holder": 4})
    state = replace(state, blocked_s={"gang": terms.max_wait_s}, drains=("gang",))
    done = next_round(state, a_book(holder, gang), now_s=TICK_S, terms=terms)
    assert (done.starts, done.billed) == ({"gang": 4}, USD)


def test_what_is_kept_for_a_gang_goes_to_who_is_gone_in_time() -> None:
    terms = Terms(max_wait_s=3600, drain_s=1800)
    gang = a_bid("gang", 8, usd=2, arrival=1)
    a, b = (
        a_bid("a", 4, usd=3),
        a_bid("b", 4, usd=1.5),
    )  # together worth more than the gang, and `b` offers less
    state = next_round(PoolState(), a_book(a, b, gang), now_s=0, terms=terms).state
    for now_s in range(120, 1800, 120):
        state = next_round(state, a_book(a, b, gang), now_s=now_s, terms=terms).state
    assert state.drains == ("gang",)
    long, short = a_bid("long", 2, usd=3, arrival=3), a_bid("short", 2, usd=3, arrival=4, expected_s=600)
    done = next_round(state, a_book(a, gang, long, short), now_s=1800, terms=terms)
    assert done.starts == {"short": 2}


def test_gangs_that_came_together_do_not_wait_for_each_others_notices() -> None:
    """Each is half of the pool or less and outweighed by single bids; all start within the bound."""
    terms = Terms(max_wait_s=3600)
    singles = [a_bid(f"s{i}", 1, usd=3, arrival=i) for i in range(12)]
    gangs = [a_bid(f"g{i}", 4, usd=2, arrival=100 + i) for i in range(3)]
    state, started = PoolState(), dict[str, int]()
    for now_s in range(0, 3600 + TICK_S, TICK_S):
        done = next_round(state, a_book(*singles, *gangs, units=12), now_s=now_s, terms=terms)
        started |= {name: now_s for name in done.starts if name.startswith("g")}
        state = done.state
    assert sorted(started) == ["g0", "g1", "g2"]
    assert max(started.values()) <= terms.max_wait_s


def bill(state: PoolState, raw: int, *, now_s: int = 120, lowest: int = 10 * USD) -> int:
    cleared = Cleared(pool="p", price=raw, floor=10_000, wins=(), losses=())
    return priced(state, cleared, now_s=now_s, units=10, lowest_limit=lowest, terms=Terms()).billed or 0


def test_the_bill_moves_by_a_step_either_way_and_never_in_the_same_period() -> None:
    behind = PoolState(billed=USD, cleared=9 * USD, used=10)
    assert bill(behind, 9 * USD) == 1_095_000
    assert bill(behind, 9 * USD, now_s=119) == USD
    ahead = PoolState(billed=2 * USD, cleared=USD, used=10)
    assert bill(ahead, USD) == 2 * USD - 190_000
    assert bill(ahead, USD, lowest=USD // 2) == USD // 2  # a limit is kept at once


def test_a_far_rise_is_billed_at_once_when_a_notice_of_it_is_owed() -> None:
    rise, notice_s = 99 * USD // 100, Terms().notice_s
    for owed, billed in ((rise * 10 * notice_s, USD), (rise * 10 * (notice_s - 121), 10_950)):
        behind = PoolState(billed=USD // 100, cleared=USD, used=10, owed=owed)
        assert bill(behind, USD) == billed


def test_the_bill_stays_up_while_something_is_owed_and_never_rises_above_the_price() -> None:
    owed = PoolState(billed=USD, cleared=10_000, used=10, owed=10**13)
    assert bill(owed, 10_000) == USD
    assert bill(owed, 2 * USD) == 1_095_000
    assert bill(owed, 1_050_000) == 1_050_000


def test_what_was_cleared_is_billed_but_for_what_is_owed() -> None:
    """To the last micro-dollar, whatever limits and steps did to the bill."""
    for draw in draws(3, name="identity"):
        turns = draw.day(ticks=150).turns
        behind = sum(
            (before.cleared.price - before.billed) * before.state.used * TICK_S for before in turns[:-1]
        )
        assert behind == turns[-1].state.owed, draw


def test_a_low_bid_that_comes_again_and_again_does_not_keep_the_bill_down() -> None:
    """Every half hour somebody with a limit of a cent holds a GPU for two minutes."""
    state, billed = PoolState(billed=USD, cleared=USD, used=10, at_s=0), 0
    cleared = Cleared(pool="p", price=USD, floor=10_000, wins=(), losses=())
    state = replace(state, held={"a": 10})
    for now_s in range(TICK_S, 24 * 3600, TICK_S):
        lowest = 10_000 if now_s % 1800 == 0 else 2 * USD
        state = priced(state, cleared, now_s=now_s, units=10, lowest_limit=lowest, terms=Terms())
        billed += state.billed or 0
    assert billed / USD / len(range(TICK_S, 24 * 3600, TICK_S)) > 0.8


def test_bills_are_calm_and_revenue_is_whole_at_every_floor() -> None:
    """From the third hour on: before it the pool fills. In every single market too: who comes in below the
    bill waits until it has fallen by steps.
    """
    for cents in (1, 50, 100):
        billed = cleared = jumps = days = 0.0
        for draw in draws(4, name=f"calm at {cents}"):
            turns = replace(draw, floor=cents * USD // 100).day(ticks=720).turns[90:]
            billed += sum(each.billed * each.state.used for each in turns)
            cleared += sum(each.cleared.price * each.state.used for each in turns)
            here = moves([each.billed for each in turns])
            assert here * 720 / len(turns) <= 10, draw
            jumps += here
            days += len(turns) / 720
        assert 0.92 <= billed / cleared <= 1.05, (cents, billed / cleared)
        assert jumps / days <= 10, (cents, jumps / days)


def test_a_new_pool_at_a_cent_bills_its_first_eight_hours() -> None:
    """It opens empty, at the floor; prices are a hundred times that once it is full."""
    days = [replace(draw, floor=USD // 100).day(ticks=240) for draw in draws(6, name="new pools")]
    turns = [each for day in days for each in day.turns]
    billed = sum(each.billed * each.state.used for each in turns)
    cleared = sum(each.cleared.price * each.state.used for each in turns)
    assert 0.92 <= billed / cleared <= 1.05, billed / cleared


def test_a_clock_that_is_set_back_takes_nothing_off_what_was_cleared() -> None:
    state = PoolState(at_s=1200, billed=USD, cleared=2 * USD, used=10, owed=10**9, blocked_s={"gang": 600})
    gang = a_bid("gang", 8, usd=2, arrival=1)
    single = a_bid("single", 1, usd=30)
    done = next_round(replace(state, held={"single": 1}), a_book(single, gang), now_s=600)
    assert done.state.owed == 10**9
    assert done.state.blocked_s["gang"] == 600
