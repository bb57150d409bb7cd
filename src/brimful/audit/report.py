"""An audit's findings as data: for the terminal, JSON, CSV and the page alike."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from brimful.audit.cards import card_leaves
from brimful.audit.records import Records, Run, most_at_once
from brimful.audit.sweep import Swept
from brimful.audit.tree import Cell, Tree
from brimful.language.printable import for_spreadsheet
from brimful.units import HOUR_S, MICROUSD

TOP = 10
Verdict = Literal["kept", "wasted", "unknown"]


def verdict(leaf: str) -> Verdict:
    """The three words of the headline. Setup and short pauses belong to the work they are part of."""
    top, _, rest = leaf.partition(".")
    if top != "allocated":
        return "unknown" if rest == "unknown" else "wasted"
    outcome, _, what = rest.partition(".")
    if what in ("idle.never_used", "idle.gap", "idle.tail") or outcome == "lost":
        return "wasted"
    return "kept" if outcome == "kept" else "unknown"


def report(records: Records, found: Swept) -> dict[str, Any]:
    """Everything except sizes and actions, which need replays."""
    tree = found.tree
    whole = tree.amount()
    by_verdict = Counter[str]()
    money = Counter[str]()
    for cell, gpu_s in tree.cells.items():
        by_verdict[verdict(cell.leaf)] += gpu_s
        money[verdict(cell.leaf)] += tree.money.get(cell, 0)
    zone = found.calendar.zone
    priced_s = sum(gpu_s for cell, gpu_s in tree.cells.items() if cell in tree.money)
    return {
        "from": datetime.fromtimestamp(found.start_s, zone).isoformat(),
        "to": datetime.fromtimestamp(found.end_s, zone).isoformat(),
        "paid_gpu_h": whole.gpu_s / HOUR_S,
        "paid_usd": _usd(whole.microusd),
        "priced_gpu_h": priced_s / HOUR_S,
        "priced_usd": _usd(sum(tree.money.values()) if tree.is_priced else None),
        "money_is": _basis(tree),
        "headline": {
            name: {
                "gpu_h": by_verdict[name] / HOUR_S,
                "share": by_verdict[name] / whole.gpu_s if whole.gpu_s else None,
                "usd": money[name] / MICROUSD if whole.microusd is not None else None,
            }
            for name in ("kept", "wasted", "unknown")
        },
        "leaves": [
            {
                "path": path,
                "gpu_s": amount.gpu_s,
                "gpu_h": amount.gpu_s / HOUR_S,
                "share": amount.gpu_s / whole.gpu_s,
                "microusd": amount.microusd,
            }
            for path, amount in tree.amounts().items()
        ],
        "hour_of_week": _hour_of_week(found),
        "teams": _teams(records, found),
        **_top(records, found),
        "coverage": _coverage(records, found),
    }


def _basis(tree: Tree) -> str | None:
    """`paid`: sums from bills or agreed prices; `list`: list prices; None: no price."""
    if not tree.is_priced:
        return None
    return "list" if tree.at_list_price else "paid"


def _usd(microusd: int | None) -> float | None:
    return None if microusd is None else microusd / MICROUSD


def _hour_of_week(found: Swept) -> dict[str, Any]:
    """GPUs wanted (held or waited for) by hour of the week from Monday 0:00; and the maximum there were."""
    wanted, there, seconds = Counter[int](), Counter[int](), Counter[int]()
    for hour, length in found.calendar.hours_of_week(found.start_s, found.end_s):
        seconds[hour] += length
    for curve in found.demand.values():
        for start, end, gpus, want in curve:
            for hour, length in found.calendar.hours_of_week(start, end):
                wanted[hour] += want * length
                there[hour] += gpus * length
    return {
        "mean": [wanted[h] / seconds[h] if seconds[h] else None for h in range(168)],
        "gpus": max((there[h] / seconds[h] for h in seconds), default=None),
    }


def _quotas(records: Records, found: Swept) -> dict[str, int]:
    """GPUs that only one queue may use, the maximum at any time."""
    return {
        next(iter(walls)): most_at_once(
            (p.start_s, p.end_s, p.gpus) for p in records.paid if p.walls == walls
        )
        for walls in {p.walls for p in records.paid if len(p.walls) == 1 and not p.unused}
        if found.start_s < found.end_s
    }


def _peaks(records: Records, found: Swept) -> dict[str, int]:
    """The most GPUs that each team, or queue, held at once."""
    spans: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for run in records.runs:
        start, end = max(run.start_s, found.start_s), min(run.end_s, found.end_s)
        for name in {run.team, run.wall} if start < end else ():
            spans[name].append((start, end, run.gpus))
    return {name: most_at_once(mine) for name, mine in spans.items()}


def _teams(records: Records, found: Swept) -> list[dict[str, Any]]:
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    tree, quotas, peaks = found.tree, _quotas(records, found), _peaks(records, found)
    for cell, gpu_s in tree.cells.items():
        mine = sums[cell.team]
        mine[cell.leaf.partition(".")[0]] += gpu_s
        mine[verdict(cell.leaf)] += gpu_s
        mine["walled"] += gpu_s * (cell.leaf == "unallocated.walled")
    return [
        {
            "team": team,
            "quota_gpus": quotas.get(team),
            "peak_gpus": peaks.get(team, 0),
            "held_gpu_h": mine["allocated"] / HOUR_S,
            "kept_gpu_h": mine["kept"] / HOUR_S,
            "wasted_gpu_h": mine["wasted"] / HOUR_S,
            "walled_gpu_h": mine["walled"] / HOUR_S,
            "usd": _usd(tree.amount(team=team).microusd),
        }
        for team, mine in sorted(sums.items(), key=lambda each: -each[1]["wasted"])
        if team
    ]


def _top(records: Records, found: Swept) -> dict[str, list[dict[str, Any]]]:
    """Jobs and users that wasted most of what was paid for, with their owners."""
    places = {paid.place for paid in records.paid}
    pooled = not all(paid.is_node for paid in records.paid)
    wasted: defaultdict[str, Counter[str]] = defaultdict(Counter)
    by_user: defaultdict[str, Counter[str]] = defaultdict(Counter)
    who: dict[str, Run] = {}
    prices, money = _prices(records, found), defaultdict[str, list[float | None]](list)
    for run in records.runs:
        start, end = max(run.start_s, found.start_s), min(run.end_s, found.end_s)
        there = [part for part in run.parts if pooled or part.place in places]
        for part in there if run.job and start < end else ():
            for leaf, a, b, n in card_leaves(records, run, part, (start, end, part.gpus), ()):
                if verdict(leaf) == "wasted":
                    why = "lost" if run.outcome == "lost" else leaf.rpartition(".")[2]
                    wasted[run.job][why] += n * (b - a)
                    by_user[run.user][why] += n * (b - a)
                    price = prices.get((part.place, run.gpu), prices.get((part.place, "")))
                    money[run.job].append(None if price is None else price * n * (b - a))
                    who[run.job] = run
    jobs = [
        {"job": job, "name": run.name, "user": run.user, "team": run.team}
        | {**_most(wasted[job]), "wasted_usd": _whole_usd(money[job])}
        for job in _worst(wasted)
        for run in (who[job],)
    ]
    by_user.pop("", None)
    return {"jobs": jobs, "users": [{"user": user, **_most(by_user[user])} for user in _worst(by_user)]}


def _prices(records: Records, found: Swept) -> dict[tuple[str, str], float | None]:
    """Micro-dollars per GPU-second by place and GPU type, and by a place with one type alone; None: unknown.

    As in the tree, what a place cost is spread evenly over its GPU-seconds.
    """
    gpu_s: Counter[tuple[str, str]] = Counter()
    cost: dict[tuple[str, str], float | None] = {}
    for paid in records.paid:
        seconds = min(paid.end_s, found.end_s) - max(paid.start_s, found.start_s)
        if seconds <= 0 or paid.gpus <= 0 or paid.unused:
            continue
        key = (paid.place, paid.gpu)
        gpu_s[key] += paid.gpus * seconds
        before = cost.get(key, 0.0)
        part = None if paid.microusd is None else paid.microusd * seconds / (paid.end_s - paid.start_s)
        cost[key] = None if before is None or part is None else before + part
    prices = {key: None if each is None else each / gpu_s[key] for key, each in cost.items()}
    alone = Counter(place for place, _ in prices)
    return prices | {(place, ""): each for (place, _), each in prices.items() if alone[place] == 1}


def _whole_usd(parts: list[float | None]) -> float | None:
    """None if any part has no price."""
    known = [part for part in parts if part is not None]
    return _usd(round(sum(known))) if len(known) == len(parts) else None


def _worst(wasted: Mapping[str, Counter[str]]) -> list[str]:
    return sorted(wasted, key=lambda name: (-wasted[name].total(), name))[:TOP]


def _most(why: Counter[str]) -> dict[str, Any]:
    return {"wasted_gpu_h": why.total() / HOUR_S, "mostly": why.most_common(1)[0][0]}


def _coverage(records: Records, found: Swept) -> dict[str, Any]:
    """How complete the records are: what share of held GPU time has samples, and what could not be used."""
    held = found.tree.amount("allocated").gpu_s
    blind = sum(
        n
        for c, n in found.tree.cells.items()
        if c.leaf.startswith("allocated.") and c.leaf.count(".") == 2 and c.leaf.endswith(".unknown")
    )
    outcome = held - found.tree.amount("allocated.unknown").gpu_s
    unpriced = {paid.gpu for paid in records.paid if paid.microusd is None}
    inside = sum(run.start_s < found.end_s and run.end_s > found.start_s for run in records.runs)
    return {
        "jobs": inside,
        "jobs_outside": len(records.runs) - inside,
        "unpriced": sorted(unpriced) if found.tree.is_priced else [],
        "knows_queue": records.knows_queue,
        "snapshot_gpus": records.snapshot_gpus,
        "files_not_known": records.not_known,
        "sampled_share": (held - blind) / held if held else None,
        "outcome_share": outcome / held if held else None,
        "card_shares": {name: {"idle": i, "starved": s} for name, (i, s) in records.card_shares.items()},
        "left_out": {name: n for name, n in sorted(found.left_out.items()) if n},
    }


def as_csv(tree: Tree) -> str:
    """Leaf x team x type x day. Both sums are exact: they add up to what was paid."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("leaf", "team", "gpu", "day", "gpu_seconds", "microusd"))
    sums: defaultdict[tuple[str, str, str, str], list[Cell]] = defaultdict(list)
    for cell in tree.cells:
        sums[cell.leaf, cell.team, cell.gpu, cell.day].append(cell)
    for key in sorted(sums):
        found = tree.sum_of(sums[key])
        writer.writerow((*map(for_spreadsheet, key), found.gpu_s, found.microusd))  # None is an empty cell
    return out.getvalue()
