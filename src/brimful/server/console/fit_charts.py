"""Fit's answer as shapes to draw and words to read: no HTML, and no number that the API does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from brimful.diagnose.advice import verdict_words
from brimful.diagnose.claims.judge import verdict_words as judged_words
from brimful.fit.advice.sweep import GROUPS, TITLES, group_of
from brimful.language import Factor, Number, Percent, Seconds, Sentence, Size, say, told, words

WIDTH, HEIGHT = 1000, 100  # of a chart, independent of its size on the page
ROOM = 1.3  # space above the card's memory, or above the smallest batch if not even that fits
RARE = 0.01  # a chance is not known any better
CHIPS = {"fits": "finished", "at_risk": "waiting", "likely_does_not_fit": "failed", "does_not_fit": "failed"}
JUDGED = {"true": "finished", "partly": "waiting", "false": "failed", "cannot_tell": ""}


def fit_shapes(answer: Mapping[str, Any]) -> dict[str, Any]:
    cards = answer["cards"]
    widest = max((_end(card["estimate"]) for card in cards), default=1)
    return {
        "model": words("console.fit_yours") if answer["model"] == "config" else answer["model"],
        "told": _is_told(answer["explanation"], answer["claims"]),
        "cards": [_card(card, widest) for card in cards],
        "groups": [(name, words(title)) for name, title in TITLES.items() if _used(cards, name)],
        "explanation": answer["explanation"],
        "claims": answer["claims"] and _claims(answer["claims"]),
    }


def _is_told(explanation: Mapping[str, Any] | None, claims: Mapping[str, Any] | None) -> bool:
    """Whether there is a message to explain: a guess about words that are advice means nothing."""
    if explanation is None or explanation["cannot_tell"]:
        return False
    return any(one["kind"] != "config" for one in explanation["recognised"]) or not (
        claims and claims["claims"]
    )


def _end(estimate: Mapping[str, Any]) -> float:
    return float(max(estimate["usable_bytes"], estimate["memory"]["device_bytes"]["high"]))


def _used(cards: Iterable[Mapping[str, Any]], group: str) -> bool:
    return any(
        group_of(item["code"]) == group for card in cards for item in card["estimate"]["memory"]["items"]
    )


def _card(card: Mapping[str, Any], widest: float) -> dict[str, Any]:
    estimate = card["estimate"]
    device, speed, memory = estimate["memory"]["device_bytes"], estimate["speed"], estimate["memory"]
    gap = Size(abs(device["likely"] - estimate["usable_bytes"]))
    room = say("gpu.spare", size=gap) if estimate["fits"] else say("gpu.short", size=gap)
    ways = estimate["fixes"] or estimate["faster"]
    return {
        "gpu": card["gpu"],
        "title": card["title"],
        **_verdict(estimate["verdict"]),
        "needs": words(
            "gpu.needs_of_usable",
            likely=Size(device["likely"]),
            usable=Size(estimate["usable_bytes"]),
            room=room,
        ),
        "between": words("gpu.between", low=Size(device["low"]), high=Size(device["high"])),
        "chance": chance_said(estimate["chance_of_running_out"]),
        "peak_at": words("gpu.peak_at", where=memory["peak_at"]),
        "mfu": told(Percent(speed["mfu"]["likely"])),
        "tokens_per_s": told(Number(speed["tokens_per_s"]["likely"])),
        "step": told(Seconds(speed["step_s"]["likely"])),
        "bar": _bar(estimate, widest),
        "items": [
            {
                "group": group_of(item["code"]),
                "name": item["name"],
                "size": told(Size(item["bytes"])),
                "share": told(Percent(item["bytes"] / device["likely"])),
                "why": item["why"],
            }
            for item in sorted(memory["items"], key=lambda item: -item["bytes"])
        ],
        "ways_title": words("gpu.what_to_change" if estimate["fixes"] else "gpu.what_is_faster"),
        "ways": [way_shape(fix) for fix in ways],
        "largest": _largest(estimate),
        "rungs": [_rung(number, rung) for number, rung in enumerate(card["ladder"])],
        "sweep": _sweep(card["sweep"], estimate["usable_bytes"], card["batch_size"]),
        "notes": estimate["warnings"],
        "assumed": ", ".join(f"{each['name']}={each['value']}" for each in estimate["assumed"]),
    }


def _verdict(verdict: Any) -> dict[str, str]:  # noqa: ANN401 - JSON
    return {"verdict": told(verdict_words(verdict)), "chip": CHIPS[verdict]}


def _bar(estimate: Mapping[str, Any], widest: float) -> dict[str, Any]:
    """The groups side by side, the card's limit, and the range of the estimate, in percent."""
    sums = dict.fromkeys([*GROUPS, "rest"], 0)
    for item in estimate["memory"]["items"]:
        sums[group_of(item["code"])] += item["bytes"]
    parts, at = [], 0.0
    for name, size in sums.items():
        if size:
            width = 100 * size / widest
            title = f"{words(TITLES[name])}: {told(Size(size))}"
            parts.append({"group": name, "x": round(at, 2), "width": round(width, 2), "title": title})
            at += width
    device = estimate["memory"]["device_bytes"]
    return {
        "parts": parts,
        "end": round(100 * estimate["usable_bytes"] / widest, 2),
        "low": round(100 * device["low"] / widest, 2),
        "span": round(100 * (device["high"] - device["low"]) / widest, 2),
    }


def _change(change: Mapping[str, Sequence[Any]]) -> str:
    # A reader does not know unset values as `None`.
    return ", ".join(
        f"{key} {then}" if now is None else f"{key} {now} → {then}" for key, (now, then) in change.items()
    )


def chance_said(chance: float) -> str:
    """No more digits than are known."""
    shown: Sentence | Percent = Percent(chance)
    if chance < RARE:
        shown = say("gpu.less_than", frac=Percent(RARE))
    elif chance > 1 - RARE:
        shown = say("gpu.more_than", frac=Percent(1 - RARE))
    return words("gpu.chance", chance=shown)


def risk_shape(estimate: Mapping[str, Any]) -> dict[str, Any]:
    """How safe it is on one card, and what would make it fit if it does not or may not."""
    is_safe = estimate["verdict"] == "fits"
    ways = [] if is_safe else [way_shape(fix) for fix in estimate["fixes"]]
    return {
        **_verdict(estimate["verdict"]),
        "chance": chance_said(estimate["chance_of_running_out"]),
        "ways": ways,
    }


def way_shape(fix: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "change": _change(fix["change"]),
        **_verdict(fix["verdict"]),
        "needs": told(Size(fix["device_bytes"])),
        "time": told(Factor(fix["step_time_factor"])),
        "mfu": told(Percent(fix["mfu"])),
        "note": fix["note"],
    }


def _largest(estimate: Mapping[str, Any]) -> str:
    largest, sure = estimate["largest_batch"], estimate["sure_batch"]
    if largest is None:
        return words("gpu.not_even_batch_1")
    risk = "" if sure == largest else ".none_sure" if sure is None else ".at_risk"
    return told(Sentence(f"gpu.largest_batch_as_configured{risk}", {"n": largest, "sure": sure}))


def _rung(number: int, rung: Mapping[str, Any]) -> dict[str, Any]:
    change = ", ".join(f"{key} {then}" for key, (_, then) in rung["change"].items())
    return {
        "number": number,
        "change": change or words("gpu.configured"),
        **_verdict(rung["verdict"]),
        "needs": told(Size(rung["device_bytes"]["likely"])),
        "step": told(Seconds(rung["step_s"])),
        "mfu": told(Percent(rung["mfu"])),
        "code": "" if rung["config_only"] else words("gpu.code"),
    }


def _sweep(done: Mapping[str, Any], usable_bytes: int, batch_size: int) -> dict[str, Any]:
    """Memory by group as stacked areas and MFU as a line, over batch sizes; both end with their values."""
    points = done["points"]
    first, last = int(points[0]["value"]), int(points[-1]["value"])
    likely = [point["device_bytes"]["likely"] for point in points]
    top: float = min(max(*likely, usable_bytes * 1.05), ROOM * max(usable_bytes, min(likely))) or 1
    highest = max(point["mfu"] for point in points) or 1

    def x(value: int) -> float:
        return round(WIDTH * (value - first) / max(1, last - first), 1)

    def y(size: float) -> float:
        return round(HEIGHT - HEIGHT * size / top, 1)  # what is above the chart is cut off by it

    below = [0.0] * len(points)
    areas = []
    for name in TITLES:
        above = [at + point["groups"][name] for at, point in zip(below, points, strict=True)]
        if above != below:
            edge = [(x(p["value"]), y(n)) for p, n in zip(points, above, strict=True)]
            back = [(x(p["value"]), y(n)) for p, n in zip(points, below, strict=True)]
            areas.append({"group": name, "points": _line([*edge, *back[::-1]])})
        below = above
    mfu = [(x(p["value"]), round(HEIGHT - HEIGHT * p["mfu"] / highest, 1)) for p in points]
    return {
        "areas": areas,
        "end_y": y(usable_bytes),
        "end": words("gpu.end_of_card", size=Size(usable_bytes)),
        "top": told(Size(top)),
        "mfu": _line(mfu),
        "mfu_top": told(Percent(highest)),
        "first": told(first),
        "last": told(last),
        "at_x": x(batch_size) if first <= batch_size <= last else None,
        "at": words("console.fit_configured", n=batch_size),
        "says": done["says"],
        "rows": [
            {
                "value": told(point["value"]),
                "needs": told(Size(point["device_bytes"]["likely"])),
                **_verdict(point["verdict"]),
                "mfu": told(Percent(point["mfu"])),
                "tokens_per_s": told(Number(point["tokens_per_s"])),
            }
            for point in points
        ],
    }


def _line(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in corners)


def _claims(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "summary": found["summary"],
        "claims": [
            {
                "verdict": told(judged_words(one["verdict_code"])),
                "chip": JUDGED[one["verdict_code"]],
                "quote": " ".join(one["quotes"][0].split()) if one["quotes"] else one["said"],
                "why": [*one["why"], *one["published"]],
            }
            for one in found["claims"]
        ],
    }
