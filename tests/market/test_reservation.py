"""Reservations by themselves: what they cost, what comes back, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brimful.errors import BadInput, BrimfulError, NotFound, Refused
from brimful.fleet.events import (
    BudgetSet,
    BudgetsRenewed,
    CreditsExpired,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    NodeLeft,
    PoolPriced,
    ReservationEnded,
    ReservedLent,
    from_record,
    to_record,
)
from brimful.fleet.node import Node, Pool, Tier
from brimful.fleet.state import Fleet
from brimful.market.invoice import Invoices
from brimful.market.ledger import Ledger
from brimful.market.pools import Market, ReserveTerms, read_reserve_terms
from brimful.market.reservation import (
    buy,
    extend,
    give_back,
    pause,
    quote,
    quote_extension,
    resume,
    spendable_microusd,
)
from brimful.scheduler.placing.reserved import due_events
from brimful.units import DAY_S, HOUR_S
from tests.builders import a_job, granted

USD = 1_000_000
POOL = Pool("here", "h100")
MARKET = Market()
UNIT = 1_200_000  # the floor of a dollar and the premium


class Books:
    """A fleet and a ledger that see the same log."""

    def __init__(self, *, gpus: int = 8, owner: str = "", tier: Tier = "owned", floor: int = USD) -> None:
        self.fleet, self.ledger, self.log = Fleet(), Ledger(), list[Event]()
        node = Node(
            site="here",
            node="n",
            gpu="h100",
            gpus=gpus,
            microusd_per_gpu_hour=floor,
            declared=True,
            owner=owner,
            tier=tier,
        )
        self.node = node
        self.write(NodeJoined.of(node, at_s=0))

    def write(self, *events: Event) -> None:
        for event in events:
            again = from_record(*to_record(event))
            self.log.append(again)
            self.fleet.apply(again)
            self.ledger.apply(again)
            assert sum(self.ledger.balances.values()) == 0
            assert self.fleet.reservations == self.ledger.reservations

    def buy(self, *, gpus: int = 4, hours: int = 10, now_s: int = 0, start_s: int | None = None) -> str:
        offered = quote(self.fleet, MARKET, POOL, gpus=gpus, hours=hours, now_s=now_s, start_s=start_s)
        bought = buy(self.fleet, offered, MARKET.reserve, tenant="ann", now_s=now_s)
        self.write(bought)
        return bought.reservation

    def pause(self, name: str, *, at_s: int, gpus: int | None = None) -> None:
        self.write(pause(self.fleet, name, gpus=gpus, now_s=at_s))

    def resume(self, name: str, *, at_s: int, gpus: int | None = None) -> None:
        self.write(resume(self.fleet, name, gpus=gpus, now_s=at_s))

    def give_back(self, name: str, *, at_s: int, gpus: int | None = None) -> None:
        self.write(give_back(self.fleet, name, gpus=gpus, now_s=at_s))

    def credit(self) -> int:
        return self.ledger.balance("credit:ann")


def refusal(act: object, *, code: str, kind: type[BrimfulError] = Refused) -> None:
    assert callable(act)
    with pytest.raises(kind) as caught:
        act()
    assert caught.value.code == code or str(caught.value.said.as_dict()["code"]) == code


def test_a_window_is_paid_up_front_and_posted_when_it_is_over() -> None:
    books = Books()
    books.write(BudgetSet(at_s=0, tenant="ann", microusd=100 * USD))
    name = books.buy(gpus=4, hours=10)
    assert books.ledger.balance(f"reservation:{name}") == UNIT * 40 == 48 * USD
    assert books.fleet.purses.budgets["ann"].left_microusd == books.ledger.balance("budget:ann") == 52 * USD
    books.write(ReservationEnded(at_s=10 * HOUR_S, reservation=name))
    assert books.ledger.balance("site:here") == 48 * USD
    assert f"reservation:{name}" not in books.ledger.balances
    assert books.ledger.spent_by_tenant == {"ann": 48 * USD}


def test_a_window_that_is_over_is_on_the_invoice_and_says_what_was_idle() -> None:
    books, invoices = Books(), Invoices()
    name = books.buy(gpus=4, hours=10)
    books.give_back(name, at_s=5 * HOUR_S, gpus=2)
    books.write(ReservationEnded(at_s=10 * HOUR_S, reservation=name))
    (line,) = [line for event in books.log for line in invoices.apply(event)]
    assert (line.team, line.job, line.gpu_s) == ("ann", name, 30 * HOUR_S)
    assert line.microusd == line.idle_microusd == 40 * UNIT - 10 * UNIT // 2
    assert line.microusd == books.ledger.balance("site:here")


def test_a_pause_of_an_hour_earns_and_a_shorter_one_does_not() -> None:
    books = Books()
    name = books.buy()
    books.pause(name, at_s=0)
    books.resume(name, at_s=HOUR_S - 1)
    assert books.credit() == 0
    books.pause(name, at_s=2 * HOUR_S, gpus=2)
    books.resume(name, at_s=3 * HOUR_S)
    assert books.credit() == UNIT // 4 * 2  # a quarter of the price, two GPUs, an hour


def test_the_newest_pause_ends_first_and_nothing_is_credited_beyond_the_window() -> None:
    books = Books()
    name = books.buy(gpus=2, hours=4)
    books.pause(name, at_s=0, gpus=1)
    books.pause(name, at_s=2 * HOUR_S, gpus=1)
    books.resume(name, at_s=int(2.5 * HOUR_S), gpus=1)
    assert books.credit() == 0, "that one was paused for half an hour"
    books.write(ReservationEnded(at_s=9 * HOUR_S, reservation=name))  # nobody looked for five hours
    assert books.credit() == UNIT // 4 * 4


def test_a_return_gives_more_for_the_rest_and_no_hour_is_credited_twice() -> None:
    books = Books()
    name = books.buy(gpus=4, hours=10)
    books.pause(name, at_s=0)
    books.give_back(name, at_s=4 * HOUR_S, gpus=3)
    assert books.credit() == 3 * (UNIT // 4 * 4 + UNIT // 2 * 6)
    books.give_back(name, at_s=6 * HOUR_S)
    assert books.credit() == 3 * (UNIT // 4 * 4 + UNIT // 2 * 6) + UNIT // 4 * 6 + UNIT // 2 * 4
    assert name not in books.fleet.reservations.by_name, "nothing is left of it"
    assert books.credit() + books.ledger.balance("site:here") == UNIT * 40
    refusal(lambda: books.give_back(name, at_s=6 * HOUR_S), code="market.no_reservation", kind=NotFound)


def test_a_credit_that_pays_and_comes_back_lasts_no_longer_than_before() -> None:
    books = Books()
    books.write(BudgetSet(at_s=0, tenant="ann", microusd=14_400_000))
    books.give_back(books.buy(gpus=1, hours=10), at_s=0)  # 12.00 from the purse; 6.00 of it is credit now
    first_s, later_s = MARKET.reserve.credit_s, 30 * DAY_S
    assert [(each.microusd, each.expires_s) for each in books.fleet.reservations.credits["ann"]] == [
        (6 * USD, first_s)
    ]
    name = books.buy(gpus=2, hours=10 // 3, now_s=later_s)  # 7.20: the credit and 1.20 from the purse
    books.give_back(name, at_s=later_s)
    assert [(each.microusd, each.expires_s) for each in books.fleet.reservations.credits["ann"]] == [
        (2_400_000, first_s),
        (1_200_000, later_s + first_s),
    ]
    last = books.buy(gpus=1, hours=2, start_s=first_s - HOUR_S, now_s=first_s - HOUR_S)
    books.write(CreditsExpired(at_s=first_s, tenant="ann"))
    books.give_back(last, at_s=first_s)  # what paid for it has expired meanwhile
    books.write(*due_events(books.fleet, now_s=first_s))
    assert books.credit() == 1_200_000


def test_an_hour_without_nodes_comes_back_as_new_credit_whatever_paid_for_it() -> None:
    books = Books()
    books.give_back(books.buy(gpus=4, hours=10), at_s=0)
    books.buy(gpus=4, hours=5, now_s=DAY_S)  # all of it out of credit
    books.write(NodeLeft(at_s=DAY_S, node="n"))
    books.write(*due_events(books.fleet, now_s=DAY_S))
    books.write(*due_events(books.fleet, now_s=DAY_S + 5 * HOUR_S))
    (credit,) = books.fleet.reservations.credits["ann"]
    assert (credit.microusd, credit.expires_s) == (20 * UNIT, DAY_S + 5 * HOUR_S + MARKET.reserve.credit_s)


def test_what_runs_in_another_team_draws_on_its_own_budget_before_the_shared_one() -> None:
    books = Books()
    books.write(BudgetSet(at_s=0, tenant="acme", microusd=20 * USD))
    for team in ("red", "ann"):
        books.write(BudgetSet(at_s=0, tenant=team, microusd=5 * USD, hard=False, within="acme"))
    books.write(JobSubmitted(at_s=0, job=a_job("reds", gpus=2, tenant="red")))
    books.write(granted("reds", node="n", gpus=(0, 1)), LeaseStarted(at_s=0, lease="reds.1"))  # $4 an hour
    assert spendable_microusd(books.fleet, "ann", now_s=HOUR_S) == 15 * USD  # five of its own, ten of acme's
    assert (
        spendable_microusd(books.fleet, "ann", now_s=3 * HOUR_S // 2) == 14 * USD
    )  # red has used one of acme's


def test_credits_pay_for_the_next_window_first_and_expire() -> None:
    books = Books()
    books.write(BudgetSet(at_s=0, tenant="ann", microusd=12 * USD))
    name = books.buy(gpus=1, hours=10)
    books.give_back(name, at_s=0)
    assert books.credit() == 6 * USD
    second = books.buy(gpus=1, hours=4)  # 4.80, all of it out of credit
    assert (books.credit(), books.fleet.purses.budgets["ann"].left_microusd) == (1_200_000, 0)
    assert books.ledger.balance(f"reservation:{second}") == 4_800_000
    late_s = MARKET.reserve.credit_s
    refusal(lambda: books.buy(gpus=1, hours=1, now_s=late_s), code="budget_too_small")
    books.write(CreditsExpired(at_s=late_s, tenant="ann"))
    assert (books.credit(), books.ledger.balance("operator:credits")) == (0, 1_200_000)
    assert not books.fleet.reservations.credits


def test_an_extension_costs_the_price_of_now_and_only_its_own_hours() -> None:
    books = Books()
    name = books.buy(gpus=2, hours=2)
    books.give_back(name, at_s=0, gpus=1)
    dearer = PoolPriced(
        at_s=0,
        **POOL._asdict(),
        microusd_per_gpu_hour=2 * USD,
        cleared_microusd_per_gpu_hour=2 * USD,
        held=0,
        wanted=0,
        gpus=8,
    )
    books.write(dearer)
    offered = quote_extension(books.fleet, MARKET, name, hours=3, now_s=HOUR_S)
    assert (offered.gpus, offered.microusd_per_gpu_hour, offered.end_s) == (1, 2 * UNIT, 5 * HOUR_S)
    before = books.credit()
    bought = extend(books.fleet, name, offered, now_s=HOUR_S)
    books.write(bought)
    assert bought.paid_microusd == 6 * UNIT
    assert bought.credit_microusd == before
    books.pause(name, at_s=HOUR_S)
    books.write(ReservationEnded(at_s=5 * HOUR_S, reservation=name))
    assert books.credit() == UNIT // 4 + 3 * (2 * UNIT // 4), "each hour at the price it was bought for"


def test_hours_in_which_nodes_are_gone_are_refunded_once() -> None:
    """Of what is idle: who paused is paid for the pause, and who returned for the rest of the window."""
    books = Books()
    first, second = books.buy(gpus=5), books.buy(gpus=3)
    books.pause(second, at_s=0, gpus=1)
    books.write(NodeLeft(at_s=2 * HOUR_S, node="n"))
    books.write(*due_events(books.fleet, now_s=2 * HOUR_S))
    assert [each.short for each in books.fleet.reservations.by_name.values()] == [5, 3]
    books.give_back(first, at_s=3 * HOUR_S, gpus=1)
    books.write(NodeJoined.of(books.node, at_s=5 * HOUR_S))
    books.write(*due_events(books.fleet, now_s=5 * HOUR_S))
    assert [each.short for each in books.fleet.reservations.by_name.values()] == [0, 0]
    books.write(*due_events(books.fleet, now_s=10 * HOUR_S))
    ended = books.ledger.reservations.ended
    assert ended[first].refund_microusd == (5 + 4 + 4) * UNIT
    assert ended[second].refund_microusd == 2 * 3 * UNIT
    assert ended[second].pause_credit_microusd == 10 * UNIT // 4
    for each in ended.values():
        assert each.credits_microusd <= each.paid_microusd
        assert books.ledger.balance(f"reservation:{each.reservation}") == 0
    assert books.credit() == sum(each.credits_microusd for each in ended.values())


def test_a_window_across_the_change_of_clocks_has_as_many_hours_as_were_paid() -> None:
    """Hours are counted in UTC: a night in which the clocks change is neither shorter nor longer."""
    books, start_s = Books(), 1_792_886_400  # 2026-10-24 22:00 in Paris; the clocks go back at night
    name = books.buy(gpus=1, hours=12, now_s=start_s)
    books.pause(name, at_s=start_s)
    books.write(ReservationEnded(at_s=start_s + 12 * HOUR_S, reservation=name))
    assert books.credit() == 12 * (UNIT // 4)


def test_a_clock_that_is_set_back_earns_nothing() -> None:
    books = Books()
    name = books.buy(now_s=10 * HOUR_S)
    books.pause(name, at_s=12 * HOUR_S)
    books.resume(name, at_s=11 * HOUR_S)
    books.pause(name, at_s=11 * HOUR_S)
    books.resume(name, at_s=12 * HOUR_S + 1800)
    assert books.credit() == 0
    found = books.fleet.reservations.by_name[name]
    assert (found.idle_gpu_s, found.paused_gpu_s) == (4 * 2 * HOUR_S, 4 * 1800)


def test_no_more_is_sold_than_there_is_at_any_moment() -> None:
    books = Books(gpus=8)
    books.buy(gpus=4, hours=4, start_s=2 * HOUR_S)
    books.buy(gpus=4, hours=4, start_s=5 * HOUR_S)
    refusal(lambda: books.buy(gpus=1, hours=10), code="not_enough_gpus")  # from 5 to 6 all are sold
    books.buy(gpus=4, hours=5)
    books.buy(gpus=4, hours=2)
    refusal(lambda: books.buy(gpus=1, hours=1), code="not_enough_gpus")


@pytest.mark.parametrize(("gpus", "hours"), [(0, 1), (-1, 1), (1, 0), (1, -5)])
def test_a_window_of_nothing_is_refused(gpus: int, hours: int) -> None:
    refusal(lambda: Books().buy(gpus=gpus, hours=hours), code="market.reserve_counts", kind=BadInput)


def test_what_cannot_be_reserved_is_refused_with_its_reason() -> None:
    books = Books()
    refusal(lambda: books.buy(hours=337), code="too_long")
    refusal(lambda: books.buy(start_s=10**9), code="too_far_ahead")
    for sold, market in ((Books(owner="eve"), MARKET), (Books(tier="spot"), MARKET)):
        pool = next(iter(sold.fleet.capacity.pools))
        code = "not_reservable"
        refusal(lambda s=sold, m=market, p=pool: quote(s.fleet, m, p, gpus=1, hours=1, now_s=0), code=code)
    refusal(lambda: quote(books.fleet, None, POOL, gpus=1, hours=1, now_s=0), code="queue_pool")
    nowhere = Pool("here", "a100")
    kind, code = NotFound, "market.reserve_no_pool"
    refusal(lambda: quote(books.fleet, MARKET, nowhere, gpus=1, hours=1, now_s=0), code=code, kind=kind)


def test_a_pool_without_a_price_is_not_given_away() -> None:
    books = Books(floor=0)
    refusal(books.buy, code="no_price")
    books.write(
        PoolPriced(
            at_s=0,
            **POOL._asdict(),
            microusd_per_gpu_hour=USD,
            cleared_microusd_per_gpu_hour=USD,
            held=8,
            wanted=9,
            gpus=8,
        )
    )
    assert books.fleet.reservations.find(books.buy(now_s=60)) is not None


def test_a_quote_that_moved_charges_nobody() -> None:
    books = Books()
    offered = quote(books.fleet, MARKET, POOL, gpus=1, hours=1, now_s=0)
    refusal(
        lambda: buy(books.fleet, offered, MARKET.reserve, tenant="ann", now_s=0, at_most=UNIT - 1),
        code="price_moved",
    )


def test_more_than_is_paused_is_not_resumed_and_more_than_is_unused_not_paused() -> None:
    books = Books()
    name = books.buy(gpus=4)
    books.pause(name, at_s=0, gpus=3)
    refusal(lambda: books.pause(name, at_s=0, gpus=2), code="reserve_in_use")
    refusal(lambda: books.resume(name, at_s=0, gpus=4), code="reserve_not_paused")
    refusal(lambda: books.give_back(name, at_s=0, gpus=5), code="reserve_in_use")
    refusal(lambda: books.pause(name, at_s=0, gpus=-1), code="market.reserve_counts", kind=BadInput)
    refusal(lambda: books.pause(name, at_s=11 * HOUR_S), code="market.no_reservation", kind=NotFound)


def priced(at_s: int, usd: int, *, cleared: int | None = None) -> PoolPriced:
    return PoolPriced(
        at_s=at_s,
        **POOL._asdict(),
        microusd_per_gpu_hour=usd * USD,
        cleared_microusd_per_gpu_hour=(usd if cleared is None else cleared) * USD,
        held=0,
        wanted=0,
        gpus=8,
    )


def test_the_price_is_that_of_the_last_week_and_at_least_the_floor() -> None:
    books = Books()
    books.write(priced(0, 9), priced(7 * 86400, 2), priced(10 * 86400, 4))
    now_s = 14 * 86400
    offered = quote(books.fleet, MARKET, POOL, gpus=1, hours=1, now_s=now_s, start_s=now_s + 2 * DAY_S)
    assert offered.microusd_per_gpu_hour == 3_771_429  # (3 days at 2 and 4 at 4) / 7, and a fifth


def test_nobody_earns_by_buying_while_the_pool_is_dear_and_lending_at_once() -> None:
    """Three quarters of what borrowers pay and the pause credit are less than the window costs."""
    books = Books()
    books.write(priced(0, 1), priced(DAY_S, 4, cleared=5))
    soon = quote(books.fleet, MARKET, POOL, gpus=8, hours=3, now_s=DAY_S)
    lent = soon.share_permille * 5 * USD // 1000
    assert lent + soon.pause_microusd_per_gpu_hour <= soon.microusd_per_gpu_hour
    later = quote(books.fleet, MARKET, POOL, gpus=8, hours=3, now_s=DAY_S, start_s=2 * DAY_S)
    assert later.microusd_per_gpu_hour == UNIT


def test_a_quota_is_free_and_what_it_earns_is_added_to_the_budget_of_its_owner() -> None:
    books = Books()
    ann = BudgetSet(at_s=0, tenant="ann", microusd=10 * USD)
    books.write(ann, replace(ann, tenant="bob", microusd=100 * USD), priced(0, 2))
    offered = quote(books.fleet, MARKET, POOL, gpus=4, hours=2000, now_s=0, granted=True)
    quota = buy(books.fleet, offered, MARKET.reserve, tenant="ann", now_s=0)
    assert quota.granted
    assert quota.paid_microusd == offered.total_microusd == 0
    books.write(quota)
    books.pause("r1", at_s=0)
    books.write(ReservedLent(at_s=0, **POOL._asdict(), gpus=8, lent=(("r1", 4),)))
    borrower = replace(granted("reds", node="n", gpus=(0, 1, 2, 3)), microusd_per_gpu_hour=2 * USD)
    books.write(JobSubmitted(at_s=0, job=a_job("reds", gpus=4, tenant="bob")), borrower)
    books.write(LeaseStarted(at_s=0, lease="reds.1"), LeaseEnded(at_s=HOUR_S, lease="reds.1", exit_code=0))
    purses = books.fleet.purses.budgets
    assert purses["bob"].left_microusd == 92 * USD
    assert purses["ann"].left_microusd == 13 * USD  # half of the supply was its own: 3/4 of half of 8 tokens
    assert books.ledger.balance("budget:ann") == 13 * USD
    assert books.ledger.balance("site:here") == 5 * USD
    books.resume("r1", at_s=2 * HOUR_S)
    assert books.credit() == 0, "nothing was paid for it, so its pause earns nothing by itself"
    more = quote_extension(books.fleet, MARKET, "r1", hours=500, now_s=0)
    assert (more.granted, more.total_microusd) == (True, 0)
    books.write(extend(books.fleet, "r1", more, now_s=3 * HOUR_S))
    books.give_back("r1", at_s=4 * HOUR_S)
    assert purses["ann"].left_microusd == 13 * USD


def test_what_a_quota_earned_lapses_with_the_period_of_the_budget() -> None:
    books = Books()
    month = BudgetSet(at_s=0, tenant="ann", microusd=10 * USD, period="monthly", until_s=30 * DAY_S)
    books.write(month)
    books.fleet.purses.credit("ann", 3 * USD)
    assert books.fleet.purses.budgets["ann"].left_microusd == 13 * USD
    renewed = BudgetsRenewed(at_s=30 * DAY_S, since_s=30 * DAY_S, budgets=(("ann", 60 * DAY_S),))
    books.fleet.apply(renewed)
    assert books.fleet.purses.budgets["ann"].left_microusd == 10 * USD


def test_quotas_and_windows_share_the_pool() -> None:
    """A quota is no promise beyond the GPUs there are, and takes none that is sold."""
    books = Books()
    books.buy(gpus=5, hours=10)
    for granted_ in (True, False):
        refusal(
            lambda free=granted_: quote(books.fleet, MARKET, POOL, gpus=4, hours=10, now_s=0, granted=free),
            code="not_enough_gpus",
        )
    assert quote(books.fleet, MARKET, POOL, gpus=3, hours=9000, now_s=0, granted=True).free_gpus == 3
    refusal(lambda: quote(books.fleet, MARKET, POOL, gpus=3, hours=9000, now_s=0), code="too_long")


def test_the_operator_sets_the_terms_and_the_rest_keep_their_defaults() -> None:
    assert read_reserve_terms("") == ReserveTerms()
    defaults = "premium=20% pause=25% return=50% share=75% idle=15m credit=182d longest=336h ahead=28d"
    assert read_reserve_terms(defaults) == ReserveTerms()
    terms = read_reserve_terms("premium=30% idle=1m")
    assert (terms.premium_permille, terms.idle_s, terms.share_permille) == (300, 60, 750)
    for wrong in ("premium", "premium=30", "premium=20m", "return=101%", "gift=1%", "idle=0m", "pause=-1%"):
        with pytest.raises(BadInput):
            read_reserve_terms(wrong)


def test_terms_with_which_a_paused_and_lent_window_pays_for_itself_are_refused() -> None:
    read_reserve_terms("premium=0% pause=25% share=75%")
    for wrong in ("premium=0% pause=26%", "share=100% premium=33%"):
        with pytest.raises(BadInput):
            read_reserve_terms(wrong)
