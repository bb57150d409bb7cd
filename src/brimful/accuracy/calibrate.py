"""Your own measurements correct our estimates: one factor for each counter, and one for speed.

A factor is the median of measured / predicted over the runs that measured that counter. It is used only if it
lowers the error of runs it has not seen: each run is predicted with the factor of all the others, and the
errors with and without are compared. A wrong unit or a misread row is far off and is set aside by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from brimful.accuracy.score import COUNTERS, Scored, row_id
from brimful.errors import Refused
from brimful.fit.correction import FARTHEST, SPEED, SUBJECTS, Correction, Factor
from brimful.language import say

LEAST_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The result for a table of runs: the factors, whether or not they help, and what was left out."""

    factors: Mapping[str, Factor]
    too_few: Mapping[str, int] = field(default_factory=dict)  # counter -> runs, if fewer than LEAST_RUNS
    set_aside: Sequence[tuple[str, str, float]] = ()  # id, counter, measured / predicted
    gpus: tuple[str, ...] = ()

    @property
    def correction(self) -> Correction:
        helpful = {name: factor for name, factor in self.factors.items() if factor.helps}
        return Correction(factors=helpful, gpus=self.gpus)


# -- fitting -----------------------------------------------------------------------------------------------


def calibrate(scored: Iterable[Scored]) -> Calibration:
    """Factors from rows that were predicted and measured."""
    ratios: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    aside: list[tuple[str, str, float]] = []
    gpus: set[str] = set()
    for each in scored:
        for name, ratio in _ratios(each):
            if 1 / FARTHEST <= ratio <= FARTHEST:
                ratios[name].append(ratio)
                gpus.add(each.run.gpu.name if each.run else "")
            else:
                aside.append((row_id(each.row), name, ratio))
    return Calibration(
        factors={name: factor_of(found) for name, found in ratios.items() if len(found) >= LEAST_RUNS},
        too_few={name: len(found) for name, found in ratios.items() if 0 < len(found) < LEAST_RUNS},
        set_aside=tuple(aside),
        gpus=tuple(sorted(gpus)),
    )


def _ratios(each: Scored) -> list[tuple[str, float]]:
    """Measured / predicted for what this row measured."""
    found = []
    if each.memory_error is not None:
        found.append((COUNTERS[each.row["mem_kind"]], 1 / (1 + each.memory_error)))
    if each.rate_error is not None:
        found.append((SPEED, 1 / (1 + each.rate_error)))
    return found


def factor_of(ratios: Sequence[float]) -> Factor:
    """The factor of these ratios, and its effect on runs it has not seen."""
    assert len(ratios) >= 2
    after = []
    for i, ratio in enumerate(ratios):
        others = median([*ratios[:i], *ratios[i + 1 :]])
        after.append(abs(others / ratio - 1))
    return Factor(
        factor=median(ratios),
        low=min(ratios),
        high=max(ratios),
        runs=len(ratios),
        error_before=median(abs(1 / ratio - 1) for ratio in ratios),
        error_after=median(after),
    )


def enough(calibration: Calibration) -> None:
    """Refuse if there is nothing to fit, and say what is missing."""
    if calibration.factors:
        return
    found = ", ".join(f"{name} {runs}" for name, runs in calibration.too_few.items()) or 0
    raise Refused(say("accuracy.too_few_runs", found=found, least=LEAST_RUNS))
