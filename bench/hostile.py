"""Whatever a job can put where brimful reads: traps, planted by the thousand under a running scheduler.

    python -m bench.hostile 5000 [/dev/shm]     about two minutes; prints the loop's longest pause

Each case is a lease that is running according to the log, with traps in its folder or among its checkpoints.
The scheduler looks, reads samples and logs, warns and stops, as with any job. Some leases are started into
trapped folders, by an engine that has just been restarted on them.

A pause has four parts, and a busy machine stretches all but the first: what the server computes, waiting for
a core, flushing the log to disk, waiting for another thread. So each is printed, with the machine's load.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BrimfulError
from brimful.fleet.events import CancelRequested, Event, JobSubmitted, LeaseGranted, LeaseStarted
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.job import SEAL
from brimful.scheduler.ports import Start
from brimful.scheduler.rules import Rules
from brimful.server.service.service import Service

READ = ("started.json", "ended.json", "stop.json", "child.json", "notice.json", "sample.json")
READ_TOO = ("lock", "runner.lock", "log", "log.start", "beat", "runner.err", "order.json")
TEXTS = (
    b"",
    b"[]",
    b"null",
    b'"text"',
    b"{",
    b"\xff\xfe",
    b"{}",
    b"[" * 100_000,
    b"9" * 10_000,
    b'{"at_s": 1e400, "problem": "", "exit_code": 0}',
    b'{"at_s": -1e400, "problem": "", "exit_code": 0}',
    b'{"at_s": NaN, "problem": ""}',
    b'{"at_s": "soon", "problem": ""}',
    b'{"at_s": 99999999999999, "problem": "x", "exit_code": 99999999999}',
    b'{"at_s": 1, "pid": -1, "problem": ["a"], "speed": "fast", "exit_code": "0"}',
    b'{"at_s": 1, "speed": 1e308, "checkpoints": "/dev", "problem": ""}',
    b'{"at_s": 1, "speed": 1, "checkpoints": 5, "problem": "", "exit_code": 1}',
    b'{"step": 1e999, "at_s": 1, "files": {}}',
    b'{"step": 1, "at_s": 1, "files": {"../../x": {"bytes": 1, "sha256": ""}}}',
    b'{"step": 1, "at_s": 1, "files": {"a\\u0000b": {"bytes": 1, "sha256": ""}}}',
    b'{"deadline_s": "never", "grace_s": -5}',
    b'{"group": 1, "born": "0"}',
    b'{"at_s": 1, "problem": {"code": "no.such"}}',
    b'{"at_s": 1, "problem": {"code": "adapters.exit_code"}}',
    b'{"at_s": 1, "problem": {"seconds": "many"}}',
    b'{"at_s": 1, "problem": {"code": ["x"], "a": {"parts": 5}}}',
    b'{"at_s": 1, "problem": {"x": 1}}',
    b'{"at_s": 1, "problem": {"code": "language.verbatim", "text": {"plain": {"a": [1]}}}}',
    b'{"at_s": 1, "problem": {"code": "adapters.vanished", "x": {"number": NaN}}}',
    b'{"at_s": 1, "problem": {"code": "adapters.vanished", "x": {"number": 1, "digits": 99999999}}}',
    b'{"at_s": 1, "problem": "\\ud800 hi", "speed": NaN, "exit_code": 0}',
    b'{"at_s": 1, "problem": "", "speed": 1e400, "exit_code": 0}',
    b'{"at_s": 1, "problem": "", "exit_code": 1, "exit_codes": [1e999, "x", {}, null, 3]}',
    b'{"group": 1, "born": "0", "resumes_s": 1e400}',
)


def _sparse(path: Path, _rng: random.Random, _secret: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _socket(path: Path, _rng: random.Random, _secret: Path) -> None:
    # A socket's path may have 107 bytes, so it is created in its folder under its bare name.
    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def _device(path: Path, _rng: random.Random, _secret: Path) -> None:
    """A device with endless bytes; if we may not create one, a device that never returns any."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        os.mkfifo(path)


def _deep(path: Path, rng: random.Random, _secret: Path) -> None:
    at = path
    at.mkdir()
    for _ in range(rng.choice((3, 40, 200))):
        at = at / "d"
        at.mkdir()


# Valid JSON of many small parts, up to more than anyone may read. Made beforehand, which is slow too.
LARGE = [
    json.dumps({"at_s": 1, "step": 1, "problem": "", "files": {f"f{i}": i for i in range(parts)}}).encode()
    for parts in (1_000, 15_000, 400_000)
]


def _large(path: Path, rng: random.Random, _secret: Path) -> None:
    path.write_bytes(rng.choice(LARGE))


Plant = Callable[[Path, random.Random, Path], object]
PLANTS: tuple[Plant, ...] = (
    lambda path, _rng, _secret: os.mkfifo(path),
    lambda path, _rng, secret: path.symlink_to(secret),
    lambda path, _rng, _secret: path.symlink_to("/dev/zero"),
    lambda path, _rng, _secret: path.symlink_to(path),
    lambda path, _rng, _secret: path.symlink_to("nowhere"),
    lambda path, _rng, _secret: path.symlink_to("/proc/self/mem"),
    lambda path, _rng, _secret: path.mkdir(),
    lambda path, rng, _secret: path.write_bytes(rng.choice(TEXTS)),
    lambda path, rng, _secret: path.write_bytes(rng.randbytes(rng.randrange(200))),
    _sparse,
    _socket,
    _device,
    _deep,
)
RARE: tuple[Plant, ...] = (_large,)  # expensive to plant
TRAPS = (*PLANTS[:7], *PLANTS[-3:])  # what is no file: a lease must end whatever of these is in its folder
STARTED = 2  # real leases per round
ENTRIES = 1_000_000  # in the checkpoint folder of one lease
MANY = "many"  # its job
MANY_CASES = 1_000  # from here on it is planted
# By another process, as a job would: otherwise its work would count as the server's.
FILL = """
import os, sys
os.chdir(sys.argv[1])
for i in range(int(sys.argv[2])):
    os.mknod(f"many\\n{i}", 0o600)
"""
WAIT_S = 120.0
SECRET = "a line of somebody else's file"
TOGETHER = 100  # leases at a time
GPUS = 128


@dataclass
class Found:
    """The result of a run."""

    cases: int = 0
    longest_tick_s: float = 0.0
    longest_tick_cpu_s: float = 0.0  # CPU time of the loop's own thread
    longest_tick_unready_s: float = 0.0  # without the time in which others had the CPU
    longest_write_s: float = 0.0  # of the log to disk, within a tick
    longest_stall_s: float = 0.0  # of any runnable thread of this process
    longest_own_stall_s: float = 0.0  # of that, what this process computed meanwhile
    entries: int = 0  # in the fullest folder
    looks_at_many: int = 0  # how often the server listed it
    broken: list[str] = field(default_factory=list)


class Fuzz:
    def __init__(self, folder: Path, *, seed: int) -> None:
        self._rng, self._folder, self._seed = random.Random(seed), folder, seed
        self._secret = folder / "secret"
        self._secret.write_text(SECRET)
        self._root = folder / "leases"
        self._node = Node(
            site="local", node="n", gpu="h100", gpus=GPUS, microusd_per_gpu_hour=1, declared=True
        )
        self._engine = LocalEngine(self._root, [self._node])
        self._store = SqlStore(f"sqlite:///{folder / 'log.db'}")
        self._time_writes()
        self._service = Service(self._store, [self._engine], Rules(grace_s=1), tick_s=0.05)
        self.found = Found()

    def run(self, cases: int) -> Found:
        tick = self._service.driver.tick

        def timed() -> object:
            began, cpu_s, ready_s = time.monotonic(), time.thread_time(), _ready_s()
            try:
                return tick()
            finally:
                found, took_s = self.found, time.monotonic() - began
                found.longest_tick_s = max(found.longest_tick_s, took_s)
                found.longest_tick_cpu_s = max(found.longest_tick_cpu_s, time.thread_time() - cpu_s)
                waited_s = _ready_s() - ready_s
                found.longest_tick_unready_s = max(found.longest_tick_unready_s, took_s - waited_s)

        self._service.driver.tick = timed  # type: ignore[method-assign, assignment]
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over,), daemon=True)
        _hear()
        LISTENERS.append(self._opened)
        self._service.start()
        watch.start()
        try:
            for first in range(0, cases, TOGETHER):
                self._round(first, min(TOGETHER, cases - first), with_many=cases >= MANY_CASES and not first)
                self._start_trapped(first)
        finally:
            LISTENERS.remove(self._opened)
            over.set()
            watch.join()
            self._service.stop()
            self._store.close()
        if self.found.entries and not self.found.looks_at_many:
            self.found.broken.append(f"seed {self._seed}: nobody looked into the fullest folder")
        return self.found

    def _time_writes(self) -> None:
        append = self._store.append

        def timed(*args: Any, **named: Any) -> bool:  # noqa: ANN401 - passed on
            began = time.monotonic()
            try:
                return append(*args, **named)
            finally:
                if _is_loop():
                    spent_s = time.monotonic() - began
                    self.found.longest_write_s = max(self.found.longest_write_s, spent_s)

        self._store.append = timed  # type: ignore[method-assign]

    def _opened(self, event: str, path: object) -> None:
        """The loop itself opens and lists nothing that a job could have put there."""
        place = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if _is_loop() and (not place.startswith("/") or place.startswith(str(self._folder))):
            self.found.broken.append(f"seed {self._seed}: the loop itself called {event} on {path!r}")
        elif place == self._engine.checkpoints(MANY):
            self.found.looks_at_many += 1

    def _watch(self, over: threading.Event) -> None:
        """How long a thread that wants to run every few milliseconds is kept waiting."""
        found = self.found
        while not over.is_set():
            began, cpu_s = time.monotonic(), time.process_time()
            over.wait(0.005)
            stall_s, own_s = time.monotonic() - began - 0.005, time.process_time() - cpu_s
            found.longest_stall_s = max(found.longest_stall_s, stall_s)
            found.longest_own_stall_s = max(found.longest_own_stall_s, min(stall_s, own_s))

    def _round(self, first: int, count: int, *, with_many: bool) -> None:
        names = [f"job-{first + i}" for i in range(count)]
        for name in names:
            self._plant(f"{name}.1", name)
        if with_many:
            self._plant_many()
            names.append(MANY)
        self._begin(names)
        reader = self._service.reader
        self._looked(3)
        for name in names:
            for look in (self._engine.log, self._engine.sample):
                try:
                    if SECRET in str(look(f"{name}.1")):
                        self.found.broken.append(f"{name}: somebody else's file was shown")
                except BrimfulError:
                    pass  # reported, not shown
        self._write([CancelRequested(at_s=2, job=name) for name in names if name in self._open()])
        self._looked(3)
        for name in names:  # a person would repair what could not be read
            shutil.rmtree(self._root / f"{name}.1", ignore_errors=True)
            shutil.rmtree(self._engine.checkpoints(name), ignore_errors=True)
        self._until(lambda: not self._open())
        if self._secret.read_text() != SECRET:
            self.found.broken.append(f"seed {self._seed}, cases from {first}: the secret was written to")
        if reader.health.trouble() is not None:
            self.found.broken.append(f"seed {self._seed}, cases from {first}: {reader.health.trouble()}")
        self.found.cases += len(names)

    def _plant(self, lease: str, job: str) -> None:
        rng, folder = self._rng, self._root / lease
        folder.mkdir(mode=0o700)
        checkpoints = Path(self._engine.checkpoints(job))
        plants = PLANTS if rng.random() < 0.98 else RARE
        if rng.random() < 0.5:
            for name in rng.sample(READ + READ_TOO, rng.randrange(1, 6)):
                rng.choice(plants)(folder / name, rng, self._secret)
            return
        self._claim(lease, checkpoints)
        for name in ("x", "y\nz", ".saving-1", ".lease", "damaged-y"):
            if rng.random() < 0.5:
                rng.choice(plants)(checkpoints / name, rng, self._secret)
            else:
                (checkpoints / name).mkdir()
                rng.choice(plants)(checkpoints / name / rng.choice((SEAL, "state.pt")), rng, self._secret)

    def _claim(self, lease: str, checkpoints: Path) -> None:
        """A lease that says it began and keeps its checkpoints there."""
        started = {"at_s": 1, "pid": 1, "speed": 1.0, "checkpoints": str(checkpoints)}
        (self._root / lease / "started.json").write_text(json.dumps(started))
        checkpoints.mkdir(parents=True, exist_ok=True)

    def _plant_many(self) -> None:
        checkpoints = Path(self._engine.checkpoints(MANY))
        (self._root / f"{MANY}.1").mkdir(mode=0o700)
        self._claim(f"{MANY}.1", checkpoints)
        subprocess.run([sys.executable, "-c", FILL, checkpoints, str(ENTRIES)], check=True)
        self.found.entries = ENTRIES

    def _start_trapped(self, first: int) -> None:
        """Each is refused or runs once, and ends when it is stopped."""
        names = [f"new-{first + i}.1" for i in range(STARTED)]
        for name in names:
            (self._root / name).mkdir(mode=0o700)
            for trap in self._rng.sample(READ + READ_TOO, self._rng.randrange(1, 4)):
                self._rng.choice(TRAPS)(self._root / name / trap, self._rng, self._secret)
        engine = LocalEngine(self._root, [self._node])
        starts = [
            Start(name, Job(job=name[:-2], gpus=1, command=("true",), folder="/"), parts=(("n", (0,)),))
            for name in names
        ]
        left = set(names)

        def live() -> None:
            left.difference_update(engine.start(starts))
            while left:
                engine.stop(sorted(left), grace_s=1)
                left.difference_update(
                    each.lease for each in engine.observe(sorted(left)) if each.state in ("ended", "absent")
                )
                time.sleep(0.02)

        life = threading.Thread(target=live, daemon=True)
        life.start()
        life.join(WAIT_S)
        for name in left or (names if life.is_alive() else ()):
            held = sorted(each.name for each in (self._root / name).iterdir())
            self.found.broken.append(f"seed {self._seed}, {name}: it never ended: {held}")
        for name in names:
            shutil.rmtree(self._root / name, ignore_errors=True)
        self.found.cases += STARTED

    def _begin(self, names: list[str]) -> None:
        events: list[Event] = []
        for i, name in enumerate(names):
            job, lease = Job(job=name, gpus=1, command=("true",), folder="/"), f"{name}.1"
            events += [
                JobSubmitted(at_s=1, job=job),
                LeaseGranted(at_s=1, lease=lease, job=name, node="n", gpus=(i,), microusd_per_gpu_hour=1),
                LeaseStarted(1, lease),
            ]
        self._until(lambda: "n" in self._service.reader.fleet.nodes)
        self._write(events)

    def _write(self, events: list[Event]) -> None:
        while events and not self._store.append(events, after=self._store.end()):
            pass
        self._service.driver.wake()

    def _open(self) -> set[str]:
        with self._service.reader.locked():
            return {lease.job for lease in self._service.reader.fleet.open_leases.values()}

    def _looked(self, ticks: int) -> None:
        health = self._service.reader.health
        until = health.ticks + ticks
        self._until(lambda: health.ticks >= until)

    def _until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not is_so():
            if time.monotonic() > deadline:
                raise AssertionError(f"seed {self._seed}: the loop or a worker waits for ever")
            time.sleep(0.01)


LISTENERS: list[Callable[[str, object], None]] = []
OPENING = frozenset({"open", "os.listdir", "os.scandir"})


@cache
def _hear() -> None:
    """Tell listeners what this process opens. An audit hook cannot be taken out again."""

    def heard(event: str, args: tuple[object, ...]) -> None:
        if LISTENERS and event in OPENING:
            for each in LISTENERS:
                each(event, args[0])

    sys.addaudithook(heard)


def _is_loop() -> bool:
    return threading.current_thread().name == "tick"


def _ready_s() -> float:
    """How long this thread has been ready to run without getting a CPU."""
    return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e9


def run(cases: int, *, seed: int = 0, where: str | None = None) -> Found:
    """`where`: the folder to plant in; a disk and a tmpfs differ."""
    with tempfile.TemporaryDirectory(prefix="brimful-hostile-", dir=where) as folder:
        return Fuzz(Path(folder), seed=seed).run(cases)


def lines(found: Found) -> Iterator[str]:
    yield f"{found.cases:,} cases, {len(found.broken)} broken, {found.entries:,} entries in one folder"
    yield f"the loop's longest tick {1000 * found.longest_tick_s:.0f} ms"
    yield f"  less the time other programs had the CPU {1000 * found.longest_tick_unready_s:.0f} ms"
    yield f"  of CPU time at most {1000 * found.longest_tick_cpu_s:.0f} ms"
    yield f"  longest write of the log to disk {1000 * found.longest_write_s:.0f} ms"
    yield f"the longest stall of a thread {1000 * found.longest_stall_s:.0f} ms"
    yield f"  of which this process computed at most {1000 * found.longest_own_stall_s:.0f} ms"
    yield f"load in the last minute {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    yield from found.broken[:20]


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    for line in lines(run(int(given.get(1, "5000")), where=given.get(2))):
        print(line)
