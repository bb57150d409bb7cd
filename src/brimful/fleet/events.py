"""What has happened. The log of these events is the truth; every table and number is a fold of it.

An event says what changed, at which UTC second, in the fewest fields that rebuild the state. It is never
modified once written: a new meaning is a new version, and the reader keeps understanding the old ones.

The two events that every lease makes and that have many fields are not frozen: a rehearsal would take 5 %
longer.
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
NOT_ITS_FAULT = frozenset({"preempted_by_engine", "node_lost"})  # ends that do not use up a try


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
    """Nothing more starts there and running jobs go on, until NodeResumed, even if the node leaves and
    rejoins."""

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
    version: ClassVar[int] = 8
    at_s: int
    job: Job

    def tasks(self) -> list[Job]:
        return [self.job]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySubmitted(Event):
    """The same job many times: one task per index."""

    version: ClassVar[int] = 5
    at_s: int
    job: Job  # `job.job` is the array's name
    indices: tuple[int, ...]
    at_most: int | None = None  # tasks that may ask for or hold GPUs at once; None: all of them

    def tasks(self) -> list[Job]:
        """Only the first task carries the key, which names the submission."""
        return [
            replace(self.job, job=f"{self.job.job}_{i}", array=self.job.job, array_index=i, key=key)
            for key, i in zip((self.job.key, *[""] * len(self.indices)), self.indices, strict=False)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSkipped(Event):
    """It can never start: a job it depends on did not end as required."""

    at_s: int
    job: str
    reason: Said | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineAnswered(Event):
    """The answer given about a job's deadline at submit: a promise, and the pool of its slot."""

    version: ClassVar[int] = 2
    at_s: int
    job: str
    is_promised: bool = False
    done_by_s: int | None = None  # the promised time; if not promised, the earliest possible; None: never
    site: str = ""
    gpu: str = ""
    tier: Tier = "owned"
    # For a job without a bound on its run time: the work its slot has room for, and the chance that the
    # promise is kept (or that a promise for that time would be), by the lengths of similar jobs alone and
    # corrected by earlier promises.
    work_s: float | None = None
    by_lengths: float = 1.0
    chance: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    at_s: int
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld(Event):
    """It does not start until it is released. A running job is stopped by a LeaseEnding logged with this."""

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
    """From its next lease on it runs only at these sites; empty: anywhere. A LeaseEnding may follow."""

    at_s: int
    job: str
    sites: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class LeaseGranted(Event):
    """The intent to start: from here on these GPUs are taken, whether or not the process is up yet.

    `node` and `gpus` are the first node's; a gang that spans nodes lists the others in `rest`. Together they
    give the size of an elastic gang.
    """

    version: ClassVar[int] = 6
    at_s: int
    lease: str
    job: str
    node: str
    gpus: tuple[int, ...]
    microusd_per_gpu_hour: int
    rest: Parts = ()
    in_turn: bool = False  # it goes before its class because it has waited so long
    microusd_per_gib: int = 0  # for each GiB of checkpoints that it moves
    reservation: str = ""  # the tenant's reservation that has already paid for these GPUs
    gpu_milli: int = 0  # of a GPU that it may share with another job; 0: what its job asked for


@dataclass(frozen=True, slots=True)
class LeaseStarted(Event):
    """The engine saw it run. Billing begins here."""

    version: ClassVar[int] = 2
    at_s: int
    lease: str
    runs_on: Parts = ()  # the real nodes and GPUs, if the engine chose; empty: as granted
    resumes_s: int | None = None  # when its checkpoint was sealed; 0: it has none; None: unknown


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

    version: ClassVar[int] = 6  # since 6, `finished` also counts if a stop was under way
    at_s: int
    lease: str
    exit_code: int | None  # None: unknown
    reason: Said | None = None
    # Useful work of this lease that a later one can skip. None: the engine cannot tell.
    kept_work_s: float | None = None
    requeue: bool = False  # True: it failed with tries left, or the failure was not its fault
    cause: Cause | None = None  # None: the exit code separates finished from failed
    exit_codes: tuple[int | None, ...] = ()  # by rank, if there are several
    moved_bytes: int = 0  # checkpoint bytes to and from a store: billed


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseIdle(Event):
    """It holds its GPUs but has done no useful work since `since_s`."""

    at_s: int
    lease: str
    since_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseBusy(Event):
    """It does useful work: for the first time, or again after being idle."""

    at_s: int
    lease: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLost(Event):
    """The site does not answer: what runs there is unknown. Jobs are not ended or started elsewhere."""

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
    """From here on an hour in this market pool is billed at this price, the same for all holders."""

    version: ClassVar[int] = 2
    at_s: int
    site: str
    gpu: str
    tier: Tier
    microusd_per_gpu_hour: int
    cleared_microusd_per_gpu_hour: int  # before smoothing
    held: int
    wanted: int
    gpus: int
    owed: int = 0  # micro-dollars per hour x GPU-seconds that were cleared and not billed yet


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeen(OfPool, Event):
    """How many GPUs of a pool were held and waited for at this moment; once an hour."""

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
    permille: tuple[int, ...]  # the first is for the hour of `at_s`


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeGiven(Event):
    """The lease will be told to end at `until_s`, unless the notice is withdrawn first."""

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
    """A new limit for the same job; None: the default of its class."""

    at_s: int
    job: str
    limit_microusd_per_gpu_hour: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TermsChanged(Event):
    """A new class and deadline for the same job, which keeps its age; None: no deadline."""

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
    """The amount that may be spent: from here on if `fixed`, else in each period; None: no limit.

    The writer computes when the period began and ends, so that no later change of a time zone can change what
    a log says.
    """

    version: ClassVar[int] = 2
    at_s: int
    tenant: str  # the owner: a tenant, `TENANT/PROJECT`, or any other name for a parent budget
    microusd: int | None
    within: str = ""  # the parent budget
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
    """This percentage of a budget is used; once per period."""

    at_s: int
    budget: str
    percent: int
    used_microusd: int
    allowed_microusd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditGranted(Event):
    """The operator gives a tenant credit to spend."""

    at_s: int
    tenant: str
    microusd: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesSet(Event):
    """From here on these are all the queues with quotas and limits."""

    version: ClassVar[int] = 2  # since 2 a queue may have a parent
    at_s: int
    queues: tuple[Quota, ...]
    by: str = ""  # who set them


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferSeen(OfPool, Event):
    """A provider's terms for nodes of `gpus` GPUs of this pool from here on; `is_there`: available."""

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
    least_s: int = 0  # minimum billed time
    quantum_s: int = 1  # billed in multiples of this


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrdered(OfPool, Event):
    """The intent to have a provider make this node for this job."""

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
    """The provider has made it. The provider's billing begins here."""

    at_s: int
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReturned(Event):
    """The intent to return it."""

    at_s: int
    node: str
    reason: Said | None = None


NodeEnd = Literal["returned", "refused", "evicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGone(Event):
    """The provider no longer has this node, or never made it (refused). Its billing ends here."""

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
# The errors that reading or folding a record may raise if anyone could have written it: a file, a backup, a
# database.
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
    """Like `asdict`, without its copies: those took two thirds of the time of an append."""
    values = {name: getattr(noun, name) for name in _NAMES[type(noun)]}
    return {name: _plain(value) if isinstance(value, Job) else value for name, value in values.items()}


def from_record(kind: str, version: int, body: dict[str, Any]) -> Event:
    """The event in a record, or a clear refusal: guessing would corrupt every number after it."""
    if kind not in KINDS or version > KINDS[kind].version:
        raise WorldFailed(
            say("fleet.newer_event", kind=kind, version=Plain(version)),
            code="log_too_new",
        )
    filled = _frozen(body)  # fields that an older version did not write get their default
    if kind == "LeaseEnded" and version < 6 and filled.get("cause") == "finished":
        filled["cause"] = None  # the rest of that log treated it as an ordered stop
    if kind in {"JobSubmitted", "ArraySubmitted"}:
        filled["job"] = job_from_record(body["job"])
    elif kind == "PolicyRehearsed":
        filled["results"] = tuple(Rehearsed(*_tuples(row)) for row in body["results"])
    elif kind == "QueuesSet":
        filled["queues"] = tuple(Quota(**_frozen(quota)) for quota in body["queues"])
    elif "reason" in body and kind != "CreditGranted":  # there it is the operator's own text
        filled["reason"] = said_in(body["reason"])
    return KINDS[kind](**filled)


def job_from_record(body: dict[str, Any]) -> Job:
    return Job(**_frozen(body))


def _frozen(body: dict[str, Any]) -> dict[str, Any]:
    """JSON has only lists; our dataclasses are hashable and hold tuples."""
    return {name: _tuples(value) for name, value in body.items()}


def _tuples(value: Any) -> Any:  # noqa: ANN401 - JSON
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
