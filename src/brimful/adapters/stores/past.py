"""Jobs that have left memory: one row each, complete enough to answer every question about them."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa

from brimful.fleet.events import job_from_record
from brimful.fleet.job import Job
from brimful.fleet.lease import JobState, Lease
from brimful.language.record import as_record, said_in

_NAMES = {kind: tuple(each.name for each in fields(kind) if each.init) for kind in (JobState, Job, Lease)}
_REASONS = {"reason", "notice", "hold_reason"}  # sentences


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    state: JobState
    spent_microusd: int


def past_job_row(past: PastJob) -> dict[str, Any]:
    state = past.state
    return {
        "serial": state.serial,
        "job": state.job.job,
        "tenant": state.job.tenant,
        "phase": state.phase,
        "spent_microusd": past.spent_microusd,
        "body": json.dumps(_plain(state)),
    }


def _plain(noun: Any) -> dict[str, Any]:  # noqa: ANN401 - a state, its job or a lease
    """Like `asdict`, without its copies."""
    body = {name: getattr(noun, name) for name in _NAMES[type(noun)]}
    for name in _REASONS.intersection(body):
        body[name] = as_record(body[name])
    if isinstance(noun, JobState):
        body |= {"job": _plain(noun.job), "leases": [_plain(each) for each in noun.leases]}
    return body


def past_job_from(row: sa.Row[Any]) -> PastJob:
    body = json.loads(row.body)
    body["job"] = job_from_record(body["job"])
    body["leases"] = [_lease_from(each) for each in body["leases"]]
    return PastJob(state=JobState(**_said(body)), spent_microusd=row.spent_microusd)


def _lease_from(body: dict[str, Any]) -> Lease:
    """JSON has only lists."""
    body["gpus"], body["exit_codes"] = tuple(body["gpus"]), tuple(body.get("exit_codes", ()))
    body["before"] = tuple((end_s, speed) for end_s, speed in body.get("before", ()))
    body["notices"] = tuple((at_s, what, until_s) for at_s, what, until_s in body.get("notices", ()))
    for name in ("rest", "runs_on"):
        body[name] = tuple((node, tuple(gpus)) for node, gpus in body.get(name, ()))
    return Lease(**_said(body))


def _said(body: dict[str, Any]) -> dict[str, Any]:
    return {name: said_in(value) if name in _REASONS else value for name, value in body.items()}
