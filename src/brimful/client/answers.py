"""The API's answers: the shapes of `data`, shared by the server and its clients.

The text beside a type is its description in the OpenAPI schema, which the server generates from these.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict, TypeVar, cast

from brimful.fleet.lease import JobPhase, LeasePhase
from brimful.fleet.node import Tier

T = TypeVar("T")
Usd = Annotated[int, "micro-dollars"]
Utc = Annotated[int, "UTC seconds"]
Code = Annotated[dict[str, Any], "code and values of the preceding text, for programs"]

# Of a job; `unknown` while its site does not answer.
Phase = Literal[JobPhase, "unknown"]

_fields: dict[tuple[type, ...], list[tuple[str, int]]] = {}  # which noun has each field


def alike(answer: type[T], *nouns: object) -> T:
    """The fields of an answer that these nouns have under the same names; the view adds the others."""
    key = (answer, *map(type, nouns))
    if key not in _fields:
        names = answer.__annotations__
        found = {name: i for name in names for i, noun in enumerate(nouns) if hasattr(noun, name)}
        _fields[key] = list(found.items())
    return cast("T", {name: getattr(nouns[i], name) for name, i in _fields[key]})


class NoticeAnswer(TypedDict):
    at_s: Utc
    told: Annotated[Literal["leave", "stay", "stop"], "it will have to leave; it may stay; it has to stop"]
    until_s: Annotated[int | None, "when it has to leave, UTC seconds"]


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
    reservation: Annotated[str, "the reservation that paid for its GPUs; empty: none"]
    notice_s: Annotated[int | None, "when it must leave its market pool, UTC seconds"]
    notices: Annotated[list[NoticeAnswer], "what it was told, oldest first"]
    exit_code: int | None
    exit_codes: Annotated[list[int | None], "by rank, for a gang of several processes"]
    reason: str
    reason_code: Code | None


class MeasuredAnswer(TypedDict):
    """What the job's own Meter reports for its newest step; null if it does not."""

    lease: str
    at_s: Utc
    age_s: int
    fresh: Annotated[bool, "whether it is current: the lease is running and steps continue"]
    over: Annotated[bool, "the Meter was closed: this was its last step"]
    idle: Annotated[str | None, "a sentence if no step has ended for ten minutes"]
    step: int | None
    step_s: float | None
    tokens_per_s: Annotated[float | None, "of process `rank` only, like everything below"]
    mfu: Annotated[float | None, "of `peak_flops_per_s`, 0 to 1"]
    hfu: float | None
    peak_flops_per_s: float | None
    peak_format: str | None
    peak_source: Annotated[str, "catalog, declared, or why there is no peak"]
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
    at_most: Annotated[int | None, "how many tasks may wait for or hold GPUs at once"]
    phases: Annotated[dict[str, int], "phase -> tasks"]
    run_s: int
    cost_microusd: Usd


class PromiseAnswer(TypedDict):
    is_promised: bool
    done_by_s: Annotated[
        int | None, "promised time; without a promise, the earliest possible time; null: never"
    ]
    chance: Annotated[float | None, "probability that it is kept, 0 to 1; null: the run time is bounded"]
    said: str


class JobAnswer(TypedDict):
    job: str
    name: str
    tenant: str
    user: Annotated[str, "who submitted it; empty: submitted before users existed"]
    project: str
    queue: str
    submitter: str
    priority: str
    gpus: Annotated[int, "for an elastic gang, what it holds, or its minimum while it waits"]
    min_gpus: Annotated[int, "for an elastic gang; 0: fixed size"]
    max_gpus: int
    gpu_types: list[str]
    sites: list[str]
    tiers: list[str]
    within: str
    after: Annotated[list[tuple[str, str]], "[job or array, ok or any]: it starts once these are over"]
    array: Annotated[str, "the array it belongs to; empty: none"]
    array_index: int
    array_tasks: Annotated[ArrayAnswer | None, "totals of its array; null in a list of tasks"]
    command: list[str]
    folder: str
    code: Annotated[str, "SHA-256 of the packed folder it runs in; empty: it runs in `folder` itself"]
    phase: Phase
    why: str
    why_code: Code | None
    submitted_s: Utc
    ready_s: Annotated[int, "when it started to wait for GPUs: after submit if it had to wait for other jobs"]
    now_s: Utc
    started_s: Utc | None
    ended_s: Utc | None
    delay_s: Annotated[int, "finish - submit - work; up to now if it is not over"]
    exit_code: int | None
    node: str | None
    site: str | None
    preemptions: int
    failures: int
    retries: int
    max_run_s: int | None
    deadline_s: Utc | None
    promise: Annotated[PromiseAnswer | None, "the promise about its deadline; null: none, or it is over"]
    limit_microusd_per_gpu_hour: Usd | None
    budget_microusd: Usd | None
    posted_microusd: Usd
    cost_microusd: Usd
    predicted: Annotated[dict[str, dict[str, float | None]], "by GPU type: peak_bytes, step_s, mfu, rate"]
    measured: MeasuredAnswer | None
    not_measured: Annotated[str, "why `measured` is null, once the job has had a lease"]
    leases: list[LeaseAnswer]


class CodeAnswer(TypedDict):
    code: Annotated[str, "SHA-256 of the archive"]
    size: Annotated[int, "bytes"]


class JobsAnswer(TypedDict):
    jobs: list[JobAnswer]
    next_cursor: str | None


Stays = Annotated[
    dict[str, float | None],
    "probability that the price stays at or below the limit for the next 1, 8, 24 and 72 hours; "
    "null: not enough price history yet",
]


class LimitChanceAnswer(TypedDict):
    limit_microusd_per_gpu_hour: Usd
    stays: Stays


class PoolAnswer(TypedDict):
    site: str
    gpu: str
    tier: Tier
    free: int
    gpus: int
    microusd_per_gpu_hour: Usd
    rate: Annotated[float, "useful work per second, relative to the job's reference GPU"]
    microusd_per_work_hour: Usd | None
    chance: Annotated[
        LimitChanceAnswer | None,
        "where bids decide: that the price stays at or below the job's limit; null: it cannot run there, "
        "or not enough price history yet",
    ]
    verdict: str


class WhyAnswer(TypedDict):
    promise: Annotated[PromiseAnswer | None, "the promise about its deadline; null: none, or it is over"]
    job: str
    phase: Phase
    ended: Annotated[str | None, "why it ended; null: it has not"]
    ended_code: Code | None
    waiting: str | None
    waiting_code: Code | None
    ahead: Annotated[int | None, "jobs ahead of it in the order"]
    policy: Annotated[str, "the active policy, since when, and on what evidence"]
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
    job: Annotated[str | None, "null: free, or held by a job you may not see"]
    bad: Annotated[bool, "it does not respond to its driver: nothing starts on it"]
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
    others: Annotated[list[str], "who hold GPUs there without brimful, if the site says; for operators"]


class SiteAnswer(TypedDict):
    site: str
    engine: Annotated[str, "the kind of engine behind it; empty: unknown"]
    nodes: int
    drained: int
    gpus: int
    held: int
    silent_s: Annotated[int | None, "how long it has not answered; null: it answers"]
    problem: str
    latency_s: Annotated[dict[str, float], "how long its last steps took; empty: not measured"]


class FleetHead(TypedDict):
    gpus: int
    free: int
    allocation_rate: float | None
    policy: Annotated[str, "who goes first, and where: NAME[?option=value&…]"]
    market: Annotated[list[str], "pools where bids decide: `all`, or sites, GPU types, tiers"]
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
    path: Annotated[str, "of the console page that shows it"]


class AttentionsAnswer(TypedDict):
    attention: list[AttentionAnswer]


class DrainAnswer(TypedDict):
    node: str
    drained: str | None
    running: list[str]


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
    microusd_per_hour: Annotated[int, "hourly cost of running leases, micro-dollars"]
    held_microusd: Usd
    by_tenant: dict[str, int]


class MonthAnswer(TypedDict):
    spent_microusd: Annotated[int, "this month (UTC), with running leases so far"]
    expected_microusd: Annotated[int, "by the end of the month, at the pace so far"]


class SpendAnswer(SpendSums):
    month: Annotated[dict[str, MonthAnswer], "by team, also those without a budget"]
    month_until_s: Annotated[int, "UTC second at which the month ends"]
    balances: dict[str, int]
    sum_microusd: Annotated[Usd | None, "over all accounts, always zero; null if you see only some"]
    transfers: list[TransferAnswer]


class BudgetTermsAnswer(TypedDict):
    within: Annotated[str, "parent budget; empty: none"]
    period: Literal["fixed", "monthly", "quarterly"]
    zone: str
    hard: Annotated[bool, "false: only warn"]
    limit_microusd: Annotated[int, "micro-dollars per period"]
    allowed_microusd: Annotated[int, "in this period, with credits; less if its parent has less"]
    used_microusd: Annotated[int, "in this period, with budgets below it and running leases so far"]
    since_s: Utc
    until_s: Annotated[int | None, "UTC second at which it renews; null: never"]
    expected_microusd: Annotated[int | None, "by the end of the period, at the pace so far; null: no end"]
    runs_out_s: Annotated[
        int | None, "UTC second at which it is used up, at that pace; null: not before the end"
    ]


class BudgetAnswer(TypedDict):
    tenant: Annotated[str, "a tenant, TENANT/PROJECT, or the name of an organisation"]
    left_microusd: Annotated[int | None, "micro-dollars; null: no budget is set"]
    accruing_microusd: Annotated[int, "cost of running leases so far"]
    held_microusd: Annotated[int, "set aside for jobs with their own budgets"]
    spent_microusd: Usd
    budget: Annotated[BudgetTermsAnswer | None, "null: none is set"]


class BudgetsAnswer(TypedDict):
    budgets: list[BudgetAnswer]


class BillAnswer(TypedDict):
    of: str
    name: Annotated[str, "of the job, in an invoice by job; otherwise empty"]
    leases: int
    gpu_s: int
    microusd: Usd
    failed_microusd: Annotated[int, "for runs that failed"]
    lost_microusd: Annotated[int, "for repeated work"]
    idle_microusd: Annotated[int | None, "while GPUs were held idle; null: not measured"]
    moved_bytes: Annotated[int, "of checkpoints, to and from a store"]
    egress_microusd: Annotated[int, "for moving them"]


class SpendDayAnswer(TypedDict):
    day: Annotated[str, "UTC, such as 2026-03-02; leases count on the day they ended"]
    microusd: Usd
    of: Annotated[dict[str, int], "the same by team, user or GPU type, micro-dollars"]


class SpendDaysAnswer(TypedDict):
    by: str
    days: Annotated[list[SpendDayAnswer], "up to today, oldest first, none left out"]
    total: Annotated[dict[str, int], "of all these days, largest first, micro-dollars"]


class InvoiceAnswer(TypedDict):
    by: str
    month: Annotated[str | None, "2026-03; null: since the first job"]
    months: Annotated[list[str], "the months (UTC) with bills, newest first"]
    bills: list[BillAnswer]
    total_microusd: Usd


class WhoAnswer(TypedDict):
    token: str
    name: Annotated[str, "the user"]
    tenant: Annotated[str, "its team, or the first of several; `*`: all"]
    role: Annotated[str, "its highest role"]
    roles: Annotated[dict[str, str], "by team; `*`: the organisation"]


class UserAnswer(TypedDict):
    user: str
    signs_in: Annotated[bool, "with OpenID Connect, not only with tokens"]
    created_s: Utc
    roles: Annotated[dict[str, str], "by team, for the teams you administer"]


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
    has_left: Annotated[bool, "its user is not in the team: it works only if they come back"]


class TokensAnswer(TypedDict):
    tokens: list[TokenAnswer]


class NewTokenAnswer(TypedDict):
    token: TokenAnswer
    secret: Annotated[str, "the whole token; shown only once"]


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
    path: Annotated[str, "such as unallocated.own_queue.fits; a path that ends above a leaf is a sum"]
    gpu_s: int
    gpu_h: float
    share: float
    microusd: Annotated[int | None, "null: some of it has no price"]


# `from` is a Python keyword.
_Window = TypedDict("_Window", {"from": str, "to": str})


class UsageAuditAnswer(_Window):
    """Where paid GPU time went; the same as `brimful audit --json`."""

    paid_gpu_h: float
    paid_usd: Annotated[float | None, "null if some of it has no price"]
    priced_gpu_h: Annotated[float, "of what was paid, the part with a price"]
    priced_usd: Annotated[float | None, "the cost of that part; null if nothing has a price"]
    money_is: Annotated[str | None, "paid, list, or null if there is no price"]
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
    batch_size: Annotated[int, "as configured: sequences per micro-step"]
    estimate: Annotated[dict[str, Any], "the JSON of `brimful fit`"]
    ladder: Annotated[list[dict[str, Any]], "starting from what surely fits; empty if the config fits"]
    sweep: Annotated[dict[str, Any], "memory and MFU over batch sizes, as `brimful sweep --json`"]


class FitAnswer(TypedDict):
    language: str
    model: str | None
    config: Annotated[str | None, "format of the pasted config: py, json, yaml or toml"]
    cards: list[FitCardAnswer]
    explanation: Annotated[dict[str, Any] | None, "of a message or log, as `brimful explain --json`"]
    claims: Annotated[dict[str, Any] | None, "of advice, as `brimful claims --json`"]


class ProofAnswer(TypedDict):
    proof: Annotated[str, "HMAC-SHA256 of `proof NONCE`, keyed with the SHA-256 of the token's secret"]


class NotificationAnswer(TypedDict):
    notification: str
    target: str
    on: list[str]
    team: Annotated[bool, "all jobs of the tenant, not only your own"]
    tenant: str
    created_s: Utc
    waiting: Annotated[int, "notices still to be sent"]
    dead: Annotated[int, "notices given up after seven tries"]


class NotificationsAnswer(TypedDict):
    notifications: list[NotificationAnswer]


class NewNotificationAnswer(TypedDict):
    notification: NotificationAnswer
    secret: Annotated[str, "signs webhook deliveries; shown only once"]


class TicketAnswer(TypedDict):
    path: str
    expires_in_s: int


class HealthAnswer(TypedDict):
    version: str
    healthy: bool
    reason: str | None  # why it is not
    reason_code: str | None
