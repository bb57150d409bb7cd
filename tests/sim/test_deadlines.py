"""A deadline on recorded spot capacity: never missed, and cheaper than the usual rules."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest

from brimful.market.spells import NONE_LEFT, Following, Spells
from brimful.scheduler.deadlines.programme import (
    CELLS,
    STEPS,
    Held,
    Programme,
    Seen,
    Task,
    greedy,
    grid_step_s,
    is_safe,
    uniform_progress,
)
from brimful.sim.deadlines import Capacity, Rule, World, clairvoyant, compare
from brimful.sim.traces.capacity import read_capacity

HOUR = 3600


def a_task(work_h: float, deadline_h: float, restart_h: float = 0.2) -> Task:
    return Task(
        work_s=work_h * HOUR,
        deadline_s=deadline_h * HOUR,
        restart_s=restart_h * HOUR,
        spot_usd_per_hour=1.0,
        on_demand_usd_per_hour=3.0,
    )


def capacity(*zones: str, tick_s: int = HOUR) -> Capacity:
    return Capacity(tick_s, tuple("abc"[: len(zones)]), tuple(bytes(c == "1" for c in z) for z in zones))


def random_capacity(seed: int, ticks: int, *, up: float, down: float, tick_s: int = 600) -> Capacity:
    r = random.Random(seed)
    looks, value = "", "1"
    while len(looks) < ticks:
        looks += value * (1 + int(r.expovariate(1 / (up if value == "1" else down))))
        value = "0" if value == "1" else "1"
    return capacity(looks[:ticks], tick_s=tick_s)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("deadline_h", [10.5, 13, 24])
def test_no_rule_misses_and_nobody_beats_the_clairvoyant(seed: int, deadline_h: float) -> None:
    record = random_capacity(seed, 1000, up=3 + 4 * seed, down=9)
    results = compare(record, a_task(10, deadline_h), starts=15)
    assert all(each["misses"] == 0 for each in results.values())
    least = results["clairvoyant"]["mean_cost_usd"]
    assert all(each["mean_cost_usd"] >= least - 1e-6 for each in results.values())


def test_the_clairvoyant_finds_the_best_of_all_plans() -> None:
    """By trying every plan of whole hours; a restart takes an hour too, so the best one is of whole hours."""
    for seed in range(12):
        r = random.Random(seed)
        looks = "".join(r.choice("01") for _ in range(8))
        task = a_task(3, 8, restart_h=1)
        best = min(cost for plan in product("nso", repeat=8) if (cost := cost_of(plan, looks)) is not None)
        assert clairvoyant(capacity(looks), task, 0) == pytest.approx(best)


def cost_of(plan: tuple[str, ...], looks: str) -> float | None:
    """Of doing this hour by hour: 3 hours of work, an hour for every start. None: impossible."""
    work, held, setup, cost = 3, "n", 0, 0.0
    for action, look in zip(plan, looks, strict=True):
        if work == 0:
            break
        if action == "s" and look == "0":
            return None
        if action != held or (action == "s" and setup < 0):
            held, setup = action, 1
        if action != "n":
            cost += 1.0 if action == "s" else 3.0
            work, setup = (work, 0) if setup else (work - 1, 0)
        held = action
    return cost if work == 0 else None


def test_several_zones_are_better_than_each() -> None:
    a, b = "1100110011001100" * 20, "0011001100110011" * 20
    both = compare(capacity(a, b), a_task(10, 14), starts=5)
    one = compare(capacity(a), a_task(10, 14), starts=5)
    for name in ("brim", "clairvoyant"):
        assert both[name]["mean_cost_usd"] < one[name]["mean_cost_usd"]


def test_the_safety_net_leaves_time_for_one_start_on_demand() -> None:
    task = a_task(10, 12)
    late = Seen(10.3 * HOUR, 10 * HOUR, "none", 0.0, is_up=True, age_s=0.0)
    assert not is_safe(task, late, "none", tick_s=900)
    assert greedy(task, late, tick_s=900) == uniform_progress(task, late, tick_s=900) == "on_demand"


def test_an_old_spell_is_expected_to_last_longer_where_that_was_seen() -> None:
    spells = Spells()
    for _ in range(50):
        spells.watch(is_up=True, age_s=0, seconds=900, ended=True)
    assert spells.expected_hours(4 * HOUR) > 3 * spells.expected_hours(0)


@pytest.mark.parametrize("seed", range(4))
def test_a_decision_depends_on_nothing_that_comes_after_it(seed: int) -> None:
    """Two records that part at a moment: up to then everything decided is the same."""
    ticks, parting = 600, 350 + 7 * seed
    records = [random_capacity(seed, ticks, up=9, down=6), random_capacity(99, ticks, up=30, down=40)]
    alike, other = (record.up[0] for record in records)
    pair = [alike, alike[: parting + 1] + bytes(1 - look for look in other[parting + 1 :])]
    task = a_task(10, 24)
    decided: list[list[tuple[int, Seen, Held]]] = []
    for looks in pair:
        world = World(Capacity(600, ("a",), (looks,)))
        found: list[tuple[int, Seen, Held]] = []
        watched = watching(world.brim(task), found)
        for first in range(parting - 100, parting, 20):
            world.run(task, watched, first)
        decided.append([each for each in found if each[0] <= parting])
    assert decided[0] == decided[1]
    assert len(decided[0]) > 100


def watching(rule: Rule, found: list[tuple[int, Seen, Held]]) -> Rule:
    def watched(seen: Seen, i: int) -> Held:
        found.append((i, seen, rule(seen, i)))
        return found[-1][2]

    return watched


def test_a_young_spell_is_let_pass_where_there_is_time_and_old_ones_last() -> None:
    spells = Spells()
    for _ in range(200):  # nearly all end within minutes, the few that do not last for days
        spells.watch(is_up=True, age_s=0, seconds=300, ended=True)
        spells.watch(is_up=True, age_s=4 * HOUR, seconds=10 * HOUR, ended=False)
        spells.watch(is_up=False, age_s=0, seconds=300, ended=True)
    plan = Programme(a_task(10, 40), Following(spells, NONE_LEFT), tick_s=300)
    young = Seen(40 * HOUR, 10 * HOUR, "none", 0.0, is_up=True, age_s=0.0)
    assert plan.decide(young) == "none"
    assert plan.decide(young._replace(age_s=4 * HOUR)) == "spot"
    assert plan.decide(young._replace(left_s=10.25 * HOUR)) == "on_demand"  # no time to wait


@pytest.mark.parametrize("work_h", [1, 10, 48, 1000])
@pytest.mark.parametrize("times", [1.03, 1.1, 1.5, 2, 30])
def test_a_plan_is_as_fine_as_its_size_allows_and_finer_where_there_is_little_time_to_spare(
    work_h: float, times: float
) -> None:
    task = a_task(work_h, times * work_h)
    step_s = grid_step_s(task)
    slack_s = task.deadline_s - task.work_s
    assert task.work_s * slack_s / step_s**2 <= CELLS + 1
    assert task.deadline_s * slack_s / step_s**2 <= 2 * CELLS + 1  # what is solved: time by slack
    assert task.deadline_s / step_s <= STEPS + 1e-9
    if step_s <= task.restart_s:
        assert task.restart_s / step_s == pytest.approx(
            round(task.restart_s / step_s)
        )  # a start: whole steps
    assert step_s <= grid_step_s(a_task(work_h, 2 * times * work_h))


def test_four_hours_to_spare_are_more_than_twenty_steps() -> None:
    task = a_task(48, 52)
    assert (task.deadline_s - task.work_s) / grid_step_s(task) == pytest.approx(60)


@pytest.mark.parametrize(("accelerator", "count"), [("k80", "1"), ("v100", "8")])
@pytest.mark.parametrize("deadline_h", [52, 70])
def test_brim_is_cheaper_than_both_usual_rules_on_real_records(
    shared_data: Path, accelerator: str, count: str, deadline_h: int
) -> None:
    path = shared_data / "traces" / "spot" / "spot_availability.jsonl.gz"
    record, _ = read_capacity(path, zones=["us-west-2a"], accelerator=accelerator, count=count)
    task = Task(
        work_s=48 * HOUR,
        deadline_s=deadline_h * HOUR,
        restart_s=720,
        spot_usd_per_hour=0.9731,
        on_demand_usd_per_hour=3.06,
    )
    results = compare(record, task, starts=20)
    cost = {name: each["mean_cost_usd"] for name, each in results.items()}
    usual = min(cost["greedy"], cost["uniform_progress"])
    assert cost["brim"] < usual
    assert all(each["misses"] == 0 for each in results.values())
