"""Reservations on the market page: first a quote, then a purchase at that price or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from brimful.errors import BadInput, BrimfulError
from brimful.language import Quoted, say
from brimful.server.api.errors import status_of
from brimful.server.api.reservations import (
    BuyRequest,
    ExtendRequest,
    GpusRequest,
    HoursRequest,
    ReserveVerbs,
    WindowRequest,
)
from brimful.server.auth import Access, Principal
from brimful.server.console.actions import moment
from brimful.server.console.overview import checked, confirmed
from brimful.server.console.pages import Pages, Show, problem_of, signed_form
from brimful.units import integer_from_text

KEPT = ("pool", "gpus", "hours", "start_s", "team", "reservation")  # of a quote, for the purchase form


def add_reserve_forms(
    router: APIRouter, access: Access, pages: Pages, show: Show, verbs: ReserveVerbs
) -> None:
    @router.post("/market/act")
    async def act(request: Request) -> Response:
        who, form = await signed_form(access, request)
        offer, problem, status = None, "", 200
        try:
            offer = await run_in_threadpool(acted, verbs, who, form)
        except BrimfulError as error:
            problem, status = problem_of(error), status_of(error)
        if offer is None and not problem:
            return RedirectResponse("/market", status_code=303)
        found = await run_in_threadpool(show, who, {})
        found |= {"problem": problem, "offer": offer, "page_from": "/market?live=1", "here": "/market"}
        return pages.answer(request, "page.html", status, who=who, body="market_page.html", **found)


def acted(verbs: ReserveVerbs, who: Principal, form: Mapping[str, str]) -> dict[str, Any] | None:
    """The price to confirm; None: done."""
    verb, name = form.get("verb", ""), form.get("reservation", "")[:40]
    at_most = _number(form, "at_most")
    if verb == "quote":
        window = checked(lambda: WindowRequest(**_window(form)))
        kept = {**form, "start_s": "" if window.start_s is None else str(window.start_s)}
        return {**verbs.quote(window), "verb": "buy", "kept": _kept(kept)}
    if verb == "more":
        hours = checked(lambda: HoursRequest(hours=_number(form, "hours") or 0))
        return {**verbs.quote_more(who, name, hours), "verb": "extend", "kept": _kept(form)}
    confirmed(form)
    if verb == "buy":
        team = form.get("team") or None
        verbs.buy(
            who,
            checked(lambda: BuyRequest(**_window(form), tenant=team, at_most_microusd_per_gpu_hour=at_most)),
        )
    elif verb == "extend":
        wanted = {"hours": _number(form, "hours") or 0, "at_most_microusd_per_gpu_hour": at_most}
        verbs.extend(who, name, checked(lambda: ExtendRequest.model_validate(wanted)))
    elif verb in ("pause", "resume", "return"):
        gpus = _number(form, "gpus")
        verbs.change(who, name, verb, checked(lambda: GpusRequest(gpus=gpus)))
    else:
        raise BadInput(say("server.no_such_action", verb=Quoted(verb[:40])))
    return None


def _window(form: Mapping[str, str]) -> dict[str, Any]:
    site, gpu, tier = [*form.get("pool", "").rsplit("|", 2), "", ""][:3]
    start_s = _number(form, "start_s")
    if form.get("deadline"):
        start_s = moment(form["deadline"], form.get("zone_min", ""))
    counts = {key: _number(form, key) or 0 for key in ("gpus", "hours")}
    return {"site": site, "gpu": gpu, "tier": tier, "start_s": start_s, **counts}


def _number(form: Mapping[str, str], key: str) -> int | None:
    return integer_from_text(form.get(key, ""), low=0, high=1 << 40) if form.get(key) else None


def _kept(form: Mapping[str, str]) -> dict[str, str]:
    return {key: form[key] for key in KEPT if form.get(key)}
