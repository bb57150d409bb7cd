"""A busy brimful whose server, job runs and database connections are killed at random, from a seed.

What must hold in the end is what `brimful admin doctor` checks, and what the jobs themselves saw: each holds
a lock while it runs, so that two simultaneous runs of one job would collide; each checks that the jobs it
depends on have ended; and the folder it was packed from contains another program by then.

A third of the jobs are arrays, a third depend on others, half run packed code, and some fail on purpose, so
that their dependents must be skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from brimful.adapters.code import CodeStore
from brimful.adapters.stores.sql import SqlStore
from brimful.client.pack import packed
from brimful.errors import Refused
from brimful.fleet.arrays import Tasks
from brimful.fleet.job import Job
from brimful.fleet.state import OVER, JobState
from brimful.scheduler.rules import Rules
from brimful.server.doctor import Finding, examine
from brimful.server.run.engines import engines_in
from brimful.server.service.service import Service

BRIMFUL = str(Path(sys.executable).with_name("brimful"))
SITES = "east=2xslot@3.60,west=2xslot@1.80"
BUSY = 8  # jobs waiting or running at any time
ENDS_S = 90.0

LATE = "import pathlib, sys; pathlib.Path(sys.argv[1] + '.late').touch()"  # the folder's later contents
JOB = """
import fcntl, os, pathlib, sys, time
name = sys.argv[1] + os.environ.get("BRIMFUL_ARRAY_INDEX", "")
seconds, fails = float(sys.argv[2]), sys.argv[3] == "1"
if not all(pathlib.Path(before + ".done").exists() for before in sys.argv[4:]):
    pathlib.Path(name + ".early").touch()
lock = open(name + ".lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    pathlib.Path(name + ".twice").touch()
    sys.exit(3)
time.sleep(seconds)
pathlib.Path(name + ".done").touch()
sys.exit(1 if fails else 0)
"""


@dataclass(kw_only=True)
class Outcome:
    kills: Counter[str]
    jobs: int
    seconds: float
    unfinished: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    mix: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        found = [f"{name} did not finish" for name in self.unfinished]
        found += [f"{name} ran twice at once" for name in self.twice]
        found += [f"{name} is finished and never came to its end" for name in self.undone]
        found += [f"{name} began before what it comes after had ended" for name in self.early]
        found += [f"{name} ran what the folder held later" for name in self.late]
        return found + [f"{f.promise}: {each}" for f in self.findings for each in f.broken]


def python_for_all() -> str:
    """A Python that every user of the machine may run: ours may be in root's home."""
    for path in (sys.executable, "/usr/bin/python3"):
        if Path(path).is_relative_to("/tmp"):  # an isolated job has a private one
            continue
        command = ["sh", "-c", '"$0" -c "import ctypes"', path]
        done = subprocess.run(
            command, user=65534, group=65534, extra_groups=[], check=False, capture_output=True
        )
        if done.returncode == 0:
            return path
    raise SystemExit("no Python that every user may run: apt-get install python3")


class Chaos:
    """With `uids`, as root: two tenants, each with a separate user, whose jobs are isolated."""

    def __init__(self, folder: Path, url: str, *, seed: int, uids: bool = False) -> None:
        self.folder, self.url, self.random = folder, url, random.Random(seed)
        self.data = folder / "data"
        # An isolated job has a private /tmp and would not find a folder there.
        self.work = Path(tempfile.mkdtemp(dir="/run")) if uids else folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.work.chmod(0o1777)
        (self.work / "job.py").write_text(JOB)
        first = 1_200_000_000 + 2 * os.getpid()
        self.users = {"red": first, "blue": first + 1} if uids else {}
        self.python = python_for_all() if uids else sys.executable
        self.code = self._pack(folder / "project")
        self.mix: Counter[str] = Counter()
        self.ends: dict[str, list[str]] = {}  # job or array -> what its tasks leave behind
        self.wanted: dict[str, str] = {}  # name -> final phase
        self.kills: Counter[str] = Counter()
        self.server: subprocess.Popen[bytes] | None = None
        self.jobs = 0

    def run(self, kills: int) -> Outcome:
        began = time.monotonic()
        self._up()
        store = SqlStore(self.url)
        try:
            # A second server without a loop: it accepts jobs, as any number of servers may.
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

    @property
    def tenants(self) -> list[str]:
        return [*self.users] or ["default"]

    def _pack(self, project: Path) -> str:
        """As `submit` does; then the folder changes."""
        project.mkdir(parents=True)
        (project / "job.py").write_text(JOB)
        for tenant in self.tenants:
            with packed(project) as pack, CodeStore(self.data / "code").receiving(tenant, pack.code) as kept:
                kept.write(pack.file.read())
        (project / "job.py").write_text(LATE)
        return pack.code

    def _keep_busy(self, users: Service) -> None:
        _patiently(users.reader.refresh)
        going = sum(state.phase not in OVER for state in users.reader.fleet.jobs.values())
        while going < BUSY:
            going += self._submit(users)

    def _submit(self, users: Service) -> int:
        """One more job or array; returns how many jobs that is."""
        self.jobs += 1
        # Fixed width: the third task of an array work-5 must not collide with a job work-52.
        name, dice = f"work-{self.jobs:04}", self.random
        tasks = Tasks((0, 1, 2), at_most=2) if dice.random() < 1 / 3 else None
        fails = tasks is None and dice.random() < 1 / 8
        before = dice.choice(sorted(self.ends)) if self.ends and dice.random() < 1 / 3 else ""
        is_packed = dice.random() < 1 / 2
        program = "job.py" if is_packed else str(self.work / "job.py")
        tenant = self.tenants[self.jobs % len(self.tenants)]
        seconds = f"{dice.uniform(0.3, 3.0):.2f}"
        job = Job(
            job="",
            gpus=1,
            name=name,
            tenant=tenant,
            key=name,  # a user who gets no answer retries
            submitter="chaos",
            command=(
                *(self.python, program, str(self.work / name), seconds, str(int(fails))),
                *self.ends.get(before, ()),
            ),
            folder=str(self.folder / "project" if is_packed else self.work),
            code=self.code if is_packed else "",
            after=((before, "ok"),) if before else (),
            retries=0 if fails else 10_000,
        )
        made: list[JobState] = []
        try:
            _patiently(lambda: made.append(users.submissions.submit(job, tasks)))
        except Refused:
            return 0  # the job it depends on has failed meanwhile
        names = [name] if tasks is None else [f"{name}{i}" for i in tasks.indices]
        never = before and {"failed", "skipped"} & {self.wanted[_stem(x)] for x in self.ends[before]}
        phase = "skipped" if never else "failed" if fails else "finished"
        self.wanted |= dict.fromkeys(names, phase)
        self.ends[made[-1].job.array or made[-1].job.job] = [str(self.work / each) for each in names]
        told = {"array": tasks, "after": before, "packed": is_packed, "fails": fails, "skipped": never}
        told[tenant] = bool(self.users)
        self.mix.update(word for word, is_so in told.items() if is_so)
        return len(names)

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
        """All of them; SQLite has none to cut."""
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
        if self.users:
            options += ["--job-users", ",".join(f"{name}={uid}" for name, uid in self.users.items())]
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
        shutil.rmtree(self.work)

    def _finish(self, users: Service, began: float) -> Outcome:
        deadline = time.monotonic() + ENDS_S
        while time.monotonic() < deadline:
            _patiently(users.reader.refresh)
            if all(state.phase in OVER for state in users.reader.fleet.jobs.values()):
                break
            time.sleep(0.2)
        states = users.reader.fleet.jobs.values()
        phases = {f"{s.job.name}{s.job.array_index if s.job.array else ''}": s.phase for s in states}
        assert isinstance(users.reader.store, SqlStore)
        return Outcome(
            kills=self.kills,
            jobs=len(phases),
            seconds=time.monotonic() - began,
            unfinished=[
                f"{name} ({phases.get(name)}, not {wanted})"
                for name, wanted in self.wanted.items()
                if phases.get(name) != wanted
            ],
            twice=[path.stem for path in self.work.glob("*.twice")],
            undone=[
                name
                for name, phase in phases.items()
                if phase == "finished" and not (self.work / f"{name}.done").exists()
            ],
            early=[path.stem for path in self.work.glob("*.early")],
            late=[path.stem for path in self.work.glob("*.late")],
            mix=self.mix,
            findings=list(examine(users.reader.store, engines_in(self.data))),
        )


def _stem(path: str) -> str:
    return Path(path).name


def _patiently(act: object) -> None:
    """The database may drop our connection too; a user would retry."""
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
