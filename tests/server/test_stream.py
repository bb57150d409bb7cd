"""What grows is told as it grows: events and logs as server-sent events, with a real server and client."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import brimful
from brimful.cli.main import main
from brimful.client.client import Client
from brimful.client.settings import read_settings
from brimful.errors import BrimfulError, NotFound, Refused, WorldFailed
from brimful.language import count, say, words
from brimful.server.api.answers import shape_of
from brimful.server.metrics import COUNTERS, GAUGES
from tests.builders import eventually, refuses
from tests.patience import PATIENCE_S

BRIMFUL = [sys.executable, "-m", "brimful.cli.main"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a server in a process of its own."""
    data = str(tmp_path_factory.mktemp("stream") / "data")
    env = {k: v for k, v in os.environ.items() if not k.startswith("BRIMFUL_")}
    process = subprocess.Popen(
        [*BRIMFUL, "up", "--json", "--data", data, "--port", "0", "--slots", "2", "--grace-s", "1"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["ok"]
    yield Client(read_settings({"data": data}, env={}))
    process.terminate()
    process.communicate(timeout=PATIENCE_S)


def submit(client: Client, *command: str, **more: Any) -> str:
    job = client.submit(command, folder="/", **more)
    return str(job["job"])


def test_a_log_is_streamed_as_it_grows_until_its_job_is_over(client: Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    job = submit(client, "sh", "-c", f"echo one; read line < {go}; echo $line")
    stream = client.log_stream(job)
    first = next((kind, data["text"]) for kind, data in stream if kind == "log")
    assert first == ("log", "one\n")
    go.write_text("två\n")
    *rest, last = stream
    assert "".join(data["text"] for kind, data in rest if kind == "log") == "två\n"
    assert last == ("over", {"phase": "finished"})


def test_a_burst_of_a_hundred_thousand_lines_arrives_whole_and_in_order(client: Client) -> None:
    job = submit(client, "sh", "-c", "i=0; seq 1 100000")
    text = "".join(data["text"] for kind, data in client.log_stream(job) if kind == "log")
    assert text == "".join(f"{i}\n" for i in range(1, 100_001))


def test_events_are_streamed_from_a_place_on(client: Client) -> None:
    job = submit(client, "true")
    place = client.events(after=-1)["next_after"]
    seen = []
    for kind, event in client.event_stream(after=place - 1):
        assert event["seq"] >= place
        seen.append(kind)
        if kind == "LeaseEnded" and event["body"]["lease"] == f"{job}.1":
            break
    assert seen[-1] == "LeaseEnded"


@pytest.mark.parametrize("reason", [{"code": "server.unauthorized"}, None], ids=["coded", "of an old server"])
def test_an_error_within_a_stream_is_raised_in_the_servers_words(
    reason: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: dict[str, Any] = {
        "code": "unauthorized",
        "problem": "le jeton\u001b a expiré",
        "hint": "demandez-en un",
    }
    told |= {"reason": reason} if reason else {}
    client = Client(read_settings({"data": str(tmp_path)}, env={}))
    sent = f"event: log\ndata: {{}}\n\nevent: error\ndata: {json.dumps(told)}\n\n".encode()
    monkeypatch.setattr(client, "_opener", SimpleNamespace(open=lambda *_, **__: io.BytesIO(sent)))
    stream = client.stream("/v1/events/stream")
    assert next(stream) == ("log", {})
    with pytest.raises(WorldFailed) as caught:
        next(stream)
    error: BrimfulError = caught.value
    assert (error.code, error.hint) == ("unauthorized", "demandez-en un")
    assert error.problem == "le jeton\N{REPLACEMENT CHARACTER} a expiré"
    assert error.as_dict()["reason"]["code"] == (reason or {"code": "language.verbatim"})["code"]


def test_a_submission_sent_twice_under_one_key_is_one_job(client: Client) -> None:
    first = submit(client, "true", key="sweep-7")
    assert submit(client, "true", key="sweep-7") == first
    assert submit(client, "true", key="sweep-8") != first
    assert submit(client, "true", key="sweep-7", env={"SHELL_OF": "another"}) == first


def test_a_key_that_comes_again_with_another_request_is_refused_by_what_differs(client: Client) -> None:
    first = submit(client, "true", key="sweep-9")
    with pytest.raises(Refused) as refused:
        submit(client, "false", key="sweep-9", gpus=2)
    assert refused.value.code == "key_reused"
    assert first in refused.value.problem
    assert refused.value.problem.endswith(": gpus, command")


def test_jobs_come_in_pages_without_a_hole_or_a_double(client: Client) -> None:
    for _ in range(5):
        submit(client, "true", gpus=9)
    seen: list[str] = []
    cursor: dict[str, object] = {}
    while True:
        page = client.get("/v1/jobs", limit=2, phase="waiting", **cursor)
        seen += [job["job"] for job in page["jobs"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert len(seen) == len(set(seen)) >= 5
    assert seen == [job["job"] for job in client.jobs(phase=["waiting"])]
    for job in seen:
        client.cancel(job)


def test_hold_release_move_and_why_of_a_running_job(client: Client) -> None:
    job = submit(client, "sleep", "600")
    eventually(lambda: client.job(job)["phase"] == "running")
    why = client.why(job)
    assert (why["price"] or "").startswith("$0.10 ")
    placed = words("server.placed", gpus=count("gpu", 1), gpu="slot", node="local-0", site="local")
    assert placed in (why["here"] or "")
    client.hold(job, "look first")
    eventually(lambda: client.job(job)["phase"] == "held")
    assert client.hold(job)["why"] == "look first"  # again changes nothing
    assert "look first" in (client.why(job)["waiting"] or "")
    client.release(job)
    eventually(lambda: client.job(job)["phase"] == "running")
    with refuses(NotFound, "server.no_site", "mars"):
        client.move(job, "mars")
    assert client.move(job, "local")["sites"] == ["local"]
    client.cancel(job)
    eventually(lambda: client.job(job)["phase"] == "cancelled")
    with refuses(Refused, "server.job_already", job, say("fleet.verb_cancelled").as_dict()):
        client.hold(job)


def test_a_drained_node_starts_nothing(client: Client) -> None:
    assert client.fleet()["free"] == client.fleet()["gpus"] > 0
    assert client.drain("local-0", "fans")["drained"] == "fans"
    assert client.fleet()["free"] == 0, "a drained GPU is not free"
    job = submit(client, "true")
    eventually(lambda: client.job(job)["why"])
    assert "drained" in client.job(job)["why"]
    assert [queue["waiting"] for queue in client.queues()] == [1]
    client.resume("local-0")
    eventually(lambda: client.job(job)["phase"] == "finished")


def test_metrics_are_what_the_reference_says(client: Client) -> None:
    import httpx2

    job = submit(client, "true")
    eventually(lambda: client.job(job)["phase"] == "finished")

    def asked() -> str:
        headers = {"authorization": f"Bearer {client._token()}"}
        return httpx2.get(f"{client.url}/metrics", headers=headers, timeout=PATIENCE_S).text

    eventually(lambda: 'step="observe"' in asked() and "brimful_disk_free_bytes " in asked())
    text = asked()
    reference = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    for name in names - {"brimful_http_requests_created", "brimful_http_request_seconds_created"}:
        assert f"`{name.removesuffix('_total')}`" in reference, name
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    shown = {re.split(r"[{ ]", line)[0].removesuffix("_total") for line in values}
    # Only where backups are scheduled; only where a site has a problem.
    rare = {"brimful_backup_age_seconds", "brimful_backup_period_seconds", "brimful_site_problem"}
    assert {*GAUGES, *COUNTERS} - rare <= shown, "promised, and missing"
    assert 'brimful_engine_seconds{site="local",step="observe"}' in values
    assert 'brimful_jobs{phase="waiting"}' in values
    assert 0 < float(values["brimful_tick_seconds"]) < float(values["brimful_ticking_seconds_total"]) + 1
    assert float(values["brimful_ticks_total"]) > 0
    assert {"brimful_oldest_wait_seconds", "brimful_up"} <= values.keys()
    assert "brimful_up 1.0" in text
    assert "brimful_ledger_sum_usd 0.0" in text
    assert 'route="/v1/jobs/{name}"' in text
    assert "job-1" not in text


def test_what_the_client_answers_has_the_shape_it_is_declared_to_have(client: Client) -> None:
    job = submit(client, "echo", "hello")
    eventually(lambda: client.job(job)["phase"] == "finished")
    made = client.add_token("ann", tenant="red", role="viewer", ttl_s=60)
    answers: dict[str, Any] = {
        "job": client.job(job),
        "why": client.why(job),
        "log": client.log(job),
        "fleet": client.fleet(),
        "prices": client.prices(),
        "spend": client.spend(),
        "invoice": client.invoice(),
        "events": client.events(),
        "tokens": client.tokens(),
        "add_token": made,
        "revoke_token": client.revoke_token(made["token"]["token"]),
        "audit": client.audit(),
        "ticket": client.ticket(),
        "set_budget": client.set_budget("red", 1_000_000),
    }
    for name, answer in answers.items():
        module, named = inspect.signature(getattr(Client, name)).return_annotation.split(".")
        declared = getattr(import_module(f"brimful.client.{module}"), named)
        shape_of(declared).model_validate(answer, strict=True)
    assert (answers["log"]["text"], answers["log"]["over"]) == ("hello\n", True)


def test_tokens_are_made_listed_and_revoked_by_the_command(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BRIMFUL_DATA", client._settings.data)

    def said(*typed: str) -> str:
        assert main(["admin", "tokens", *typed]) == 0
        return capsys.readouterr().out

    made = said("add", "bob", "--tenant", "red", "--role", "viewer", "--for", "12h")
    assert f"export BRIMFUL_URL={client.url}\nexport BRIMFUL_TOKEN=brim_" in made
    assert re.search(r"^# .*bob.*viewer.*red.*\d{4}-\d\d-\d\d", made, re.MULTILINE)
    [bob] = [each["token"] for each in client.tokens()["tokens"] if each["name"] == "bob"]
    assert bob in said()
    assert bob in said("revoke", bob)
    assert f"{bob}  bob" in said()
    eventually(lambda: "token.revoke" in said("audit"))


def test_the_client_is_at_hand() -> None:
    assert brimful.Client is Client
