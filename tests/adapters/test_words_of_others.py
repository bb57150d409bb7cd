"""What a Pod leaves as its last words, or a machine says: a job or its owner may have written any of it."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.engines.kubernetes.client import Api
from brimful.adapters.engines.kubernetes.look import Rank, ended
from brimful.adapters.engines.kubernetes.manifests import Record
from brimful.adapters.engines.kubernetes.spool import Spool
from brimful.adapters.engines.runner import BEGINS
from brimful.adapters.engines.ssh.wire import greeting_in, piece_in, sample_in, seen_in
from brimful.fleet.events import MALFORMED

NEVER = [10**17, 10**400, float("inf"), float("-inf"), float("nan"), -(10**400), 1e300]


def last_seen(message: str, **more: str) -> tuple[float, float]:
    """When it began and ended, as the loop takes it."""
    end = {"exitCode": 1, "message": message, "startedAt": "2026-01-01T00:00:00Z", **more}
    status = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": end}}]}
    rank = Rank({"metadata": {"name": "p"}, "spec": {"nodeName": "n"}, "status": status})
    record = Record(lease="a.1", state="released", facts={"speed": 1.0}, thing={"metadata": {"name": "r"}})
    seen = ended(record, [rank], began={}, lost={}, keeps=False)
    assert seen.started_s is not None
    assert 0 <= seen.moved_bytes <= 1 << 60
    over_s = seen.started_s if seen.ended_s is None else seen.ended_s
    return int(seen.started_s - seen.skew_s), int(over_s - seen.skew_s)


def test_last_words_that_are_nested_a_thousand_deep_are_none() -> None:
    assert last_seen("[" * 4096) == last_seen("")


@pytest.mark.parametrize("never", NEVER, ids=lambda each: str(each)[:9])
@pytest.mark.parametrize("name", ["started_s", "at_s", "resumes_s", "moved_bytes", "sealed_s"])
def test_the_moments_of_a_pod_have_been(name: str, never: float) -> None:
    began_s, over_s = last_seen(json.dumps({"exit_code": 1, name: never}))
    assert 0 <= began_s <= over_s <= time.time() + 1


def test_a_pod_has_not_ended_before_its_kubelet_says_so() -> None:
    began_s, _ = last_seen("")
    words = json.dumps({"exit_code": 1, "started_s": began_s, "at_s": began_s + 1})
    assert last_seen(words, finishedAt="2026-01-01T10:00:00Z") == (began_s, began_s + 36_000)


class Prints(Api):
    """A Pod's log, once."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def log(self, pod: str, *, since: str, limit_bytes: int) -> bytes:
        assert since in ("", "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z")
        return self.pieces.pop(0) if self.pieces else b""


def test_what_comes_after_a_carriage_return_is_no_moment(tmp_path: Path) -> None:
    first, second = (f"2026-01-01T00:00:0{i}.5Z ".encode() for i in (1, 2))
    api = Prints(first + b"  9%\r 45%\r~~~ done\n", second + b"after\n")
    spool = Spool(tmp_path, api, log_bytes=0)
    spool.bring("a.1", 0, "p")
    spool.bring("a.1", 0, "p")
    assert spool.read("a.1", 0, offset=0, limit=100).data == b"  9%\r 45%\r~~~ done\nafter\n"


@pytest.mark.parametrize("never", [*NEVER, "x", None, [[]]], ids=lambda each: str(each)[:9])
def test_a_pod_says_any_moment_for_its_beginning(tmp_path: Path, never: object) -> None:
    body = json.dumps({"at_s": never, "resumes_s": 0}).encode()
    spool = Spool(tmp_path, Prints(b"2026-01-01T00:00:01.5Z " + BEGINS + body + b"\n"), log_bytes=0)
    spool.bring("a.1", 0, "p")
    assert 0 <= spool.began("a.1", 0)["at_s"] <= 1 << 33


@pytest.mark.parametrize("name", ["skew_s", "kept_work_s", "started_s"])
@pytest.mark.parametrize(
    "never", [float("inf"), float("nan"), float("-inf"), 10**400, 1e300], ids=lambda each: str(each)[:9]
)
def test_a_machine_that_says_a_number_that_is_none_is_not_believed(name: str, never: float) -> None:
    told: dict[str, Any] = {"lease": "a.1", "state": "running", "cause": None, "problem": None}
    told |= dict.fromkeys(("started_s", "ended_s", "exit_code", "kept_work_s", "resumes_s"))
    told |= {"exit_codes": [], "skew_s": 0.0, "moved_bytes": 0}
    said = {"rank": 0, "ranks": 1, "devices": []}
    assert seen_in({**said, "observation": told}, ["a.1"]).observation.skew_s == 0
    with pytest.raises(MALFORMED):
        seen_in({**said, "observation": {**told, name: never}}, ["a.1"])
    with pytest.raises(MALFORMED):
        greeting_in([1, never, "10.0.0.1", None])


@pytest.mark.parametrize("address", ["10.0.0.5", "fe80::1%eth0", "gpu-1.example.org"])
def test_a_machine_says_at_which_address_others_reach_it(address: str) -> None:
    assert greeting_in([1, 2.0, address, None])[1] == address
    strange: list[Any] = ["", "a\0b", "a b", "a\nb", "x" * 101, []]
    for never in strange:
        with pytest.raises(MALFORMED):
            greeting_in([1, 2.0, never, None])


def test_a_machine_sends_the_piece_of_a_log_that_was_asked_for() -> None:
    def piece(start: int, data: bytes, size: int) -> bytes:
        said = [start, base64.b64encode(data).decode(), size]
        return piece_in(said, offset=10, limit=4).data

    assert piece(10, b"abcd", 14) == b"abcd"
    assert piece(12, b"ab", 99) == b"ab", "what came before is gone"
    assert piece(5, b"", 5) == b"", "it has no more"
    for start, data, size in ((10, b"abcde", 99), (0, b"abcd", 99), (-1, b"", 9), (10, b"abcd", -3)):
        with pytest.raises(MALFORMED):
            piece(start, data, size)


def test_a_machine_sends_a_sample_that_a_job_could_have_written() -> None:
    assert sample_in(base64.b64encode(b"{}").decode()) == b"{}"
    assert sample_in("A" * (1 << 20)) is None
    assert sample_in(3) is None
