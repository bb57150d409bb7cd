"""The page of all jobs: search, sort, and bulk actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from brimful.errors import BadInput, BrimfulError
from brimful.fleet.job import PRIORITIES
from brimful.fleet.state import OVER
from brimful.language import say, told, words
from brimful.server.api.jobs import Order, jobs_list, seen_tenants
from brimful.server.api.verbs import Verbs
from brimful.server.auth import Access, Principal
from brimful.server.console.actions import ASKS, act_on
from brimful.server.console.page_data import job_row, teams_of
from brimful.server.console.pages import Pages, add_page, problem_of, signed_fields
from brimful.server.service.reader import Reader
from brimful.server.views.jobs import Wanted, job_view

ROWS = 30
MOST_AT_ONCE = 200
# What each tab lists; only tabs of unfinished jobs can be sorted.
TABS: Mapping[str, tuple[str, ...]] = {
    "active": (),
    "running": ("running", "starting", "stopping", "unknown"),
    "waiting": ("waiting",),
    "held": ("held", "pending"),
    "failed": ("failed",),
    "over": tuple(sorted(OVER)),
    "all": (),
}
NEWEST_ONLY = ("failed", "over", "all")
TOGETHER = ("cancel", "hold", "release", "terms")


def add_jobs_page(router: APIRouter, access: Access, pages: Pages, reader: Reader, verbs: Verbs) -> None:
    def show(who: Principal, asked: Mapping[str, str]) -> dict[str, Any]:
        return jobs_shown(reader, who, asked)

    add_page(router, access, pages, path="/jobs", body="jobs_page.html", show=show)

    def done(who: Principal, fields: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
        """What was refused, and why."""
        form = {name: values[0] for name, values in fields.items()}
        verb, names = form.get("verb", ""), fields.get("job", [])[:MOST_AT_ONCE]
        if verb not in TOGETHER or not names:
            raise BadInput(say("server.nothing_chosen"))
        if verb in ASKS and form.get("sure") != "yes":
            raise BadInput(say("server.not_confirmed", verb=verb))
        refused = []
        for name in names:
            try:
                act_on(verbs, who, name, verb, form)
            except BrimfulError as error:
                refused.append((name, told(error.said)))
        return refused

    @router.post("/jobs/act")
    async def together(request: Request) -> Response:
        who, fields = await signed_fields(access, request)
        there = {k: fields[k][0] for k in ("view", "text", "team", "mine", "sort", "array") if fields.get(k)}
        chosen, problem = len(fields.get("job", [])), ""
        refused: list[tuple[str, str]] = []
        try:
            refused = await run_in_threadpool(done, who, fields)
        except BrimfulError as error:
            problem = problem_of(error)
        found = await run_in_threadpool(show, who, there)
        found |= {"problem": problem, "refused": refused, "done": 0 if problem else chosen - len(refused)}
        link = "/jobs?" + urlencode({**there, "live": "1"})
        return pages.answer(
            request, "page.html", who=who, body="jobs_page.html", **found, page_from=link, here="/jobs"
        )


def jobs_shown(reader: Reader, who: Principal, asked: Mapping[str, str]) -> dict[str, Any]:
    view = asked.get("view", "active")
    view = view if view in TABS else "active"
    sort = asked.get("sort", "next")
    sort = sort if sort in get_args(Order) else "next"
    order = cast("Order", "newest" if view in NEWEST_ONLY else sort)
    team = asked.get("team", "")
    wanted = Wanted(
        phases=TABS[view],
        tenants=seen_tenants(who, team or None),
        array=asked.get("array") or None,
        user=who.name if asked.get("mine") else None,
        text=asked.get("text", "")[:200].strip(),
    )
    # If the tasks of an array are listed, they are not folded into one.
    fold = not wanted.array
    cursor = asked.get("cursor") or None
    jobs, following = jobs_list(reader, job_view, wanted, cursor, ROWS, order=order, fold=fold)
    now_s = reader.now_s()
    given = {k: asked[k] for k in ("view", "text", "team", "mine", "sort", "array") if asked.get(k)}
    rest = {k: v for k, v in given.items() if k != "view"}
    return {
        "jobs": [job_row(each, now_s=now_s) for each in jobs],
        "tabs": [(name, words(f"console.tab_{name}"), _link(rest | {"view": name})) for name in TABS],
        "view": view,
        "sort": order,
        "can_sort": view not in NEWEST_ONLY,
        "orders": [(name, words(f"console.sort_{name}")) for name in get_args(Order)],
        "given": {name: asked.get(name, "") for name in ("text", "team", "mine", "array")},
        "teams": teams_of(reader, who),
        "first": _link(given) if asked.get("cursor") else "",
        "next": _link({**given, "cursor": following}) if following else "",
        "priorities": list(PRIORITIES),
        "may_act": who.may("submitter"),
        "problem": "",
        "refused": [],
        "done": 0,
    }


def _link(asked: Mapping[str, str]) -> str:
    return "/jobs?" + urlencode(asked)
