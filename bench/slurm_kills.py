"""A server above Slurm that is killed again and again, while jobs are submitted and cancelled."""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BrimfulError
from brimful.fleet.job import Job
from brimful.fleet.state import OVER
from brimful.scheduler.rules import Rules
from brimful.server.doctor import examine
from brimful.server.service.service import Service
from tests.engines.slurm_cluster import Cluster
from tests.server.live import Live

BUSY = 8
ENDS_S = 120.0
# Writes its lease once for each start.
JOB = "echo $BRIMFUL_LEASE >> ran; sleep $0; echo $BRIMFUL_JOB >> done"


@dataclass(kw_only=True)
class Outcome:
    kills: int
    jobs: int
    runs: int
    broken: list[str] = field(default_factory=list)


def survive(cluster: Cluster, *, kills: int, seed: int) -> Outcome:
    dice = random.Random(seed)
    os.environ["SLURM_CONF"] = cluster.env["SLURM_CONF"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("ran", "done"):
            (folder / file).touch()
        (folder / "sites.toml").write_text('[hpc]\nengine = "slurm"\npartition = "low"\n')
        server = Live(folder / "data", "--sites", str(folder / "sites.toml"))
        server.up()
        store = SqlStore(f"sqlite:///{folder / 'data' / 'brimful.db'}")
        users = Service(store, [], Rules())
        cancelled: set[str] = set()
        try:
            for _ in range(kills):
                going = _keep_busy(users, folder, dice)
                if dice.random() < 0.5:
                    cancelled.add(_cancel(users, dice.choice(going)))
                time.sleep(dice.uniform(0.05, 1.0))
                server.kill()
                server.up()
            broken = _finish(users, folder, cancelled)
        finally:
            server.down()
            store.close()
        runs = (folder / "ran").read_text().split()
        return Outcome(kills=kills, jobs=len(users.reader.fleet.jobs), runs=len(runs), broken=broken)


def _keep_busy(users: Service, folder: Path, dice: random.Random) -> list[str]:
    users.reader.refresh()
    going = [name for name, state in users.reader.fleet.jobs.items() if state.phase not in OVER]
    while len(going) < BUSY:
        command = ("sh", "-c", JOB, f"{dice.uniform(0.1, 2.0):.2f}")
        made = users.submissions.submit(Job(job="", gpus=1, command=command, folder=str(folder)))
        going.append(made.job.job)
    return going


def _cancel(users: Service, job: str) -> str:
    try:
        users.submissions.cancel(job)
    except BrimfulError as error:  # it has just ended
        print(f"{job} was not cancelled: {error.problem}", file=sys.stderr)
    return job


def _finish(users: Service, folder: Path, cancelled: set[str]) -> list[str]:
    until = time.monotonic() + ENDS_S
    while time.monotonic() < until:
        users.reader.refresh()
        states = users.reader.fleet.jobs
        if all(state.phase in OVER for state in states.values()):
            break
        time.sleep(0.2)
    ran, done = ((folder / name).read_text().split() for name in ("ran", "done"))
    broken = [f"{lease} ran {ran.count(lease)} times" for lease in sorted(set(ran)) if ran.count(lease) > 1]
    for name, state in users.reader.fleet.jobs.items():
        if state.phase not in OVER:
            broken.append(f"{name} is {state.phase}")
        elif name not in cancelled and (state.phase != "finished" or done.count(name) != 1):
            broken.append(f"{name} is {state.phase} and came to its end {done.count(name)} times")
    assert isinstance(users.reader.store, SqlStore)
    return broken + [str(each) for finding in examine(users.reader.store) for each in finding.broken]
