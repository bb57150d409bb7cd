"""Every error has the same shape."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from brimful.errors import BadInput, BrimfulError, NotFound, Refused, WorldFailed
from brimful.language import say, told, verbatim
from brimful.server.api.answers import Failed
from brimful.server.api.requests import bad_shape

BY_CODE = {"unauthorized": 401, "forbidden": 403, "wrong_host": 403, "too_large": 413, "too_many": 429}
BY_KIND: tuple[tuple[type[BrimfulError], int], ...] = ((NotFound, 404), (BadInput, 400), (Refused, 409))

# In the description of every route; routes that change something may also answer 409.
COMMON: dict[int | str, dict[str, Any]] = {
    status: {"model": Failed, "description": words}
    for status, words in {
        400: "invalid request",
        401: "no valid token",
        403: "the token lacks the role, or the host is wrong",
        404: "does not exist, or not visible to you",
        413: "too large",
        422: "does not match the schema",
        429: "too many requests, streams or waiting jobs of this token",
        503: "the database or an engine does not answer",
    }.items()
}
CHANGING: dict[int | str, dict[str, Any]] = COMMON | {
    409: {"model": Failed, "description": "valid, but refused"},
}


def ok(data: object, status: int = 200) -> JSONResponse:
    return JSONResponse({"ok": True, "data": data}, status_code=status)


def ok_text(data: str) -> Response:
    """The same of data that is JSON already."""
    return Response(f'{{"ok":true,"data":{data}}}', media_type="application/json")


def failed(status: int, error: BrimfulError) -> JSONResponse:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"ok": False, "error": error.as_dict(told)}, status_code=status, headers=headers)


def status_of(error: BrimfulError) -> int:
    by_kind = next((status for kind, status in BY_KIND if isinstance(error, kind)), 503)
    return BY_CODE.get(error.code, by_kind)


def add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(BrimfulError)
    async def ours(_request: Request, error: BrimfulError) -> JSONResponse:
        return failed(status_of(error), error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        return failed(422, bad_shape(error.errors(), error.body))

    @app.exception_handler(HTTPException)
    async def http(_request: Request, error: HTTPException) -> JSONResponse:
        answer = failed(error.status_code, _from_http(error))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(ClientDisconnect)
    async def gone(_request: Request, _error: ClientDisconnect) -> JSONResponse:
        # Nobody receives this, and it is not a bug.
        return failed(400, BadInput(say("server.client_gone"), code="bad_request"))

    @app.exception_handler(Exception)
    async def unforeseen(_request: Request, _error: Exception) -> JSONResponse:
        # Details go to the server's log; the answer tells a stranger nothing.
        return failed(
            500,
            WorldFailed(say("server.internal_error"), code="internal_error"),
        )


def _from_http(error: HTTPException) -> BrimfulError:
    """The framework's errors in our words."""
    problem = verbatim(str(error.detail))
    if error.status_code == 404:
        return NotFound(problem, hint=say("server.hint_paths"))
    if error.status_code == 405:
        return BadInput(problem, hint=say("server.hint_methods"), code="method_not_allowed")
    if error.status_code == 413:
        return BadInput(problem, code="too_large")
    return BadInput(problem, code="bad_request")
