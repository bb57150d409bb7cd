"""One rank of a lease, as Slurm starts it on its node: find its place, then become its runner."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from brimful.adapters.engines import runner
from brimful.adapters.engines.watch import FAILED, TAKEN
from brimful.adapters.files import read_json, write_json

LOOK_S = 0.1
# All the names that Slurm uses for a job's GPUs.
DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL")


def main(folder: Path) -> int:
    """Exit code for Slurm. In a gang: 0 once the rank's end is recorded, so that the others end by
    themselves, not by `srun`. For a single rank: the job's own code, for `sacct`."""
    gang = read_json(folder / "gang.json") or {"nodes": []}
    rank = gang["nodes"].index(os.environ["SLURMD_NODENAME"])
    own = folder / "ranks" / str(rank)
    if rank == 0:
        write_json(folder / "master.json", {"port": _free_port()})
    elif not _first_has_begun(folder):
        return 0
    order = read_json(own / "order.json")
    if order is not None:
        port = (read_json(folder / "master.json") or {})["port"]
        order["env"]["MASTER_PORT"] = str(port)
        order["ranks"][0] |= {key: os.environ[key] for key in DEVICES if key in os.environ}
        write_json(own / "order.json", order)
    runner.main(own)
    ended = read_json(own / "ended.json")
    if ended is None:
        return 1
    if len(gang["nodes"]) > 1 or ended["problem"] is None:
        return 0
    return ended["exit_code"] or runner.NOT_STARTED


def _first_has_begun(folder: Path) -> bool:
    """The first rank prepares the checkpoints for all; False if the lease is over before that."""
    first = folder / "ranks" / "0"
    while not (first / "child.json").exists():
        is_over = read_json(first / "ended.json") is not None
        if is_over or any((folder / name).exists() for name in ("stop.json", FAILED, TAKEN)):
            return False
        time.sleep(LOOK_S)
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
