"""How wide each elastic gang should be, and on which GPU type: the next GPU goes where it gains most.

A pool and a size are worth v = 1 / (restart + work left / rate) to a job: how soon it would be done there, so
that a change is worth its gain after the restart it costs. The sum of v is increased step by step from what
every gang has now: a step gives a gang more GPUs, fewer or others, from those that are free and those that
others lose least by giving up (marginal goodput). A step that restarts a running gang must gain `LEAST_GAIN`
of what all gangs in it have, so that two gangs do not pass a GPU back and forth.

Goodput per GPU as the measure is from Pollux (Qiao et al., OSDI 2021) and Sia (Jayaram Subramanya et al.,
SOSP 2023); weighting it by the work that is left, where Sia uses a power mean, is what `assign.py` does for
types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from brimful.fleet.node import Pool
from brimful.fleet.state import JobState

LEAST_GAIN = 0.4
STEPS = 200  # per decision
NEARLY = 1e-12


@dataclass(frozen=True, slots=True)
class Choice:
    """A pool and a size, and what they are worth; no pool: it waits."""

    pool: Pool | None
    gpus: int
    worth: float
    restarts: bool = False  # a running gang would have to stop for it


@dataclass(slots=True)
class Gang:
    """A gang that may be resized or started: what it has and what it could have."""

    state: JobState
    rank: int  # of its class
    at: Choice  # initially what it has now
    choices: list[Choice]
    may_wait: bool = False  # it waits now: it may get nothing

    def less(self, pool: Pool) -> Iterator[Choice]:
        """The choices that would free some or all of its GPUs in this pool."""
        if self.at.pool == pool:
            yield from (each for each in self.choices if each.pool != pool or each.gpus < self.at.gpus)


_Offer = tuple[float, Gang, Choice]  # the loss, the gang, and what it would have


@dataclass(slots=True)
class _Step:
    gain: float
    gpus: int
    moves: list[tuple[Gang, Choice]]

    @property
    def density(self) -> float:
        return self.gain / max(1, self.gpus)


def share_out(gangs: Sequence[Gang], room: dict[Pool, int]) -> None:
    """Settle `at` of every gang. `room`: free GPUs of each pool.

    Waiting gangs come first, in order: no gang keeps more than its minimum while another could start on it.
    """
    for gang in gangs:
        if gang.may_wait:
            offers = {pool: _offers(pool, gangs, room) for pool in room}
            least = [each for each in gang.choices if each.gpus == gang.choices[0].gpus]
            steps = [
                step for each in least if (step := _step(gang, each, offers, room, must=True)) is not None
            ]
            for each, choice in max(steps, key=lambda step: step.gain).moves if steps else ():
                _move(each, choice, room)
    for _ in range(STEPS):
        best: _Step | None = None
        offers = {pool: _offers(pool, gangs, room) for pool in room}
        for gang in gangs:
            for choice in gang.choices:
                step = _step(gang, choice, offers, room) if choice.worth > gang.at.worth else None
                if step is not None and (best is None or step.density > best.density + NEARLY):
                    best = step
        if best is None:
            return
        for gang, choice in best.moves:
            _move(gang, choice, room)


def _move(gang: Gang, choice: Choice, room: dict[Pool, int]) -> None:
    if gang.at.pool is not None:
        room[gang.at.pool] += gang.at.gpus
    if choice.pool is not None:
        room[choice.pool] -= choice.gpus
    gang.at = choice


def _step(
    gang: Gang,
    choice: Choice,
    offers: Mapping[Pool, list[_Offer]],
    room: dict[Pool, int],
    *,
    must: bool = False,
) -> _Step | None:
    """The gang moves there; others give up what is missing, least loss per GPU first."""
    pool = choice.pool
    if pool is None:
        return None
    held = gang.at.gpus if gang.at.pool == pool else 0
    missing = choice.gpus - held - room[pool]
    step = _Step(choice.worth - gang.at.worth, choice.gpus - held, [(gang, choice)])
    had = gang.at.worth
    if missing > 0:
        free = dict(room)
        for lost, giver, less in offers[pool]:
            if giver.rank < gang.rank or any(each is giver for each, _ in step.moves):
                continue
            if less.pool is not None and less.pool != pool:
                if free[less.pool] < less.gpus:
                    continue
                free[less.pool] -= less.gpus
            step.gain -= lost
            had += giver.at.worth
            missing -= giver.at.gpus - (less.gpus if less.pool == pool else 0)
            step.moves.append((giver, less))
            if missing <= 0 or (step.gain <= 0 and not must):
                break
    if missing > 0:
        return None
    least = LEAST_GAIN * had if any(each.restarts for _, each in step.moves) else 0.0
    return step if must or step.gain > least else None


def _offers(pool: Pool, gangs: Sequence[Gang], room: dict[Pool, int]) -> list[_Offer]:
    """What gangs could give up of this pool and what they would lose, least loss per GPU first."""
    found = [
        (giver.at.worth - less.worth, giver, less)
        for giver in gangs
        for less in giver.less(pool)
        if less.pool in (None, pool) or room[less.pool] >= less.gpus
    ]
    found.sort(key=lambda each: each[0] / (each[1].at.gpus - (each[2].gpus if each[2].pool == pool else 0)))
    return found
