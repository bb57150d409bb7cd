"""What the log keeps of a sentence, and what it keeps of what a job says of itself."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from brimful.language import LANGUAGES, Number, Percent, Seconds, Several, choose, language, say, verbatim
from brimful.language.record import as_record, said_by_anybody, said_in

LIMIT = 500

HOSTILE: list[Any] = [
    {"code": "language.verbatim", "text": {"plain": {"a": [1]}}},
    {"code": "language.verbatim", "text": {"quoted": {"a": 1}}},
    {"code": "language.verbatim", "text": {"seconds": 1e308}},
    {"code": "language.verbatim", "text": {"number": 1, "digits": "1"}},
    {"code": "adapters.vanished", "x": {"number": float("nan")}},
    {"code": "adapters.vanished", "x": float("inf")},
    {"code": "adapters.exit_code", "exit_code": {"number": 1, "digits": 10**8}},
    {"code": "adapters.vanished", "x": "A" * 2_000_000},
    {"code": "adapters.vanished", "x": {"parts": [{"quoted": "A" * 1000}] * 1000}},
    {"code": "../../../etc/passwd.x"},
    {"code": "nope.nope", "a": 1},
    {"code": "adapters.exit_code"},
    {"code": 5},
    {"x": 1},
    {},
    [],
    5,
    True,
    1e308,
    "\ud800 hi",
    "x" * 10_000,
    {"seconds": "1"},
    {"parts": 5},
    {"frac": None},
    "{code} {0} %s",
]


def nested(depth: int) -> Any:
    made: Any = "x"
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize("record", [*HOSTILE, nested(100), nested(5000)], ids=itertools.count())
def test_whatever_a_job_says_can_be_kept_sent_and_read(record: Any) -> None:
    said = said_by_anybody(record, most_chars=LIMIT)
    kept = as_record(said)
    body = json.dumps(kept, ensure_ascii=False, allow_nan=False).encode()
    assert len(body) <= 4 * LIMIT
    again = said_in(json.loads(body))
    for code in LANGUAGES:
        assert len(language(code).text(again)) <= 2 * LIMIT
    if said is not None:
        json.dumps(said.as_dict(), allow_nan=False).encode()
        said.hint()


@pytest.mark.parametrize(
    "said",
    [
        say("adapters.vanished"),
        say("adapters.exit_code", exit_code=Number(3)),
        verbatim("somebody's words"),
        Several((say("adapters.vanished"), verbatim("x")), between="; "),
        say("server.waits", why=Several((Seconds(3.5), Percent(0.5, 1)))),
    ],
)
def test_what_we_say_is_read_as_it_was(said: Any) -> None:
    record = json.loads(json.dumps(as_record(said)))
    assert str(said_in(record)) == str(said)
    assert str(said_by_anybody(record)) == str(said)


def test_a_code_of_another_version_is_shown_with_its_values() -> None:
    choose("en")
    said = said_in({"code": "nope.later", "longest": {"seconds": 3600}})
    assert said is not None
    assert (str(said), said.hint()) == ("nope.later longest=1 h 00 min", None)
    assert str(said_in({"code": "adapters.later", "n": 2})) == "adapters.later n=2"


@pytest.mark.parametrize("record", [5, {"x": 1}, {}, {"code": 5}, {"number": 1, "digits": 10**9}])
def test_a_record_that_is_none_is_refused(record: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        said_in(record)
