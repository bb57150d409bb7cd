from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.audit.records import Down, Paid, Part, Records, Run, Wait
from brimful.audit.sweep import Swept, sweep
from brimful.audit.tree import LEAVES, Amount, Calendar, spread
from tests.audit.clusters import END_S, clusters, without


def swept(records: Records) -> Swept:
    return sweep(records, start_s=0, end_s=END_S)


def paid_gpu_s(records: Records) -> int:
    return sum(p.gpus * max(0, min(p.end_s, END_S) - max(p.start_s, 0)) for p in records.paid)


@given(clusters())
@settings(max_examples=80)
def test_every_paid_gpu_second_is_in_exactly_one_leaf(records: Records) -> None:
    found = swept(records)

    assert found.tree.amount().gpu_s == paid_gpu_s(records)
    assert {cell.leaf for cell in found.tree.cells} <= set(LEAVES)
    assert all(gpu_s > 0 for gpu_s in found.tree.cells.values())


@given(clusters())
@settings(max_examples=60)
def test_money_sums_to_the_micro_dollar_at_every_level(records: Records) -> None:
    tree = swept(records).tree

    owed = sum(lot.microusd or 0 for lot in tree.lots.values())
    assert sum(tree.money.values()) == owed
    amounts = tree.amounts()
    for path, whole in amounts.items():
        children = [a for child, a in amounts.items() if child.rpartition(".")[0] == path]
        if children:
            assert sum(child.gpu_s for child in children) == whole.gpu_s
            if whole.microusd is not None:
                assert sum(child.microusd or 0 for child in children) == whole.microusd


@given(clusters(), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_the_order_of_the_records_changes_nothing(records: Records, dice: Random) -> None:
    other = replace(
        records,
        runs=dice.sample(records.runs, len(records.runs)),
        paid=dice.sample(records.paid, len(records.paid)),
        downs=dice.sample(records.downs, len(records.downs)),
        waits=dice.sample(records.waits, len(records.waits)),
    )
    assert swept(other).tree.cells == swept(records).tree.cells


@given(clusters(), st.sampled_from(("samples", "queue", "memory", "steps", "mfu")))
@settings(max_examples=120)
def test_more_data_only_splits_a_leaf(records: Records, missing: str) -> None:
    fine, coarse = swept(records).tree.amounts(), swept(without(records, missing)).tree.amounts()

    for path, less in coarse.items():
        more = fine.get(path, Amount(0, 0))
        if path.endswith("unknown") and path.count(".") > 0 and path not in ("allocated.unknown",):
            assert more.gpu_s <= less.gpu_s, path  # what was unknown becomes known
        elif path in ("unallocated", "allocated") or "." not in path:
            assert more.gpu_s == less.gpu_s, path
        else:
            assert more.gpu_s >= less.gpu_s, path  # what was known stays so


@given(clusters())
@settings(max_examples=40)
def test_without_samples_the_outcomes_are_the_same(records: Records) -> None:
    fine, coarse = swept(records).tree, swept(without(records, "samples")).tree

    for path in ("allocated.kept", "allocated.lost", "allocated.unknown", "unallocated", "out_of_service"):
        assert fine.amount(path) == coarse.amount(path)


@given(clusters())
@settings(max_examples=40)
def test_without_a_price_there_is_no_money_and_the_hours_are_the_same(records: Records) -> None:
    priced, bare = swept(records).tree, swept(without(records, "prices")).tree

    assert not bare.money
    assert {p: a.gpu_s for p, a in priced.amounts().items()} == {
        p: a.gpu_s for p, a in bare.amounts().items()
    }
    assert all(amount.microusd is None for amount in bare.amounts().values())


@given(st.integers(0, 10**9), st.dictionaries(st.integers(), st.integers(0, 10**6), min_size=1))
def test_a_sum_is_spread_to_the_last_unit_and_nobody_is_off_by_more_than_one(
    total: int, weights: dict[int, int]
) -> None:
    whole = sum(weights.values())
    if whole == 0:
        total = 0
    parts = spread(total, weights)

    assert sum(parts.values()) == total
    assert all(abs(parts[key] * whole - total * weight) < max(1, whole) for key, weight in weights.items())


def a_node(name: str = "n", gpus: int = 8, **more: object) -> Paid:
    return Paid(place=name, gpu="a100", gpus=gpus, start_s=0, end_s=100, **more)  # type: ignore[arg-type]


def a_run(gpus: int, *, start_s: int = 0, end_s: int = 100, place: str = "n", **more: object) -> Run:
    parts = (Part(place=place, gpus=gpus),)
    return Run(job="j", start_s=start_s, end_s=end_s, parts=parts, **more)  # type: ignore[arg-type]


def leaves(records: Records, end_s: int = 100) -> dict[str, int]:
    tree = sweep(records, start_s=0, end_s=end_s).tree
    return {leaf: tree.amount(leaf).gpu_s for leaf in LEAVES if tree.amount(leaf).gpu_s}


def test_a_job_that_would_fit_waits_beside_free_gpus() -> None:
    records = Records(paid=[a_node()], runs=[a_run(4, outcome="kept")], knows_queue=True)
    records.waits.append(Wait(start_s=50, end_s=100, gpus=2, per_node=2))

    assert leaves(records) == {
        "unallocated.own_queue.fits": 100,
        "unallocated.no_demand.peaks": 100,
        "unallocated.no_demand.never_needed": 200,
        "allocated.kept.unknown": 400,
    }


def test_free_gpus_on_two_nodes_are_fragmented_for_a_job_that_needs_one_node() -> None:
    records = Records(paid=[a_node("n"), a_node("m")], runs=[a_run(5), a_run(5, place="m")], knows_queue=True)
    records.waits.append(Wait(start_s=0, end_s=100, gpus=4, per_node=4))

    assert leaves(records)["unallocated.own_queue.fragmented"] == 400


def test_free_gpus_that_are_too_few_for_the_only_waiting_job_are_held_for_it() -> None:
    records = Records(paid=[a_node()], runs=[a_run(5)], knows_queue=True)
    records.waits.append(Wait(start_s=0, end_s=100, gpus=8, per_node=8))

    assert leaves(records)["unallocated.own_queue.held"] == 300


def test_a_job_over_two_nodes_fits_on_both_or_not_at_all() -> None:
    records = Records(paid=[a_node("n"), a_node("m")], runs=[a_run(8)], knows_queue=True)
    records.waits.append(Wait(start_s=0, end_s=100, gpus=16, per_node=8))
    assert leaves(records)["unallocated.own_queue.held"] == 800
    records.runs.clear()
    assert leaves(records) == {"unallocated.own_queue.fits": 1600}


def test_work_of_another_queue_is_walled_and_of_another_type_needs_to_fit() -> None:
    wall = frozenset({"a"})
    records = Records(paid=[a_node(walls=wall)], knows_queue=True, types={"a100": 40})
    records.waits += [
        Wait(start_s=0, end_s=100, gpus=1, per_node=1, wall="b"),
        Wait(start_s=0, end_s=100, gpus=1, per_node=1, wall="a", blocked=True),
        Wait(start_s=0, end_s=100, gpus=1, per_node=1, wall="a", gpu="h100", memory_bytes=30),
        Wait(start_s=0, end_s=100, gpus=1, per_node=1, wall="a", gpu="h100", memory_bytes=70),
        Wait(start_s=0, end_s=100, gpus=1, per_node=1, wall="a", gpu="h100"),
    ]

    assert leaves(records) == {
        "unallocated.walled": 200,
        "unallocated.other_type.fits": 100,
        "unallocated.other_type.too_small": 100,
        "unallocated.other_type.unknown": 100,
        "unallocated.no_demand.never_needed": 300,
    }


def test_an_outage_takes_what_is_free_and_never_what_a_job_holds() -> None:
    down = Down(place="n", start_s=0, end_s=100, leaf="out_of_service.broken")
    records = Records(paid=[a_node()], runs=[a_run(6)], downs=[down], knows_queue=True)

    assert leaves(records) == {"out_of_service.broken": 200, "allocated.unknown.unknown": 600}


def test_jobs_that_claim_more_than_was_paid_for_are_cut_and_counted() -> None:
    records = Records(paid=[a_node(gpus=4)], runs=[a_run(3, outcome="kept"), a_run(3, outcome="lost")])
    found = sweep(records, start_s=0, end_s=100)

    assert found.tree.amount("allocated.kept").gpu_s == 300
    assert found.tree.amount("allocated.lost").gpu_s == 100
    assert found.left_out["excess_gpu_s"] == 200


def test_a_job_of_no_type_fills_one_type_and_then_the_next() -> None:
    pools = [a_node("old", gpus=4, is_node=False), replace(a_node("new", gpus=4, is_node=False), gpu="h100")]
    records = Records(paid=pools, runs=[a_run(6, place="", outcome="kept")])
    found = sweep(records, start_s=0, end_s=100)

    assert found.tree.amount("allocated.kept").gpu_s == 600
    assert found.left_out["excess_gpu_s"] == 0


def test_a_job_whose_node_is_not_known_is_in_its_own_queues_pool() -> None:
    pools = [a_node(wall, walls=frozenset({wall}), is_node=False) for wall in ("a", "b")]
    records = Records(paid=pools, runs=[a_run(8, place="", wall="b")], knows_queue=True)
    found = sweep(records, start_s=0, end_s=100)

    assert {cell.team for cell in found.tree.cells if cell.leaf.startswith("unallocated")} == {"a"}


def test_a_node_that_goes_to_another_queue_is_that_queues_from_then_on() -> None:
    first, second = (replace(a_node(), walls=frozenset({wall})) for wall in ("a", "b"))
    records = Records(paid=[replace(first, end_s=50), replace(second, start_s=50)], knows_queue=True)
    records.runs.append(a_run(8, start_s=40, end_s=60, wall="a", outcome="kept"))
    found = sweep(records, start_s=0, end_s=100)
    free = {cell.team: n for cell, n in found.tree.cells.items() if cell.leaf.startswith("unallocated")}

    assert free == {"a": 320, "b": 320}
    assert found.tree.amount("allocated.kept").gpu_s == 160


def test_a_job_that_may_run_anywhere_leaves_the_only_type_that_another_can_use() -> None:
    records = Records(paid=[a_node("n"), replace(a_node("m"), gpu="h100")], knows_queue=True)
    anywhere, bound = (Wait(start_s=0, end_s=100, gpus=8, per_node=8, gpu=gpu) for gpu in ("", "a100"))
    for waits in ([anywhere, bound], [bound, anywhere]):
        for paid in (records.paid, records.paid[::-1]):
            found = leaves(replace(records, waits=waits, paid=paid))
            assert found == {"unallocated.own_queue.fits": 1600}


def test_a_job_on_a_node_nobody_paid_for_is_counted_as_not_joined() -> None:
    records = Records(paid=[a_node()], runs=[a_run(2, place="elsewhere")])
    found = sweep(records, start_s=0, end_s=100)

    assert found.left_out["run_gpu_s"] == 200
    assert found.tree.amount("allocated").gpu_s == 0


@pytest.mark.parametrize(("month", "hours"), [(3, 23), (10, 25)])
def test_the_days_on_which_clocks_change_are_one_day(month: int, hours: int) -> None:
    zone = ZoneInfo("Europe/Paris")
    day = {3: 29, 10: 25}[month]
    start = int(datetime(2026, month, day, tzinfo=zone).timestamp())
    calendar = Calendar(zone, start_s=start, end_s=start + 3 * 86400)

    assert next(calendar.split(start, start + 40 * 3600)) == (f"2026-{month:02}-{day}", hours * 3600)


def test_hours_of_the_week_begin_on_monday() -> None:
    start = int(datetime(2026, 11, 16, 23, 30, tzinfo=UTC).timestamp())
    calendar = Calendar(UTC, start_s=start, end_s=start + 7200)

    assert list(calendar.hours_of_week(start, start + 3600)) == [(23, 1800), (24, 1800)]
