"""What clients send, checked before anything acts on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brimful.errors import BadInput
from brimful.fleet.arrays import MAX_AFTER, Tasks, after_from, tasks_from
from brimful.fleet.job import Job
from brimful.fleet.queues import Quota
from brimful.language import Quoted, say
from brimful.language.printable import printable
from brimful.server.auth import TENANT, Principal

MAX_BUDGET_MICROUSD = 10**15  # a billion dollars: more is a slip of the pen
YEAR_S = 366 * 86400
WORD = r"^[\w .:+/@-]*$"
Word = Annotated[str, Field(max_length=100, pattern=WORD)]
Text = Annotated[str, Field(max_length=100_000, pattern=r"^[^\x00]*$")]
Tenant = Annotated[str, Field(max_length=60, pattern=TENANT)]
AnyTenant = Annotated[str, Field(max_length=60, pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]*)$")]
Role = Literal["viewer", "submitter", "admin", "operator"]
TenantQuery = Annotated[
    str | None, Query(max_length=60, pattern=TENANT, description="whose; default: the token's")
]
Microusd = Annotated[int, Field(ge=1, le=MAX_BUDGET_MICROUSD)]
# A million dollars for a GPU-hour is a slip of the pen too. Strict: 1.5 micro-dollars or "7" are no money.
Limit = Annotated[int, Field(ge=1, le=10**12, strict=True)]
Seconds = Annotated[int, Field(ge=0, le=10 * YEAR_S)]
MAX_GPUS = 10**6
GpuCount = Annotated[int, Field(ge=0, le=MAX_GPUS, strict=True)]
Reason = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f]*$")]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


def bad_shape(errors: Sequence[Any]) -> BadInput:
    """The first of what Pydantic found wrong."""
    where = ".".join(str(part) for part in errors[0]["loc"] if part != "body") or "the body"
    return BadInput(say("server.bad_shape", where=printable(where[:200]), why=errors[0]["msg"][:500]))


class Prediction(Request):
    """What was predicted for one GPU type at submit (`brimful fit`)."""

    peak_bytes: Annotated[int, Field(ge=0, le=1 << 50)]
    step_s: Annotated[float, Field(gt=0, le=1e9)]


class Submission(Request):
    """What a client sends to have a command run."""

    command: Annotated[tuple[Text, ...], Field(min_length=1, max_length=1000)]
    folder: Annotated[str, Field(max_length=4096, pattern=r"^/[^\x00]*$")]
    code: Annotated[
        str,
        Field(pattern=r"^([0-9a-f]{64})?$", description="packed code, sent before by `POST /v1/code`"),
    ] = ""
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    name: Word = ""
    tenant: Tenant | None = None
    queue: Word = ""
    priority: Literal["urgent", "normal", "background"] = "normal"
    gpu_types: Annotated[tuple[Word, ...], Field(max_length=50)] = ()
    sites: Annotated[tuple[Word, ...], Field(max_length=50)] = ()
    tiers: Annotated[tuple[Literal["owned", "reserved", "on_demand", "spot"], ...], Field(max_length=4)] = ()
    array: Annotated[
        str | None, Field(max_length=1000, description="a task for each index: 0-99, 1,3,5, 0-30:10, 0-99%4")
    ] = None
    after: Annotated[
        tuple[Word, ...],
        Field(
            max_length=MAX_AFTER, description="jobs or arrays that must be over first: JOB, JOB:ok or JOB:any"
        ),
    ] = ()
    within: Literal["nvlink", "node", "rack", "site", "any"] = "node"
    budget_microusd: Microusd | None = None
    limit_microusd_per_gpu_hour: Limit | None = None
    deadline_s: Annotated[int, Field(ge=0, le=1 << 40)] | None = None
    deferrable: bool = False
    max_run_s: Annotated[int, Field(ge=1, le=10 * YEAR_S)] | None = None
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    cpus: Annotated[float, Field(ge=0, le=100_000)] = 0.0
    memory_mib: Annotated[int, Field(ge=0, le=1 << 30)] = 0
    checkpoint_interval_s: Seconds | None = None
    checkpoint_cost_s: Annotated[int, Field(ge=0, le=86400)] = 0
    steps: Annotated[int, Field(ge=1, le=10**12)] | None = None
    predicted: Annotated[dict[Word, Prediction], Field(max_length=50)] = {}
    env: Annotated[dict[Text, Text], Field(max_length=200)] = {}

    @classmethod
    def check(cls, body: dict[str, Any]) -> None:
        """What the server would refuse of it, for a client that sends nothing."""
        try:
            cls.model_validate(body)._check_words()
        except ValidationError as error:
            raise bad_shape(error.errors()) from error

    def _check_words(self) -> None:
        if not self.command[0].strip():
            raise BadInput(say("server.command_empty"))
        for name in self.env:
            if not name.isidentifier() or not name.isascii() or len(name) > 200:
                raise BadInput(say("server.bad_env_name", name=Quoted(name[:80])))

    def as_job(self, who: Principal, key: str) -> Job:
        self._check_words()
        predicted = sorted(self.predicted.items())
        # Rates are against the slowest type, on which work is counted.
        slowest_s = max((each.step_s for _, each in predicted), default=0.0)
        not_the_jobs = {"tenant", "cpus", "steps", "predicted", "env", "array", "after"}
        return Job(
            job="",  # numbered by the service
            **self.model_dump(exclude=not_the_jobs),
            tenant=self.tenant or who.home,
            cpu_milli=round(self.cpus * 1000),
            env=tuple(sorted(self.env.items())),
            rates=tuple((gpu, slowest_s / each.step_s) for gpu, each in predicted),
            predicted_work_s=self.steps * slowest_s if self.steps and predicted else None,
            peak_bytes=tuple((gpu, each.peak_bytes) for gpu, each in predicted),
            step_s=tuple((gpu, each.step_s) for gpu, each in predicted),
            after=tuple(sorted({after_from(text) for text in self.after})),
            submitter=who.token,
            user=who.name,
            key=key,
        )

    def tasks(self) -> Tasks | None:
        return None if self.array is None else tasks_from(self.array)


class QueueRequest(Request):
    """What a queue is to have; what is left out has its default."""

    queue: Annotated[Word, Field(min_length=1)]
    gpus: GpuCount = 0
    borrow_gpus: GpuCount | None = None
    lend: bool = True
    weight: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    user_gpus: GpuCount | None = None
    type_gpus: Annotated[dict[Word, GpuCount], Field(max_length=50)] = {}
    top_priority: Literal["urgent", "normal", "background"] = "urgent"
    tenants: Annotated[tuple[Tenant, ...], Field(max_length=100)] = ()

    def as_quota(self) -> Quota:
        types = tuple(sorted(self.type_gpus.items()))
        return Quota(**self.model_dump(exclude={"type_gpus"}), type_gpus=types)


class QueuesRequest(Request):
    queues: Annotated[tuple[QueueRequest, ...], Field(max_length=1000, description="all of them")]

    def as_quotas(self) -> tuple[Quota, ...]:
        names = [each.queue for each in self.queues]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise BadInput(say("server.queue_twice", queue=Quoted(twice)))
        return tuple(each.as_quota() for each in self.queues)


class BidRequest(Request):
    limit_microusd_per_gpu_hour: Annotated[
        Limit | None, Field(description="null: what the job's class stands for")
    ]


class BudgetRequest(Request):
    microusd: Annotated[
        Annotated[int, Field(ge=0, le=MAX_BUDGET_MICROUSD, strict=True)] | None,
        Field(description="what it may still spend; null: without limit"),
    ]


class CreditRequest(Request):
    microusd: Annotated[int, Field(ge=1, le=MAX_BUDGET_MICROUSD, strict=True)]
    reason: Reason = ""


class Hold(Request):
    reason: Reason = ""


class Move(Request):
    site: Annotated[Word, Field(description="empty: it may run anywhere again")] = ""


class RoleRequest(Request):
    tenant: AnyTenant
    role: Annotated[Role | None, Field(description="null: it leaves the team")]


class NewNotification(Request):
    target: Annotated[
        str, Field(max_length=2000, pattern=r"^[!-~]+$", description="https://…, http://… or mailto:…")
    ]
    on: Annotated[
        tuple[Literal["finished", "failed", "preempted", "over_budget", "idle", "audit"], ...],
        Field(min_length=1, max_length=6, description="audit: once a month, and only if asked for"),
    ] = ("finished", "failed", "preempted", "over_budget", "idle")
    team: Annotated[bool, Field(description="all jobs of the tenant, not only one's own")] = False


class NewToken(Request):
    name: Annotated[Word, Field(min_length=1, description="its user")]
    tenant: AnyTenant
    role: Role = "submitter"
    ttl_s: Annotated[int, Field(ge=1, le=10 * YEAR_S)] | None = 90 * 86400
