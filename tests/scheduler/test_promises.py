"""Random fleets, random events, every policy: what must hold after each of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from brimful.fleet.events import CancelRequested, Event, JobSubmitted
from brimful.fleet.job import PRIORITIES, Job
from brimful.fleet.learned.lengths import ENOUGH
from brimful.fleet.node import Node, Pool
from brimful.fleet.state import OVER, Fleet
from brimful.scheduler.loop import tick
from brimful.scheduler.placing.assign import assign
from brimful.scheduler.placing.pools import is_mixed
from brimful.scheduler.plan import Plan
from brimful.scheduler.policies import POLICIES
from brimful.scheduler.ports import Ports
from brimful.scheduler.quotas import Books
from brimful.scheduler.rules import Quota, Rules
from brimful.sim.kernel import Kernel
from brimful.sim.world import SITE, Due, MemoryStore, TimedEngine
from tests.builders import code_of

TYPES = ("new", "old")
QUOTA = (Quota(queue="a", gpus=4, borrow_gpus=2), Quota(queue="b", gpus=4))
RULES: list[Rules] = [
    *POLICIES.values(),
    replace(POLICIES["brim"], objective="makespan", rerank_s=60),
    replace(POLICIES["brim"], quotas=QUOTA, rerank_s=60),
    replace(POLICIES["backfill"], quotas=QUOTA, min_run_s=0),
]

MIXED_RULES = [
    replace(POLICIES["brim"], quotas=QUOTA, rerank_s=60, min_run_s=0),
    replace(POLICIES["las"], quotas=QUOTA, rerank_s=60, min_run_s=0),
]

nodes = st.builds(
    Node,
    site=st.just(SITE),
    node=st.sampled_from(["n0", "n1", "n2", "n3"]),
    gpu=st.sampled_from(TYPES),
    gpus=st.integers(1, 8),
    microusd_per_gpu_hour=st.just(10**6),
    declared=st.just(True),
    rack=st.sampled_from(["r0", "r1"]),
    nvlink_gpus=st.sampled_from([0, 2, 4]),
)
jobs = st.builds(
    Job,
    job=st.just(""),
    gpus=st.integers(1, 12),
    within=st.sampled_from(["node", "nvlink", "rack", "any"]),
    priority=st.sampled_from(["urgent", "normal", "background"]),
    queue=st.sampled_from(["a", "b"]),
    gpu_types=st.sampled_from([(), ("new",), ("old",)]),
    rates=st.sampled_from([(), (("new", 1.0), ("old", 0.5))]),
    predicted_work_s=st.none() | st.floats(1, 1000),
    checkpoint_interval_s=st.sampled_from([None, 0, 10]),
    checkpoint_cost_s=st.integers(0, 20),
    min_run_s=st.integers(0, 100),
    max_run_s=st.none() | st.integers(1, 500),
    deferrable=st.booleans(),
    retries=st.integers(0, 2),
)

small_jobs = st.builds(
    Job,
    job=st.just(""),
    gpus=st.integers(1, 4),
    within=st.just("any"),
    priority=st.sampled_from(["urgent", "normal", "background"]),
    queue=st.sampled_from(["a", "b", "neither"]),
    rates=st.sampled_from([(), (("new", 1.0), ("old", 0.5))]),
    checkpoint_interval_s=st.just(0),
)


class ChangingEngine(TimedEngine):
    def change(self, node: Node) -> None:
        """A node joins or changes. What ran on it is gone if it became smaller or of another type."""
        before = self._all.get(node.node)
        if before is not None and (before.gpu != node.gpu or before.gpus > node.gpus):
            self.fail(node.node)
        self._all[node.node] = node
        self._nodes = [*(each for each in self._nodes if each.node != node.node), node]


class Promises(RuleBasedStateMachine):
    """The production tick against an engine whose nodes come and go."""

    @initialize(rules=st.sampled_from(RULES), first=nodes, seen=st.booleans())
    def begin(self, rules: Rules, first: Node, seen: bool) -> None:
        self._begin(rules, [first])
        for _ in range(ENOUGH if seen else 0):  # so many jobs of half a minute: soon it is somebody's turn
            self.fleet.turns.lengths.count(30.0)

    def _begin(self, rules: Rules, first: list[Node]) -> None:
        self.policy = rules
        self.kernel: Kernel[Due] = Kernel()
        self.work_s: dict[str, float] = {}
        self.engine = ChangingEngine(first, self.work_s, self.kernel)
        self.store, self.fleet = MemoryStore(), Fleet()
        self.ports = Ports(store=self.store, engines={SITE: self.engine})
        self.kept: dict[str, float] = {}

    def _write(self, event: Event) -> None:
        assert self.store.append([event], after=len(self.store.log))

    @rule(job=jobs, work_s=st.integers(0, 400))
    def submit(self, job: Job, work_s: int) -> None:
        name = f"j{len(self.work_s)}"
        self.work_s[name] = work_s
        self._write(JobSubmitted(at_s=self.engine.now_s, job=replace(job, job=name)))

    @invariant()
    def turns_are_counted(self) -> None:
        now_s = self.engine.now_s
        open_turns = [x for x in self.fleet.open_leases.values() if x.turn_until_s > now_s]
        assert self.fleet.turns.gpus(now_s) == sum(lease.size for lease in open_turns)

    @rule(pick=st.integers(0, 50))
    def cancel(self, pick: int) -> None:
        if pick < len(self.work_s):
            self._write(CancelRequested(at_s=self.engine.now_s, job=f"j{pick}"))

    @rule(node=nodes)
    def node_comes_or_changes(self, node: Node) -> None:
        self.engine.change(node)

    @rule(name=st.sampled_from(["n0", "n1", "n2", "n3"]))
    def node_fails(self, name: str) -> None:
        self.engine.fail(name)

    @rule(seconds=st.integers(0, 120))
    def time_passes(self, seconds: int) -> None:
        until_s = self.engine.now_s + seconds
        turns = 0
        while (at_s := self.kernel.next_s()) is not None and at_s <= until_s:
            turns = turns + 1 if at_s == self.engine.now_s else 0
            assert turns < 200, "two jobs take turns without end"
            self.engine.now_s = at_s
            for what in self.kernel.due(at_s):
                if isinstance(what, str):
                    self.engine.finish(what)
            self._tick()
        self.engine.now_s = until_s
        self._tick()

    def _tick(self) -> None:
        done = tick(self.fleet, self.ports, self.policy, now_s=self.engine.now_s)
        self._no_queue_is_over_its_quota()
        self._only_borrowers_give_back(done.plan)

    def _only_borrowers_give_back(self, plan: Plan) -> None:
        """Where nobody is preempted otherwise, a queue loses a gang only while it held more than its own."""
        if not self.policy.quotas or self.policy.preempt != "none":
            return
        own = {quota.queue: quota.gpus for quota in self.policy.quotas}
        gone: dict[str, int] = {}
        for stop in plan.stops:
            lease = self.fleet.leases[stop.lease]
            queue = self.fleet.jobs[lease.job].job.queue
            if code_of(stop.reason) == "scheduler.preempted_by":
                held = self.fleet.usage[queue].held - sum(
                    each.size
                    for start in plan.starts
                    if self.fleet.jobs[start.job].job.queue == queue
                    for each in [self.fleet.leases[start.lease]]
                )
                assert held - gone.get(queue, 0) > own[queue], f"{queue} was within its quota"
                gone[queue] = gone.get(queue, 0) + lease.size

    def _no_queue_is_over_its_quota(self) -> None:
        if self.policy.quotas:
            assert self.fleet.usage.get("a") is None or self.fleet.usage["a"].held <= 6

    @invariant()
    def no_gpu_has_two_tenants_and_gangs_are_whole(self) -> None:
        held: set[tuple[str, int]] = set()
        for lease in self.fleet.open_leases.values():
            mine = [(node, gpu) for node, gpus in lease.parts for gpu in gpus]
            assert len(mine) == len(set(mine)) == self.fleet.jobs[lease.job].job.gpus
            assert not held & set(mine)
            held |= set(mine)
        for name in self.fleet.nodes:
            free = {(name, gpu) for gpu in self.fleet.free(name)}
            assert not free & held

    @invariant()
    def the_index_of_free_gpus_agrees_with_the_leases(self) -> None:
        capacity = self.fleet.capacity
        for pool, index in capacity.pools.items():
            slots = [slot for slot in capacity.slots.values() if slot.pool == pool]
            assert index.free == sum(len(slot.free) for slot in slots)
            assert index.gpus == sum(slot.node.good_gpus for slot in slots)
            for count, bucket in enumerate(index.buckets):
                assert bucket == sorted(slot.index for slot in slots if len(slot.free) == count)

    @invariant()
    def no_job_is_lost(self) -> None:
        for name, state in self.fleet.jobs.items():
            assert (name in self.fleet.waiting) == (state.phase == "waiting")
            assert (state.open_lease is not None) == (state.phase in ("starting", "running", "stopping"))
            assert sum(lease.ended_s is None for lease in state.leases) <= 1
            assert (state.ended_s is not None) == (state.phase in OVER)

    @invariant()
    def progress_never_goes_back_and_never_beyond_the_work(self) -> None:
        for name, state in self.fleet.jobs.items():
            assert state.kept_work_s >= self.kept.get(name, 0.0)
            assert state.kept_work_s <= self.work_s[name] + 1e-6
            self.kept[name] = state.kept_work_s

    @invariant()
    def contiguity_is_kept(self) -> None:
        for lease in self.fleet.open_leases.values():
            job = self.fleet.jobs[lease.job].job
            if job.within in ("node", "nvlink"):
                assert not lease.rest
            assert job.rate(lease.gpu) > 0

    @invariant()
    def whoever_waits_is_told_why(self) -> None:
        if not hasattr(self, "fleet") or not len(self.fleet.waiting) or self.fleet.seq != len(self.store.log):
            return
        waits = tick(self.fleet, self.ports, self.policy, now_s=self.engine.now_s).plan.waits
        assert all(waits[name] for name in self.fleet.waiting if name in waits)


class MixedPromises(Promises):
    """The same on fleets of two GPU types, where reviews give queues with quotas their GPUs."""

    @initialize(rules=st.sampled_from(MIXED_RULES), new=nodes, old=nodes)
    def begin(self, rules: Rules, new: Node, old: Node) -> None:
        self._begin(rules, [replace(new, node="n0", gpu="new"), replace(old, node="n1", gpu="old")])

    @rule(crowd=st.lists(small_jobs, min_size=3, max_size=8), work_s=st.integers(100, 400))
    def a_crowd_comes(self, crowd: list[Job], work_s: int) -> None:
        for job in crowd:
            self.submit(job, work_s)
        self.time_passes(self.policy.rerank_s)

    def _tick(self) -> None:
        self._a_review_honours_quotas()
        super()._tick()

    def _a_review_honours_quotas(self) -> None:
        """On a mixed fleet: no queue is given more than it may hold, and what is lent comes back."""
        fleet, rules = self.fleet, self.policy
        if not rules.quotas or not is_mixed(fleet, rules):
            return
        held = {name: usage.held for name, usage in fleet.usage.items()}
        gpus = {pool: index.gpus for pool, index in fleet.capacity.pools.items()}
        books = Books(rules, held=held, waited_for={}, gpus_in_fleet=sum(gpus.values()))
        pools_of = {state.shape: [*fleet.able_pools(state.shape)] for state in fleet.jobs.values()}
        review_s = -(-self.engine.now_s // rules.rerank_s) * rules.rerank_s
        given = assign(fleet, rules, pools_of.__getitem__, now_s=review_s, prices={}, books=books)
        assert given is not None
        then: dict[str, int] = dict(held)
        left = dict(gpus)
        for lease in fleet.open_leases.values():
            if lease.job in given:
                then[fleet.jobs[lease.job].job.queue] -= lease.size
            elif lease.node in fleet.capacity.by_name:
                left[fleet.capacity.by_name[lease.node].pool] -= lease.size
        for name, pool in given.items():
            if pool is not None:
                job = fleet.jobs[name].job
                then[job.queue] = then.get(job.queue, 0) + job.gpus
                left[pool] -= job.gpus
        assert then.get("a", 0) <= 6, f"{then} after the review, of which a may have 6"
        if rules.types == "rotate":
            self._what_is_lent_comes_back(given, then=then, left=left)

    def _what_is_lent_comes_back(
        self, given: dict[str, Pool | None], *, then: dict[str, int], left: dict[Pool, int]
    ) -> None:
        """Who stays within its quota waits only where too few of its class or lower are guests."""
        own = {quota.queue: quota.gpus for quota in QUOTA} | {"neither": 0}
        jobs = {name: self.fleet.jobs[name] for name in given}
        for name, state in jobs.items():
            job, rank = state.job, PRIORITIES[state.job.priority]
            if given[name] is not None or then.get(job.queue, 0) + job.gpus > own[job.queue]:
                continue
            for pool in self.fleet.able_pools(state.shape):
                guests = sum(
                    other.job.gpus
                    for each, other in jobs.items()
                    if given[each] == pool
                    and PRIORITIES[other.job.priority] >= rank
                    and not own[other.job.queue]
                )
                assert left[pool] + guests < job.gpus, f"{name} waits for what is its queue's own"


Promises.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestPromises = Promises.TestCase
MixedPromises.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestMixedPromises = MixedPromises.TestCase
