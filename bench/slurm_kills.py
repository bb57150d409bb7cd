"""A server above Slurm that is killed again and again, while jobs are submitted and cancelled.

`survive` kills at random moments. `aimed` kills at named ones: `sbatch` and `scancel` are scripts that come
first on the server's PATH, and the one that finds a moment in the file `armed` kills the server there. A kill
counts only if what is left on the disk, in Slurm and in the log shows that it fell at that moment.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from brimful.adapters.engines.slurm.options import SlurmOptions
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BrimfulError
from brimful.fleet.job import Job
from brimful.fleet.lease import Lease
from brimful.fleet.state import OVER
from brimful.scheduler.rules import Rules
from brimful.server.doctor import examine
from brimful.server.service.service import Service
from tests.engines.slurm_cluster import Cluster
from tests.server.live import Live, wait_for

BUSY = 8
ENDS_S = 120.0
# Writes its lease once for each start.
JOB = "echo $BRIMFUL_LEASE >> ran; sleep $0; echo $BRIMFUL_JOB >> done"


# What the script does about it.
AT_SBATCH = {
    "before sbatch": "before",
    "sbatch begun, its job submitted after the restart": "meanwhile",
    "between sbatch and its record": "between",
    "after sbatch's record": "after",
}
AT_SCANCEL = (
    "before scancel of a waiting lease",
    "between scancel of a waiting lease and its answer",
    "after the end of a waiting lease was recorded",
    "before scancel of a running lease",
    "between scancel of a running lease and its answer",
    "after the end of a running lease was recorded",
)
AIMED = (*AT_SBATCH, *AT_SCANCEL)
# `mv` lets one of several commands take the moment. Nothing may keep our standard output open: the server
# reads it to its end.
SHIM = """#!/bin/sh
arms={folder} tool={tool} server=$PPID name= folder=
hit() {{ echo "$server $name" > $arms/hit.new; mv $arms/hit.new $arms/hit; kill -9 $server; }}
for flag; do case $flag in
    --job-name=*) name=${{flag#--job-name=}} ;;
    --chdir=*) folder=${{flag#--chdir=}} ;;
esac; done
read -r moment wanted 2>/dev/null < $arms/armed || exec $tool "$@"
case " $* " in *"$wanted"*) ;; *) exec $tool "$@" ;; esac
mv $arms/armed $arms/taken 2>/dev/null || exec $tool "$@"
case $moment in
before) hit; exit 1 ;;
meanwhile) hit; until [ -e "$folder/submitted.json" ] || [ ! -d $arms ]; do sleep 0.01; done
    exec $tool "$@" ;;
between) said=$($tool "$@"); hit; exit 1 ;;
after) exec 3>&1 > /dev/null
    (until [ -e "$folder/submitted.json" ] || [ ! -d $arms ]; do :; done; hit) 3>&- 2>&1 < /dev/null &
    exec $tool "$@" >&3 3>&- ;;
esac
"""


@dataclass(kw_only=True)
class Outcome:
    kills: int
    jobs: int
    runs: int
    hits: Counter[str] = field(default_factory=Counter)  # kills that fell at each named moment
    broken: list[str] = field(default_factory=list)


class Tools:
    """Scripts before the `sbatch` and `scancel` of servers, which can kill the server that runs them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._folder, self._places = folder, folder / "tools"
        self._places.mkdir()
        for tool in ("sbatch", "scancel"):
            made = self._places / tool
            made.write_text(SHIM.format(folder=folder, tool=shutil.which(tool, path=cluster.env["PATH"])))
            made.chmod(0o755)

    def go_before(self, server: Live) -> None:
        server.env["PATH"] = f"{self._places}:{server.env['PATH']}"

    def fall(self, server: Live, how: str, wanted: str, act: Callable[[], object]) -> str:
        """Have the server killed by its next command with `wanted` in it; the job's name in Slurm."""
        pid = server.pid
        (self._folder / "hit").unlink(missing_ok=True)
        (self._folder / "armed.new").write_text(f"{how} {wanted}\n")
        (self._folder / "armed.new").rename(self._folder / "armed")
        act()
        server.fell()
        killed, _, name = (self._folder / "hit").read_text().strip().partition(" ")
        assert int(killed) == pid, (killed, pid)
        return name


class Lab:
    """A server above the cluster, its users, and scripts before its `sbatch` and `scancel`."""

    def __init__(self, cluster: Cluster, folder: Path, *, pending_s: int) -> None:
        self.cluster, self.folder = cluster, folder
        for file in ("ran", "done"):
            (folder / file).touch()
        sites = folder / "sites.toml"
        sites.write_text(f'[hpc]\nengine = "slurm"\npartition = "low"\npending_s = {pending_s}\n')
        self.server = Live(folder / "data", "--sites", str(sites))
        self.tools = Tools(cluster, folder)
        self.tools.go_before(self.server)
        self.server.up()
        self.store = SqlStore(f"sqlite:///{folder / 'data' / 'brimful.db'}")
        self.users = Service(self.store, [], Rules())
        self.cancelled: set[str] = set()

    def submit(self, sleeps_s: float) -> str:
        command = ("sh", "-c", JOB, f"{sleeps_s:.2f}")
        return self.users.submissions.submit(
            Job(job="", gpus=1, command=command, folder=str(self.folder))
        ).job.job

    def cancel(self, job: str) -> None:
        self.cancelled.add(job)
        try:
            self.users.submissions.cancel(job)
        except BrimfulError as error:  # it has just ended
            print(f"{job} was not cancelled: {error.problem}", file=sys.stderr)

    def lease(self, job: str) -> Lease | None:
        self.users.reader.refresh()
        return next(iter(self.users.reader.job(job).leases), None)

    def at(self, lease: str) -> Path:
        return self.server.data / "sites" / "hpc" / lease

    def is_noted(self, lease: str, name: str) -> bool:
        return (self.at(lease) / name).exists()

    def outcome(self, *, kills: int, hits: Counter[str] | None = None) -> Outcome:
        broken = _finish(self)
        runs = len((self.folder / "ran").read_text().split())
        jobs = len(self.users.reader.fleet.jobs)
        return Outcome(kills=kills, jobs=jobs, runs=runs, hits=hits or Counter(), broken=broken)


@contextmanager
def a_lab(cluster: Cluster, *, pending_s: int) -> Iterator[Lab]:
    os.environ["SLURM_CONF"] = cluster.env["SLURM_CONF"]
    with tempfile.TemporaryDirectory() as name:
        lab = Lab(cluster, Path(name), pending_s=pending_s)
        try:
            yield lab
        finally:
            lab.server.down()
            lab.store.close()


def survive(cluster: Cluster, *, kills: int, seed: int) -> Outcome:
    dice = random.Random(seed)
    with a_lab(cluster, pending_s=SlurmOptions().pending_s) as lab:
        for _ in range(kills):
            going = _keep_busy(lab, dice)
            if dice.random() < 0.5:
                lab.cancel(dice.choice(going))
            time.sleep(dice.uniform(0.05, 1.0))
            lab.server.kill()
            lab.server.up()
        return lab.outcome(kills=kills)


def aimed(cluster: Cluster, *, each: int) -> Outcome:
    """`each` kills at every moment of AIMED, in turn."""
    with a_lab(cluster, pending_s=3600) as lab:  # so that only `cancel` ends what waits
        hits: Counter[str] = Counter()
        for moment in AIMED * each:
            hits[moment] += (_at_sbatch if moment in AT_SBATCH else _at_scancel)(lab, moment)
        return lab.outcome(kills=each * len(AIMED), hits=hits)


def _at_sbatch(lab: Lab, moment: str) -> bool:
    how = AT_SBATCH[moment]
    # Three at once, since the server submits several at a time.
    name = lab.tools.fall(lab.server, how, "--job-name", lambda: [lab.submit(0.1) for _ in range(3)])
    is_hit = is_at(lab.cluster, how, name, is_noted=lab.is_noted(name.rpartition(":")[2], "submitted.json"))
    lab.server.up()
    await_second(lab.cluster, how, name)
    return is_hit


def is_at(cluster: Cluster, how: str, name: str, *, is_noted: bool) -> bool:
    """Whether what a killed server left is what there is at that moment."""
    left = {"before": (0, False), "meanwhile": (0, False), "between": (1, False)}
    return (_times_known(cluster, name), is_noted) == left.get(how, (1, True))


def await_second(cluster: Cluster, how: str, name: str) -> None:
    """Of two jobs for one lease; it may run nothing."""
    if how == "meanwhile":
        wait_for(lambda: _times_known(cluster, name) == 2, every_s=0.05)


def _times_known(cluster: Cluster, name: str) -> int:
    return cluster.run("squeue", "-h", "-t", "all", "-o", "%j").split().count(name)


def _at_scancel(lab: Lab, moment: str) -> bool:
    is_waiting = "waiting" in moment
    state = "PENDING" if is_waiting else "RUNNING"
    _let(lab, begin=not is_waiting)
    job = lab.submit(600)
    number = wait_for(lambda: _number(lab, job, state), every_s=0.05)
    if "recorded" in moment:
        lab.cancel(job)
        wait_for(lambda: _is_recorded(lab, job), every_s=0.005)
        lab.server.kill()
    else:
        # A waiting job is cancelled first, a running one is woken last.
        flags = f"--state=PENDING {number}" if is_waiting else f"--signal=URG {number}"
        lab.tools.fall(lab.server, moment.partition(" ")[0], flags, lambda: lab.cancel(job))
    found = lab.lease(job)
    assert found is not None
    is_asked, is_over = lab.is_noted(found.lease, "stop.json"), _is_recorded(lab, job)
    still = lab.cluster.run("squeue", "-h", "-j", number, "-o", "%T", check=False).strip()
    _let(lab, begin=True)
    lab.server.up()
    if "recorded" in moment or not is_asked:
        return is_asked and is_over
    is_untouched = not is_waiting or (still == state if "before" in moment else not still)
    return is_untouched and not is_over


def _let(lab: Lab, *, begin: bool) -> None:
    lab.cluster.run("scontrol", "update", "partitionname=low", f"state={'UP' if begin else 'DOWN'}")


def _is_recorded(lab: Lab, job: str) -> bool:
    found = lab.lease(job)
    return found is not None and found.ended_s is not None


def _number(lab: Lab, job: str, state: str) -> str:
    """Of its lease in Slurm, once that is in this state there and recorded."""
    found = lab.lease(job)
    if found is None or not lab.is_noted(found.lease, "submitted.json"):
        return ""
    if state == "RUNNING" and found.started_s is None:
        return ""
    number = str(json.loads((lab.at(found.lease) / "submitted.json").read_text())["job"])
    said = lab.cluster.run("squeue", "-h", "-t", state, "-j", number, "-o", "%A", check=False)
    return said.strip()


def _keep_busy(lab: Lab, dice: random.Random) -> list[str]:
    lab.users.reader.refresh()
    going = [name for name, state in lab.users.reader.fleet.jobs.items() if state.phase not in OVER]
    while len(going) < BUSY:
        going.append(lab.submit(dice.uniform(0.1, 2.0)))
    return going


def _finish(lab: Lab) -> list[str]:
    users, folder = lab.users, lab.folder
    until = time.monotonic() + ENDS_S
    while time.monotonic() < until:
        users.reader.refresh()
        states = users.reader.fleet.jobs
        left = lab.cluster.run("squeue", "-h", "-o", "%j").split()
        if not left and all(state.phase in OVER for state in states.values()):
            break
        time.sleep(0.2)
    broken = [f"{name} is still in Slurm" for name in left]
    ran, done = ((folder / name).read_text().split() for name in ("ran", "done"))
    broken += [f"{lease} ran {ran.count(lease)} times" for lease in sorted(set(ran)) if ran.count(lease) > 1]
    for name, state in users.reader.fleet.jobs.items():
        if state.phase not in OVER:
            broken.append(f"{name} is {state.phase}")
        elif done.count(name) > 1:
            broken.append(f"{name} came to its end {done.count(name)} times")
        elif name not in lab.cancelled and (state.phase != "finished" or done.count(name) != 1):
            broken.append(f"{name} is {state.phase} and came to its end {done.count(name)} times")
    assert isinstance(users.reader.store, SqlStore)
    return broken + [str(each) for finding in examine(users.reader.store) for each in finding.broken]
