"""A job's page and its live part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from brimful.errors import NotFound
from brimful.server.api.check import start_view
from brimful.server.api.gate import principal_of
from brimful.server.api.seen import job_for
from brimful.server.api.verbs import Verbs
from brimful.server.auth import Access, Principal
from brimful.server.console.page_data import actions_of, job_page
from brimful.server.console.pages import Pages, signed_in
from brimful.server.console.why_failed import WhyFailed
from brimful.server.fitting.fitter import Fitter
from brimful.server.rehearsing.forecaster import Forecaster
from brimful.server.service.reader import Reader


def add_job_page(
    router: APIRouter,
    access: Access,
    pages: Pages,
    reader: Reader,
    verbs: Verbs,
    *,
    fitter: Fitter,
    forecaster: Forecaster,
) -> None:
    explain = WhyFailed(reader, fitter)

    def cause(who: Principal, name: str) -> dict[str, Any] | None:
        return explain(job_for(reader, who, name))

    def shown(who: Principal, name: str, why: dict[str, Any] | None) -> dict[str, Any]:
        state = reader.measure(job_for(reader, who, name))
        start = start_view(reader, forecaster, state)
        found = {**job_page(reader, state), "start": start, "cause": why, "problem": ""}
        # A forecast ends without an event.
        return found | {"act": actions_of(verbs, reader, who, name), "counting": start["forecasting"]}

    def newest(who: Principal, _asked: Mapping[str, str]) -> dict[str, Any]:
        """A job's page before anybody asks for one, without its log and without a forecast."""
        name = next(reversed(reader.fleet.jobs), "")
        page = job_page(reader, reader.measure(reader.job(name)))
        return page | {"act": actions_of(verbs, reader, who, name)}

    pages.parts.append(("job_live.html", newest))

    def part(who: Principal, name: str, why: dict[str, Any] | None) -> bytes:
        key = f"{name} {verbs.may_change(who, name)}"
        return pages.packed("job_live.html", who, key, lambda: shown(who, name, why))

    @router.get("/jobs/{name}")
    async def job(request: Request, name: str) -> Response:
        who = await principal_of(access, request)
        if who is None:
            return pages.sign_in(request)
        try:
            why = await run_in_threadpool(cause, who, name)
            found = await run_in_threadpool(shown, who, name, why)
        except NotFound as error:
            if error.code == "is_array":
                return RedirectResponse("/jobs?" + urlencode({"array": name, "view": "all"}), 303)
            return pages.answer(request, "missing.html", 404, who=who, problem=error.problem)
        return pages.answer(request, "job.html", who=who, **found)

    @router.get("/jobs/{name}/live")
    async def job_part(request: Request, name: str) -> Response:
        who = await signed_in(access, request)
        why = await run_in_threadpool(cause, who, name)  # may take seconds, once: holds up no other update
        return pages.packed_answer(request, await pages.in_turn(partial(part, who, name, why)))
