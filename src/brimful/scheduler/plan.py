"""What was decided, as data: comparable, printable, and nothing has happened yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

from brimful.fleet.events import Event, Parts
from brimful.fleet.noun import noun


@noun
class Start:
    job: str
    lease: str
    node: str
    gpus: tuple[int, ...]
    microusd_per_gpu_hour: int
    rest: Parts = ()
    in_turn: bool = False


@noun
class Stop:
    lease: str
    reason: str
    requeue: bool = False


class Reasons(Mapping[str, str]):
    """Why each job waits, with numbers. Worded when it is asked for: thousands wait and few are looked at."""

    def __init__(self, jobs: Callable[[], Iterator[str]], why: Callable[[str], str | None]) -> None:
        self._jobs, self._why = jobs, why  # `why` of a job that does not wait is None

    def __getitem__(self, job: str) -> str:
        reason = self._why(job)
        if reason is None:
            raise KeyError(job)
        return reason

    def __iter__(self) -> Iterator[str]:
        return self._jobs()

    def __len__(self) -> int:
        return sum(1 for _ in self._jobs())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(dict(self))


@noun
class Plan:
    starts: list[Start] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    waits: Mapping[str, str] = field(default_factory=dict)  # job -> why, with numbers
    market: list[Event] = field(default_factory=list)  # what became so in market pools: prices, notices
    # When to think again even if nothing happens: a limit is reached, a quiet hour comes, ranks have changed.
    look_again_s: int | None = field(default=None, compare=False)
