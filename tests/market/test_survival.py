"""Whether a price stays at or below a limit: from the log's past alone, scored, and silent when young."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from itertools import pairwise

from brimful.fleet.events import LoadSeen, PoolPriced
from brimful.fleet.node import Pool
from brimful.market.survival import AHEAD_H, PriceRecord, PriceRecords, needs_h

HOUR_S = 3600
POOL = Pool("here", "h100", "owned")


def busy_by_day(days: int, *, seed: int = 0) -> Iterator[tuple[int, float]]:
    """Two dollars at night, three from 9 to 19 o'clock, with some noise in each hour."""
    rng = random.Random(seed)
    for hour in range(24 * days):
        yield hour * HOUR_S, (3.0 if 9 <= hour % 24 < 19 else 2.0) * (1 + 0.02 * rng.random())


def a_record(days: int, *, seed: int = 0) -> PriceRecord:
    record = PriceRecord(0)
    for at_s, price in busy_by_day(days, seed=seed):
        record.add(at_s, price * 1e6)
    return record


def priced(at_s: int, billed: int, cleared: int) -> PoolPriced:
    return PoolPriced(
        at_s=at_s,
        **POOL._asdict(),
        microusd_per_gpu_hour=billed,
        cleared_microusd_per_gpu_hour=cleared,
        held=1,
        wanted=1,
        gpus=4,
    )


def seen(at_s: int) -> LoadSeen:
    return LoadSeen(at_s=at_s, **POOL._asdict(), held=1, wanted=0, gpus=4)


def test_a_young_pool_says_nothing_and_each_time_span_has_its_own_need() -> None:
    assert [needs_h(hours) for hours in AHEAD_H] == [168, 168, 168, 360]
    assert set(a_record(7).stays(9e6).values()) == {None}  # the seventh day is not over
    week, half_month = a_record(8).stays(9e6), a_record(17).stays(9e6)
    assert week[72] is None
    assert [week[hours] for hours in (1, 8, 24)] == [1.0, 1.0, 1.0]
    assert half_month[72] == 1.0


def test_a_night_price_is_known_to_rise_in_the_morning() -> None:
    record = a_record(60)
    for hour in range(22):  # two hours before midnight
        record.add((60 * 24 + hour) * HOUR_S, 2e6 if hour < 9 or hour >= 19 else 3e6)
    between = record.stays(2.5e6)
    assert between[1] is not None
    assert between[24] is not None
    assert between[1] > 0.9 > 0.1 > between[24]
    above = record.stays(3.2e6)
    assert all(chance is not None and chance > 0.9 for chance in above.values())
    assert record.stays(1.9e6) == {1: 0.0, 8: 0.0, 24: 0.0, 72: 0.0}  # below the price of now


def test_a_chance_never_falls_with_the_limit_or_rises_much_with_time() -> None:
    record = a_record(40, seed=3)
    limits = [record.stays(2e6 * (1 + i / 40)) for i in range(40)]
    for hours in AHEAD_H:
        chances = [each[hours] or 0.0 for each in limits]
        assert chances == sorted(chances)
    for each in limits:
        known = [each[hours] or 0.0 for hours in AHEAD_H]
        assert all(a >= b - 0.15 for a, b in pairwise(known))  # each span is counted by itself


def test_earlier_chances_are_scored_and_beat_the_usual_rate_where_prices_follow_the_day() -> None:
    for horizon in a_record(90).horizons:
        assert horizon.score.cases > 500
        skill = horizon.score.skill
        assert skill is not None
        if horizon.hours < 72:  # in three days every price is the same
            assert skill > 0.25, horizon.hours


def test_nothing_is_learned_from_what_comes_after() -> None:
    """The chance of an hour is the same whatever happens later: it is stated before, and scored then."""
    first = a_record(30)
    stated = first.stays(2.5e6)
    longer = PriceRecord(0)
    for at_s, price in busy_by_day(31):
        if at_s == 30 * 24 * HOUR_S:
            assert longer.stays(2.5e6) == stated
        longer.add(at_s, price * 1e6)
    due = [each.due[0] for each in first.horizons if each.due]
    assert due
    assert all(each.hour <= first.hour for each in due)


def test_the_record_is_a_fold_of_the_log_and_hours_without_an_event_are_like_the_one_before() -> None:
    records = PriceRecords()
    records.apply(seen(0))  # no bids decide there yet
    assert records.of == {}
    records.apply(priced(100, 2_000_000, 1_500_000))
    records.apply(priced(5 * HOUR_S, 2_000_000, 3_000_000))
    record = records.of[POOL]
    assert (record.hours, record.price) == (5, 3e6)  # what is billed follows, but bids below hold nothing
    records.apply(priced(4 * HOUR_S, 1_000_000, 1_000_000))  # the clock was set back
    assert (record.hours, record.price) == (5, 1e6)
    records.apply(seen(9 * HOUR_S))
    assert record.hours == 9
    assert pickle.loads(pickle.dumps(records)).of == records.of
    records.apply(seen(1 << 40))  # a clock far ahead does not keep the server busy
    assert record.hours == 9
    records.apply(priced(1 << 40, 1_000_000, 1_000_000))
    assert records.of[POOL].hours == 0


def test_a_free_pool_has_a_price_of_nothing_that_can_be_compared() -> None:
    record = PriceRecord(0)
    for hour in range(200):
        record.add(hour * HOUR_S, 0.0)
    assert record.stays(1.0) == {1: 1.0, 8: 1.0, 24: 1.0, 72: None}
    assert set(record.stays(0.0).values()) == {None}
