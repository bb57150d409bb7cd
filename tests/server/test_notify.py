"""Notifications against a real web server and a real mail server on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from brimful.adapters import notify as outward
from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.notify import Mail
from brimful.adapters.stores.notices import NotifyStore, Queued
from brimful.errors import WorldFailed
from brimful.fleet.events import Event, JobSkipped, LeaseEnded, LeaseEnding
from brimful.language import say, verbatim
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.service import notify
from brimful.server.service.notify import TRIES, Notifier, Outbound
from brimful.server.service.service import Service
from tests.builders import a_node, eventually
from tests.patience import PATIENCE_S
from tests.server.builders import bearer, wind_down
from tests.server.live import live, wait_for
from tests.server.test_api import Server


class Hook:
    """A webhook that keeps what it is sent and answers what the test says."""

    def __init__(self) -> None:
        self.heard: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                hook.heard.append(({key.lower(): value for key, value in self.headers.items()}, body))
                self.send_response(hook.answers.pop(0) if hook.answers else 204)
                self.send_header("location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/path-that-is-a-secret"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Post:
    """A mail server of a few words (RFC 5321): it keeps what comes after DATA."""

    def __init__(self) -> None:
        self.mails: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as file:
                self._talk(lambda text, file=file: (file.write(text + b"\r\n"), file.flush()), file)  # type: ignore[misc]

    def _talk(self, say: Callable[[bytes], object], file: Any) -> None:
        say(b"220 here")
        while line := file.readline():
            verb = line.split()[0].upper()
            if verb == b"DATA":
                say(b"354 go on")
                text = b""
                while (line := file.readline()) != b".\r\n":
                    text += line
                self.mails.append(text.decode())
            if verb == b"QUIT":
                say(b"221 bye")
                return
            say(b"250 fine")

    def close(self) -> None:
        self._listener.close()


class NotifyServer(Server):
    def __init__(self, folder: Path, post: Post, *, hosts: frozenset[str]) -> None:
        super().__init__(folder)
        self.now_s = 1_800_000_000
        outbound = Outbound(mail=Mail(host=post.host, sender="brimful@example.org"), hosts=hosts)
        engine = LocalEngine(folder / "leases", [a_node(gpus=2)], site="here")
        self.notices = NotifyStore(self.store)
        self.service = Service(
            self.store, [engine], Rules(grace_s=1), notify=(self.notices, outbound), clock=lambda: self.now_s
        )
        headers = self.http.headers
        self.http = TestClient(make_app(self.service, self.access), base_url="http://127.0.0.1")
        self.http.headers.update(headers)

    def add(self, target: str, **more: object) -> dict[str, Any]:
        headers = more.pop("headers", None)
        answer = self.http.post("/v1/notifications", json={"target": target, **more}, headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 201, answer.text
        data: dict[str, Any] = answer.json()["data"]
        return data

    def round(self) -> None:
        assert self.service.notifier is not None
        self.service.notifier.look()
        self.service.notifier.send()

    def end(self, *command: str, **more: object) -> str:
        job = self.submit(*command, **more)
        eventually(lambda: self.phase(job) in {"finished", "failed"})
        return job


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    yield hook
    hook.close()


@pytest.fixture
def post() -> Iterator[Post]:
    post = Post()
    yield post
    post.close()


@pytest.fixture
def server(tmp_path: Path, post: Post) -> Iterator[NotifyServer]:
    server = NotifyServer(tmp_path, post, hosts=frozenset({"127.0.0.1"}))
    server.round()  # what was before is nobody's news
    yield server
    server.access.close()
    wind_down(server.service)
    server.store.close()


def test_a_webhook_is_told_with_a_signature_that_holds(server: NotifyServer, hook: Hook) -> None:
    made = server.add(hook.url, on=["failed"])
    server.end("true")
    job = server.end("false", name="train")
    server.round()
    server.round()  # and not again
    [(headers, body)] = hook.heard
    told = json.loads(body)
    assert (told["job"], told["name"], told["kind"], told["phase"]) == (job, "train", "failed", "failed")
    assert told["id"] == headers["brimful-id"]
    at_s, _, signed = headers["brimful-signature"].removeprefix("t=").partition(",v1=")
    wanted = hmac.new(made["secret"].encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    assert (at_s, signed) == (str(server.now_s), wanted)


def test_a_mail_says_what_happened(server: NotifyServer, post: Post) -> None:
    server.add("mailto:alice@example.org")
    job = server.end("true", name="nightly")
    server.round()
    [mail] = post.mails
    assert "To: alice@example.org" in mail
    assert f"Subject: brimful: {job} (nightly) finished" in mail
    assert "Message-ID: <" in mail
    assert "Date: " in mail  # RFC 5322 requires it, and not every mail server adds it


def test_what_nobody_takes_is_tried_again_under_the_same_id_and_counted_dead_in_the_end(
    server: NotifyServer, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    made = server.add(hook.url)
    hook.answers = [500, 302] + [503] * TRIES
    server.end("true")
    with caplog.at_level(logging.WARNING, "brimful"):
        for _ in range(TRIES + 3):
            server.round()
            server.round()  # nothing is due yet
            server.now_s += 100_000
    assert len(hook.heard) == TRIES  # and a redirect was not followed
    assert len({headers["brimful-id"] for headers, _ in hook.heard}) == 1
    shown: Any = server.get("/v1/notifications")["notifications"][0]  # type: ignore[index]
    assert (shown["waiting"], shown["dead"]) == (0, 1)
    assert server.service.notifier is not None
    assert server.service.notifier.dead == 1
    assert made["secret"] not in caplog.text
    assert "path-that-is-a-secret" not in caplog.text


def test_a_crash_between_queue_and_sending_loses_nothing(server: NotifyServer, hook: Hook) -> None:
    server.add(hook.url)
    server.end("true")
    assert server.service.notifier is not None
    server.service.notifier.look()
    again = NotifyStore(server.store)  # another server, on the same database
    assert len(again.due(server.now_s + 10**6, limit=9)) == 1
    server.service.notifier.look()
    assert len(again.due(server.now_s + 10**6, limit=9)) == 1
    server.service.notifier.send()
    assert (len(hook.heard), again.due(server.now_s + 10**6, limit=9)) == (1, [])


def test_nothing_is_written_while_nobody_wants_to_hear_and_no_rule_hears_of_the_past(
    server: NotifyServer, hook: Hook
) -> None:
    server.end("true")
    server.now_s += 10
    before = server.notices.place(first=10**6)
    server.round()
    assert server.notices.place(first=10**6) == before
    server.add(hook.url)
    again = Notifier(server.service.reader, server.notices, Outbound())
    again.look()  # after a restart, from where the last note was queued
    assert server.notices.due(server.now_s + 10**6, limit=9) == []
    server.end("true")
    again.look()
    assert len(server.notices.due(server.now_s + 10**6, limit=9)) == 1


def test_each_hears_of_its_own_and_an_admin_of_the_team(server: NotifyServer, hook: Hook) -> None:
    alice, bob = (bearer(server.access, "submitter", "red", name=name) for name in ("alice", "bob"))
    admin, other = bearer(server.access, "admin", "red"), bearer(server.access, "admin", "blue")
    mine = server.add(f"{hook.url}?alice", headers=alice)["notification"]["notification"]
    server.add(f"{hook.url}?team", headers=admin, team=True)
    server.add(f"{hook.url}?blue", headers=other, team=True)
    for headers in (alice, bob):
        body = {"command": ["true"], "folder": server.folder}
        assert server.http.post("/v1/jobs", json=body, headers=headers).status_code == 201
    eventually(lambda: server.phase("job-1") == "finished" and server.phase("job-2") == "finished")
    server.round()
    told = sorted((json.loads(body)["job"]) for _, body in hook.heard)
    assert told == ["job-1", "job-1", "job-2"]  # alice, and the team twice
    for headers, seen in ((alice, 1), (bob, 0), (admin, 1), (other, 1)):
        listed = server.http.get("/v1/notifications", headers=headers).json()["data"]["notifications"]
        assert len(listed) == seen
    assert server.http.post(f"/v1/notifications/{mine}/remove", headers=bob).status_code == 404
    # Any team's admin may make a token in her name: it is not hers elsewhere.
    named = bearer(server.access, "admin", "blue", name="alice")
    seen = server.http.get("/v1/notifications", headers=named).json()["data"]["notifications"]
    assert [each["tenant"] for each in seen] == ["blue"]
    assert server.http.post(f"/v1/notifications/{mine}/remove", headers=named).status_code == 404
    assert (
        server.http.post(
            "/v1/notifications", json={"target": hook.url, "team": True}, headers=bob
        ).status_code
        == 403
    )
    assert server.http.post(f"/v1/notifications/{mine}/remove", headers=alice).status_code == 200


@pytest.mark.parametrize(
    "target",
    [
        "ftp://x/y",
        "https://",
        "mailto:a b@c",
        "mailto:a@b,c@d",
        "http://user:pw@host/",
        "x",
        "http://h:99999999/",
    ],
)
def test_a_target_that_cannot_be_is_refused(server: NotifyServer, target: str) -> None:
    assert server.http.post("/v1/notifications", json={"target": target}).status_code in {400, 422}


def test_mail_is_promised_only_where_it_can_leave_and_budgets_only_to_teams(
    server: NotifyServer,
) -> None:
    assert "budget" not in server.add("mailto:a@example.org")["notification"]["on"]
    assert "budget" in server.add("mailto:a@example.org", team=True)["notification"]["on"]
    alone = {"target": "mailto:a@example.org", "on": ["budget"]}
    assert server.http.post("/v1/notifications", json=alone).status_code == 400
    assert server.service.notifier is not None
    server.service.notifier._outbound = Outbound()  # a server without --smtp
    refused = server.http.post("/v1/notifications", json={"target": "mailto:a@example.org"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "sends_nothing")


def test_no_webhook_reaches_what_is_not_public(tmp_path: Path, post: Post, hook: Hook) -> None:
    server = NotifyServer(tmp_path, post, hosts=frozenset())
    server.round()
    refused = server.http.post("/v1/notifications", json={"target": hook.url})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "webhook_private")
    server.add(hook.url.replace("127.0.0.1", "localhost"))
    server.end("true")
    server.round()
    assert hook.heard == []
    assert [each.tries for each in server.notices.due(server.now_s + 10**6, limit=9)] == [1]
    server.access.close()
    wind_down(server.service)
    server.store.close()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "::1", "fe80::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
    ],
)
def test_no_spelling_of_an_inner_address_is_public(address: str) -> None:
    at = ipaddress.ip_address(address)
    assert not outward._is_public(at)
    assert outward._is_public(ipaddress.ip_address("64:ff9b::8.8.8.8"))
    assert outward._is_public(ipaddress.ip_address("2a00:1450::1"))


def test_one_who_answers_a_byte_at_a_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outward, "TIMEOUT_S", 0.5)
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        line, _ = listener.accept()
        with contextlib.suppress(OSError), line:
            while True:
                line.sendall(b"H")
                time.sleep(0.02)

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    with pytest.raises(WorldFailed):
        outward.post(url, b"{}", note="1", secret="s", at_s=1, hosts=["127.0.0.1"])
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it was hung up on"
    listener.close()


def test_one_tenants_flood_leaves_room_for_the_others(server: NotifyServer, hook: Hook) -> None:
    red, blue = (
        server.add(f"{hook.url}?{tenant}", headers=bearer(server.access, "admin", tenant), team=True)
        for tenant in ("red", "blue")
    )
    flood = [*(("red", red, i) for i in range(100)), ("blue", blue, 200)]
    notes = [
        Queued(note=f"{name}-{i}", rule=rule["notification"]["notification"], body="{}", tries=0, next_s=i)
        for name, rule, i in flood
    ]
    server.notices.take_in(notes, seq=1)
    due = server.notices.due(server.now_s, limit=64, each=notify.OF_TENANT)
    assert {each.note for each in due[:2]} == {"red-0", "blue-200"}
    assert len(due) == notify.OF_TENANT + 1


def test_what_a_person_asked_for_is_no_news(server: NotifyServer) -> None:
    job = server.end("true")

    def kind(event: Event) -> str | None:
        found = notify.kind_of(event, server.service.reader)
        return None if found is None else found[0]

    def ending(code: str) -> LeaseEnding:
        reason = say(code, job="j", where="x", tenant="t")
        return LeaseEnding(at_s=1, lease=f"{job}.1", reason=reason, requeue=True)

    assert kind(ending("scheduler.preempted_by")) == "preempted"
    assert kind(ending("scheduler.tenant_spent")) == "over_budget"
    assert kind(ending("scheduler.moves_to")) is None
    held = LeaseEnding(at_s=1, lease=f"{job}.1", reason=verbatim("lunch"), requeue=True)
    assert kind(held) is None
    assert kind(JobSkipped(at_s=1, job=job, reason=None)) == "failed"
    assert kind(LeaseEnded(at_s=1, lease=f"{job}.1", exit_code=0)) == "finished"
    again = LeaseEnded(at_s=1, lease=f"{job}.1", exit_code=1, requeue=True, cause="failed")
    assert kind(again) is None  # it has tries left
    assert kind(replace(again, cause="node_lost")) == "preempted"


def test_the_command_adds_lists_and_removes(tmp_path: Path, hook: Hook) -> None:
    with live(tmp_path / "data", "--slots", "1", "--notify-hosts", "127.0.0.1") as server:
        said = server.read("job", "notify", "add", hook.url, "--on", "finished", "--team")
        rule = re.search(r"[0-9a-f]{16}", said)
        assert rule is not None
        assert hook.url in server.read("job", "notify", columns=200)
        server.submit(command=("true",))
        wait_for(lambda: hook.heard)
        assert json.loads(hook.heard[0][1])["job"] == "job-1"
        server.read("job", "notify", "remove", rule[0])
        assert rule[0] not in server.read("job", "notify")
