"""The API's answers about what a job measured over time."""

from __future__ import annotations

from typing import TypedDict

from brimful.client.answers import Utc


class PointAnswer(TypedDict):
    """One step of many; null where the Meter did not say."""

    at_s: Utc
    step: int | None
    step_s: float | None
    tokens_per_s: float | None
    mfu: float | None
    peak_reserved_bytes: int | None


class CourseAnswer(TypedDict):
    """What the newest lease measured over time, since this server first looked: at most 60 points."""

    lease: str | None
    points: list[PointAnswer]
