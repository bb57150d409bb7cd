"""Findings as sentences: the terminal and the page say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.audit.sizing import MOST_HURT
from brimful.language import Number, Percent, Seconds, Sentence, Usd, count, say, words
from brimful.language.catalog import is_held
from brimful.units import HOUR_S, MICROUSD

FEW_GPU_H = 10
MOST_NAMES = 5  # of unreadable files


def leaf_words(path: str) -> str:
    code = f"audit.leaf_{path.rpartition('.')[2]}"
    return words(code) if is_held(code) else path


def action_said(action: dict[str, Any]) -> list[Sentence]:
    """What to do; then what it saves, its effect on delays, and how far to trust it."""
    gpus, left, usd = action["gpus"], action["left_gpus"], action["usd_per_month"]
    said = [say(f"audit.action_{action['action']}", left=Number(left), had=Number(left + gpus))]
    if gpus > 0:
        said.append(say("audit.action_returns", gpus=count("gpu", gpus)))
    if usd:
        code = "audit.action_usd.list" if action.get("at_list_price") else "audit.action_usd"
        said.append(say(code, usd=Usd(round(usd * MICROUSD))))
    if action["action"] == "renew":
        why = {name: action[f"{name}_gpus"] for name in ("over", "defensive", "changed")}
        known = None not in why.values()
        said.append(
            say("audit.action_why", **{name: Number(n) for name, n in why.items()})
            if known
            else say("audit.action_together")
        )
    else:
        if action["gpu_h_per_month"] >= 1:
            said.append(say("audit.action_frees", hours=Number(action["gpu_h_per_month"])))
        delays = {when: Seconds(action[f"mean_delay_s_{when}"] or 0.0) for when in ("before", "after")}
        hurt = {when: Percent(action[f"hurt_{when}"] or 0.0, 1) for when in ("before", "after")}
        late = {f"delay_{when}": delay for when, delay in delays.items()}
        said.append(say("audit.action_effect", left=Number(left), **hurt, **late))
    said.append(say(f"audit.action_confidence_{action['confidence']}"))
    return [*said, say("audit.action_short", seen=Seconds(action["seen_s"]))] if action["is_short"] else said


def told_leaves(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Leaves to show: an unknown that is all of its parent adds nothing, unless it is itself divided."""
    whole = {leaf["path"]: leaf["gpu_s"] for leaf in data["leaves"]}

    def adds_nothing(path: str) -> bool:
        parent, _, name = path.rpartition(".")
        divided = any(p.startswith(f"{path}.") and not p.endswith(".unknown") for p in whole)
        return name == "unknown" and whole.get(parent) == whole[path] and not divided

    return [leaf for leaf in data["leaves"] if not adds_nothing(leaf["path"])]


# Paths that contain only waste, to show waste by cause, largest part first.
CAUSE_PATHS = (
    "not_delivered",
    "out_of_service.broken",
    "out_of_service.planned",
    "unallocated.own_queue",
    "unallocated.other_type",
    "unallocated.walled",
    "unallocated.no_demand",
    "allocated.lost",
    *(
        f"allocated.{outcome}.idle.{what}"
        for outcome in ("kept", "unknown")
        for what in ("never_used", "gap", "tail")
    ),
)


def waste_causes(data: dict[str, Any]) -> list[tuple[str, float]]:
    """(path, share of all that was paid): together they are what the headline calls wasted."""
    found: dict[str, float] = {}
    for leaf in data["leaves"]:
        if leaf["path"] in CAUSE_PATHS:
            cause = leaf["path"].replace("allocated.unknown.", "allocated.kept.")
            found[cause] = found.get(cause, 0.0) + leaf["share"]
    return sorted(found.items(), key=lambda each: -each[1])


def paid_said(data: dict[str, Any]) -> Sentence:
    money = data["money_is"]
    digits = 0 if data["paid_gpu_h"] >= FEW_GPU_H else 3
    hours = Number(data["paid_gpu_h"], digits)
    if money is None:
        return say("audit.paid", hours=hours)
    usd = Usd(round(data["priced_usd"] * MICROUSD))
    if data["paid_usd"] is not None:
        return say(f"audit.paid.{money}", hours=hours, usd=usd)
    return say(f"audit.paid.{money}_in_part", hours=hours, usd=usd, part=Number(data["priced_gpu_h"], digits))


def coverage_said(coverage: dict[str, Any]) -> list[Sentence]:
    """How complete the sources are, and what of them could not be used."""
    said: list[Sentence] = []
    if coverage["jobs_outside"] and not coverage["jobs"]:
        said.append(say("audit.no_job_inside", n=coverage["jobs_outside"]))
    if coverage["sampled_share"] is not None:
        samples, outcomes = Percent(coverage["sampled_share"]), Percent(coverage["outcome_share"])
        said.append(say("audit.coverage", samples=samples, outcomes=outcomes))
    if not coverage["knows_queue"]:
        said.append(say("audit.no_queue"))
    if coverage["snapshot_gpus"]:
        said.append(say("audit.snapshot", gpus=count("gpu", coverage["snapshot_gpus"])))
    if types := coverage.get("unpriced"):
        said.append(say("audit.unpriced", types=", ".join(t or words("audit.type_unknown") for t in types)))
    for cluster, share in coverage["card_shares"].items():
        values = {"idle": Percent(share["idle"], 1), "starved": Percent(share["starved"], 1)}
        said.append(say("audit.card_shares", cluster=cluster, **values))
    return [*said, *unused_said(coverage["files_not_known"], coverage["left_out"])]


def unused_said(names: Sequence[str], left_out: Mapping[str, int]) -> list[Sentence]:
    """Unreadable files in folders, and what could not be used of the others."""
    said: list[Sentence] = []
    if names:
        more = "" if len(names) <= MOST_NAMES else ", …"
        shown = ", ".join(name[:60] for name in names[:MOST_NAMES]) + more
        said.append(say("audit.files_not_known", n=len(names), names=shown))
    for name, n in left_out.items():
        amount = hours_told(n / HOUR_S) if name.endswith("gpu_s") else n
        said.append(say(f"audit.left_out_{name}", n=amount))
    return said


def _not_enough(policy: str, short: dict[str, Any]) -> Sentence:
    gpus = count("gpu", short["gpus"])
    if short["stuck"]:
        facts = {"n": Number(short["stuck"]), "jobs": Number(short["jobs"])}
        wide = {"wide": count("gpu", short["widest_gpus"]), "node": count("gpu", short["node_gpus"])}
        return say("audit.not_enough.stuck", policy=policy, gpus=gpus, **facts, **wide)
    hurt, most = Percent(short["hurt"] or 0.0, 1), Percent(MOST_HURT)
    return say("audit.not_enough", policy=policy, gpus=gpus, hurt=hurt, most=most)


def page_title(data: dict[str, Any]) -> str:
    start, end = data["from"], data["to"]
    if start == end:
        return words("audit.page_title_undated")
    length = 10 if start[:10] != end[:10] else 19  # a window within a day needs hours
    start, end = (each[:length].replace("T", " ") for each in (start, end))
    return words("audit.page_title", start=start, end=end)


def hours_told(hours: float) -> Number:
    """GPU-hours in a sentence: a few seconds are not 0.0."""
    return Number(hours, 1 if hours >= 1 else 3)


def hours_digits(data: dict[str, Any]) -> int:
    """Decimals of GPU-hours in tables: enough that a small cluster's are not all zero."""
    return 1 if data["paid_gpu_h"] >= FEW_GPU_H else 3


def size_said(size: dict[str, Any]) -> list[Sentence]:
    """A sizing's findings, sentence by sentence; the calibration line is always included."""
    if size["gpus"] is None:
        return [_not_enough(size["policy"], size["not_enough"])]
    said: list[Sentence] = [say("audit.enough", policy=size["policy"], gpus=count("gpu", size["gpus"]))]
    if size["weeks"] == 1:
        said.append(say("audit.one_week"))
    elif size["bootstrap_gpus"] and size["worst_week_gpus"]:
        both = {"bootstrap": Number(size["bootstrap_gpus"]), "worst": Number(size["worst_week_gpus"])}
        said.append(say("audit.enough_safe", **both))
    if size["silos_gpus"]:
        times = Number(size["silos_gpus"] / size["gpus"], 2)
        gpus = count("gpu", size["silos_gpus"])
        said.append(say("audit.silos", n=len(size["silos"]), gpus=gpus, times=times))
    if size["explained"] is None:
        said.append(say("audit.calibration.none"))
    else:
        said.append(say("audit.calibration", share=Percent(size["explained"])))
    return [*said, say("audit.lower_bound")] if size["lower_bound"] else said
