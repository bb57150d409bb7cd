"""What stands where on each page by the answers of the API: the places that `places.py` reads off a page.

A page is right if both lists are the same, so a new number, a lost one and two that changed places all show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from brimful.language import Number, Percent, Seconds, Size, Usd, language, say
from brimful.units import cents_that_add_up, spans
from tests.server.places import NUMBER, Place

EN = language("en")
Api = Callable[..., Any]
Row = tuple[str, str, str]  # row, label, text


def usd(microusd: int) -> str:
    return EN.text(Usd(microusd))


def pct(frac: float, digits: int = 0) -> str:
    return EN.text(Percent(frac, digits))


def num(value: float, digits: int = 0) -> str:
    return EN.text(Number(value, digits))


def size(n: int | None) -> str:
    return "–" if n is None else EN.text(Size(n))


def lasts(seconds: float | None) -> str:
    return "–" if seconds is None else EN.text(Seconds(seconds))


def placed(section: str, rows: Iterable[Row]) -> list[Place]:
    """Those of them that have a number."""
    plain = [Place(section, *(" ".join(part.split()) for part in row)) for row in rows]
    return [each for each in plain if NUMBER.search(each.text)]


def _where(pool: Mapping[str, Any]) -> str:
    return f"{pool['gpu']} {pool['site']}"


# -- Home, Jobs and a job ---------------------------------------------------------------------------------


def home(api: Api, jobs: Sequence[str], usage: Mapping[int, Any]) -> list[Place]:
    fleet, spend = api("fleet"), api("spend")
    held = sum(site["held"] for site in fleet["sites"])
    away = fleet["gpus"] - held - fleet["free"]
    states = [each["phase"] for each in api("jobs?limit=200")["jobs"]]
    figures = [
        ("GPUs held", f"{held} / {fleet['gpus']} {fleet['free']} free, {away} out of service"),
        (
            "Jobs running / waiting",
            f"{states.count('running')} / {states.count('waiting')} each with its reason below",
        ),
        ("Allocation rate", f"{pct(fleet['allocation_rate'])} of GPU time since the first job"),
        ("Spent so far", f"{usd(spend['posted_microusd'])} posted to the ledger"),
        ("Accruing now", f"{usd(spend['accruing_microusd'])} at {usd(spend['microusd_per_hour'])} per hour"),
    ]
    found = placed("Key figures", (("", *each) for each in figures))
    looks = (("", f"look-{each['kind']}", each["said"]) for each in api("attention")["attention"])
    found += placed("attention-title", [*looks, *_use(api, usage)])
    found += placed("spend-title", _spend(api, spend))
    found += job_rows(api, jobs)
    found += placed("fleet-title", _pools(fleet))
    prices = ((_where(pool), "now", usd(pool["microusd_per_gpu_hour"])) for pool in api("prices")["pools"])
    return found + placed("price-title", prices)


def _use(api: Api, usage: Mapping[int, Any]) -> Iterator[Row]:
    hours: dict[int, int] = {}
    pools = api("forecast")["pools"]
    gpus = sum(pool["gpus"] for pool in pools)
    for hour in (hour for pool in pools for hour in pool["past"]):
        hours[hour["at_s"]] = hours.get(hour["at_s"], 0) + hour["held"]
    for title, days in (("Last day", 1), ("Last week", 7)):
        last = [hours[at_s] for at_s in sorted(hours)[-24 * days :]]
        mean = f"{pct(sum(last) / len(last) / gpus)} of GPUs held on average over {len(last)} hours"
        yield "", "figcaption", f"{title} {mean} full height: {gpus} GPUs"
        kept, unknown = (usage[days]["headline"][name]["share"] for name in ("kept", "unknown"))
        yield "", "small", f"{pct(kept)} of paid GPU time was useful, {pct(unknown)} not measured"


def _spend(api: Api, spend: Mapping[str, Any]) -> Iterator[Row]:
    for label, name in (("Posted", "posted"), ("Accruing", "accruing"), ("Set aside", "held")):
        yield "", label, usd(spend[f"{name}_microusd"])
    left = [each for each in api("budgets")["budgets"] if each["left_microusd"] is not None]
    for each in sorted(left, key=lambda each: each["left_microusd"] / each["budget"]["allowed_microusd"]):
        whole = each["budget"]["allowed_microusd"]
        yield "", "small", f"{each['tenant']}: {usd(each['left_microusd'])} left of {usd(whole)}"
    teams = sorted(spend["by_tenant"].items(), key=lambda each: -each[1])
    for (team, _), cents in zip(teams, cents_that_add_up([n for _, n in teams]), strict=True):
        yield team, "Posted", usd(cents)


def _pools(fleet: Mapping[str, Any]) -> Iterator[Row]:
    nodes: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for node in fleet["nodes"]:
        nodes.setdefault((node["site"], node["gpu"]), []).append(node)
    for (site, gpu), found in sorted(nodes.items()):
        gpus = [each for node in found for each in node["gpus"]]
        row, drained = f"{gpu} {site}", sum(node["drained"] is not None for node in found)
        yield row, "GPUs held", f"{sum(each['job'] is not None for each in gpus)} / {len(gpus)}"
        yield row, "Nodes", f"{len(found)} {f'{drained} drained' if drained else ''}"


def job_rows(api: Api, names: Sequence[str]) -> list[Place]:
    return placed("jobs-title", (row for name in names for row in _job_row(api(f"jobs/{name}"))))


def _job_row(job: Mapping[str, Any]) -> Iterator[Row]:
    row, last = f"{job['job']} {job['tenant']} · {job['priority']}", (job["leases"] or [None])[-1]
    ran_s = sum(lease["billed_s"] for lease in job["leases"])
    gpus = f"{job['gpus']} × {' / '.join(job['gpu_types'])}" if job["gpu_types"] else f"{job['gpus']}"
    if job["node"]:
        gpus += f" {job['node']} #{spans(last['gpus'])}"
        gpus += f" + {len(last['rest'])} more" if last["rest"] else ""
    yield row, "GPUs", gpus
    until_s = job["now_s"] if job["ended_s"] is None else job["ended_s"]
    yield row, "Waited", lasts(until_s - job["ready_s"] - ran_s)
    yield row, "Ran", lasts(ran_s if job["started_s"] is not None else None)
    cost = usd(job["cost_microusd"])
    cost += f" reserved ({last['reservation']})" if last and last["reservation"] else ""
    yield row, "Cost", cost + (f" of {usd(job['budget_microusd'])}" if job["budget_microusd"] else "")
    more = f"{job['phase']} ·" if job["ended_s"] is not None else "since" if job["node"] else ""
    log = "See the log" if job["phase"] == "failed" else ""
    yield row, "Why", f"{job['why'] or (last['reason'] if last else '')} {more} {log}"


def job(api: Api, name: str, *, cause: Sequence[str] = ()) -> list[Place]:
    job, why = api(f"jobs/{name}"), api(f"jobs/{name}/why")
    found = placed("panel head", _head(job)) + placed("time-title", _times(job))
    found += placed("cause-title", (("", "p", each) for each in cause))
    found += placed("where-title", _here(why))
    found += placed("money-title", _money(job))
    return found + placed("measured-title", _measured(job, api(f"jobs/{name}/measured")["points"]))


def _head(job: Mapping[str, Any]) -> Iterator[Row]:
    yield "", "why", job["why"]
    within = {"node": "on one node"}[job["within"]]
    yield "", "Wants", f"{job['gpus']} × {' / '.join(job['gpu_types']) or 'any GPU'} · {within}"
    yield "", "Delayed", lasts(job["delay_s"])
    yield "", "Preempted", f"{job['preemptions']}×"
    yield "", "Exit code", str(job["exit_code"] if job["exit_code"] is not None else "")


def _times(job: Mapping[str, Any]) -> Iterator[Row]:
    (lease,) = job["leases"]
    yield "", "waited", f"waited for its first lease {lasts(lease['granted_s'] - job['submitted_s'])}"
    where = f"{lease['node']} ({len(lease['gpus'])} × {lease['gpu']}, {lease['site']})"
    ended, until_s = lease["ended_s"] is not None, lease["ended_s"] or job["now_s"]
    said = f"ran on {where}; {lease['reason']}" if ended else f"running on {where}"
    yield "", "ran", f"{said} {lasts(until_s - lease['started_s'])}"


def _here(why: Mapping[str, Any]) -> Iterator[Row]:
    yield "", "p", why["here"] or ""
    yield "", "muted", why["price"] or ""
    for pool in why["pools"]:
        row = _where(pool)
        yield row, "Free", f"{pool['free']} / {pool['gpus']}"
        yield row, "Speed", f"{num(pool['rate'], 2)}×"
        yield row, "per GPU-hour", usd(pool["microusd_per_gpu_hour"])
        yield row, "per hour of work", usd(pool["microusd_per_work_hour"])
        yield row, "Verdict", pool["verdict"]


def _money(job: Mapping[str, Any]) -> Iterator[Row]:
    yield "", "Cost so far" if job["ended_s"] is None else "Cost", usd(job["cost_microusd"])
    if job["ended_s"] is None:
        yield "", "Posted", usd(job["posted_microusd"])
    for lease in job["leases"]:
        row = lease["lease"]
        yield row, "On", f"{lease['node']} {len(lease['gpus'])} × {lease['gpu']}, {lease['site']}"
        yield row, "Billed", lasts(lease["billed_s"])
        yield row, "Price", f"{usd(lease['microusd_per_gpu_hour'])} per GPU-hour"
        yield row, "Cost", usd(lease["cost_microusd"])
        yield row, "End", lease["reason"]


def _measured(job: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    seen, here = job["measured"], job["leases"][-1]["gpu"]
    for gpu, told in job["predicted"].items():
        there = seen if seen and gpu == here else dict.fromkeys(("peak_reserved_bytes", "step_s", "mfu"))
        yield gpu, "Predicted peak", size(told["peak_bytes"])
        yield gpu, "Measured peak", size(there["peak_reserved_bytes"])
        yield gpu, "Predicted step", lasts(told["step_s"])
        yield gpu, "Measured step", lasts(there["step_s"])
        yield gpu, "Measured MFU", "–" if there["mfu"] is None else pct(there["mfu"])
        yield gpu, "Speed", f"{num(told['rate'], 2)}×"
    if not seen:
        return
    yield "", "Measured", f"{lasts(seen['age_s'])} ago"
    yield "", "Step", f"{num(seen['step'])}, {lasts(seen['step_s'])}"
    yield "", "Speed", f"{num(seen['tokens_per_s'])} tokens/s"
    flops = f"{num(seen['peak_flops_per_s'] / 1e12)} TFLOPS {seen['peak_format']}"
    yield "", "MFU", f"{pct(seen['mfu'], 1)} of {flops}"
    reserved, peak = size(seen["peak_reserved_bytes"]), size(seen["peak_allocated_bytes"])
    yield "", "Memory", f"{reserved} reserved, {peak} at its peak"
    told = job["predicted"][here]
    shown = (
        ("Measured peak", "peak_reserved_bytes", size, size(told["peak_bytes"])),
        ("MFU", "mfu", pct, ""),
        ("Measured step", "step_s", lasts, lasts(told["step_s"])),
    )
    for title, name, write, predicted in shown:
        values = [point[name] for point in points]
        text = f"{title} {write(values[-1])} · up to {write(max(values))}"
        yield "", "figcaption", text + (f" · predicted {predicted}" if predicted else "")


# -- Fleet and Market -------------------------------------------------------------------------------------


def fleet(api: Api) -> list[Place]:
    found = api("fleet")
    return placed("sites-title", _sites(found)) + placed("nodes-title", _nodes(found))


def _sites(fleet: Mapping[str, Any]) -> Iterator[Row]:
    for site in fleet["sites"]:
        row = f"{site['site']} {site['engine']}"
        yield row, "GPUs held", f"{site['held']} / {site['gpus']}"
        yield row, "Nodes", f"{site['nodes']} {f'{drained} drained' if (drained := site['drained']) else ''}"


def _nodes(fleet: Mapping[str, Any]) -> Iterator[Row]:
    for node in fleet["nodes"]:
        row, drained = node["node"], "drained" if node["drained"] is not None else ""
        yield row, "p", f"{len(node['gpus'])} × {node['gpu']} {drained}"
        floor = "floor " if node["gpu"] in fleet["market"] else ""
        yield row, "end", f"{floor}{usd(node['microusd_per_gpu_hour'])} per GPU-hour"
        yield row, "small", node["drained"] or ""
        for gpu in node["gpus"]:
            mfu = "" if gpu["mfu"] is None else f"MFU {pct(gpu['mfu'])}"
            yield row, "tile", f"GPU {gpu['index']} {gpu['job'] or drained or 'free'} {mfu}"


def market(api: Api, *, since_s: int) -> list[Place]:
    prices, forecast = api(f"prices?since_s={since_s}"), api("forecast")
    chances = {(each["site"], each["gpu"]): each for each in forecast["chances"]}
    found = placed("prices-title", _posted(prices, forecast))
    for pool in (each for each in prices["pools"] if each["market"]):
        found += placed("market-title", _bids(prices, pool, chances[pool["site"], pool["gpu"]]))
    bids = forecast["bids"]
    hours = [
        h for h in (bids[0]["stays"] if bids else ()) if any(bid["stays"][h] is not None for bid in bids)
    ]
    found += placed("own-bids-title", (row for bid in bids for row in _bid(bid, hours)))
    return found + placed("reserved-title", _reservations(api))


def _posted(prices: Mapping[str, Any], forecast: Mapping[str, Any]) -> Iterator[Row]:
    known = {(each["site"], each["gpu"]): each["known_hours"] for each in forecast["pools"]}
    for pool in prices["pools"]:
        by, cost = "set by bids" if pool["market"] else "posted", usd(pool["microusd_per_gpu_hour"])
        yield _where(pool), "price", f"{cost} per GPU-hour · {by} · {pool['free']} of {pool['gpus']} free"
        hours = known[pool["site"], pool["gpu"]]
        yield _where(pool), "small", f"No load forecast yet; recorded so far: {hours} h."


def _bids(prices: Mapping[str, Any], pool: Mapping[str, Any], chances: Mapping[str, Any]) -> Iterator[Row]:
    row, history = _where(pool), pool["history"]
    cleared, floor = usd(pool["cleared_microusd_per_gpu_hour"]), usd(pool["floor_microusd_per_gpu_hour"])
    cost = usd(pool["microusd_per_gpu_hour"])
    yield row, "price", f"{cost} per GPU-hour · clears at {cleared}, floor {floor}"
    top = usd(max(each["cleared_microusd_per_gpu_hour"] for each in history))
    yield row, "figcaption", f"Price up to {top} Billed cleared"
    used, wanted = pool["gpus"] - pool["free"], max(max(each["wanted"], each["gpus"]) for each in history)
    held = f"{used} / {pool['gpus']} in use · up to {wanted} wanted"
    yield row, "figcaption", f"GPUs {held} in use wanted"
    yield row, "axis", f"− {lasts(min(6 * 3600, prices['now_s'] - history[0]['at_s']))} now"
    stays = {each["limit_microusd_per_gpu_hour"]: each["stays"]["24"] for each in chances["limits"]}
    is_known = any(chance is not None for chance in stays.values())
    for step in pool["depth"]:
        limit = step["limit_microusd_per_gpu_hour"]
        yield usd(limit), "Limit", usd(limit)
        yield usd(limit), "GPUs held", str(step["held"])
        yield usd(limit), "GPUs wanted", str(step["wanted"])
        if is_known:
            yield usd(limit), "24 h", pct(stays[limit])
    if is_known:
        yield row, "small", "24 h: Chance that the price stays at or below the limit."
    known, short = chances["known_hours"], dict[int, list[str]]()
    for hours, needs in chances["needs_hours"].items():
        if known < needs:
            short.setdefault(needs, []).append(hours)
    for needs, ahead in short.items():
        text = f"not enough price history yet ({known} h, needs {needs} h)."
        yield row, "small", f"Chance for the next {', '.join(ahead)} h: {text}"
    scores = [
        f"{hours} h {num(score['brier'], 2)} / {num(score['brier_climatology'], 2)}"
        for hours, score in chances["score"].items()
        if score is not None
    ]
    if scores:
        yield row, "small", f"{EN.text(say('console.chance_score'))} {' · '.join(scores)}"


def _bid(bid: Mapping[str, Any], hours: Sequence[str]) -> Iterator[Row]:
    row, gpus = f"{bid['name']} {bid['tenant']}", f"{bid['gpus']} GPU{'s' if bid['gpus'] > 1 else ''}"
    yield row, "State", f"{'holds its GPUs' if bid['held'] else 'waits'} {gpus}"
    yield row, "Limit", usd(bid["limit_microusd_per_gpu_hour"])
    for each in hours:
        yield row, f"{each} h", "–" if bid["stays"][each] is None else pct(bid["stays"][each])


def _reservations(api: Api) -> Iterator[Row]:
    for each in reversed(api("reservations")["reservations"]):
        row = f"{each['reservation']} {each['tenant']}"
        yield row, "GPUs", f"{each['gpus']} × {each['gpu']} {each['site']}"
        states = f"{each['used']} in use, {each['idle']} idle, {each['paused']} paused, {each['lent']} lent"
        yield row, "now", states
        credits = sum(each[f"{kind}_microusd"] for kind in ("pause_credit", "return_credit", "refund"))
        paid, earned = usd(each["paid_microusd"]), usd(each["earned_microusd"])
        note = f"paid {paid}, credits {usd(credits)}, earned {earned}"
        yield row, "Net cost", f"{usd(each['net_microusd'])} {note}"


# -- Teams, Audit and Operate -----------------------------------------------------------------------------


def teams(api: Api, *, by: str, month: str) -> list[Place]:
    spend = api("spend")
    found = placed("budgets-title", _budgets(api("budgets")["budgets"], spend["month"]))
    asked = f"by={by}&month={month}" if month else f"by={by}"
    bill = api(f"invoice?{asked}")
    rows = list(_bill(bill, None if month else api(f"spend/days?by={by}")))
    found += placed("bills-title", rows) + placed("queues-title", _queues(api))
    return found + placed("ledger-title", _ledger(spend))


def _budgets(budgets: Sequence[Mapping[str, Any]], months: Mapping[str, Any]) -> Iterator[Row]:
    known = {each["tenant"]: each for each in budgets}

    def below(within: str) -> Iterator[Mapping[str, Any]]:
        for each in budgets:
            parent = (each["budget"] or {"within": ""})["within"]
            if (parent if parent in known else "") == within:
                yield each
                yield from below(each["tenant"])

    for each in below(""):
        row, budget = each["tenant"], each["budget"]
        yield row, "Spent so far", usd(each["spent_microusd"])
        yield row, "Accruing", usd(each["accruing_microusd"])
        yield row, "Set aside", usd(each["held_microusd"])
        if row in months:
            month_end, so_far = months[row]["expected_microusd"], months[row]["spent_microusd"]
            yield row, "By the end of the month", f"{usd(month_end)} so far {usd(so_far)}"
        period = {"fixed": "once", "monthly": "monthly", "quarterly": "quarterly"}[budget["period"]]
        used = f"{usd(budget['used_microusd'])} of {usd(budget['allowed_microusd'])} used · {period}"
        has_below = any((other["budget"] or {"within": ""})["within"] == row for other in budgets)
        note = "not counting what the budgets below it hold" if has_below else ""
        pace = ""
        if budget["runs_out_s"] is not None:
            pace = "At this pace, used up:"
        elif budget["expected_microusd"] and not (budget["period"] == "monthly" and row in months):
            pace = f"At this pace, by the end of the period: {usd(budget['expected_microusd'])}"
        yield row, "Left", f"{usd(each['left_microusd'])} {used} {note} {pace}"


def _bill(bill: Mapping[str, Any], days: Mapping[str, Any] | None) -> Iterator[Row]:
    when = f"in {bill['month']} (UTC)" if bill["month"] else "since the first job"
    yield "", "h2", f"Bill {usd(bill['total_microusd'])} {when}"
    if days is not None:
        highest = usd(max(day["microusd"] for day in days["days"]))
        parts = " ".join(f"{name} {usd(n)}" for name, n in [*days["total"].items()][:5])
        note = "counted on the day a lease ended, UTC"
        yield "", "figcaption", f"Spend by day highest day {highest} · {note} {parts}"
    for each in bill["bills"]:
        row = each["of"]
        yield row, "Sum", usd(each["microusd"])
        yield row, "GPU-hours", num(each["gpu_s"] / 3600, 2)
        yield row, "Leases", num(each["leases"])
        yield row, "Failed", usd(each["failed_microusd"])
        yield row, "Lost", usd(each["lost_microusd"])


def _queues(api: Api) -> Iterator[Row]:
    for each in api("queues")["queues"]:
        row = each["queue"]
        yield row, "GPUs held", str(each["held_gpus"])
        yield row, "Weight", num(each["set"]["weight"], 2) if each["set"] else "1"
        yield row, "Share owed", pct(each["share_owed"])
        yield row, "Share used", pct(each["share_used"])
        yield row, "Running", str(each["running"])
        gpus = f"{each['waiting_gpus']} GPUs" if each["waiting_gpus"] else ""
        yield row, "Waiting", f"{each['waiting']} {gpus}"
        yield row, "Longest wait", lasts(each["oldest_wait_s"])


def _ledger(spend: Mapping[str, Any]) -> Iterator[Row]:
    holds = [n for name, n in spend["balances"].items() if name.startswith("hold:") and n]
    for name, n in sorted(spend["balances"].items()):
        if not name.startswith("hold:"):
            yield name, "Balance", usd(n)
    title = f"hold {len(holds)} job"
    yield title, "Account", title
    yield title, "Balance", usd(sum(holds))
    yield "balanced", "Balance", f"accounts sum to {usd(spend['sum_microusd'])}"
    for each in spend["transfers"][:20]:
        yield "", "Sum", usd(each["microusd"])


def audit(found: Mapping[str, Any], leaf_words: Callable[[str], str]) -> list[Place]:
    rows: list[Row] = [
        ("", "note", f"{num(found['paid_gpu_h'], 1)} GPU-hours · every GPU at its price, in use or not"),
        ("", "Paid", _dollars(found["paid_usd"])),
    ]
    notes = {
        "kept": "work whose result stayed",
        "wasted": "free, idle, out of service, or lost work",
        "unknown": "nothing was measured",
    }
    for name, each in found["headline"].items():
        rows.append(("", "note", f"{num(each['gpu_h'], 1)} GPU-hours · {pct(each['share'])} · {notes[name]}"))
        rows.append(("", name if name == "unknown" else name.title(), _dollars(each["usd"])))
    known = {leaf["path"]: leaf["gpu_h"] for leaf in found["leaves"]}
    for leaf in found["leaves"]:
        above, _, last = leaf["path"].rpartition(".")
        if last != "unknown" or known.get(above) != leaf["gpu_h"]:
            words = leaf_words(leaf["path"])
            rows.append((words, "Share", pct(leaf["share"])))
            rows.append((words, "GPU-hours", num(leaf["gpu_h"], 2)))
            rows.append((words, "Sum", usd(leaf["microusd"])))
    worst: list[Row] = []
    for each in found["jobs"]:
        row = f"{each['job']} {each['name']}"
        worst.append((row, "GPU-hours", num(each["wasted_gpu_h"], 2)))
        worst.append((row, "Wasted", _dollars(each["wasted_usd"])))
    return placed("audit-title", rows) + placed("worst-title", worst)


def _dollars(value: float) -> str:
    return usd(round(value * 1_000_000))


def operate(api: Api) -> list[Place]:
    policy = (
        "A name, with options if needed: brim?move=0. It is active at once, for running and waiting jobs."
    )
    held = ((each["queue"], "GPUs held", str(each["held_gpus"])) for each in api("queues")["queues"])
    events = reversed(api("events?after=-40&limit=40")["events"])
    found = placed("policy-title", [("", "p", f"{policy} Rehearse it first"), *held])
    return found + placed("events-title", (("", "#", str(event["seq"])) for event in events))
