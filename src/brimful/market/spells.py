"""How long spot stays and stays away: counted by the age of a spell, from what was seen so far. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import fmean

from brimful.units import HOUR_S

# Ages of a spell at which its chance to end is counted apart, in seconds. Real spells are mostly short with a
# long tail, so the steps widen; within one the chance is taken as constant.
AGES_S = (0, 600, 1500, 3600, 3 * 3600, 8 * 3600, 20 * 3600)
# Assumed before anything was seen: a spell ends within so many hours at each age. The geometric mean of nine
# public records of V100s and K80s (2022-2023); with the record it is tried on left out it gains 0.9 points of
# the gap to perfect foresight over a round guess.
PRIOR_HOURS = (
    (0.6, 0.8, 1.2, 2.4, 5.0, 9.0, 19.0),  # away
    (0.7, 1.0, 1.7, 3.0, 7.0, 10.0, 25.0),  # there
)
PRIOR_SPELLS = 2.0  # its weight
ROUND_HOURS = (0.5, 1.0, 2.0, 3.0, 6.0, 10.0, 20.0)  # the same for anything, where a record shows nothing
_N = len(AGES_S)
Hours = Sequence[Sequence[float]]  # by state (away, there) and age


def age_of(age_s: float) -> int:
    return bisect_right(AGES_S, age_s) - 1


@dataclass(slots=True)
class Spells:
    """How spells have ended so far: hours watched and ends seen, by state (away, there) and age."""

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

    def losses_per_hour(self) -> float:
        """Of spot, at any age."""
        return sum(self.ends[True]) / sum(self.hours[True])

    @classmethod
    def before(cls, prior: Hours | None) -> Spells:
        """Nothing was seen yet, and this is believed; None: nothing is."""
        if prior is None:
            return cls([[0.0] * _N for _ in range(2)], [[0.0] * _N for _ in range(2)])
        hours = [[PRIOR_SPELLS * each for each in row] for row in prior]
        return cls(hours, [[PRIOR_SPELLS] * _N for _ in range(2)])

    def copy(self) -> Spells:
        return Spells([list(row) for row in self.hours], [list(row) for row in self.ends])

    def stays(self, age_s: float, hours: float) -> float:
        """The chance that spot of this age is still there after so many hours."""
        chances, passed = self.per_hour(is_up=True), 0.0
        begun_s, end_s = age_s, age_s + hours * HOUR_S
        for age in range(age_of(age_s), _N):
            upto_s = min(end_s, AGES_S[age + 1]) if age + 1 < _N else end_s
            passed += chances[age] * max(0.0, upto_s - begun_s) / HOUR_S
            begun_s = max(begun_s, upto_s)
        return exp(-passed)


def spells_of(changes: Sequence[int], *, until_s: int) -> Spells:
    """How the spells of one pool have ended so far: it came (1st, 3rd, ...) and went (2nd, 4th, ...)."""
    spells = Spells()
    for i, begun_s in enumerate(changes):
        ended = i + 1 < len(changes)
        end_s = changes[i + 1] if ended else until_s
        age_s = max(0, end_s - begun_s)
        for age in range(age_of(age_s) + 1):
            last = age == age_of(age_s)
            upto_s = age_s if last else AGES_S[age + 1]
            spells.watch(
                is_up=i % 2 == 0, age_s=AGES_S[age], seconds=upto_s - AGES_S[age], ended=ended and last
            )
    return spells


def prior_of(records: Sequence[Spells]) -> Hours:
    """What to believe of capacity that nobody has watched: at each age the geometric mean over these records.

    Each was counted with nothing believed before, and leans on a round guess with the weight of one spell.
    """

    def mean(is_up: bool, age: int) -> float:
        seen = [(each.hours[is_up][age], each.ends[is_up][age]) for each in records]
        return exp(fmean(log((hours + ROUND_HOURS[age]) / (ends + 1.0)) for hours, ends in seen))

    return [[mean(is_up, age) for age in range(_N)] for is_up in (False, True)]
