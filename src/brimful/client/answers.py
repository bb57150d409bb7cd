"""What the API answers: the shapes of `data`, shared by the server that makes them and whoever reads them.

The text beside a type is its description in the OpenAPI schema, which the server makes of these.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict, TypeVar, cast

from brimful.fleet.lease import JobPhase, LeasePhase
from brimful.fleet.node import Tier

T = TypeVar("T")
Usd = Annotated[int, "micro-dollars"]
Utc = Annotated[int, "UTC seconds"]
Code = Annotated[dict[str, Any], "code and numbers of the text before it, for programs"]

# Of a job; `unknown` while its site does not answer.
Phase = Literal[JobPhase, "unknown"]

_fields: dict[tuple[type, ...], list[tuple[str, int]]] = {}  # which of the nouns has each field


def alike(answer: type[T], *nouns: object) -> T:
    """The fields of an answer that these nouns have under the same names; its view says the others."""
    key = (answer, *map(type, nouns))
    if key not in _fields:
        names = answer.__annotations__
        found = {name: i for name in names for i, noun in enumerate(nouns) if hasattr(noun, name)}
        _fields[key] = list(found.items())
    return cast("T", {name: getattr(nouns[i], name) for name, i in _fields[key]})


class LeaseAnswer(TypedDict):
    lease: str
    site: str
    node: str
    gpu: str
    gpus: list[int]
    rest: Annotated[list[Any], "[node, GPUs] of the gang's other nodes"]
    phase: LeasePhase
    granted_s: Utc
    started_s: Utc | None
    ended_s: Utc | None
    billed_s: int
    microusd_per_gpu_hour: Usd
    cost_microusd: Usd
    notice_s: Annotated[int | None, "when a market will have it leave, UTC seconds"]
    exit_code: int | None
    exit_codes: Annotated[list[int | None], "by rank, of a gang of several processes"]
    reason: str
    reason_code: Code | None


class MeasuredAnswer(TypedDict):
    """What the job's own Meter says of its newest step; null where it does not."""

    lease: str
    at_s: Utc
    age_s: int
    fresh: Annotated[bool, "whether it tells of now: the lease runs and steps go on"]
    over: Annotated[bool, "the Meter was closed: this was its last step"]
    idle: Annotated[str | None, "where no step has ended for ten minutes: in words"]
    step: int | None
    step_s: float | None
    tokens_per_s: Annotated[float | None, "of process `rank` alone, as all below"]
    mfu: Annotated[float | None, "of `peak_flops_per_s`, 0 to 1"]
    hfu: float | None
    peak_flops_per_s: float | None
    peak_format: str | None
    peak_source: Annotated[str, "catalog, declared, or why there is none"]
    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    model: str
    device: str
    gpu: str | None
    rank: int
    world: Annotated[int, "processes that train together"]


class ArrayAnswer(TypedDict):
    """All tasks of an array together."""

    tasks: int
    at_most: Annotated[int | None, "tasks that may wait for GPUs or hold them at once"]
    phases: Annotated[dict[str, int], "phase -> tasks"]
    run_s: int
    cost_microusd: Usd


class PromiseAnswer(TypedDict):
    is_promised: bool
    done_by_s: Annotated[
        int | None, "by when; if it is not promised, the earliest that could be; null: never"
    ]
    chance: Annotated[float | None, "that it is kept, 0 to 1; null: the run time has a bound"]
    said: str


class JobAnswer(TypedDict):
    job: str
    name: str
    tenant: str
    user: Annotated[str, "who submitted it; empty: from before there were users"]
    project: str
    queue: str
    submitter: str
    priority: str
    gpus: Annotated[int, "of an elastic gang what it holds, or its fewest while it waits"]
    min_gpus: Annotated[int, "of an elastic gang; 0: it has one size"]
    max_gpus: int
    gpu_types: list[str]
    sites: list[str]
    tiers: list[str]
    within: str
    after: Annotated[list[tuple[str, str]], "[job or array, ok or any]: it starts once these are over"]
    array: Annotated[str, "the array that it is a task of; empty: none"]
    array_index: int
    array_tasks: Annotated[ArrayAnswer | None, "of its array; null in a list of tasks"]
    command: list[str]
    folder: str
    code: Annotated[str, "SHA-256 of the packed folder that it runs in; empty: in `folder` itself"]
    phase: Phase
    why: str
    why_code: Code | None
    submitted_s: Utc
    ready_s: Annotated[int, "when it began to wait for GPUs: later than submit where other jobs came first"]
    now_s: Utc
    started_s: Utc | None
    ended_s: Utc | None
    delay_s: Annotated[int, "finish - submit - work; by now if it is not over"]
    exit_code: int | None
    node: str | None
    site: str | None
    preemptions: int
    failures: int
    retries: int
    max_run_s: int | None
    deadline_s: Utc | None
    promise: Annotated[PromiseAnswer | None, "what was said of its deadline; null: nothing, or it is over"]
    limit_microusd_per_gpu_hour: Usd | None
    budget_microusd: Usd | None
    posted_microusd: Usd
    cost_microusd: Usd
    predicted: Annotated[dict[str, dict[str, float | None]], "by GPU type: peak_bytes, step_s, rate"]
    measured: MeasuredAnswer | None
    not_measured: Annotated[str, "why `measured` is null, once the job has had a lease"]
    leases: list[LeaseAnswer]


class CodeAnswer(TypedDict):
    code: Annotated[str, "SHA-256 of the archive"]
    size: Annotated[int, "bytes"]


class JobsAnswer(TypedDict):
    jobs: list[JobAnswer]
    next_cursor: str | None


class PoolAnswer(TypedDict):
    site: str
    gpu: str
    tier: Tier
    free: int
    gpus: int
    microusd_per_gpu_hour: Usd
    rate: Annotated[float, "useful work per second, relative to the job's reference GPU"]
    microusd_per_work_hour: Usd | None
    verdict: str


class WhyAnswer(TypedDict):
    promise: Annotated[PromiseAnswer | None, "what was said of its deadline; null: nothing, or it is over"]
    job: str
    phase: Phase
    waiting: str | None
    waiting_code: Code | None
    ahead: Annotated[int | None, "jobs that the order puts before it"]
    policy: Annotated[str, "which policy decides, since when, and on what evidence"]
    here: str | None
    price: str | None
    pools: list[PoolAnswer]


class LogAnswer(TypedDict):
    lease: str | None
    text: str
    next_offset: int
    size: int
    over: bool
    phase: Phase


class GpuAnswer(TypedDict):
    index: int
    held: bool
    job: Annotated[str | None, "null where it is free, or held by somebody you do not see"]
    bad: Annotated[bool, "it does not answer its driver: nothing starts on it"]
    memory_used_bytes: int | None
    busy_frac: float | None
    mfu: float | None


class NodeAnswer(TypedDict):
    node: str
    site: str
    gpu: str
    rack: str
    declared: bool
    drained: str | None
    microusd_per_gpu_hour: Usd
    gpus: list[GpuAnswer]


class SiteAnswer(TypedDict):
    site: str
    engine: Annotated[str, "the kind of engine behind it; empty: none is known"]
    nodes: int
    drained: int
    gpus: int
    held: int
    silent_s: Annotated[int | None, "for how long it has not answered; null: it answers"]
    problem: str
    latency_s: Annotated[dict[str, float], "how long its last steps took; empty: nobody has timed them"]


class FleetHead(TypedDict):
    gpus: int
    free: int
    allocation_rate: float | None
    policy: Annotated[str, "who goes first, and where: NAME[?option=value&…]"]
    market: Annotated[list[str], "pools where bids decide instead: `all`, or sites, GPU types, tiers"]
    problems: dict[str, str]
    trouble: str
    sites: list[SiteAnswer]


class FleetAnswer(FleetHead):
    nodes: list[NodeAnswer]


Looks = Literal["silent", "trouble", "budget", "idle", "failed", "drained", "bad"]


class AttentionAnswer(TypedDict):
    kind: Looks
    said: str
    said_code: Code
    path: Annotated[str, "of the console's page that shows it"]


class AttentionsAnswer(TypedDict):
    attention: list[AttentionAnswer]


class DrainAnswer(TypedDict):
    node: str
    drained: str | None
    running: list[str]


class QueueSettings(TypedDict):
    gpus: Annotated[int, "its own, which it lends while it does not use them"]
    borrow_gpus: Annotated[int | None, "at most this many of others' idle GPUs; null: all"]
    lend: bool
    weight: Annotated[float, "of its use, under the policy `fair`"]
    user_gpus: Annotated[int | None, "the most one user may hold"]
    type_gpus: Annotated[dict[str, int], "the most it may hold of a GPU type"]
    top_priority: Annotated[str, "the highest class its jobs may have"]
    tenants: Annotated[list[str], "who may use it; empty: the tenant of its name"]


class QueueAnswer(TypedDict):
    queue: str
    running: int
    held_gpus: int
    waiting: int
    waiting_gpus: int
    on_hold: int
    oldest_wait_s: int | None
    recent_gpu_s: float
    quota_gpus: int | None
    set: Annotated[QueueSettings | None, "what the operator has set; null: nothing"]


class QueuesAnswer(TypedDict):
    queues: list[QueueAnswer]


class EventAnswer(TypedDict):
    seq: int
    at_s: Utc
    kind: str
    body: dict[str, Any]


class EventsAnswer(TypedDict):
    events: list[EventAnswer]
    next_after: int


class TransferAnswer(TypedDict):
    at_s: Utc
    kind: str
    source: str
    target: str
    microusd: Usd
    job: str
    lease: str


class SpendSums(TypedDict):
    posted_microusd: Usd
    accruing_microusd: Usd
    microusd_per_hour: Annotated[int, "what running leases cost an hour, micro-dollars"]
    held_microusd: Usd
    by_tenant: dict[str, int]


class SpendAnswer(SpendSums):
    balances: dict[str, int]
    sum_microusd: Annotated[Usd | None, "of all accounts: zero, always; null for who sees some"]
    transfers: list[TransferAnswer]


class DepthAnswer(TypedDict):
    limit_microusd_per_gpu_hour: Usd
    held: Annotated[int, "GPUs in the hands of bids with this limit"]
    wanted: Annotated[int, "GPUs that waiting bids with this limit ask for"]


class PricePointAnswer(TypedDict):
    at_s: Utc
    microusd_per_gpu_hour: Annotated[int, "billed from here on"]
    cleared_microusd_per_gpu_hour: Usd
    held: int
    wanted: int
    gpus: int


class QuoteAnswer(TypedDict):
    at_s: Annotated[int, "the UTC second at which the hour begins"]
    microusd_per_gpu_hour: Usd


class PoolPriceAnswer(TypedDict):
    site: str
    gpu: str
    tier: Tier
    market: Annotated[bool, "whether bids decide; otherwise the price is posted"]
    microusd_per_gpu_hour: Usd
    cleared_microusd_per_gpu_hour: Annotated[int, "before it was smoothed"]
    floor_microusd_per_gpu_hour: Usd
    gpus: int
    free: int
    depth: list[DepthAnswer]
    history: list[PricePointAnswer]
    ahead: Annotated[list[QuoteAnswer], "what each hour from this one on costs; empty without a tariff"]


class PricesAnswer(TypedDict):
    now_s: Utc
    pools: list[PoolPriceAnswer]


class LoadHourAnswer(TypedDict):
    at_s: Annotated[int, "the UTC second at which the hour begins"]
    low: Annotated[float, "GPUs held or waited for: one in ten hours is below"]
    likely: Annotated[float, "half are below"]
    high: Annotated[float, "one in ten is above"]


class LoadScoreAnswer(TypedDict):
    hours: Annotated[int, "forecast a day ahead and seen since"]
    coverage: Annotated[float, "share inside low to high; 0.8 is right"]
    skill: Annotated[float | None, "how much lower the pinball loss is than that of yesterday's same hour"]
    skill_over_persistence: Annotated[float | None, "than that of the load when the forecast was made"]


class LoadSeenAnswer(TypedDict):
    at_s: Annotated[int, "the UTC second at which the hour begins"]
    held: Annotated[int, "GPUs held when it was looked at"]
    load: Annotated[float, "GPUs held or waited for"]


class PoolForecastAnswer(TypedDict):
    site: str
    gpu: str
    tier: Tier
    gpus: int
    known_hours: Annotated[int, "hours of record"]
    past: Annotated[list[LoadSeenAnswer], "the last week, hour by hour"]
    ahead: Annotated[list[LoadHourAnswer], "empty while the record is too short"]
    score: LoadScoreAnswer | None


class SpotForecastAnswer(TypedDict):
    site: str
    gpu: str
    tier: Tier
    there: Annotated[bool, "whether spot is there now"]
    age_s: Annotated[int, "for how long it has been so"]
    spells: Annotated[int, "times it came"]
    expected_hours: Annotated[float, "that spot of this age, or just come, lasts"]
    stays: Annotated[dict[str, float], "the chance to last 1, 6 and 24 hours more"]


class ForecastAnswer(TypedDict):
    now_s: Utc
    pools: list[PoolForecastAnswer]
    spot: list[SpotForecastAnswer]


class BudgetTermsAnswer(TypedDict):
    within: Annotated[str, "the budget that it is part of; empty: none"]
    period: Literal["fixed", "monthly", "quarterly"]
    zone: str
    hard: Annotated[bool, "false: it only warns"]
    limit_microusd: Annotated[int, "micro-dollars of each period"]
    allowed_microusd: Annotated[int, "in this period, with credits; less where its parent had no more"]
    used_microusd: Annotated[int, "in this period, by all under it, running leases counted until now"]
    since_s: Utc
    until_s: Annotated[int | None, "UTC second at which it renews; null: never"]
    expected_microusd: Annotated[int | None, "by the end of the period, at its pace so far; null: no end"]
    runs_out_s: Annotated[
        int | None, "UTC second at which it is used up, at that pace; null: not before the end"
    ]


class BudgetAnswer(TypedDict):
    tenant: Annotated[str, "a tenant, TENANT/PROJECT, or the name of an organisation"]
    left_microusd: Annotated[int | None, "micro-dollars; null: no budget is set"]
    accruing_microusd: Annotated[int, "what running leases have come to"]
    held_microusd: Annotated[int, "set aside for jobs with budgets of their own"]
    spent_microusd: Usd
    budget: Annotated[BudgetTermsAnswer | None, "null: none is set"]


class BudgetsAnswer(TypedDict):
    budgets: list[BudgetAnswer]


class BillAnswer(TypedDict):
    of: str
    leases: int
    gpu_s: int
    microusd: Usd
    failed_microusd: Annotated[int, "for runs that ended with an error of their own"]
    lost_microusd: Annotated[int, "for work that was done again"]
    idle_microusd: Annotated[int | None, "while GPUs were held idle; null: not measured"]
    moved_bytes: Annotated[int, "of checkpoints, to and from a store"]
    egress_microusd: Annotated[int, "for moving them"]


class InvoiceAnswer(TypedDict):
    by: str
    bills: list[BillAnswer]
    total_microusd: Usd


class WhoAnswer(TypedDict):
    token: str
    name: Annotated[str, "the user"]
    tenant: Annotated[str, "its team, of several the first; `*`: all"]
    role: Annotated[str, "the highest that it has"]
    roles: Annotated[dict[str, str], "by team; `*`: the organisation"]


class UserAnswer(TypedDict):
    user: str
    signs_in: Annotated[bool, "by OpenID Connect, and not by tokens alone"]
    created_s: Utc
    roles: Annotated[dict[str, str], "by team, of the teams you are an admin of"]


class UsersAnswer(TypedDict):
    users: list[UserAnswer]


class TokenAnswer(TypedDict):
    token: str
    name: Annotated[str, "its user"]
    tenant: str
    role: str
    created_s: Utc
    expires_s: Utc | None
    revoked_s: Utc | None


class TokensAnswer(TypedDict):
    tokens: list[TokenAnswer]


class NewTokenAnswer(TypedDict):
    token: TokenAnswer
    secret: Annotated[str, "the whole token; it is shown this once"]


class DeedAnswer(TypedDict):
    seq: int
    at_s: Utc
    token: str
    name: str
    tenant: str
    verb: str
    target: str
    outcome: str


class AuditAnswer(TypedDict):
    deeds: list[DeedAnswer]
    next_cursor: str | None


class LeafAnswer(TypedDict):
    path: Annotated[str, "such as unallocated.own_queue.fits; a path that ends before a leaf is a sum"]
    gpu_s: int
    gpu_h: float
    share: float
    microusd: Annotated[int | None, "null: some of it has no price"]


# `from` is a word of Python.
_Window = TypedDict("_Window", {"from": str, "to": str})


class UsageAuditAnswer(_Window):
    """Where paid GPU time went; `brimful audit --json` has the same."""

    paid_gpu_h: float
    paid_usd: Annotated[float | None, "null where some of it has no price"]
    priced_gpu_h: Annotated[float, "of what was paid, the part with a price"]
    priced_usd: Annotated[float | None, "what that part cost; null where nothing has a price"]
    money_is: Annotated[str | None, "paid, list, or null where there is no price"]
    headline: Annotated[dict[str, dict[str, float | None]], "kept, wasted and unknown: gpu_h, share, usd"]
    leaves: list[LeafAnswer]
    hour_of_week: dict[str, object]
    teams: list[dict[str, object]]
    jobs: list[dict[str, object]]
    users: list[dict[str, object]]
    coverage: dict[str, object]


class FitCardAnswer(TypedDict):
    gpu: str
    title: str
    batch_size: Annotated[int, "as configured: sequences of one micro-step"]
    estimate: Annotated[dict[str, Any], "the JSON of `brimful fit`"]
    ladder: Annotated[list[dict[str, Any]], "from what surely fits up; empty where it fits as it is"]
    sweep: Annotated[dict[str, Any], "memory and MFU over batch sizes, as `brimful sweep --json`"]


class FitAnswer(TypedDict):
    language: str
    model: str | None
    config: Annotated[str | None, "what the pasted config was read as: py, json, yaml or toml"]
    cards: list[FitCardAnswer]
    explanation: Annotated[dict[str, Any] | None, "of a message or log, as `brimful explain --json`"]
    claims: Annotated[dict[str, Any] | None, "of advice, as `brimful claims --json`"]


class ProofAnswer(TypedDict):
    proof: Annotated[str, "HMAC-SHA256 of `proof NONCE`, keyed with the SHA-256 of the token's secret"]


class NotificationAnswer(TypedDict):
    notification: str
    target: str
    on: list[str]
    team: Annotated[bool, "all jobs of the tenant, not only one's own"]
    tenant: str
    created_s: Utc
    waiting: Annotated[int, "notes still to be sent"]
    dead: Annotated[int, "notes that nobody took after seven tries"]


class NotificationsAnswer(TypedDict):
    notifications: list[NotificationAnswer]


class NewNotificationAnswer(TypedDict):
    notification: NotificationAnswer
    secret: Annotated[str, "signs what goes to a webhook; it is shown this once"]


class TicketAnswer(TypedDict):
    path: str
    expires_in_s: int


class HealthAnswer(TypedDict):
    version: str
    healthy: bool
    reason: str | None  # why it is not
    reason_code: str | None
