"""A small Slurm on this machine, to follow docs/tutorial/slurm-lab.md: `python -m tools.lab_slurm`, as root.

Four nodes with fake GPUs, two of them old. It runs until Ctrl-C and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import signal
import sys

from tests.engines.slurm_cluster import REMEDY, Cluster, is_missing

NODES = (("new-", 2, "a100", 4), ("old-", 2, "v100", 4))  # prefix, nodes, type, GPUs
PARTITIONS = {"gpu": "PreemptMode=OFF"}


def main() -> int:
    if lacks := is_missing():
        print(f"missing: {lacks}; {REMEDY}", file=sys.stderr)
        return 3
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.closing(Cluster(NODES, partitions=PARTITIONS)) as cluster:
        print(f"export SLURM_CONF={cluster.env['SLURM_CONF']}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
