"""Request bodies, checked before anything acts on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brimful.errors import BadInput
from brimful.fleet.arrays import MAX_AFTER, Tasks, after_from, tasks_from
from brimful.fleet.elastic.written import MAX_GPUS as MOST_GPUS
from brimful.fleet.elastic.written import RANGE, points_from, range_from
from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.queues import Quota
from brimful.language import Quoted, Seconds, Usd, either, figures, say
from brimful.language.near import similar
from brimful.language.printable import printable
from brimful.language.sentence import Sentence
from brimful.scheduler.queue_tree import check_parents
from brimful.server.auth import TENANT, Principal
from brimful.server.service.budgets import BudgetAsked
from brimful.server.service.intake import deadline_passed

MAX_BUDGET_MICROUSD = 10**15  # a billion dollars: more is a typo
YEAR_S = 366 * 86400
WORD_MARKS = ". : + / @ - _"
WORD = r"^[\w .:+/@-]*$"
Word = Annotated[str, Field(max_length=100, pattern=WORD)]
Text = Annotated[str, Field(max_length=100_000, pattern=r"^[^\x00]*$")]
Tenant = Annotated[str, Field(max_length=60, pattern=TENANT)]
PROJECT = f"^({TENANT[1:-1]})?$"
Project = Annotated[str, Field(max_length=60, pattern=PROJECT, description="of the tenant; empty: none")]
ANY_TENANT = r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]*)$"
AnyTenant = Annotated[str, Field(max_length=60, pattern=ANY_TENANT)]
Role = Literal["viewer", "submitter", "admin", "operator"]
TenantQuery = Annotated[
    str | None, Query(max_length=60, pattern=TENANT, description="default: the token's tenant")
]
Microusd = Annotated[int, Field(ge=1, le=MAX_BUDGET_MICROUSD)]
# A million dollars per GPU-hour is a typo too. Strict: 1.5 micro-dollars or "7" are not money.
Limit = Annotated[int, Field(ge=1, le=10**12, strict=True)]
MAX_GPUS = 10**6
ELASTIC_RESTART_S = 60  # default cost of resizing a gang
GpuCount = Annotated[int, Field(ge=0, le=MAX_GPUS, strict=True)]
Reason = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f]*$")]


Scaling = Annotated[
    dict[Annotated[int, Field(ge=1, le=MOST_GPUS)], Annotated[float, Field(gt=0, le=1e6)]],
    Field(max_length=50, description="for a range: GPUs, and the speed-up over the minimum"),
]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


# Options of `brimful` whose names differ from the field they set.
OPTIONS = {
    "max_run_s": "--max-run",
    "deadline_s": "--deadline",
    "gpu_types": "--gpu",
    "sites": "--site",
    "budget_microusd": "--budget",
    "limit_microusd_per_gpu_hour": "--limit",
    "microusd": "--set",
    "ttl_s": "--for",
} | {
    name: f"--{name}"
    for name in ("gpus", "retries", "name", "tenant", "project", "queue", "array", "after", "env")
}
SHAPES = {
    "greater_than_equal": ("server.shape_at_least", "ge"),
    "greater_than": ("server.shape_above", "gt"),
    "less_than_equal": ("server.shape_at_most", "le"),
    "string_too_long": ("server.shape_characters", "max_length"),
    "too_long": ("server.shape_entries", "max_length"),
    "missing": ("server.shape_missing", ""),
    "extra_forbidden": ("server.shape_unknown", ""),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), ("server.shape_whole", "")),
    **dict.fromkeys(("float_type", "float_parsing"), ("server.shape_number", "")),
    **dict.fromkeys(("bool_type", "bool_parsing"), ("server.shape_switch", "")),
    **dict.fromkeys(("list_type", "tuple_type"), ("server.shape_list", "")),
    "string_type": ("server.shape_text", ""),
    "dict_type": ("server.shape_table", ""),
}
NAMES = {TENANT, ANY_TENANT, PROJECT}


def bad_shape(errors: Sequence[Any], body: object = None) -> BadInput:
    """Pydantic's first error; `body` has the names of items that Pydantic only counts."""
    first = errors[0]
    where, field = _where([part for part in first["loc"] if part != "body"], body)
    hint = None
    if field in OPTIONS and not where.startswith("["):  # queues are set by a file
        hint = say("server.hint_option", option=OPTIONS[field])
    if where.startswith("["):
        known = [name for name in QueueRequest.model_fields if name != "queue"]
        near = similar(field, known) if first["type"] == "extra_forbidden" else []
        hint = say("server.hint_queue", names=", ".join(known))
        hint = say("server.hint_queue_slip", near=near[0]) if near else hint
    if first["type"] == "string_pattern_mismatch" and first["ctx"]["pattern"] == WORD:
        return BadInput(say("server.bad_characters", where=where, others=WORD_MARKS))
    return BadInput(say("server.bad_shape", where=where, why=_why(first, field)), hint=hint)


def _where(loc: Sequence[int | str], body: object) -> tuple[str, str]:
    """Where it is, and the field's name. A queue is identified by name, not by index."""
    parts: list[str] = []
    of, at = "", body
    for part in loc:
        at = (
            at.get(part)
            if isinstance(at, dict)
            else at[part]
            if isinstance(at, list) and isinstance(part, int)
            else None
        )
        if isinstance(at, dict) and isinstance(at.get("queue"), str):
            of, parts = f"[{at['queue']}] ", []
        # For a union, Pydantic also names the type that it tried.
        elif not str(part).startswith("constrained-"):
            parts.append(str(part))
    return printable((of + ".".join(parts))[:200]) or "the body", parts[-1] if parts else ""


def _why(error: Any, field: str) -> Sentence | str:  # noqa: ANN401
    ctx = error.get("ctx", {})
    if error["type"] == "string_pattern_mismatch" and ctx["pattern"] in NAMES:
        return say("server.shape_name")
    if error["type"] == "literal_error":
        return say("server.shape_choice", choices=either(re.findall("'([^']*)'", ctx["expected"])))
    code, limit = SHAPES.get(error["type"], ("", ""))
    if not code:
        return str(error["msg"][:500])
    return say(code, limit=_figure(field, ctx[limit])) if limit else say(code)


def _figure(field: str, limit: float) -> object:
    """A limit in the unit that its field's name ends with."""
    if field.endswith("_s"):
        return Seconds(limit)
    return Usd(int(limit)) if "microusd" in field else figures(limit)


class Prediction(Request):
    """What was predicted for one GPU type at submit (`brimful fit`)."""

    peak_bytes: Annotated[int, Field(ge=0, le=1 << 50)]
    step_s: Annotated[float, Field(gt=0, le=1e9)]
    mfu: Annotated[float | None, Field(gt=0, le=1)] = None
    scaling: Scaling = {}


class Submission(Request):
    """A request to run a command."""

    command: Annotated[tuple[Text, ...], Field(min_length=1, max_length=1000)]
    folder: Annotated[str, Field(max_length=4096, pattern=r"^/[^\x00]*$")]
    code: Annotated[
        str,
        Field(pattern=r"^([0-9a-f]{64})?$", description="packed code, sent before with `POST /v1/code`"),
    ] = ""
    gpus: Annotated[
        Annotated[int, Field(ge=1, le=MOST_GPUS)] | Annotated[str, Field(pattern=f"^{RANGE}$")],
        Field(description="a number, or a range for an elastic gang, such as 2..16"),
    ] = 1
    scaling: Scaling = {}
    name: Word = ""
    tenant: Tenant | None = None
    project: Project = ""
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
    checkpoint_interval_s: Annotated[int, Field(ge=0, le=10 * YEAR_S)] | None = None
    checkpoint_cost_s: Annotated[int, Field(ge=0, le=86400)] = 0
    compute: Annotated[
        float, Field(gt=0, le=1, description="share of one GPU's compute that the job keeps busy by itself")
    ] = 1.0
    gpu_memory_bytes: Annotated[int, Field(ge=0, le=1 << 50)] = 0
    steps: Annotated[int, Field(ge=1, le=10**12)] | None = None
    predicted: Annotated[dict[Word, Prediction], Field(max_length=50)] = {}
    env: Annotated[dict[Text, Text], Field(max_length=200)] = {}

    @classmethod
    def check(cls, body: dict[str, Any], *, now_s: int) -> None:
        """What the server would refuse, for a client that does not send it."""
        try:
            found = cls.model_validate(body)
        except ValidationError as error:
            raise bad_shape(error.errors()) from error
        found._check_words()
        if (late := deadline_passed(found.deadline_s, now_s=now_s)) is not None:
            raise late

    def _check_words(self) -> None:
        if not self.command[0].strip():
            raise BadInput(say("server.command_empty"))
        if isinstance(self.gpus, int):
            if self.scaling or any(each.scaling for each in self.predicted.values()):
                raise BadInput(say("fleet.scaling_without_range"))
        elif self.deadline_s is not None:
            least, most = range_from(self.gpus)
            raise BadInput(say("server.elastic_deadline", least=least, most=most), code="unsupported")
        for name in self.env:
            if not name.isidentifier() or not name.isascii() or len(name) > 200:
                raise BadInput(say("server.bad_env_name", name=Quoted(name[:80])))

    def as_job(self, who: Principal, key: str) -> Job:
        self._check_words()
        saves = {}
        if not isinstance(self.gpus, int):  # an elastic gang saves when it is told to leave
            saves["checkpoint_interval_s"] = self.checkpoint_interval_s or 0
            saves["checkpoint_cost_s"] = self.checkpoint_cost_s or ELASTIC_RESTART_S
        least, most = (self.gpus, 0) if isinstance(self.gpus, int) else range_from(self.gpus)
        given = {"": self.scaling} | {gpu: each.scaling for gpu, each in self.predicted.items()}
        curves = [
            (gpu, points_from(scaling, least=least, most=most))
            for gpu, scaling in sorted(given.items())
            if scaling
        ]
        predicted = sorted(self.predicted.items())
        # Rates are relative to the slowest type, in which work is counted.
        slowest_s = max((each.step_s for _, each in predicted), default=0.0)
        not_the_jobs = {"tenant", "cpus", "steps", "predicted", "env", "array", "after", "gpus", "scaling"}
        not_the_jobs |= {"compute"}
        return Job(
            job="",  # numbered by the service
            **(self.model_dump(exclude=not_the_jobs) | saves),
            gpus=least,
            min_gpus=least if most else 0,
            max_gpus=most,
            curves=tuple(curves),
            tenant=self.tenant or who.home,
            cpu_milli=round(self.cpus * 1000),
            compute_milli=max(1, round(self.compute * WHOLE_GPU)),
            env=tuple(sorted(self.env.items())),
            rates=tuple((gpu, slowest_s / each.step_s) for gpu, each in predicted),
            predicted_work_s=self.steps * slowest_s if self.steps and predicted else None,
            peak_bytes=tuple((gpu, each.peak_bytes) for gpu, each in predicted),
            step_s=tuple((gpu, each.step_s) for gpu, each in predicted),
            mfu=tuple((gpu, each.mfu) for gpu, each in predicted if each.mfu is not None),
            after=tuple(sorted({after_from(text) for text in self.after})),
            submitter=who.token,
            user=who.name,
            key=key,
        )

    def tasks(self) -> Tasks | None:
        return None if self.array is None else tasks_from(self.array)


class CheckRequest(Request):
    """A job to check without submitting it: as a file, or as a submission."""

    text: Annotated[
        Text, Field(description="a job file, an sbatch script, a SkyPilot task or a training config")
    ] = ""
    job: Annotated[dict[str, Any], Field(description="as for `POST /v1/jobs`; the text wins")] = {}
    config: Annotated[Text, Field(description="a training config, for an estimate; never executed")] = ""


class QueueRequest(Request):
    """A queue's settings; anything left out has its default."""

    queue: Annotated[Word, Field(min_length=1)]
    gpus: GpuCount = 0
    borrow_gpus: GpuCount | None = None
    lend: bool = True
    weight: Annotated[float, Field(ge=0.001, le=1000)] = 1.0
    parent: Annotated[Word, Field(description="the queue whose share it is part of under `fair`")] = ""
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
        quotas = tuple(each.as_quota() for each in self.queues)
        check_parents(quotas)  # here too, so that a file is refused before anything is sent or started
        return quotas


class BidRequest(Request):
    limit_microusd_per_gpu_hour: Annotated[
        Limit | None, Field(description="null: the default of the job's class")
    ]


class Terms(Request):
    """Fields left out stay unchanged."""

    priority: Literal["urgent", "normal", "background"] = "normal"
    deadline_s: Annotated[
        Annotated[int, Field(ge=0, le=1 << 40)] | None, Field(description="UTC second; null: none")
    ] = None


class BudgetRequest(Request):
    microusd: Annotated[
        Annotated[int, Field(ge=0, le=MAX_BUDGET_MICROUSD, strict=True)] | None,
        Field(description="remaining budget, or budget per period; null: no limit"),
    ]
    project: Project = ""
    within: Annotated[str | None, Field(max_length=60, description="parent budget; null: unchanged")] = None
    period: Annotated[
        Literal["fixed", "monthly", "quarterly"] | None, Field(description="null: unchanged, or fixed")
    ] = None
    zone: Annotated[
        str | None, Field(max_length=60, description="such as Europe/Paris; null: unchanged, or UTC")
    ] = None
    hard: Annotated[bool | None, Field(description="false: only warn; null: unchanged, or true")] = None

    def name_of(self, tenant: str) -> str:
        return f"{tenant}/{self.project}" if self.project else tenant

    def asked(self) -> BudgetAsked:
        return BudgetAsked(within=self.within, period=self.period, zone=self.zone, hard=self.hard)


class CreditRequest(Request):
    microusd: Annotated[int, Field(ge=1, le=MAX_BUDGET_MICROUSD, strict=True)]
    reason: Reason = ""


PolicyText = Annotated[str, Field(min_length=1, max_length=500, description="NAME[?option=value&…]")]


class RehearsalRequest(Request):
    days: Annotated[int, Field(ge=1, le=366)] = 1
    nodes: Annotated[
        tuple[Annotated[int, Field(ge=-1000, le=1000)], ...],
        Field(min_length=1, max_length=8, description="sizes: nodes added (positive) or removed"),
    ] = (0,)
    policies: Annotated[
        tuple[PolicyText, ...],
        Field(max_length=20, description="empty: those the server rehearses by itself"),
    ] = ()


class AdoptRequest(Request):
    policy: PolicyText


class Hold(Request):
    reason: Reason = ""


class Move(Request):
    site: Annotated[Word, Field(description="empty: any site")] = ""


class RoleRequest(Request):
    tenant: AnyTenant
    role: Annotated[Role | None, Field(description="null: remove from the team")]


class NewNotification(Request):
    target: Annotated[
        str, Field(max_length=2000, pattern=r"^[!-~]+$", description="https://…, http://… or mailto:…")
    ]
    on: Annotated[
        tuple[Literal["finished", "failed", "preempted", "over_budget", "idle", "budget", "audit"], ...],
        Field(min_length=1, max_length=7, description="audit: once a month, and only if requested"),
    ] = ("finished", "failed", "preempted", "over_budget", "idle", "budget")
    team: Annotated[bool, Field(description="all jobs of the tenant, not only your own")] = False


class NewToken(Request):
    name: Annotated[Word, Field(min_length=1, description="its user")]
    tenant: AnyTenant
    role: Role = "submitter"
    ttl_s: Annotated[int, Field(ge=1, le=10 * YEAR_S)] | None = 90 * 86400
