"""What has happened. The log of these is the truth; every table and number is a fold of it.

An event says what became so, at which UTC second, in the fewest words that rebuild the state. It is never
changed once written: a new meaning is a new version, and the reader keeps understanding the old ones.

The two that every lease makes and that have many fields are not frozen: a rehearsal would take 5 % longer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal

from brimful.errors import Said, WorldFailed
from brimful.fleet import adoption
from brimful.fleet import event as base
from brimful.fleet.job import Job
from brimful.fleet.node import Node, OfPool, Tier
from brimful.fleet.queues import Quota
from brimful.fleet.reservations import happened
from brimful.language import Plain, say
from brimful.language.record import as_record, said_in

# (node, its GPUs) for each node of a gang.
Parts = tuple[tuple[str, tuple[int, ...]], ...]


Period = Literal["fixed", "monthly", "quarterly"]
Cause = Literal["finished", "failed", "preempted_by_engine", "node_lost", "stopped_by_us"]
NOT_ITS_FAULT = frozenset({"preempted_by_engine", "node_lost"})  # ends that cost a job none of its tries


KINDS = base.KINDS
Event = base.Event


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
    version: ClassVar[int] = 7
    at_s: int
    job: Job

    def tasks(self) -> list[Job]:
        return [self.job]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySubmitted(Event):
    """The same job many times over: a task for each index."""

    version: ClassVar[int] = 4
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
class DeadlineAnswered(Event):
    """What was said of a job's deadline at submit: a promise, and in which pool it is kept at the latest."""

    version: ClassVar[int] = 2
    at_s: int
    job: str
    is_promised: bool = False
    done_by_s: int | None = None  # by when it is promised; if not, the earliest that could be; None: never
    site: str = ""
    gpu: str = ""
    tier: Tier = "owned"
    # Where nobody bounds its run: the work its slot has room for, and the chance that the promise is kept (or
    # one from then on would be), by the lengths of jobs like it alone and by what came of earlier promises.
    work_s: float | None = None
    by_lengths: float = 1.0
    chance: float = 1.0


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

    `node` and `gpus` are the first node's; a gang that spans nodes names the others in `rest`. Together
    they are the size of an elastic gang."""

    version: ClassVar[int] = 6
    at_s: int
    lease: str
    job: str
    node: str
    gpus: tuple[int, ...]
    microusd_per_gpu_hour: int
    rest: Parts = ()
    in_turn: bool = False  # it goes before its class, because it has waited so long
    microusd_per_gib: int = 0  # for each GiB of checkpoints that it moves
    reservation: str = ""  # of its tenant, that has paid for these GPUs already
    gpu_milli: int = 0  # of a GPU that it may share with another job; 0: what its job asked for


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

    version: ClassVar[int] = 6  # from 6 on `finished` counts also where a stop was on its way
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
class PoolPriced(OfPool, Event):
    """From here on an hour in this market pool is billed at so much, to all who hold GPUs of it alike."""

    version: ClassVar[int] = 2
    at_s: int
    site: str
    gpu: str
    tier: Tier
    microusd_per_gpu_hour: int
    cleared_microusd_per_gpu_hour: int  # before it was smoothed
    held: int
    wanted: int
    gpus: int
    owed: int = 0  # micro-dollars per hour x GPU-seconds that were cleared and not billed yet


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeen(OfPool, Event):
    """So many GPUs of a pool were held and waited for at this moment; once an hour."""

    at_s: int
    site: str
    gpu: str
    tier: Tier
    held: int
    wanted: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TariffSet(OfPool, Event):
    """What each hour of this pool costs from here on, in thousandths of its posted price."""

    at_s: int
    site: str
    gpu: str
    tier: Tier
    permille: tuple[int, ...]  # the first is of the hour of `at_s`


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
class TermsChanged(Event):
    """Another class and deadline for the same job, which keeps its age; None: no deadline."""

    at_s: int
    job: str
    priority: str
    deadline_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangBlocked(Event):
    """A gang that would pay the price is kept out by its size alone, from here on or no longer."""

    at_s: int
    job: str
    blocked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSet(Event):
    """So much may be spent: from here on if `fixed`, else in each period; None: without limit.

    Who set it has worked out when the period began and when it ends, so that no later change of a time zone
    can change what a log says.
    """

    version: ClassVar[int] = 2
    at_s: int
    tenant: str  # whose it is: a tenant, `TENANT/PROJECT`, or any other name for what others are within
    microusd: int | None
    within: str = ""  # the budget that it is part of
    period: Period = "fixed"
    zone: str = "UTC"
    hard: bool = True  # False: it only warns
    since_s: int = 0
    until_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetsRenewed(Event):
    """A new period of these budgets began at `since_s`."""

    at_s: int
    since_s: int
    budgets: tuple[tuple[str, int], ...]  # (name, when the new period ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWarned(Event):
    """So much of a budget is used; once in a period."""

    at_s: int
    budget: str
    percent: int
    used_microusd: int
    allowed_microusd: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferSeen(OfPool, Event):
    """A provider sells nodes of `gpus` GPUs of this pool from here on like this; `is_there`: could be had."""

    at_s: int
    site: str
    gpu: str
    tier: Tier
    gpus: int
    microusd_per_gpu_hour: int
    is_there: bool
    provider: str
    region: str = ""
    instance: str = ""
    lead_s: int = 0
    least_s: int = 0  # billed at least so long
    quantum_s: int = 1  # and in whole ones of these


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrdered(OfPool, Event):
    """The intent to have a provider make this node, for this job."""

    at_s: int
    node: str
    site: str
    gpu: str
    tier: Tier
    gpus: int
    microusd_per_gpu_hour: int
    job: str
    reason: Said | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReady(Event):
    """The provider has made it. The provider's bill begins here."""

    at_s: int
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReturned(Event):
    """The intent to give it back."""

    at_s: int
    node: str
    reason: Said | None = None


NodeEnd = Literal["returned", "refused", "evicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGone(Event):
    """The provider has no such node any more, or never made it (refused). Its bill ends here."""

    at_s: int
    node: str
    cause: NodeEnd
    reason: Said | None = None


ReservationBought = happened.ReservationBought
ReservationExtended = happened.ReservationExtended
ReservationChanged = happened.ReservationChanged
ReservationShort = happened.ReservationShort
ReservationEnded = happened.ReservationEnded
CreditsExpired = happened.CreditsExpired
ReservedLent = happened.ReservedLent
PolicyAdopted = adoption.PolicyAdopted
PolicyRehearsed = adoption.PolicyRehearsed
Rehearsed = adoption.Rehearsed
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
    if kind == "LeaseEnded" and version < 6 and filled.get("cause") == "finished":
        filled["cause"] = None  # what followed in that log took an ordered stop for one
    if kind in {"JobSubmitted", "ArraySubmitted"}:
        filled["job"] = job_from_record(body["job"])
    elif kind == "PolicyRehearsed":
        filled["results"] = tuple(Rehearsed(*_tuples(row)) for row in body["results"])
    elif kind == "QueuesSet":
        filled["queues"] = tuple(Quota(**_frozen(quota)) for quota in body["queues"])
    elif "reason" in body and kind != "CreditGranted":  # there it is the operator's own words
        filled["reason"] = said_in(body["reason"])
    return KINDS[kind](**filled)


def job_from_record(body: dict[str, Any]) -> Job:
    return Job(**_frozen(body))


def _frozen(body: dict[str, Any]) -> dict[str, Any]:
    """JSON knows only lists; nouns are hashable and so hold tuples."""
    return {name: _tuples(value) for name, value in body.items()}


def _tuples(value: Any) -> Any:  # noqa: ANN401 - JSON
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
