"""Requests that arrive while others are being answered are answered together, by one thread.

A separate thread per request costs more than most answers, and the threads would wait for each other anyway:
for the readers' shared lock, or for the disk that a transaction is flushed to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from starlette.concurrency import run_in_threadpool

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

MAX_TOGETHER = 64  # otherwise the first would wait too long for the last


class Together(Generic[Asked, Answer]):
    def __init__(self, answer: Callable[[Sequence[Asked]], Sequence[Answer | Exception]]) -> None:
        """`answer` runs in a thread, one batch at a time, and returns an answer or an error for each."""
        self._answer = answer
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue[Asked, Answer]] = (
            WeakKeyDictionary()
        )

    async def ask(self, asked: Asked) -> Answer:
        loop = asyncio.get_running_loop()
        waiting = self._queues.setdefault(loop, _Queue())
        future: asyncio.Future[Answer] = loop.create_future()
        waiting.those.append((asked, future))
        if waiting.at_work is None or waiting.at_work.done():
            waiting.at_work = loop.create_task(self._work(waiting.those))
        return await future

    async def _work(self, those: _Waiting[Asked, Answer]) -> None:
        while those:
            batch = [those.popleft() for _ in range(min(len(those), MAX_TOGETHER))]
            try:
                answers = await run_in_threadpool(self._answer, [asked for asked, _ in batch])
            except Exception as error:  # noqa: BLE001 - every request of the batch gets it
                answers = [error] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():  # nobody waits for it any more
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)


_Waiting = deque[tuple[Asked, "asyncio.Future[Answer]"]]


class _Queue(Generic[Asked, Answer]):
    def __init__(self) -> None:
        self.those: _Waiting[Asked, Answer] = deque()
        self.at_work: asyncio.Task[None] | None = None  # an event loop drops tasks that nobody references


def each_alone(calls: Sequence[Callable[[], Answer]]) -> list[Answer | Exception]:
    """What each of them returns or raises."""
    answers: list[Answer | Exception] = []
    for call in calls:
        try:
            answers.append(call())
        except Exception as error:  # noqa: BLE001 - raised again by its caller
            answers.append(error)
    return answers
