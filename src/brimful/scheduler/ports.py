"""What `tick` needs of the world. The server brings real ones, the simulator its own; `tick` cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

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
        """Events after the first `seq`, in order: all of them or the first many, and none only at the end."""

    def append(self, events: Sequence[Event], *, after: int) -> bool:
        """Write all of them right after the first `after` events, or none and say False.

        False means that somebody else wrote meanwhile: read, think again, try again. This is what keeps
        two writers from acting on the same state.
        """


@dataclass(slots=True)  # not frozen: a rehearsal makes two for every lease
class Observation:
    """What an engine sees of one lease. Moments are by the engine's clock; `skew_s` is how far that is ahead.

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
    kept_work_s: float | None = None  # useful work that a later lease need not do again, if it can tell
    cause: Cause | None = None  # None: the exit code tells finished from failed
    exit_codes: tuple[int | None, ...] = ()  # by rank; empty: one rank, or nobody knows
    runs_on: Parts = ()  # the real nodes and GPUs; empty: as ordered
    resumes_s: int | None = (
        None  # when the checkpoint it began from was sealed; 0: none; None: it cannot tell
    )
    skew_s: float = 0.0
    moved_bytes: int = 0  # of its checkpoints, sent to and fetched from a store


class CannotStart(Refused):
    """An engine vouches that nothing of this lease runs: its GPUs are free."""


class Start(NamedTuple):
    """An order to begin a lease: one rank on each of `parts`, in this order."""

    lease: str
    job: Job
    parts: Parts  # (node, GPUs); where a node's GPUs are chosen by count, only how many of them counts
    checkpoints_from: str = ""  # what another site has kept (`Carries`): go on from that, if it is newer
    kept_until_s: int = 0  # when its newest checkpoint was sealed: an older one is lost progress, and said so
    may_share: bool = False  # whether another job may come to run on its GPU


Failures = Mapping[str, BrimfulError]  # by lease: what went wrong with it; the others were carried out


class Engine(Protocol):
    """Whatever runs processes at one site. Every act may be asked for again, and changes nothing then.

    An error that is raised is the site's, and leaves open what became of the whole batch.
    """

    @property
    def site(self) -> str: ...

    def nodes(self) -> Sequence[Node]:
        """What the site has to offer now. The very same list again means that nothing has changed."""

    def start(self, starts: Sequence[Start]) -> Failures:
        """Begin each, once: a lease that was begun before, or told to stop, is left as it is.

        CannotStart only where it is certain that nothing runs and nothing will. Any other failure leaves that
        open, and it is asked again.
        """

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        """Ask each to end, kill it after the grace period. One that has not begun never will."""

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        """News of these leases. One that has not changed since it was last told may be left out."""


@runtime_checkable
class Carries(Protocol):
    """An engine whose jobs keep checkpoints where another engine can fetch them."""

    def checkpoints(self, job: str) -> str:
        """Where this site keeps the job's checkpoints: what `Start.checkpoints_from` says elsewhere."""


@runtime_checkable
class Warns(Protocol):
    """An engine that can tell a running job beforehand that it will have to leave."""

    def warn(self, lease: str, *, until_s: int | None) -> None:
        """Until when it may stay; None: it may stay after all. Asked again at every look."""


@dataclass(slots=True)
class Decided:
    """The last decision: after how many events, when, and what it was."""

    seq: int = -1
    at_s: int = 0
    plan: Plan = field(default_factory=Plan)
    warned_s: int = 0  # when budgets were last looked at
    without: frozenset[str] = frozenset()  # the providers that could not be reached then


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    store: Store
    engines: Mapping[str, Engine]  # by site
    market: Auctions | None = None  # None: every pool is a queue pool, at its posted price
    providers: Mapping[str, Provider] = field(default_factory=dict)  # by name: whoever makes nodes
    buying: Buying | None = None  # None: nothing is ever ordered
    forecasts: Forecasts = field(default_factory=Forecasts)
    sees_load: bool = False  # whether to write down, once an hour, how busy each pool is
    # Raises where this server may not act (any more). Asked before each act.
    may_act: Callable[[], object] = lambda: None
    # What engines told and the log does not hold yet: a write that failed must not lose it.
    unrecorded: dict[str, list[Observation]] = field(default_factory=dict)
    # Leases that were told to stop, since this server began or later.
    stopped: set[str] = field(default_factory=set)
    # Leases that their engine has not begun yet, and its reason.
    waiting: dict[str, Said] = field(default_factory=dict)
    # The list each engine last gave and the state of the log it was found to agree with: an engine that
    # gives it again has no news, and comparing ten thousand nodes at every tick is most of a tick.
    agreed: dict[str, tuple[Sequence[Node], int]] = field(default_factory=dict)
    # The list of offers that each provider last gave and the log agrees with.
    offered: dict[str, Sequence[Offer]] = field(default_factory=dict)
    # By provider: nodes with our tag that the log does not know, or knows to be gone.
    strays: dict[str, list[str]] = field(default_factory=dict)
    # As long as it stands, there is nothing to decide anew (loop.py).
    decided: Decided = field(default_factory=Decided)
