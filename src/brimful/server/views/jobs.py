"""Jobs and their leases."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import NamedTuple

from brimful.adapters.stores.past import PastJob
from brimful.client.answers import ArrayAnswer, JobAnswer, LeaseAnswer, alike
from brimful.errors import Said
from brimful.fleet.state import OVER, JobState, Lease
from brimful.language import Seconds, count, say, told
from brimful.server.service.reader import Reader


class Page(NamedTuple):
    views: list[JobAnswer]
    next_serial: int | None  # where the next page begins; None: this was the last


def job_view(reader: Reader, state: JobState, *, explain: bool = True, with_array: bool = True) -> JobAnswer:
    """`explain` finds out why it waits, which takes a decision; who has just changed it can ask again.

    `with_array` adds up all tasks of its array, which a list of these tasks must not do for each.
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
            "delay_s": round(state.delay_s(now_s)),
            "node": lease.node if lease else None,
            "site": lease.site if lease else None,
            # What is on the ledger, and what the running lease has come to on top of that.
            "posted_microusd": reader.spent_microusd(job.job),
            "cost_microusd": state.billed_microusd(now_s),
            "predicted": _predicted(state),
            "array_tasks": _array(reader, job.array, now_s=now_s) if with_array else None,
            "measured": measured,
            "not_measured": not_measured,
            "leases": [lease_view(each, now_s=now_s) for each in state.leases],
        }


def _predicted(state: JobState) -> dict[str, dict[str, float | None]]:
    job = state.job
    bytes_of, step_of = dict(job.peak_bytes), dict(job.step_s)
    return {
        gpu: {"peak_bytes": bytes_of.get(gpu), "step_s": step_of.get(gpu), "rate": rate}
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
    if lease is not None and lease.site in reader.fleet.silent:
        lost = reader.fleet.silent[lease.site]
        silent = Seconds(max(0, now_s - lost.at_s))
        return say("server.site_silent", site=lease.site, silent=silent, reason=lost.reason)
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
    """What there is to say of a job that runs: that it will have to leave, or that it does nothing."""
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
        "microusd_per_gpu_hour": lease.price_paid(),
        "cost_microusd": lease.cost_microusd(now_s),
        "reason": told(lease.reason) if lease.reason else "",
        "reason_code": lease.reason.as_dict() if lease.reason else None,
    }


def jobs_page(
    reader: Reader,
    *,
    before: int | None = None,
    limit: int = 200,
    phases: Collection[str] | None = None,
    tenants: Collection[str] | None = None,
    array: str | None = None,
    fold: bool = False,
) -> Page:
    """Newest first, from the job before that serial on; with `fold` one task stands for its array."""
    seen: set[str] = set()

    def is_wanted(state: JobState) -> bool:
        name = state.job.array
        if (array is not None and name != array) or (fold and name in seen):
            return False
        if name in reader.fleet.gates.arrays:  # of one that has left memory nobody has the sums
            seen.add(name)
        return True

    with reader.locked():
        wanted = (
            state
            for state in reversed(reader.fleet.jobs.values())
            if (before is None or state.serial < before)
            and (tenants is None or state.job.tenant in tenants)
            and (not phases or not {state.phase, reader.phase_of(state)}.isdisjoint(phases))
            and is_wanted(state)
        )
        found = {state.serial: state for state in islice(wanted, limit + 1)}
        has_past = reader.fleet.submitted > len(reader.fleet.jobs)
    posted: dict[int, int] = {}
    if has_past and (not phases or OVER & {*phases}):
        past_jobs = _past(reader, before, phases, tenants, limit)
        for past in islice((each for each in past_jobs if is_wanted(each.state)), limit + 1):
            found.setdefault(past.state.serial, past.state)
            posted[past.state.serial] = past.spent_microusd
    serials = sorted(found, reverse=True)
    views = [job_view(reader, found[serial], with_array=fold) for serial in serials[:limit]]
    for serial, view in zip(serials, views, strict=False):
        view["posted_microusd"] = posted.get(serial, view["posted_microusd"])
    return Page(views, serials[limit - 1] if len(serials) > limit else None)


def _past(
    reader: Reader,
    before: int | None,
    phases: Collection[str] | None,
    tenants: Collection[str] | None,
    limit: int,
) -> Iterator[PastJob]:
    """Jobs that have left memory, newest first, as many as are asked for."""
    while page := reader.past_jobs(before_serial=before, limit=limit + 1, tenants=tenants):
        yield from (past for past in page if not phases or past.state.phase in phases)
        before = page[-1].state.serial
