"""Each action's figure, checked by a second replay that shares no code with the first (counted.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brimful.audit.actions import actions
from brimful.audit.changes import failing, speed
from brimful.audit.records import Paid, Part, Records, Run
from brimful.audit.rehearsals import work_of
from brimful.audit.said import action_said
from brimful.meter.idle import Level
from brimful.scheduler.policies import read_policy
from brimful.specs.gpu import find_gpu
from brimful.units import GIB, HOUR_S, MICROUSD
from tests.audit.counted import Told, delays_s, fewest_nodes, worst_share

FIFO = read_policy("fifo")
DAY_S = 24 * HOUR_S
A100, H100, V100 = "a100-sxm-80gb", "h100-sxm-80gb", "v100-sxm-16gb"


def a_cluster(*nodes: str, usd: float | None = 1.0, end_s: int = DAY_S) -> Records:
    """Nodes of 8 GPUs, by type."""
    price = None if usd is None else round(usd * 8 * end_s / HOUR_S * MICROUSD)
    paid = [
        Paid(place=f"n{i}", gpu=gpu, gpus=8, start_s=0, end_s=end_s, microusd=price)
        for i, gpu in enumerate(nodes)
    ]
    return Records(paid=paid, knows_queue=True)


def ran(records: Records, start_h: float, hours: float, *, node: int = 0, **more: Any) -> Run:
    """A job of a whole node that ran at once."""
    start, end = round(start_h * HOUR_S), round((start_h + hours) * HOUR_S)
    gpu = records.paid[node].gpu
    parts = (Part(place=f"n{node}", gpus=8, cards=tuple(range(8))),)
    job = f"j{len(records.runs)}"
    run = Run(job=job, start_s=start, end_s=end, parts=parts, gpu=gpu, submit_s=start, outcome="kept")
    records.runs.append(replace(run, **more))
    return records.runs[-1]


def found(records: Records, explained: float | None = 1.0, end_s: int = DAY_S) -> dict[str, dict[str, Any]]:
    made = actions(lambda which: work_of(records, [], start_s=0, end_s=end_s, changes=which), FIFO, explained)
    return {each["action"]: each for each in made}


def told(*rows: tuple[float, float]) -> list[Told]:
    """(hour, hours) of whole nodes."""
    return [Told(round(at * HOUR_S), 8, hours * HOUR_S) for at, hours in rows]


def agrees(action: dict[str, Any], jobs: list[Told]) -> None:
    jobs = sorted(jobs, key=lambda job: job.at_s)
    assert action["left_gpus"] == 8 * fewest_nodes(jobs, per_node=8)
    assert action["hurt_after"] == pytest.approx(worst_share(jobs, delays_s(jobs, action["left_gpus"])))


def test_gpus_that_the_same_work_does_not_need_are_returned() -> None:
    records = a_cluster(A100, A100, A100)
    for i in range(8):
        ran(records, i, 1, node=i % 3)
    action = found(records)["return_gpus"]

    agrees(action, told(*[(i, 1) for i in range(8)]))
    assert (action["gpus"], action["usd_per_month"]) == (16, 16 * 730)
    assert action["mean_delay_s_after"] == 0.0


@pytest.mark.parametrize(
    ("hours", "level"), [(1, "low"), (23, "low"), (24, "medium"), (167, "medium"), (168, "high")]
)
def test_records_that_have_seen_no_whole_day_or_week_are_trusted_less(hours: int, level: str) -> None:
    """A minute of records once promised "high" confidence for returning 12 of 16 GPUs for good."""
    records = a_cluster(A100, A100, A100)
    ran(records, 0, 1)
    ran(records, hours - 1, 1, node=1)
    made = found(records, end_s=8 * DAY_S)
    assert {each["confidence"] for each in made.values()} == {level}
    said = [each.code for action in made.values() for each in action_said(action)]
    assert ("audit.action_short" in said) == (level != "high")


def test_without_a_price_there_is_no_money_and_a_poor_replay_is_not_trusted() -> None:
    records = a_cluster(A100, A100, usd=None)
    ran(records, 0, 1)
    action = found(records, explained=0.4)["return_gpus"]

    assert (action["usd_per_month"], action["confidence"]) == (None, "low")


def test_walls_that_are_dropped_return_gpus() -> None:
    records = a_cluster(A100, A100, A100, A100)
    records.paid = [
        replace(paid, walls=frozenset({"left" if i < 2 else "right"})) for i, paid in enumerate(records.paid)
    ]
    for i in range(3):
        ran(records, 2 * (i // 2), 2, node=i % 2, wall="left", submit_s=0)
    for i in range(2):
        ran(records, 8, 2, node=2 + i, wall="right")
    made = found(records)

    assert "return_gpus" not in made
    agrees(made["drop_walls"], told(*[(0, 2)] * 3, (8, 2), (8, 2)))
    assert made["drop_walls"]["gpus"] == 8
    assert made["drop_walls"]["hurt_before"] == pytest.approx(1 / 5)

    ran(records, 4, 2, node=1, wall="left", submit_s=0)
    ran(records, 4, 2, node=0, wall="left", submit_s=0)
    action = found(records)["drop_walls"]  # five at once: nothing to return, but they wait less
    jobs = told(*[(0, 2)] * 5, (8, 2), (8, 2))
    assert (action["gpus"], action["left_gpus"]) == (0, 32)
    assert action["mean_delay_s_after"] == pytest.approx(sum(delays_s(jobs, 32)) / 7)
    assert action["mean_delay_s_before"] > action["mean_delay_s_after"]


def test_queues_that_do_not_share_are_defensive_buying_and_the_rest_over_provisioning() -> None:
    records = a_cluster(A100, A100, A100, A100, A100)
    for hour in range(0, 8, 2):
        ran(records, hour, 1, node=0, wall="left")
        ran(records, hour + 1, 1, node=1, wall="right")
    action = found(records)["renew"]

    alone = sum(
        8 * fewest_nodes(told(*[(hour + k, 1) for hour in range(0, 8, 2)]), per_node=8) for k in (0, 1)
    )
    together = 8 * fewest_nodes(told(*[(hour, 1) for hour in range(8)]), per_node=8)
    assert (action["gpus"], action["left_gpus"]) == (40 - together, together)
    assert (action["over_gpus"], action["defensive_gpus"]) == (40 - alone, alone - together) == (24, 8)


def with_tail(records: Records, run: Run, *, idle_h: float) -> None:
    work_s, node = run.end_s - round(idle_h * HOUR_S), run.parts[0].place
    spans: list[tuple[int, int, Level]] = [(run.start_s, work_s, "working"), (work_s, run.end_s, "idle")]
    for card in range(8):
        records.activity[run.job, node, card] = spans


def test_ending_idle_tails_returns_what_they_held() -> None:
    records = a_cluster(A100, A100)
    for hour in range(0, 8, 2):
        with_tail(records, ran(records, hour, 2), idle_h=1)
        ran(records, hour + 1, 1, node=1)
    made = found(records)

    assert "return_gpus" not in made
    agrees(made["end_tails"], told(*[(hour, 1) for hour in range(8)]))
    assert made["end_tails"]["gpus"] == 8
    assert made["end_tails"]["gpu_h_per_month"] == pytest.approx(4 * 8 * 730 / 8)


def test_a_job_that_saves_does_not_do_again_what_it_had_done() -> None:
    records = a_cluster(A100, A100)
    ran(records, 0, 5.2, name="train", user="u", outcome="lost")
    ran(records, 5.2, 6, name="train", user="u")
    ran(records, 6.5, 4, node=1)
    made = found(records)

    agrees(made["checkpoint"], told((0, 5.2), (5.2, 1), (6.5, 4)))  # saved after five hours
    assert (made["checkpoint"]["gpus"], made["checkpoint"]["confidence"]) == (8, "low")


def test_what_goes_on_where_it_stopped_is_not_asked_to_save() -> None:
    records = a_cluster(A100)
    for hour in (0, 3):
        ran(records, hour, 2, name="train", user="u", outcome="lost", job="one")
    assert failing(records.runs) == []


def test_jobs_that_fit_move_to_older_cards_and_the_dear_ones_go() -> None:
    records = a_cluster(H100, V100)
    records.paid[0] = replace(records.paid[0], microusd=4 * (records.paid[0].microusd or 0))
    for hour in range(8):
        ran(records, hour, 1 / 60, memory_bytes=10 * GIB)
    made = found(records)

    slow_s = 60 / speed(find_gpu(V100), find_gpu(H100))
    waits = delays_s([Told(hour * HOUR_S, 8, slow_s) for hour in range(8)], 8)
    assert max(waits) + slow_s - 60 < 600  # nobody is hurt on the old node alone
    assert (made["return_gpus"]["left_gpus"], made["return_gpus"]["gpus"]) == (8, 8)
    assert (made["old_cards"]["left_gpus"], made["old_cards"]["gpus"]) == (8, 0)  # the other eight
    assert made["old_cards"]["usd_per_month"] == (4 - 1) * 8 * 730
    assert made["old_cards"]["mean_delay_s_after"] == pytest.approx(slow_s - 60, abs=1)


def test_a_job_of_unknown_or_too_much_memory_stays_where_it_is() -> None:
    for memory in (None, 20 * GIB):
        records = a_cluster(H100, V100)
        ran(records, 0, 1 / 60, memory_bytes=memory)
        assert "old_cards" not in found(records)


def test_work_that_may_wait_begins_in_the_quietest_hour() -> None:
    records = a_cluster(A100, A100)
    ran(records, 0, 8)
    ran(records, 2, 3, node=1, deferrable=True)
    ran(records, 12, 6)
    made = found(records)

    agrees(made["quiet_hours"], told((0, 8), (8, 3), (12, 6)))  # the first three quiet hours
    assert made["quiet_hours"]["gpus"] == 8


def test_steps_sum_to_the_replay_of_all_of_them_together() -> None:
    records = a_cluster(A100, A100, A100)
    for hour in range(0, 8, 2):
        with_tail(records, ran(records, hour, 2), idle_h=1)
        ran(records, hour + 1, 1, node=1)
    ran(records, 0.5, 7, node=2, deferrable=True)
    made = found(records)
    total = made.pop("renew")

    agrees(
        {**total, "hurt_after": made["quiet_hours"]["hurt_after"]},
        told(*[(h, 1) for h in range(8)], (8.5, 7)),
    )
    assert sum(each["gpus"] for each in made.values()) == total["gpus"] == 16
    assert total["usd_per_month"] == pytest.approx(sum(each["usd_per_month"] for each in made.values()))
