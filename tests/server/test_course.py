"""Few points stand for many, over any time."""

from __future__ import annotations

from itertools import pairwise

from brimful.server.service.course import GAP_S, POINTS, Course


def test_a_long_run_keeps_few_points_evenly_over_all_of_it() -> None:
    course = Course(2)
    for i in range(100_000):
        course.add((float(i), i / 2))
    times = [at_s for at_s, _ in course]
    gaps = {later - earlier for earlier, later in pairwise(times)}
    assert POINTS // 2 <= len(course) <= POINTS
    assert times[0] == 0
    assert times[-1] > 99_000 - max(gaps)
    assert max(gaps) <= 2 * min(gaps)
    assert all(value == at_s / 2 for at_s, value in course)


def test_what_comes_too_soon_or_from_before_is_left_out() -> None:
    course = Course(1)
    for at_s in (100.0, 100.0 + GAP_S / 2, 50.0, 100.0 + GAP_S):
        course.add((at_s,))
    assert [each[0] for each in course] == [100.0, 100.0 + GAP_S]
