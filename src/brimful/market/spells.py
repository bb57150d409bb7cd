"""How long spot stays up and stays down: counted by the age of a spell, from what was seen so far. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import fmean

from brimful.units import HOUR_S

# Ages of a spell at which its chance of ending is counted separately, in seconds. Real spells are mostly
# short with a long tail, so the steps widen; within one step the chance is assumed constant.
AGES_S = (0, 600, 1500, 3600, 3 * 3600, 8 * 3600, 20 * 3600)
# The prior: at each age a spell ends within this many hours. The geometric mean of nine public records of
# V100s and K80s (2022-2023); with the record under test left out it gains 0.9 points of the gap to perfect
# foresight over a round guess.
PRIOR_HOURS = (
    (0.6, 0.8, 1.2, 2.4, 5.0, 9.0, 19.0),  # down
    (0.7, 1.0, 1.7, 3.0, 7.0, 10.0, 25.0),  # up
)
PRIOR_SPELLS = 2.0  # its weight
ROUND_HOURS = (0.5, 1.0, 2.0, 3.0, 6.0, 10.0, 20.0)  # the same for both states, where a record shows nothing
_N = len(AGES_S)
Hours = Sequence[Sequence[float]]  # by state (down, up) and age


def age_of(age_s: float) -> int:
    return bisect_right(AGES_S, age_s) - 1


@dataclass(slots=True)
class Spells:
    """How spells have ended so far: hours watched and ends seen, by state (down, up) and age."""

    hours: list[list[float]] = field(
        default_factory=lambda: [[PRIOR_SPELLS * hours for hours in row] for row in PRIOR_HOURS]
    )
    ends: list[list[float]] = field(default_factory=lambda: [[PRIOR_SPELLS] * _N for _ in range(2)])

    def watch(self, *, is_up: bool, age_s: float, seconds: float, ended: bool) -> None:
        age = age_of(age_s)
        self.hours[is_up][age] += seconds / HOUR_S
        self.ends[is_up][age] += ended

    def per_hour(self, *, is_up: bool) -> list[float]:
        """The chance of an end, per hour, at each age."""
        return [e / h for e, h in zip(self.ends[is_up], self.hours[is_up], strict=True)]

    def watch_from(self, age_s: float, until_s: float, *, is_up: bool, ended: bool) -> None:
        """A spell was watched from one age to another."""
        for age in range(age_of(age_s), age_of(until_s) + 1):
            last = age == age_of(until_s)
            begun_s = max(age_s, AGES_S[age])
            upto_s = until_s if last else AGES_S[age + 1]
            self.watch(is_up=is_up, age_s=begun_s, seconds=upto_s - begun_s, ended=ended and last)

    def expected_hours(self, age_s: float) -> float:
        """How much longer a spot spell of this age will last."""
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

    def losses_per_hour(self) -> float:
        """Of spot, at any age."""
        return sum(self.ends[True]) / sum(self.hours[True])

    @classmethod
    def before(cls, prior: Hours | None) -> Spells:
        """Nothing seen yet, with this prior; None: no prior."""
        if prior is None:
            return cls([[0.0] * _N for _ in range(2)], [[0.0] * _N for _ in range(2)])
        hours = [[PRIOR_SPELLS * each for each in row] for row in prior]
        return cls(hours, [[PRIOR_SPELLS] * _N for _ in range(2)])

    def copy(self) -> Spells:
        return Spells([list(row) for row in self.hours], [list(row) for row in self.ends])

    def stays(self, age_s: float, hours: float) -> float:
        """The chance that spot of this age is still up after this many hours."""
        chances, passed = self.per_hour(is_up=True), 0.0
        begun_s, end_s = age_s, age_s + hours * HOUR_S
        for age in range(age_of(age_s), _N):
            upto_s = min(end_s, AGES_S[age + 1]) if age + 1 < _N else end_s
            passed += chances[age] * max(0.0, upto_s - begun_s) / HOUR_S
            begun_s = max(begun_s, upto_s)
        return exp(-passed)


def spells_of(changes: Sequence[int], *, until_s: int) -> Spells:
    """How the spells of one pool have ended so far: it came (1st, 3rd, ...) and went (2nd, 4th, ...)."""
    return _spells_of(changes, until_s=until_s, prior=PRIOR_HOURS)


def _spells_of(changes: Sequence[int], *, until_s: int, prior: Hours) -> Spells:
    spells = Spells.before(prior)
    for i, begun_s in enumerate(changes):
        ended = i + 1 < len(changes)
        age_s = max(0, (changes[i + 1] if ended else until_s) - begun_s)
        spells.watch_from(0, age_s, is_up=i % 2 == 0, ended=ended)
    return spells


NONE_LEFT = ((1.0, *([0.0] * _N)),) * _N  # for one zone: when it goes down, there is no other


@dataclass(frozen=True, slots=True)
class Following:
    """The view across several zones of a job that always holds spot where it is expected to last longest.

    `spells`: of having none at all, and of the held zone, by the age of that zone's spell. `after`: when it
    is lost at each age, the chance that no zone is up, then that the next one is of each age: in a storm
    young spells follow each other.
    """

    spells: Spells
    after: tuple[tuple[float, ...], ...]


def follow(zones: Sequence[Sequence[int]], *, until_s: int, prior: Hours = PRIOR_HOURS) -> Following:
    """Replay what was seen of these zones so far, each as in `spells_of`."""
    if len(zones) == 1:
        return Following(_spells_of(zones[0], until_s=until_s, prior=prior), NONE_LEFT)
    own = [_spells_of(zone, until_s=until_s, prior=prior) for zone in zones]
    spells, counts = Spells.before(prior), [[0.0] * (1 + _N) for _ in range(_N)]

    def best(at_s: int) -> tuple[int, int] | None:
        """When the best spell began, and when it ends."""
        found: list[tuple[float, tuple[int, int]]] = []
        for zone, known in zip(zones, own, strict=True):
            i = bisect_right(zone, at_s)
            if i % 2:
                ends_s = zone[i] if i < len(zone) else until_s
                found.append((known.expected_hours(at_s - zone[i - 1]), (zone[i - 1], ends_s)))
        return max(found)[1] if found else None

    def landing(at_s: int) -> int:
        here = best(at_s)
        return 0 if here is None else 1 + age_of(at_s - here[0])

    comes = sorted(at_s for zone in zones for at_s in zone[::2])
    at_s = comes[0] if comes else until_s
    while at_s < until_s:
        here = best(at_s)
        if here is None:
            i = bisect_right(comes, at_s)
            next_s = comes[i] if i < len(comes) else until_s
            spells.watch_from(0, next_s - at_s, is_up=False, ended=next_s < until_s)
            at_s = next_s
            continue
        begun_s, next_s = here
        spells.watch_from(at_s - begun_s, next_s - begun_s, is_up=True, ended=next_s < until_s)
        if next_s < until_s:
            counts[age_of(next_s - begun_s)][landing(next_s)] += 1
        at_s = next_s
    # Each age leans on all ages together, and these on where a job that lost any of these zones would have
    # gone.
    others = [landing(at_s) for zone in zones for at_s in zone[1::2] if at_s < until_s] or [0]
    any_zone = [others.count(state) / len(others) for state in range(1 + _N)]
    any_age = _smoothed_shares([sum(row[state] for row in counts) for state in range(1 + _N)], any_zone)
    return Following(spells, tuple(tuple(_smoothed_shares(row, any_age)) for row in counts))


def _smoothed_shares(counts: Sequence[float], on: Sequence[float]) -> list[float]:
    """Shares, with a prior that weighs as much as some spells."""
    total = sum(counts) + PRIOR_SPELLS
    return [(n + PRIOR_SPELLS * before) / total for n, before in zip(counts, on, strict=True)]


def prior_of(records: Sequence[Spells]) -> Hours:
    """The prior for capacity that was never watched: at each age the geometric mean over these records.

    Each was counted without a prior, and leans on a round guess with the weight of one spell.
    """

    def mean(is_up: bool, age: int) -> float:
        seen = [(each.hours[is_up][age], each.ends[is_up][age]) for each in records]
        return exp(fmean(log((hours + ROUND_HOURS[age]) / (ends + 1.0)) for hours, ends in seen))

    return [[mean(is_up, age) for age in range(_N)] for is_up in (False, True)]
