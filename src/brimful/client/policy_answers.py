"""The API's answers about the active policy and rehearsals of the server's own past."""

from __future__ import annotations

from typing import Annotated, TypedDict

from brimful.client.answers import Utc


class CandidateAnswer(TypedDict):
    policy: str
    mean_jct_s: Annotated[int | None, "of jobs submitted in that time; null: none"]
    p99_jct_s: int | None
    mean_delay_s: Annotated[int | None, "finish - ready - work"]
    deadlines_kept: int
    fill: Annotated[float | None, "GPU time held / GPU time available"]
    gain: Annotated[
        float | None,
        "reduction of job-hours against the active policy: 0.3 is 30 % fewer; null: the active policy itself",
    ]
    least_gain: Annotated[float | None, "the same, allowing for chance; a change needs more than 0.1"]
    is_better: Annotated[bool, "there is enough evidence to change to it"]


class RehearsalAnswer(TypedDict):
    since_s: Utc
    until_s: Utc
    jobs: Annotated[int, "submitted in that time"]
    deadlines: int
    cpu_s: float
    candidates: Annotated[list[CandidateAnswer], "the active policy first"]


class WhatIfAnswer(RehearsalAnswer):
    nodes: Annotated[int, "nodes added (positive) or removed"]


class PolicyAnswer(TypedDict):
    policy: Annotated[str, "the active policy"]
    configured: Annotated[str, "the policy the server was started with"]
    since_s: Annotated[int | None, "UTC second of its adoption; null: it is the configured one"]
    by: Annotated[str, "who adopted it; empty: the server itself, or it is the configured one"]
    reason: Annotated[str, "the evidence on which it was adopted"]
    adopts: Annotated[bool, "whether the server changes its policy by itself"]
    cpu_percent: Annotated[int, "share of one core for automatic rehearsals; 0: none"]
    proposal: Annotated[str | None, "the policy that the newest rehearsal found better; null: none"]
    rehearsed: Annotated[RehearsalAnswer | None, "the newest rehearsal"]
    what_if: Annotated[list[WhatIfAnswer], "the newest rehearsals with other nodes, one per requested size"]
    running: Annotated[bool, "a requested rehearsal is running"]
    problem: Annotated[str | None, "why the last requested rehearsal has no result"]
