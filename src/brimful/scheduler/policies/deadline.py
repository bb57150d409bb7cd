"""Finish by a deadline for little: spot, on-demand or nothing, decided anew at every look at the market.
Pure.

The cheapest plan that never misses is a dynamic programme over (time left, work left, is spot there and
since when, what is held). What it must know of the future is how long spot stays and how long it stays
away; that is learned from what was seen of this very capacity so far, with next to nothing assumed before.
On-demand is taken to be always there, and nothing is done from which it could no longer finish in time:
that is the safety net.

Spot that is there is never left unused to see whether it lasts: that gains only as long as spells are alike,
and on real records, where calm and restless days take turns, it cost up to a fifth more.

A start of any instance costs `restart_s` of billed time without progress (boot, load, warm up).

`greedy` and `uniform_progress` are the usual rules to compare with (Wu et al., Can't Be Late, NSDI 2024).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any, Literal, NamedTuple

from brimful.errors import WorldFailed
from brimful.units import HOUR_S

Held = Literal["none", "spot", "on_demand"]

# Ages of a spell at which its chance to end is counted apart, in seconds. Real spells are mostly short with a
# long tail, so the steps widen; within one the chance is taken as constant.
AGES_S = (0, 900, 3600, 4 * 3600, 12 * 3600)
# Assumed before anything was seen, at the weight of one spell: it ends within so many hours at each age.
PRIOR_HOURS = (1.0, 2.0, 4.0, 8.0, 16.0)
STEPS = 512  # of time in the programme, at most
_N = len(AGES_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be done, and what the two kinds of capacity cost."""

    work_s: float
    deadline_s: float
    restart_s: float
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float


class Seen(NamedTuple):
    """The situation at one look. With several zones: of all of them together."""

    left_s: float  # until the deadline
    work_s: float  # still to be done
    held: Held
    setup_s: float  # of the start still to be paid
    is_up: bool  # spot is to be had; where spot is held, that it is still there
    age_s: float  # how long that has been so


def is_safe(task: Task, seen: Seen, action: Held, *, tick_s: float) -> bool:
    """Whether on-demand can still finish in time after a tick of this, should spot be gone then."""
    done_s = 0.0
    if action == "spot":
        setup_s = seen.setup_s if seen.held == "spot" else task.restart_s
        done_s = max(0.0, tick_s - setup_s)
        if seen.work_s <= done_s:
            return seen.left_s >= setup_s + seen.work_s
    return seen.left_s - tick_s >= seen.work_s - done_s + task.restart_s


def greedy(task: Task, seen: Seen, *, tick_s: float) -> Held:
    """Spot whenever it is there, nothing else while there is time, on-demand to the end once there is not."""
    wish: Held = "spot" if seen.is_up else "none"
    if seen.held == "on_demand" or not is_safe(task, seen, wish, tick_s=tick_s):
        return "on_demand"
    return wish


def uniform_progress(task: Task, seen: Seen, *, tick_s: float) -> Held:
    """Keep pace with a straight line from start to deadline.

    Behind it, on-demand; that is let go once two restarts ahead of it. Spot, once held, is kept.
    """
    pace = task.work_s / task.deadline_s
    elapsed_s = task.deadline_s - seen.left_s
    done_s = task.work_s - seen.work_s
    wish: Held = "spot" if seen.is_up else "none"
    if seen.held == "on_demand" and done_s < pace * (elapsed_s + 2 * task.restart_s):
        return "on_demand"
    if wish == "none" and done_s < pace * elapsed_s:
        return "on_demand"
    return wish if is_safe(task, seen, wish, tick_s=tick_s) else "on_demand"


def age_of(age_s: float) -> int:
    return bisect_right(AGES_S, age_s) - 1


@dataclass(slots=True)
class Spells:
    """How spells have ended so far: hours watched and ends seen, by state (away, there) and age."""

    hours: list[list[float]] = field(default_factory=lambda: [list(PRIOR_HOURS) for _ in range(2)])
    ends: list[list[float]] = field(default_factory=lambda: [[1.0] * _N for _ in range(2)])

    def watch(self, *, is_up: bool, age_s: float, seconds: float, ended: bool) -> None:
        age = age_of(age_s)
        self.hours[is_up][age] += seconds / HOUR_S
        self.ends[is_up][age] += ended

    def per_hour(self, *, is_up: bool) -> list[float]:
        """The chance of an end, per hour, at each age."""
        return [e / h for e, h in zip(self.ends[is_up], self.hours[is_up], strict=True)]

    def expected_hours(self, age_s: float) -> float:
        """How long a spell of spot that is this old will last."""
        chances = self.per_hour(is_up=True)
        hours, alive, begun_s = 0.0, 1.0, age_s
        for age in range(age_of(age_s), _N):
            if age + 1 == _N:
                return hours + alive / chances[age]
            width = (AGES_S[age + 1] - begun_s) / HOUR_S
            stays = exp(-chances[age] * width)
            hours += alive * (1 - stays) / chances[age]
            alive, begun_s = alive * stays, AGES_S[age + 1]
        return hours

    def copy(self) -> Spells:
        return Spells([list(row) for row in self.hours], [list(row) for row in self.ends])


class Plan:
    """The programme for one task and one belief about spells: solved once, then looked up.

    `hops_per_hour`: how often a held instance is lost while another zone still has spot.
    """

    def __init__(self, task: Task, spells: Spells, *, hops_per_hour: float = 0.0) -> None:
        self.task = task
        self._step_s = max(task.restart_s, task.deadline_s / STEPS, 1.0)
        self._lost_per_s = [chance / HOUR_S for chance in spells.per_hour(is_up=True)]
        self._none, self._spot, self._on_demand = _solve(task, spells, hops_per_hour, self._step_s)

    def decide(self, seen: Seen, *, tick_s: float) -> Held:
        """What costs least, its tick and the expected rest together, of what is safe."""
        task = self.task
        if seen.held == "spot" and seen.is_up and is_safe(task, seen, "spot", tick_s=tick_s):
            return "spot"  # as fast as on-demand, and cheaper, as long as it lasts
        costs: dict[Held, float] = {"on_demand": self._cost(seen, "on_demand", tick_s)}
        other: Held = "spot" if seen.is_up else "none"
        if is_safe(task, seen, other, tick_s=tick_s):
            costs[other] = self._cost(seen, other, tick_s)
        return min(costs, key=lambda action: costs[action])

    def _cost(self, seen: Seen, action: Held, tick_s: float) -> float:
        task, state = self.task, _N * seen.is_up + age_of(seen.age_s)
        if action == "none":
            return self._look(self._none[state], seen.left_s - tick_s, seen.work_s)
        setup_s = seen.setup_s if seen.held == action else task.restart_s
        # To the end of the start-up or of the tick, whichever is later: there the programme goes on.
        ran_s = max(tick_s, setup_s)
        done_s = min(seen.work_s, ran_s - setup_s)
        left_s, work_s = seen.left_s - ran_s, seen.work_s - done_s
        if action == "on_demand":
            rest = self._look(self._on_demand[state], left_s, work_s)
            return task.on_demand_usd_per_hour * (setup_s + done_s) / HOUR_S + rest
        rest = self._look(self._spot[state - _N], left_s, work_s)
        if setup_s > tick_s:
            lost = 1 - exp(-self._lost_per_s[state - _N] * (setup_s - tick_s))
            rest += lost * (self._look(self._none[0], left_s, work_s) - rest)
        return task.spot_usd_per_hour * (setup_s + done_s) / HOUR_S + rest

    def _look(self, table: list[list[float]], left_s: float, work_s: float) -> float:
        """Between the nearest points of the grid. Along slack and work: running changes only the latter."""
        if work_s <= 0:
            return 0.0
        x, y = max(0.0, left_s - work_s) / self._step_s, work_s / self._step_s
        i, j = min(int(x), len(table) - 2), int(y)
        x, y = min(x - i, 1.0), y - j
        a, b = table[i], table[i + 1]
        return (1 - x) * ((1 - y) * a[j] + y * a[j + 1]) + x * ((1 - y) * b[j] + y * b[j + 1])


def _solve(
    task: Task, spells: Spells, hops_per_hour: float, step_s: float
) -> tuple[list[Any], list[Any], list[Any]]:
    """Expected cost to the end, by (state, steps of slack, steps of work), holding nothing, spot or
    on-demand.

    States are (away, there) x age; slack is time left beyond the work. A step of work keeps it, any other
    step takes one. Where on-demand has to start now or never, its cost to the end stands, since that is what
    the safety net will do.
    """
    np = _numpy()
    hour = step_s / HOUR_S
    times, works = int(task.deadline_s / step_s) + 3, int(task.work_s / step_s) + 3
    setup = round(task.restart_s / step_s)
    spot, demand = task.spot_usd_per_hour * hour, task.on_demand_usd_per_hour * hour
    moves = np.array(_transitions(spells, step_s))
    hop = 1 - exp(-hops_per_hour * hour)
    down, up = moves[_N:, :_N], moves[_N:, _N:]
    begun = np.linalg.matrix_power(moves, setup)
    spot_begun = np.linalg.matrix_power(up * (1 - hop), setup)
    spot_lost = (1 - spot_begun.sum(axis=1))[:, None]
    work = np.arange(works)
    forced, forced_running = demand * (work + setup), demand * work
    forced[0] = 0.0
    none, on_demand = (np.empty((times, 2 * _N, works)) for _ in range(2))
    held = np.empty((times, _N, works))
    none[0], held[0], on_demand[0] = forced, forced, forced_running
    for t in range(1, times):
        idle, begin = none[t - 1], max(0, t - setup)
        stay_demand = _after_work(moves @ on_demand[t - 1], demand)
        lost = down @ idle[:_N] + hop * (up @ idle[_N:])
        stay_spot = _after_work(lost + (1 - hop) * (up @ held[t - 1]), spot)
        if setup:
            start_demand = setup * demand + begun @ on_demand[begin]
            start_spot = setup * spot + spot_begun @ held[begin] + spot_lost * none[begin, 0]
        else:
            start_demand, start_spot = stay_demand, stay_spot
        best = np.minimum(moves @ idle, start_demand)
        best[_N:] = np.minimum(start_demand[_N:], start_spot)
        late = work + setup > t
        none[t] = np.where(late, forced, best)
        held[t] = np.where(late, forced, np.minimum(stay_spot, none[t, _N:]))
        on_demand[t] = np.where(work > t, forced_running, np.minimum(stay_demand, none[t]))
        for table in (none, held, on_demand):
            table[t, :, 0] = 0.0
    # By slack instead of time left, which is where one looks.
    slack = np.arange(times - works + 1)[:, None] + work
    by_slack = [table[slack, :, work].transpose(2, 0, 1).tolist() for table in (none, held, on_demand)]
    return by_slack[0], by_slack[1], by_slack[2]


def _after_work(expected: Any, cost: float) -> Any:  # noqa: ANN401 - an array
    """One step of work less, for this much."""
    after = expected.copy()
    after[:, 1:] = expected[:, :-1] + cost
    return after


def _transitions(spells: Spells, step_s: float) -> list[list[float]]:
    """From (state, age) to (state, age) in one step."""
    rows = []
    for is_up in (False, True):
        for age, chance in enumerate(spells.per_hour(is_up=is_up)):
            row = [0.0] * (2 * _N)
            ends = 1 - exp(-chance * step_s / HOUR_S)
            older = 0.0 if age + 1 == _N else 1 - exp(-step_s / (AGES_S[age + 1] - AGES_S[age]))
            row[_N * (not is_up)] = ends
            row[_N * is_up + age] += (1 - ends) * (1 - older)
            if older:
                row[_N * is_up + age + 1] += (1 - ends) * older
            rows.append(row)
    return rows


def best_zone(zones: Sequence[int], ages_s: Sequence[float], spells: Sequence[Spells]) -> int:
    """Of these zones that have spot, the one whose spell is expected to last longest."""
    return max(zones, key=lambda zone: (spells[zone].expected_hours(ages_s[zone]), -zone))


def _numpy() -> Any:  # noqa: ANN401 - a module
    try:
        import numpy
    except ModuleNotFoundError as error:
        raise WorldFailed(
            "planning for a deadline needs NumPy", hint="pip install 'brimful[sim]'", code="not_installed"
        ) from error
    return numpy
