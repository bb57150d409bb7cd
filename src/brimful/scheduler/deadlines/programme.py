"""Finish by a deadline at low cost: spot, on-demand or nothing, decided again at every look at the market.

The cheapest plan that never misses is a dynamic programme over (time left, work left, whether spot is up and
since when, what is held). What it must know of the future is how long spot stays up and how long it stays
down. Both are learned from what was seen of this capacity so far, with an almost uninformative prior.
On-demand is assumed to be always available, and no step is taken from which on-demand could no longer finish
in time: that is the safety net.

A young spell of spot is usually short, an old one long; so if there is time to spare, waiting to see whether
it lasts can be worth more than the minutes. The programme finds that by itself. Pure.

Starting any instance costs `restart_s` of billed time without progress (boot, load, warm up).

`greedy` and `uniform_progress` are the usual baselines (Wu et al., Can't Be Late, NSDI 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, sqrt
from typing import Any, Literal, NamedTuple

from brimful.errors import WorldFailed
from brimful.language import say
from brimful.market.spells import AGES_S, Following, Spells, age_of
from brimful.units import HOUR_S

Held = Literal["none", "spot", "on_demand"]

# The programme's grid, at most: its table of work by slack, and its steps in time.
CELLS, STEPS = 1 << 16, 1 << 10
_N = len(AGES_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The work to do, and what the two kinds of capacity cost."""

    work_s: float
    deadline_s: float
    restart_s: float
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float


class Seen(NamedTuple):
    """The situation at one look. With several zones: of the one that would be taken, or of having none."""

    left_s: float  # until the deadline
    work_s: float  # still to be done
    held: Held
    setup_s: float  # setup of the start that is still to be paid
    is_up: bool  # spot is available; if spot is held, it is still there
    age_s: float  # how long `is_up` has been so


def is_safe(task: Task, seen: Seen, action: Held, *, tick_s: float) -> bool:
    """Whether on-demand can still finish in time after one tick of this action, if spot is then gone."""
    done_s = 0.0
    if action == "spot":
        setup_s = seen.setup_s if seen.held == "spot" else task.restart_s
        done_s = max(0.0, tick_s - setup_s)
        if seen.work_s <= done_s:
            return seen.left_s >= setup_s + seen.work_s
    return seen.left_s - tick_s >= seen.work_s - done_s + task.restart_s


def greedy(task: Task, seen: Seen, *, tick_s: float) -> Held:
    """Spot whenever it is up, nothing else while there is time, on-demand to the end once there is not."""
    wish: Held = "spot" if seen.is_up else "none"
    if seen.held == "on_demand" or not is_safe(task, seen, wish, tick_s=tick_s):
        return "on_demand"
    return wish


def uniform_progress(task: Task, seen: Seen, *, tick_s: float) -> Held:
    """Keep pace with a straight line from start to deadline.

    Behind the line, use on-demand; release it once two restarts ahead. Spot, once held, is kept.
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


class _Table:
    """Expected cost by (state, slack, work) on the programme's grid."""

    __slots__ = ("_slacks", "_step_s", "_values", "_works")

    def __init__(self, values: Any, step_s: float) -> None:  # noqa: ANN401 - an array
        self._slacks, self._works = values.shape[1:]
        # Flat and single precision: many plans are kept, and a look must not build NumPy scalars.
        self._values: memoryview[float] = memoryview(values.astype("float32").ravel())
        self._step_s = step_s

    def at(self, chances: Sequence[float], left_s: float, work_s: float) -> float:
        """The mean over states, interpolated between the nearest grid points.

        Along slack and work: running changes only work.
        """
        if work_s <= 0:
            return 0.0
        x, y = max(0.0, left_s - work_s) / self._step_s, work_s / self._step_s
        i, j = min(int(x), self._slacks - 2), int(y)
        x, y = min(x - i, 1.0), y - j
        v, works, size = self._values, self._works, self._slacks * self._works
        a, cost = i * works + j, 0.0
        for chance in chances:
            if chance:
                b = a + works
                near, far = (1 - y) * v[a] + y * v[a + 1], (1 - y) * v[b] + y * v[b + 1]
                cost += chance * ((1 - x) * near + x * far)
            a += size
        return cost


class _Chances(NamedTuple):
    """Over a tick, or over a start: from each state to each; what is held is kept, at each age, or lost."""

    moves: list[list[float]]
    keeps: list[list[float]]
    loses: list[list[float]]


class Programme:
    """The programme for one task and one belief about spells: solved once, then looked up.

    `tick_s`: from one look at the market to the next. `wait_gain`: available spot is not left waiting for
    less than this share of the expected cost.
    """

    def __init__(
        self,
        task: Task,
        following: Following,
        *,
        tick_s: float,
        cells: int = CELLS,
        wait_gain: float = 0.0,
    ) -> None:
        self.wait_gain = wait_gain
        self.task, self.tick_s = task, tick_s
        self._none, self._held, self._demand, self._look, self._start = _solve(task, following, tick_s, cells)

    def decide(self, seen: Seen) -> Held:
        """The safe action with the least cost until the next look plus the expected rest."""
        task, tick_s = self.task, self.tick_s
        if seen.held == "spot" and seen.is_up and is_safe(task, seen, "spot", tick_s=tick_s):
            return "spot"  # as fast as on-demand, and cheaper, as long as it lasts
        state = _N * seen.is_up + age_of(seen.age_s)
        choice: Held = "on_demand"
        least = self._on_demand_cost(seen, state)
        if seen.is_up and is_safe(task, seen, "spot", tick_s=tick_s):
            cost = task.spot_usd_per_hour * task.restart_s / HOUR_S
            cost += self._held.at(self._start.keeps[state - _N], seen.left_s - task.restart_s, seen.work_s)
            cost += self._none.at(self._start.loses[state - _N], seen.left_s - task.restart_s, seen.work_s)
            if cost < least:
                choice, least = "spot", cost
        if is_safe(task, seen, "none", tick_s=tick_s):
            # Until the next look spot may come or go; treating it as unchanged would put off every start.
            cost = self._none.at(self._look.moves[state], seen.left_s - tick_s, seen.work_s)
            if cost < (least * (1 - self.wait_gain) if choice == "spot" else least):
                choice = "none"
        return choice

    def _on_demand_cost(self, seen: Seen, state: int) -> float:
        task = self.task
        if seen.held != "on_demand":
            start = task.on_demand_usd_per_hour * task.restart_s / HOUR_S
            return start + self._demand.at(
                self._start.moves[state], seen.left_s - task.restart_s, seen.work_s
            )
        ran_s = max(self.tick_s, seen.setup_s)
        done_s = min(seen.work_s, ran_s - seen.setup_s)
        rest = self._demand.at(self._look.moves[state], seen.left_s - ran_s, seen.work_s - done_s)
        return task.on_demand_usd_per_hour * (seen.setup_s + done_s) / HOUR_S + rest


def grid_step_s(task: Task, cells: int = CELLS) -> float:
    """The finest step that the grid allows: where there is little time to spare, each step of it counts.

    A start takes whole steps, if that is not too fine. Solving goes through time by slack, so a short task
    with much time to spare has a coarser grid than its own table would need.
    """
    slack_s = max(task.deadline_s - task.work_s, task.restart_s)
    most_s = max(task.work_s, task.deadline_s / 2)
    least_s = max(sqrt(most_s * slack_s / cells), task.deadline_s / STEPS, 1.0)
    return task.restart_s / int(task.restart_s / least_s) if task.restart_s >= least_s else least_s


def _solve(
    task: Task, following: Following, tick_s: float, cells: int
) -> tuple[_Table, _Table, _Table, _Chances, _Chances]:
    """Expected cost to the end with nothing, spot and on-demand; and chances over a tick and over a start.

    The programme runs over holding nothing, spot or on-demand, backwards in time steps. States are (down, up)
    x age; beside them, each array has the slack: waiting takes some, working takes none. Where on-demand must
    start now or never, its cost to the end is used, since that is what the safety net will do.
    """
    np = _numpy()
    step_s = grid_step_s(task, cells)
    works = int(task.work_s / step_s) + 3
    slacks = max(2, int(task.deadline_s / step_s) + 4 - works)
    setup = round(task.restart_s / step_s)
    spot, demand = (rate * step_s / HOUR_S for rate in (task.spot_usd_per_hour, task.on_demand_usd_per_hour))
    begin_spot, begin_demand = (price * task.restart_s / step_s for price in (spot, demand))
    rates = np.array(_rates(following))
    losses = np.array(following.spells.per_hour(is_up=True))[:, None] * np.array(following.after)[:, 1:]
    moves, keeps, loses = _over(np, rates, losses, step_s)
    begun, kept, lost = _over(np, rates, losses, task.restart_s)
    slack = np.arange(slacks)
    none, on_demand = (np.zeros((works + slacks, 2 * _N, slacks)) for _ in range(2))
    held = np.zeros((works + slacks, _N, slacks))
    for t in range(1, works + slacks):
        forced_running = demand * (t - slack)
        forced, begin = forced_running + begin_demand, max(0, t - setup)
        idle = _with_less_slack(np, none[t - 1], 1, forced)
        stay_demand = moves @ on_demand[t - 1] + demand
        stay_spot = loses @ none[t - 1] + keeps @ held[t - 1] + spot
        if setup:
            start_demand = begun @ _with_less_slack(np, on_demand[begin], setup, forced_running)
            start_spot = kept @ _with_less_slack(np, held[begin], setup, forced)
            start_spot += lost @ _with_less_slack(np, none[begin], setup, forced)
        else:
            start_demand, start_spot = stay_demand, stay_spot
        best = np.minimum(moves @ idle, begin_demand + start_demand)
        best[_N:] = np.minimum(best[_N:], begin_spot + start_spot)
        late = slack < setup
        none[t] = np.where(late, forced, best)
        held[t] = np.where(late, forced, np.minimum(stay_spot, none[t, _N:]))
        on_demand[t] = np.minimum(stay_demand, none[t])
        for table in (none, held, on_demand):
            table[t, :, t:] = 0.0  # no work is left
    at = slack[:, None] + np.arange(works)
    tables = [
        _Table(each[at, :, slack[:, None]].transpose(2, 0, 1), step_s) for each in (none, held, on_demand)
    ]
    look, start = (
        _Chances(*(each.tolist() for each in _over(np, rates, losses, seconds)))
        for seconds in (tick_s, task.restart_s)
    )
    return tables[0], tables[1], tables[2], look, start


def _with_less_slack(np: Any, values: Any, steps: int, forced: Any) -> Any:  # noqa: ANN401 - a module, arrays
    """The same work this many steps later; `forced` where there is no slack left."""
    after = np.empty_like(values)
    after[:, :steps], after[:, steps:] = forced[:steps], values[:, :-steps]
    return after


def _over(np: Any, rates: Any, losses: Any, seconds: float) -> tuple[Any, Any, Any]:  # noqa: ANN401
    """Chances over this long: from any state to any; from a state with spot, that held spot is kept at each
    age, or lost and the market then in each state. `losses`: those after which another zone has spot."""
    hours = seconds / HOUR_S
    moves = _exponential(np, rates * hours)
    keeps = _exponential(np, (rates[_N:, _N:] - losses) * hours)
    loses = moves[_N:].copy()
    loses[:, _N:] -= keeps
    return moves, keeps, np.maximum(loses, 0.0)


def _exponential(np: Any, matrix: Any) -> Any:  # noqa: ANN401 - a module, arrays
    """By scaling, eight terms of the series, and squaring."""
    halvings = max(0, int(np.ceil(np.log2(max(1e-9, np.abs(matrix).max())))) + 4)
    small = matrix / 2**halvings
    total = term = np.eye(len(matrix))
    for k in range(1, 9):
        term = term @ small / k
        total = total + term
    for _ in range(halvings):
        total = total @ total
    return np.maximum(total, 0.0)


def _rates(following: Following) -> list[list[float]]:
    """From (state, age) to (state, age), per hour: a spell ends, or grows into the next age.

    It grows at the rate at which as many spells get there as would at a constant chance of ending. A zone
    that goes down may leave another one up, of another age.
    """
    rows = []
    for is_up in (False, True):
        for age, chance in enumerate(following.spells.per_hour(is_up=is_up)):
            row = [0.0] * (2 * _N)
            if is_up:
                row[0], *row[_N:] = (chance * each for each in following.after[age])
            else:
                row[_N] = chance
            out = chance
            if age + 1 < _N:
                width = (AGES_S[age + 1] - AGES_S[age]) / HOUR_S
                grows = chance / expm1(chance * width)
                row[_N * is_up + age + 1] += grows
                out += grows
            row[_N * is_up + age] -= out
            rows.append(row)
    return rows


def best_zone(zones: Sequence[int], ages_s: Sequence[float], spells: Sequence[Spells]) -> int:
    """Of these zones with spot, the one whose spell is expected to last longest."""
    return max(zones, key=lambda zone: (spells[zone].expected_hours(ages_s[zone]), -zone))


def _numpy() -> Any:  # noqa: ANN401 - a module
    try:
        import numpy
    except ModuleNotFoundError as error:
        raise WorldFailed(say("scheduler.deadlines_need_numpy"), code="not_installed") from error
    return numpy
