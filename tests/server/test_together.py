"""Requests that are answered together: each gets its own answer, error and language, and nobody is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path

import pytest
from starlette.responses import Response

from brimful.client.answers import JobAnswer
from brimful.fleet.state import JobState
from brimful.server.api import jobs
from brimful.server.api.together import MAX_TOGETHER, Together, each_alone
from brimful.server.service.intake import Pending
from brimful.server.service.reader import Reader
from brimful.server.views.jobs import job_view
from tests.builders import a_job
from tests.patience import PATIENCE_S
from tests.server.builders import wind_down
from tests.server.test_api import Server


def test_those_that_come_meanwhile_share_the_next_batch() -> None:
    gate, batches = threading.Event(), list[int]()

    def double(asked: Sequence[int]) -> list[int | Exception]:
        batches.append(len(asked))
        assert gate.wait(PATIENCE_S)
        return [2 * each for each in asked]

    async def ask_all() -> list[int]:
        together = Together(double)
        first = asyncio.create_task(together.ask(0))
        while not batches:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(together.ask(number)) for number in range(1, 101)]
        await asyncio.sleep(0)
        gate.set()
        return list(await asyncio.gather(first, *others))

    assert asyncio.run(ask_all()) == [2 * number for number in range(101)]
    assert batches == [1, MAX_TOGETHER, 100 - MAX_TOGETHER]


def test_what_goes_wrong_with_one_is_its_own() -> None:
    def fail() -> str:
        raise ValueError("mine")

    async def ask_all() -> list[object]:
        together: Together[Callable[[], str], str] = Together(each_alone)
        asked = (together.ask(fail), together.ask(lambda: "fine"))
        return list(await asyncio.gather(*asked, return_exceptions=True))

    wrong, fine = asyncio.run(ask_all())
    assert isinstance(wrong, ValueError)
    assert fine == "fine"


def test_what_goes_wrong_with_all_reaches_each_and_the_next_is_answered() -> None:
    broken = True

    def answer(asked: Sequence[int]) -> list[int | Exception]:
        if broken:
            raise OSError("no disk")
        return [*asked]

    async def ask_twice() -> None:
        nonlocal broken
        together = Together(answer)
        for outcome in await asyncio.gather(together.ask(1), together.ask(2), return_exceptions=True):
            assert isinstance(outcome, OSError)
        broken = False
        assert await together.ask(3) == 3

    asyncio.run(ask_twice())


def test_one_that_went_away_keeps_nobody_waiting() -> None:
    gate = threading.Event()

    def answer(asked: Sequence[int]) -> list[int | Exception]:
        assert gate.wait(PATIENCE_S)
        return [*asked]

    async def ask() -> int:
        together = Together(answer)
        gone = asyncio.create_task(together.ask(1))
        await asyncio.sleep(0)
        kept = asyncio.create_task(together.ask(2))
        await asyncio.sleep(0)
        gone.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await kept

    assert asyncio.run(ask()) == 2


def test_one_job_that_cannot_be_shown_spoils_no_others_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)

    def sometimes(reader: Reader, state: JobState, *, explain: bool = True) -> JobAnswer:
        if state.job.name == "bad":
            raise KeyError("a bug")
        return job_view(reader, state, explain=explain)

    monkeypatch.setattr(jobs, "job_view", sometimes)
    asked = [(Pending(a_job("", name=name)), copy_context()) for name in ("good", "bad", "fine")]
    good, bad, fine = jobs._submit_all(server.service.reader, server.service.submissions, asked)
    assert isinstance(bad, KeyError)
    for each in (good, fine):
        assert isinstance(each, Response)
        assert each.status_code == 201
    assert sorted(server.service.reader.fleet.jobs) == ["job-1", "job-2", "job-3"]
    wind_down(server.service)
    server.store.close()
