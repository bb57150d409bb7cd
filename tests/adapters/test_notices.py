"""A cloud takes the machine back: its documented answers, given by a local server, reach a real job."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError

import pytest

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.providers.notices import AT, Notice, asker
from brimful.adapters.sites import read_sites_file
from brimful.errors import BadInput
from brimful.fleet.job import Job
from brimful.scheduler.ports import Observation
from tests.builders import a_node, code_of, eventually, start_one

TOKEN = "AQAEAL-token"


class Metadata:
    """What a machine's metadata service answers: by path, a status and a text."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                headers = {key.lower(): value for key, value in self.headers.items()}
                outer.asked.append((self.command, self.path, headers))
                status, text = outer.answers.get(self.path.partition("?")[0], (404, "Not Found"))
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = _answer  # noqa: N815 - the standard library's names

            def log_message(self, *_args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    service = Metadata()
    yield service
    service.close()


def aws_says(metadata: Metadata, at: datetime) -> None:
    metadata.answers["/latest/api/token"] = (200, TOKEN)
    said = {"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    metadata.answers["/latest/meta-data/spot/instance-action"] = (200, json.dumps(said))


def test_aws_tells_the_moment_and_wants_a_token(metadata: Metadata) -> None:
    metadata.answers["/latest/api/token"] = (200, TOKEN)
    ask = asker(f"aws@{metadata.url}")
    assert ask() is None
    at = datetime(2026, 11, 17, 8, 22, tzinfo=UTC)
    aws_says(metadata, at)
    assert ask() == Notice(at.timestamp())
    first, second, third = metadata.asked
    assert (first[0], first[1]) == ("PUT", "/latest/api/token")
    assert first[2]["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
    assert {second[2]["x-aws-ec2-metadata-token"], third[2]["x-aws-ec2-metadata-token"]} == {TOKEN}


def test_an_aws_token_that_has_expired_is_asked_for_again(metadata: Metadata) -> None:
    metadata.answers["/latest/api/token"] = (200, TOKEN)
    ask = asker(f"aws@{metadata.url}")
    assert ask() is None
    metadata.answers["/latest/meta-data/spot/instance-action"] = (401, "")
    with pytest.raises(HTTPError):
        ask()
    aws_says(metadata, datetime(2026, 11, 17, tzinfo=UTC))
    assert ask() is not None
    assert [verb for verb, _, _ in metadata.asked].count("PUT") == 2


def test_gcp_leaves_half_a_minute_from_when_it_was_first_seen(metadata: Metadata) -> None:
    path = "/computeMetadata/v1/instance/preempted"
    metadata.answers[path] = (200, "FALSE")
    ask = asker(f"gcp@{metadata.url}")
    assert ask() is None
    metadata.answers[path] = (200, "TRUE")
    before_s = time.time()
    first = ask()
    assert first is not None
    assert before_s + 30 <= first.deadline_s <= time.time() + 30
    assert ask() == first
    assert metadata.asked[0][2]["metadata-flavor"] == "Google"


def azure_event(kind: str, machine: str, not_before: str, status: str = "Scheduled") -> dict[str, object]:
    event = {"EventId": kind + machine, "EventStatus": status, "EventType": kind, "NotBefore": not_before}
    return {**event, "ResourceType": "VirtualMachine", "Resources": [machine]}


def test_azure_heeds_the_end_of_this_machine_alone(metadata: Metadata) -> None:
    at = datetime(2026, 9, 19, 18, 29, 47, tzinfo=UTC)
    others = [azure_event("Preempt", "pool_7", format_datetime(at, usegmt=True))]
    others.append(azure_event("Freeze", "pool_3", format_datetime(at, usegmt=True)))
    metadata.answers["/metadata/instance/compute/name"] = (200, "Pool_3")
    path = "/metadata/scheduledevents"
    metadata.answers[path] = (200, json.dumps({"DocumentIncarnation": 1, "Events": others}))
    ask = asker(f"azure@{metadata.url}")
    assert ask() is None
    ours = azure_event("Preempt", "pool_3", format_datetime(at, usegmt=True))
    metadata.answers[path] = (200, json.dumps({"DocumentIncarnation": 2, "Events": [*others, ours]}))
    assert ask() == Notice(at.timestamp())
    assert all(headers["metadata"] == "true" for _, _, headers in metadata.asked)


def test_azure_without_a_moment_has_begun(metadata: Metadata) -> None:
    metadata.answers["/metadata/instance/compute/name"] = (200, "vm")
    events = {"Events": [azure_event("Preempt", "vm", "", status="Started")]}
    metadata.answers["/metadata/scheduledevents"] = (200, json.dumps(events))
    ask = asker(f"azure@{metadata.url}")
    before_s, first = time.time(), ask()
    assert first is not None
    assert before_s + 30 <= first.deadline_s <= time.time() + 30
    assert ask() == first


SIGNAL = "instance_status: STATUS_PREEMPTING\nbid_status: Preempting\nend_time: '2026-11-17T08:22:00Z'\n"


def test_mithrils_file_comes_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "MITHRIL_SIGNAL.yml"
    ask = asker(f"mithril@{path}")
    assert ask() is None
    path.write_text(SIGNAL)
    at = datetime(2026, 11, 17, 8, 22, tzinfo=UTC)
    assert ask() == Notice(at.timestamp(), may_stay=True)
    path.write_text(
        "instance_status: STATUS_RUNNING\nbid_status: Relocating\nend_time: 2026-11-17T08:22:00Z\n"
    )
    assert ask() is None
    path.write_text("instance_status: STATUS_RELOCATING\n")
    found = ask()
    assert found is not None
    assert abs(found.deadline_s - path.stat().st_mtime - 300) < 1
    path.unlink()
    assert ask() is None


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"time": "soon"}', '{"time": 5}', "\xff" * 100])
def test_what_makes_no_sense_is_no_notice_and_no_crash(metadata: Metadata, text: str) -> None:
    aws_says(metadata, datetime(2026, 1, 1, tzinfo=UTC))
    metadata.answers["/latest/meta-data/spot/instance-action"] = (200, text)
    with pytest.raises((OSError, ValueError, KeyError, TypeError)):
        asker(f"aws@{metadata.url}")()


def test_a_site_names_its_cloud(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text('[spot]\nnotices = "aws"\n')
    assert read_sites_file(path)[0].notices == "aws"
    path.write_text('[spot]\nnotices = "ibm"\n')
    with pytest.raises(BadInput, match="'ibm' is not one of aws, gcp, azure, mithril"):
        read_sites_file(path)
    assert set(AT) == {"aws", "gcp", "azure", "mithril"}


# -- what a job sees of it -----------------------------------------------------------------------------------

JOB = """
import os, pathlib, signal, sys, time
here, notice = pathlib.Path(sys.argv[1]), pathlib.Path(os.environ["BRIMFUL_NOTICE"])
def leave(*_):
    (here / "told").write_text(notice.read_text())
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
(here / "begun").touch()
while True:
    time.sleep(0.05)
"""


class Machine:
    def __init__(self, folder: Path, notices: str) -> None:
        self.folder = folder
        self.engine = LocalEngine(folder / "leases", [a_node()], notices=notices)
        job = Job(job="a", gpus=1, command=(sys.executable, "-c", JOB, str(folder)), folder=str(folder))
        start_one(self.engine, "a.1", job, node="node-0", gpus=(0,))
        eventually((folder / "begun").exists)

    def look(self) -> Observation | None:
        return next(iter(self.engine.observe(["a.1"])), None)

    def has_ended(self) -> bool:
        seen = self.look()
        return seen is not None and seen.state == "ended"

    def is_reaped(self) -> bool:
        return self.has_ended() and not self.engine._runners

    def notice(self) -> dict[str, object] | None:
        path = self.folder / "leases" / "a.1" / "notice.json"
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    made: list[Machine] = []

    def make(notices: str) -> Machine:
        made.append(Machine(tmp_path, notices))
        return made[-1]

    yield make
    for each in made:
        each.engine.stop(["a.1"], grace_s=1)
        eventually(each.is_reaped)


def test_a_job_is_told_and_its_end_is_not_its_fault(
    metadata: Metadata, machine: Callable[[str], Machine]
) -> None:
    job = machine(f"aws@{metadata.url}")
    deadline = datetime.now(UTC) + timedelta(minutes=2)
    aws_says(metadata, deadline)
    eventually(job.has_ended)
    told = json.loads((job.folder / "told").read_text())
    assert told["deadline_s"] <= deadline.timestamp()
    seen = job.look()
    assert seen is not None
    assert (seen.cause, seen.exit_code) == ("preempted_by_engine", None), "it left with 0, and is not done"
    assert str(seen.problem) == "aws took the machine back"


def test_a_machine_under_notice_is_not_offered_until_it_may_stay(
    tmp_path: Path, machine: Callable[[str], Machine]
) -> None:
    signal_file = tmp_path / "signal.yml"
    job = machine(f"mithril@{signal_file}")
    assert [node.node for node in job.engine.nodes()] == ["node-0"]
    end = datetime.now(UTC) + timedelta(minutes=5)
    signal_file.write_text(SIGNAL.replace("2026-11-17T08:22:00Z", end.strftime("%Y-%m-%dT%H:%M:%SZ")))
    eventually(lambda: not job.engine.nodes())
    assert job.engine.nodes() is job.engine.nodes()
    assert code_of(job.engine.complaints()["node-0"]) == "adapters.machine_under_notice"
    signal_file.unlink()
    eventually(job.engine.nodes)
    assert job.engine.complaints() == {}


def test_what_may_be_called_off_leaves_the_job_at_work(
    tmp_path: Path, machine: Callable[[str], Machine]
) -> None:
    signal_file = tmp_path / "signal.yml"
    job = machine(f"mithril@{signal_file}")
    end = datetime.now(UTC) + timedelta(minutes=5)
    signal_file.write_text(SIGNAL.replace("2026-11-17T08:22:00Z", end.strftime("%Y-%m-%dT%H:%M:%SZ")))
    eventually(lambda: job.notice() is not None)
    assert job.notice() == {"deadline_s": int(end.timestamp()), "may_stay": True}
    signal_file.unlink()
    eventually(lambda: job.notice() is None)
    assert not job.has_ended()
    soon = datetime.now(UTC) + timedelta(seconds=15)
    signal_file.write_text(SIGNAL.replace("2026-11-17T08:22:00Z", soon.strftime("%Y-%m-%dT%H:%M:%SZ")))
    eventually(job.has_ended)
    seen = job.look()
    assert seen is not None
    assert seen.cause == "preempted_by_engine"
