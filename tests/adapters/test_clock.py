"""Time that passed is time that is billed, whatever somebody does to the clock."""

from __future__ import annotations

import pytest

from brimful.adapters.clock import FOLLOW, SteadyClock


class World:
    wall, awake = 1_000_000.0, 50.0

    def pass_s(self, seconds: float, *, clock_s: float | None = None) -> None:
        self.awake += seconds
        self.wall += seconds if clock_s is None else clock_s


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock(world: World) -> SteadyClock:
    return SteadyClock(wall=lambda: world.wall, awake=lambda: world.awake)


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0, 3600.0, -5.0])
def test_a_jump_is_walked_and_not_leapt(world: World, clock: SteadyClock, jump_s: float) -> None:
    before = clock()
    world.wall += jump_s
    assert clock() == before
    world.pass_s(10)
    assert clock() - before == pytest.approx(10, abs=10 * FOLLOW + 1e-6)


def test_it_gets_there_in_the_end(world: World, clock: SteadyClock) -> None:
    world.wall -= 60
    for _ in range(1300):
        before = clock()
        world.pass_s(1)
        assert clock() >= before
    assert clock() == pytest.approx(world.wall, abs=0.1)


def test_drift_is_followed(world: World, clock: SteadyClock) -> None:
    for _ in range(100):
        world.pass_s(1, clock_s=1.001)
        clock()
    assert clock() == pytest.approx(world.wall)
