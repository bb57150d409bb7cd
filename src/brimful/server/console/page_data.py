"""What the page shows, worked out of what the API says. No HTML here, and nothing is invented."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from brimful.client.answers import MeasuredAnswer
from brimful.client.shown import measured_said
from brimful.fleet.state import OVER, JobState
from brimful.language import Sentence, say, told, verbatim, words
from brimful.server.auth import Principal
from brimful.server.console.market_charts import market_cards
from brimful.server.service.reader import Reader
from brimful.server.views.fleet import fleet_view
from brimful.server.views.jobs import job_view, jobs_page
from brimful.server.views.money import spend_view
from brimful.units import cents_that_add_up, spans

ACTIVE_SHOWN = 200
OVER_SHOWN = 50
TRANSFERS_SHOWN = 12
COMMAND_CHARS = 72
TITLE_CHARS = 2000


def live_page(reader: Reader, who: Principal) -> dict[str, Any]:
    """Everything the live part of the page needs, read at one moment."""
    with reader.locked():
        now_s = reader.now_s()
        fleet, spend = fleet_view(reader, who), spend_view(reader, who)
        state = reader.fleet
        leases = [x for x in state.open_leases.values() if who.sees(state.jobs[x.job].job.tenant)]
        holding = {lease.job: state.jobs[lease.job] for lease in leases}
        waiting = [each for each in state.waiting.values() if who.sees(each.job.tenant)]
        on_hold = [each for each in state.on_hold.values() if who.sees(each.job.tenant)]
        pending = [each for each in state.gates.pending.values() if who.sees(each.job.tenant)]
        active = [*list(holding.values())[::-1], *waiting[::-1], *on_hold[::-1], *pending[::-1]]
        rows = [
            job_row(job_view(reader, each, with_array=False), now_s=now_s) for each in active[:ACTIVE_SHOWN]
        ]
        over = jobs_page(reader, limit=OVER_SHOWN, phases=OVER, tenants=who.tenants())
        return {
            "fleet": fleet,
            "nodes": [node_card(node) for node in fleet["nodes"]],
            "held": sum(gpu["held"] for node in fleet["nodes"] for gpu in node["gpus"]),
            "running": len(holding),
            "waiting": len(waiting),
            "microusd_per_hour": sum(lease.hourly_microusd for lease in leases),
            "jobs": rows + [job_row(view, now_s=now_s) for view in over.views],
            "more_jobs": len(active) > ACTIVE_SHOWN or over.next_serial is not None,
            "market": market_cards(reader),
            "spend": spend,
            "tenants": tenant_rows(spend["by_tenant"]),
            # A closed hold is an empty account; one line for each would bury the others.
            "accounts": {
                name: n for name, n in spend["balances"].items() if n or not name.startswith("hold:")
            },
            "transfers": spend["transfers"][:TRANSFERS_SHOWN],
        }


def job_row(view: Mapping[str, Any], *, now_s: int) -> dict[str, Any]:
    """A job's line in the table."""
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
        # While it is being stopped, the reason is known to its lease alone.
        "why": view["why"] or (view["leases"][-1]["reason"] if view["leases"] else ""),
        "ran_s": ran_s if view["started_s"] is not None else None,
        # All the time it was here and did not run, also between two leases.
        "waited_s": 0 if view["phase"] == "pending" else max(0, until_s - view["ready_s"] - ran_s),
        "budget_frac": None if not budget else min(1.0, view["cost_microusd"] / budget),
        "gpu_indices": spans(view["leases"][-1]["gpus"]) if view["node"] else "",
    }


def _measured(found: MeasuredAnswer) -> list[tuple[str, str]]:
    return [(words(f"server.measured_{name}"), told(said)) for name, said in measured_said(found)]


def job_page(reader: Reader, state: JobState) -> dict[str, Any]:
    """Everything the page of one job needs."""
    with reader.locked():
        view, now_s = job_view(reader, state), reader.now_s()
        return {"job": job_row(view, now_s=now_s), "timeline": timeline(view, now_s=now_s)}


def timeline(view: Mapping[str, Any], *, now_s: int) -> list[dict[str, Any]]:
    """What the job did with its time, from submit to its end or now: waits, leases, stops."""
    parts: list[tuple[str, int, int, Sentence]] = []
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
            ran = say("server.ran_on", where=where)
            if lease["reason"]:
                ran = say("server.ran_until", ran=ran, reason=lease["reason"])
            parts.append(("ran", began, end, ran))
        at, why = end, say("server.waited_after", reason=lease["reason"] or say("server.its_last_lease"))
    last_s = now_s if view["ended_s"] is None else view["ended_s"]
    if view["phase"] in ("waiting", "held", "pending"):
        code = "server.span_on_hold" if view["phase"] == "held" else "server.waits"
        kind = "held" if view["phase"] == "held" else "waiting"
        parts.append((kind, at, last_s, say(code, why=view["why"] or why)))
    elif not view["leases"]:
        parts.append(("waited", at, last_s, verbatim(view["why"]) if view["why"] else why))
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
        }
        for kind, from_s, to_s, said in parts
    ]


def node_card(view: Mapping[str, Any]) -> dict[str, Any]:
    """A node with its GPUs, and whether anybody measures them."""
    gpus = [{**gpu, "hue": hue(gpu["job"] or "")} for gpu in view["gpus"]]
    return {
        **view,
        "gpus": gpus,
        "held": sum(gpu["job"] is not None for gpu in gpus),
        "measured": any(gpu["memory_used_bytes"] is not None or gpu["busy_frac"] is not None for gpu in gpus),
    }


def tenant_rows(by_tenant: Mapping[str, int]) -> list[dict[str, Any]]:
    """Who has spent what, most first, with the share of the largest for a bar."""
    largest = max(by_tenant.values(), default=0) or 1
    ordered = sorted(by_tenant.items(), key=lambda item: (-item[1], item[0]))
    shown = cents_that_add_up([n for _, n in ordered])
    return [
        {"tenant": name, "microusd": cents, "frac": n / largest}
        for (name, n), cents in zip(ordered, shown, strict=True)
    ]


def hue(job: str) -> int:
    """One of six tints, so that a gang's GPUs are seen to belong together."""
    digits = job.rpartition("-")[2]
    return int(digits[-6:]) % 6 if digits.isdigit() and digits.isascii() else 0


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
