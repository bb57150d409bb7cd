"""What the API answers, as shapes for the OpenAPI description.

The views make plain dicts and these are not run over every answer; the tests hold each answer against its
shape, where a field too much is as wrong as one too few.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")
Usd = Annotated[int, Field(description="micro-dollars")]
Utc = Annotated[int, Field(description="UTC seconds")]


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Ok(Shape, Generic[T]):
    ok: Literal[True]
    data: T


class Problem(Shape):
    code: str
    problem: str
    hint: str


class Failed(Shape):
    ok: Literal[False]
    error: Problem


class LeaseAnswer(Shape):
    lease: str
    site: str
    node: str
    gpu: str
    gpus: list[int]
    rest: Annotated[list[Any], Field(description="[node, GPUs] of the gang's other nodes")]
    phase: str
    granted_s: Utc
    started_s: Utc | None
    ended_s: Utc | None
    billed_s: int
    microusd_per_gpu_hour: Usd
    cost_microusd: Usd
    notice_s: Annotated[int | None, Field(description="when a market will have it leave, UTC seconds")]
    exit_code: int | None
    reason: str


class MeasuredAnswer(Shape):
    """What the job's own Meter says of its newest step; null where it does not."""

    lease: str
    at_s: Utc
    age_s: int
    fresh: Annotated[bool, Field(description="whether it tells of now: the lease runs and steps go on")]
    over: Annotated[bool, Field(description="the Meter was closed: this was its last step")]
    idle: Annotated[str | None, Field(description="where no step has ended for ten minutes: in words")]
    step: int | None
    step_s: float | None
    tokens_per_s: Annotated[float | None, Field(description="of process `rank` alone, as all below")]
    mfu: Annotated[float | None, Field(description="of `peak_flops_per_s`, 0 to 1")]
    hfu: float | None
    peak_flops_per_s: float | None
    peak_format: str | None
    peak_source: Annotated[str, Field(description="catalog, declared, or why there is none")]
    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    model: str
    device: str
    gpu: str | None
    rank: int
    world: Annotated[int, Field(description="processes that train together")]


class JobAnswer(Shape):
    job: str
    name: str
    tenant: str
    queue: str
    submitter: str
    priority: str
    gpus: int
    gpu_types: list[str]
    sites: list[str]
    within: str
    command: list[str]
    folder: str
    phase: str
    why: str
    submitted_s: Utc
    now_s: Utc
    started_s: Utc | None
    ended_s: Utc | None
    exit_code: int | None
    node: str | None
    site: str | None
    preemptions: int
    failures: int
    retries: int
    max_run_s: int | None
    deadline_s: Utc | None
    limit_microusd_per_gpu_hour: Usd | None
    budget_microusd: Usd | None
    posted_microusd: Usd
    cost_microusd: Usd
    predicted: Annotated[
        dict[str, dict[str, float | None]], Field(description="by GPU type: peak_bytes, step_s, rate")
    ]
    measured: MeasuredAnswer | None
    not_measured: Annotated[str, Field(description="why `measured` is null, once the job has had a lease")]
    leases: list[LeaseAnswer]


class JobsAnswer(Shape):
    jobs: list[JobAnswer]
    next_cursor: str | None


class PoolAnswer(Shape):
    site: str
    gpu: str
    tier: str
    free: int
    gpus: int
    microusd_per_gpu_hour: Usd
    rate: Annotated[float, Field(description="useful work per second, relative to the job's reference GPU")]
    microusd_per_work_hour: Usd | None
    verdict: str


class WhyAnswer(Shape):
    job: str
    phase: str
    waiting: str | None
    ahead: Annotated[int | None, Field(description="jobs that the order puts before it")]
    here: str | None
    price: str | None
    pools: list[PoolAnswer]


class LogAnswer(Shape):
    lease: str | None
    text: str
    next_offset: int
    size: int
    over: bool
    phase: str


class GpuAnswer(Shape):
    index: int
    held: bool
    job: Annotated[str | None, Field(description="null where it is free, or held by somebody you do not see")]
    bad: Annotated[bool, Field(description="it does not answer its driver: nothing starts on it")]
    memory_used_bytes: int | None
    busy_frac: float | None
    mfu: float | None


class NodeAnswer(Shape):
    node: str
    site: str
    gpu: str
    rack: str
    declared: bool
    drained: str | None
    microusd_per_gpu_hour: Usd
    gpus: list[GpuAnswer]


class FleetAnswer(Shape):
    gpus: int
    free: int
    allocation_rate: float | None
    nodes: list[NodeAnswer]
    problems: dict[str, str]
    trouble: str


class DrainAnswer(Shape):
    node: str
    drained: str | None
    running: list[str]


class QueueAnswer(Shape):
    queue: str
    running: int
    held_gpus: int
    waiting: int
    waiting_gpus: int
    on_hold: int
    oldest_wait_s: int | None
    recent_gpu_s: float
    quota_gpus: int | None


class QueuesAnswer(Shape):
    queues: list[QueueAnswer]


class EventAnswer(Shape):
    seq: int
    at_s: Utc
    kind: str
    body: dict[str, Any]


class EventsAnswer(Shape):
    events: list[EventAnswer]
    next_after: int


class TransferAnswer(Shape):
    at_s: Utc
    kind: str
    source: str
    target: str
    microusd: Usd
    job: str
    lease: str


class SpendAnswer(Shape):
    posted_microusd: Usd
    accruing_microusd: Usd
    held_microusd: Usd
    by_tenant: dict[str, int]
    balances: dict[str, int]
    sum_microusd: Annotated[
        Usd | None, Field(description="of all accounts: zero, always; null for who sees some")
    ]
    transfers: list[TransferAnswer]


class DepthAnswer(Shape):
    limit_microusd_per_gpu_hour: Usd
    held: Annotated[int, Field(description="GPUs in the hands of bids with this limit")]
    wanted: Annotated[int, Field(description="GPUs that waiting bids with this limit ask for")]


class PricePointAnswer(Shape):
    at_s: Utc
    microusd_per_gpu_hour: Annotated[int, Field(description="billed from here on")]
    cleared_microusd_per_gpu_hour: Usd
    held: int
    wanted: int
    gpus: int


class PoolPriceAnswer(Shape):
    site: str
    gpu: str
    tier: str
    market: Annotated[bool, Field(description="whether bids decide; otherwise the price is posted")]
    microusd_per_gpu_hour: Usd
    cleared_microusd_per_gpu_hour: Annotated[int, Field(description="before it was smoothed upward")]
    floor_microusd_per_gpu_hour: Usd
    gpus: int
    free: int
    depth: list[DepthAnswer]
    history: list[PricePointAnswer]


class PricesAnswer(Shape):
    now_s: Utc
    pools: list[PoolPriceAnswer]


class BudgetAnswer(Shape):
    tenant: str
    left_microusd: Annotated[int | None, Field(description="micro-dollars; null: no budget is set")]
    accruing_microusd: Annotated[int, Field(description="what running leases have come to")]
    held_microusd: Annotated[int, Field(description="set aside for jobs with budgets of their own")]
    spent_microusd: Usd


class BudgetsAnswer(Shape):
    budgets: list[BudgetAnswer]


class BillAnswer(Shape):
    of: str
    leases: int
    gpu_s: int
    microusd: Usd
    failed_microusd: Annotated[int, Field(description="for runs that ended with an error of their own")]
    lost_microusd: Annotated[int, Field(description="for work that was done again")]
    idle_microusd: Annotated[int | None, Field(description="while GPUs were held idle; null: not measured")]


class InvoiceAnswer(Shape):
    by: str
    bills: list[BillAnswer]
    total_microusd: Usd


class TokenAnswer(Shape):
    token: str
    name: str
    tenant: str
    role: str
    created_s: Utc
    expires_s: Utc | None
    revoked_s: Utc | None


class TokensAnswer(Shape):
    tokens: list[TokenAnswer]


class NewTokenAnswer(Shape):
    token: TokenAnswer
    secret: Annotated[str, Field(description="the whole token; it is shown this once")]


class DeedAnswer(Shape):
    seq: int
    at_s: Utc
    token: str
    name: str
    tenant: str
    verb: str
    target: str
    outcome: str


class AuditAnswer(Shape):
    deeds: list[DeedAnswer]
    next_cursor: str | None


class TicketAnswer(Shape):
    path: str
    expires_in_s: int


class WhoAnswer(Shape):
    token: str
    name: str
    tenant: str
    role: str


class HealthAnswer(Shape):
    version: str
    healthy: bool
