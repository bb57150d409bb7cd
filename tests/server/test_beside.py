"""What is done beside the loop goes on whatever happens, and only where the server leads."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from brimful.errors import WorldFailed
from brimful.language import say
from brimful.server.service.beside import Beside
from tests.builders import eventually


def done(act: Callable[[int], None], *, until: int, leads: Callable[[], bool] | None = None) -> int:
    """How often it was done when that was at least `until` times."""
    count = itertools.count(1)
    seen = [0]

    def once() -> None:
        seen[0] = next(count)
        act(seen[0])

    beside = Beside("a test", once, every_s=0.001, leads=leads)
    beside.start()
    eventually(lambda: seen[0] >= until)
    beside.stop()
    return seen[0]


@pytest.mark.parametrize("error", [WorldFailed(say("adapters.vanished")), ZeroDivisionError()])
def test_an_error_is_logged_and_the_next_round_comes(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def act(number: int) -> None:
        if number == 1:
            raise error

    done(act, until=3)
    assert "a test" in caplog.text


def test_a_server_that_does_not_lead_does_nothing_until_it_does() -> None:
    asked = itertools.count()
    leading: list[bool] = []

    def leads() -> bool:
        leading.append(next(asked) >= 3)
        return leading[-1]

    acted: list[bool] = []
    done(lambda _: acted.append(leading[-1]), until=1, leads=leads)
    assert leading[:4] == [False, False, False, True]
    assert all(acted)
