"""Nodes bought from providers: ordered for who pays, used, kept a while, given back; nothing is orphaned."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from brimful.errors import BrimfulError, WorldFailed
from brimful.fleet.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    LeaseEnding,
    NodeGone,
    NodeOrdered,
    NodeReady,
    NodeReturned,
    from_record,
    to_record,
)
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.fleet.state import Fleet
from brimful.language import say
from brimful.market.ledger import Ledger
from brimful.scheduler.cloud.buying import Buying
from brimful.scheduler.cloud.providers import CannotMake, Made
from brimful.scheduler.cloud.trading import _as_node
from brimful.scheduler.loop import tick
from brimful.scheduler.policies import read_policy
from brimful.scheduler.ports import Failures, Ports
from brimful.sim.kernel import Kernel
from brimful.sim.world import Due, MemoryStore, TimedEngine
from brimful.specs.offer import Offer
from tests.builders import USD, a_job, code_of

HOUR = 3600
RULES = read_policy("brim?types=cheap").rules


def an_offer(zone: str = "a", *, usd: float = 1.0, gpus: int = 1, **more: object) -> Offer:
    settings: dict[str, object] = {"is_spot": False, **more}
    return Offer(
        provider="cloud",
        region=zone,
        zone=zone,
        instance=f"x{gpus}",
        gpu="v100",
        gpus=gpus,
        microusd_per_hour=round(usd * USD),
        **settings,  # type: ignore[arg-type]
    )


class FakeCloud:
    """A provider whose world the test writes; it makes what it is asked for unless told to refuse."""

    name, sites = "cloud", ()

    def __init__(self, engines: dict[str, TimedEngine]) -> None:
        self.engines = engines
        self.sells: list[Offer] = []
        self.refuses: dict[str, BrimfulError] = {}  # by site
        self.machines: dict[str, Made] = {}
        self.orders: list[NodeOrdered] = []
        self.made: dict[str, NodeOrdered] = {}
        self.removed: list[str] = []
        self.now_s = self.lead_s = 0
        self.dies_after_make = False

    def offers(self) -> Sequence[Offer]:
        return self.sells

    def make(self, orders: Sequence[NodeOrdered]) -> Failures:
        failed: dict[str, BrimfulError] = {}
        for order in orders:
            self.orders.append(order)
            if order.site in self.refuses:
                failed[order.node] = self.refuses[order.site]
            elif order.node not in self.machines:
                self.machines[order.node] = Made(order.node, "starting", self.now_s)
                self.made[order.node] = order
        if self.dies_after_make:
            raise KeyboardInterrupt
        return failed

    def watch(self) -> Sequence[Made]:
        return list(self.machines.values())

    def remove(self, nodes: Sequence[str]) -> Failures:
        for node in nodes:
            if self.machines.pop(node, None) is not None:
                self.removed.append(node)
                if node in self.made:
                    self.engines[self.made[node].site].fail(node)
        return {}

    def ready(self, *nodes: str) -> None:
        for name in nodes or [n for n, made in self.machines.items() if made.state == "starting"]:
            order = self.made[name]
            self.machines[name] = Made(name, "ready", self.now_s)
            self.engines[order.site].add(
                Node(
                    site=order.site,
                    node=name,
                    gpu=order.gpu,
                    gpus=order.gpus,
                    microusd_per_gpu_hour=order.microusd_per_gpu_hour,
                    declared=True,
                    tier=order.tier,
                )
            )

    def evict(self, node: str) -> None:
        self.machines[node] = Made(node, "gone", self.now_s, say("sim.taken_back", site="a"))
        self.engines[self.made[node].site].fail(node)


class World:
    """`tick`, two sites, one provider."""

    def __init__(self, *jobs: Job, buying: Buying | None = None, sells: Sequence[Offer] = ()) -> None:
        kernel: Kernel[Due] = Kernel()
        work_s = {job.job: job.predicted_work_s or float(HOUR) for job in jobs}
        kept: dict[str, float] = {}
        self.engines = {
            site: TimedEngine([], work_s, kernel, site=site, kept=kept) for site in ("cloud-a", "cloud-b")
        }
        self.cloud = FakeCloud(self.engines)
        self.cloud.sells = list(sells) or [an_offer()]
        self.store, self.buying = MemoryStore(), buying or Buying()
        self.store.append([JobSubmitted(at_s=0, job=job) for job in jobs], after=0)
        self.restart()

    def restart(self) -> None:
        """Another server on the same log."""
        self.fleet = Fleet()
        self.ports = Ports(
            store=self.store, engines=self.engines, providers={"cloud": self.cloud}, buying=self.buying
        )

    def tick(self, now_s: int) -> dict[str, str]:
        """What waits, and why."""
        self.cloud.now_s = now_s
        for engine in self.engines.values():
            engine.now_s = now_s
        plan = tick(self.fleet, self.ports, RULES, now_s=now_s).plan
        return {job: code_of(why) for job, why in plan.waits.items()}

    def happened(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.store.log if isinstance(event, kind)]

    def phase(self, job: str) -> str:
        return self.fleet.jobs[job].phase


def a_buyer(name: str = "job-1", *, usd: float = 2.0, **more: object) -> Job:
    settings: dict[str, Any] = {
        "limit_microusd_per_gpu_hour": round(usd * USD),
        "predicted_work_s": 10.0 * HOUR,
        "checkpoint_interval_s": 600,
        "checkpoint_cost_s": 300,
        **more,
    }
    return a_job(name, **settings)


def test_a_job_that_pays_gets_a_node_made_and_starts_once_it_is_ready() -> None:
    world = World(a_buyer())
    world.tick(0)
    assert [order.site for order in world.cloud.orders] == ["cloud-a"]
    world.tick(60)
    assert world.phase("job-1") == "waiting"
    assert len({order.node for order in world.cloud.orders}) == 1
    world.cloud.ready()
    world.tick(120)
    world.tick(121)
    assert world.phase("job-1") == "running"


def test_a_job_that_found_a_place_meanwhile_is_not_stopped_for_the_node_ordered_for_it() -> None:
    first, second = a_buyer("first"), a_buyer("second")
    world = World(first, second)
    world.tick(0)
    mine, its = (order.node for order in world.cloud.orders)
    world.cloud.ready(mine)
    world.tick(10)
    world.tick(11)
    world.store.append([CancelRequested(at_s=12, job="first")], after=len(world.store.log))
    for now_s in range(12, 20):
        world.tick(now_s)
    (lease,) = world.fleet.jobs["second"].leases
    assert lease.node == mine
    world.cloud.ready(its)
    for now_s in range(20, 30):
        world.tick(now_s)
    assert [lease.phase for lease in world.fleet.jobs["second"].leases] == ["running"]
    assert its in world.cloud.removed, "nobody needs it"


def test_nobody_who_names_no_price_deadline_or_budget_makes_anyone_spend() -> None:
    world = World(a_job("job-1"))
    world.tick(0)
    assert not world.cloud.orders


def test_an_offer_above_the_limit_is_not_bought() -> None:
    world = World(a_buyer(usd=0.9))
    world.tick(0)
    assert not world.cloud.orders


def test_a_gang_gets_all_its_nodes_or_none() -> None:
    gang = a_buyer(gpus=8, within="any")
    world = World(gang, sells=[an_offer(gpus=4, usd=4)], buying=Buying(hourly_microusd=7 * USD))
    world.tick(0)
    assert not world.cloud.orders  # two nodes at $4 cross a cap of $7; one alone would not
    world = World(gang, sells=[an_offer(gpus=4, usd=4)])
    world.tick(0)
    assert [order.gpus for order in world.cloud.orders] == [4, 4]
    first, second = (order.node for order in world.cloud.orders)
    world.cloud.ready(first)
    world.tick(10)
    assert world.phase("job-1") == "waiting"
    world.cloud.ready(second)
    world.tick(20)
    world.tick(21)
    assert world.phase("job-1") == "running"


def test_a_refusal_is_an_answer_and_the_next_region_serves() -> None:
    world = World(a_buyer(), sells=[an_offer("a", usd=1), an_offer("b", usd=1.5)])
    world.cloud.refuses["cloud-a"] = CannotMake(say("sim.no_capacity", site="cloud-a"))
    world.tick(0)
    gone = world.happened(NodeGone)
    assert [(event.cause, code_of(event.reason)) for event in gone] == [("refused", "sim.no_capacity")]  # type: ignore[attr-defined]
    world.tick(1)
    assert [order.site for order in world.cloud.orders] == ["cloud-a", "cloud-b"]


def test_a_provider_that_cannot_be_reached_loses_nothing_and_is_billed_on() -> None:
    world = World(a_buyer())
    world.tick(0)
    world.cloud.ready()
    world.tick(10)

    def broken() -> Sequence[Made]:
        raise WorldFailed(say("sim.no_capacity", site="cloud-a"))

    watch, world.cloud.watch = world.cloud.watch, broken  # type: ignore[method-assign]
    world.tick(20)
    assert not world.happened(NodeGone)
    world.cloud.watch = watch  # type: ignore[method-assign]
    world.tick(30)
    assert world.phase("job-1") == "running"


def test_an_idle_node_is_kept_as_long_as_a_new_one_takes_and_billed_from_ready_to_gone() -> None:
    job = a_buyer(usd=5, predicted_work_s=600.0)
    world = World(job, sells=[an_offer(usd=3.6, lead_s=120)])
    world.tick(0)
    world.cloud.now_s = 120
    world.cloud.ready()
    world.tick(120)
    (lease,) = world.fleet.open_leases
    world.tick(121)
    world.engines["cloud-a"].now_s = 720
    world.engines["cloud-a"].finish(lease)
    world.tick(720)
    assert world.phase("job-1") == "finished"
    world.tick(720 + 119)
    assert not world.happened(NodeReturned)
    world.tick(720 + 120)
    assert len(world.happened(NodeReturned)) == 1
    world.tick(900)
    ledger = Ledger()
    for event in world.store.log:
        ledger.apply(event)
    assert ledger.balance("provider:cloud") == (900 - 120) * 1000
    assert sum(ledger.balances.values()) == 0


def test_nothing_starts_on_a_node_that_is_gone_while_its_engine_still_reports_it() -> None:
    world = World(a_buyer(predicted_work_s=600.0))
    world.tick(0)
    world.cloud.ready()
    world.tick(1)
    (lease,) = world.fleet.open_leases
    engine, (old,) = world.engines["cloud-a"], world.cloud.machines
    engine.now_s = 700
    engine.finish(lease)
    fail, engine.fail = engine.fail, lambda _node: False  # type: ignore[method-assign, assignment]
    world.tick(700)
    world.tick(701)
    assert [event.node for event in world.happened(NodeGone)] == [old]  # type: ignore[attr-defined]
    assert old in world.fleet.nodes
    world.store.append([JobSubmitted(at_s=702, job=a_buyer("job-2"))], after=len(world.store.log))
    world.tick(702)
    world.tick(703)
    assert not world.fleet.jobs["job-2"].leases
    assert world.cloud.orders[-1].job == "job-2"
    fail(old)
    world.tick(704)
    assert not world.fleet.cloud.lingering


def test_what_is_paid_for_by_the_hour_is_kept_to_the_end_of_the_hour() -> None:
    world = World(a_buyer(predicted_work_s=600.0), sells=[an_offer(quantum_s=HOUR)])
    world.tick(0)
    world.cloud.ready()
    world.tick(1)
    (lease,) = world.fleet.open_leases
    world.engines["cloud-a"].now_s = 700
    world.engines["cloud-a"].finish(lease)
    world.tick(700)
    world.tick(HOUR - 10)
    assert not world.happened(NodeReturned)
    world.tick(HOUR)
    assert len(world.happened(NodeReturned)) == 1


def test_a_crash_between_the_order_and_the_provider_repeats_it_once_and_leaves_no_orphan() -> None:
    world = World(a_buyer())
    world.cloud.dies_after_make = True
    with contextlib.suppress(KeyboardInterrupt):
        world.tick(0)
    assert len(world.cloud.machines) == 1
    world.cloud.dies_after_make = False
    world.restart()
    world.tick(10)
    assert len(world.cloud.machines) == 1
    assert len(world.happened(NodeOrdered)) == 1
    world.cloud.ready()
    world.tick(20)
    assert world.phase("job-1") in ("starting", "running")


def test_a_machine_with_our_tag_that_no_log_knows_is_removed() -> None:
    world = World(a_job("job-1"))
    world.cloud.machines["stray"] = Made("stray", "ready", 0)
    world.tick(0)
    assert world.cloud.removed == ["stray"]


def test_an_evicted_job_waits_is_bought_another_node_elsewhere_and_keeps_its_checkpoint() -> None:
    zones = [an_offer("a", usd=1, is_spot=True), an_offer("b", usd=1.2, is_spot=True)]
    world = World(a_buyer(), sells=zones)
    world.tick(0)
    world.cloud.ready()
    world.tick(1)
    world.tick(2)
    (node,) = world.cloud.machines
    world.cloud.now_s = world.engines["cloud-a"].now_s = 2 * HOUR
    world.cloud.evict(node)
    world.tick(2 * HOUR)
    assert world.fleet.jobs["job-1"].kept_work_s > HOUR
    assert world.cloud.orders[-1].site == "cloud-b"  # not straight back, although it is cheaper
    (gone,) = world.happened(NodeGone)
    assert gone.cause == "evicted"  # type: ignore[attr-defined]


def test_a_dry_run_says_what_it_would_buy_and_buys_nothing() -> None:
    world = World(a_buyer(), buying=Buying(dry_run=True))
    waits = world.tick(0)
    assert not world.cloud.orders
    assert waits["job-1"] == "scheduler.would_buy"


def test_the_hourly_cap_holds_and_says_so() -> None:
    world = World(a_buyer("job-1"), a_buyer("job-2"), buying=Buying(hourly_microusd=round(1.5 * USD)))
    waits = world.tick(0)
    assert len(world.cloud.orders) == 1
    assert waits["job-2"] == "scheduler.over_hourly_cap"


def test_a_provider_at_its_own_cap_sells_no_more_and_gives_back_when_it_is_lowered() -> None:
    world = World(a_buyer("job-1"), a_buyer("job-2"), buying=Buying(hourly_of={"cloud": round(1.5 * USD)}))
    waits = world.tick(0)
    assert len(world.cloud.orders) == 1
    assert waits["job-2"] == "scheduler.over_provider_cap"
    world.ports = replace(world.ports, buying=Buying(hourly_of={"cloud": 0, "another": USD}))
    world.cloud.ready()
    world.tick(1)  # the lease that begins there is told to stop at the next look
    world.tick(2)
    assert [each.node for each in world.happened(NodeReturned)] == [world.cloud.orders[0].node]  # type: ignore[attr-defined]


def test_a_running_job_moves_when_the_rest_is_clearly_cheaper_and_the_sum_is_told() -> None:
    job = a_buyer(usd=5, predicted_work_s=40.0 * HOUR, checkpoint_interval_s=0)
    world = World(job, sells=[an_offer("a", usd=3), an_offer("b", usd=3.1)])
    world.tick(0)
    world.cloud.ready()
    world.tick(1)
    world.tick(2)
    world.cloud.sells = [an_offer("a", usd=3), an_offer("b", usd=2.99)]
    world.tick(2 * HOUR)
    assert len(world.cloud.orders) == 1  # 38 cents over the rest do not pay for a restart
    world.cloud.sells = [an_offer("a", usd=3), an_offer("b", usd=1)]
    world.tick(2 * HOUR + 600)
    assert world.cloud.orders[-1].site == "cloud-b"
    assert world.phase("job-1") == "running"  # it works on while the other node is made
    world.cloud.ready()
    world.tick(2 * HOUR + 700)
    (ending,) = world.happened(LeaseEnding)
    assert code_of(ending.reason) == "scheduler.moves_for_money"  # type: ignore[attr-defined]
    world.tick(2 * HOUR + 701)
    world.tick(2 * HOUR + 702)
    assert world.fleet.jobs["job-1"].open_lease.site == "cloud-b"  # type: ignore[union-attr]
    assert world.fleet.jobs["job-1"].kept_work_s > 2 * HOUR


def test_cloud_events_survive_the_log() -> None:
    world = World(a_buyer())
    world.tick(0)
    world.cloud.ready()
    world.tick(10)
    for event in world.store.log:
        assert from_record(*to_record(event)) == event
    assert world.happened(NodeReady)


def test_a_job_that_must_be_done_in_time_is_bought_firm_nodes_where_there_are_none() -> None:
    sells = [an_offer("a", usd=1, is_spot=True, is_there=False), an_offer("b", usd=3)]
    job = a_job(
        "job-1",
        predicted_work_s=10.0 * HOUR,
        deadline_s=int(10.2 * HOUR),
        checkpoint_interval_s=600,
        checkpoint_cost_s=300,
    )
    world = World(job, sells=sells)
    world.cloud.sells[0] = an_offer("a", usd=1, is_spot=True)
    world.tick(0)
    world.cloud.sells = sells
    world.tick(1)
    assert "cloud-b" in {order.site for order in world.cloud.orders}
    for node in list(world.cloud.machines):
        world.cloud.ready(node)
    world.tick(2)
    world.tick(3)
    assert world.phase("job-1") == "running"
    assert len([e for e in world.store.log if type(e).__name__ == "LeaseGranted"]) == 1


def test_a_node_that_no_engine_reaches_is_given_back_and_not_bought_again_at_once() -> None:
    world = World(a_buyer())
    world.tick(0)
    (order,) = world.cloud.orders
    world.cloud.machines[order.node] = Made(order.node, "ready", 60)  # it is billed, and joins nowhere
    world.tick(60)
    world.tick(659)
    assert not world.happened(NodeReturned)
    world.tick(661)
    (returned,) = world.happened(NodeReturned)
    assert isinstance(returned, NodeReturned)
    assert code_of(returned.reason) == "scheduler.node_not_usable"
    world.tick(670)
    assert not world.fleet.cloud.machines
    assert len({each.node for each in world.cloud.orders}) == 1
    world.tick(670 + 301)
    assert len({each.node for each in world.cloud.orders}) == 2


def test_an_order_that_is_never_ready_is_given_up() -> None:
    world = World(a_buyer())
    world.tick(0)
    world.tick(1801)
    assert len(world.happened(NodeReturned)) == 1


def test_the_next_lease_on_a_kept_node_pays_the_price_of_now_and_a_running_one_its_own() -> None:
    """Told by the engine that the node's machine costs more now: what was agreed on is kept."""
    world = World(a_buyer(), buying=Buying(keep_s=HOUR))
    world.tick(0)
    (order,) = world.cloud.orders
    world.cloud.ready()
    for now_s in (60, 61):
        world.tick(now_s)
    world.cloud.sells = [an_offer(usd=1.5)]
    world.tick(100)
    machine = world.fleet.cloud.machines[order.node]
    assert _as_node(machine).microusd_per_gpu_hour == 1.5 * USD
    (lease,) = world.fleet.jobs["job-1"].leases
    assert lease.microusd_per_gpu_hour == 1 * USD
    assert machine.owed(100 + HOUR, since_s=100) == round(1.5 * USD) * HOUR


def test_a_node_whose_job_was_cancelled_before_it_joined_says_nothing_of_the_offer() -> None:
    world = World(a_buyer(), buying=Buying(keep_s=1))
    world.tick(0)
    (order,) = world.cloud.orders
    world.cloud.machines[order.node] = Made(order.node, "ready", 60)  # its agent has yet to begin
    world.tick(60)
    world.store.append([CancelRequested(at_s=61, job="job-1")], after=len(world.store.log))
    world.store.append([JobSubmitted(at_s=61, job=a_buyer("job-2"))], after=len(world.store.log))
    world.cloud.sells = []
    for now_s in (62, 63, 64):
        world.tick(now_s)
    assert not world.fleet.cloud.machines
    world.cloud.sells = [an_offer()]
    world.tick(65)
    assert world.cloud.orders[-1].job == "job-2"


def test_a_provider_that_has_no_more_is_asked_again_once_one_was_given_back() -> None:
    world = World(a_buyer())
    world.tick(0)
    world.cloud.ready()
    for now_s in (10, 11):
        world.tick(now_s)
    world.cloud.refuses["cloud-a"] = CannotMake(say("sim.no_capacity", site="cloud-a"))
    world.store.append([JobSubmitted(at_s=12, job=a_buyer("job-2"))], after=len(world.store.log))
    for now_s in (12, 13):
        world.tick(now_s)
    cloud, node = world.fleet.cloud, world.cloud.orders[0].node
    assert not list(cloud.for_sale(now_s=20))
    cloud.apply(NodeReturned(at_s=20, node=node, reason=say("scheduler.cap_reached", node=node)))
    cloud.apply(NodeGone(at_s=20, node=node, cause="returned"))
    assert [offer.site for offer in cloud.for_sale(now_s=20)] == ["cloud-a"]
