"""Submits and reads per second, beside a bare FastAPI with SQLite in the same run, with 1,000 active jobs.

    make bench ARGS=server        about two minutes

The generator is a separate process on the same two cores. Wall seconds per request instead of CPU, since that
is what the bars are about: at least 0.5 of the peer's submits and 0.7 of its reads per second. Then a crowd:
as many streams as the table holds and 1,000 sockets that say nothing, beside the operator's own requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from bench.document import judged, markdown
from bench.measure import ROOT, Benchmark
from brimful.server.api.stream import MAX_OF_ONE
from brimful.server.run.connections import OWED_S as IDLE_S

TITLE = "Server under load (wall seconds for each request)"
TABLES = ("server-load", "server-crowd")
SUBMITS_PER_S, READS_PER_S, P99_MS = 300, 1_200, 80.0
IDLE, ASKED, JOBS, BEGUN_MS = 1_000, 300, 10, 1_000.0  # BEGUN_MS: a tick
ACTIVE = 1000
SECONDS, CONNECTIONS = 3.0, 16
BODY = json.dumps({"command": ["true"], "folder": "/tmp", "gpus": 8, "name": "load"})
PEER = "bare FastAPI + SQLite"
LOAD = "other work meanwhile: load of the machine's cores"


class Servers(NamedTuple):
    ours: str
    token: str
    bare: str


def benchmarks() -> Iterator[Benchmark]:
    with contextlib.ExitStack() as stack:
        # Started by the first measurement: listing the benchmarks starts nothing.
        servers = cache(lambda: stack.enter_context(running()))
        yield Benchmark(
            name="submit a job",
            subject=lambda: per_request(f"{servers().ours}/v1/jobs", servers().token, BODY),
            peer_name=PEER,
            peer=lambda: per_request(f"{servers().bare}/jobs", "", BODY),
            bar=round(1 / 0.5, 2),
        )
        yield Benchmark(
            name="read a job",
            subject=lambda: per_request(f"{servers().ours}/v1/jobs/job-7", servers().token),
            peer_name=PEER,
            peer=lambda: per_request(f"{servers().bare}/jobs/7", ""),
            bar=round(1 / 0.7, 2),
        )
        yield Benchmark(
            name="list 50 jobs",
            subject=lambda: per_request(f"{servers().ours}/v1/jobs?limit=50", servers().token),
            peer_name=PEER,
            peer=lambda: per_request(f"{servers().bare}/jobs?limit=50", ""),
            bar=round(1 / 0.7, 2),
        )


def tables() -> dict[str, str]:
    with running() as servers:
        ours, bare, mine = servers.ours, servers.bare, servers.token
        asked = {
            "submit": (f"{ours}/v1/jobs", mine, BODY, SUBMITS_PER_S),
            "bare submit": (f"{bare}/jobs", "", BODY, None),
            "read one job": (f"{ours}/v1/jobs/job-7", mine, "", READS_PER_S),
            "bare read": (f"{bare}/jobs/7", "", "", None),
            "list 50 jobs": (f"{ours}/v1/jobs?limit=50", mine, "", READS_PER_S),
            "bare list of 50": (f"{bare}/jobs?limit=50", "", "", None),
            "fleet": (f"{ours}/v1/fleet", mine, "", READS_PER_S),
            "console's live part": (f"{ours}/console/live", mine, "", None),
        }
        rows = []
        for name, (url, token, body, per_s) in asked.items():
            seen = load(url, token, body)
            is_met = per_s is None or (seen["per_s"] >= per_s and seen["p99_ms"] <= P99_MS)
            bar = "" if per_s is None else judged(f"≥ {per_s:,}, p99 ≤ {P99_MS:g} ms", is_met=is_met)
            spent = [f"{seen[f'p{part}_ms']:.1f} ms" for part in (50, 99)]
            rows.append([name, f"{seen['per_s']:,.0f}", *spent, bar])
        rows.append([LOAD, f"{os.getloadavg()[0]:.1f}", "", "", ""])
    return {
        "server-load": markdown(["Request", "a second", "median", "p99", "Bar"], rows),
        "server-crowd": markdown(["What", "Alone", "In the crowd", "Bar"], _crowded()),
    }


def _crowded() -> list[list[str]]:
    with tempfile.TemporaryDirectory(prefix="brimful-") as folder, _ours(Path(folder), free_port()) as ours:
        alone = _felt(*ours)
        with crowd(*ours) as (streams, sockets):
            beside = _felt(*ours)
    who = f"{streams} streams, {sockets:,} idle sockets"
    bars = {
        f"the operator reads a job, {ASKED} times: p99": P99_MS,
        f"a job gets its GPUs, of {JOBS}: slowest": BEGUN_MS,
    }
    rows = [
        [f"{what} ({who})", f"{one:.0f} ms", f"{other:.0f} ms", judged(f"≤ {bar:g} ms", is_met=other <= bar)]
        for (what, bar), one, other in zip(bars.items(), alone, beside, strict=True)
    ]
    return [*rows, [LOAD, "", f"{os.getloadavg()[0]:.1f}", ""]]


def _felt(url: str, token: str) -> tuple[float, float]:
    """Milliseconds, of an operator: the 99th percentile of its requests, and its slowest job to get GPUs."""
    begun = []
    for _ in range(JOBS):
        body = {"command": ["sleep", "600"], "folder": "/tmp", "gpus": 1}
        began = time.perf_counter()
        job = _post(f"{url}/v1/jobs", body, token)["job"]
        while _get(f"{url}/v1/jobs/{job}", token)["phase"] == "waiting":
            time.sleep(0.005)
        begun.append(time.perf_counter() - began)
        _post(f"{url}/v1/jobs/{job}/cancel", None, token)
    spent = []
    for _ in range(ASKED):
        began = time.perf_counter()
        _get(f"{url}/v1/jobs/job-1", token)
        spent.append(time.perf_counter() - began)
    return 1e3 * sorted(spent)[int(ASKED * 0.99)], 1e3 * max(begun)


@contextlib.contextmanager
def crowd(url: str, token: str) -> Iterator[tuple[int, int]]:
    """As many streams as the table holds, and idle sockets, replaced when closed; how many of both."""
    place, over = (urlsplit(url).hostname or "", urlsplit(url).port or 0), threading.Event()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * IDLE)), hard))
    with contextlib.ExitStack() as lines:
        streams = 0
        while True:
            body = {"name": f"reader-{streams}", "tenant": "t", "role": "viewer"}
            reader = _post(f"{url}/v1/tokens", body, token)["secret"]
            statuses = [_streamed(lines, place, reader) for _ in range(MAX_OF_ONE)]
            streams += statuses.count(b"200")
            if b"429" in statuses:
                break
        idle = deque(socket.create_connection(place) for _ in range(IDLE))

        def redial() -> None:
            """A server hangs up on whoever says nothing for some seconds."""
            while not over.wait(IDLE_S / IDLE):
                idle.popleft().close()
                idle.append(socket.create_connection(place))

        again = threading.Thread(target=redial, daemon=True)
        again.start()
        try:
            yield streams, IDLE
        finally:
            over.set()
            again.join()
            for line in idle:
                line.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _streamed(lines: contextlib.ExitStack, place: tuple[str, int], token: str) -> bytes:
    head = f"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    line = lines.enter_context(socket.create_connection(place))
    line.sendall(head.encode())
    return line.recv(12)[9:]


def per_request(url: str, token: str, body: str = "") -> float:
    return 1 / float(load(url, token, body)["per_s"])


def load(url: str, token: str, body: str = "") -> dict[str, Any]:
    words = [sys.executable, "-m", "bench.load", url, str(SECONDS), str(CONNECTIONS), token, body]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    assert not seen["bad"], seen["first_bad"]
    return seen


@contextlib.contextmanager
def running() -> Iterator[Servers]:
    with tempfile.TemporaryDirectory(prefix="brimful-") as name:
        folder, bare = Path(name), free_port()
        peer = [sys.executable, "-m", "bench.bare", str(folder / "bare.db"), str(bare)]
        with _ours(folder, free_port()) as (url, token), _process(peer, bare, dict(os.environ)):
            servers = Servers(url, token, f"http://127.0.0.1:{bare}")
            _fill(servers)
            yield servers


@contextlib.contextmanager
def _ours(folder: Path, port: int) -> Iterator[tuple[str, str]]:
    """A server's URL and its operator's token."""
    data = folder / "data"
    env = {key: value for key, value in os.environ.items() if not key.startswith("BRIMFUL_")}
    up = [sys.executable, "-m", "brimful.cli.main", "up", "--data", str(data), "--port", str(port)]
    with _process([*up, "--slots", "8", "--max-queued", "1000000"], port, env):
        try:
            yield f"http://127.0.0.1:{port}", (data / "token").read_text()
        finally:
            _end_the_job(data, port)


@contextlib.contextmanager
def _process(command: list[str], port: int, env: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(command, env=env, cwd=ROOT, **_quiet())
    try:
        wait_for(port)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def _fill(servers: Servers) -> None:
    """One job that holds the node and 1,000 that wait for it."""
    body = json.loads(BODY)
    _post(f"{servers.ours}/v1/jobs", {**body, "command": ["sleep", "600"]}, servers.token)
    for _ in range(ACTIVE):
        _post(f"{servers.ours}/v1/jobs", body, servers.token)
        _post(f"{servers.bare}/jobs", body)


def _end_the_job(data: Path, port: int) -> None:
    """Jobs outlive their server: end the one that holds the node, and let none of the others start."""
    with contextlib.suppress(OSError):  # also if it has not got that far
        token, url = (data / "token").read_text(), f"http://127.0.0.1:{port}/v1"
        _post(f"{url}/nodes/local-0/drain", None, token)
        _post(f"{url}/jobs/job-1/cancel", None, token)
        for _ in range(300):
            if _get(f"{url}/jobs/job-1", token)["phase"] == "cancelled":
                return
            time.sleep(0.1)


def _post(url: str, body: dict[str, Any] | None, token: str = "") -> Any:  # noqa: ANN401 - JSON
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    data = b"" if body is None else json.dumps(body).encode()
    return _answer(Request(url, data=data, headers=headers))


def _get(url: str, token: str) -> Any:  # noqa: ANN401 - JSON
    return _answer(Request(url, headers={"authorization": f"Bearer {token}"}))


def _answer(asked: Request) -> Any:  # noqa: ANN401 - JSON
    with urlopen(asked, timeout=60) as answer:
        return json.load(answer)["data"]


def wait_for(port: int) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            time.sleep(1)
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on port {port}")


@cache
def _quiet() -> Any:  # noqa: ANN401 - for Popen
    return {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
