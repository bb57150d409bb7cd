"""What a job measures of itself is seen by API, command line and console; what it makes up does no harm."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores.sql import SqlStore
from brimful.client.answers import JobAnswer
from brimful.client.course_answers import CourseAnswer
from brimful.errors import WorldFailed
from brimful.fleet.events import LeaseEnded, LeaseGranted, LeaseStarted
from brimful.fleet.job import Job
from brimful.fleet.state import Node
from brimful.language import Seconds, Size, say, words
from brimful.meter.samples import GpuSample
from brimful.scheduler.rules import Rules
from brimful.server.api.answers import shape_of
from brimful.server.app import make_app
from brimful.server.service.samples import Samples, parse_sample
from brimful.server.service.service import Service
from tests.patience import PATIENCE_S
from tests.server.builders import an_access, bearer
from tests.server.live import Live, live, wait_for

NOW_S = 1_700_000_000
NODE = Node(
    site="local", node="local-0", gpu="rtx-4070", gpus=1, microusd_per_gpu_hour=360_000, declared=True
)

RUN: dict[str, Any] = {
    "kind": "run",
    "at_s": NOW_S - 600,
    "pid": 7,
    "host": "here",
    "job": "job-1",
    "model": "GPT",
    "device": "cuda:0",
    "peak_flops_per_s": 117e12,
    "peak_format": "bf16",
    "peak_source": "catalog",
}
STEP: dict[str, Any] = {
    "kind": "step",
    "at_s": NOW_S - 3,
    "step": 1200,
    "step_s": 0.412,
    "tokens_per_s": 39_800.4,
    "mfu": 0.412,
    "allocated_bytes": 3 << 30,
    "reserved_bytes": 5 << 30,
    "peak_allocated_bytes": 4 << 30,
}


def a_sample(*, run: dict[str, Any] | None = None, step: dict[str, Any] | None = None, **more: Any) -> str:
    said = {"pid": 7, "began": 1, "run": {**RUN, **(run or {})}, "step": {**STEP, **(step or {})}, **more}
    return json.dumps(said)


class Desk:
    """A service with one running lease, whose sample and clock the test holds in its hands."""

    def __init__(self, folder: Path) -> None:
        self.store = SqlStore(f"sqlite:///{folder / 'brimful.db'}")
        self.now_s = NOW_S
        self.folder = folder / "leases" / "job-1.1"
        engine = LocalEngine(folder / "leases", [NODE])
        self.service = Service(self.store, [engine], Rules(), clock=lambda: self.now_s)
        self.access = an_access(self.store)
        app = make_app(self.service, self.access)
        self.client = TestClient(app, base_url="http://127.0.0.1", headers=bearer(self.access))
        self.service.driver.tick()  # the node joins
        self.service.submissions.submit(Job(job="", gpus=1, command=("true",), folder="/"))
        granted = LeaseGranted(
            at_s=NOW_S - 700,
            lease="job-1.1",
            job="job-1",
            node="local-0",
            gpus=(0,),
            microusd_per_gpu_hour=360_000,
        )
        self.write(granted, LeaseStarted(at_s=NOW_S - 700, lease="job-1.1"))
        self.folder.mkdir()

    def write(self, *events: Any) -> None:
        assert self.store.append(events, after=self.service.reader.fleet.seq)
        self.service.reader.refresh()

    def leave(self, text: str | bytes) -> None:
        path = self.folder / "sample.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def job(self) -> dict[str, Any]:
        self.service.driver.measure_all()  # as it is done beside the loop every other second
        answer = self.client.get("/v1/jobs/job-1")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = shape_of(JobAnswer)(**answer.json()["data"]).model_dump()
        return found

    def page(self) -> str:
        reply = self.client.get("/jobs/job-1")
        assert reply.status_code == 200
        return reply.text


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.access.close()
    desk.store.close()


def test_the_newest_sample_is_shown_with_its_age_and_its_peak(desk: Desk) -> None:
    desk.leave(a_sample())
    found = desk.job()["measured"]
    assert (found["step"], found["age_s"], found["fresh"], found["idle"]) == (1200, 3, True, None)
    assert (found["mfu"], found["peak_flops_per_s"], found["peak_format"]) == (0.412, 117e12, "bf16")
    assert (found["reserved_bytes"], found["peak_allocated_bytes"]) == (5 << 30, 4 << 30)
    page = desk.page()
    for shown in ("3 s ", "41.2 % ", " 117 TFLOPS bf16", "39,800 tokens/s", "5.00 GiB "):
        assert shown in page


def test_what_was_measured_over_time_is_drawn_beside_what_was_predicted(desk: Desk) -> None:
    for i in range(3):
        desk.now_s = NOW_S + 60 * i
        desk.leave(a_sample(step={"at_s": desk.now_s - 3, "step": 1200 + i, "mfu": (40 + i) / 100}))
        desk.job()
    found = desk.client.get("/v1/jobs/job-1/measured").json()["data"]
    shown = shape_of(CourseAnswer)(**found).model_dump()
    assert [(each["step"], each["mfu"]) for each in shown["points"]] == [
        (1200, 0.40),
        (1201, 0.41),
        (1202, 0.42),
    ]
    assert (shown["lease"], shown["points"][0]["at_s"]) == ("job-1.1", NOW_S - 3)
    page = desk.page()
    assert page.count('<figure class="course">') == 2, "of memory this Meter says no reserved peak"
    assert words("console.course_since") in page
    other = bearer(desk.access, "viewer", "another", name="other")
    assert desk.client.get("/v1/jobs/job-1/measured", headers=other).status_code == 404


def test_what_was_measured_over_time_outlives_a_restart_and_a_broken_file_does_no_harm(
    desk: Desk, tmp_path: Path
) -> None:
    for i in range(3):
        desk.now_s = NOW_S + 60 * i
        desk.leave(a_sample(step={"at_s": desk.now_s - 3, "step": 1200 + i}))
        desk.job()
    file, before = tmp_path / "measured.json", desk.service.reader.samples
    before.save_courses(file)
    assert file.stat().st_mode & 0o777 == 0o600
    state, after = desk.service.reader.job("job-1"), Samples({})
    after.load_courses(file)
    assert after.course(state) == before.course(state)
    text = file.read_text()
    for broken in (
        "",
        "[]",
        "{",
        text[: len(text) // 2],
        text.replace('"step"', '"stop"'),
        text.replace("5.0", "0.1"),
    ):
        file.write_text(broken)
        none = Samples({})
        none.load_courses(file)
        assert none.course(state)["points"] == [], broken


def test_memory_and_compute_of_a_gpu_are_what_its_driver_says_and_else_unknown(tmp_path: Path) -> None:
    seen = [GpuSample(at_s=0.0, index=0, memory_used_bytes=3 << 30, busy_frac=0.5)]

    def look(_at_s: float) -> list[GpuSample]:
        if not seen:
            raise WorldFailed(say("server.loop_bug"), code="nvml_failed")
        return seen

    store = SqlStore(f"sqlite:///{tmp_path / 'brimful.db'}")
    engine = LocalEngine(tmp_path / "leases", [NODE], devices={"local-0": ["0"]}, look=look)
    service, access = Service(store, [engine], Rules(), clock=lambda: NOW_S), an_access(store)
    http = TestClient(make_app(service, access), base_url="http://127.0.0.1", headers=bearer(access))
    service.driver.tick()

    def shown() -> tuple[int | None, float | None]:
        service.driver.measure_all()
        gpu = http.get("/v1/fleet").json()["data"]["nodes"][0]["gpus"][0]
        return gpu["memory_used_bytes"], gpu["busy_frac"]

    assert shown() == (3 << 30, 0.5)
    page = http.get("/fleet", headers={"accept-language": "en"}).text
    assert "3.00 GiB" in page
    assert "50 %" in page
    seen.clear()
    assert shown() == (None, None), "a driver that does not answer leaves no old number"
    access.close()
    store.close()


def test_without_a_meter_it_says_so(desk: Desk) -> None:
    shown = desk.job()
    why = words("server.no_sample_yet")
    assert (shown["measured"], shown["not_measured"]) == (None, why)
    assert why in desk.page()


def test_an_old_sample_is_stale_and_after_ten_minutes_the_job_is_idle(desk: Desk) -> None:
    desk.leave(a_sample())
    desk.now_s = NOW_S + 60
    found = desk.job()["measured"]
    assert (found["fresh"], found["age_s"], found["idle"]) == (False, 63, None)
    assert "stale" in desk.page()
    desk.now_s = NOW_S + 700
    idle = desk.job()["measured"]["idle"]
    since = say("meter.last_step", n=1200)
    assert idle == words("meter.idle_holding_bytes", age=Seconds(703), held=Size(5 << 30), since=since)
    assert idle in desk.page()


def test_a_closed_meter_or_an_ended_lease_is_not_idle(desk: Desk) -> None:
    end = {"kind": "end", "at_s": NOW_S, "steps": 1200, "steady_steps": 1197, "wall_s": 500.0}
    desk.leave(a_sample(end=end))
    desk.now_s = NOW_S + 700
    found = desk.job()["measured"]
    assert (found["over"], found["fresh"], found["idle"]) == (True, False, None)
    desk.leave(a_sample())
    desk.write(LeaseEnded(at_s=NOW_S + 10, lease="job-1.1", exit_code=0, reason=None))
    found = desk.job()["measured"]
    assert (found["step"], found["fresh"], found["idle"]) == (1200, False, None)


HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "huge": (b"x" * (64 * 1024 + 1), "65,537 bytes"),
    "not JSON": ("rm -rf /", "cannot be used"),
    "a list": ("[1, 2]", "cannot be used"),
    "deep": ("[" * 60_000, "cannot be used"),
    "NaN": (a_sample(step={"mfu": float("nan")}), "NaN"),
    "infinite": (a_sample().replace("0.412", "1e999"), "inf"),
    "beyond float": (a_sample(step={"mfu": 10**400}), "cannot be used"),
    "a great whole number": (a_sample(step={"step": 10**400}), "its step is"),
    "negative": (a_sample(step={"reserved_bytes": -1}), "its reserved_bytes is -1"),
    "of the future": (a_sample(step={"at_s": NOW_S + 1e6}), "in the future"),
    "of another job": (a_sample(run={"job": "job-2"}), "it is not of job-1"),
    "of another type": (a_sample(step={"step": "<b>"}), "step is '<b>', not int"),
    "binary": (bytes(range(256)), "cannot be used"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_cannot_have_been_measured_is_not_shown(
    desk: Desk, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    text, why = HOSTILE[case]
    desk.leave(text)
    with caplog.at_level(logging.WARNING, "brimful"):
        for _ in range(3):
            shown = desk.job()
    assert shown["measured"] is None
    assert why in shown["not_measured"]
    [said] = [record.getMessage() for record in caplog.records if "job-1.1" in record.getMessage()]
    assert why in said
    assert said.isprintable()
    assert "Not measured" in desk.page()
    desk.leave(a_sample())
    assert desk.job()["measured"]["step"] == 1200


def test_words_in_a_sample_are_words_and_not_a_page(desk: Desk) -> None:
    hostile = "<script>alert(1)</script>\x1b[2J\ud800" + "x" * 1000
    desk.leave(a_sample(run={"peak_format": hostile, "model": hostile, "gpu": hostile}))
    found = desk.job()["measured"]
    assert found["model"].isprintable()
    assert len(found["model"]) == 120
    page = desk.page()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def a_link(path: Path, other: Path) -> None:
    path.symlink_to(other)


def a_hard_link(path: Path, other: Path) -> None:
    path.hardlink_to(other)


def a_pipe(path: Path, _other: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path, _other: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("trick", [a_link, a_hard_link, a_pipe, a_folder])
def test_only_a_plain_file_of_the_lease_itself_is_read(
    desk: Desk, tmp_path: Path, trick: Callable[[Path, Path], None]
) -> None:
    other = tmp_path / "other.json"
    other.write_text(a_sample())
    trick(desk.folder / "sample.json", other)
    assert desk.job()["measured"] is None
    assert "its sample" in desk.job()["not_measured"]


def test_what_the_page_for_users_tells_other_programs_to_write_is_believed() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/what-a-job-sees.md").read_text()
    [text] = [block for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if '"run"' in block]
    found = parse_sample(text.encode(), job="job-3", now_s=1794783600).view(
        "job-3.1", running=True, now_s=1794783600
    )
    assert (found["step"], found["mfu"], found["age_s"], found["fresh"]) == (131, 0.41, 2, True)


def test_a_list_shows_what_the_loop_has_read(desk: Desk) -> None:
    desk.leave(a_sample())
    assert desk.client.get("/v1/jobs").json()["data"]["jobs"][0]["measured"] is None
    desk.service.reader.samples.read(desk.service.reader.fleet.open_leases.values(), now_s=desk.now_s)
    assert desk.client.get("/v1/jobs").json()["data"]["jobs"][0]["measured"]["step"] == 1200


# -- a real server, and a real Meter in a real loop --------------------------------------------------------

LOOP = """
import sys, time, torch, brimful
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with brimful.Meter(model, tokens_per_step=64, peak_flops_per_s=2e12, terminal_s=None) as meter:
    for step in range(int(sys.argv[1])):
        model(torch.ones(64, 32)).sum().backward()
        optimizer.step(); optimizer.zero_grad()
        time.sleep(0.02)
        meter.step()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("measured") / "data", "--slots", "1") as server:
        yield server


def test_a_real_meter_is_seen_by_api_command_line_console_and_fleet(server: Live) -> None:
    job = server.submit(command=[sys.executable, "-c", LOOP, "1000000"])

    def measured() -> Any:
        found = server.show(job)["measured"]
        return found if found and found["step"] else None

    first = wait_for(measured)
    assert first["fresh"]
    assert first["peak_flops_per_s"] == 2e12
    # Forward and backward of y = Wx: weights' gradients alone, since the input asks for none.
    flops = 2 * 64 * 32 * 32 * 2
    assert first["mfu"] == pytest.approx(flops / first["step_s"] / 2e12, rel=0.01)
    assert first["tokens_per_s"] == pytest.approx(64 / first["step_s"], rel=0.01)
    wait_for(lambda: measured()["step"] > first["step"])

    text = " ".join(server.read("job", "show", job).split())
    assert " 2 TFLOPS " in text
    url = json.loads((server.data / "server.json").read_text())["url"]
    token = (server.data / "token").read_text().strip()
    page = httpx2.get(
        f"{url}/jobs/{job}", headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE_S
    ).text
    assert " 2 TFLOPS " in page
    [gpu] = server.ask("fleet")["nodes"][0]["gpus"]
    assert 0 < gpu["mfu"] < 1e-3  # of another step than the first

    server.ask("job", "cancel", job)
    wait_for(lambda: server.show(job)["phase"] == "cancelled")
    last = server.show(job)["measured"]
    assert last["step"] >= first["step"]
    assert not last["fresh"]


def test_what_a_finished_job_measured_last_is_there_after_a_restart(server: Live) -> None:
    job = server.submit(command=[sys.executable, "-c", LOOP, "5"])
    wait_for(lambda: server.show(job)["phase"] == "finished")
    server.down()
    server.up()
    found = server.show(job)["measured"]
    assert (found["step"], found["over"], found["fresh"]) == (5, True, False)
    assert "its last" in " ".join(server.read("job", "show", job).split())
