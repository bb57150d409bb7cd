"""Pages of the fleet, the market, teams and their money, and waste: the API's views, laid out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from brimful.audit.said import leaf_words
from brimful.errors import BadInput, BrimfulError, Refused
from brimful.language import Quoted, say, words
from brimful.market.invoice import MONTH, SPLITS
from brimful.server.api.errors import status_of
from brimful.server.api.gate import Gate
from brimful.server.api.market import By
from brimful.server.api.requests import BudgetRequest, CreditRequest, Hold, RehearsalRequest, bad_shape
from brimful.server.api.verbs import Verbs
from brimful.server.auth import TENANT, Access, Principal, forbidden
from brimful.server.console.market_charts import (
    band_shape,
    market_cards,
    quote_shape,
    size_shape,
    spend_shape,
)
from brimful.server.console.page_data import account_rows, bill_rows, budget_tree, node_card, teams_of
from brimful.server.console.pages import Pages, Show, add_page, problem_of, signed_form
from brimful.server.rehearsing.rehearser import Rehearser
from brimful.server.service.hindsight import Hindsight
from brimful.server.service.reader import Reader
from brimful.server.views.fleet import fleet_view, queues_view
from brimful.server.views.forecast import Ahead
from brimful.server.views.money import Bills, budgets_view, prices_view, spend_days_view, spend_now
from brimful.server.views.policy import policy_view
from brimful.server.views.reservations import reservations_view
from brimful.units import integer_from_text, microusd_from_usd

Made = TypeVar("Made")
NODES_SHOWN = 24
TRANSFERS_SHOWN = 20
BIDS_SHOWN = 12
RESERVATIONS_SHOWN = 20
AHEAD_H = 48
SPEND_DAYS = 28
MONTHS = 12
DAYS = (1, 7, 30, 90)


class Overview:
    def __init__(
        self,
        reader: Reader,
        hindsight: Hindsight,
        rehearser: Rehearser | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._reader, self._hindsight, self._rehearser, self._gate = reader, hindsight, rehearser, gate
        self._ahead, self._bills = Ahead(reader), Bills(reader)

    def fleet(self, who: Principal, asked: Mapping[str, str]) -> dict[str, Any]:
        text, site = asked.get("text", "").strip().casefold(), asked.get("site", "")
        start = integer_from_text(asked.get("from", ""), low=0, high=10**6) or 0
        given = {key: asked[key] for key in ("text", "site") if asked.get(key)}
        more = start + NODES_SHOWN
        with self._reader.locked():
            nodes = [
                node
                for node in self._reader.fleet.nodes.values()
                if (not site or node.site == site)
                and (not text or text in f"{node.node} {node.gpu} {node.site} {node.rack}".casefold())
            ]
            fleet = fleet_view(self._reader, who, nodes[start:more])
        return {
            "fleet": fleet,
            "nodes": [node_card(node) for node in fleet["nodes"]],
            "given": {"text": asked.get("text", ""), "site": site},
            "first": "/fleet?" + urlencode(given) if start else "",
            "next": "/fleet?" + urlencode({**given, "from": more}) if len(nodes) > more else "",
            "may_drain": who.may("operator"),
            "problem": "",
        }

    def market(self, who: Principal, _asked: Mapping[str, str]) -> dict[str, Any]:
        forecast = self._ahead.view(who, hours=AHEAD_H)
        loads = {(each["site"], each["gpu"], each["tier"]): each for each in forecast["pools"]}
        pools = []
        for pool in prices_view(self._reader):
            load = loads.get((pool["site"], pool["gpu"], pool["tier"]))
            quotes = pool["ahead"][:AHEAD_H]
            shapes = {
                "quotes": quote_shape(quotes),
                "cheapest": min(quotes, key=lambda each: each["microusd_per_gpu_hour"], default=None),
                "load": load,
                "band": band_shape(load["ahead"], gpus=load["gpus"]) if load else None,
            }
            pools.append({**pool, **shapes})
        reserved = reservations_view(self._reader, who)
        return {
            "pools": pools,
            "market": market_cards(self._reader, forecast["chances"]),
            "bids": forecast["bids"][:BIDS_SHOWN],
            # Without enough price history there is nothing to put under these hours.
            "bid_hours": [
                hours
                for hours in (forecast["bids"][0]["stays"] if forecast["bids"] else ())
                if any(bid["stays"][hours] is not None for bid in forecast["bids"])
            ],
            "more_bids": max(0, len(forecast["bids"]) - BIDS_SHOWN) + forecast["more_bids"],
            "spot": forecast["spot"],
            "reservations": [
                {**each, "mine": who.may("submitter", each["tenant"])}
                for each in reversed(reserved["reservations"][-RESERVATIONS_SHOWN:])
            ],
            "credits": reserved["credits"],
            "teams": [name for name in teams_of(self._reader, who) if who.may("submitter", name)],
            "problem": "",
        }

    def teams(self, who: Principal, asked: Mapping[str, str]) -> dict[str, Any]:
        by = asked.get("by", "team")
        by = by if by in get_args(By) else "team"
        month = asked["month"] if re.match(MONTH, asked.get("month", "")) else None
        spend, found = spend_now(self._reader, who), self._bills.view(who, by=by, month=month)
        kept = {"by": by, **({} if month is None else {"month": month})}
        bills = sorted(found["bills"], key=lambda bill: bill["of"], reverse=True) if by == "day" else None
        return {
            "spend": spend,
            "budgets": budget_tree(budgets_view(self._reader, who, *spend["month"])),
            "queues": queues_view(self._reader, who),
            "is_fair": self._reader.rules.order == "fair",
            "by": by,
            "days": spend_shape(
                spend_days_view(self._reader, who, by=by if by in SPLITS else "team", days=SPEND_DAYS)
            ),
            "tabs": [
                (name, words(f"console.by_{name}"), "/teams?" + urlencode({**kept, "by": name}))
                for name in get_args(By)
            ],
            "month": month,
            "months": [
                (each, "/teams?" + urlencode({"by": by, "month": each})) for each in found["months"][:MONTHS]
            ],
            "csv": "/v1/invoice.csv?" + urlencode(kept),
            "bills": bill_rows(bills or found["bills"]),
            "total_microusd": found["total_microusd"],
            "may_set": who.may("operator"),
            "problem": "",
            **account_rows(spend["balances"]),
            "transfers": spend["transfers"][:TRANSFERS_SHOWN],
        }

    def audit(self, who: Principal, asked: Mapping[str, str]) -> dict[str, Any]:
        days = next((n for n in DAYS if str(n) == asked.get("days")), 30)
        # Whole minutes, so that everyone who looks within one shares one read of the log.
        end_s = self._hindsight.now_s() // 60 * 60
        start_s = max(0, end_s - days * 86400)
        tabs = [(n, words("console.n_days", n=n), f"/audit?days={n}") for n in DAYS]
        found, counting = self._hindsight.so_far(start_s=start_s, end_s=end_s, tenants=who.tenants())
        csv = "/v1/audit/usage.csv?" + urlencode({"from_s": start_s, "to_s": end_s})
        what_if = self._what_if(who)
        counting = counting or (what_if is not None and what_if["running"])
        head = {"days": days, "tabs": tabs, "csv": csv, "counting": counting, "audit": found, "problem": ""}
        head["what_if"] = what_if
        if found is None:
            return {**head, "share_read": self._hindsight.share_read(), "leaves": [], "worst": []}
        return {
            **head,
            "leaves": [
                {**leaf, "words": leaf_words(leaf["path"]), "depth": leaf["path"].count(".")}
                for leaf in found["leaves"]
                if not _repeats(leaf, found["leaves"])
            ],
            "worst": [{**each, "words": leaf_words(each["mostly"])} for each in found["jobs"]],
        }

    def _what_if(self, who: Principal) -> dict[str, Any] | None:
        """What other policies and sizes would have made of the past, for callers who may ask."""
        if self._rehearser is None or not who.may("operator"):
            return None
        view = policy_view(self._reader, self._rehearser)
        tables: list[Mapping[str, Any]] = [*view["what_if"]]
        tables += [] if view["rehearsed"] is None else [{"nodes": 0, **view["rehearsed"]}]
        tables.sort(key=lambda each: each["nodes"])
        return {
            **view,
            "policies": self._rehearser.candidates(),
            "tables": tables,
            "sizes": size_shape(tables),
        }

    def rehearse(self, _verbs: Verbs, who: Principal, form: dict[str, str]) -> None:
        """Start what the What if form asks for."""
        if self._rehearser is None or self._gate is None:
            raise Refused(say("server.no_rehearsals"), code="no_rehearsals")
        policies = [form[key] for key in sorted(form) if key.startswith("policy") and form[key]]
        days, *sizes = [form.get("days") or "1", *(form.get("nodes") or "0").replace(",", " ").split()]
        # A minus as people type it and as the page prints it.
        whole = [text.replace("−", "-").removeprefix("+") for text in (days, *sizes)]
        if bad := next((text for text in whole if not re.fullmatch(r"-?[0-9]{1,4}", text)), None):
            raise BadInput(say("jobfile.not_whole", what="N", given=Quoted(bad[:40]), least=-1000))
        numbers = [int(text) for text in whole]
        asked = checked(
            lambda: RehearsalRequest(policies=tuple(policies), days=numbers[0], nodes=tuple(numbers[1:]))
        )
        with self._gate.audited(who, "policy.rehearse", lambda: f"{asked.days} {' '.join(asked.policies)}"):
            if not who.may("operator"):
                raise forbidden(who, "operator")
            self._rehearser.ask(days=asked.days, policies=asked.policies, sizes=asked.nodes)


def _repeats(leaf: Mapping[str, Any], leaves: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all of the sum above it is unknown, so that its row would say the same hours again."""
    above, _, last = leaf["path"].rpartition(".")
    return last == "unknown" and any(
        each["path"] == above and each["gpu_h"] == leaf["gpu_h"] for each in leaves
    )


def add_overview(router: APIRouter, access: Access, pages: Pages, made: Overview, verbs: Verbs) -> None:
    shown: dict[str, Show] = {
        "/fleet": made.fleet,
        "/market": made.market,
        "/teams": made.teams,
        "/audit": made.audit,
    }
    for path, show in shown.items():
        add_page(router, access, pages, path=path, body=f"{path[1:]}_page.html", show=show)

    def acts_at(path: str, act: Callable[[Verbs, Principal, dict[str, str]], None]) -> None:
        @router.post(f"{path}/act")
        async def acted(request: Request) -> Response:
            who, form = await signed_form(access, request)
            try:
                await run_in_threadpool(act, verbs, who, form)
            except BrimfulError as error:
                found = await run_in_threadpool(shown[path], who, {})
                found |= {"problem": problem_of(error), "page_from": f"{path}?live=1", "here": path}
                body = f"{path[1:]}_page.html"
                return pages.answer(request, "page.html", status_of(error), who=who, body=body, **found)
            await run_in_threadpool(pages.forget)
            return RedirectResponse(path + ("#what-if-title" if path == "/audit" else ""), status_code=303)

    acts_at("/fleet", _on_node)
    acts_at("/teams", _on_budget)
    acts_at("/audit", made.rehearse)


def _on_node(verbs: Verbs, who: Principal, form: dict[str, str]) -> None:
    verb, node = form.get("verb", ""), form.get("node", "")
    if verb == "resume":
        verbs.resume(who, node)
    elif verb == "drain":
        confirmed(form)
        verbs.drain(who, node, checked(lambda: Hold(reason=form.get("reason", ""))).reason)
    else:
        raise BadInput(say("server.no_such_action", verb=Quoted(verb[:40])))


def _on_budget(verbs: Verbs, who: Principal, form: dict[str, str]) -> None:
    verb, usd = form.get("verb", ""), form.get("usd", "")
    team, _, project = form.get("team", "").partition("/")
    microusd = microusd_from_usd(usd) if usd else None
    confirmed(form)
    if usd and microusd is None:
        raise BadInput(say("server.not_dollars", text=Quoted(usd[:40])))
    if re.fullmatch(TENANT, team) is None or len(team) > 60:
        raise BadInput(say("server.not_a_team", text=Quoted(team[:40])))
    if verb == "budget":
        given: dict[str, Any] = {key: form[key] for key in ("period", "zone") if form.get(key)}
        given |= {"within": form["within"].strip("-")} if form.get("within") else {}
        given |= {"hard": form["hard"] == "yes"} if form.get("hard") else {}
        asked = checked(lambda: BudgetRequest(microusd=microusd, project=project, **given))
        verbs.set_budget(who, asked.name_of(team), asked)
    elif verb == "credit":
        credit = checked(lambda: CreditRequest(microusd=microusd or 0, reason=form.get("reason", "")))
        verbs.credit(who, team, credit.microusd, credit.reason)
    else:
        raise BadInput(say("server.no_such_action", verb=Quoted(verb[:40])))


def confirmed(form: Mapping[str, str]) -> None:
    if form.get("sure") != "yes":
        raise BadInput(say("server.not_confirmed", verb=form.get("verb", "")[:40]))


def checked(make: Callable[[], Made]) -> Made:
    try:
        return make()
    except ValidationError as error:
        raise bad_shape(error.errors()) from error
