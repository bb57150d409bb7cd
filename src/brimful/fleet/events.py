"""What has happened. The log of these is the truth; every table and number is a fold of it.

An event says what became so, at which UTC second, in the fewest words that rebuild the state. It is never
changed once written: a new meaning is a new version, and the reader keeps understanding the old ones.

The two that every lease makes and that have many fields are not frozen: a rehearsal would take 5 % longer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal

from brimful.errors import Said, WorldFailed
from brimful.fleet.job import Job
from brimful.fleet.node import Node, Pool, Tier
from brimful.fleet.queues import Quota
from brimful.language import Plain, say
from brimful.language.record import as_record, said_in

# (node, its GPUs) for each node of a gang.
Parts = tuple[tuple[str, tuple[int, ...]], ...]


Cause = Literal["finished", "failed", "preempted_by_engine", "node_lost", "stopped_by_us"]
NOT_ITS_FAULT = frozenset({"preempted_by_engine", "node_lost"})  # ends that cost a job none of its tries


KINDS: dict[str, type[Event]] = {}  # by name, as records have it


class Event:
    """Anything that has happened."""

    __slots__ = ()
    version: ClassVar[int] = 1
    at_s: int

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined(Node, Event):
    """A node offers `gpus` GPUs, or its description changed."""

    version: ClassVar[int] = 5
    at_s: int

    @classmethod
    def of(cls, node: Node, *, at_s: int) -> NodeJoined:
        return cls(at_s=at_s, **{each.name: getattr(node, each.name) for each in fields(Node)})

    def described(self) -> Node:
        return Node(**{each.name: getattr(self, each.name) for each in fields(Node)})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft(Event):
    at_s: int
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained(Event):
    """Nothing more starts there and what runs goes on, until NodeResumed; it may leave and join meanwhile."""

    version: ClassVar[int] = 2
    at_s: int
    node: str
    reason: Said | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResumed(Event):
    at_s: int
    node: str


@dataclass(frozen=True, slots=True)
class JobSubmitted(Event):
    version: ClassVar[int] = 4
    at_s: int
    job: Job

    def tasks(self) -> list[Job]:
        return [self.job]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySubmitted(Event):
    """The same job many times over: a task for each index."""

    at_s: int
    job: Job  # `job.job` is the array's name
    indices: tuple[int, ...]
    at_most: int | None = None  # tasks that may ask for GPUs or hold them at once; None: all of them

    def tasks(self) -> list[Job]:
        """The key is the first one's: it names the submission."""
        return [
            replace(self.job, job=f"{self.job.job}_{i}", array=self.job.job, array_index=i, key=key)
            for key, i in zip((self.job.key, *[""] * len(self.indices)), self.indices, strict=False)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSkipped(Event):
    """It can never start: what it comes after did not end as it needs."""

    at_s: int
    job: str
    reason: Said | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    at_s: int
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld(Event):
    """It does not start until it is released. What stops a running one is a LeaseEnding beside this."""

    version: ClassVar[int] = 2
    at_s: int
    job: str
    reason: Said | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased(Event):
    at_s: int
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRequested(Event):
    """From its next lease on it runs at these sites only; none: anywhere. A LeaseEnding may stand beside."""

    at_s: int
    job: str
    sites: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class LeaseGranted(Event):
    """The intent to start: from here on these GPUs are taken, whether or not the process is up yet.

    `node` and `gpus` are the first node's; a gang that spans nodes names the others in `rest`.
    """

    version: ClassVar[int] = 4
    at_s: int
    lease: str
    job: str
    node: str
    gpus: tuple[int, ...]
    microusd_per_gpu_hour: int
    rest: Parts = ()
    in_turn: bool = False  # it goes before its class, because it has waited so long
    microusd_per_gib: int = 0  # for each GiB of checkpoints that it moves


@dataclass(frozen=True, slots=True)
class LeaseStarted(Event):
    """The engine saw it run. Billing begins here."""

    version: ClassVar[int] = 2
    at_s: int
    lease: str
    runs_on: Parts = ()  # the real nodes and GPUs, where the engine chose; empty: as granted
    resumes_s: int | None = None  # when its checkpoint was sealed; 0: it has none; None: nobody can tell


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEnding(Event):
    """The intent to stop. The GPUs stay taken until LeaseEnded."""

    version: ClassVar[int] = 2
    at_s: int
    lease: str
    reason: Said | None
    requeue: bool  # True: the job waits for another lease; False: this is its end


@dataclass(slots=True, kw_only=True)
class LeaseEnded(Event):
    """The engine saw that nothing of it runs any more. Billing ends here and the GPUs are free."""

    version: ClassVar[int] = 5
    at_s: int
    lease: str
    exit_code: int | None  # None: nobody knows
    reason: Said | None = None
    # Useful work of this lease that a later one need not do again. None: the engine cannot tell.
    kept_work_s: float | None = None
    requeue: bool = False  # True: it failed, and its job has tries left, or it was not its fault
    cause: Cause | None = None  # None: the exit code tells finished from failed
    exit_codes: tuple[int | None, ...] = ()  # by rank, where there are several
    moved_bytes: int = 0  # of checkpoints, to and from a store: on the bill


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseIdle(Event):
    """It holds its GPUs and has done no useful work since `since_s`."""

    at_s: int
    lease: str
    since_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseBusy(Event):
    """It does useful work: the first sign of it, or again after it was idle."""

    at_s: int
    lease: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLost(Event):
    """The site does not answer: what runs there is unknown. It is neither ended nor started elsewhere."""

    version: ClassVar[int] = 2
    at_s: int
    site: str
    reason: Said | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFound(Event):
    """The site answers again."""

    at_s: int
    site: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPriced(Event):
    """From here on an hour in this market pool is billed at so much, to all who hold GPUs of it alike."""

    at_s: int
    site: str
    gpu: str
    tier: Tier
    microusd_per_gpu_hour: int
    cleared_microusd_per_gpu_hour: int  # before it was smoothed
    held: int
    wanted: int
    gpus: int

    @property
    def pool(self) -> Pool:
        return Pool(self.site, self.gpu, self.tier)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeen(Event):
    """So many GPUs of a pool were held and waited for at this moment; once an hour."""

    at_s: int
    site: str
    gpu: str
    tier: Tier
    held: int
    wanted: int
    gpus: int

    @property
    def pool(self) -> Pool:
        return Pool(self.site, self.gpu, self.tier)


@dataclass(frozen=True, slots=True, kw_only=True)
class TariffSet(Event):
    """What each hour of this pool costs from here on, in thousandths of its posted price."""

    at_s: int
    site: str
    gpu: str
    tier: Tier
    permille: tuple[int, ...]  # the first is of the hour of `at_s`

    @property
    def pool(self) -> Pool:
        return Pool(self.site, self.gpu, self.tier)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeGiven(Event):
    """The lease will be told to end at `until_s`, unless the notice is withdrawn before."""

    version: ClassVar[int] = 2
    at_s: int
    lease: str
    until_s: int
    reason: Said | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeWithdrawn(Event):
    at_s: int
    lease: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BidChanged(Event):
    """Another limit for the same job; None: what its class stands for."""

    at_s: int
    job: str
    limit_microusd_per_gpu_hour: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangBlocked(Event):
    """A gang that would pay the price is kept out by its size alone, from here on or no longer."""

    at_s: int
    job: str
    blocked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSet(Event):
    """So much a tenant may still spend from here on, and not a micro-dollar more; None: without limit."""

    at_s: int
    tenant: str
    microusd: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditGranted(Event):
    """The operator gives a tenant something to spend."""

    at_s: int
    tenant: str
    microusd: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesSet(Event):
    """From here on these are the queues with quotas and limits, all of them."""

    at_s: int
    queues: tuple[Quota, ...]
    by: str = ""  # who set them


_NAMES = {kind: tuple(each.name for each in fields(kind)) for kind in (*KINDS.values(), Job)}
# What reading or folding a record may end in where anybody may have written it: a file, a backup, a database.
MALFORMED = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, StopIteration, TypeError, ValueError),
)


def to_record(event: Event) -> tuple[str, int, dict[str, Any]]:
    """(kind, version, body): what a store writes."""
    body = _plain(event)
    if "reason" in body:
        body["reason"] = as_record(body["reason"])
    if isinstance(event, QueuesSet):
        body["queues"] = [asdict(quota) for quota in event.queues]
    return type(event).__name__, event.version, body


def _plain(noun: Any) -> dict[str, Any]:  # noqa: ANN401 - an event or its job
    """What `asdict` gives, without its copies: those took two thirds of the time of an append."""
    values = {name: getattr(noun, name) for name in _NAMES[type(noun)]}
    return {name: _plain(value) if isinstance(value, Job) else value for name, value in values.items()}


def from_record(kind: str, version: int, body: dict[str, Any]) -> Event:
    """The event a record holds, or a clear refusal: guessing would corrupt every number after it."""
    if kind not in KINDS or version > KINDS[kind].version:
        raise WorldFailed(
            say("fleet.newer_event", kind=kind, version=Plain(version)),
            code="log_too_new",
        )
    filled = _frozen(body)  # what an older version did not write has its default
    if kind in {"JobSubmitted", "ArraySubmitted"}:
        filled["job"] = job_from_record(body["job"])
    elif kind == "QueuesSet":
        filled["queues"] = tuple(Quota(**_frozen(quota)) for quota in body["queues"])
    elif "reason" in body and kind != "CreditGranted":  # there it is the operator's own words
        filled["reason"] = said_in(body["reason"])
    return KINDS[kind](**filled)


def job_from_record(body: dict[str, Any]) -> Job:
    return Job(**_frozen(body))


def _frozen(body: dict[str, Any]) -> dict[str, Any]:
    """JSON knows only lists; nouns are hashable and so hold tuples."""

    def frozen(value: object) -> object:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return {name: frozen(value) for name, value in body.items()}
