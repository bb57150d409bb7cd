"""The options of a Slurm site in the sites file, and how a submission passes them on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    partition: str = ""  # empty: the cluster's default for jobs; all nodes are shown
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    time_limit: str = ""  # in sbatch syntax, such as 1-00:00:00
    whole_nodes: bool = False  # a lease has its nodes to itself
    cpus_per_gpu: int = 0  # 0: the cluster's default
    memory_mib_per_gpu: int = 0
    sbatch: tuple[str, ...] = ()  # further flags, passed unchanged
    gpu: str = ""  # type for GPUs that have none in the cluster
    gpu_types: Mapping[str, str] = field(default_factory=dict)  # the cluster's name -> ours
    pending_s: int = 5  # a job that Slurm has not started after this is handed back
    ssh: tuple[str, ...] = ()  # further `ssh` flags, if the site has an address
    python: str = ""  # on the nodes, with brimful installed; empty: the server's own

    def flags(self, gpus: int) -> list[str]:
        """For every component of a job with this many GPUs on a node."""
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
