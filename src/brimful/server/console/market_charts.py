"""Price and depth of market pools as shapes to draw: coordinates and words, no HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.server.service.reader import Reader
from brimful.server.views.money import prices_view

BACK_S = 6 * 3600
POOLS_SHOWN = 12
STEPS_SHOWN = 8
WIDTH, HEIGHT = 1000, 100  # of a chart, whatever its size on the page


def market_cards(reader: Reader) -> list[dict[str, Any]]:
    """One card for each market pool; none where every price is posted."""
    if reader.market is None:
        return []
    now_s = reader.now_s()
    pools = [each for each in prices_view(reader, since_s=max(0, now_s - BACK_S)) if each["market"]]
    return [_card(pool, now_s=now_s) for pool in pools[:POOLS_SHOWN]]


def _card(pool: Mapping[str, Any], *, now_s: int) -> dict[str, Any]:
    history = pool["history"]
    start_s = max(history[0]["at_s"], now_s - BACK_S) if history else now_s
    top = max([each["cleared_microusd_per_gpu_hour"] for each in history], default=0) or 1
    wanted = max([max(each["wanted"], each["gpus"]) for each in history], default=0) or 1
    span_s = max(1, now_s - start_s)

    def steps(key: str, highest: int) -> list[tuple[float, float]]:
        """Corners of a curve that holds each value until the next."""
        corners: list[tuple[float, float]] = []
        for point in history:
            x = round(WIDTH * max(0, point["at_s"] - start_s) / span_s, 1)
            y = round(HEIGHT - HEIGHT * min(1.0, point[key] / highest), 1)
            if corners:
                corners.append((x, corners[-1][1]))
            corners.append((x, y))
        return [*corners, (float(WIDTH), corners[-1][1])] if corners else []

    billed = steps("microusd_per_gpu_hour", top)
    most = max([each["held"] + each["wanted"] for each in pool["depth"]], default=0) or 1
    return {
        **pool,
        "used": pool["gpus"] - pool["free"],
        "since_s": start_s,
        "span_s": now_s - start_s,
        "top_microusd": top,
        "most_wanted": wanted,
        "billed_area": _area(billed),
        "billed_line": _line(billed),
        "cleared_line": _line(steps("cleared_microusd_per_gpu_hour", top)),
        "used_area": _area(steps("held", wanted)),
        "wanted_line": _line(steps("wanted", wanted)),
        "gpus_y": round(HEIGHT - HEIGHT * pool["gpus"] / wanted, 1),
        "steps": [
            {**each, "held_frac": each["held"] / most, "both_frac": (each["held"] + each["wanted"]) / most}
            for each in pool["depth"][:STEPS_SHOWN]
        ],
        "more_steps": max(0, len(pool["depth"]) - STEPS_SHOWN),
    }


def _line(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in corners)


def _area(corners: Sequence[tuple[float, float]]) -> str:
    if not corners:
        return ""
    return f"{corners[0][0]},{HEIGHT} {_line(corners)} {WIDTH},{HEIGHT}"
