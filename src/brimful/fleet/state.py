"""The current fleet: a fold of the event log. Only `Fleet.apply` writes; everything else reads.

    waiting ──LeaseGranted──▶ starting ──LeaseStarted──▶ running ──LeaseEnded──▶ finished | failed
       ▲                          └──────── LeaseEnding ────┴──▶ stopping ──LeaseEnded──▶ stopped | cancelled
       └───────────────────────────────── requeued ─────────────────┘

A job put on hold leaves `waiting` for `held` and returns when it is released. A job that depends on others is
`pending` until these are over (`gates.py`), and `skipped` if they do not end as required.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

from brimful.errors import Said
from brimful.fleet import events
from brimful.fleet.adoption import Adoption, PolicyAdopted, PolicyRehearsed
from brimful.fleet.capacity import Capacity
from brimful.fleet.charge import change_price
from brimful.fleet.cloud import Cloud
from brimful.fleet.events import KINDS, NOT_ITS_FAULT, Event
from brimful.fleet.gates import Gates
from brimful.fleet.job import WHOLE_GPU, Job, shape_of, sizes_of
from brimful.fleet.learned.load import LoadLine, TariffLine
from brimful.fleet.learned.odds import Odds
from brimful.fleet.learned.spot import SpotRecord
from brimful.fleet.lease import OVER, JobState, Lease, allotted
from brimful.fleet.limits import Limits
from brimful.fleet.memory import too_small
from brimful.fleet.money.prices import PriceLine
from brimful.fleet.money.purse import Purses, Running
from brimful.fleet.money.quote import Quote, give_quote, paid_over
from brimful.fleet.moves import Moves
from brimful.fleet.node import Node, Pool
from brimful.fleet.past import Finished, Left
from brimful.fleet.queues import Quota
from brimful.fleet.ranked import Ranked
from brimful.fleet.reservations.reservation import RESERVING, Reservations
from brimful.fleet.sharing import beside_whom, change_pace, leave_beside
from brimful.fleet.turns import Turns
from brimful.fleet.usage import Usage
from brimful.language import say

__all__ = ["OVER", "Fleet", "JobState", "Lease", "Left", "Node", "Pool"]

# How long to avoid a site that failed or evicted a job, doubled each time.
AVOID_S, AVOID_DOUBLINGS = 120, 4


class Fleet:
    """Nodes, jobs and leases after the first `seq` events of the log.

    With `keep`, jobs that are over leave memory through `leaving` once that many newer ones are over.
    """

    def __init__(self, *, keep: int | None = None) -> None:
        self.seq, self._keep = 0, keep
        self._over: deque[str] = deque()  # ended jobs, in the order they ended
        self.failed: dict[str, JobState] = {}  # failed jobs still in memory
        self.leaving: dict[str, Left] = {}  # gone from `jobs`, and not yet known to be stored elsewhere
        self.newest_left = -1  # the highest serial that has left `jobs`
        self.submitted = 0  # jobs ever; the serial of the next one
        self.first_submit_s: int | None = None
        self.finished = Finished()
        self.silent: dict[str, events.SiteLost] = {}  # sites that do not answer
        self.nodes: dict[str, Node] = {}
        self.nodes_changed = 0  # `seq` of the last node event: what is derived from nodes is keyed by it
        self._posted: tuple[int, dict[Pool, int]] = (0, {})  # as of that event
        self.drained: dict[str, Said | None] = {}  # nodes where nothing starts, and why
        self.jobs: dict[str, JobState] = {}
        self.keyed: dict[tuple[str, str], str] = {}  # (submitter, its key) -> job
        self.leases: dict[str, Lease] = {}
        # What a tick touches, separate from history so that its cost does not grow with it.
        self.waiting, self.running = Ranked(), Ranked()  # running: has started and was not told to stop
        self.open_leases: dict[str, Lease] = {}
        self.leases_at: dict[str, dict[str, Lease]] = {}  # open ones by site
        self.leases_on: dict[str, dict[str, Lease]] = {}  # open ones by node
        self.unsettled: dict[str, Lease] = {}  # granted or ending: the engine has yet to confirm
        self.on_hold: dict[str, JobState] = {}
        self.gates = Gates()  # jobs that may not wait for GPUs yet
        self.cancelling: dict[str, JobState] = {}  # cancelled, and not yet told to stop
        self.usage: dict[str, Usage] = {}  # by queue
        self.queues: tuple[Quota, ...] = ()  # quotas and limits set at run time
        self.turns = Turns()
        self.moves = Moves()
        self.odds = Odds()
        self.adoption = Adoption()  # the policy adopted after rehearsals
        self.prices: dict[Pool, PriceLine] = {}  # of market pools
        self.load: dict[Pool, LoadLine] = {}
        self.tariffs: dict[Pool, TariffLine] = {}
        self.quotes: dict[str, Quote] = {}  # of deferrable jobs that are not over
        self.spot: dict[Pool, SpotRecord] = {}  # every spot pool ever seen
        self.due: dict[str, JobState] = {}  # jobs with a deadline that are not over
        self.told: dict[str, events.DeadlineAnswered] = {}  # the answer given about the deadline
        self.elastic: dict[str, JobState] = {}  # gangs with a range of sizes that are not over
        self.warned: dict[str, Lease] = {}  # open leases that were ever given notice
        self.purses = Purses()
        self.reservations = Reservations()
        self.capacity = Capacity()
        self.cloud = Cloud()  # what providers sell, and the nodes they made
        self.limits = Limits()  # when leases reach their job's budget or longest run
        self._shapes: dict[Hashable, int] = {}
        self.of_shape: list[Job] = []  # one job per shape: where it may go, all of its shape may
        self.gpu_s_before_jobs = 0  # GPU-seconds that passed before the first request
        self._gpu_s = self._gpus = self._gpus_since_s = 0
        self._ended_gpu_milli_s = 0  # GPU time billed for leases that have ended
        self.last_end_s: int | None = None  # when the most recent job was over

    def free(self, node: str) -> tuple[int, ...]:
        """Indices of the node's free GPUs, lowest first."""
        slot = self.capacity.by_name.get(node)
        return () if slot is None else tuple(slot.free)

    def posted_prices(self) -> Mapping[Pool, int]:
        """Per GPU-hour: the highest ask among a pool's nodes, so that no supply is used below its ask."""
        if self._posted[0] != self.nodes_changed:
            prices: dict[Pool, int] = {}
            for node in self.nodes.values():
                prices[node.pool] = max(prices.get(node.pool, 0), node.microusd_per_gpu_hour)
            self._posted = (self.nodes_changed, prices)
        return self._posted[1]

    def able_pools(self, shape: int) -> Mapping[Pool, float]:
        """Pools that could run a job of this shape if they were empty, and its rate there, at any price."""
        found = self.capacity.able.get(shape)
        if found is None:
            job = self.of_shape[shape]
            found = self.capacity.able[shape] = {
                pool: rate
                for pool in self.capacity.pools
                if job.may_be_in(site=pool.site, tier=pool.tier)
                and (rate := job.rate(pool.gpu)) > 0.0
                and too_small(job, pool.gpu) is None
                and self.capacity.could_hold(job, pool)
            }
        return found

    def may_have_to_stop(self, now_s: int) -> bool:
        """Whether any job was cancelled or has reached a limit; usually none has."""
        return bool(self.cancelling) or self.limits.is_due(now_s)

    def apply(self, event: Event) -> None:
        """Fold the next event of the log."""
        _FOLDS[type(event)](self, event)
        self.seq += 1

    def _site_lost(self, event: events.SiteLost) -> None:
        self.silent[event.site] = event

    def _site_found(self, event: events.SiteFound) -> None:
        self.silent.pop(event.site, None)

    def gpu_s(self, now_s: int) -> int:
        """GPU-seconds available since the first node joined, without bad GPUs and those held by others."""
        return self._gpu_s + self._gpus * max(0, now_s - self._gpus_since_s)

    def leased_gpu_s(self, now_s: int) -> int:
        """GPU-seconds that leases have held until now; a share of a GPU counts as that share."""
        going = sum([lease.gpu_milli_s(now_s) for lease in self.open_leases.values()])
        return (self._ended_gpu_milli_s + going) // WHOLE_GPU

    def is_idle(self) -> bool:
        """Whether every job there was is over."""
        return not (len(self.waiting) or self.open_leases or self.on_hold)

    def allocation_rate(self, now_s: int) -> float | None:
        """Leased GPU-seconds / available GPU-seconds, since the first submit, until now or the last end."""
        end_s = self.last_end_s if self.is_idle() and self.last_end_s is not None else now_s
        there_s = self.gpu_s(end_s) - self.gpu_s_before_jobs
        return self.leased_gpu_s(now_s) / there_s if there_s > 0 else None

    def _count_gpus(self, gpus: int, *, at_s: int) -> None:
        self._gpu_s = self.gpu_s(at_s)
        self._gpus += gpus
        self._gpus_since_s = max(self._gpus_since_s, at_s)

    def _node_left(self, event: events.NodeLeft) -> None:
        node = self.nodes.pop(event.node, None)
        if node is not None:
            self._count_gpus(-node.offered_gpus, at_s=event.at_s)
            if node.tier == "spot" and node.pool not in self.cloud.offers:
                self.spot[node.pool].went(node, at_s=event.at_s)
        self.capacity.leave(event.node)
        self.cloud.left(event.node, at_s=event.at_s)
        self.nodes_changed = self.seq + 1

    def _node_joined(self, event: events.NodeJoined) -> None:
        before = self.nodes.get(event.node)
        node = self.nodes[event.node] = event.described()
        self._count_gpus(node.offered_gpus - (before.offered_gpus if before else 0), at_s=event.at_s)
        if before is not None and before.tier == "spot" and before.pool != node.pool:
            self.spot[before.pool].went(before, at_s=event.at_s)
        if node.tier == "spot" and node.pool not in self.cloud.offers:
            self.spot.setdefault(node.pool, SpotRecord()).came(node, at_s=event.at_s)
        if event.node not in self.drained:
            self._offer(node)
        self.cloud.joined(event.node)
        self.nodes_changed = self.seq + 1

    def _cloud_changed(self, event: Event) -> None:
        self.cloud.apply(event)
        if isinstance(event, events.OfferSeen) and event.tier == "spot":
            is_there, price = self.cloud.spot_of(event.pool)
            record = self.spot.setdefault(event.pool, SpotRecord())
            record.seen(is_there=is_there, microusd_per_gpu_hour=price, at_s=event.at_s)

    def _offer(self, node: Node) -> None:
        held: set[int] = set()
        for lease in self.leases_on.get(node.node, {}).values():
            held.update(i for name, gpus in lease.parts if name == node.node for i in gpus)
        self.capacity.join(node, held)

    def _node_drained(self, event: events.NodeDrained) -> None:
        self.drained[event.node] = event.reason
        self.capacity.leave(event.node)
        self.nodes_changed = self.seq + 1

    def _node_resumed(self, event: events.NodeResumed) -> None:
        was_drained = event.node in self.drained
        self.drained.pop(event.node, None)
        if was_drained and event.node in self.nodes:
            self._offer(self.nodes[event.node])
        self.nodes_changed = self.seq + 1

    def _job_submitted(self, event: events.JobSubmitted) -> None:
        self._submit(event.job, at_s=event.at_s)

    def _array_submitted(self, event: events.ArraySubmitted) -> None:
        self.gates.array(event)
        for job in event.tasks():
            self._submit(job, at_s=event.at_s)

    def _submit(self, job: Job, *, at_s: int) -> None:
        assert job.job not in self.jobs, f"{job.job} was submitted twice"
        assert job.gpu_milli == WHOLE_GPU or job.gpus == 1, "only a share of one GPU can be asked for"
        assert job.gpus in sizes_of(job), f"{job.job} has a size that its range has not"
        if not self.submitted:
            self.gpu_s_before_jobs = self.gpu_s(at_s)
            self.first_submit_s = at_s
        state = JobState(job, self.submitted, self._shape(job), at_s, at_s)
        self.submitted += 1
        self.jobs[job.job] = state
        if job.key:
            self.keyed[job.submitter, job.key] = job.job
        if job.max_gpus:
            self.elastic[job.job] = state
        self.turns.submitted(state)
        self.purses.submitted(job)
        if not (job.after or job.array) or self.gates.submitted(state, self.jobs):
            self._wait(state, at_s=at_s)
        else:
            state.phase = "pending"

    def _deadline_answered(self, event: events.DeadlineAnswered) -> None:
        self.told[event.job], self.jobs[event.job].is_answered = event, True
        self.odds.answered(event)
        self._change(event.job)  # its place in the order changes

    def _job_skipped(self, event: events.JobSkipped) -> None:
        state = self.jobs[event.job]
        assert state.phase == "pending", f"{event.job} is {state.phase} and cannot be skipped"
        state.phase, state.reason = "skipped", event.reason
        self._is_over(state, at_s=event.at_s)

    def _shape(self, job: Job) -> int:
        shape = self._shapes.setdefault(shape_of(job), len(self._shapes))
        if shape == len(self.of_shape):
            self.of_shape.append(job)
        return shape

    def _job_held(self, event: events.JobHeld) -> None:
        state = self.jobs[event.job]
        state.hold, state.hold_reason = True, event.reason
        if state.phase == "waiting":
            self.waiting.remove(state)
            state.phase, self.on_hold[event.job] = "held", state

    def _job_released(self, event: events.JobReleased) -> None:
        state = self.jobs[event.job]
        state.hold, state.hold_reason, state.released_s = False, None, event.at_s
        self.quotes.pop(event.job, None)
        if state.phase == "held":
            del self.on_hold[event.job]
            self._wait(state, at_s=event.at_s)

    def _move_requested(self, event: events.MoveRequested) -> None:
        self._change(event.job, sites=event.sites)
        give_quote(self, self.jobs[event.job], at_s=event.at_s, again=True)

    def _bid_changed(self, event: events.BidChanged) -> None:
        self._change(event.job, limit_microusd_per_gpu_hour=event.limit_microusd_per_gpu_hour)

    def _terms_changed(self, event: events.TermsChanged) -> None:
        self._change(event.job, priority=event.priority, deadline_s=event.deadline_s)
        self.due.pop(event.job, None)
        if event.deadline_s is not None and (state := self.jobs[event.job]).phase != "pending":
            self.due[event.job] = state
        give_quote(self, self.jobs[event.job], at_s=event.at_s, again=True)

    def _change(self, name: str, **changes: Any) -> None:  # noqa: ANN401 - fields of a job
        """Replace the job; it keeps its place in the log, and with it its age."""
        state = self.jobs[name]
        sets = [each for each in (self.waiting, self.running) if state.job.job in each]
        for each in sets:
            each.remove(state)
        state.job = replace(state.job, **changes)
        state.shape = self._shape(state.job)
        for each in sets:
            each.add(state)

    def _leases_in(self, pool: Pool) -> list[Lease]:
        at_site = self.leases_at.get(pool.site, {}).values()
        return [each for each in at_site if (node := self.nodes.get(each.node)) and node.pool == pool]

    def _pool_priced(self, event: events.PoolPriced) -> None:
        here = [lease for lease in self._leases_in(event.pool) if not lease.reservation]
        line = change_price(self.prices, event, here=here, everywhere=self.open_leases.values())
        self.reservations.earnings.set_price(event)
        for lease in self.leases_at.get(event.site, {}).values():
            if lease.line is line:
                self.limits.find(self.jobs[lease.job], lease)

    def _load_seen(self, event: events.LoadSeen) -> None:
        self.load.setdefault(event.pool, LoadLine()).add(event)

    def _tariff_set(self, event: events.TariffSet) -> None:
        over = paid_over(self._leases_in(event.pool), self.posted_prices().get(event.pool, 0))
        self.tariffs.setdefault(event.pool, TariffLine()).set(event, over=over)

    def _notice_given(self, event: events.NoticeGiven) -> None:
        lease = self.open_leases[event.lease]
        lease.notice_s, lease.notice = event.until_s, event.reason
        lease.tell("leave", at_s=event.at_s, until_s=event.until_s)
        self.warned[event.lease] = lease

    def _notice_withdrawn(self, event: events.NoticeWithdrawn) -> None:
        lease = self.open_leases[event.lease]
        lease.notice_s, lease.notice = None, None
        lease.tell("stay", at_s=event.at_s)

    def _lease_idle(self, event: events.LeaseIdle) -> None:
        lease = self.open_leases[event.lease]
        lease.is_watched, lease.idle_since_s = True, event.since_s

    def _lease_busy(self, event: events.LeaseBusy) -> None:
        lease = self.open_leases[event.lease]
        lease.is_watched, lease.idle_since_s = True, None

    def _gang_blocked(self, event: events.GangBlocked) -> None:
        state = self.jobs[event.job]
        if state.blocked_since_s is not None:
            state.blocked_s += max(0, event.at_s - state.blocked_since_s)
        state.blocked_since_s = event.at_s if event.blocked else None

    def _budgets_renewed(self, event: events.BudgetsRenewed) -> None:
        at_s, open_leases = event.since_s, self.open_leases.items()
        running = ((name, each) for name, each in open_leases if each.runs_at(at_s))
        costs = (Running(name, self.jobs[each.job].job, each.cost_microusd(at_s)) for name, each in running)
        self.purses.renewed(event, costs)

    def _credit_granted(self, event: events.CreditGranted) -> None:
        self.purses.credit(event.tenant, event.microusd)

    def _queues_set(self, event: events.QueuesSet) -> None:
        self.queues = event.queues
        for jobs in (self.waiting, self.running):
            jobs.forget_orders()  # they used the rules for the old queues

    def _wait(self, state: JobState, *, at_s: int) -> None:
        if state.job.gpus != state.job.min_gpus and state.job.max_gpus:
            self._change(state.job.job, gpus=state.job.min_gpus)
        state.waiting_since_s, state.phase = at_s, "held" if state.hold else "waiting"
        if state.hold:
            self.on_hold[state.job.job] = state
        else:
            self.waiting.add(state)
            give_quote(self, state, at_s=at_s)
        if state.job.deadline_s is not None:
            self.due[state.job.job] = state

    def _cancel_requested(self, event: events.CancelRequested) -> None:
        state = self.jobs[event.job]
        if state.phase in ("pending", "waiting", "held"):
            if state.phase == "waiting":
                self.waiting.remove(state)
            self.on_hold.pop(event.job, None)
            state.reason = say("fleet.cancelled_held" if state.phase == "held" else "fleet.cancelled_waiting")
            state.phase = "cancelled"
            self._is_over(state, at_s=event.at_s)
        elif state.phase not in OVER:
            state.cancel_requested = True
            if state.phase != "stopping":
                self.cancelling[event.job] = state

    def _lease_granted(self, event: events.LeaseGranted) -> None:
        state, node = self.jobs[event.job], self.nodes[event.node]
        job = state.job
        assert state.phase == "waiting", f"{event.job} is {state.phase} and cannot be given GPUs"
        parts = ((event.node, event.gpus), *event.rest)
        held = sum([len(gpus) for _, gpus in parts]) if event.rest else len(event.gpus)
        if job.max_gpus and held != job.gpus:
            self._change(event.job, gpus=held)
            job = state.job
        assert held in sizes_of(job), "a gang is placed whole"
        beside = beside_whom(self, event) if event.gpu_milli else []
        for name, gpus in () if beside else parts:  # check all before taking any
            self.capacity.check(name, gpus, job)
        for name, gpus in parts:
            self.capacity.take(name, gpus, job, beside=bool(beside))
        ran = bool(state.leases) and state.first_start_s is not None
        lease = Lease(
            lease=event.lease,
            job=event.job,
            site=node.site,
            node=event.node,
            gpu=node.gpu,
            gpus=event.gpus,
            size=held,
            gpu_milli=event.gpu_milli or job.gpu_milli,
            may_share=bool(event.gpu_milli),
            microusd_per_gpu_hour=event.microusd_per_gpu_hour,
            phase="granted",
            granted_s=event.at_s,
            microusd_per_gib=event.microusd_per_gib,
            rest=event.rest,
            speed=job.rate(node.gpu) * (job.spread_rate if event.rest else 1.0),
            setup_s=job.checkpoint_cost_s if ran else 0,
            line=self.prices.get(node.pool) if self.prices and not event.reservation else None,
            reservation=event.reservation,
        )
        self.reservations.lease_granted(event, node.pool, tenant=job.tenant, gpus=held)
        state.blocked_since_s, state.blocked_s = None, 0
        self.waiting.remove(state)
        self.leases[event.lease] = self.open_leases[event.lease] = lease
        self.unsettled[event.lease] = lease
        self.leases_at.setdefault(node.site, {})[event.lease] = lease
        for name, _ in parts:
            self.leases_on.setdefault(name, {})[event.lease] = lease
        self.cloud.begins(event.job, parts, at_s=event.at_s)
        state.leases.append(lease)
        state.phase = "starting"
        if event.in_turn:
            self.turns.granted(state, lease, at_s=event.at_s)
        self._use(job, held, at_s=event.at_s)

    def _lease_started(self, event: events.LeaseStarted) -> None:
        lease = self.open_leases[event.lease]
        state = self.jobs[lease.job]
        lease.started_s = event.at_s
        self.reservations.earnings.started(event.lease, at_s=event.at_s)
        if event.runs_on:
            self._runs_on(lease, state.job, event.runs_on)
        if event.resumes_s is not None:
            state.lose(proven_s=event.resumes_s)
        self.limits.find(state, lease)
        if lease.phase == "granted":
            lease.phase = state.phase = "running"
            del self.unsettled[lease.lease]
            self.running.add(state)
        if lease.may_share:
            change_pace(self, lease, at_s=event.at_s)

    def allotted(self, lease: Lease, runs_on: events.Parts) -> events.Parts | None:
        """The GPUs to count as held by a lease that runs there; None if that is impossible."""
        return allotted(self.capacity, lease, runs_on, first=self.nodes.get(lease.node))

    def _runs_on(self, lease: Lease, job: Job, runs_on: events.Parts) -> None:
        """The engine started it on other GPUs than ordered: those are taken, the ordered ones are free."""
        parts = self.allotted(lease, runs_on)
        assert parts is not None, f"{lease.lease} cannot run on {runs_on}"
        lease.runs_on = runs_on
        for name, gpus in lease.parts:
            self.capacity.give(name, gpus, job)
            del self.leases_on[name][lease.lease]
        for name, gpus in parts:
            self.capacity.take(name, gpus, job)
            self.leases_on.setdefault(name, {})[lease.lease] = lease
        (lease.node, lease.gpus), *rest = parts
        lease.rest = tuple(rest)

    def _lease_ending(self, event: events.LeaseEnding) -> None:
        lease = self.open_leases[event.lease]
        state = self.jobs[lease.job]
        if lease.phase == "running":
            self.running.remove(state)
        lease.phase, lease.reason, lease.requeue = "ending", event.reason, event.requeue
        lease.tell("stop", at_s=event.at_s)
        self.moves.ending(lease, at_s=event.at_s)
        state.phase = "stopping"
        state.preemptions += event.requeue
        self.unsettled[lease.lease] = lease
        self.cancelling.pop(lease.job, None)
        self.limits.forget(lease)

    def _lease_ended(self, event: events.LeaseEnded) -> None:
        ended, at_s = event.lease, event.at_s
        is_done = event.cause == "finished"  # even if it finished just before a stop took effect
        lease = self.open_leases.pop(ended)
        state = self.jobs[lease.job]
        job, stopped = state.job, lease.phase == "ending" and not is_done
        if lease.phase == "running":
            self.running.remove(state)
        else:
            self.unsettled.pop(ended, None)
        self.limits.forget(lease)
        self.warned.pop(ended, None)
        self.cancelling.pop(lease.job, None)
        del self.leases_at[lease.site][ended]
        for name, gpus in lease.parts:
            del self.leases_on[name][ended]
            beside = lease.may_share and leave_beside(self, lease, at_s=at_s)
            self.capacity.give(name, gpus, job, beside=beside)
        self.cloud.used(lease.parts, at_s=at_s)
        self._use(job, -lease.size, at_s=at_s)
        lease.phase, lease.exit_code, lease.exit_codes = "ended", event.exit_code, event.exit_codes
        waits = (lease.requeue or event.requeue) and not (is_done or state.cancel_requested)
        lease.close(at_s, moved_bytes=event.moved_bytes)
        lease.was_stopped, lease.reason = stopped, event.reason if is_done else lease.reason or event.reason
        lease.kept_work_s = event.kept_work_s or 0.0
        state.kept_work_s += lease.kept_work_s
        ran_s = lease.billed_s(at_s)
        self.turns.ended(state, lease, ran_s=ran_s, is_over=not waits, running=self.running.values())
        state.run_s += ran_s
        self._ended_gpu_milli_s += lease.size * lease.gpu_milli * ran_s
        owed = lease.cost_microusd(at_s)
        state.overrun_microusd += self.purses.close(job, ended, owed)
        self.purses.earned(self.reservations.lease_ended(event, owed=owed))
        left_early = lease.notice_s is not None and event.requeue  # it was on notice
        state.preemptions += left_early and not stopped
        if not stopped and not left_early and event.exit_code != 0:
            state.failures += event.cause not in NOT_ITS_FAULT
            state.avoid_site = lease.site
            doublings = min(max(0, state.failures - 1), AVOID_DOUBLINGS)
            state.avoid_until_s = event.at_s + AVOID_S * 2**doublings
        if waits:
            ran_s_on = state.run_s_on = state.run_s_on or {}
            ran_s_on[lease.gpu] = ran_s_on.get(lease.gpu, 0) + ran_s
            self._wait(state, at_s=event.at_s)
            return
        state.exit_code, state.reason = event.exit_code, lease.reason
        if state.cancel_requested:
            state.phase = "cancelled"
        elif stopped:
            state.phase = "stopped"  # whatever it reported: it was not done
        else:
            state.phase = "finished" if event.exit_code == 0 else "failed"
        self._is_over(state, at_s=at_s)

    def _is_over(self, state: JobState, *, at_s: int) -> None:
        if state.phase == "finished":
            self.finished.add(state, now_s=at_s)
            self.odds.finished(state.job, state.worked_s(at_s), submitted_s=state.submitted_s, at_s=at_s)
        else:
            self.odds.given_up(state.job.job)
        if state.phase == "failed":
            self.failed[state.job.job] = state
        state.ended_s = at_s
        self.last_end_s = max(self.last_end_s or 0, at_s)
        self.purses.over(state.job)
        for each in (self.due, self.told, self.elastic, self.quotes):
            each.pop(state.job.job, None)
        for ready in self.gates.over(state):
            ready.ready_s = at_s
            self._wait(ready, at_s=at_s)
        if self._keep is None:
            return
        self._over.append(state.job.job)
        while len(self._over) > self._keep:
            left = self.jobs.pop(self._over.popleft())
            self.failed.pop(left.job.job, None)
            self.gates.left(left.job)
            for lease in left.leases:
                del self.leases[lease.lease]
            if left.job.key:
                del self.keyed[left.job.submitter, left.job.key]
            self.leaving[left.job.job] = Left(seq=self.seq + 1, state=left)
            self.newest_left = max(self.newest_left, left.serial)

    def _use(self, job: Job, gpus: int, *, at_s: int) -> None:
        usage = self.usage.get(job.queue or job.tenant)
        if usage is None:
            usage = self.usage[job.queue or job.tenant] = Usage(as_of_s=at_s)
        usage.change(gpus, now_s=at_s)


# Each event has the method of its name. A table instead of an if-chain: it is looked up for every event.
_FOLDS: dict[type[Event], Callable[[Fleet, Any], object]] = {
    kind: getattr(Fleet, re.sub("([A-Z])", r"_\1", name).lower(), Fleet._cloud_changed)
    for name, kind in KINDS.items()
}
_FOLDS[events.BudgetSet] = lambda fleet, event: fleet.purses.set(event)
_FOLDS[events.BudgetWarned] = lambda fleet, event: fleet.purses.warned(event)
_FOLDS |= dict.fromkeys((PolicyAdopted, PolicyRehearsed), lambda fleet, event: fleet.adoption.apply(event))
_FOLDS |= dict.fromkeys(RESERVING, lambda fleet, event: fleet.purses.paid(fleet.reservations.paid_by(event)))
