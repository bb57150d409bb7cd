"""The public API under /v1: one envelope, one error shape, the same for CLI, console and scripts."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from brimful import __version__
from brimful.errors import BadInput, BrimfulError, NotFound, Refused, WorldFailed
from brimful.fleet.job import Job
from brimful.fleet.state import OVER
from brimful.server.service import Service
from brimful.server.views import fleet_view, job_view, jobs_view, spend_view

MAX_BUDGET_MICROUSD = 10**15  # a billion dollars: more is a slip of the pen
Word = Annotated[str, Field(max_length=100, pattern=r"^[\w .:+/@-]*$")]
Text = Annotated[str, Field(max_length=100_000, pattern=r"^[^\x00]*$")]
LONGEST_CHARACTER = 4  # bytes of UTF-8: a smaller piece might never hold a whole one
JobName = Annotated[str, Path(max_length=100)]


class Submission(BaseModel):
    """What a client sends to have a command run."""

    model_config = ConfigDict(extra="forbid")

    command: Annotated[list[Text], Field(min_length=1, max_length=1000)]
    folder: Annotated[str, Field(max_length=4096, pattern=r"^/[^\x00]*$")]
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    name: Word = ""
    tenant: Annotated[str, Field(max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "default"
    priority: Literal["urgent", "normal", "background"] = "normal"
    gpu_types: Annotated[list[Word], Field(max_length=50)] = []
    budget_microusd: Annotated[int, Field(ge=1, le=MAX_BUDGET_MICROUSD)] | None = None
    env: Annotated[dict[str, Text], Field(max_length=200)] = {}

    def as_job(self) -> Job:
        if not self.command[0].strip():
            raise BadInput("the command is empty", hint="brimful submit -- python train.py")
        for key in self.env:
            if not key.isidentifier() or len(key) > 200:
                raise BadInput(
                    f"{key[:80]!r} is no name for an environment variable", hint="--env NAME=VALUE"
                )
        return Job(
            job="",  # numbered by the service
            gpus=self.gpus,
            name=self.name,
            tenant=self.tenant,
            priority=self.priority,
            gpu_types=tuple(self.gpu_types),
            budget_microusd=self.budget_microusd,
            command=tuple(self.command),
            folder=self.folder,
            env=tuple(sorted(self.env.items())),
        )


def ok(data: object, status: int = 200) -> JSONResponse:
    return JSONResponse({"ok": True, "data": data}, status_code=status)


def make_router(service: Service, owner: Callable[[Request], None]) -> APIRouter:
    router = APIRouter(prefix="/v1")
    owners = [Depends(owner)]

    @router.get("/health")
    def health() -> Response:
        trouble = service.trouble()
        body = {"version": __version__, "healthy": not trouble, "trouble": trouble}
        return ok(body, 503 if trouble else 200)

    @router.post("/jobs", dependencies=owners, status_code=201)
    def submit(submission: Submission) -> Response:
        return ok(job_view(service, service.submit(submission.as_job())), 201)

    @router.get("/jobs")
    def jobs(limit: Annotated[int, Query(ge=1, le=1000)] = 200) -> Response:
        return ok({"jobs": jobs_view(service, limit=limit)})

    @router.get("/jobs/{name}")
    def show(name: JobName) -> Response:
        return ok(job_view(service, service.job(name)))

    @router.post("/jobs/{name}/cancel", dependencies=owners)
    def cancel(name: JobName) -> Response:
        return ok(job_view(service, service.cancel(name)))

    # What a job prints may be anything, secrets too: it is the owner's to read.
    @router.get("/jobs/{name}/log", dependencies=owners)
    def log(
        name: JobName,
        lease: Annotated[str | None, Query(max_length=100)] = None,
        offset: Annotated[int, Query(ge=-(1 << 30), le=1 << 40)] = 0,
        limit: Annotated[int, Query(ge=LONGEST_CHARACTER, le=1 << 20)] = 1 << 16,
    ) -> Response:
        return ok(_log(service, name, lease, offset=offset, limit=limit))

    @router.get("/fleet")
    def fleet() -> Response:
        return ok(fleet_view(service))

    @router.get("/spend")
    def spend() -> Response:
        return ok(spend_view(service))

    return router


def _log(service: Service, name: str, lease: str | None, *, offset: int, limit: int) -> dict[str, Any]:
    """A piece of a lease's log, by default the newest one's. `over` says that no more will come.

    An offset belongs to a lease: where that one has no more to say and the job has another, the answer is the
    beginning of the next.
    """
    with service.locked():
        state = service.job(name)
        leases, phase = list(state.leases), state.phase
    names = [each.lease for each in leases]
    if lease is not None and lease not in names:
        raise NotFound(f"{name} has no lease {lease!r}", hint=f"`brimful show {name}` lists them")
    if not leases:
        over = phase in OVER
        return {"lease": None, "text": "", "next_offset": 0, "size": 0, "over": over, "phase": phase}
    at = len(leases) - 1 if lease is None else names.index(lease)
    piece = service.read_log(leases[at], offset=offset, limit=limit)
    while not piece.data and at + 1 < len(leases):
        at += 1
        piece = service.read_log(leases[at], offset=0, limit=limit)
    ended = at + 1 < len(leases) or phase in OVER
    # A character may be cut in two at the end of the piece: its first half is left for the next one.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(piece.data, final=ended and piece.start + len(piece.data) >= piece.size)
    return {
        "lease": names[at],
        "text": text,
        "next_offset": piece.start + len(piece.data) - len(decoder.getstate()[0]),
        "size": piece.size,
        "over": phase in OVER and at + 1 == len(leases),
        "phase": phase,
    }


STATUS: tuple[tuple[type[BrimfulError], int], ...] = ((NotFound, 404), (BadInput, 400), (Refused, 409))


def add_error_handlers(app: FastAPI) -> None:
    """Whatever goes wrong, the answer has one shape."""

    def failed(status: int, error: BrimfulError) -> JSONResponse:
        return JSONResponse({"ok": False, "error": error.as_dict()}, status_code=status)

    @app.exception_handler(BrimfulError)
    def ours(_request: Request, error: BrimfulError) -> JSONResponse:
        if error.code == "unauthorized":
            return failed(401, error)
        return failed(next((s for kind, s in STATUS if isinstance(error, kind)), 503), error)

    @app.exception_handler(RequestValidationError)
    def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
        return failed(422, BadInput(f"{where}: {first['msg']}", hint="see /v1/openapi.json for the shapes"))

    @app.exception_handler(HTTPException)
    def http(_request: Request, error: HTTPException) -> JSONResponse:
        return failed(error.status_code, _of_http(error))

    @app.exception_handler(Exception)
    def unforeseen(_request: Request, _error: Exception) -> JSONResponse:
        # What it was goes into the server's log; a stranger learns nothing from the answer.
        problem = "the server met a bug of its own"
        return failed(500, WorldFailed(problem, hint="see the server's log", code="internal_error"))


def _of_http(error: HTTPException) -> BrimfulError:
    """What the framework found wrong, in our words."""
    problem = str(error.detail)
    if error.status_code == 404:
        return NotFound(problem, hint="see /v1/openapi.json for the paths")
    if error.status_code == 405:
        return BadInput(problem, hint="see /v1/openapi.json for the methods", code="method_not_allowed")
    if error.status_code == 413:
        return BadInput(problem, code="too_large")
    return BadInput(problem, code="bad_request")
