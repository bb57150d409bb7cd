"""Routes of jobs: submit, list, show, explain, and act on them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, Path, Query
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from brimful.adapters.code import CodeStore
from brimful.client.answers import JobAnswer, JobsAnswer, LogAnswer, Phase, WhyAnswer
from brimful.client.course_answers import CourseAnswer
from brimful.errors import BrimfulError, NotFound
from brimful.fleet.state import JobState
from brimful.language import Quoted, say
from brimful.server.api.answers import envelope
from brimful.server.api.cursors import Cursor, page_after, read_cursor
from brimful.server.api.errors import CHANGING, COMMON, ok, ok_text
from brimful.server.api.gate import Gate
from brimful.server.api.requests import BidRequest, Hold, Move, Submission, Terms
from brimful.server.api.seen import check_named, job_for
from brimful.server.api.together import Together, each_alone
from brimful.server.api.verbs import Verbs
from brimful.server.auth import Principal, forbidden, other_team
from brimful.server.service.intake import Pending
from brimful.server.service.reader import Reader
from brimful.server.service.submissions import Submissions
from brimful.server.views.jobs import Shown, Wanted, active_page, job_text, job_view, jobs_page
from brimful.server.views.logs import LONGEST_CHARACTER, log_piece, whole_log
from brimful.server.views.why import why_view

JobName = Annotated[str, Path(max_length=100, pattern=r"^[^\x00]+$")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=100,
        pattern=r"^[!-~]+$",
        description="a second submission with the same key returns the first one's job",
    ),
]
Rank = Annotated[int, Query(ge=0, le=4095, description="rank of a process in its gang")]
Order = Literal["newest", "next", "wait", "gpus", "cost"]
Tenants = Annotated[str | None, Query(max_length=60, description="only this tenant's")]
TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {}}, "description": "what was printed"}
}


def _submit_all(
    reader: Reader, submissions: Submissions, asked: Sequence[tuple[Pending, Context]]
) -> list[Response | Exception]:
    """The answers, each in its client's language."""

    def answer(state: JobState | BrimfulError) -> Response:
        if isinstance(state, BrimfulError):
            raise state
        return ok(job_view(reader, state, explain=False), 201)

    states = submissions.submit_all([pending for pending, _ in asked])
    return each_alone(
        [partial(context.run, answer, state) for state, (_, context) in zip(states, asked, strict=True)]
    )


def seen_tenants(who: Principal, tenant: str | None) -> Collection[str] | None:
    """The given tenant, which must be visible, or all visible ones; None: every tenant."""
    if tenant is not None and not who.sees(tenant):
        raise NotFound(say("server.no_tenant", tenant=Quoted(tenant)))
    return who.tenants() if tenant is None else {tenant}


def jobs_list(
    reader: Reader,
    show: Callable[..., Shown],
    wanted: Wanted,
    cursor: str | None,
    limit: int,
    *,
    order: Order,
    fold: bool,
) -> tuple[list[Shown], str | None]:
    """The jobs of a page, and the cursor of the next one."""
    place = read_cursor(cursor)
    if order == "newest":
        page = jobs_page(reader, show, before=place, limit=limit, fold=fold, wanted=wanted)
    else:
        page = active_page(reader, show, order=order, after=place or 0, limit=limit, fold=fold, wanted=wanted)
    return page.views, page_after(page.next_serial)


def _list_text(shown: Sequence[str], cursor: str | None) -> str:
    """As JSON, of jobs that are JSON already."""
    return f'{{"jobs":[{",".join(shown)}],"next_cursor":{json.dumps(cursor)}}}'


def add_job_routes(
    router: APIRouter, reader: Reader, submissions: Submissions, gate: Gate, code: CodeStore | None
) -> None:
    viewer, submitter = gate.needs("viewer"), gate.needs("submitter")
    submitting = Together(partial(_submit_all, reader, submissions))
    listing: Together[Callable[[], Response], Response] = Together(each_alone)

    @router.post("/jobs", status_code=201, response_model=envelope(JobAnswer), responses=CHANGING)
    async def submit(submission: Submission, key: Key = None, who: Principal = submitter) -> Response:
        job, tasks = submission.as_job(who, key or ""), submission.tasks()
        pending = Pending(job, tasks)
        with gate.audited(who, "job.submit", lambda: pending.name):
            if not who.may("submitter", job.tenant):
                raise forbidden(who, "submitter") if who.sees(job.tenant) else other_team(who, job.tenant)
            if job.code or job.after:
                await run_in_threadpool(check_named, reader, code, who, job)
            return await submitting.ask((pending, copy_context()))

    @router.get("/jobs", response_model=envelope(JobsAnswer), responses=COMMON)
    async def jobs(
        *,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
        cursor: Cursor = None,
        phase: Annotated[list[Phase] | None, Query()] = None,
        tenant: Tenants = None,
        array: Annotated[str | None, Query(max_length=100, description="only this array's tasks")] = None,
        user: Annotated[str | None, Query(max_length=100, description="only this user's jobs")] = None,
        text: Annotated[
            str, Query(max_length=200, description="in its number, name, command, user, team or node")
        ] = "",
        order: Annotated[
            Order, Query(description="newest: all jobs; next, wait, gpus, cost: unfinished jobs only")
        ] = "newest",
        fold: Annotated[bool, Query(description="one task stands for its array")] = False,
        who: Principal = viewer,
    ) -> Response:
        wanted = Wanted(
            phases=phase, tenants=seen_tenants(who, tenant), array=array, user=user, text=text.strip()
        )

        def view() -> Response:
            shown = jobs_list(reader, job_text, wanted, cursor, limit, order=order, fold=fold)
            return ok_text(_list_text(*shown))

        if wanted.text or wanted.phases or cursor:  # a search, perhaps in the past, may be slow
            return await run_in_threadpool(view)
        return await listing.ask(partial(copy_context().run, view))

    _add_views(router, reader, viewer)
    _add_verbs(router, reader, Verbs(reader, submissions, gate, code), submitter)


def _add_views(router: APIRouter, reader: Reader, viewer: Any) -> None:  # noqa: ANN401 - FastAPI's own type
    showing: Together[Callable[[], Response], Response] = Together(each_alone)

    @router.get("/jobs/{name}", response_model=envelope(JobAnswer), responses=COMMON)
    async def show(name: JobName, who: Principal = viewer) -> Response:
        def view(*, measured: bool = False) -> Response:
            state = job_for(reader, who, name)
            return ok(job_view(reader, reader.measure(state) if measured else state))

        if reader.has_unread(name):  # reads files, which may be slow
            return await run_in_threadpool(view, measured=True)
        return await showing.ask(partial(copy_context().run, view))

    @router.get("/jobs/{name}/measured", response_model=envelope(CourseAnswer), responses=COMMON)
    def measured(name: JobName, who: Principal = viewer) -> Response:
        """What its newest lease measured over time, thinned. A server crash may lose the latest points."""
        return ok(reader.samples.course(reader.measure(job_for(reader, who, name))))

    @router.get("/jobs/{name}/why", response_model=envelope(WhyAnswer), responses=COMMON)
    def why(name: JobName, who: Principal = viewer) -> Response:
        return ok(why_view(reader, job_for(reader, who, name)))

    # A job may print anything, even secrets: only its tenant may read it.
    @router.get("/jobs/{name}/log", response_model=envelope(LogAnswer), responses=COMMON)
    def log(
        name: JobName,
        *,
        lease: Annotated[str | None, Query(max_length=100)] = None,
        offset: Annotated[int, Query(ge=-(1 << 30), le=1 << 40)] = 0,
        limit: Annotated[int, Query(ge=LONGEST_CHARACTER, le=1 << 20)] = 1 << 16,
        rank: Rank = 0,
        who: Principal = viewer,
    ) -> Response:
        job_for(reader, who, name)
        return ok(log_piece(reader, name, lease, rank=rank, offset=offset, limit=limit))

    @router.get("/jobs/{name}/log/file", response_class=Response, responses={**COMMON, **TEXT})
    def log_file(name: JobName, rank: Rank = 0, who: Principal = viewer) -> Response:
        """Everything one process of the job has printed, over all its leases."""
        job_for(reader, who, name)
        kept = re.sub(r"[^A-Za-z0-9._-]", "_", name)
        headers = {"content-disposition": f'attachment; filename="{kept}-{rank}.log"'}
        return StreamingResponse(
            whole_log(reader, name, rank=rank), media_type="text/plain; charset=utf-8", headers=headers
        )


def _add_verbs(
    router: APIRouter,
    reader: Reader,
    verbs: Verbs,
    submitter: Any,  # noqa: ANN401 - FastAPI's own type
) -> None:
    def shown(state: JobState) -> Response:
        return ok(job_view(reader, state, explain=False))

    @router.post("/jobs/{name}/cancel", response_model=envelope(JobAnswer), responses=CHANGING)
    def cancel(name: JobName, who: Principal = submitter) -> Response:
        return shown(verbs.cancel(who, name))

    @router.post("/jobs/{name}/hold", response_model=envelope(JobAnswer), responses=CHANGING)
    def hold(
        name: JobName, body: Annotated[Hold | None, Body()] = None, who: Principal = submitter
    ) -> Response:
        return shown(verbs.hold(who, name, body.reason if body else ""))

    @router.post("/jobs/{name}/release", response_model=envelope(JobAnswer), responses=CHANGING)
    def release(name: JobName, who: Principal = submitter) -> Response:
        return shown(verbs.release(who, name))

    @router.post("/jobs/{name}/move", response_model=envelope(JobAnswer), responses=CHANGING)
    def move(name: JobName, body: Move, who: Principal = submitter) -> Response:
        return shown(verbs.move(who, name, body.site))

    @router.post("/jobs/{name}/bid", response_model=envelope(JobAnswer), responses=CHANGING)
    def bid(name: JobName, body: BidRequest, who: Principal = submitter) -> Response:
        return shown(verbs.bid(who, name, body.limit_microusd_per_gpu_hour))

    @router.post("/jobs/{name}/terms", response_model=envelope(JobAnswer), responses=CHANGING)
    def terms(name: JobName, body: Terms, who: Principal = submitter) -> Response:
        """Change the class or deadline; the job keeps its age in the queue."""
        return shown(verbs.terms(who, name, body))
