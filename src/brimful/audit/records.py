"""Usage records, whatever format they came from. Readers make these; the sweep counts them.

Times are UTC seconds, intervals are [start, end). Nothing here is guessed: what a source does not say is
None, empty, or absent, and ends up in a leaf called unknown.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from brimful.audit.series import CardKey, Series
from brimful.meter.idle import Spans

Outcome = Literal["kept", "lost", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """GPUs of one type at one place that somebody paid for."""

    place: str  # a node; or a pool, if only counts are known
    gpu: str
    gpus: int
    start_s: int
    end_s: int
    microusd: int | None = None  # total; None: no known price
    list_price: bool = False  # a list price, not what was paid
    walls: frozenset[str] = frozenset()  # queues that may use it; empty: every queue
    is_node: bool = True
    unused: bool = False  # a commitment that no machine used


@dataclass(frozen=True, slots=True, kw_only=True)
class Down:
    """GPUs of a place that were paid for but could not be used."""

    place: str
    start_s: int
    end_s: int
    leaf: str  # out_of_service.broken, out_of_service.planned, out_of_service.unknown, not_delivered.booting
    gpus: int | None = None  # None: all of them
    gpu: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A run's GPUs at one place. `cards` are their indices, if known."""

    place: str
    gpus: int
    cards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A job that held GPUs from `start_s` to `end_s`."""

    job: str
    start_s: int
    end_s: int
    parts: tuple[Part, ...]
    gpu: str = ""  # requested type; empty: any
    outcome: Outcome = "unknown"
    user: str = ""
    team: str = ""
    wall: str = ""  # partition, virtual cluster or queue
    submit_s: int | None = None  # since when it could have run: after holds and dependencies
    name: str = ""  # given by its owner: a second try has the same
    memory_bytes: int | None = None  # most that one of its cards held
    card_bytes: int | None = None  # memory of such a card, if a source measured it
    deferrable: bool = False  # its owner said that it may wait for a quiet hour

    @property
    def gpus(self) -> int:
        return sum(part.gpus for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Demand: GPUs that a job could have used at once. Held and dependent jobs are not demand."""

    start_s: int
    end_s: int
    gpus: int
    per_node: int | None = None  # GPUs it needs on one node; None: the source has counts, not jobs
    job: str = ""
    wall: str = ""
    gpu: str = ""  # bound to this type; empty: any
    memory_bytes: int | None = None  # on one card, if known
    blocked: bool = False  # by a quota or a reservation: it cannot use free GPUs of its own queue


class Mean(NamedTuple):
    """A card's mean over a whole run, and the most memory it held."""

    node: str
    card: int
    busy_frac: float | None
    used_bytes: float | None
    card_bytes: float | None = None


@dataclass(slots=True)
class Parts:
    """Seconds of a job's steps, over all its processes: what waited, and how far from the card's peak."""

    whole_s: float = 0.0
    input_wait_s: float = 0.0
    communication_s: float = 0.0
    measured_s: float = 0.0  # of steps with a known MFU
    peak_s: float = 0.0  # what those would have taken at the card's peak

    def shares(self) -> dict[str, float]:
        """Parts of the whole that add up to at most 1; without `mfu` if it was not measured."""
        found = {"input_wait": self.input_wait_s, "communication": self.communication_s}
        shares = {name: seconds / self.whole_s for name, seconds in found.items()}
        if self.measured_s:
            shares["mfu"] = self.peak_s / self.measured_s
        return shares


@dataclass(slots=True)
class Records:
    """Everything that was read, and how much of it could not be used."""

    paid: list[Paid] = field(default_factory=list)
    nodes: list[Paid] = field(default_factory=list)  # observed, and assumed paid if no bill names them
    downs: list[Down] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    # What cards did: by (job, node, card), or by ("", node, card) if the source names no job.
    activity: dict[CardKey, Spans] = field(default_factory=dict)
    means: dict[str, list[Mean]] = field(default_factory=dict)  # by job
    series: dict[CardKey, Series] = field(default_factory=dict)
    totals: list[tuple[str, str, int]] = field(default_factory=list)  # leaf, cluster, GPU-s: totals only
    parts: dict[str, Parts] = field(default_factory=dict)  # job -> parts of its steps
    memory: dict[str, tuple[int, int | None]] = field(default_factory=dict)  # job -> bytes used, of the card
    types: dict[str, int] = field(default_factory=dict)  # GPU type -> memory bytes of a card
    traces: list[str] = field(default_factory=list)  # jobs without a schedule: only replays can use them
    knows_queue: bool = False  # whether a source said who waited
    not_known: list[str] = field(default_factory=list)  # files in folders, of unknown format
    snapshot_gpus: int = 0  # of nodes whose source gives no times: taken as paid all the time
    card_shares: dict[str, tuple[float, float]] = field(default_factory=dict)  # cluster -> idle, starved
    left_out: Counter[str] = field(default_factory=Counter)  # code -> number of rows or GPU-seconds

    def saw_memory(self, job: str, used_bytes: float, card_bytes: float | None = None) -> None:
        """For one of its cards: the maximum counts."""
        used, of = self.memory.get(job, (0, None))
        self.memory[job] = (max(used, int(used_bytes)), int(card_bytes) if card_bytes else of)

    def window(self) -> tuple[int, int]:
        """From the first to the last time that anything was paid for or ran."""
        ends = [(p.start_s, p.end_s) for p in self.paid] or [(r.start_s, r.end_s) for r in self.runs]
        return (min(start for start, _ in ends), max(end for _, end in ends)) if ends else (0, 0)


def most_at_once(spans: Iterable[tuple[int, int, int]]) -> int:
    """Of (start, end, how many) each."""
    changes = sorted(each for start, end, n in spans for each in ((start, n), (end, -n)))
    return max(itertools.accumulate(n for _, n in changes), default=0)
