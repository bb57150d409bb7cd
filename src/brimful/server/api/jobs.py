"""Routes of jobs: submit, list, show, explain, and what can be body of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Path, Query
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from brimful.adapters.code import CodeStore
from brimful.client.answers import JobAnswer, JobsAnswer, LogAnswer, Phase, WhyAnswer
from brimful.errors import NotFound
from brimful.fleet.job import Job
from brimful.fleet.state import JobState
from brimful.language import Quoted, say, verbatim
from brimful.server.api.answers import envelope
from brimful.server.api.code import no_code
from brimful.server.api.cursors import Cursor, page_after, read_cursor
from brimful.server.api.errors import CHANGING, COMMON, ok
from brimful.server.api.gate import Gate
from brimful.server.api.requests import BidRequest, Hold, Move, Submission
from brimful.server.auth import Principal, forbidden
from brimful.server.service.reader import Reader
from brimful.server.service.submissions import Submissions
from brimful.server.views.jobs import job_view, jobs_page
from brimful.server.views.logs import LONGEST_CHARACTER, log_piece
from brimful.server.views.why import why_view

JobName = Annotated[str, Path(max_length=100, pattern=r"^[^\x00]+$")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=100,
        pattern=r"^[!-~]+$",
        description="a second submission with the same key gives the first one's job back",
    ),
]
Tenants = Annotated[str | None, Query(max_length=60, description="only this tenant's")]


def job_for(reader: Reader, who: Principal, name: str) -> JobState:
    """The job, if this one may see it."""
    _see(reader, who, name)
    return reader.job(name)


def _see(reader: Reader, who: Principal, name: str) -> Job:
    """The job, or that of an array. What another tenant has is not there, in the very same words."""
    array = reader.array(name)
    job = reader.job(name).job if array is None else array.job
    if not who.sees(job.tenant):
        raise NotFound(say("server.no_job", name=Quoted(name[:100])))
    return job


def own_job(reader: Reader, who: Principal, name: str) -> None:
    """Changing it takes its submitter, or an admin of its tenant."""
    job = _see(reader, who, name)
    # A job of before there were users is its token's.
    is_own = job.user == who.name if job.user else job.submitter == who.token
    if not who.may("admin", job.tenant) and not (is_own and who.may("submitter", job.tenant)):
        raise forbidden(who, "admin")


def add_job_routes(
    router: APIRouter, reader: Reader, submissions: Submissions, gate: Gate, code: CodeStore | None
) -> None:
    viewer, submitter = gate.needs("viewer"), gate.needs("submitter")

    @router.post("/jobs", status_code=201, response_model=envelope(JobAnswer), responses=CHANGING)
    def submit(submission: Submission, key: Key = None, who: Principal = submitter) -> Response:
        job, tasks = submission.as_job(who, key or ""), submission.tasks()
        named = ""
        with gate.audited(who, "job.submit", lambda: named):
            if not who.may("submitter", job.tenant):
                raise forbidden(who, "submitter" if who.sees(job.tenant) else "operator")
            if job.code and (code is None or code.size(job.tenant, job.code) is None):
                raise no_code(job.code)
            for name, _ in job.after:
                _see(reader, who, name)
            state = submissions.submit(job, tasks)
            named = state.job.array or state.job.job
        return ok(job_view(reader, state, explain=False), 201)

    @router.get("/jobs", response_model=envelope(JobsAnswer), responses=COMMON)
    async def jobs(
        *,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
        cursor: Cursor = None,
        phase: Annotated[list[Phase] | None, Query()] = None,
        tenant: Tenants = None,
        array: Annotated[str | None, Query(max_length=100, description="only this array's tasks")] = None,
        fold: Annotated[bool, Query(description="one task stands for its array")] = False,
        who: Principal = viewer,
    ) -> Response:
        before = read_cursor(cursor)
        if tenant is not None and not who.sees(tenant):
            raise NotFound(say("server.no_tenant", tenant=Quoted(tenant)))
        wanted = who.tenants() if tenant is None else {tenant}
        page = await run_in_threadpool(
            jobs_page,
            reader,
            before=before,
            limit=limit,
            phases=phase,
            tenants=wanted,
            array=array,
            fold=fold,
        )
        return ok({"jobs": page.views, "next_cursor": page_after(page.next_serial)})

    @router.get("/jobs/{name}", response_model=envelope(JobAnswer), responses=COMMON)
    def show(name: JobName, who: Principal = viewer) -> Response:
        return ok(job_view(reader, reader.measure(job_for(reader, who, name))))

    @router.get("/jobs/{name}/why", response_model=envelope(WhyAnswer), responses=COMMON)
    def why(name: JobName, who: Principal = viewer) -> Response:
        return ok(why_view(reader, job_for(reader, who, name)))

    # What a job prints may be anything, secrets too: it is its tenant's to read.
    @router.get("/jobs/{name}/log", response_model=envelope(LogAnswer), responses=COMMON)
    def log(
        name: JobName,
        *,
        lease: Annotated[str | None, Query(max_length=100)] = None,
        offset: Annotated[int, Query(ge=-(1 << 30), le=1 << 40)] = 0,
        limit: Annotated[int, Query(ge=LONGEST_CHARACTER, le=1 << 20)] = 1 << 16,
        rank: Annotated[int, Query(ge=0, le=4095, description="which process of a gang")] = 0,
        who: Principal = viewer,
    ) -> Response:
        job_for(reader, who, name)
        return ok(log_piece(reader, name, lease, rank=rank, offset=offset, limit=limit))

    _add_verbs(router, reader, submissions, gate, submitter)


def _add_verbs(
    router: APIRouter,
    reader: Reader,
    submissions: Submissions,
    gate: Gate,
    submitter: Any,  # noqa: ANN401 - FastAPI's own type
) -> None:
    def changed(who: Principal, verb: str, name: str, act: Callable[[], JobState], to: str = "") -> Response:
        with gate.audited(who, f"job.{verb}", lambda: f"{name}{to}"):
            own_job(reader, who, name)
            return ok(job_view(reader, act(), explain=False))

    @router.post("/jobs/{name}/cancel", response_model=envelope(JobAnswer), responses=CHANGING)
    def cancel(name: JobName, who: Principal = submitter) -> Response:
        return changed(who, "cancel", name, lambda: submissions.cancel(name))

    @router.post("/jobs/{name}/hold", response_model=envelope(JobAnswer), responses=CHANGING)
    def hold(
        name: JobName, body: Annotated[Hold | None, Body()] = None, who: Principal = submitter
    ) -> Response:
        own_words = body.reason if body else ""
        because = verbatim(own_words) if own_words else say("server.held_by", who=who.name)
        return changed(who, "hold", name, lambda: submissions.hold(name, reason=because))

    @router.post("/jobs/{name}/release", response_model=envelope(JobAnswer), responses=CHANGING)
    def release(name: JobName, who: Principal = submitter) -> Response:
        return changed(who, "release", name, lambda: submissions.release(name))

    @router.post("/jobs/{name}/move", response_model=envelope(JobAnswer), responses=CHANGING)
    def move(name: JobName, body: Move, who: Principal = submitter) -> Response:
        to = f" to {body.site or 'anywhere'}"
        return changed(who, "move", name, lambda: submissions.move(name, body.site), to)

    @router.post("/jobs/{name}/bid", response_model=envelope(JobAnswer), responses=CHANGING)
    def bid(name: JobName, body: BidRequest, who: Principal = submitter) -> Response:
        limit = body.limit_microusd_per_gpu_hour
        return changed(who, "bid", name, lambda: submissions.bid(name, limit), f" {limit}")
