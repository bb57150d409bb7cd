"""Routes of notifications: who is notified of what."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Path
from fastapi.responses import Response

from brimful.adapters.stores.notices import NotifyRule
from brimful.client.answers import NewNotificationAnswer, NotificationAnswer, NotificationsAnswer
from brimful.errors import BadInput, NotFound, Refused
from brimful.language import Quoted, say
from brimful.server.api.answers import envelope
from brimful.server.api.errors import CHANGING, ok
from brimful.server.api.gate import Gate
from brimful.server.api.requests import NewNotification
from brimful.server.auth import Principal, forbidden
from brimful.server.service.notify import Notifier, new_rule

RuleName = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]
ADDRESS = re.compile(r"mailto:[^@\s<>,;:\"()]{1,64}@[A-Za-z0-9.-]{1,255}", re.ASCII)
MAX_RULES = 20  # per owner


def add_notification_routes(router: APIRouter, notifier: Notifier, gate: Gate) -> None:
    viewer = gate.needs("viewer")

    def mine(who: Principal) -> list[NotifyRule]:
        return [rule for rule in notifier.store.rules() if _may_see(who, rule)]

    @router.get("/notifications", response_model=envelope(NotificationsAnswer), responses=CHANGING)
    def show(who: Principal = viewer) -> Response:
        counts = notifier.store.counts()
        return ok({"notifications": [_view(rule, counts.get(rule.rule)) for rule in mine(who)]})

    @router.post(
        "/notifications", status_code=201, response_model=envelope(NewNotificationAnswer), responses=CHANGING
    )
    def add(body: NewNotification, who: Principal = viewer) -> Response:
        with gate.audited(who, "notify.add", lambda: _shown(body.target)):
            _check(body.target)
            notifier.check(body.target)
            if body.team and not who.may("admin"):
                raise forbidden(who, "admin")
            owner, tenant = "" if body.team else who.name, who.tenant
            have = sum((rule.owner, rule.tenant) == (owner, tenant) for rule in notifier.store.rules())
            if have >= MAX_RULES:
                raise Refused(say("server.too_many_rules", most=MAX_RULES), code="too_many_rules")
            now_s = notifier.now_s()
            kinds = [kind for kind in body.on if body.team or kind != "budget"]  # a budget belongs to a team
            if not kinds:
                raise BadInput(say("server.budget_needs_team"))
            rule = new_rule(owner=owner, tenant=tenant, target=body.target, kinds=kinds, now_s=now_s)
            notifier.add(rule)
        return ok({"notification": _view(rule, None), "secret": rule.secret}, 201)

    @router.post(
        "/notifications/{rule}/remove", response_model=envelope(NotificationAnswer), responses=CHANGING
    )
    def remove(rule: RuleName, who: Principal = viewer) -> Response:
        with gate.audited(who, "notify.remove", lambda: rule):
            found = next((each for each in mine(who) if each.rule == rule), None)
            if found is None:
                raise NotFound(say("server.no_rule", rule=Quoted(rule)))
            notifier.store.remove(rule)
        return ok(_view(found, None))


def _may_see(who: Principal, rule: NotifyRule) -> bool:
    """Your own; an admin also sees its team's. Any team's admin may create a token in somebody's name."""
    if rule.owner:
        return rule.owner == who.name and who.sees(rule.tenant)
    return who.may("admin", rule.tenant)


def _check(target: str) -> None:
    try:
        parts = urlsplit(target)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
        is_url = is_url and (parts.port is None or parts.port > 0)
    except ValueError:
        is_url = False
    if not (is_url or ADDRESS.fullmatch(target)):
        raise BadInput(say("server.bad_target", target=Quoted(_shown(target))))


def _shown(target: str) -> str:
    """Without the URL's path: anyone who knows it may be able to post there."""
    return target[:100] if target.startswith("mailto:") else "/".join(target.split("/")[:3])[:100]


def _view(rule: NotifyRule, counts: dict[str, int] | None) -> NotificationAnswer:
    return {
        "notification": rule.rule,
        "target": rule.target,
        "on": rule.kinds.split(","),
        "team": not rule.owner,
        "tenant": rule.tenant,
        "created_s": rule.created_s,
        "waiting": (counts or {}).get("waiting", 0),
        "dead": (counts or {}).get("dead", 0),
    }
