"""What would happen to a job if it were submitted now: where it fits, when it starts, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import ValidationError

from brimful.client.checks import CheckAnswer, CheckPoolAnswer, CheckProblem, StartAnswer
from brimful.errors import BrimfulError
from brimful.fleet.arrays import Tasks
from brimful.fleet.job import PRIORITIES, Job
from brimful.fleet.memory import too_small, usable_bytes
from brimful.fleet.state import JobState, Pool
from brimful.language import Sentence, say, told
from brimful.server.api.answers import envelope
from brimful.server.api.errors import COMMON, ok, status_of
from brimful.server.api.gate import Gate
from brimful.server.api.jobs import JobName
from brimful.server.api.requests import CheckRequest, Submission, bad_shape
from brimful.server.api.seen import check_named, job_for
from brimful.server.auth import Principal, forbidden, other_team
from brimful.server.fitting.fitter import Fitter
from brimful.server.jobfiles.pasted import as_job_file, read_pasted
from brimful.server.rehearsing.forecaster import Forecaster
from brimful.server.service.reader import Reader
from brimful.server.service.submissions import Submissions
from brimful.server.views.money import prices_view
from brimful.server.views.why import pool_view
from brimful.units import HOUR_S

Kind = Literal["form", "brimful", "sbatch", "skypilot", "config"]
MOST_TYPES = 8
NIGHT_H = 24


def check_view(
    reader: Reader,
    who: Principal,
    fitter: Fitter,
    forecaster: Forecaster | None,
    asked: CheckRequest,
    *,
    check: Callable[[Job, Tasks | None], None],
) -> CheckAnswer:
    """Stores nothing. Problems are part of the answer, and the rest is answered all the same.

    Without a `forecaster` the start time is not estimated. `check` raises what a submit would raise.
    """
    problems: list[BrimfulError] = []
    notes: list[Sentence] = []
    kind: Kind = "form"
    body, config = dict(asked.job), asked.config
    if asked.text.strip():
        try:
            found = read_pasted(asked.text)
        except BrimfulError as error:
            problems.append(error)
        else:
            if found is None:
                config, kind = asked.text, "config"
            else:
                body, kind = dict(found.body), cast("Kind", found.kind)
                body["folder"] = found.body["folder"] or asked.job.get("folder", "")
                notes += [*found.notes, *_dropped(found.unsupported)]
                body |= {} if found.steps is None else {"steps": found.steps}
    fits: Mapping[str, Any] = {}
    types = sorted({pool.gpu for pool in reader.fleet.capacity.pools})[:MOST_TYPES]
    if config.strip() and types:
        try:
            settled: dict[str, Any] = {"text": "", "model": "", "settings": [], "other_bytes": None}
            cards = fitter.ask(asker=who.name, config=config, gpus=types, **settled)
            fits = {card["gpu"]: card["estimate"] for card in cards["cards"]}
        except BrimfulError as error:
            problems.append(error)
        body["predicted"] = {gpu: _predicted(each) for gpu, each in fits.items() if each["fits"]}
    job = _job(reader, who, body, problems, check)
    pools = [] if job is None else _pools(reader, job)
    # If it can never run there is nothing to rehearse: the pools say why.
    forecast, forecasting = None, False
    if forecaster is not None and job is not None and not problems and any(pool["can"] for pool in pools):
        forecast, forecasting = forecaster.so_far(job)
    return {
        "kind": kind,
        "job": body,
        "file": as_job_file(body),
        "notes": [told(note) for note in notes],
        "problems": [_problem(each) for each in problems],
        "fits": dict(fits),
        "ahead": None if job is None else _ahead(reader, job),
        "pools": pools,
        "forecast": forecast,
        "forecasting": forecasting,
    }


def _problem(error: BrimfulError) -> CheckProblem:
    return cast("CheckProblem", {**error.as_dict(told), "status": status_of(error)})


def _dropped(unsupported: Mapping[str, Sentence]) -> list[Sentence]:
    return [say("jobfile.left_out", field=field, why=why) for field, why in unsupported.items()]


def _predicted(estimate: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "peak_bytes": round(estimate["memory"]["device_bytes"]["likely"]),
        "step_s": estimate["speed"]["step_s"]["likely"],
        "mfu": estimate["speed"]["mfu"]["likely"],
    }


def _job(
    reader: Reader,
    who: Principal,
    body: Mapping[str, Any],
    problems: list[BrimfulError],
    check: Callable[[Job, Tasks | None], None],
) -> Job | None:
    try:
        submission = Submission.model_validate(body)
        tasks = submission.tasks()
        job = submission.as_job(who, "")
    except ValidationError as error:
        problems.append(bad_shape(error.errors()))
        return None
    except BrimfulError as error:
        problems.append(error)
        return None
    if not who.sees(job.tenant):
        raise other_team(who, job.tenant)
    try:
        check_named(reader, None, who, replace(job, code=""))
    except BrimfulError as error:
        problems.append(error)
        return None
    try:
        if not who.may("submitter", job.tenant):
            raise forbidden(who, "submitter")
        check(job, tasks)
    except BrimfulError as error:  # where it fits is told all the same
        problems.append(error)
    return job


def _ahead(reader: Reader, job: Job) -> int:
    """Waiting jobs that are at least as urgent: they came first."""
    mine = PRIORITIES[job.priority]
    return sum(PRIORITIES[each.job.priority] <= mine for each in reader.fleet.waiting.values())


def _pools(reader: Reader, job: Job) -> list[CheckPoolAnswer]:
    with reader.locked():
        now_s = reader.now_s()
        state = JobState(job, -1, -1, now_s, now_s)
        quotes = {Pool(p["site"], p["gpu"], p["tier"]): p["ahead"][:NIGHT_H] for p in prices_view(reader)}
        return [
            _pool(reader, state, pool, quotes.get(pool, [])) for pool in sorted(reader.fleet.capacity.pools)
        ]


def _pool(reader: Reader, state: JobState, pool: Pool, quotes: Any) -> CheckPoolAnswer:  # noqa: ANN401 - quotes
    job, view = state.job, pool_view(reader, state, pool)
    price = view["microusd_per_gpu_hour"]
    cheapest = min(quotes, key=lambda each: each["microusd_per_gpu_hour"], default=None)
    night = price if cheapest is None else cheapest["microusd_per_gpu_hour"]
    needs = dict(job.peak_bytes).get(pool.gpu)
    can = view["rate"] > 0 and view["gpus"] >= job.gpus and too_small(job, pool.gpu) is None
    longest_s = job.max_run_s
    return {
        "site": pool.site,
        "gpu": pool.gpu,
        "tier": pool.tier,
        "free": view["free"],
        "gpus": view["gpus"],
        "verdict": view["verdict"],
        "can": can,
        "chance": view["chance"] if can else None,
        "starts_s": _starts_s(reader, job, pool) if can else None,
        "needs_bytes": needs,
        "usable_bytes": usable_bytes(pool.gpu),
        "microusd_per_gpu_hour": price,
        "microusd_per_hour": price * job.gpus,
        "tonight_s": None if cheapest is None else cheapest["at_s"],
        "tonight_microusd_per_hour": night * job.gpus,
        "most_microusd": None if longest_s is None else price * job.gpus * longest_s // HOUR_S,
        "tonight_most_microusd": None if longest_s is None else night * job.gpus * longest_s // HOUR_S,
    }


def _starts_s(reader: Reader, job: Job, pool: Pool) -> int | None:
    """When enough GPUs are free if nobody else goes first; None if no time limit tells."""
    fleet, now_s = reader.fleet, reader.now_s()
    free = fleet.capacity.pools[pool].free
    if free >= job.gpus:
        return now_s
    ends = []
    for lease in fleet.leases_at.get(pool.site, {}).values():
        held, node = fleet.jobs[lease.job], fleet.nodes.get(lease.node)
        if node is not None and node.pool == pool and held.job.max_run_s is not None:
            began_s = lease.granted_s if lease.started_s is None else lease.started_s
            ends.append((began_s + held.job.max_run_s - held.run_s, lease.size))
    for end_s, size in sorted(ends):
        free += size
        if free >= job.gpus:
            return max(now_s, end_s)
    return None


def start_view(reader: Reader, forecaster: Forecaster, state: JobState) -> StartAnswer:
    """When a job that waits for GPUs is likely to start; nothing where the fleet could never hold it."""
    job = state.job
    with reader.locked():
        capacity = reader.fleet.capacity
        could = state.phase == "waiting" and any(
            capacity.could_hold(job, pool)
            for pool in capacity.pools
            if job.may_be_in(site=pool.site, tier=pool.tier) and job.rate(pool.gpu) > 0
        )
    if not could:
        return {"forecast": None, "forecasting": False}
    forecast, forecasting = forecaster.so_far(job)
    return {"forecast": forecast, "forecasting": forecasting}


def add_check_route(
    router: APIRouter,
    reader: Reader,
    submissions: Submissions,
    fitter: Fitter,
    forecaster: Forecaster,
    *,
    gate: Gate,
) -> None:
    viewer = gate.needs("viewer")

    @router.post("/jobs/check", response_model=envelope(CheckAnswer), responses=COMMON)
    def check(asked: CheckRequest, who: Principal = viewer) -> Response:
        """What would happen to a job: where it fits, when it could start, what it would cost."""
        return ok(check_view(reader, who, fitter, forecaster, asked, check=submissions.check))

    @router.get("/jobs/{name}/start", response_model=envelope(StartAnswer), responses=COMMON)
    def start(name: JobName, who: Principal = viewer) -> Response:
        """When a job that waits is likely to start."""
        return ok(start_view(reader, forecaster, job_for(reader, who, name)))
