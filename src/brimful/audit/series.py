"""Samples of one card over time, packed: a month of 600 cards by the minute is 26 million of them."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from statistics import median, median_low

from brimful.meter.idle import Level, Spans, as_spans, card_level

CardKey = tuple[str, str, int]  # job or "", node, card

# Name of a metric -> its kind, and its value for 100 %.
METRICS: dict[str, tuple[str, float]] = {
    "DCGM_FI_PROF_SM_ACTIVE": ("sm", 1.0),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("engine", 1.0),
    "DCGM_FI_DEV_GPU_UTIL": ("busy", 100.0),
    "DCGM_FI_DEV_POWER_USAGE": ("power", 1.0),
    "DCGM_FI_DEV_FB_USED": ("memory", 2.0**-20),
    "brimful_gpu_busy_ratio": ("busy", 1.0),
    "brimful_gpu_power_watts": ("power", 1.0),
    "brimful_gpu_memory_used_bytes": ("memory", 1.0),
    "nvidia_gpu_duty_cycle": ("busy", 100.0),
    "nvidia_smi_utilization_gpu_ratio": ("busy", 1.0),
    "task_gpu_percent": ("busy", 100.0),
}
FRACTIONS = ("sm", "engine", "busy")
USUAL_STEP_S = 60
MOST_FRAC = 8.0  # slices of a card have been seen above 100 %, and a card has seven
MOST_OTHER = 2.0**50  # bytes or watts


class Series:
    """One card's samples by kind. Of several at one time (MIG slices) the busiest counts."""

    __slots__ = ("kinds",)

    def __init__(self) -> None:
        self.kinds: dict[str, tuple[array[int], array[float]]] = {}

    def extend(self, kind: str, looks: Iterable[tuple[float, str]], unit: float) -> None:
        """Skips NaN, DCGM's blanks and anything else that no card can report."""
        times, values = self.kinds.setdefault(kind, (array("I"), array("f")))
        top, most = (1.0, MOST_FRAC) if kind in FRACTIONS else (inf, MOST_OTHER)
        for at, text in looks:
            try:
                at_s, value = int(at), float(text) / unit
            except (ValueError, TypeError, OverflowError):
                continue
            if 0 <= value <= most and 0 <= at_s < 2**32:
                times.append(at_s)
                values.append(min(value, top))

    def most(self, kind: str) -> float | None:
        return max(self.kinds[kind][1], default=None) if kind in self.kinds else None

    def most_between(self, kind: str, start_s: int, end_s: int) -> float | None:
        if kind not in self.kinds:
            return None
        times, values = self._sorted(kind)
        return max(values[bisect_left(times, start_s) : bisect_left(times, end_s)], default=None)

    def spans(self) -> Spans:
        kind = self._deciding()
        if kind is None:
            return []
        times, values = self._sorted(kind)
        power = self._sorted("power") if "power" in self.kinds else (array("I"), array("f"))
        rest_w = self._rest_w(power)
        gaps = [b - a for a, b in itertools.pairwise(times)]
        step_s = median_low(gaps) if gaps else USUAL_STEP_S
        return as_spans(_looks(kind, times, values, power, rest_w), step_s=max(1, step_s))

    def _deciding(self) -> str | None:
        """The most informative kind. All zeros while another kind changes mean that it is not supported."""
        known = [kind for kind in (*FRACTIONS, "power") if kind in self.kinds]
        moving = [kind for kind in known if kind != "power" and any(self.kinds[kind][1])]
        return next(iter(moving or known), None)

    def _sorted(self, kind: str) -> tuple[array[int], array[float]]:
        times, values = self.kinds[kind]
        if all(a < b for a, b in itertools.pairwise(times)):
            return times, values
        order = dict(sorted(zip(times, values, strict=True)))  # of several at one time the largest comes last
        return array("I", order), array("f", order.values())

    def _rest_w(self, power: tuple[array[int], array[float]]) -> float | None:
        """Watts of this card while it was not busy."""
        if "busy" not in self.kinds or not power[0]:
            return None
        busy = dict(zip(*self._sorted("busy"), strict=True))
        quiet = [watts for at, watts in zip(*power, strict=True) if busy.get(at) == 0]
        return median(quiet) if quiet else None


def _looks(
    kind: str,
    times: array[int],
    values: array[float],
    power: tuple[array[int], array[float]],
    rest_w: float | None,
) -> Iterator[tuple[int, Level | None]]:
    levels: dict[tuple[float, float | None], Level | None] = {}
    for at_s, value in zip(times, values, strict=True):
        watts = None
        if rest_w is not None and (i := bisect_right(power[0], at_s)):
            watts = power[1][i - 1]
        key = (value, watts)
        if key not in levels:
            levels[key] = card_level(
                sm_frac=value if kind in ("sm", "engine") else None,
                busy_frac=value if kind == "busy" else None,
                power_w=watts,
                rest_w=rest_w,
            )
        yield at_s, levels[key]


def card_of(labels: Mapping[str, str]) -> CardKey | None:
    """The sample's card, by the labels of DCGM's and other exporters; None if no card is named."""
    node = labels.get("Hostname") or labels.get("node") or labels.get("host")
    node = node or labels.get("instance", "").rpartition(":")[0]
    card = labels.get("gpu") or labels.get("minor_number") or labels.get("device", "").removeprefix("nvidia")
    job = labels.get("hpc_job") or labels.get("jobid") or labels.get("job_name") or labels.get("pod") or ""
    return (job, node, int(card)) if node and card.isdecimal() and len(card) <= 4 else None
