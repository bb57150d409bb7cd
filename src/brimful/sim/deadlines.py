"""Deadline rules tested on a record of spot capacity: from many starts, beside a clairvoyant one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd
from statistics import fmean
from typing import Any

from brimful.market.spells import PRIOR_HOURS, Following, Hours, Spells, follow
from brimful.scheduler.deadlines.programme import (
    Held,
    Programme,
    Seen,
    Task,
    best_zone,
    greedy,
    uniform_progress,
)
from brimful.units import HOUR_S

LEARN_S = 24 * HOUR_S  # beliefs are renewed once per day of the record
GRID = 24_000  # the clairvoyant's work grid, at most

Rule = Callable[[Seen, int], Held]


@dataclass(frozen=True, slots=True)
class Capacity:
    """Whether each zone had spot, look by look."""

    tick_s: int
    zones: tuple[str, ...]
    up: tuple[bytes, ...]  # by zone: 1 where all nodes were available

    @property
    def ticks(self) -> int:
        return len(self.up[0])


@dataclass(frozen=True, slots=True)
class Run:
    cost_usd: float
    missed: bool
    starts: int


def compare(
    capacity: Capacity, task: Task, *, starts: int, prior: Hours = PRIOR_HOURS
) -> dict[str, dict[str, float]]:
    """Mean cost, misses and instance starts of every policy, over the same starts."""
    world = World(capacity, prior)
    last = max(0, capacity.ticks - ceil(task.deadline_s / capacity.tick_s))
    firsts = [round(k * last / max(1, starts - 1)) for k in range(starts)]
    rules: dict[str, Rule] = {
        "brim": world.brim(task),
        "greedy": lambda seen, _: greedy(task, seen, tick_s=capacity.tick_s),
        "uniform_progress": lambda seen, _: uniform_progress(task, seen, tick_s=capacity.tick_s),
    }
    results = {}
    for name, rule in rules.items():
        runs = [world.run(task, rule, first) for first in firsts]
        results[name] = {
            "mean_cost_usd": round(fmean(run.cost_usd for run in runs), 4),
            "misses": sum(run.missed for run in runs),
            "mean_starts": round(fmean(run.starts for run in runs), 2),
        }
    costs = [clairvoyant(capacity, task, first) for first in firsts]
    results["clairvoyant"] = {"mean_cost_usd": round(fmean(costs), 4), "misses": 0}
    return results


class World:
    """A record, and what had been seen of it by each moment."""

    def __init__(self, capacity: Capacity, prior: Hours = PRIOR_HOURS) -> None:
        self.capacity, self._prior = capacity, prior
        self._any = bytes(map(max, *capacity.up)) if len(capacity.up) > 1 else capacity.up[0]
        self._age = _ages(self._any, capacity.tick_s)
        self._zone_ages = [_ages(up, capacity.tick_s) for up in capacity.up]
        self._every = max(1, LEARN_S // capacity.tick_s)
        self._zone_beliefs = [
            self._learn(up, ages) for up, ages in zip(capacity.up, self._zone_ages, strict=True)
        ]

    def _learn(self, up: bytes, ages: Sequence[int]) -> list[Spells]:
        """What was known at the start of each day: only earlier looks count."""
        spells, known = Spells.before(self._prior), []
        for i in range(len(up)):
            if i % self._every == 0:
                known.append(spells.copy())
            if i + 1 < len(up):
                ended = up[i + 1] != up[i]
                spells.watch(is_up=bool(up[i]), age_s=ages[i], seconds=self.capacity.tick_s, ended=ended)
        return known

    def brim(self, task: Task) -> Rule:
        # Starts come in order, so few days are in use at a time.
        @lru_cache(maxsize=ceil(task.deadline_s / LEARN_S) + 2)
        def programme(day: int) -> Programme:
            return Programme(task, self._following(day), tick_s=self.capacity.tick_s)

        return lambda seen, i: programme(i // self._every).decide(seen)

    def _following(self, day: int) -> Following:
        """What was known at the start of that day."""
        looks = day * self._every
        zones = [_changes(up[:looks], self.capacity.tick_s) for up in self.capacity.up]
        return follow(zones, until_s=looks * self.capacity.tick_s, prior=self._prior)

    def run(self, task: Task, rule: Rule, first: int) -> Run:
        """One task from one start, billed by the second."""
        tick_s = self.capacity.tick_s
        held: Held = "none"
        zone, setup_s, work_s, elapsed_s, cost, begun = -1, 0.0, task.work_s, 0.0, 0.0, 0
        i = first
        while work_s > 1e-6:
            if held == "spot" and not self._is_up(zone, i):
                held = "none"
            is_up = bool(i < len(self._any) and self._any[i])
            age_s = self._age[i] if i < len(self._any) else 0
            if is_up and len(self._zone_ages) > 1:
                age_s = self._zone_ages[self._choose(i)][i]
            seen = Seen(task.deadline_s - elapsed_s, work_s, held, setup_s, is_up, age_s)
            action = rule(seen, min(i, len(self._any) - 1))
            if action != held:
                held, setup_s = action, 0.0 if action == "none" else task.restart_s
                begun += action != "none"
                zone = self._choose(i) if action == "spot" else -1
            if held == "none":
                elapsed_s, i = elapsed_s + tick_s, i + 1
                continue
            ran_s = min(tick_s, setup_s + work_s)
            work_s -= max(0.0, ran_s - setup_s)
            setup_s = max(0.0, setup_s - ran_s)
            rate = task.spot_usd_per_hour if held == "spot" else task.on_demand_usd_per_hour
            cost += rate * ran_s / HOUR_S
            elapsed_s, i = elapsed_s + ran_s, i + 1
        return Run(cost, elapsed_s > task.deadline_s + 1e-6, begun)

    def _is_up(self, zone: int, i: int) -> bool:
        return i < self.capacity.ticks and bool(self.capacity.up[zone][i])

    def _choose(self, i: int) -> int:
        zones = [z for z, up in enumerate(self.capacity.up) if up[i]]
        if len(zones) == 1:
            return zones[0]
        day = i // self._every
        ages = [ages[i] for ages in self._zone_ages]
        return best_zone(zones, ages, [known[day] for known in self._zone_beliefs])


def _changes(up: bytes, tick_s: int) -> list[int]:
    """When it came up, went down, came up, ...; as in `spells_of`."""
    return [i * tick_s for i in range(len(up)) if bool(up[i]) != bool(i and up[i - 1])]


def seen_in(capacity: Capacity) -> Spells:
    """How the spells in a record of one zone end, without a prior."""
    spells, (up,) = Spells.before(None), capacity.up
    for i, age_s in enumerate(_ages(up, capacity.tick_s)[:-1]):
        spells.watch(is_up=bool(up[i]), age_s=age_s, seconds=capacity.tick_s, ended=up[i + 1] != up[i])
    return spells


def _ages(up: bytes, tick_s: int) -> list[int]:
    """How long it has been in its current state, at each look."""
    ages, age = [], 0
    for i in range(len(up)):
        age = age + tick_s if i and up[i] == up[i - 1] else 0
        ages.append(age)
    return ages


def clairvoyant(capacity: Capacity, task: Task, first: int) -> float:
    """The least cost of finishing in time if all spot changes are known in advance: exact.

    A dynamic programme backwards over the stretches between changes, on a grid of work that divides a look
    and a restart. A start adds the restart to the work that is left, so it may extend over any change. Within
    a stretch on-demand may begin late (that is how it does only part of it); spot begins at once or not at
    all.
    """
    import numpy as np

    unit = max(gcd(capacity.tick_s, round(task.restart_s)), ceil(task.work_s / GRID))
    setup = round(task.restart_s / unit)
    works = ceil(task.work_s / unit - 1e-9)
    size = works + setup + 1
    spot, demand = (rate * unit / HOUR_S for rate in (task.spot_usd_per_hour, task.on_demand_usd_per_hour))
    work = np.arange(size)
    none = np.full(size, np.inf)
    none[0] = 0.0
    on_demand, held = none.copy(), [none.copy() for _ in capacity.up]
    for length_s, up in reversed(_stretches(capacity, task, first)):
        length = round(length_s / unit)

        def ran(after: Any, price: float, length: int = length) -> Any:  # noqa: ANN401 - an array
            """The whole stretch, or until the work is done."""
            cost = work * price
            cost[length + 1 :] = np.inf
            if length < size:
                cost[length:] = np.minimum(cost[length:], after[: size - length] + length * price)
            return cost

        running = ran(on_demand, demand)
        spots = [ran(value, spot) if is_up else None for value, is_up in zip(held, up, strict=True)]
        best = none.copy()
        starts = [running, *(value for value in spots if value is not None)]
        late = _begun_late(np, on_demand, demand, length)
        for value in [*starts, late]:
            best[: size - setup] = np.minimum(best[: size - setup], value[setup:])
        none = best
        on_demand = np.minimum(running, none)
        held = [none if value is None else np.minimum(value, none) for value in spots]
    return float(none[works])


def _begun_late(np: Any, after: Any, price: float, length: int) -> Any:  # noqa: ANN401 - a module, arrays
    """min over x up to `length` of after[w - x] + x * price: the best of a window, by doubling."""
    index = np.arange(len(after)) * price
    best, reach = after - index, 1
    while reach < length + 1:
        shift = min(reach, length + 1 - reach)
        if shift < len(best):
            best[shift:] = np.minimum(best[shift:], best[:-shift])
        reach += shift
    return best + index


def _stretches(capacity: Capacity, task: Task, first: int) -> list[tuple[float, tuple[bool, ...]]]:
    """(seconds, which zones have spot) between changes, from the start to the deadline."""
    found: list[tuple[float, tuple[bool, ...]]] = []
    left_s, i = task.deadline_s, first
    while left_s > 0:
        up = tuple(bool(i < capacity.ticks and zone[i]) for zone in capacity.up)
        seconds = min(float(capacity.tick_s), left_s)
        if found and found[-1][1] == up:
            found[-1] = (found[-1][0] + seconds, up)
        else:
            found.append((seconds, up))
        left_s, i = left_s - seconds, i + 1
    return found
