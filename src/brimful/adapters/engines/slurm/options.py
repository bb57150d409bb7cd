"""What a site of Slurm may say in the file of sites, and how a submission says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    partition: str = ""  # empty: the cluster's default for jobs, all nodes to look at
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    time_limit: str = ""  # as sbatch takes it, such as 1-00:00:00
    whole_nodes: bool = False  # a lease has its nodes for itself
    cpus_per_gpu: int = 0  # 0: as the cluster is set up
    memory_mib_per_gpu: int = 0
    sbatch: tuple[str, ...] = ()  # further flags, as they are
    gpu: str = ""  # the type of GPUs that the cluster gives no type
    gpu_types: Mapping[str, str] = field(default_factory=dict)  # the cluster's word -> ours
    pending_s: int = 5  # one that Slurm has not begun after so long is handed back
    ssh: tuple[str, ...] = ()  # further flags of `ssh`, where the site has an address
    python: str = ""  # on the nodes, with brimful installed; empty: the one that runs the server

    def flags(self, gpus: int) -> list[str]:
        """For every component of a job that has so many GPUs on a node."""
        named = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "reservation": self.reservation,
            "constraint": self.constraint,
            "time": self.time_limit,
            "cpus-per-task": str(self.cpus_per_gpu * gpus or ""),
            "mem": f"{self.memory_mib_per_gpu * gpus}M" if self.memory_mib_per_gpu else "",
        }
        whole = ["--exclusive"] if self.whole_nodes else []
        return [*(f"--{key}={value}" for key, value in named.items() if value), *whole, *self.sbatch]
