"""Market pools inside the production `tick`: who holds GPUs, who is told to leave, what it costs them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from brimful.fleet.events import (
    BidChanged,
    BudgetSet,
    CreditGranted,
    Event,
    GangBlocked,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
    NodeJoined,
    NoticeGiven,
    NoticeWithdrawn,
    PoolPriced,
)
from brimful.fleet.state import Fleet, Node, Pool
from brimful.language import say, verbatim
from brimful.market.ledger import Ledger
from brimful.market.pools import Market, floor_of, limit_of
from brimful.market.spot import Terms
from brimful.scheduler.auction import Auctions
from brimful.scheduler.loop import tick
from brimful.scheduler.ports import Ports
from brimful.scheduler.rules import Rules
from brimful.sim.world import Arrival, MemoryStore, Outcome, rehearse
from tests.builders import USD, ScriptedEngine, a_job, a_node, code_of

POOL = Pool("sim", "h100")
TERMS = Terms(notice_s=300, period_s=60, max_wait_s=3600, drain_s=900)
RULES = Rules(grace_s=10)


def nodes(count: int = 1, gpus: int = 8, usd: int = 1) -> list[Node]:
    return [replace(a_node(f"n{i}", gpus=gpus, usd=usd), site="sim") for i in range(count)]


def arrival(job: str, *, at_s: int = 0, gpus: int = 8, work_s: float = 3600, **more: object) -> Arrival:
    made = a_job(job, gpus=gpus, checkpoint_interval_s=0, **more)  # type: ignore[arg-type]
    return Arrival(at_s=at_s, job=made, work_s=work_s)


def run(arrivals: Sequence[Arrival], where: Sequence[Node] | None = None, *, terms: Terms = TERMS) -> Outcome:
    done = rehearse(arrivals, where or nodes(), RULES, market=Market(terms=terms))
    check(done.log)
    return done


def check(log: Sequence[Event]) -> None:
    """What holds after every event: nobody above the limit, one price, sums of zero, purses as accounts."""
    fleet, ledger = Fleet(), Ledger()
    for event in log:
        fleet.apply(event)
        ledger.apply(event)
        assert sum(ledger.balances.values()) == 0
        for tenant, left in {n: b.left_microusd for n, b in fleet.purses.budgets.items()}.items():
            assert left == ledger.balance(f"budget:{tenant}") >= 0
        if isinstance(event, PoolPriced):
            line = fleet.prices[event.pool]
            for lease in fleet.leases_at.get(event.site, {}).values():
                job = fleet.jobs[lease.job].job
                assert lease.line is line
                assert event.microusd_per_gpu_hour <= limit_of(job, floor=floor_of(fleet.nodes.values())), (
                    lease.lease
                )
        if isinstance(event, LeaseGranted):
            pool = fleet.nodes[event.node].pool
            assert event.microusd_per_gpu_hour == fleet.prices[pool].last.microusd_per_gpu_hour
        if isinstance(event, LeaseEnding) and code_of(event.reason) == "scheduler.outbid_short":
            notice_s = fleet.leases[event.lease].notice_s
            assert notice_s is not None
            assert event.at_s >= notice_s  # the whole notice has passed
    for state in fleet.jobs.values():
        owed = sum(lease.cost_microusd(0) for lease in state.leases if lease.ended_s is not None)
        assert ledger.spent_microusd.get(state.job.job, 0) <= owed


def of(log: Sequence[Event], *kinds: type) -> list[Event]:
    return [event for event in log if isinstance(event, kinds)]


def test_an_urgent_bid_evicts_the_cheapest_with_notice_and_the_victim_finishes_later() -> None:
    done = run(
        [
            arrival("cheap", gpus=4, limit_microusd_per_gpu_hour=2 * USD),
            arrival("dear", gpus=4, limit_microusd_per_gpu_hour=3 * USD),
            arrival("urgent", at_s=600, gpus=4, priority="urgent", work_s=1200),  # four times the floor
        ]
    )
    (given,) = of(done.log, NoticeGiven)
    assert isinstance(given, NoticeGiven)
    assert (given.lease, given.at_s, given.until_s) == ("cheap.1", 600, 900)
    assert code_of(given.reason) == "scheduler.outbid_short"
    states = done.fleet.jobs
    assert {name: state.phase for name, state in states.items()} == dict.fromkeys(states, "finished")
    assert states["urgent"].first_start_s == 900
    assert [lease.started_s for lease in states["cheap"].leases] == [0, 2100]
    assert states["cheap"].ended_s == 2100 + 3600 - 900  # what it did before its checkpoint counts
    assert states["dear"].preemptions == 0


def test_what_is_held_and_wanted_is_told_though_the_price_stays() -> None:
    done = run([arrival("short", gpus=2, work_s=600), arrival("long", gpus=1)])
    told = [(event.at_s, event.held, event.wanted) for event in done.log if isinstance(event, PoolPriced)]
    assert told[0] == (0, 3, 3)
    assert [each for each in told if each[0] >= 600] == [(600, 1, 1), (3600, 0, 0)]
    assert {event.microusd_per_gpu_hour for event in done.log if isinstance(event, PoolPriced)} == {USD}


def test_a_notice_is_withdrawn_when_the_price_falls_back() -> None:
    done = run(
        [
            arrival("low", limit_microusd_per_gpu_hour=2 * USD),
            arrival("high", at_s=600, limit_microusd_per_gpu_hour=4 * USD),
        ],
        nodes(2),
    )
    assert not of(done.log, NoticeGiven)  # there is room for both
    fleet = Fleet()
    log = run(
        [
            arrival("low", limit_microusd_per_gpu_hour=2 * USD),
            arrival("other", gpus=8, work_s=700, limit_microusd_per_gpu_hour=3 * USD),
            arrival("high", at_s=600, limit_microusd_per_gpu_hour=4 * USD),
        ],
        nodes(2),
    ).log
    for event in log:
        fleet.apply(event)
    (given,), (back,) = of(log, NoticeGiven), of(log, NoticeWithdrawn)
    assert isinstance(given, NoticeGiven)
    assert isinstance(back, NoticeWithdrawn)
    assert given.lease == back.lease == "low.1"
    assert (given.at_s, back.at_s) == (600, 700)  # `other` ends, and there is room after all
    assert fleet.jobs["low"].preemptions == 0


def test_a_lease_is_billed_at_the_price_of_its_time() -> None:
    done = run(
        [
            arrival("one", gpus=4, work_s=3600, limit_microusd_per_gpu_hour=4 * USD),
            arrival("two", gpus=4, work_s=3600, limit_microusd_per_gpu_hour=4 * USD),
            arrival("loses", at_s=1800, gpus=4, work_s=60, limit_microusd_per_gpu_hour=3 * USD),
        ]
    )
    points = done.fleet.prices[POOL].points
    assert points[0].microusd_per_gpu_hour == USD  # the floor, while there is room
    assert max(point.cleared_microusd_per_gpu_hour for point in points) == 3 * USD
    rising = [each.microusd_per_gpu_hour for each in points if each.microusd_per_gpu_hour > USD]
    assert rising[0] == 1_095_000  # by steps
    assert max(rising) == 3 * USD
    lease = done.fleet.jobs["one"].leases[0]
    assert lease.started_s == 0
    by_hand = sum(
        point.microusd_per_gpu_hour * (min(after.at_s, 3600) - point.at_s)
        for point, after in zip(points, [*points[1:], replace(points[-1], at_s=3600)], strict=True)
        if point.at_s < 3600
    )
    assert lease.final_owed == by_hand * 4 * 1000
    assert done.ledger.spent_microusd["one"] == by_hand * 4 // 3600


def test_a_gang_that_cannot_be_placed_makes_smaller_winners_move() -> None:
    singles = [
        arrival(f"s{i}", gpus=1, work_s=20_000, limit_microusd_per_gpu_hour=(3 if i % 2 else 2) * USD)
        for i in range(16)
    ]
    done = run(
        [*singles, arrival("gang", at_s=600, gpus=8, limit_microusd_per_gpu_hour=5 * USD)],
        nodes(2),
    )
    gang = done.fleet.jobs["gang"]
    assert gang.first_start_s is not None
    assert gang.first_start_s <= 600 + 300 + 60
    dear = [done.fleet.jobs[f"s{i}"] for i in range(1, 16, 2)]
    assert all(state.phase == "finished" for state in dear)


def test_a_blocked_gang_starts_within_the_bounded_wait() -> None:
    """Singles worth more than the gang keep coming; its turn comes all the same."""
    singles = [
        arrival(f"s{i}", at_s=i * 170, gpus=1, work_s=1300, limit_microusd_per_gpu_hour=3 * USD)
        for i in range(80)
    ]
    gang = arrival("gang", at_s=1200, gpus=4, limit_microusd_per_gpu_hour=2 * USD, work_s=600)
    done = run([*singles, gang], nodes(1, gpus=8))
    assert of(done.log, GangBlocked)
    state = done.fleet.jobs["gang"]
    assert state.first_start_s is not None
    assert state.first_start_s - 1200 <= TERMS.max_wait_s


def test_no_money_no_win_and_a_hard_budget_is_never_crossed() -> None:
    done = rehearse(
        [
            arrival("a1", gpus=4, tenant="a", work_s=7200),
            arrival("b1", gpus=4, tenant="b", work_s=1800),
            arrival("a2", at_s=5000, gpus=4, tenant="a", work_s=7200),
        ],
        nodes(),
        RULES,
        market=Market(terms=TERMS),
        before=[
            BudgetSet(at_s=0, tenant="a", microusd=3 * USD),
            CreditGranted(at_s=0, tenant="a", microusd=1),
        ],
    )
    check(done.log)
    assert done.ledger.spent_by_tenant["a"] <= 3 * USD + 1
    assert done.ledger.spent_by_tenant["a"] > 29 * USD // 10
    ended = [event for event in of(done.log, LeaseEnding) if isinstance(event, LeaseEnding)]
    assert ended[0].reason == say("scheduler.tenant_spent", tenant="a")
    assert code_of(done.waits["a2"]) == "scheduler.tenant_lacks.spent"
    assert done.fleet.jobs["b1"].phase == "finished"


def test_two_bids_do_not_win_on_the_same_dollar() -> None:
    """A period at their limits costs 53 and 47 cents: the purse does for one, and the higher bid wins."""
    done = rehearse(
        [
            arrival("low", gpus=4, tenant="a", work_s=600, limit_microusd_per_gpu_hour=7 * USD),
            arrival("high", gpus=4, tenant="a", work_s=600, limit_microusd_per_gpu_hour=8 * USD),
            arrival("other", gpus=4, tenant="b", work_s=600, limit_microusd_per_gpu_hour=2 * USD),
        ],
        nodes(2),
        RULES,
        market=Market(terms=TERMS),
        before=[BudgetSet(at_s=0, tenant="a", microusd=7 * USD // 10)],
    )
    check(done.log)
    granted = [event for event in of(done.log, LeaseGranted) if isinstance(event, LeaseGranted)]
    assert {event.job for event in granted if event.at_s == 0} == {"high", "other"}
    assert done.ledger.spent_by_tenant["a"] <= 7 * USD // 10
    assert code_of(done.waits["low"]) == "scheduler.tenant_lacks.spent"


def test_who_sells_in_a_pool_earns_there_and_may_not_bid_there() -> None:
    where = [replace(each, owner="lab") for each in nodes()]
    done = run(
        [arrival("own", tenant="lab", priority="urgent"), arrival("guest", tenant="other", work_s=3600)],
        where,
    )
    assert done.waits["own"].as_dict()["limit"] == 4 * USD
    assert done.waits["own"].as_dict()["loss"] == {"code": "market.own_supply", "owner": "lab"}
    assert done.ledger.balances == {"tenant:other": -8 * USD, "seller:lab": 8 * USD}


def test_a_clouds_gpus_are_bought_only_when_somebody_pays_their_price() -> None:
    cloud = [replace(each, tier="on_demand", microusd_per_gpu_hour=3 * USD) for each in nodes()]
    done = run(
        [
            arrival("cheap", limit_microusd_per_gpu_hour=2 * USD, work_s=600),
            arrival("dear", at_s=600, limit_microusd_per_gpu_hour=5 * USD, work_s=600),
        ],
        cloud,
    )
    assert done.fleet.jobs["dear"].first_start_s == 600
    lost = {"code": "market.below_price", "limit": 2 * USD, "price": 3 * USD}
    assert done.waits["cheap"].as_dict()["loss"] == lost
    assert done.ledger.balance("site:sim") == 8 * 3 * USD // 6  # ten minutes of eight, and nothing else


def test_random_markets_keep_every_promise() -> None:
    preemptions = 0
    for seed in range(8):
        r = random.Random(seed)
        arrivals = [
            arrival(
                f"j{i}",
                at_s=r.randrange(0, 20_000),
                gpus=r.choice((1, 1, 2, 4, 8)),
                work_s=r.randrange(60, 6000),
                tenant=r.choice("abc"),
                priority=r.choice(("urgent", "normal", "background")),
                limit_microusd_per_gpu_hour=r.choice((None, None, r.randrange(USD, 6 * USD))),
                budget_microusd=r.choice((None, None, r.randrange(USD // 10, 20 * USD))),
                within=r.choice(("node", "any")),
            )
            for i in range(40)
        ]
        done = rehearse(
            arrivals,
            nodes(r.choice((1, 2, 3)), gpus=8),
            RULES,
            market=Market(terms=TERMS),
            before=[BudgetSet(at_s=0, tenant="a", microusd=r.randrange(USD, 100 * USD))],
        )
        check(done.log)
        preemptions += sum(state.preemptions for state in done.fleet.jobs.values())
        for state in done.fleet.jobs.values():
            if state.job.tenant != "a" and state.job.budget_microusd is None:
                assert state.phase == "finished", (seed, state.job, done.waits.get(state.job.job))
        if seed > 1:
            continue
        again = rehearse(
            arrivals,
            list(done.fleet.nodes.values()),
            RULES,
            market=Market(terms=TERMS),
            before=[event for event in done.log if isinstance(event, BudgetSet)],
        )
        assert again.log == done.log
    assert preemptions > 15


def test_a_raised_bid_wins_and_a_class_is_a_preset_bid() -> None:
    fleet = Fleet()
    job = a_job("x", gpus=1, priority="urgent")
    fleet.apply(JobSubmitted(at_s=0, job=job))
    assert limit_of(job, floor=USD) == 4 * USD
    assert limit_of(job, floor=0) == 40_000  # four times a cent, where nothing has a price
    fleet.apply(BidChanged(at_s=5, job="x", limit_microusd_per_gpu_hour=7 * USD))
    assert limit_of(fleet.jobs["x"].job, floor=USD) == 7 * USD
    assert fleet.jobs["x"].serial == 0


def test_who_leaves_on_notice_has_not_failed() -> None:
    fleet = Fleet()
    fleet.apply(NodeJoined.of(a_node(), at_s=0))
    fleet.apply(JobSubmitted(at_s=0, job=a_job("x")))
    fleet.apply(
        LeaseGranted(at_s=0, lease="x.1", job="x", node="node-0", gpus=(0,), microusd_per_gpu_hour=USD)
    )
    fleet.apply(LeaseStarted(at_s=0, lease="x.1"))
    fleet.apply(NoticeGiven(at_s=5, lease="x.1", until_s=305, reason=verbatim("outbid")))
    fleet.apply(LeaseEnded(at_s=9, lease="x.1", exit_code=143, requeue=True))
    assert (fleet.jobs["x"].phase, fleet.jobs["x"].failures, fleet.jobs["x"].preemptions) == ("waiting", 0, 1)


def test_what_was_won_starts_though_somebody_wrote_to_the_log_meanwhile() -> None:
    class Interrupted(MemoryStore):
        """An operator writes what no bid cares for, at the very moment the winner is to start."""

        def append(self, events: Sequence[Event], *, after: int) -> bool:
            kinds = {type(event) for event in events}
            if LeaseGranted in kinds and not any(isinstance(e, CreditGranted) for e in self.log):
                self.log.append(CreditGranted(at_s=2, tenant="else", microusd=1))
            return super().append(events, after=after)

    store, engine, fleet = Interrupted(), ScriptedEngine(a_node(gpus=2, usd=1)), Fleet()
    auctions = Auctions(Market(terms=TERMS))
    ports = Ports(store=store, engines={"here": engine}, market=auctions)
    tick(fleet, ports, RULES, now_s=1)  # the pool has its price before anybody bids
    assert store.append([JobSubmitted(at_s=2, job=a_job("a"))], after=fleet.seq)
    tick(fleet, ports, RULES, now_s=2)
    assert fleet.jobs["a"].phase == "starting"


def test_who_has_won_below_the_bill_is_told_when_the_bill_will_have_fallen() -> None:
    store, engine, fleet = MemoryStore(), ScriptedEngine(a_node(gpus=4, usd=1)), Fleet()
    auctions = Auctions(Market(terms=TERMS))
    ports = Ports(store=store, engines={"here": engine}, market=auctions)
    holder, low = (
        a_job(name, gpus=1, limit_microusd_per_gpu_hour=usd * USD)
        for name, usd in (("holder", 9), ("low", 2))
    )
    tick(fleet, ports, RULES, now_s=0)
    priced = PoolPriced(
        at_s=0,
        **Pool("here", "h100")._asdict(),
        microusd_per_gpu_hour=4 * USD,
        cleared_microusd_per_gpu_hour=4 * USD,
        held=0,
        wanted=1,
        gpus=4,
    )
    assert store.append([priced, JobSubmitted(at_s=1, job=holder)], after=fleet.seq)
    tick(fleet, ports, RULES, now_s=1)
    billed = fleet.prices[Pool("here", "h100")].last.microusd_per_gpu_hour
    assert store.append([JobSubmitted(at_s=2, job=low)], after=fleet.seq)
    tick(fleet, ports, RULES, now_s=2)
    assert billed > 2 * USD
    assert fleet.jobs["low"].phase == "waiting"
    why = auctions.why(fleet.jobs["low"], fleet, now_s=2)
    assert why is not None
    assert code_of(why) == "scheduler.winner_waits_for_price"


def test_a_gang_that_no_node_could_hold_neither_bids_nor_lifts_the_price() -> None:
    done = run(
        [
            arrival("never", gpus=16, limit_microusd_per_gpu_hour=8 * USD),
            arrival("small", gpus=1, limit_microusd_per_gpu_hour=9 * USD, work_s=600),
        ]
    )
    assert {event.microusd_per_gpu_hour for event in done.log if isinstance(event, PoolPriced)} == {USD}
    assert done.fleet.jobs["small"].phase == "finished"
    assert code_of(done.waits["never"]) == "scheduler.too_wide_node"


def test_of_two_equal_bids_the_one_that_loses_least_makes_room() -> None:
    """One saved just now and one never saves: their limits and their age are the same."""
    for first, second in (("saves", "never"), ("never", "saves")):
        every = {"saves": 300, "never": None}
        bids = [
            Arrival(
                at_s=0,
                job=a_job(
                    name, gpus=4, checkpoint_interval_s=every[name], limit_microusd_per_gpu_hour=2 * USD
                ),
                work_s=20_000,
            )
            for name in (first, second)
        ]
        done = run([*bids, arrival("urgent", at_s=7200, gpus=4, priority="urgent", work_s=1200)])
        (given,) = of(done.log, NoticeGiven)[:1]
        assert isinstance(given, NoticeGiven)
        assert given.lease == "saves.1"
