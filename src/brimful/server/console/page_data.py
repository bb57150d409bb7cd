"""What the page shows, derived from what the API says. No HTML here, and nothing is invented."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from brimful.client.answers import BillAnswer, BudgetAnswer, MeasuredAnswer, WhyAnswer
from brimful.client.shown import STUCK, measured_said
from brimful.fleet.job import PRIORITIES
from brimful.fleet.state import OVER, JobState
from brimful.language import Sentence, say, told, verbatim, words
from brimful.server.api.verbs import Verbs
from brimful.server.auth import Principal
from brimful.server.console.market_charts import course_shapes, price_rows, use_shapes
from brimful.server.service.reader import Reader
from brimful.server.views.attention import attention_view
from brimful.server.views.fleet import fleet_head, fleet_view, pool_rows
from brimful.server.views.jobs import Wanted, active_page, job_view, jobs_page
from brimful.server.views.money import budgets_view, spend_sums
from brimful.server.views.tally import tallies
from brimful.server.views.why import why_view
from brimful.units import cents_that_add_up, spans

# A page polls every two seconds, so its data must be small.
ACTIVE_SHOWN = 12
OVER_SHOWN = 6
TILES_SHOWN = 48  # GPUs; a larger fleet has a line per pool
ACCOUNTS_SHOWN = 12
TENANTS_SHOWN = 8
BILLS_SHOWN = 40
COMMAND_CHARS = 72
TITLE_CHARS = 2000


def live_page(reader: Reader, who: Principal, kept: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything the live part of the page needs, read at one moment. `kept`: the audit, by span."""
    with reader.locked():
        now_s = reader.now_s()
        state, spend, budgets = reader.fleet, spend_sums(reader, who), budgets_view(reader, who)
        is_small = sum(node.gpus for node in state.nodes.values()) <= TILES_SHOWN
        fleet = fleet_view(reader, who) if is_small else {**fleet_head(reader, who), "nodes": []}
        pools = [] if is_small else pool_rows(reader)
        active_now = tallies(reader, who).values()
        wanted = Wanted(tenants=who.tenants())
        active = active_page(reader, job_view, order="next", limit=ACTIVE_SHOWN, fold=True, wanted=wanted)
        rows = [job_row(view, now_s=now_s) for view in active.views]
        wanted = Wanted(phases=OVER, tenants=who.tenants())
        over = jobs_page(reader, job_view, limit=OVER_SHOWN, wanted=wanted)
        return {
            "fleet": fleet,
            "nodes": [node_card(node) for node in fleet["nodes"]],
            "pools": pools,
            "held": sum(gpu["held"] for node in fleet["nodes"] for gpu in node["gpus"])
            + sum(pool["held"] for pool in pools),
            "running": sum(each.running for each in active_now),
            "waiting": sum(each.waiting for each in active_now),
            "jobs": rows + [job_row(view, now_s=now_s) for view in over.views],
            "more_jobs": active.next_serial is not None or over.next_serial is not None,
            "attention": attention_view(reader, who, sites=fleet["sites"], budgets=budgets),
            "use": use_shapes(reader),
            "kept": kept or {},
            "prices": price_rows(reader),
            "spend": spend,
            "budgets": budget_rows(budgets)[:TENANTS_SHOWN],
            "tenants": tenant_rows(spend["by_tenant"])[:TENANTS_SHOWN],
        }


def job_row(view: Mapping[str, Any], *, now_s: int) -> dict[str, Any]:
    """A job's row in the table."""
    command = shlex.join(view["command"])
    ran_s = sum(lease["billed_s"] for lease in view["leases"])
    until_s = now_s if view["ended_s"] is None else view["ended_s"]
    budget = view["budget_microusd"]
    return {
        **view,
        "command_short": shortened(command, COMMAND_CHARS),
        "command_full": shortened(command, TITLE_CHARS),
        "hue": hue(view["job"]),
        "measured_words": _measured(view["measured"]) if view["measured"] else [],
        # While it is being stopped, only its lease knows the reason.
        "why": view["why"] or (view["leases"][-1]["reason"] if view["leases"] else ""),
        "ran_s": ran_s if view["started_s"] is not None else None,
        # All the time since submit that it did not run, also between leases.
        "waited_s": 0 if view["phase"] == "pending" else max(0, until_s - view["ready_s"] - ran_s),
        "budget_frac": None if not budget else min(1.0, view["cost_microusd"] / budget),
        "gpu_indices": spans(view["leases"][-1]["gpus"]) if view["node"] else "",
    }


def _measured(found: MeasuredAnswer) -> list[tuple[str, str]]:
    return [(words(f"server.measured_{name}"), told(said)) for name, said in measured_said(found)]


def job_page(reader: Reader, state: JobState) -> dict[str, Any]:
    """Everything a job's page needs."""
    with reader.locked():
        view, now_s = job_view(reader, state), reader.now_s()
        row = job_row(view, now_s=now_s) | {"ranks": _ranks(view)}
        course = course_shapes(reader.samples.course(state)["points"], _predicted_here(view))
        why = why_view(reader, state)
        told_of = {
            "job": row,
            "timeline": timeline(view, now_s=now_s),
            "why": why,
            "is_stuck": _is_stuck(why),
        }
        return {**told_of, "course": course}


def _is_stuck(why: WhyAnswer) -> bool:
    """Whether it waits for more than the fleet has, and not for its turn."""
    reason = (why["waiting_code"] or {}).get("reason")
    return isinstance(reason, Mapping) and str(reason.get("code")).startswith(STUCK)


def _predicted_here(view: Mapping[str, Any]) -> Mapping[str, float | None]:
    """For the GPU type of its newest lease."""
    found: Mapping[str, float | None] = (
        view["predicted"].get(view["leases"][-1]["gpu"], {}) if view["leases"] else {}
    )
    return found


def _ranks(view: Mapping[str, Any]) -> int:
    """Gang processes that may have a log: one per node, or as many as have ended."""
    last = view["leases"][-1] if view["leases"] else None
    return 1 if last is None else max(1, len(last["exit_codes"]), 1 + len(last["rest"]))


def actions_of(verbs: Verbs, reader: Reader, who: Principal, name: str) -> dict[str, Any]:
    """What the page needs to offer buttons, if the caller may change the job."""
    if not verbs.may_change(who, name):
        return {"may_change": False}
    return {
        "may_change": True,
        # Values that the command needs and nobody kept: asked for here, it would be refused.
        "again_needs": ", ".join(key for key, _ in reader.fleet.jobs[name].job.env),
        "sites": sorted({node.site for node in reader.fleet.nodes.values()}),
        "has_market": reader.market is not None,
        "priorities": list(PRIORITIES),
    }


def timeline(view: Mapping[str, Any], *, now_s: int) -> list[dict[str, Any]]:
    """What the job did with its time, from submit to its end or now: waits, leases, notices, stops."""
    parts: list[tuple[str, int, int, Sentence]] = []
    untils: dict[int, int | None] = {}  # by the place of a notice: when the lease has to leave
    at, why = view["submitted_s"], say("server.waited_first")
    for lease in view["leases"]:
        if lease["granted_s"] > at:
            parts.append(("waited", at, lease["granted_s"], why))
        where = f"{lease['node']} ({len(lease['gpus'])} × {lease['gpu']}, {lease['site']})"
        began = lease["started_s"]
        end = now_s if lease["ended_s"] is None else lease["ended_s"]
        if began is None:
            parts.append(("starting", lease["granted_s"], end, say("server.was_starting", where=where)))
        else:
            if began > lease["granted_s"]:
                parts.append(("starting", lease["granted_s"], began, say("server.was_starting", where=where)))
            ran = say("server.runs_on" if lease["ended_s"] is None else "server.ran_on", where=where)
            if lease["reason"]:
                ran = say("server.ran_until", ran=ran, reason=lease["reason"])
            parts.append(("ran", began, end, ran))
        for told_it in lease["notices"]:
            untils[len(parts)] = told_it["until_s"]
            at_s = told_it["at_s"]
            parts.append(("notice", at_s, at_s, say(f"server.notice_{told_it['told']}")))
        at, why = end, say("server.waited_after", reason=lease["reason"] or say("server.its_last_lease"))
    last_s = now_s if view["ended_s"] is None else view["ended_s"]
    if view["phase"] in ("waiting", "held", "pending"):
        code = "server.span_on_hold" if view["phase"] == "held" else "server.waits"
        kind = "held" if view["phase"] == "held" else "waiting"
        parts.append((kind, at, last_s, say(code, why=view["why"] or why)))
    elif not view["leases"]:
        parts.append(("waited", at, last_s, verbatim(view["why"]) if view["why"] else why))
    elif view["phase"] == "cancelled" and at < last_s:  # while it waited once more
        parts.append(("waited", at, last_s, why))
    span_s = max(1, last_s - view["submitted_s"])
    return [
        {
            "kind": kind,
            "from_s": from_s,
            "seconds": max(0, to_s - from_s),
            "words": told(said),
            "hue": hue(view["job"]),
            "x": round(100 * (from_s - view["submitted_s"]) / span_s, 2),
            "width": max(0.4, round(100 * (to_s - from_s) / span_s, 2)),
            "until_s": untils.get(i),
        }
        for i, (kind, from_s, to_s, said) in enumerate(parts)
    ]


def node_card(view: Mapping[str, Any]) -> dict[str, Any]:
    """A node with its GPUs, and whether anything measures them."""
    gpus = [{**gpu, "hue": hue(job := gpu["job"] or ""), "path": quote(job, safe="")} for gpu in view["gpus"]]
    return {
        **view,
        "gpus": gpus,
        "held": sum(gpu["job"] is not None for gpu in gpus),
        "measured": any(gpu["memory_used_bytes"] is not None or gpu["busy_frac"] is not None for gpu in gpus),
    }


def budget_rows(budgets: Sequence[BudgetAnswer]) -> list[dict[str, Any]]:
    """Teams with a budget, and the share of it that is used."""
    rows = []
    for each in budgets:
        if (left := each["left_microusd"]) is not None:
            whole = each["budget"]["allowed_microusd"] if each["budget"] else left
            rows.append(
                {**each, "whole_microusd": whole, "frac": min(1.0, 1 - left / whole) if whole else 1.0}
            )
    return sorted(rows, key=lambda row: -row["frac"])


def budget_tree(budgets: Sequence[BudgetAnswer]) -> list[dict[str, Any]]:
    """Each budget below its parent."""
    known = {each["tenant"]: each for each in budgets}
    below: dict[str, list[str]] = {}
    for name, each in known.items():
        within = (each["budget"] or {"within": ""})["within"]
        below.setdefault(within if within in known else "", []).append(name)

    def rows(within: str, depth: int) -> Iterator[dict[str, Any]]:
        for name in below.get(within, []):
            yield {**known[name], "depth": depth, "has_below": name in below}
            yield from rows(name, depth + 1)

    return [*rows("", 0)]


def tenant_rows(by_tenant: Mapping[str, int]) -> list[dict[str, Any]]:
    """Spending by team, highest first, relative to the largest for a bar."""
    largest = max(by_tenant.values(), default=0) or 1
    ordered = sorted(by_tenant.items(), key=lambda item: (-item[1], item[0]))
    shown = cents_that_add_up([n for _, n in ordered])
    return [
        {"tenant": name, "microusd": cents, "frac": n / largest}
        for (name, n), cents in zip(ordered, shown, strict=True)
    ]


def bill_rows(bills: Sequence[BillAnswer]) -> list[dict[str, Any]]:
    """Bills relative to the largest for a bar."""
    largest = max((bill["microusd"] for bill in bills), default=0) or 1
    return [{**bill, "frac": bill["microusd"] / largest} for bill in bills[:BILLS_SHOWN]]


def account_rows(balances: Mapping[str, int]) -> dict[str, Any]:
    """The most active accounts. Holds share one line; a closed hold is an empty account."""
    holds: list[int] = []
    others: list[tuple[str, int]] = []
    for name, n in balances.items():  # as many as there have been jobs
        if not name.startswith("hold:"):
            others.append((name, n))
        elif n:
            holds.append(n)
    largest = sorted(others, key=lambda each: (-abs(each[1]), each[0]))[:ACCOUNTS_SHOWN]
    return {
        "accounts": dict(sorted(largest)),
        "more_accounts": len(others) - len(largest),
        "holds": {"jobs": len(holds), "microusd": sum(holds)},
    }


def hue(job: str) -> int:
    """One of six tints, so that a gang's GPUs are visibly one group."""
    digits = job.rpartition("-")[2]
    return int(digits[-6:]) % 6 if digits.isdigit() and digits.isascii() else 0


def teams_of(reader: Reader, who: Principal) -> list[str]:
    """Visible teams with jobs or spending."""
    known = {*reader.ledger.spent_by_tenant, *reader.fleet.usage, *who.roles} - {"*"}
    return sorted(name for name in known if who.sees(name))


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
