"""The page where a job is written, checked as it is typed, and submitted."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from brimful.adapters.engines.devices import catalog_names
from brimful.client.checks import CheckAnswer
from brimful.errors import BadInput, BrimfulError
from brimful.fleet.job import PRIORITIES
from brimful.language import Quoted, say, told
from brimful.server.api.check import check_view
from brimful.server.api.errors import status_of
from brimful.server.api.gate import principal_of
from brimful.server.api.requests import CheckRequest, Submission
from brimful.server.api.seen import job_for
from brimful.server.api.verbs import Verbs, submission_of
from brimful.server.auth import Access, Principal
from brimful.server.console.actions import moment
from brimful.server.console.fit_charts import risk_shape
from brimful.server.console.overview import checked
from brimful.server.console.page_data import teams_of
from brimful.server.console.pages import Pages, problem_of, signed_form
from brimful.server.fitting.fitter import Fitter
from brimful.server.jobfiles.jobfile import integer, seconds
from brimful.server.jobfiles.pasted import shell_of, time_of
from brimful.server.rehearsing.forecaster import Forecaster
from brimful.server.service.reader import Reader
from brimful.units import MICROUSD, microusd_from_usd

FIELDS = ("name", "command", "folder", "gpus", "gpu", "team")
TERMS = ("priority", "budget", "max_run", "deadline", "array")


class Submit:
    def __init__(
        self,
        reader: Reader,
        access: Access,
        verbs: Verbs,
        fitter: Fitter,
        forecaster: Forecaster,
        *,
        secure: bool,
    ) -> None:
        self._reader, self._access, self._verbs = reader, access, verbs
        self._fitter, self._forecaster = fitter, forecaster
        self.secure = secure

    def shown(self, who: Principal, form: Mapping[str, str]) -> dict[str, Any]:
        """The form, the equivalent file, and what would happen to the job."""
        problem, check = "", None
        given = {name: form.get(name, "") for name in (*FIELDS, *TERMS)}
        text, config = form.get("file", ""), form.get("config", "")
        edited = _edited(form)
        try:
            job = self._body(who, form, edited=edited)
            if edited == "file" or job.get("command"):
                asked = CheckRequest(text=text if edited == "file" else "", job=job, config=config)
                check = self._check(who, asked, self._forecaster)
        except BrimfulError as error:
            problem = problem_of(error)
        if check is not None and check["kind"] == "config":
            config, text = text, check["file"] if check["job"].get("command") else ""
        elif check is not None and edited == "file":
            given |= _fields(check["job"])
        elif check is not None:
            text = check["file"]
        return {
            "given": given,
            "file": text,
            "config": config,
            "check": check,
            "risks": {} if check is None else {gpu: risk_shape(each) for gpu, each in check["fits"].items()},
            "problem": problem,
            "types": sorted({pool.gpu for pool in self._reader.fleet.capacity.pools}),
            "teams": [name for name in teams_of(self._reader, who) if who.may("submitter", name)],
            "priorities": list(PRIORITIES),
            "needs_token": not self.secure,
        }

    def copied(self, who: Principal, name: str) -> dict[str, str]:
        """The form of a job that somebody wants to run again with changes."""
        job = job_for(self._reader, who, name).job
        return _fields(submission_of(job, now_s=self._reader.now_s()))

    def _body(self, who: Principal, form: Mapping[str, str], *, edited: str) -> dict[str, Any]:
        """The submission that the form describes."""
        body: dict[str, Any] = {"folder": form.get("folder", "")}
        if edited == "file" and not form.get("command"):  # the file has the rest
            return body
        command = form.get("command", "")
        body["command"] = _command(command) if command else []
        body |= {"name": form.get("name", ""), "tenant": form.get("team") or who.home}
        body |= {"priority": form.get("priority", "normal"), "gpus": integer(form.get("gpus") or 1, "GPUs")}
        if form.get("gpu"):
            body["gpu_types"] = catalog_names(form["gpu"].replace(",", " ").split())
        if form.get("array"):
            body["array"] = form["array"]
        if form.get("budget"):
            body["budget_microusd"] = microusd_from_usd(form["budget"])
            if body["budget_microusd"] is None:
                raise BadInput(say("server.not_dollars", text=Quoted(form["budget"][:40])))
        if form.get("max_run"):
            body["max_run_s"] = seconds(form["max_run"], "max_run")
        if form.get("deadline"):
            body["deadline_s"] = moment(form["deadline"], form.get("zone_min", ""))
        return body

    def _check(self, who: Principal, asked: CheckRequest, forecaster: Forecaster | None) -> CheckAnswer:
        return check_view(self._reader, who, self._fitter, forecaster, asked, check=self._verbs.check)

    def submit(self, session: Principal, form: Mapping[str, str]) -> str:
        """The new job, submitted by a session over TLS, or with the token entered again (decision 55)."""
        who = session if self.secure else self._access.same_user(session, form.get("token", ""))
        edited = _edited(form)
        asked = CheckRequest(
            text=form.get("file", "") if edited == "file" else "",
            job=self._body(who, form, edited=edited),
            config=form.get("config", ""),
        )
        found = self._check(who, asked, None)
        if found["problems"]:
            raise BadInput(say("server.not_submitted", why=found["problems"][0]["problem"]))
        return self._verbs.submit(who, checked(lambda: Submission.model_validate(found["job"]))).job.job


def _edited(form: Mapping[str, str]) -> str:
    """Which side counts; without a script, a file pasted beside an empty form."""
    is_file = form.get("edited") == "file" or not form.get("command")
    return "file" if is_file and form.get("file", "").strip() else "form"


def _command(text: str) -> list[str]:
    """A program with its arguments, or a shell command."""
    if any(mark in text for mark in "\n;|&<>$`*?~(){}"):
        return ["sh", "-c", text]
    try:
        return shlex.split(text)
    except ValueError:
        return ["sh", "-c", text]


def _fields(job: Mapping[str, Any]) -> dict[str, str]:
    """The form's fields for a submission made from a file."""
    budget = job.get("budget_microusd")
    return {
        "name": str(job.get("name", "")),
        "command": shell_of(list(job.get("command") or ())),
        "folder": str(job.get("folder", "")),
        "gpus": str(job.get("gpus", 1)),
        "gpu": " ".join(job.get("gpu_types") or ()),
        "team": str(job.get("tenant") or ""),
        "priority": str(job.get("priority", "normal")),
        "budget": "" if not budget else f"{budget / MICROUSD:g}",
        "max_run": "" if job.get("max_run_s") is None else time_of(job["max_run_s"]),
        "array": str(job.get("array") or ""),
    }


def add_submit_page(router: APIRouter, access: Access, pages: Pages, made: Submit) -> None:
    @router.get("/submit")
    async def page(request: Request, job: str = "") -> Response:
        who = await principal_of(access, request)
        if who is None:
            return pages.sign_in(request)
        try:
            form = await run_in_threadpool(made.copied, who, job) if job else {}
        except BrimfulError as error:
            return pages.answer(request, "missing.html", status_of(error), who=who, problem=told(error.said))
        return pages.answer(request, "submit.html", who=who, **await run_in_threadpool(made.shown, who, form))

    @router.post("/submit/check")
    async def check(request: Request) -> Response:
        who, form = await signed_form(access, request)
        found = await run_in_threadpool(made.shown, who, form)
        name = "submit_check.html" if form.get("part") else "submit.html"
        return pages.answer(request, name, who=who, here="/submit", **found)

    @router.post("/submit")
    async def submit(request: Request) -> Response:
        who, form = await signed_form(access, request)
        try:
            job = await run_in_threadpool(made.submit, who, form)
        except BrimfulError as error:
            found = await run_in_threadpool(made.shown, who, form)
            found["problem"] = problem_of(error)
            return pages.answer(request, "submit.html", status_of(error), who=who, here="/submit", **found)
        return RedirectResponse(f"/jobs/{quote(job, safe='')}", status_code=303)
