"""Jobs and their leases."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

from brimful.adapters.stores.past import PastJob
from brimful.client.answers import ArrayAnswer, JobAnswer, LeaseAnswer, PromiseAnswer, alike
from brimful.errors import Said
from brimful.fleet.state import OVER, JobState, Lease
from brimful.language import Language, Percent, Seconds, count, say, told, tongue
from brimful.scheduler.ordering import waiting_in_order
from brimful.server.service.reader import Reader

PAST_LOOKED_AT = 5000  # jobs that have left memory, per page


Shown = TypeVar("Shown")  # JobAnswer, or the same as JSON


class Page(NamedTuple, Generic[Shown]):
    views: list[Shown]
    next_serial: int | None  # where the next page starts; None: this was the last


def job_view(
    reader: Reader,
    state: JobState,
    *,
    explain: bool = True,
    with_array: bool = True,
    posted_microusd: int | None = None,
) -> JobAnswer:
    """`explain` finds out why it waits, which takes a decision; after a change, callers can ask again.

    `with_array` sums over all tasks of its array; a list of those tasks must not do that for each.
    `posted_microusd`: what is on the ledger for it, if that is known; otherwise the store is asked if needed.
    """
    with reader.locked():
        job, now_s = state.job, reader.now_s()
        lease = state.open_lease
        why = _why(reader, state, explain=explain)
        measured, not_measured = reader.samples.view(state, now_s=now_s)
        return {
            **alike(JobAnswer, state, job),
            "queue": job.queue or job.tenant,
            "phase": reader.phase_of(state),
            "why": told(why) if why else "",
            "why_code": why.as_dict() if why else None,
            "now_s": now_s,
            "started_s": state.first_start_s,
            "promise": promise_view(reader, state),
            "delay_s": round(state.delay_s(now_s)),
            "node": lease.node if lease else None,
            "site": lease.site if lease else None,
            # What is on the ledger, and the running lease's cost so far on top.
            "posted_microusd": reader.spent_microusd(job.job) if posted_microusd is None else posted_microusd,
            "cost_microusd": state.billed_microusd(now_s),
            "predicted": _predicted(state),
            "array_tasks": _array(reader, job.array, now_s=now_s) if with_array else None,
            "measured": measured,
            "not_measured": not_measured,
            "leases": [lease_view(each, now_s=now_s) for each in state.leases],
        }


Made = dict[tuple[int, int, bool, Language], str]


def _none_made(_reader: Reader) -> Made:
    return {}


def job_text(
    reader: Reader, state: JobState, *, with_array: bool = True, posted_microusd: int | None = None
) -> str:
    """The same as JSON, made once per state of the log and second: many lists show the same jobs."""
    with reader.locked():
        made = reader.once(_none_made)
        key = (state.serial, reader.samples.reads, with_array, tongue())
        text = made.get(key)
        if text is None:
            view = job_view(reader, state, with_array=with_array, posted_microusd=posted_microusd)
            text = made[key] = json.dumps(view, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text


def promise_view(reader: Reader, state: JobState) -> PromiseAnswer | None:
    """What was promised about its deadline at submit."""
    said, now_s = reader.fleet.told.get(state.job.job), reader.now_s()
    if said is None:
        return None
    left = None if said.done_by_s is None else Seconds(abs(said.done_by_s - now_s))
    chance = None if said.work_s is None else said.chance
    likely = "" if chance is None else "_likely"
    odds = {} if chance is None else {"chance": Percent(chance)}
    if left is None:
        words = say("server.deadline_never")
    elif not said.is_promised:
        words = say(f"server.deadline_refused{likely}", left=left, **odds)
    elif said.done_by_s is not None and said.done_by_s < now_s:
        words = say("server.deadline_promised_broken", left=left, gpu=said.gpu)
    else:
        words = say(f"server.deadline_promised{likely}", left=left, gpu=said.gpu, **odds)
    done_by_s, is_promised = said.done_by_s, said.is_promised
    return {"is_promised": is_promised, "done_by_s": done_by_s, "chance": chance, "said": told(words)}


def _predicted(state: JobState) -> dict[str, dict[str, float | None]]:
    job = state.job
    bytes_of, step_of, mfu_of = dict(job.peak_bytes), dict(job.step_s), dict(job.mfu)
    return {
        gpu: {
            "peak_bytes": bytes_of.get(gpu),
            "step_s": step_of.get(gpu),
            "mfu": mfu_of.get(gpu),
            "rate": rate,
        }
        for gpu, rate in job.rates
    }


def _array(reader: Reader, name: str, *, now_s: int) -> ArrayAnswer | None:
    array = reader.fleet.gates.arrays.get(name)
    if array is None:
        return None
    return {
        "tasks": len(array.indices),
        "at_most": array.at_most,
        "phases": array.phases(),
        "run_s": array.run_s(now_s),
        "cost_microusd": array.cost_microusd(now_s),
    }


def _why(reader: Reader, state: JobState, *, explain: bool) -> Said | None:
    lease, now_s = state.open_lease, reader.now_s()
    if lease is not None and (lost := reader.fleet.silent.get(lease.site)) is not None:
        silent = Seconds(max(0, now_s - lost.at_s))
        return say("server.site_silent", site=lease.site, silent=silent, reason=reader.why_lost(lost))
    if state.phase == "waiting":
        return reader.why_waiting(state.job.job) if explain else None
    if state.phase in ("held", "pending"):
        return state.hold_reason if state.phase == "held" else reader.fleet.gates.why(state.job)
    if state.phase == "starting" and lease is not None:
        return reader.health.waiting.get(lease.lease)
    if lease is not None and state.phase == "running":
        return _why_running(lease, now_s=now_s) or state.reason
    return state.leases[-1].reason if state.phase == "stopping" else state.reason


def _why_running(lease: Lease, *, now_s: int) -> Said | None:
    """What there is to say about a running job: that it will have to leave, or that it is idle."""
    if lease.notice_s is not None:
        return say("server.notice", left=Seconds(max(0, lease.notice_s - now_s)), reason=lease.notice)
    if lease.idle_since_s is None:
        return None
    quiet = Seconds(max(0, now_s - lease.idle_since_s))
    return say("server.is_idle", gpus=count("gpu", lease.size), quiet=quiet)


def lease_view(lease: Lease, *, now_s: int) -> LeaseAnswer:
    return {
        **alike(LeaseAnswer, lease),
        "billed_s": lease.billed_s(now_s),
        "notices": [
            {"at_s": at_s, "told": what, "until_s": until_s} for at_s, what, until_s in lease.notices
        ],
        "microusd_per_gpu_hour": lease.price_paid(),
        "cost_microusd": lease.cost_microusd(now_s),
        "reason": told(lease.reason) if lease.reason else "",
        "reason_code": lease.reason.as_dict() if lease.reason else None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Filters of a job list; unset ones match everything."""

    phases: Collection[str] | None = None
    tenants: Collection[str] | None = None
    array: str | None = None
    user: str | None = None
    text: str = ""  # in its number, name, command, user, team or node

    def has(self, reader: Reader, state: JobState) -> bool:
        job = state.job
        return (
            (self.tenants is None or job.tenant in self.tenants)
            and (not self.phases or state.phase in self.phases or reader.phase_of(state) in self.phases)
            and (self.array is None or job.array == self.array)
            and (self.user is None or job.user == self.user)
            and (not self.text or self._says(state))
        )

    def _says(self, state: JobState) -> bool:
        job, lease = state.job, state.open_lease
        parts = (job.job, job.name, *job.command, job.user, job.tenant, *job.gpu_types)
        where = () if lease is None else (lease.node, lease.site, lease.gpu)
        return self.text.casefold() in " ".join((*parts, *where)).casefold()


def jobs_page(
    reader: Reader,
    show: Callable[..., Shown],
    *,
    before: int | None = None,
    limit: int = 200,
    fold: bool = False,
    wanted: Wanted | None = None,
) -> Page[Shown]:
    """Newest first, starting before this serial; with `fold` one task stands for its array.

    `show`: job_view or job_text.
    """
    wanted = wanted or Wanted()
    only_over = bool(wanted.phases) and OVER.issuperset(wanted.phases or ())
    seen: set[str] = set()

    def is_wanted(state: JobState) -> bool:
        name = state.job.array
        if not wanted.has(reader, state) or (fold and name in seen):
            return False
        if name in reader.fleet.gates.arrays:  # an array that has left memory has no totals
            seen.add(name)
        return True

    with reader.locked():
        states = (
            state
            for state in reversed(reader.fleet.jobs.values())
            # Skips thousands of unfinished jobs quickly.
            if not (only_over and state.ended_s is None)
            and (before is None or state.serial < before)
            and is_wanted(state)
        )
        found = {state.serial: state for state in islice(states, limit + 1)}
        newest_past = reader.fleet.newest_left
    posted: dict[int, int] = {}
    stopped: int | None = None
    enough = min(found) if len(found) > limit else -1  # nothing older would be shown
    if newest_past > enough and (not wanted.phases or OVER & {*wanted.phases}):
        looked, last = 0, None
        for past in _past(reader, before, enough, wanted.tenants, limit):
            looked, last = looked + 1, past.state.serial
            if last < enough:
                break
            if is_wanted(past.state):
                found.setdefault(past.state.serial, past.state)
                posted[past.state.serial] = past.spent_microusd
            if len(posted) > limit or looked >= PAST_LOOKED_AT:
                stopped = last
                break
    serials = [each for each in sorted(found, reverse=True) if stopped is None or each >= stopped]
    views = [
        show(reader, found[serial], with_array=fold, posted_microusd=posted.get(serial))
        for serial in serials[:limit]
    ]
    # A search for something rare in a long past gets a short page, and continues from where it ends.
    return Page(views, serials[limit - 1] if len(serials) > limit else stopped)


def _past(
    reader: Reader, before: int | None, after: int, tenants: Collection[str] | None, limit: int
) -> Iterator[PastJob]:
    """Jobs that have left memory, newest first, only as many as requested."""
    while page := reader.past_jobs(
        before_serial=before, after_serial=after, limit=limit + 1, tenants=tenants
    ):
        yield from page
        before = page[-1].state.serial


def active_page(
    reader: Reader,
    show: Callable[..., Shown],
    *,
    order: str,
    after: int = 0,
    limit: int = 200,
    fold: bool = False,
    wanted: Wanted,
) -> Page[Shown]:
    """Unfinished jobs, from this index on.

    `next`: running jobs, then waiting ones in the order in which they are tried, then those on hold.
    """
    with reader.locked():
        fleet, now_s = reader.fleet, reader.now_s()
        running = (fleet.jobs[lease.job] for lease in reversed(fleet.open_leases.values()))
        rest = chain(fleet.on_hold.values(), fleet.gates.pending.values())
        waiting = (
            waiting_in_order(fleet, reader.rules, now_s=now_s) if order == "next" else fleet.waiting.values()
        )
        states: Iterator[JobState] = (s for s in chain(running, waiting, rest) if wanted.has(reader, s))
        states = _folded(states) if fold else states
        if order != "next":
            states = iter(sorted(states, key=lambda state: (-ORDERS[order](state, now_s), state.serial)))
        # One more than is shown tells whether there are more; the thousands after it are skipped.
        found = list(islice(states, after, after + limit + 1))
        views = [show(reader, state, with_array=fold) for state in found[:limit]]
        return Page(views, after + limit if len(found) > limit else None)


def _folded(states: Iterable[JobState]) -> Iterator[JobState]:
    """The first of each array."""
    seen: set[str] = set()
    for state in states:
        if not state.job.array or state.job.array not in seen:
            seen.add(state.job.array)
            yield state


ORDERS: Mapping[str, Callable[[JobState, int], float]] = {
    "wait": lambda state, now_s: now_s - state.waiting_since_s if state.open_lease is None else -1,
    "gpus": lambda state, _now_s: state.job.gpus,
    "cost": lambda state, now_s: state.billed_microusd(now_s),
}
