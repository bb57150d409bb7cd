"""A lease as a batch job: its flags, its script, and the files that runners under `srun` find in its folder.

gang.json        the nodes of the ranks, in order
submitted.json   its Slurm job id, and when we submitted it
won              a folder that only one job can create: that job runs the lease; `id` is its number
master.json      the port where the ranks meet, chosen by the first rank on its machine
failed           "RANK CODE" of the rank that failed first: then the others end
taken            nodes that the cloud takes back, as their runners heard: then all ranks end
signalled        a gang's batch script got SIGTERM: then all ranks end
handed_back.json Slurm kept it waiting, and why
ranks/N          the folder of each rank's runner (runner.py), with its log
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from brimful.adapters.engines.job_users.users import JobUser
from brimful.adapters.engines.slurm.options import SlurmOptions
from brimful.adapters.engines.watch import SIGNALLED
from brimful.fleet.events import Parts

SECOND_START, TOO_LATE = 213, 214  # exit codes of jobs that ran nothing


class Component(NamedTuple):
    """Nodes of a lease with the same number of GPUs each: Slurm needs them together."""

    nodes: tuple[str, ...]
    gpus: int


def components(parts: Parts) -> list[Component]:
    by_count: dict[int, list[str]] = {}
    for node, gpus in parts:
        by_count.setdefault(len(gpus), []).append(node)
    return [Component(tuple(nodes), gpus) for gpus, nodes in by_count.items()]


def flags(
    name: str,
    folder: Path,
    those: Sequence[Component],
    options: SlurmOptions,
    *,
    kind: str,
    user: JobUser | None = None,
) -> list[str]:
    """For `sbatch`. Several components are one heterogeneous job, which starts as a whole or not at all.

    `user`: the job's owner, if we are root; None: us.
    """
    whose = [] if user is None else [f"--uid={user.uid}", f"--gid={user.gid}"]
    said: list[str] = []
    for each in those:
        typed = f"gpu:{kind}:{each.gpus}" if kind else f"gpu:{each.gpus}"
        said += [
            *([":"] if said else []),
            f"--job-name={name}",
            "--no-requeue",
            f"--output={folder / 'batch.log'}",
            "--open-mode=append",
            f"--chdir={folder}",
            f"--nodes={len(each.nodes)}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(each.nodes)}",
            f"--gres={typed}",
            *whose,
            *options.flags(each.gpus),
        ]
    return said


def script(folder: Path, *, nodes: int, count: int, python: str) -> str:
    """`mkdir` is atomic on every file system that clusters share.

    On one node the batch process becomes the runner: without `srun`, Slurm's signals reach a job only once.
    A gang's script outlives a SIGTERM, and `srun` does not get one that goes to the script's process group:
    the end of either would kill the ranks without their grace.
    """
    here = shlex.quote(str(folder))
    rank = f"{shlex.quote(python)} -P -m brimful.adapters.engines.slurm.rank {here}"
    begin = f"""#!/bin/sh
mkdir {here}/won || exit {SECOND_START}
echo "$SLURM_JOB_ID" > {here}/won/id
[ ! -e {here}/stop.json ] || exit {TOO_LATE}
"""
    if nodes == 1:
        return f"{begin}exec {rank}\n"
    groups = f"--het-group=0-{count - 1} " if count > 1 else ""
    marks = shlex.quote(f": > {shlex.quote(str(folder / SIGNALLED))}")
    return f"""{begin}trap {marks} TERM
setsid srun {groups}--mpi=none --kill-on-bad-exit=1 --export=ALL {rank} &
wait $!; code=$?
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
[ ! -s {here}/failed ] || read -r rank code < {here}/failed
exit $code
"""
