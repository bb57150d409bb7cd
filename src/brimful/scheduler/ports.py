"""What `tick` needs of the world. Server and simulator bring their own; `tick` cannot tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from brimful.errors import BrimfulError, Refused, Said
from brimful.fleet.events import Cause, Event, Parts
from brimful.fleet.job import Job
from brimful.fleet.state import Node
from brimful.market.forecast import Forecasts
from brimful.scheduler.auction import Auctions
from brimful.scheduler.cloud.buying import Buying
from brimful.scheduler.plan import Plan
from brimful.specs.offer import Offer

if TYPE_CHECKING:
    from brimful.scheduler.cloud.providers import Provider


class Store(Protocol):
    """The event log."""

    def since(self, seq: int) -> Sequence[Event]:
        """Events after the first `seq`, in order: all of them or a first batch; empty only at the end."""

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        """Write all of them right after the first `after` events, or write none and return False.

        False means that another writer was first: read, think again, try again. This keeps two writers from
        acting on the same state.
        """


@dataclass(slots=True)  # not frozen: a rehearsal makes two for every lease
class Observation:
    """What an engine sees of one lease. Times are by the engine's clock; `skew_s` is how far that is ahead.

    absent    it has no trace of the lease
    waiting   the engine has it and has not begun it; `problem` is the engine's reason
    running   since `started_s`, on `runs_on`
    ended     nothing of it runs any more: `cause`, `exit_codes`, `problem`
    """

    lease: str
    state: Literal["absent", "waiting", "running", "ended"]
    started_s: int | None = None
    ended_s: int | None = None
    exit_code: int | None = None  # of the gang: the first rank that failed, else 0
    problem: Said | None = None
    kept_work_s: float | None = None  # useful work that a later lease can skip, if known
    cause: Cause | None = None  # None: the exit code separates finished from failed
    exit_codes: tuple[int | None, ...] = ()  # by rank; empty: one rank, or unknown
    runs_on: Parts = ()  # the real nodes and GPUs; empty: as ordered
    resumes_s: int | None = None  # when the checkpoint it resumed from was sealed; 0: none; None: unknown
    skew_s: float = 0.0
    moved_bytes: int = 0  # checkpoint bytes sent to and fetched from a store


class CannotStart(Refused):
    """An engine guarantees that nothing of this lease runs: its GPUs are free."""

    cause: ClassVar[Cause] = "failed"


class NodeLost(CannotStart):
    """Since its node is no longer there, which uses up no try."""

    cause = "node_lost"


class Start(NamedTuple):
    """An order to begin a lease: one rank on each of `parts`, in this order."""

    lease: str
    job: Job
    parts: Parts  # (node, GPUs); on a node whose GPUs are chosen by count, only the number matters
    checkpoints_from: str = ""  # checkpoints at another site (`Carries`): resume from them if newer
    # When its newest checkpoint was sealed: resuming from an older one is reported as lost progress.
    kept_until_s: int = 0
    may_share: bool = False  # whether another job may come to run on its GPU


Failures = Mapping[str, BrimfulError]  # by lease: what went wrong; all other leases were carried out


class Engine(Protocol):
    """Runs processes at one site. Every act may be repeated, and repeating it changes nothing.

    A raised error concerns the site, and leaves the outcome of the whole batch open.
    """

    @property
    def site(self) -> str: ...

    def nodes(self) -> Sequence[Node]:
        """What the site offers now. Returning the identical list object means that nothing has changed."""

    def start(self, starts: Sequence[Start]) -> Failures:
        """Begin each, once: a lease that was begun before, or told to stop, is left as it is.

        CannotStart only if it is certain that nothing runs or will run. After any other failure the outcome
        is open, and the start is repeated.
        """

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        """Ask each to end, and kill it after the grace period. One that has not begun never will."""

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        """News of these leases. A lease that has not changed since the last report may be left out."""


@runtime_checkable
class Carries(Protocol):
    """An engine whose jobs keep checkpoints where another engine can fetch them."""

    def checkpoints(self, job: str) -> str:
        """Where this site keeps the job's checkpoints: the value of `Start.checkpoints_from` elsewhere."""


@runtime_checkable
class Warns(Protocol):
    """An engine that can warn a running job that it will have to leave."""

    def warn(self, lease: str, *, until_s: int | None) -> None:
        """Until when it may stay; None: it may stay after all. Repeated at every look."""


@dataclass(slots=True)
class Decided:
    """The last decision: after how many events, when, and what it was."""

    seq: int = -1
    at_s: int = 0
    plan: Plan = field(default_factory=Plan)
    warned_s: int = 0  # when budgets were last checked
    without: frozenset[str] = frozenset()  # providers that could not be reached then


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    store: Store
    engines: Mapping[str, Engine]  # by site
    market: Auctions | None = None  # None: every pool is a queue pool, at its posted price
    providers: Mapping[str, Provider] = field(default_factory=dict)  # by name
    buying: Buying | None = None  # None: nothing is ever ordered
    forecasts: Forecasts = field(default_factory=Forecasts)
    sees_load: bool = False  # whether to record how busy each pool is, hourly
    # Raises if this server may not act (any more). Called before each act.
    may_act: Callable[[], object] = lambda: None
    # Engine reports that the log does not hold yet: a failed write must not lose them.
    unrecorded: dict[str, list[Observation]] = field(default_factory=dict)
    # Leases told to stop, since this server began or later.
    stopped: set[str] = field(default_factory=set)
    # Leases that their engine has not begun yet, and its reason.
    waiting: dict[str, Said] = field(default_factory=dict)
    # The list each engine last gave, and the log state it agreed with: the same list again means no news, and
    # comparing ten thousand nodes at every tick is most of a tick.
    agreed: dict[str, tuple[Sequence[Node], int]] = field(default_factory=dict)
    # The list of offers each provider last gave that agrees with the log.
    offered: dict[str, Sequence[Offer]] = field(default_factory=dict)
    # By provider: nodes with our tag that are not in the log, or are gone according to it.
    strays: dict[str, list[str]] = field(default_factory=dict)
    # While it stands, there is nothing to decide (loop.py).
    decided: Decided = field(default_factory=Decided)
