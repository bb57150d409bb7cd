"""A deadline and a budget as the bid, through the production `tick`: spot comes and goes, firm GPUs stay."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from brimful.fleet.events import JobSubmitted, LeaseEnding
from brimful.fleet.job import Job
from brimful.fleet.node import Tier
from brimful.fleet.state import Fleet, JobState, Node
from brimful.market.ledger import Ledger
from brimful.market.pools import Market
from brimful.market.spot import Terms
from brimful.scheduler.auction import Auctions
from brimful.scheduler.loop import tick
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.ports import Ports
from brimful.scheduler.rules import Rules
from brimful.sim.faults import Faults
from brimful.sim.kernel import Kernel
from brimful.sim.world import SITE, Arrival, Due, MemoryStore, TimedEngine, rehearse
from tests.builders import USD, a_job

HOUR, MINUTE = 3600, 60
SPOT_USD, FIRM_USD = 1, 3
Away = tuple[str, int, int]  # a node, from when, until when


def node(name: str, *, tier: Tier, usd: int, gpu: str = "v100") -> Node:
    return Node(
        site=SITE, node=name, gpu=gpu, gpus=1, microusd_per_gpu_hour=usd * USD, declared=True, tier=tier
    )


FIRM = node("firm", tier="on_demand", usd=FIRM_USD)
SPOT = node("spot-a", tier="spot", usd=SPOT_USD)
OTHER_SPOT = node("spot-b", tier="spot", usd=SPOT_USD, gpu="a100")


def due_job(name: str = "job-1", *, work_h: float, deadline_h: float, **more: object) -> Job:
    settings: dict[str, Any] = {
        "predicted_work_s": work_h * HOUR,
        "deadline_s": int(deadline_h * HOUR),
        "checkpoint_interval_s": 10 * MINUTE,
        "checkpoint_cost_s": 5 * MINUTE,
        **more,
    }
    return a_job(name, **settings)


class World:
    """`tick` over a fleet whose nodes leave and come back at given times, until nothing is due any more."""

    def __init__(
        self, *jobs: Job, nodes: Sequence[Node], away: Sequence[Away] = (), market: Market | None = None
    ) -> None:
        self.kernel: Kernel[Due] = Kernel()
        work_s = {job.job: job.predicted_work_s or float(HOUR) for job in jobs}
        self.engine = TimedEngine(nodes, work_s, self.kernel)
        self.fleet, self.store = Fleet(), MemoryStore()
        auctions = None if market is None else Auctions(market)
        self.ports = Ports(store=self.store, engines={SITE: self.engine}, market=auctions)
        self.changes = sorted([(begin, 0, name) for name, begin, _ in away] + [(e, 1, n) for n, _, e in away])
        self.why: dict[int, dict[str, Any]] = {}  # what the first job was told, while it waited
        for at_s in {0, *(at_s for at_s, _, _ in self.changes)}:
            self.kernel.at(at_s, None)
        self.store.append([JobSubmitted(at_s=0, job=job) for job in jobs], after=0)
        self._first = jobs[0].job

    def run(self, rules: Rules | None = None, *, until_s: int = 200 * HOUR) -> JobState:
        woken = -1
        while (now_s := self.kernel.next_s()) is not None and now_s <= until_s:
            self.engine.now_s = now_s
            while self.changes and self.changes[0][0] <= now_s:
                _, back, name = self.changes.pop(0)
                self.engine.back(name) if back else self.engine.fail(name)
            for what in self.kernel.due(now_s):
                if isinstance(what, str):
                    self.engine.finish(what)
            plan = tick(self.fleet, self.ports, rules or Rules(), now_s=now_s).plan
            if self._first in plan.waits:
                self.why[now_s] = plan.waits[self._first].as_dict()
            if plan.look_again_s is not None and plan.look_again_s != woken:
                woken = plan.look_again_s
                self.kernel.at(woken, None)
        return self.fleet.jobs[self._first]


def dollars(state: JobState) -> float:
    return sum(lease.cost_microusd(ended_s(state)) for lease in state.leases) / USD


def ended_s(state: JobState) -> int:
    assert state.ended_s is not None
    return state.ended_s


def went(state: JobState) -> list[str]:
    return [lease.node for lease in state.leases]


def test_with_time_to_spare_only_spot_is_paid() -> None:
    away = [("spot-a", 2 * HOUR, 3 * HOUR), ("spot-a", 5 * HOUR, 6 * HOUR)]
    world = World(due_job(work_h=6, deadline_h=100), nodes=[FIRM, SPOT], away=away)
    state = world.run()
    assert state.phase == "finished"  # though it has no retries: losing spot is not its failure
    assert set(went(state)) == {"spot-a"}
    assert len(went(state)) == 3
    assert dollars(state) < 7 * SPOT_USD
    why = world.why[2 * HOUR]
    assert (why["code"], why["tier"]) == ("scheduler.waits_for_spot", "on_demand")
    assert 94 * HOUR <= why["slack"] < 95 * HOUR


def test_with_little_to_spare_it_is_in_time_on_firm_capacity() -> None:
    away = [("spot-a", 1 * HOUR, 50 * HOUR)]
    state = World(due_job(work_h=8, deadline_h=10), nodes=[FIRM, SPOT], away=away).run()
    assert state.phase == "finished"
    assert went(state) == ["spot-a", "firm"]
    assert ended_s(state) <= 10 * HOUR


def test_with_nothing_to_spare_it_takes_firm_capacity_at_once_and_stays() -> None:
    state = World(due_job(work_h=8, deadline_h=8.2), nodes=[SPOT, FIRM]).run()
    assert went(state) == ["firm"]
    assert ended_s(state) == 8 * HOUR


def test_who_gets_spot_back_moves_there_and_pays_the_start() -> None:
    away = [("spot-a", 0, 5 * HOUR)]
    world = World(due_job(work_h=20, deadline_h=23), nodes=[FIRM, SPOT], away=away)
    state = world.run()
    assert went(state) == ["firm", "spot-a"]
    assert state.leases[0].reason is not None
    moved = state.leases[0].reason.as_dict()
    assert (moved["code"], moved["spot"], moved["firm"]) == ("scheduler.moves_to_spot", 1_000_000, 3_000_000)
    assert state.leases[1].setup_s == 5 * MINUTE
    assert ended_s(state) <= 23 * HOUR
    assert dollars(state) < 20 * FIRM_USD


def test_from_a_zone_that_is_lost_it_moves_to_another() -> None:
    away = [("spot-a", 2 * HOUR, 50 * HOUR), ("spot-b", 0, HOUR)]
    state = World(due_job(work_h=8, deadline_h=20), nodes=[FIRM, SPOT, OTHER_SPOT], away=away).run()
    assert went(state) == ["spot-a", "spot-b"]
    assert ended_s(state) == 8 * HOUR + 5 * MINUTE


def test_of_two_zones_the_one_that_lasts_is_chosen() -> None:
    restless = [("spot-a", hour * HOUR + 1800, (hour + 1) * HOUR) for hour in range(40)]
    filler = a_job("filler", gpu_types=("v100",))  # so that the clock runs on before the job comes
    world = World(filler, nodes=[FIRM, SPOT, OTHER_SPOT], away=restless)
    world.run(until_s=40 * HOUR + 60)
    job = due_job("job-2", work_h=1, deadline_h=60, deadline_s=60 * HOUR)
    world.engine._work_s["job-2"] = 1.0 * HOUR
    world.store.append([JobSubmitted(at_s=40 * HOUR + 60, job=job)], after=len(world.store.log))
    world.kernel.at(40 * HOUR + 60, None)
    world.run()
    assert went(world.fleet.jobs["job-2"]) == ["spot-b"]


def test_a_budget_that_firm_capacity_would_exceed_is_told_and_spot_alone_is_used() -> None:
    job = due_job(work_h=8, deadline_h=20, budget_microusd=20 * USD)
    world = World(job, nodes=[FIRM, SPOT], away=[("spot-a", 2 * HOUR, 30 * HOUR)])
    state = world.run()
    assert set(went(state)) == {"spot-a"}
    too_dear = {"tier": "on_demand", "cost": 18_250_000, "left": 18 * USD}
    work = {"code": "scheduler.work_and_start", "work": 6 * HOUR, "setup": 5 * MINUTE}
    assert world.why[2 * HOUR] == {
        "code": "scheduler.spot_only",
        "too_dear": {"code": "scheduler.firm_too_dear", "work": work, **too_dear},
        "spot": 6_083_333,
    }


def test_a_budget_too_small_for_anything_starts_nothing_and_says_by_how_much() -> None:
    job = due_job(work_h=8, deadline_h=20, budget_microusd=5 * USD)
    world = World(job, nodes=[FIRM, SPOT])
    state = world.run()
    assert state.phase == "waiting"
    too_dear = {"tier": "on_demand", "cost": 24 * USD, "left": 5 * USD}
    work = {"code": "scheduler.work", "work": 8 * HOUR}
    assert world.why[0] == {
        "code": "scheduler.cannot_pay",
        "too_dear": {"code": "scheduler.firm_too_dear", "work": work, **too_dear},
        "spot": 8 * USD,
    }


def test_a_try_on_spot_that_could_cost_the_end_is_not_made() -> None:
    job = due_job(work_h=8, deadline_h=30, budget_microusd=int(24.1 * USD))
    state = World(job, nodes=[FIRM, SPOT], away=[("spot-a", 1 * MINUTE, 40 * HOUR)]).run()
    assert went(state) == ["firm"]
    assert state.phase == "finished"


def test_a_job_that_saves_nothing_is_not_put_on_spot() -> None:
    for every_s in (None, 0):
        job = due_job(work_h=2, deadline_h=20, checkpoint_interval_s=every_s)
        assert went(World(job, nodes=[SPOT, FIRM]).run()) == ["firm"]


def test_work_of_unknown_length_cannot_be_planned_and_is_held_back_from_nothing() -> None:
    busy = a_job("busy", gpu_types=("v100",))
    job = due_job(work_h=1, deadline_h=20, predicted_work_s=None, gpus=1)
    world = World(job, nodes=[FIRM, SPOT])
    assert world.run().phase == "finished"
    world = World(job, busy, a_job("more"), nodes=[FIRM, SPOT])
    world.store.log.reverse()  # the others come first
    world.run()
    assert world.why[0]["told"] == {"code": "scheduler.unplanned"}


def test_who_waits_for_spot_holds_nobody_up() -> None:
    alike = [a_job(name, gpu_types=("v100",)) for name in ("first", "second", "third")]
    job = due_job(work_h=6, deadline_h=100, gpu_types=("v100",))
    world = World(job, *alike, nodes=[FIRM, SPOT], away=[("spot-a", 60, 10 * HOUR)])
    state = world.run()
    assert [went(world.fleet.jobs[each.job]) for each in alike] == [["firm"]] * 3
    assert world.fleet.jobs["third"].leases[0].started_s == 2 * HOUR
    assert set(went(state)) == {"spot-a"}


@pytest.mark.parametrize("policy", ["fifo", "backfill", "brim"])
def test_every_policy_keeps_to_the_plan(policy: str) -> None:
    away = [("spot-a", 2 * HOUR, 3 * HOUR), ("spot-b", 1 * HOUR, 9 * HOUR)]
    job = due_job(work_h=6, deadline_h=100)
    state = World(job, nodes=[FIRM, SPOT, OTHER_SPOT], away=away).run(POLICIES[policy])
    assert state.phase == "finished"
    assert "firm" not in went(state)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_spot_does_it_is_in_time_and_within_its_budget(seed: int) -> None:
    r = random.Random(seed)
    work_h = r.uniform(0.5, 12)
    job = due_job(
        work_h=work_h,
        deadline_h=work_h * r.choice([1.1, 1.3, 2, 5]) + 0.4,
        checkpoint_interval_s=r.choice([60, 600, 3600]),
        checkpoint_cost_s=r.choice([0, 60, 600]),
        budget_microusd=r.choice([None, int(work_h * FIRM_USD * USD * r.uniform(1.001, 1.2))]),
    )
    away: list[Away] = []
    for name in ("spot-a", "spot-b"):
        at_h = r.uniform(0, 2)
        while at_h < 70:
            back_h = at_h + r.expovariate(1 / r.choice([0.05, 0.5, 5]))
            away.append((name, int(at_h * HOUR), int(back_h * HOUR) + 1))
            at_h = back_h + 0.01 + r.expovariate(1 / r.choice([0.1, 1, 5]))
    state = World(job, nodes=[FIRM, SPOT, OTHER_SPOT], away=away).run()
    assert state.phase == "finished"
    assert job.deadline_s is not None
    assert ended_s(state) <= job.deadline_s
    assert job.budget_microusd is None or dollars(state) * USD <= job.budget_microusd


def test_a_rehearsal_waits_for_spot_too_and_is_the_same_twice() -> None:
    job = due_job(work_h=10, deadline_h=60, retries=100)
    faults = Faults(node_losses_per_day=4.0, node_back_s=2 * HOUR)

    def log() -> list[object]:
        arrival = Arrival(at_s=0, job=job, work_s=10.0 * HOUR)
        outcome = rehearse([arrival], [FIRM, SPOT], Rules(), faults=faults, seed=3)
        assert outcome.fleet.jobs["job-1"].phase == "finished"
        return list(outcome.log)

    assert log() == log()


def test_a_fleet_without_spot_is_planned_by_nobody() -> None:
    world = World(due_job(work_h=2, deadline_h=90), nodes=[FIRM])
    assert went(world.run()) == ["firm"]
    assert not any(isinstance(event, LeaseEnding) for event in world.store.log)
    assert not world.fleet.due


# -- spot that bids decide about ---------------------------------------------------------------------------

BIDS = Market(pools=("spot",), terms=Terms(notice_s=60, period_s=120))


def later(world: World, job: Job, *, at_s: int, work_h: float) -> None:
    """Another job comes while the first runs."""
    world.run(until_s=at_s - 1)
    world.engine._work_s[job.job] = work_h * HOUR
    world.store.append([JobSubmitted(at_s=at_s, job=job)], after=len(world.store.log))
    world.kernel.at(at_s, None)


def test_outbid_in_a_market_pool_it_finishes_on_firm_capacity_in_time() -> None:
    world = World(due_job(work_h=8, deadline_h=10), nodes=[FIRM, SPOT], market=BIDS)
    urgent = a_job("urgent", priority="urgent", tiers=("spot",), predicted_work_s=50.0 * HOUR)
    later(world, urgent, at_s=HOUR, work_h=50)
    state = world.run(POLICIES["brim"])
    assert went(state) == ["spot-a", "firm"]
    assert ended_s(state) <= 10 * HOUR
    assert state.leases[0].reason is not None
    assert state.leases[0].reason.as_dict()["code"].startswith("scheduler.outbid")


def test_while_it_waits_for_firm_it_does_not_bid() -> None:
    state = World(due_job(work_h=8, deadline_h=8.2), nodes=[SPOT, FIRM], market=BIDS).run()
    assert went(state) == ["firm"]


def test_spot_dearer_than_firm_capacity_is_left() -> None:
    world = World(
        due_job(work_h=8, deadline_h=60, limit_microusd_per_gpu_hour=10 * USD),
        nodes=[FIRM, SPOT],
        market=BIDS,
    )
    rival = a_job("rival", tiers=("spot",), limit_microusd_per_gpu_hour=6 * USD, predicted_work_s=90.0 * HOUR)
    later(world, rival, at_s=HOUR, work_h=90)
    state = world.run(POLICIES["brim"])
    assert went(state) == ["spot-a", "firm"]  # it could have bid on, at six dollars against three
    assert dollars(state) < 9 * FIRM_USD


@pytest.mark.parametrize("market", [None, BIDS])
def test_others_use_the_firm_gpus_that_are_kept_back_and_leave_when_the_time_has_come(
    market: Market | None,
) -> None:
    """They know nothing of how long they run, and it takes a stop to make room."""
    filler = a_job("filler", tiers=("on_demand",), checkpoint_interval_s=0)
    away = [("spot-a", 2 * HOUR, 90 * HOUR)]
    world = World(due_job(work_h=8, deadline_h=14), filler, nodes=[FIRM, SPOT], away=away, market=market)
    world.engine._work_s["filler"] = 40.0 * HOUR
    state = world.run(POLICIES["brim"])
    assert went(state)[-1] == "firm"
    assert ended_s(state) <= 14 * HOUR
    other = world.fleet.jobs["filler"]
    assert len(other.leases) >= 2  # before and after
    assert other.leases[0].reason is not None
    assert other.leases[0].reason.as_dict() == {"code": "scheduler.preempted_by", "job": "job-1"}


def test_two_never_count_on_the_same_firm_gpu() -> None:
    """The one that is due first has the claim; the other uses what spot there is and says so."""
    first = due_job("job-1", work_h=6, deadline_h=12, gpu_types=("v100",))
    second = due_job("job-2", work_h=6, deadline_h=13)
    nodes = [FIRM, OTHER_SPOT, SPOT]
    world = World(second, first, nodes=nodes, away=[("spot-b", 3 * HOUR, 5 * HOUR)])
    world.run(POLICIES["brim"])
    one, two = (world.fleet.jobs[name] for name in ("job-1", "job-2"))
    assert one.phase == two.phase == "finished"
    assert ended_s(one) <= 12 * HOUR
    assert "firm" not in went(two)[:1]


@pytest.mark.parametrize("seed", range(6))
def test_in_a_market_that_outbids_at_random_it_is_in_time_and_within_its_budget(seed: int) -> None:
    r = random.Random(seed)
    work_h = r.uniform(0.5, 8)
    job = due_job(
        work_h=work_h,
        deadline_h=work_h * r.choice([1.1, 1.3, 2, 4]) + 0.6,
        checkpoint_interval_s=r.choice([60, 600]),
        checkpoint_cost_s=r.choice([0, 60, 600]),
        budget_microusd=r.choice([None, int(work_h * FIRM_USD * USD * r.uniform(1.001, 1.3))]),
    )
    world = World(job, nodes=[FIRM, SPOT, OTHER_SPOT], market=BIDS)
    at_s = 0
    for i in range(r.randrange(2, 12)):
        at_s += int(r.expovariate(1 / 1.5) * HOUR) + 1
        hours = r.choice([0.2, 1, 5])
        limit = r.choice([None, 2, 5]) and r.choice([2, 5]) * USD
        rival = a_job(
            f"rival-{i}",
            priority=r.choice(["urgent", "normal", "background"]),
            limit_microusd_per_gpu_hour=limit,
            predicted_work_s=r.choice([None, hours * HOUR]),
            checkpoint_interval_s=0,
            tiers=r.choice([("spot",), ("spot", "on_demand")]) if limit is None else ("spot",),
        )
        if rival.priority == "urgent":  # of a higher class: it may keep firm capacity from others
            rival = replace(rival, tiers=("spot",))
        world.engine._work_s[rival.job] = hours * HOUR
        world.run(POLICIES["brim"], until_s=at_s - 1)
        world.store.append([JobSubmitted(at_s=at_s, job=rival)], after=len(world.store.log))
        world.kernel.at(at_s, None)
    state = world.run(POLICIES["brim"])
    assert state.phase == "finished"
    assert job.deadline_s is not None
    assert ended_s(state) <= job.deadline_s, went(state)
    assert job.budget_microusd is None or dollars(state) * USD <= job.budget_microusd
    ledger = Ledger()
    for event in world.store.log:
        ledger.apply(event)
    assert sum(ledger.balances.values()) == 0
