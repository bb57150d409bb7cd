"""What the cards of a job did, and the traps that utilization sets."""

from __future__ import annotations

import pytest

from brimful.audit.records import Paid, Part, Parts, Records, Run
from brimful.audit.series import Series
from brimful.audit.sweep import sweep
from brimful.meter.idle import Spans, card_level

HOUR = 3600


def leaves(
    spans: Spans,
    *,
    end_s: int = 2 * HOUR,
    parts: Parts | None = None,
    used: int | None = None,
    run: tuple[int, int] | None = None,
) -> dict[str, int]:
    """Leaves below allocated.kept of one card that a job held."""
    start, end = run or (0, end_s)
    part = Part(place="n", gpus=1, cards=(0,))
    held = Run(job="j", start_s=start, end_s=end, parts=(part,), outcome="kept", memory_bytes=used)
    paid = Paid(place="n", gpu="big", gpus=1, start_s=0, end_s=end_s)
    records = Records(paid=[paid], runs=[held], activity={("", "n", 0): spans}, types={"big": 80})
    if parts:
        records.parts["j"] = parts
    tree = sweep(records, start_s=0, end_s=end_s).tree
    return {c.leaf.removeprefix("allocated.kept."): n for c, n in tree.cells.items()}


def test_set_up_gap_short_pause_and_tail() -> None:
    found = leaves(
        [
            (0, 600, "idle"),
            (600, 2000, "working"),
            (2000, 2100, "idle"),
            (2100, 3000, "working"),
            (3000, 3300, "idle"),
            (3300, 4000, "starved"),
            (4000, 7200, "idle"),
        ]
    )
    assert found == {
        "idle.setup": 600,
        "active.working.unknown": 2300,
        "idle.short": 100,
        "idle.gap": 300,
        "active.starved": 700,
        "idle.tail": 3200,
    }


def test_a_card_that_was_idle_from_the_first_to_the_last_second_was_never_used() -> None:
    assert leaves([(-100, 8000, "idle")]) == {"idle.never_used": 7200}


def test_the_edge_of_the_window_is_not_the_edge_of_the_run() -> None:
    """It worked before the window and after it: a gap, neither set-up nor tail nor never used."""
    assert leaves(
        [(-600, -300, "working"), (-300, 7500, "idle"), (7500, 8000, "working")], run=(-600, 8000)
    ) == {"idle.gap": 7200}


def test_spans_that_overlap_count_once() -> None:
    assert leaves([(0, 5000, "working"), (4000, 7200, "starved")]) == {
        "active.working.unknown": 5000,
        "active.starved": 2200,
    }


def test_idle_beside_a_hole_in_the_samples_is_of_no_known_kind() -> None:
    assert leaves([(0, 1000, "working"), (1000, 2000, "idle")]) == {
        "active.working.unknown": 1000,
        "idle.unknown": 1000,
        "unknown": 5200,
    }


def test_working_time_is_divided_by_what_the_meter_measured() -> None:
    parts = Parts(whole_s=100, input_wait_s=25, communication_s=10)
    assert leaves([(0, 7200, "working")], parts=parts, used=79) == {
        "active.working.right_card.input_wait": 1800,
        "active.working.right_card.communication": 720,
        "active.working.right_card.computing.unknown": 4680,
    }
    parts = Parts(whole_s=100, input_wait_s=25, communication_s=10, measured_s=50, peak_s=20)
    assert leaves([(0, 7200, "working")], parts=parts, used=40) == {
        "active.working.larger_card.input_wait": 1800,
        "active.working.larger_card.communication": 720,
        "active.working.larger_card.computing.mfu": 2880,
        "active.working.larger_card.computing.below_peak": 1800,
    }


def test_a_card_is_larger_than_needed_where_two_such_jobs_would_fit_on_it() -> None:
    assert leaves([(0, 7200, "working")], used=40) == {"active.working.larger_card.unknown": 7200}
    assert leaves([(0, 7200, "working")], used=41) == {"active.working.right_card.unknown": 7200}
    assert leaves([(0, 7200, "working")]) == {"active.working.unknown": 7200}


@pytest.mark.parametrize(
    ("sm", "busy", "power", "rest", "level"),
    [
        (0.0, None, None, None, "idle"),
        (0.6, None, None, None, "working"),
        (0.05, 1.0, None, None, "starved"),  # SM activity tells: 100 % utilization in a deadlock
        (None, 1.0, 62.0, 55.0, "starved"),  # power tells
        (None, 1.0, 300.0, 55.0, "working"),
        (None, 1.0, None, None, "working"),
        (None, 0.0, 300.0, 55.0, "idle"),
        (None, None, 60.0, 55.0, "idle"),
        (None, None, 300.0, 55.0, None),
        (None, None, None, None, None),
    ],
)
def test_the_one_rule(
    sm: float | None, busy: float | None, power: float | None, rest: float | None, level: str | None
) -> None:
    assert card_level(sm_frac=sm, busy_frac=busy, power_w=power, rest_w=rest) == level


def series(**kinds: list[float]) -> Spans:
    found = Series()
    for kind, values in kinds.items():
        found.extend(kind, [(60 * i, str(v)) for i, v in enumerate(values)], 1.0)
    return found.spans()


def test_zeros_of_a_counter_that_is_not_supported_do_not_count() -> None:
    assert series(sm=[0, 0, 0], busy=[0, 0.9, 0.9]) == [(0, 60, "idle"), (60, 180, "working")]
    assert series(sm=[0, 0, 0], busy=[0, 0, 0]) == [(0, 180, "idle")]


def test_a_spinning_card_is_told_by_its_own_power_at_rest() -> None:
    assert series(busy=[0, 0, 1, 1], power=[50, 52, 60, 250]) == [
        (0, 120, "idle"),
        (120, 180, "starved"),
        (180, 240, "working"),
    ]


def test_slices_of_a_card_count_as_the_busiest_and_never_above_one() -> None:
    found = Series()
    found.extend("engine", [(0, "0.0"), (60, "0.0")], 1.0)
    found.extend("engine", [(0, "1.4"), (60, "0.0")], 1.0)

    assert found.spans() == [(0, 60, "working"), (60, 120, "idle")]
    assert found.most("engine") == 1.0


def test_a_hole_in_the_samples_is_not_filled() -> None:
    found = Series()
    found.extend("sm", [(0, "0.9"), (60, "0.9"), (600, "0.9"), (660, "NaN")], 1.0)

    assert found.spans() == [(0, 120, "working"), (600, 660, "working")]
