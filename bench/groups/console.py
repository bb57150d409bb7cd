"""The console with 20,000 jobs, 2,000 of them active: the cost of an update, and submits beside 50 tabs.

    make bench ARGS=console       about two minutes

The server's loop runs, as it does for users. Server time is CPU of the server's process but for the loop and
the threads beside it, which have a row of their own: the whole request, with its HTTP and its token, and
nothing of the client. An update is measured cold (nobody has asked since the fleet last changed), as for a
tab whose viewer shares its view with no one; viewers with the same view share one update.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from bench.document import judged, markdown
from bench.groups.plane import Still
from bench.groups.server import BODY, free_port, wait_for
from bench.measure import ROOT, Benchmark
from brimful.fleet.events import Event, JobSubmitted, LeaseEnded, LeaseGranted, LeaseStarted, NodeJoined
from brimful.fleet.job import Job
from brimful.fleet.node import Node

TITLE = "Console"
TABLES = ("console",)
JOBS, RUNNING, NODES, GPUS = 20_000, 1_000, 1_000, 8  # GPUs of a node, and of a job
PIECE = 5_000  # events per transaction
TABS, EVERY_S, SECONDS = 50, 2.0, 20.0
OPENING_S = 4.0  # before submits start beside the tabs: starting ten generators takes the cores for seconds
RUNS, WAITS = f"/jobs/job-{JOBS - RUNNING}/live", f"/jobs/job-{JOBS}/live"
PAGES = ("/console/live", "/jobs", RUNS, WAITS, "/fleet", "/market", "/teams", "/audit", "/operate")
WHOLE = ("/", "/jobs", RUNS.removesuffix("/live"), WAITS.removesuffix("/live"))  # timed to their last byte
ROUNDS = 5
PAGE_S, UPDATE_MS, UPDATE_BYTES, P99_MS = 1.0, 15.0, 20_000, 100.0


def benchmarks() -> Iterator[Benchmark]:
    yield from ()


def tables() -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="brimful-bench-") as folder:
        whole, updates, loop = measure_pages(Path(folder))
        rows = [
            [
                f"GET {path} to the last byte: first after the start, slowest after it",
                f"{each['first_s']:.2f} s, {each['slowest_s']:.2f} s",
                judged(f"≤ {PAGE_S:g} s", is_met=max(each.values()) <= PAGE_S),
            ]
            for path, each in whole.items()
        ]
        rows += [
            [
                f"update of {path}: CPU of the first, and of the slowest after it",
                f"{each['first_ms']:.1f} ms, {each['slowest_ms']:.1f} ms, {each['bytes']:,} bytes",
                judged(
                    f"≤ {UPDATE_MS:g} ms, ≤ {UPDATE_BYTES:,} bytes",
                    is_met=max(each["first_ms"], each["slowest_ms"]) <= UPDATE_MS
                    and each["bytes"] <= UPDATE_BYTES,
                ),
            ]
            for path, each in updates.items()
        ]
        rows.append(["the loop meanwhile: ticks, and its CPU with the threads beside it", loop, ""])
        rows += _beside(Path(folder))
    rows.append(["other work meanwhile: load of the machine's cores", f"{os.getloadavg()[0]:.1f}", ""])
    return {"console": markdown(["What", "Measured", "Bar"], rows)}


@dataclass(frozen=True, slots=True)
class Running:
    """A server in a process of its own."""

    port: int
    pid: int
    tokens: list[str]
    loop: list[int]  # threads that answer nobody

    def loop_s(self) -> float:
        """CPU of the loop and the threads beside it (proc_pid_schedstat(5), to the nanosecond)."""
        files = (Path(f"/proc/{self.pid}/task/{each}/schedstat") for each in self.loop)
        return sum(int(file.read_text().split()[0]) for file in files if file.exists()) / 1e9

    def ticks(self) -> int:
        http = HTTPConnection("127.0.0.1", self.port)
        found = re.search(rb"^brimful_ticks_total ([0-9]+)", _get(http, "/metrics", self.tokens[0], ""), re.M)
        assert found is not None
        return int(found[1])


@contextmanager
def _server(folder: Path, name: str) -> Iterator[Running]:
    port = free_port()
    command = [sys.executable, "-m", "bench.groups.console", name, str(folder), str(port)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        told = json.loads(server.stdout.readline())
        wait_for(port)
        yield Running(port=port, pid=server.pid, **told)
    finally:
        server.kill()
        server.wait()


def _beside(folder: Path) -> list[list[str]]:
    """Submits one after the other, without tabs and then beside them."""
    with _server(folder, "beside") as server:
        url, tokens, pid, rows = f"http://127.0.0.1:{server.port}", server.tokens, server.pid, []
        alone, cpu_s = _submits(url, tokens[0], pid)
        rows.append(["submit, no tab open: p99", f"{alone['p99_ms']:.0f} ms", ""])
        tabs: list[dict[str, Any]] = []
        watch = [
            threading.Thread(
                target=lambda p=path, t=token: tabs.append(_load(url + p, t, TABS // 10, EVERY_S, OPENING_S))
            )
            for token in tokens
            for path in ("/console/live", "/jobs?live=1")
        ]
        for each in watch:
            each.start()
        time.sleep(OPENING_S)
        beside, busy_s = _submits(url, tokens[0], pid)
        for each in watch:
            each.join()
        asked = sum(each["requests"] for each in tabs)
        slowest = max(each["p99_ms"] for each in tabs)
        rows += [
            [
                f"submit beside {TABS} tabs: p99",
                f"{beside['p99_ms']:.0f} ms",
                judged(f"≤ {P99_MS:g} ms", is_met=beside["p99_ms"] <= P99_MS),
            ],
            [f"an update of these {TABS} tabs: p99", f"{slowest:.0f} ms", ""],
            [f"CPU of the server, no tab open, {alone['requests']} submits", f"{cpu_s:.1f} s", ""],
            [f"the same, {TABS} tabs, {beside['requests']} submits, {asked} updates", f"{busy_s:.1f} s", ""],
        ]
    return rows


def _submits(url: str, token: str, pid: int) -> tuple[dict[str, Any], float]:
    began = _cpu_s(pid)
    seen = _load(f"{url}/v1/jobs", token, 1, 0.02, body=BODY)
    return seen, _cpu_s(pid) - began


def _load(
    url: str, token: str, connections: int, every_s: float, more_s: float = 0.0, *, body: str = ""
) -> dict[str, Any]:
    words = [
        sys.executable,
        "-m",
        "bench.load",
        url,
        str(SECONDS + more_s),
        str(connections),
        token,
        body,
        str(every_s),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    assert not seen["bad"], seen["first_bad"]
    return seen


def _cpu_s(pid: int) -> float:
    """All its threads, to the nanosecond: clock_getcpuclockid(3), which Python has for threads alone."""
    return time.clock_gettime(~pid << 3 | 2)


def crowd(now_s: int) -> Iterator[Event]:
    """This many finished jobs, 1,000 running that fill the fleet, 1,000 waiting; each with a budget."""
    for node in _nodes():
        yield NodeJoined.of(node, at_s=now_s)
    for i in range(1, JOBS + 1):
        name = f"job-{i}"
        given: dict[str, Any] = {"tenant": f"team-{i % 20}", "name": f"train a model, take {i}"}
        job = Job(job=name, gpus=GPUS, command=("python", "train.py"), budget_microusd=80_000_000, **given)
        yield JobSubmitted(at_s=now_s, job=job)
        if i > JOBS - RUNNING:
            continue
        where: dict[str, Any] = {"node": f"node-{i % NODES}", "gpus": tuple(range(GPUS))}
        yield LeaseGranted(at_s=now_s, lease=f"{name}.1", job=name, microusd_per_gpu_hour=2_000_000, **where)
        yield LeaseStarted(at_s=now_s, lease=f"{name}.1")
        if i <= JOBS - 2 * RUNNING:
            yield LeaseEnded(at_s=now_s, lease=f"{name}.1", exit_code=0)


def _nodes() -> list[Node]:
    given: dict[str, Any] = {"site": "here", "gpu": "h100-sxm-80gb", "gpus": GPUS, "declared": True}
    return [Node(node=f"node-{i}", microusd_per_gpu_hour=2_000_000, **given) for i in range(NODES)]


def _served(folder: Path, name: str) -> tuple[Any, Any, Any]:
    """A service on a log of this many jobs, its access and its application."""
    from brimful.adapters.identity.store import AccessStore
    from brimful.adapters.stores.leader import Leadership
    from brimful.adapters.stores.sql import SqlStore
    from brimful.scheduler.rules import Rules
    from brimful.server.app import make_app
    from brimful.server.auth import Access
    from brimful.server.service.service import Service

    store, now_s = SqlStore(f"sqlite:///{folder / name}.db"), int(time.time()) - 60
    events, seq = list(crowd(now_s)), 0
    while batch := events[seq : seq + PIECE]:
        assert store.append(batch, after=seq)
        seq += len(batch)
    engine = Still(_nodes())
    service = Service(store, [engine], Rules(), leadership=Leadership(store), max_queued=1_000_000)
    service.start()
    access = Access(AccessStore(store))
    app = make_app(service, access)
    app.warm_up()
    gc.collect()
    gc.freeze()  # as the server does once it is up
    return service, access, app


Measured = dict[str, dict[str, float]]


def measure_pages(folder: Path) -> tuple[Measured, Measured, str]:
    """Whole pages by the client's clock, the first as the very first request; then each page's live part; and
    what the loop did meanwhile."""
    whole: Measured = {}
    with _server(folder, "pages") as server:
        http = HTTPConnection("127.0.0.1", server.port)
        began, ticks, loop_s = time.perf_counter(), 0, server.loop_s()
        for path in WHOLE:
            took = []
            for _ in range(ROUNDS):
                asked = time.perf_counter()
                _get(http, path, server.tokens[0], "gzip")
                took.append(time.perf_counter() - asked)
                time.sleep(1.1)  # the next second: nobody else has asked for that one
            whole[path] = {"first_s": took[0], "slowest_s": max(took[1:])}
            ticks = ticks or server.ticks()  # not before the very first request
        updates = {path: _update(http, path, server) for path in PAGES}
        took_s, loop_s, ticks = time.perf_counter() - began, server.loop_s() - loop_s, server.ticks() - ticks
        assert ticks > took_s / 10, "the loop stands still"
        return whole, updates, f"{ticks} in {took_s:.0f} s, {loop_s / took_s:.0%} of a core"


def _update(http: HTTPConnection, path: str, server: Running) -> dict[str, float]:
    """CPU of the server for a live part, each time one second of the log later."""
    asked = path if path.endswith("live") else f"{path}?live=1"
    spent, size = [], 0
    for _ in range(ROUNDS):
        time.sleep(1.1)
        while path == "/audit" and b'data-every="2"' in _get(http, asked, server.tokens[0], ""):
            time.sleep(1.1)  # another process reads the log; then the page has its numbers
        time.sleep(1.1)
        began = _cpu_s(server.pid) - server.loop_s()
        body = _get(http, asked, server.tokens[0], "gzip")
        spent.append(1e3 * (_cpu_s(server.pid) - server.loop_s() - began))
        size = len(body)
    return {"first_ms": spent[0], "slowest_ms": max(spent[1:]), "bytes": size}


def _get(http: HTTPConnection, path: str, token: str, encoding: str) -> bytes:
    http.request("GET", path, headers={"authorization": f"Bearer {token}", "accept-encoding": encoding})
    answer = http.getresponse()
    body = answer.read()
    assert answer.status == 200, body
    return body


def serve(folder: Path, port: int, name: str) -> None:
    """A real web server; prints tokens of five people, each with one team but the first."""
    import uvicorn

    from brimful.server.run.connections import PatientProtocol

    _service, access, app = _served(folder, name)
    loop = [each.native_id for each in threading.enumerate() if each is not threading.main_thread()]
    people = [("op", "*", "operator")] + [(f"p{i}", f"team-{i}", "admin") for i in range(1, 5)]
    tokens = [access.issue(name=name, tenant=team, role=role)[0] for name, team, role in people]
    print(json.dumps({"tokens": tokens, "loop": loop}), flush=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", http=PatientProtocol)


if __name__ == "__main__":
    serve(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[1])
