"""The Fit page: a form, and the API's answer to it, drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from brimful.errors import BrimfulError
from brimful.language import told, words
from brimful.server.api.fit import FitRequest, ask
from brimful.server.api.gate import asker_of, cookie_name, principal_of
from brimful.server.api.requests import bad_shape
from brimful.server.auth import Access, Principal
from brimful.server.console.fit_charts import fit_shapes
from brimful.server.console.fit_form import as_given, form_values, split_settings
from brimful.server.console.pages import Pages, check_form, fields_of
from brimful.server.fitting import MOST_CARDS
from brimful.server.fitting.fitter import Fitter

Words = Annotated[list[str] | None, Query(max_length=MOST_CARDS)]


def add_fit_page(
    router: APIRouter, access: Access, pages: Pages, fitter: Fitter, *, open_to_all: bool
) -> None:
    async def page(request: Request, who: Principal | None, given: Mapping[str, Any]) -> Response:
        answer, problem, hint = None, "", ""
        if any(given[name] for name in ("config", "text", "model")):
            try:
                answer = await run_in_threadpool(_asked, fitter, given, asker_of(request, who))
            except BrimfulError as error:
                problem, hint = told(error.said), told(error.way_out) if error.way_out else ""
        return pages.answer(
            request,
            "fit.html",
            who=who,
            problem=problem,
            hint=hint,
            fit=fit_shapes(answer) if answer else None,
            **form_values(given, page="/fit"),
        )

    @router.get("/fit")
    async def show(
        request: Request,
        model: Annotated[str, Query(max_length=100)] = "",
        gpu: Words = None,
        settings: Annotated[str, Query(max_length=1000, alias="set")] = "",
    ) -> Response:
        who = await principal_of(access, request)
        if who is None and not open_to_all:
            return pages.sign_in(request)
        return await page(request, who, as_given(model=model, gpus=gpu or [], settings=settings))

    @router.post("/fit")
    async def submit(request: Request) -> Response:
        fields = await fields_of(request)
        session = request.cookies.get(cookie_name(request), "")
        who = None
        if session or not open_to_all:
            check_form({name: values[0] for name, values in fields.items()}, session)
            who = await run_in_threadpool(access.look_up, session, "session")
            if who is None and not open_to_all:
                raise HTTPException(401, words("server.session_over"))
        one = {
            name: fields.get(name, [""])[0] for name in ("config", "text", "model", "settings", "other_mib")
        }
        return await page(request, who, {**one, "gpus": fields.get("gpu", [])})


def _asked(fitter: Fitter, given: Mapping[str, Any], asker: str) -> Mapping[str, Any]:
    try:
        asked = FitRequest(
            config=given["config"],
            text=given["text"],
            model=given["model"],
            gpus=given["gpus"],
            settings=split_settings(given["settings"]),
            other_mib=given["other_mib"] or None,
        )
    except ValidationError as error:
        raise bad_shape(error.errors()) from error
    return ask(fitter, asked, asker=asker)
