"""What the API answers about the policy in force and rehearsals of the server's own past."""

from __future__ import annotations

from typing import Annotated, TypedDict

from brimful.client.answers import Utc


class CandidateAnswer(TypedDict):
    policy: str
    mean_jct_s: Annotated[int | None, "of the jobs submitted in that time; null: there are none"]
    p99_jct_s: int | None
    mean_delay_s: Annotated[int | None, "finish - ready - work"]
    deadlines_kept: int
    fill: Annotated[float | None, "held GPU time / GPU time there was"]
    gain: Annotated[
        float | None, "of the policy in force's job-hours: 0.3 is 30 % fewer; null: that one itself"
    ]
    least_gain: Annotated[float | None, "the same with chance allowed for; a change needs more than 0.1"]
    is_better: Annotated[bool, "the evidence is enough to change to it"]


class RehearsalAnswer(TypedDict):
    since_s: Utc
    until_s: Utc
    jobs: Annotated[int, "submitted in that time"]
    deadlines: int
    cpu_s: float
    candidates: Annotated[list[CandidateAnswer], "the policy in force first"]


class WhatIfAnswer(RehearsalAnswer):
    nodes: Annotated[int, "how many more there were, or fewer"]


class PolicyAnswer(TypedDict):
    policy: Annotated[str, "that decides now"]
    configured: Annotated[str, "that the server was started with"]
    since_s: Annotated[int | None, "UTC second of its adoption; null: since the server was set up so"]
    by: Annotated[str, "who adopted it; empty: the server itself, or nobody did"]
    reason: Annotated[str, "the evidence on which it was adopted"]
    adopts: Annotated[bool, "the server changes its policy by itself"]
    cpu_percent: Annotated[int, "of one core for rehearsals by itself; 0: none"]
    proposal: Annotated[str | None, "the policy that the newest rehearsal found better; null: none"]
    rehearsed: Annotated[RehearsalAnswer | None, "the newest rehearsal"]
    what_if: Annotated[list[WhatIfAnswer], "the newest with other nodes, one for each size asked for"]
    running: Annotated[bool, "one that somebody asked for is under way"]
    problem: Annotated[str | None, "why the last one that somebody asked for has no result"]
