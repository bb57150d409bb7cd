"""Spending, budgets, prices and bills."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice

from brimful.client.answers import (
    BillAnswer,
    BudgetAnswer,
    BudgetTermsAnswer,
    InvoiceAnswer,
    MonthAnswer,
    SpendAnswer,
    SpendDaysAnswer,
    SpendSums,
    TransferAnswer,
    alike,
)
from brimful.client.price_answers import DepthAnswer, PoolPriceAnswer, PricePointAnswer, QuoteAnswer
from brimful.fleet.events import PoolPriced
from brimful.fleet.money.purse import Budget
from brimful.fleet.node import Pool
from brimful.market.invoice import Invoices, Sums, day_of
from brimful.market.periods import pace, period_at
from brimful.market.pools import limit_of
from brimful.scheduler.budgets import Money, used_microusd
from brimful.scheduler.load import priced
from brimful.server.auth import Principal
from brimful.server.service.reader import Reader
from brimful.server.views.tally import tallies
from brimful.units import DAY_S, HOUR_S

TRANSFERS_SHOWN = 50
TRANSFERS_LOOKED_AT = 2000
DEPTH_STEPS = 50
HISTORY_POINTS = 500


def spend_view(reader: Reader, who: Principal) -> SpendAnswer:
    with reader.locked():
        found = spend_now(reader, who)
        return {**found, "balances": dict(sorted(found["balances"].items()))}


def spend_now(reader: Reader, who: Principal) -> SpendAnswer:
    """The same with unsorted balances: a server that has had many jobs has as many accounts."""
    with reader.locked():
        balances = reader.ledger.balances
        if not who.sees_all:
            balances = {name: n for name, n in balances.items() if _sees_account(reader, who, name)}
        months, until_s = _months(reader, who)
        return {
            **spend_sums(reader, who),
            "month": months,
            "month_until_s": until_s,
            "balances": dict(balances),
            # Over all accounts it is always zero; over some it means nothing.
            "sum_microusd": sum(balances.values()) if who.sees_all else None,
            "transfers": list(islice(_transfers(reader, who), TRANSFERS_SHOWN)),
        }


def spend_sums(reader: Reader, who: Principal) -> SpendSums:
    """The parts whose cost does not grow with the number of finished jobs."""
    with reader.locked():
        ledger, seen = reader.ledger, tallies(reader, who).values()
        posted = {name: n for name, n in ledger.spent_by_tenant.items() if who.sees(name)}
        return {
            "posted_microusd": sum(posted.values()),
            "accruing_microusd": sum(each.accruing_microusd for each in seen),
            "microusd_per_hour": sum(each.microusd_per_hour for each in seen),
            "held_microusd": sum(n for name, n in ledger.held_by_tenant.items() if who.sees(name)),
            "by_tenant": posted,
        }


def _months(reader: Reader, who: Principal) -> tuple[dict[str, MonthAnswer], int]:
    """Each team's spend by the end of this month, by the rule of a monthly budget; and when that is."""
    now_s = reader.now_s()
    before_s, since_s, until_s = _months_of(now_s)
    now, last = (dict(each) for each in reader.once(_spent_by_month))
    for (team, _), each in tallies(reader, who).items():
        if each.accruing_microusd:
            now[team] = now.get(team, 0) + each.accruing_microusd
    found: dict[str, MonthAnswer] = {}
    for team in sorted(name for name in {*now, *last} if who.sees(name)):
        spent = now.get(team, 0)
        before = (last[team], since_s - before_s) if team in last else None
        per_s = pace(spent, elapsed_s=now_s - since_s, before=before)
        expected = spent + round(per_s * (until_s - now_s))
        found[team] = {"spent_microusd": spent, "expected_microusd": expected}
    return found, until_s


def _months_of(now_s: int) -> tuple[int, int, int]:
    """When the last month and this one began (UTC), and when this one ends."""
    since_s, until_s = period_at(now_s, "monthly", "UTC")
    assert until_s is not None, "a month ends"
    return period_at(since_s - 1, "monthly", "UTC")[0], since_s, until_s


def _spent_by_month(reader: Reader) -> tuple[dict[str, int], dict[str, int]]:
    """By team, in this month so far and in the last."""
    before_s, since_s, _ = _months_of(now_s := reader.now_s())
    sums: list[dict[str, int]] = []
    for start_s, end_s in ((since_s, now_s + 1), (before_s, since_s)):
        total: dict[str, int] = {}
        for at_s in range(start_s, end_s, DAY_S):
            for team, microusd in reader.days.of(day_of(at_s), "team").items():
                total[team] = total.get(team, 0) + microusd
        sums.append(total)
    return sums[0], sums[1]


def spend_days_view(reader: Reader, who: Principal, *, by: str, days: int) -> SpendDaysAnswer:
    """What each of the last days cost, also those that cost nothing."""
    with reader.locked():
        now_s = reader.now_s()
        found = [
            (day := day_of(now_s - back * DAY_S), reader.days.of(day, by, who.sees))
            for back in range(days - 1, -1, -1)
        ]
    total: dict[str, int] = {}
    for _, spent in found:
        for name, microusd in spent.items():
            total[name] = total.get(name, 0) + microusd
    return {
        "by": by,
        "days": [{"day": day, "microusd": sum(spent.values()), "of": spent} for day, spent in found],
        "total": dict(sorted(total.items(), key=lambda each: (-each[1], each[0]))),
    }


def _budgets_now(reader: Reader) -> tuple[dict[str, int], dict[str, int]]:
    """By budget: what is left and what is used, with running leases counted up to this second."""
    fleet, now_s = reader.fleet, reader.now_s()
    return Money(fleet, now_s=now_s).left, used_microusd(fleet, now_s=now_s)


def _sees_account(reader: Reader, who: Principal, account: str) -> bool:
    kind, _, name = account.partition(":")
    if kind == "hold":
        state = reader.fleet.jobs.get(name)
        return state is not None and who.sees(state.job.tenant)
    if kind == "reservation":
        return _sees_reservation(reader, who, name)
    return kind in ("tenant", "credit") and who.sees(name)


def _sees_reservation(reader: Reader, who: Principal, name: str) -> bool:
    found = reader.fleet.reservations.find(name)
    return found is not None and who.sees(found.tenant)


def _transfers(reader: Reader, who: Principal) -> Iterator[TransferAnswer]:
    for t in islice(reversed(reader.ledger.transfers), TRANSFERS_LOOKED_AT):
        state = reader.fleet.jobs.get(t.job)
        is_seen = who.sees_all or (state is not None and who.sees(state.job.tenant))
        # A lease that never started is posted with zero: true, but not worth a line.
        if not t.microusd or not (is_seen or _sees_reservation(reader, who, t.reservation)):
            continue
        yield alike(TransferAnswer, t)


def budgets_view(reader: Reader, who: Principal, *named: str) -> list[BudgetAnswer]:
    """Every tenant that has a budget or has spent anything, and the named ones."""
    with reader.locked():
        ledger, now_s, budgets = reader.ledger, reader.now_s(), reader.fleet.purses.budgets
        left, used = reader.once(_budgets_now)
        names = {*budgets, *ledger.spent_by_tenant, *named}
        accrued = reader.once(Reader.accrued_microusd)
        return [
            {
                "tenant": name,
                "left_microusd": None if name not in left else max(0, left[name]),
                "accruing_microusd": accrued.get(name, 0),
                "held_microusd": ledger.held_by_tenant.get(name, 0),
                "spent_microusd": ledger.spent_by_tenant.get(name, 0),
                "budget": _budget(budgets[name], used[name], now_s) if name in used else None,
            }
            for name in sorted(names)
            if who.sees(name.partition("/")[0])
        ]


def _budget(budget: Budget, used: int, now_s: int) -> BudgetTermsAnswer:
    """For a renewing budget also the projected spending at the end of its period, at the pace so far."""
    found = alike(BudgetTermsAnswer, budget)
    found["used_microusd"] = used
    found["expected_microusd"] = found["runs_out_s"] = None
    if budget.until_s is None:
        return found
    last = budget.last_spent_microusd
    before = None if last is None else (last, budget.last_s)
    per_s = pace(used, elapsed_s=now_s - budget.since_s, before=before)
    found["expected_microusd"] = expected = used + round(per_s * max(0, budget.until_s - now_s))
    if expected > budget.allowed_microusd and per_s:
        found["runs_out_s"] = now_s + max(0, int((budget.allowed_microusd - used) / per_s))
    return found


def prices_view(reader: Reader, *, since_s: int | None = None) -> list[PoolPriceAnswer]:
    """Every pool with its current price; market pools with their depth, and with history on request.

    Depth says how many GPUs are wanted at which limit, but not by whom.
    """
    with reader.locked():
        fleet, prices = reader.fleet, reader.prices()
        return [
            {
                **alike(PoolPriceAnswer, pool, index),
                "market": (is_market := reader.market is not None and reader.market.covers(pool)),
                "microusd_per_gpu_hour": prices[pool],
                "cleared_microusd_per_gpu_hour": (
                    fleet.prices[pool].last.cleared_microusd_per_gpu_hour
                    if is_market and pool in fleet.prices
                    else prices[pool]
                ),
                "floor_microusd_per_gpu_hour": reader.floor_microusd(pool),
                "depth": list(depth_of(reader, pool)) if is_market else [],
                "history": _history(reader, pool, since_s) if is_market and since_s is not None else [],
                "ahead": _ahead(reader, pool),
            }
            for pool, index in sorted(fleet.capacity.pools.items())
        ]


def depth_of(reader: Reader, pool: Pool) -> Iterator[DepthAnswer]:
    """Steps of limits, highest first."""
    fleet, floor = reader.fleet, reader.floor_microusd(pool)
    asked: dict[int, list[int]] = {}  # limit -> GPUs held, additional GPUs wanted
    for lease in fleet.leases_at.get(pool.site, {}).values():
        node = fleet.nodes.get(lease.node)
        is_bid = lease.phase != "ending" and not lease.reservation
        if is_bid and node is not None and node.pool == pool:
            asked.setdefault(limit_of(fleet.jobs[lease.job].job, floor=floor), [0, 0])[0] += lease.size
    for state in fleet.waiting.values():
        if state.job.gpus and pool in fleet.able_pools(state.shape):
            asked.setdefault(limit_of(state.job, floor=floor), [0, 0])[1] += state.job.gpus
    for limit in sorted(asked, reverse=True)[:DEPTH_STEPS]:
        held, wanted = asked[limit]
        yield {"limit_microusd_per_gpu_hour": limit, "held": held, "wanted": wanted}


def _ahead(reader: Reader, pool: Pool) -> list[QuoteAnswer]:
    line = reader.fleet.tariffs.get(pool)
    hour, posted = reader.now_s() // HOUR_S, reader.fleet.posted_prices().get(pool, 0)
    hours = [] if line is None else [h for h in sorted(line.permille) if h >= hour]
    return [
        {"at_s": h * HOUR_S, "microusd_per_gpu_hour": priced(reader.fleet, pool, posted, at_s=h * HOUR_S)}
        for h in hours
    ]


def _history(reader: Reader, pool: Pool, since_s: int) -> list[PricePointAnswer]:
    """From then on, the first value as of then; thinned to what a chart can show."""
    line = reader.fleet.prices.get(pool)
    if line is None:
        return []
    points = line.points
    first = max((i for i, point in enumerate(points) if point.at_s <= since_s), default=0)
    return [alike(PricePointAnswer, each) for each in thinned(points[first:], HISTORY_POINTS)]


def thinned(points: list[PoolPriced], most: int) -> list[PoolPriced]:
    """The last of each of `most` equal stretches of time, and the first of all."""
    if len(points) <= most:
        return points
    start_s, span_s = points[0].at_s, max(1, points[-1].at_s - points[0].at_s)
    kept = {(point.at_s - start_s) * most // span_s: point for point in points}
    return [points[0], *kept.values()] if points[0] not in kept.values() else list(kept.values())


class Bills:
    """The invoice of a server. Bills by job are not in memory until somebody asks: then the log is folded
    once, and after that only what is new."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._fold, self._jobs = Invoices(), Sums("job")
        self._seq = 0

    def view(
        self, who: Principal, *, by: str, tenant: str | None = None, month: str | None = None
    ) -> InvoiceAnswer:
        """For all teams that the caller may see, or for this one; of one month, or since the first job."""

        def is_wanted(team: str) -> bool:
            return who.sees(team) and tenant in (None, team)

        if by == "job":
            with self._lock:
                while events := self._reader.store.since(self._seq):
                    for event in events:
                        self._jobs.add(self._fold.apply(event))
                    self._seq += len(events)
                made = self._jobs.bills(by, is_wanted, month=month)
                months = self._jobs.months(by, is_wanted)
        else:
            with self._reader.locked():
                made = self._reader.bills.bills(by, is_wanted, month=month)
                months = self._reader.bills.months(by, is_wanted)
        return {
            "by": by,
            "month": month,
            "months": months,
            "bills": [alike(BillAnswer, bill) for bill in made],
            "total_microusd": sum(bill.microusd for bill in made),
        }
