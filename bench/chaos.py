"""A busy brimful whose server, runs of jobs and database connections are killed at random, from a seed.

What must hold in the end is what `brimful admin doctor` checks, and what the jobs themselves saw: each holds
a lock of its own while it runs, so that two runs of one job at once would meet.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.job import Job
from brimful.fleet.state import OVER
from brimful.scheduler.rules import Rules
from brimful.server.doctor import Finding, examine
from brimful.server.run.engines import engines_in
from brimful.server.service.service import Service

BRIMFUL = str(Path(sys.executable).with_name("brimful"))
SITES = "east=2xslot@3.60,west=2xslot@1.80"
BUSY = 8  # jobs that wait or run at any time
ENDS_S = 90.0

JOB = """
import fcntl, pathlib, sys, time
name, seconds = sys.argv[1], float(sys.argv[2])
lock = open(name + ".lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    pathlib.Path(name + ".twice").touch()
    sys.exit(3)
time.sleep(seconds)
pathlib.Path(name + ".done").touch()
"""


@dataclass(kw_only=True)
class Outcome:
    kills: Counter[str]
    jobs: int
    seconds: float
    unfinished: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        found = [f"{name} did not finish" for name in self.unfinished]
        found += [f"{name} ran twice at once" for name in self.twice]
        found += [f"{name} is finished and never came to its end" for name in self.undone]
        return found + [f"{f.promise}: {each}" for f in self.findings for each in f.broken]


class Chaos:
    def __init__(self, folder: Path, url: str, *, seed: int) -> None:
        self.folder, self.url, self.random = folder, url, random.Random(seed)
        self.data, self.work = folder / "data", folder / "work"
        self.work.mkdir(parents=True)
        (folder / "job.py").write_text(JOB)
        self.kills: Counter[str] = Counter()
        self.server: subprocess.Popen[bytes] | None = None
        self.jobs = 0

    def run(self, kills: int) -> Outcome:
        began = time.monotonic()
        self._up()
        store = SqlStore(self.url)
        try:
            # A second server without a loop: it takes jobs in, as any number of them may.
            users = Service(store, [], Rules())
            while self.kills.total() < kills:
                self._keep_busy(users)
                time.sleep(self.random.uniform(0.05, 0.6))
                self._kill()
            self._up()
            outcome = self._finish(users, began)
        finally:
            self._down()
            store.close()
        return outcome

    def _keep_busy(self, users: Service) -> None:
        _patiently(users.reader.refresh)
        going = sum(state.phase not in OVER for state in users.reader.fleet.jobs.values())
        for _ in range(BUSY - going):
            self.jobs += 1
            name, seconds = f"work-{self.jobs}", self.random.uniform(0.3, 3.0)
            command = (sys.executable, str(self.folder / "job.py"), str(self.work / name), f"{seconds:.2f}")
            job = Job(job="", gpus=1, name=name, command=command, folder=str(self.folder), retries=10_000)
            _patiently(lambda job=job: users.submissions.submit(job))

    def _kill(self) -> None:
        what = self.random.choice(["server", "run", "job", "connection"])
        self._up()
        if what == "connection":
            what = self._cut_connections() or "job"
        if what == "server":
            assert self.server is not None
            self.server.kill()
            self.server.communicate()
            self.server = None
        elif what in ("run", "job") and not self._kill_child(runner=what == "run"):
            return
        self.kills[what] += 1

    def _kill_child(self, *, runner: bool) -> bool:
        """A runner, or the job itself, of a lease that runs now."""
        folders = [f for f in (self.data / "sites").glob("*/job-*") if not (f / "ended.json").exists()]
        self.random.shuffle(folders)
        for folder in folders:
            with contextlib.suppress(OSError, ValueError, KeyError):
                fact, key = ("started.json", "pid") if runner else ("child.json", "group")
                os.kill(json.loads((folder / fact).read_text())[key], signal.SIGKILL)
                return True
        return False

    def _cut_connections(self) -> str:
        """Every one there is; SQLite has none to cut."""
        if not self.url.startswith("postgresql"):
            return ""
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.execute(
                sa.text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
            )
        return "connection"

    def _up(self) -> None:
        if self.server is not None and self.server.poll() is None:
            return
        options = ["--database", self.url, "--data", str(self.data), "--sites", SITES, "--port", "0"]
        with (self.folder / "server.log").open("ab") as log:
            self.server = subprocess.Popen(
                [BRIMFUL, "up", "--json", *options], stdout=subprocess.PIPE, stderr=log
            )
        assert self.server.stdout is not None
        assert self.server.stdout.readline(), (self.folder / "server.log").read_text()[-3000:]

    def _down(self) -> None:
        if self.server is not None:
            self.server.terminate()
            self.server.communicate()

    def _finish(self, users: Service, began: float) -> Outcome:
        deadline = time.monotonic() + ENDS_S
        while time.monotonic() < deadline:
            _patiently(users.reader.refresh)
            if all(state.phase in OVER for state in users.reader.fleet.jobs.values()):
                break
            time.sleep(0.2)
        phases = {state.job.name: state.phase for state in users.reader.fleet.jobs.values()}
        assert isinstance(users.reader.store, SqlStore)
        return Outcome(
            kills=self.kills,
            jobs=len(phases),
            seconds=time.monotonic() - began,
            unfinished=[f"{name} ({phase})" for name, phase in phases.items() if phase != "finished"],
            twice=[path.stem for path in self.work.glob("*.twice")],
            undone=[name for name in phases if not (self.work / f"{name}.done").exists()],
            findings=list(examine(users.reader.store, engines_in(self.data))),
        )


def _patiently(act: object) -> None:
    """The database may hang up on us too; a user would try again."""
    from brimful.errors import WorldFailed

    assert callable(act)
    for attempt in range(20):
        try:
            act()
            return
        except WorldFailed:
            if attempt == 19:
                raise
            time.sleep(0.1)
