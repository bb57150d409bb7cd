"""Everything that users append to the log: jobs, and changes to jobs, nodes and budgets."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from brimful.adapters.capabilities import Admits, KeepsEnvironments
from brimful.errors import BadInput, BrimfulError, NotFound, Refused, Said, WorldFailed
from brimful.fleet.arrays import Tasks
from brimful.fleet.events import (
    BidChanged,
    CancelRequested,
    CreditGranted,
    Event,
    JobHeld,
    JobReleased,
    LeaseEnding,
    MoveRequested,
    NodeDrained,
    NodeResumed,
    QueuesSet,
    TermsChanged,
)
from brimful.fleet.job import Job
from brimful.fleet.queues import Quota
from brimful.fleet.state import OVER, JobState
from brimful.language import Quoted, Usd, say
from brimful.market.pools import limit_of
from brimful.scheduler.loop import MAX_CONFLICTS
from brimful.scheduler.ports import Store
from brimful.scheduler.queue_tree import check_parents
from brimful.server.service.budgets import AS_IT_IS, BudgetAsked, checked_budget
from brimful.server.service.intake import Intake, Pending, deadline_passed, not_in_queue, unknown_site
from brimful.server.service.reader import Reader
from brimful.units import show_usd

log = logging.getLogger("brimful")


class Submissions:
    def __init__(
        self,
        reader: Reader,
        store: Store,
        keepers: Sequence[KeepsEnvironments],
        *,
        wake: Callable[[], None],
        max_queued: int | None = None,
        admitting: Sequence[Admits] = (),
    ) -> None:
        """`store`: one that readers follow; `wake` makes the loop look at what was written."""
        self._admitting = admitting
        self._reader, self._store, self._wake = reader, store, wake
        self._intake = Intake(reader, self._append, keepers, max_queued=max_queued)

    # -- jobs ------------------------------------------------------------------------------------------

    def submit(self, job: Job, tasks: Tasks | None = None) -> JobState:
        (done,) = self.submit_all([Pending(job, tasks)])
        if isinstance(done, Exception):
            raise done
        return done

    def submit_all(self, asked: Sequence[Pending]) -> Sequence[JobState | BrimfulError]:
        """Accept jobs, or arrays, whose first task is returned. Numbers follow the log.

        The values of a job's environment go to the engines before the job is in the log, and never into the
        log. A second submission with a submitter's key is the first one: it returns the job that was created.
        """
        for each in asked:
            try:
                self._check_named(each.job)
            except BrimfulError as error:
                each.error = error
        self._intake.take([each for each in asked if each.error is None])
        for each in asked:
            if each.is_new and each.error is None:
                # Without its command: people put passwords on command lines.
                job, times = each.job, "" if each.tasks is None else f"{len(each.tasks.indices)} x "
                asked_for = f"{times}{job.gpus} GPU(s), {job.priority}"
                log.info("%s submitted by %s: %s", each.name, job.tenant, asked_for)
        self._wake()
        return [each.error or self._taken(each.first) for each in asked]

    def check_tenants(self) -> None:
        """Raise if the log has jobs of tenants that this server would not accept beside each other.

        An earlier one kept them apart, or was allowed not to. Its jobs need not be submitted again, and what
        they left lies where the next tenant's could read it.
        """
        if os.geteuid() != 0:
            return  # all jobs have always run as one user
        tenants = sorted({state.job.tenant for state in self._reader.fleet.jobs.values()})
        for engine in self._admitting:
            for tenant in tenants:
                try:
                    engine.admit(tenant)
                except Refused as refused:
                    if refused.code == "second_tenant":
                        raise

    def check(self, job: Job, tasks: Tasks | None) -> None:
        """Raise if `submit` would not accept it now."""
        self._check_named(job)
        if (refused := self._intake.refusal(Pending(job, tasks))) is not None:
            raise refused

    def _taken(self, name: str) -> JobState | BrimfulError:
        """A job accepted long ago with the same key may have to be read from the database."""
        try:
            return self._reader.job(name)
        except BrimfulError as error:
            return error

    def _check_named(self, job: Job) -> None:
        """Its tenant may run here, and no job it waits for has ended so that it could never start."""
        for engine in self._admitting:
            engine.admit(job.tenant)
        for name, rule in job.after:
            array = self._reader.array(name)
            phases = [self._reader.job(name).phase] if array is None else list(array.phases())
            ended = [phase for phase in phases if phase in OVER and phase != "finished"]
            if rule == "ok" and ended:
                raise Refused(
                    say("server.never_starts", after=name, verb=say(f"fleet.verb_{ended[0]}")),
                    code="never_starts",
                )

    def cancel(self, name: str) -> JobState:
        def events(state: JobState, now_s: int) -> Sequence[Event]:
            if state.phase in OVER:
                raise _over(state.job.job, state.phase)
            return [CancelRequested(at_s=now_s, job=state.job.job)]

        return self._change(name, "cancel", events)

    def hold(self, name: str, *, reason: Said) -> JobState:
        """Keep it from starting; a running job is stopped like a preempted one. Repeating changes nothing."""

        def events(state: JobState, now_s: int) -> Sequence[Event]:
            if _active(state).hold:
                return ()
            return [
                JobHeld(at_s=now_s, job=state.job.job, reason=reason),
                *_stop_of(state, reason, now_s=now_s),
            ]

        return self._change(name, "hold", events)

    def release(self, name: str) -> JobState:
        def events(state: JobState, now_s: int) -> Sequence[Event]:
            return [JobReleased(at_s=now_s, job=state.job.job)] if _active(state).hold else ()

        return self._change(name, "release", events)

    def move(self, name: str, site: str) -> JobState:
        """From now on it runs at this site (empty: at any); if it runs elsewhere it is stopped first."""

        def events(state: JobState, now_s: int) -> Sequence[Event]:
            job, lease = _active(state).job, state.open_lease
            wanted = (site,) if site else ()
            if (unknown := unknown_site(wanted, self._reader)) is not None:
                raise unknown
            if job.sites == wanted:
                return ()
            moved = MoveRequested(at_s=now_s, job=state.job.job, sites=wanted)
            if not site or lease is None or lease.site == site:
                return [moved]
            return [moved, *_stop_of(state, say("scheduler.moves_to", where=site), now_s=now_s)]

        return self._change(name, "move", events)

    def bid(self, name: str, limit_microusd: int | None) -> JobState:
        """Change the limit of an unfinished job; a running job cannot go below what it pays."""

        def events(state: JobState, now_s: int) -> Sequence[Event]:
            job, lease = _active(state).job, state.open_lease
            if job.limit_microusd_per_gpu_hour == limit_microusd:
                return ()
            # Its node may be gone.
            node = None if lease is None else self._reader.fleet.nodes.get(lease.node)
            floor = 0 if node is None else self._reader.floor_microusd(node.pool)
            now = limit_of(replace(job, limit_microusd_per_gpu_hour=limit_microusd), floor=floor)
            if lease is not None and now < lease.price_now():
                price = show_usd(lease.price_now())
                raise Refused(
                    say("server.bid_below_price", name=name, price=price, now=Usd(now)), code="below_price"
                )
            return [BidChanged(at_s=now_s, job=state.job.job, limit_microusd_per_gpu_hour=limit_microusd)]

        return self._change(name, "bid", events)

    def terms(self, name: str, changes: Mapping[str, Any]) -> JobState:
        """Change the class or deadline of an unfinished job, within what its queue allows."""

        def events(state: JobState, now_s: int) -> Sequence[Event]:
            job = replace(_active(state).job, **changes)
            if job == state.job:
                return ()
            if (refused := not_in_queue(job, self._reader.fleet)) is not None:
                raise refused
            if job.deadline_s is not None and job.max_gpus:
                said = say("server.elastic_deadline", least=job.min_gpus, most=job.max_gpus)
                raise BadInput(said, code="unsupported")
            if (late := deadline_passed(job.deadline_s, now_s=now_s)) is not None:
                raise late
            return [TermsChanged(at_s=now_s, job=job.job, priority=job.priority, deadline_s=job.deadline_s)]

        return self._change(name, "terms", events)

    # -- nodes -----------------------------------------------------------------------------------------

    def drain(self, node: str, *, reason: Said) -> None:
        """Nothing new starts there; running jobs continue."""

        drained = NodeDrained(at_s=self._reader.now_s(), node=node, reason=reason)
        self._write(lambda: () if self._is_drained(node) else [drained])

    def resume(self, node: str) -> None:
        resumed = NodeResumed(at_s=self._reader.now_s(), node=node)
        self._write(lambda: [resumed] if self._is_drained(node) else ())

    def _is_drained(self, node: str) -> bool:
        if node not in self._reader.fleet.nodes:
            raise NotFound(say("server.no_node", node=Quoted(node[:100])))
        return node in self._reader.fleet.drained

    # -- queues ----------------------------------------------------------------------------------------

    def set_queues(self, queues: tuple[Quota, ...], *, by: str) -> None:
        """Only these queues have quotas and limits. Repeating changes nothing."""
        check_parents(queues)
        changed = QueuesSet(at_s=self._reader.now_s(), queues=queues, by=by)
        self._write(lambda: () if self._reader.fleet.queues == queues else [changed])

    # -- budgets ---------------------------------------------------------------------------------------

    def set_budget(self, name: str, microusd: int | None, asked: BudgetAsked = AS_IT_IS) -> None:
        """What may be spent; the cost of running leases so far counts."""
        self._write(lambda: [checked_budget(self._reader, name, microusd, asked)])

    def grant_credit(self, tenant: str, microusd: int, reason: str) -> None:
        given = CreditGranted(at_s=self._reader.now_s(), tenant=tenant, microusd=microusd, reason=reason)
        self._write(lambda: [given])

    def note(self, make: Callable[[], Sequence[Event]]) -> Sequence[Event]:
        """Append events made from the state at the time of writing; returns them."""
        return self._write(make)

    # -- the log ---------------------------------------------------------------------------------------

    def _change(self, name: str, verb: str, events: Callable[[JobState, int], Sequence[Event]]) -> JobState:
        """Append what follows from the job's current state; for an array, from each unfinished task."""
        states: Sequence[JobState] = ()

        def made() -> Sequence[Event]:
            nonlocal states
            array, now_s = self._reader.array(name), self._reader.now_s()
            if array is None:
                states = [self._reader.job(name)]
            else:
                states = [each for each in array.unfinished.values() if not each.cancel_requested]
            if not states:
                raise _over(name, "ended")
            return [event for state in states for event in events(state, now_s)]

        if self._write(made):
            log.info("%s: %s requested", name, verb)
        return self._reader.job(states[0].job.job)

    def _write(self, events: Callable[[], Sequence[Event]]) -> Sequence[Event]:
        written = self._append(events)
        self._wake()
        return written

    def _append(
        self, make: Callable[[], Sequence[Event]], *, first: Callable[[], None] = lambda: None
    ) -> Sequence[Event]:
        """Append the events made from the current state, all or none; retried if another writer was faster.

        `first` must be done, outside the lock, before they may be in the log.
        """
        for _ in range(MAX_CONFLICTS):
            with self._reader.locked():
                events, after = make(), self._reader.fleet.seq
            if not events:
                return ()
            first()
            if self._store.append(events, after=after):
                return events
            self._reader.refresh()
        raise WorldFailed(say("server.log_busy", times=MAX_CONFLICTS), code="log_busy")


def _active(state: JobState) -> JobState:
    """The same, if it is not over."""
    if state.phase in OVER or state.cancel_requested:
        raise _over(state.job.job, state.phase if state.phase in OVER else "")
    return state


def _over(name: str, phase: str) -> Refused:
    """`phase`: how it ended; empty while it is being cancelled."""
    verb = say(f"fleet.verb_{phase}") if phase else say("server.being_cancelled")
    return Refused(say("server.job_already", name=name, verb=verb))


def _stop_of(state: JobState, reason: Said, *, now_s: int) -> Sequence[Event]:
    """The event that ends its lease so that it waits again, if it has one that was not told to end."""
    lease = state.open_lease
    if lease is None or lease.phase == "ending":
        return ()
    return [LeaseEnding(at_s=now_s, lease=lease.lease, reason=reason, requeue=True)]
