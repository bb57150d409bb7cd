"""Actions on a job's page: forms answered by the API's verbs, with the same rights."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from brimful.errors import BadInput, BrimfulError, NotFound
from brimful.fleet.state import JobState
from brimful.language import Quoted, say, told
from brimful.server.api.errors import status_of
from brimful.server.api.requests import BidRequest, Hold, Move, Terms, bad_shape
from brimful.server.api.seen import job_for
from brimful.server.api.verbs import Verbs
from brimful.server.auth import Access, Principal
from brimful.server.console.page_data import actions_of, job_page
from brimful.server.console.pages import Pages, problem_of, signed_form
from brimful.server.service.reader import Reader
from brimful.units import integer_from_text, microusd_from_usd

# Actions that stop a running job ask for confirmation.
ASKS = ("cancel", "hold", "move")


def add_actions(router: APIRouter, access: Access, pages: Pages, reader: Reader, verbs: Verbs) -> None:
    def done(who: Principal, name: str, form: dict[str, str]) -> str:
        """The job to show next."""
        verb = form.get("verb", "")
        if verb in ASKS and form.get("sure") != "yes":
            raise BadInput(say("server.not_confirmed", verb=verb))
        return act_on(verbs, who, name, verb, form).job.job

    def shown(who: Principal, name: str) -> dict[str, Any]:
        state = reader.measure(job_for(reader, who, name))
        return job_page(reader, state) | {"act": actions_of(verbs, reader, who, name)}

    @router.post("/jobs/{name}/act")
    async def act(request: Request, name: str) -> Response:
        who, form = await signed_form(access, request)
        try:
            there = await run_in_threadpool(done, who, name, form)
        except NotFound as error:
            return pages.answer(request, "missing.html", 404, who=who, problem=told(error.said))
        except BrimfulError as error:
            found = await run_in_threadpool(shown, who, name)
            problem = problem_of(error)
            return pages.answer(request, "job.html", status_of(error), who=who, problem=problem, **found)
        return RedirectResponse(f"/jobs/{quote(there, safe='')}", status_code=303)


def act_on(verbs: Verbs, who: Principal, name: str, verb: str, form: dict[str, str]) -> JobState:
    given = {key: form.get(key, "") for key in ("name", "gpus")} | {
        "priority": form.get("priority", "normal")
    }
    acts: dict[str, Callable[[], JobState]] = {
        "cancel": lambda: verbs.cancel(who, name),
        "hold": lambda: verbs.hold(who, name, Hold(reason=form.get("reason", "")).reason),
        "release": lambda: verbs.release(who, name),
        "move": lambda: verbs.move(who, name, Move(site=form.get("site", "")).site),
        "bid": lambda: verbs.bid(who, name, _limit(form.get("usd", ""))),
        "terms": lambda: verbs.terms(who, name, _terms(form)),
        "again": lambda: verbs.again(who, name, given),
    }
    if verb not in acts:
        raise BadInput(say("server.no_such_action", verb=Quoted(verb[:40])))
    try:
        return acts[verb]()
    except ValidationError as error:
        raise bad_shape(error.errors()) from error


def _limit(usd: str) -> int | None:
    """Dollars as a person types them; empty: the default of the job's class."""
    if not usd:
        return None
    microusd = microusd_from_usd(usd)
    if microusd is None:
        raise BadInput(say("server.not_dollars", text=Quoted(usd[:40])))
    return BidRequest(limit_microusd_per_gpu_hour=microusd).limit_microusd_per_gpu_hour


def _terms(form: dict[str, str]) -> Terms:
    given: dict[str, object] = {"priority": form.get("priority", "normal")}
    if "deadline" in form or "clears" in form:  # an empty field is not sent
        given["deadline_s"] = moment(form.get("deadline", ""), form.get("zone_min", ""))
    return Terms.model_validate(given)


def moment(text: str, zone_min: str) -> int | None:
    """A browser's datetime field: local time, this many minutes behind UTC; empty: none."""
    if not text:
        return None
    behind_min = integer_from_text(zone_min or "0", low=-24 * 60, high=24 * 60)
    try:
        at = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError as error:
        raise BadInput(say("server.not_a_moment", text=Quoted(text[:40]))) from error
    return max(0, int(at.timestamp()) + 60 * (behind_min or 0))
