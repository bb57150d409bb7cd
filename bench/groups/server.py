"""Submits and reads per second, beside a bare FastAPI with SQLite in the same run, with 1,000 active jobs.

    make bench ARGS=server        about two minutes

The generator is a separate process on the same two cores. Wall seconds per request instead of CPU, since that
is what the bars are about: at least 0.5 of the peer's submits and 0.7 of its reads per second.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

from bench.document import markdown
from bench.measure import ROOT, Benchmark

TITLE = "Server under load (wall seconds for each request)"
TABLES = ("server-load",)
ACTIVE = 1000
SECONDS, CONNECTIONS = 3.0, 16
BODY = json.dumps({"command": ["true"], "folder": "/tmp", "gpus": 8, "name": "load"})
PEER = "bare FastAPI + SQLite"


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


def tables() -> dict[str, str]:
    with running() as servers:
        asked = {
            "submit": (f"{servers.ours}/v1/jobs", servers.token, BODY),
            "bare submit": (f"{servers.bare}/jobs", "", BODY),
            "read one job": (f"{servers.ours}/v1/jobs/job-7", servers.token, ""),
            "bare read": (f"{servers.bare}/jobs/7", "", ""),
            "list 50 jobs": (f"{servers.ours}/v1/jobs?limit=50", servers.token, ""),
            "fleet": (f"{servers.ours}/v1/fleet", servers.token, ""),
            "console's live part": (f"{servers.ours}/console/live", servers.token, ""),
        }
        rows = []
        for name, (url, token, body) in asked.items():
            seen = load(url, token, body)
            rows.append(
                [name, f"{seen['per_s']:,.0f}", f"{seen['p50_ms']:.1f} ms", f"{seen['p99_ms']:.1f} ms"]
            )
    return {"server-load": markdown(["Request", "a second", "median", "p99"], rows)}


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
    with tempfile.TemporaryDirectory(prefix="brimful-") as folder, contextlib.ExitStack() as stack:
        yield stack.enter_context(_both(Path(folder)))


@contextlib.contextmanager
def _both(folder: Path) -> Iterator[Servers]:
    ours, bare = free_port(), free_port()
    env = {key: value for key, value in os.environ.items() if not key.startswith("BRIMFUL_")}
    up = [sys.executable, "-m", "brimful.cli.main", "up", "--data", str(folder / "data"), "--port", str(ours)]
    started = [
        subprocess.Popen([*up, "--slots", "8", "--max-queued", "1000000"], env=env, cwd=ROOT, **_quiet()),
        subprocess.Popen(
            [sys.executable, "-m", "bench.bare", str(folder / "bare.db"), str(bare)], cwd=ROOT, **_quiet()
        ),
    ]
    try:
        for port in (ours, bare):
            wait_for(port)
        token = (folder / "data" / "token").read_text()
        servers = Servers(f"http://127.0.0.1:{ours}", token, f"http://127.0.0.1:{bare}")
        _fill(servers)
        yield servers
    finally:
        _end_the_job(folder / "data", ours)
        for process in started:
            process.send_signal(signal.SIGINT)
        for process in started:
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
            asked = Request(f"{url}/jobs/job-1", headers={"authorization": f"Bearer {token}"})
            with urlopen(asked, timeout=60) as answer:
                if json.load(answer)["data"]["phase"] == "cancelled":
                    return
            time.sleep(0.1)


def _post(url: str, body: dict[str, Any] | None, token: str = "") -> None:
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    data = b"" if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data=data, headers=headers), timeout=60):
        pass


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
