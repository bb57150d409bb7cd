"""Actions of users on jobs: one place for API and console, with the same rights and audit log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from brimful.adapters.code import CodeStore
from brimful.errors import Refused
from brimful.fleet.arrays import Tasks
from brimful.fleet.job import Job
from brimful.fleet.queues import Quota
from brimful.fleet.state import JobState
from brimful.language import say, verbatim
from brimful.server.api.gate import Gate
from brimful.server.api.requests import BudgetRequest, Prediction, Submission, Terms
from brimful.server.api.seen import check_named, job_for, own_job
from brimful.server.auth import Principal, forbidden
from brimful.server.service.reader import Reader
from brimful.server.service.submissions import Submissions


class Verbs:
    def __init__(self, reader: Reader, submissions: Submissions, gate: Gate, code: CodeStore | None) -> None:
        self._reader, self._submissions, self._gate, self._code = reader, submissions, gate, code

    def cancel(self, who: Principal, name: str) -> JobState:
        return self._changed(who, "cancel", name, lambda: self._submissions.cancel(name))

    def hold(self, who: Principal, name: str, reason: str) -> JobState:
        because = verbatim(reason) if reason else say("server.held_by", who=who.name)
        return self._changed(who, "hold", name, lambda: self._submissions.hold(name, reason=because))

    def release(self, who: Principal, name: str) -> JobState:
        return self._changed(who, "release", name, lambda: self._submissions.release(name))

    def move(self, who: Principal, name: str, site: str) -> JobState:
        to = f" to {site or 'anywhere'}"
        return self._changed(who, "move", name, lambda: self._submissions.move(name, site), to)

    def bid(self, who: Principal, name: str, limit_microusd: int | None) -> JobState:
        return self._changed(
            who, "bid", name, lambda: self._submissions.bid(name, limit_microusd), f" {limit_microusd}"
        )

    def terms(self, who: Principal, name: str, asked: Terms) -> JobState:
        changes = asked.model_dump(exclude_unset=True)
        to = "".join(f" {key}={value}" for key, value in changes.items())
        return self._changed(who, "terms", name, lambda: self._submissions.terms(name, changes), to)

    def again(self, who: Principal, name: str, changes: Mapping[str, object]) -> JobState:
        """Submit the same command as a new job of the caller. A session can bring no other one."""
        job = job_for(self._reader, who, name).job
        if job.env:
            raise Refused(
                say("server.again_needs_env", name=name, names=", ".join(key for key, _ in job.env))
            )
        now_s = self._reader.now_s()
        return self.submit(who, Submission.model_validate({**submission_of(job, now_s=now_s), **changes}))

    def check(self, job: Job, tasks: Tasks | None) -> None:
        """Raise what a submit would be refused for."""
        self._submissions.check(job, tasks)

    def submit(self, who: Principal, submission: Submission) -> JobState:
        """For a page; of an array, the first task."""
        asked, tasks, made = submission.as_job(who, ""), submission.tasks(), ""
        with self._gate.audited(who, "job.submit", lambda: made):
            if not who.may("submitter", asked.tenant):
                raise forbidden(who, "submitter")
            check_named(self._reader, self._code, who, asked)
            state = self._submissions.submit(asked, tasks)
            made = state.job.job
        return state

    # -- of operators ----------------------------------------------------------------------------------

    def drain(self, who: Principal, node: str, own_words: str) -> None:
        reason = verbatim(own_words) if own_words else say("server.drained_by", who=who.name)
        with self._operating(who, "node.drain", node):
            self._submissions.drain(node, reason=reason)

    def resume(self, who: Principal, node: str) -> None:
        with self._operating(who, "node.resume", node):
            self._submissions.resume(node)

    def set_budget(self, who: Principal, name: str, asked: BudgetRequest) -> None:
        with self._operating(who, "budget.set", f"{name} {asked.microusd}"):
            self._submissions.set_budget(name, asked.microusd, asked.asked())

    def credit(self, who: Principal, tenant: str, microusd: int, reason: str) -> None:
        with self._operating(who, "budget.credit", f"{tenant} {microusd}"):
            self._submissions.grant_credit(tenant, microusd, reason)

    def set_queues(self, who: Principal, queues: tuple[Quota, ...]) -> None:
        with self._operating(who, "queues.set", " ".join(each.queue for each in queues)):
            self._submissions.set_queues(queues, by=who.name)

    @contextmanager
    def _operating(self, who: Principal, verb: str, target: str) -> Iterator[None]:
        with self._gate.audited(who, verb, lambda: target):
            if not who.may("operator"):
                raise forbidden(who, "operator")
            yield

    def may_change(self, who: Principal, name: str) -> bool:
        try:
            own_job(self._reader, who, name)
        except Refused:
            return False
        return True

    def _changed(
        self, who: Principal, verb: str, name: str, act: Callable[[], JobState], to: str = ""
    ) -> JobState:
        with self._gate.audited(who, f"job.{verb}", lambda: f"{name}{to}"):
            own_job(self._reader, who, name)
            return act()


def submission_of(job: Job, *, now_s: int) -> dict[str, object]:
    """The request that would run the same job again; a past deadline is left out."""
    same = {
        name: getattr(job, name)
        for name in Submission.model_fields
        if hasattr(job, name) and name not in ("array", "after", "env")
    }
    peaks, steps, mfus = dict(job.peak_bytes), dict(job.step_s), dict(job.mfu)
    curves = {gpu: dict(points) for gpu, points in job.curves}
    predicted = {
        gpu: Prediction(peak_bytes=peak, step_s=steps[gpu], mfu=mfus.get(gpu), scaling=curves.get(gpu, {}))
        for gpu, peak in peaks.items()
        if gpu in steps
    }
    slowest_s = max((each.step_s for each in predicted.values()), default=0.0)
    work_s = job.predicted_work_s
    late = job.deadline_s is not None and job.deadline_s <= now_s
    return same | {
        "gpus": f"{job.min_gpus}..{job.max_gpus}" if job.max_gpus else job.gpus,
        "scaling": curves.get("", {}),
        "cpus": job.cpu_milli / 1000,
        "compute": job.compute_milli / 1000,
        "predicted": predicted,
        "steps": round(work_s / slowest_s) if work_s and slowest_s else None,
        "deadline_s": None if late else job.deadline_s,
    }
