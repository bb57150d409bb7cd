"""Routes of packed code: what jobs run in, stored once per tenant and content."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from brimful.adapters.code import CodeStore
from brimful.client.answers import CodeAnswer
from brimful.errors import NotFound
from brimful.language import say
from brimful.server.api.answers import envelope
from brimful.server.api.errors import CHANGING, ok
from brimful.server.api.gate import Gate
from brimful.server.api.requests import TenantQuery
from brimful.server.auth import Principal, forbidden

CodeName = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the archive")]
BODY = {
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    "required": True,
}


def no_code(code: str) -> NotFound:
    return NotFound(say("server.no_code", hash=code[:12]), code="no_code")


def add_code_routes(router: APIRouter, store: CodeStore, gate: Gate) -> None:
    submitter = gate.needs("submitter")

    @router.get("/code/{code}", response_model=envelope(CodeAnswer), responses=CHANGING)
    def show(code: CodeName, tenant: TenantQuery = None, who: Principal = submitter) -> Response:
        size = store.size(_tenant(who, tenant), code)
        if size is None:
            raise no_code(code)
        return ok({"code": code, "size": size})

    @router.post(
        "/code/{code}",
        status_code=201,
        response_model=envelope(CodeAnswer),
        responses=CHANGING,
        openapi_extra={"requestBody": BODY},
    )
    async def keep(
        code: CodeName, request: Request, tenant: TenantQuery = None, who: Principal = submitter
    ) -> Response:
        with gate.audited(who, "code.keep", lambda: code):
            # One thread opens and closes it, another writes: neither blocks the event loop.
            receiving = store.receiving(_tenant(who, tenant), code)
            upload = await run_in_threadpool(receiving.__enter__)
            try:
                async for piece in request.stream():
                    await run_in_threadpool(upload.write, piece)
            except BaseException as error:
                await run_in_threadpool(receiving.__exit__, type(error), error, error.__traceback__)
                raise
            await run_in_threadpool(receiving.__exit__, None, None, None)
        return ok({"code": code, "size": upload.size}, 201)


def _tenant(who: Principal, asked: str | None) -> str:
    tenant = asked or who.home
    if not who.may("submitter", tenant):
        raise forbidden(who, "operator")
    return tenant
