"""The operator's page: policy and queues, machines, users and tokens, the audit log, events."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from brimful.errors import BadInput, BrimfulError
from brimful.fleet.job import PRIORITIES
from brimful.fleet.queues import Quota
from brimful.language import Quoted, Usd, say, told, words
from brimful.scheduler.policies import POLICIES
from brimful.server.api.cursors import page_after, read_cursor
from brimful.server.api.errors import status_of
from brimful.server.api.gate import Gate
from brimful.server.api.requests import AdoptRequest, NewToken, QueueRequest, RoleRequest
from brimful.server.api.verbs import Verbs
from brimful.server.auth import EVERYBODY, ROLES, Access, Principal, forbidden
from brimful.server.console.overview import checked, confirmed
from brimful.server.console.own_tokens import MOST_DAYS
from brimful.server.console.page_data import shortened
from brimful.server.console.pages import Pages, add_page, problem_of, signed_form
from brimful.server.rehearsing.rehearser import Rehearser
from brimful.server.service.reader import Reader
from brimful.server.views.cloud import cloud_view
from brimful.server.views.events import events_for
from brimful.server.views.fleet import queues_view
from brimful.server.views.policy import policy_view
from brimful.units import integer_from_text

# Actions that give somebody more rights. A session alone may do so only over TLS: without it the browser
# sends the cookie to every port of the host, and anyone who takes it there could raise their own rights
# (decision 55).
GIVES = ("role", "token")
DEEDS_SHOWN = 40
EVENTS_SHOWN = 40
MACHINES_SHOWN = 40
BODY_CHARS = 130


class Operate:
    def __init__(
        self,
        reader: Reader,
        access: Access,
        verbs: Verbs,
        rehearser: Rehearser | None = None,
        *,
        secure: bool = False,
    ) -> None:
        self._reader, self._access, self._verbs, self._secure = reader, access, verbs, secure
        self._rehearser = rehearser
        self._gate = Gate(access)

    def show(self, who: Principal, asked: Mapping[str, str]) -> dict[str, Any]:
        before = read_cursor(asked.get("cursor") or None)
        deeds = self._access.deeds(who, before=before, limit=DEEDS_SHOWN)
        more = page_after(int(str(deeds[-1]["seq"]))) if len(deeds) == DEEDS_SHOWN else None
        events = events_for(self._reader, who, after=-EVENTS_SHOWN, limit=EVENTS_SHOWN)["events"]
        tokens = [each for each in self._access.tokens(who) if each.revoked_s is None]
        return {
            "policy": self._policy(who),
            "cloud": _cloud(self._reader) if who.may("operator") else None,
            "queues": queues_view(self._reader, who),
            "tokens": tokens,
            "left": self._access.left_behind(tokens),
            "users": self._access.users(who),
            "deeds": [{**each, **_deed_said(each)} for each in deeds],
            "next": "/operate?" + urlencode({"cursor": more}) if more else "",
            "first": "/operate" if before is not None else "",
            "events": [{**each, "text": _text(each["body"])} for each in reversed(events)],
            "priorities": list(PRIORITIES),
            "roles": [each for each in ROLES if who.may(each)],
            "token_roles": [each for each in ROLES[:-1] if who.may(each)],
            "may_set": who.may("operator"),
            "needs_token": not self._secure,
            "problem": "",
        }

    def _policy(self, who: Principal) -> dict[str, Any]:
        """The active one for everybody here; where it comes from, and others, for those who may adopt one."""
        if self._rehearser is None or not who.may("operator"):
            return {"policy": self._reader.policy, "may_adopt": False}
        names = (*self._rehearser.candidates(), *POLICIES)
        view = policy_view(self._reader, self._rehearser)
        return {**view, "may_adopt": True, "names": list(dict.fromkeys(names))}

    def act(self, who: Principal, form: Mapping[str, str]) -> str:
        """The text of a new token, otherwise empty."""
        verb = form.get("verb", "")
        confirmed(form)
        if verb in GIVES and not self._secure:
            self._access.same_user(who, form.get("own", ""))
        if verb == "token":
            return self._new_token(who, form)
        if verb == "revoke":
            token = form.get("token", "")[:40]
            with self._gate.audited(who, "token.revoke", lambda: token):
                self._access.revoke(who, token)
        elif verb == "role":
            user = form.get("user", "")[:100]
            asked = checked(lambda: RoleRequest(tenant=form.get("team", ""), role=form.get("role") or None))  # type: ignore[arg-type]
            with self._gate.audited(who, "user.role", lambda: f"{user} {asked.tenant} {asked.role}"):
                if not user:
                    raise BadInput(say("server.no_such_action", verb=Quoted(verb)))
                self._access.set_role(who, user, asked.tenant, asked.role)
        elif verb in ("queue", "unqueue"):
            before = {each.queue: each for each in self._reader.fleet.queues}
            old = before.pop(form.get("queue", ""), None)
            kept = tuple(before.values())
            self._verbs.set_queues(who, kept if verb == "unqueue" else (*kept, _quota(form, old)))
        elif verb == "adopt" and self._rehearser is not None:
            policy = checked(lambda: AdoptRequest(policy=form.get("policy", ""))).policy
            with self._gate.audited(who, "policy.adopt", lambda: policy):
                if not who.may("operator"):
                    raise forbidden(who, "operator")
                self._rehearser.adopt(policy, by=who.name)
        else:
            raise BadInput(say("server.no_such_action", verb=Quoted(verb[:40])))
        return ""

    def _new_token(self, who: Principal, form: Mapping[str, str]) -> str:
        """For a member of a team that the caller administers; never an operator's, as in *Your tokens*."""
        given = {"name": form.get("user", ""), "tenant": form.get("team", ""), "role": form.get("role", "")}
        asked = checked(lambda: NewToken.model_validate(given))
        days = integer_from_text(form.get("days", ""), low=1, high=MOST_DAYS)
        if days is None:
            raise BadInput(say("server.bad_days", most=MOST_DAYS))
        with self._gate.audited(who, "token.add", lambda: f"{asked.name} {asked.tenant} {asked.role}"):
            if asked.tenant == EVERYBODY or asked.role == "operator" or not who.may("admin", asked.tenant):
                raise forbidden(who, "operator")
            secret, _ = self._access.issue_for(
                who, name=asked.name, tenant=asked.tenant, role=asked.role, ttl_s=days * 86400
            )
        return secret


def _quota(form: Mapping[str, str], old: Quota | None) -> Quota:
    """As the form has it; limits per GPU type, which it does not show, stay."""
    texts = ("queue", "weight", "parent", "top_priority")
    given: dict[str, Any] = {key: form[key] for key in texts if form.get(key)}
    counts = {key: form[key] for key in ("gpus", "borrow_gpus", "user_gpus") if form.get(key)}
    if bad := next((text for text in counts.values() if not text.isdecimal()), None):
        raise BadInput(say("jobfile.not_whole", what="GPUs", given=Quoted(bad[:40]), least=0))
    given |= {key: int(text[:9]) for key, text in counts.items()}
    given |= {"tenants": form.get("tenants", "").replace(",", " ").split(), "lend": "lend" in form}
    given |= {"type_gpus": {} if old is None else dict(old.type_gpus)}
    return checked(lambda: QueueRequest.model_validate(given)).as_quota()


def _deed_said(deed: Mapping[str, Any]) -> dict[str, str]:
    """A line of the audit log in words; a verb of another version stays a code."""
    code, outcome = f"console.deed_{deed['verb'].replace('.', '_')}", deed["outcome"]
    said = words(code)
    known = outcome in ("ok", "forbidden")
    return {
        "said": deed["verb"] if said == code else said,
        "target": _target_said(deed["verb"], deed["target"]),
        "outcome_said": words(f"console.outcome_{outcome}")
        if known
        else words("console.outcome_refused", why=outcome),
    }


def _cloud(reader: Reader) -> dict[str, Any]:
    """What was bought, and what may be, by the hour and month: each with its share of the cap."""
    found = cloud_view(reader)
    sums = (
        ("console.cloud_hour", found["hourly_microusd"], found["hourly_cap_microusd"]),
        ("console.cloud_month", found["month_microusd"], found["monthly_cap_microusd"]),
    )
    shares = [(code, spent, cap, min(1.0, spent / cap) if cap else 1.0) for code, spent, cap in sums]
    machines = found["machines"][:MACHINES_SHOWN]
    return {**found, "shares": shares, "machines": machines, "more": len(found["machines"]) - len(machines)}


def _target_said(verb: str, target: str) -> str:
    """Sums as money, a missing one as "no limit"; everything else as it was recorded."""
    what, _, last = target.rpartition(" ")
    if verb not in ("budget.set", "budget.credit", "job.bid") or not what:
        return target
    if last == "None":
        return f"{what}: {words('console.no_limit')}"
    return f"{what}: {told(Usd(int(last)))}" if re.fullmatch(r"-?[0-9]{1,18}", last) else target


def _text(body: Mapping[str, Any]) -> str:
    """The part of an event that fits on a line."""
    rest = {name: value for name, value in body.items() if name != "at_s"}
    return shortened(json.dumps(rest, ensure_ascii=False), BODY_CHARS)


def add_operate_page(router: APIRouter, access: Access, pages: Pages, made: Operate) -> None:
    add_page(router, access, pages, path="/operate", body="operate_page.html", show=made.show, role="admin")

    @router.post("/operate/act")
    async def act(request: Request) -> Response:
        who, form = await signed_form(access, request)
        try:
            secret = await run_in_threadpool(made.act, who, form)
        except BrimfulError as error:
            if not who.may("admin"):
                return pages.answer(request, "missing.html", 403, who=who, problem=told(error.said))
            found = await run_in_threadpool(made.show, who, {})
            found |= {"problem": problem_of(error), "page_from": "/operate?live=1", "here": "/operate"}
            body = "operate_page.html"
            return pages.answer(request, "page.html", status_of(error), who=who, body=body, **found)
        await run_in_threadpool(pages.forget)
        if secret:  # on a separate page that is stored nowhere and does not resubmit
            answer = pages.answer(
                request, "token_made.html", who=who, here="/operate", secret=secret, of=form
            )
            answer.headers["cache-control"] = "no-store"
            return answer
        return RedirectResponse("/operate", status_code=303)
