"""Adding jobs to the log: those that arrive together share one transaction."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from brimful.adapters.capabilities import KeepsEnvironments
from brimful.errors import BadInput, BrimfulError, NotFound, Refused
from brimful.fleet.arrays import TASKS_ENV, Tasks
from brimful.fleet.events import ArraySubmitted, DeadlineAnswered, Event, JobSubmitted
from brimful.fleet.job import PRIORITIES, SHELL_ENV, Job, at_size, lacks_values
from brimful.fleet.queues import Quota
from brimful.fleet.state import Fleet
from brimful.language import Plain, Quoted, Seconds, Usd, either, say
from brimful.language.near import similar, slips_of
from brimful.scheduler.budgets import Money
from brimful.scheduler.deadlines.promise import Slot, answer, slot_of
from brimful.server.service.reader import Reader
from brimful.specs.gpu import is_in_catalog, slips_of_gpus


@dataclass(slots=True)
class Pending:
    """A job whose submitter waits for an answer."""

    job: Job
    tasks: Tasks | None = None  # of an array
    name: str = ""
    is_new: bool = False
    error: BrimfulError | None = None

    @property
    def first(self) -> str:
        """The job, or the first task of the array."""
        return self.name if self.tasks is None else f"{self.name}_{self.tasks.indices[0]}"

    @property
    def count(self) -> int:
        return 1 if self.tasks is None else len(self.tasks.indices)

    def env(self) -> tuple[tuple[str, str], ...]:
        """One environment for all tasks of an array."""
        return self.job.env + (() if self.tasks is None else tuple(self.tasks.env().items()))


class _NotKept(Exception):
    """Storing its environment failed. That happens before the log, so the log certainly has nothing of it."""

    def __init__(self, why: BrimfulError) -> None:
        super().__init__(why.problem)
        self.why = why


class Write(Protocol):
    def __call__(
        self, make: Callable[[], Sequence[Event]], *, first: Callable[[], None] = ...
    ) -> Sequence[Event]: ...


class Intake:
    """Gives each job its number, in log order."""

    def __init__(
        self, reader: Reader, write: Write, keepers: Sequence[KeepsEnvironments], *, max_queued: int | None
    ) -> None:
        """`max_queued`: how many jobs one token may have waiting; None: any number."""
        self._reader, self._write, self._keepers = reader, write, keepers
        self._max_queued = max_queued
        self._numbering = threading.Lock()  # one at a time: what is stored for a number belongs to its winner

    def take(self, batch: Sequence[Pending]) -> None:
        """All of them in one transaction, since flushing it is most of a submit; each gets its name."""
        with self._numbering:
            self._take_batch(batch)

    def refusal(self, asked: Pending) -> BrimfulError | None:
        """Why it would not be accepted now, by itself."""
        with self._reader.locked():
            fleet, now_s = self._reader.fleet, self._reader.now_s()
            money = Money(fleet, now_s=now_s) if fleet.purses else None
            return _refusal(self._reader, asked, _Queued(fleet, self._max_queued), money, now_s=now_s)

    def _take_batch(self, batch: Sequence[Pending]) -> None:
        try:
            self._take_together(batch)
        except _NotKept as error:
            if len(batch) == 1:
                batch[0].error = error.why
            else:  # one bad job must not fail the others
                for each in batch:
                    self._take_batch([each])
        except BrimfulError as error:
            # If the answer to a commit was lost, they may be in the log: adding them again would duplicate
            # them. The client may retry with a key.
            for each in batch:
                each.error = error

    def _take_together(self, batch: Sequence[Pending]) -> None:
        def events() -> Sequence[Event]:
            fleet, now_s = self._reader.fleet, self._reader.now_s()
            made: list[Event] = []
            number = fleet.submitted + 1
            money = Money(fleet, now_s=now_s) if fleet.purses else None
            keyed: dict[tuple[str, str], Job] = {}
            queued = _Queued(fleet, self._max_queued)
            promising = _Promising(self._reader, now_s=now_s)
            for each in batch:
                job, key = each.job, (each.job.submitter, each.job.key)
                known = keyed.get(key) or _keyed_before(fleet, job)
                each.is_new = known is None
                each.error = None if known is None else _different_request(fleet, each, known)
                if known is not None:
                    each.name = known.array or known.job
                    continue
                count = each.count
                each.error = _refusal(self._reader, each, queued, money, now_s=now_s)
                if each.error is not None:
                    each.is_new = False
                    continue
                each.name = f"job-{number}"
                number += count
                env = _without_secrets(each.env()) if self._keepers else each.env()
                taken = replace(job, job=each.name, env=env)
                made += [_submitted(taken, each.tasks, at_s=now_s), *promising.answers(taken, each.tasks)]
                if job.key:
                    keyed[key] = taken
            return made

        def keep() -> None:
            try:
                for engine in self._keepers:
                    for each in batch:
                        if each.is_new and lacks_values(_without_secrets(each.env())):
                            engine.keep_env(each.name, dict(each.env()))
                        elif each.is_new:
                            engine.forget_env(each.name)  # of a failed submission under this number
            except BrimfulError as error:
                raise _NotKept(error) from error

        self._write(events, first=keep)


def _without_secrets(env: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """As the log has it: a value that only the engines keep is empty there."""
    return tuple((name, value if name in (*SHELL_ENV, *TASKS_ENV) else "") for name, value in env)


def _submitted(job: Job, tasks: Tasks | None, *, at_s: int) -> Event:
    if tasks is None:
        return JobSubmitted(at_s=at_s, job=job)
    return ArraySubmitted(at_s=at_s, job=job, indices=tasks.indices, at_most=tasks.at_most)


class _Queued:
    """How many jobs each token has waiting, counted only when it may be too many."""

    def __init__(self, fleet: Fleet, most: int | None) -> None:
        self._fleet, self._most = fleet, most
        self._new: Counter[str] = Counter()  # of this batch
        self._before: Counter[str] | None = None

    def refusal(self, job: Job, count: int) -> Refused | None:
        """Why these are too many; otherwise they count from now on."""
        fleet, who = self._fleet, job.submitter
        self._new[who] += count
        waiting = len(fleet.waiting) + len(fleet.on_hold) + len(fleet.gates.pending)
        if self._most is None or waiting + self._new.total() <= self._most:
            return None
        if self._before is None:
            those = (*fleet.waiting.values(), *fleet.on_hold.values(), *fleet.gates.pending.values())
            self._before = Counter(state.job.submitter for state in those)
        yours = self._before[who] + self._new[who]
        if yours <= self._most:
            return None
        self._new[who] -= count
        said = say("server.too_many_queued", yours=yours - count, more=count, most=self._most)
        return Refused(said, code="too_many")


class _Promising:
    """Answers deadlines; GPUs promised to one job of a batch are not promised to the next."""

    def __init__(self, reader: Reader, *, now_s: int) -> None:
        self._fleet, self._rules, self._now_s = reader.fleet, reader.rules, now_s
        self._sold = () if reader.market is None else frozenset(reader.market.in_fleet(reader.fleet))
        self._before: list[Slot] = []

    def answers(self, job: Job, tasks: Tasks | None) -> Sequence[DeadlineAnswered]:
        """One answer, or none if nothing can be said: for arrays, and for jobs without a bounded run time."""
        if tasks is not None:
            return ()
        fleet, rules = self._fleet, self._rules
        said = answer(fleet, rules, job, now_s=self._now_s, sold=self._sold, beside=self._before)
        if said is None:
            return ()
        slot = slot_of(fleet, rules, job, said)
        self._before += [] if slot is None else [slot]
        return [said]


def _keyed_before(fleet: Fleet, job: Job) -> Job | None:
    name = fleet.keyed.get((job.submitter, job.key)) if job.key else None
    return None if name is None else fleet.jobs[name].job


# Not compared: the number; the environment, whose values are not in the log and whose names depend on the
# shell; and what `move`, `bid` and `terms` change.
_NOT_COMPARED = frozenset({"job", "env", "array", "array_index"}) | {
    "sites",
    "limit_microusd_per_gpu_hour",
    "priority",
    "deadline_s",
}


def _different_request(fleet: Fleet, pending: Pending, known: Job) -> Refused | None:
    """Why a reused key with a different request is refused; None if it is the same request."""
    asked, known = pending.job, at_size(known, known.min_gpus) if known.max_gpus else known
    names = (each.name for each in fields(Job) if each.name not in _NOT_COMPARED)
    other = [name for name in names if getattr(asked, name) != getattr(known, name)]
    array = fleet.gates.arrays.get(known.array)
    if pending.tasks != (array and Tasks(array.indices, array.at_most)):
        other.append("array")
    if not other:
        return None
    return Refused(
        say("server.key_reused", key=Quoted(asked.key), job=known.job, other=", ".join(other)),
        code="key_reused",
    )


def _refusal(
    reader: Reader, asked: Pending, queued: _Queued, money: Money | None, *, now_s: int
) -> BrimfulError | None:
    """Why it is not accepted; otherwise it counts in `queued` and `money`."""
    job = asked.job
    return (
        unknown_site(job.sites, reader)
        or _unknown_gpu(job, reader)
        or not_in_queue(job, reader.fleet)
        or deadline_passed(job.deadline_s, now_s=now_s)
        or queued.refusal(job, asked.count)
        or _cannot_hold(job, money, asked.count)
    )


def unknown_site(wanted: Sequence[str], reader: Reader) -> NotFound | None:
    """A site that is not configured would be waited for for ever; one that does not answer is only late."""
    if not wanted:
        return None
    known = reader.sites()
    name = next((each for each in wanted if each not in known), None)
    if name is None:
        return None
    near, sites = similar(name, known), ", ".join(sorted(known))
    hint = say("server.hint_site", near=near[0], sites=sites) if near else None
    return NotFound(say("server.no_site", site=Quoted(name[:100]), sites=sites), hint=hint)


def _unknown_gpu(job: Job, reader: Reader) -> NotFound | None:
    """A mistyped type would be waited for for ever.

    The catalog's types may be bought some day; a site that does not answer, or has no node now, may have any.
    """
    asked = {name for name in job.gpu_types if not is_in_catalog(name)}
    if not asked:
        return None
    fleet = reader.fleet
    nodes, offers = fleet.nodes.values(), fleet.cloud.offers
    held = {node.gpu for node in nodes} | {pool.gpu for pool in offers}
    name = next(iter(sorted(asked - held)), None)
    if name is None:
        return None
    known = {node.site for node in nodes} | {pool.site for pool in offers}
    may_have = set(job.sites or reader.sites()) - (known - fleet.silent.keys())
    near = (slips_of(name, held) if may_have else similar(name, held, n=3)) or slips_of_gpus(name)
    if may_have and not near:
        return None
    has = ", ".join(sorted(held)) or say("scheduler.no_nodes")
    hint = say("fleet.fleet_has", held=has)
    if near:
        hint = say("fleet.hint_fleet_has", near=either(near[:3]), held=has)
    return NotFound(say("fleet.gpu_unknown", name=Quoted(name[:100])), hint=hint, code="unknown_gpu")


def not_in_queue(job: Job, fleet: Fleet) -> Refused | None:
    """Why its queue will never accept such a job."""
    name = job.queue or job.tenant
    quota = next((each for each in fleet.queues if each.queue == name), None)
    if name != job.tenant if quota is None else not quota.is_for(job.tenant):
        # An unknown queue is refused in the same words: under `fair` its use would count for nobody.
        yours = [each.queue for each in fleet.queues if each.is_for(job.tenant)] or [job.tenant]
        said = say("server.not_your_queue", queue=Quoted(name), tenant=job.tenant, yours=", ".join(yours))
        return Refused(said, code="not_your_queue")
    if quota is None:
        return None
    if PRIORITIES[job.priority] < PRIORITIES[quota.top_priority]:
        said = say(
            "server.above_top_priority", queue=name, top=Plain(quota.top_priority), priority=job.priority
        )
        return Refused(said, code="above_limit")
    if quota.user_gpus is not None and job.gpus > quota.user_gpus:
        said = say("server.above_user_gpus", queue=name, gpus=job.gpus, most=quota.user_gpus)
        return Refused(said, code="above_limit")
    if quota.borrow_gpus is not None and job.gpus > quota.gpus + quota.borrow_gpus:
        most = {"most": quota.gpus + quota.borrow_gpus, "own": quota.gpus, "borrows": quota.borrow_gpus}
        return Refused(say("server.above_queue", queue=name, gpus=job.gpus, **most), code="above_limit")
    return _above_types(job, quota)


def _above_types(job: Job, quota: Quota) -> Refused | None:
    limits, name = dict(quota.type_gpus), quota.queue
    # A job for any type is not refused: the fleet may get one that has no limit.
    allowed = job.gpu_types or tuple(gpu for gpu, _ in job.rates)
    if allowed and all(limits.get(gpu, job.gpus) < job.gpus for gpu in allowed):
        gpu = max(allowed, key=lambda gpu: limits[gpu])
        said = say("server.above_type_gpus", queue=name, gpus=job.gpus, gpu=gpu, most=limits[gpu])
        return Refused(said, code="above_limit")
    return None


def deadline_passed(deadline_s: int | None, *, now_s: int) -> BadInput | None:
    if deadline_s is None or deadline_s > now_s:
        return None
    return BadInput(say("server.deadline_passed", late=Seconds(now_s - deadline_s)))


def _cannot_hold(job: Job, money: Money | None, times: int) -> Refused | None:
    """A job's own budget is set aside from its tenant's, which must have enough, for each array task."""
    if job.budget_microusd is None or money is None:
        return None
    budget = job.budget_microusd * times
    found = money.for_job(job)
    if found is not None and budget > found[1]:
        left = Usd(max(0, found[1]))
        said = say("server.budget_too_small", tenant=found[0], left=left, budget=Usd(budget))
        return Refused(said, code="no_money")
    money.set_aside(job, budget)
    return None
