"""A private Slurm in a folder, on loopback: its own munge, controller and one slurmd for each node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.engines.keeper import Keeper
from tests.engines.ports import reserve_ports
from tests.patience import PATIENCE_S

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "sshd")
ACCOUNTING = ("slurmdbd", "mariadbd")
PLACES = "/usr/sbin:/usr/bin:/sbin:/bin"
REMEDY = "run `apt-get install slurmctld slurmd slurm-client munge openssh-server` as root"
USUAL = (("n-", 2, "a100", 8), ("v-", 2, "v100", 4))  # prefix, nodes, type, GPUs
PARTITIONS = {  # all nodes are in each of them; the first is the default
    "low": "PriorityTier=1 PreemptMode=REQUEUE GraceTime=0",
    "watched": "PriorityTier=1 PreemptMode=OFF",
    "high": "PriorityTier=10 PreemptMode=OFF",
}


def is_missing() -> str:
    """What is not here of what a cluster needs; empty: nothing."""
    if os.geteuid() != 0:
        return "root"  # munged and slurmd of the Debian packages want it
    return ", ".join(name for name in PROGRAMS if shutil.which(name, path=PLACES) is None)


class Cluster:
    """Started by its maker, ended by `close`, or by its keeper when whoever made it was killed."""

    def __init__(
        self,
        groups: Sequence[tuple[str, int, str, int]] = USUAL,
        *,
        partitions: Mapping[str, str] = PARTITIONS,
        more: Mapping[str, object] | None = None,
        accounting: bool = False,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="brimful-slurm-"))
        self.nodes = [f"{prefix}{i}" for prefix, count, _, _ in groups for i in range(count)]
        self.env = {"PATH": PLACES, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self._up: set[str] = set()
        for name in ("munge", "ctld", "log", *(f"spool/{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True, mode=0o755)
        self.folder.chmod(0o711)
        lock, (port, database, records, *ports) = reserve_ports(len(self.nodes) + 3)
        with lock:
            self._keeper = Keeper(self.folder, holds=lock.fileno())
        self._settings = {**_settings(self.folder, port), **(more or {})}
        self._default, *_ = partitions
        self._nodes = [
            *_configure(self.folder, groups, ports),
            *(
                f"PartitionName={name} Nodes=ALL {'Default=YES ' * (name == self._default)}{options}"
                for name, options in partitions.items()
            ),
        ]
        try:
            self._start_munge()
            if accounting:
                self._start_accounting(database, records)
            self.configure()
            self.start_controller()
            for node in self.nodes:
                self.start_node(node)
            self.wait_until_up()
        except BaseException:
            self.close()
            raise

    def configure(self, **changes: object) -> None:
        """Its settings, with these changed. Commands read them when they start, the controller when told."""
        settings = {**self._settings, **changes}
        lines = [*(f"{key}={value}" for key, value in settings.items()), *self._nodes]
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")

    def reconfigure(self, **changes: object) -> None:
        self.configure(**changes)
        self.run("scontrol", "reconfigure")

    # -- daemons -----------------------------------------------------------------------------------------

    def _begin(self, name: str, *command: str) -> None:
        self._keeper.begin(name, command, env=self.env, out=self.folder / "log" / f"{name}.out")
        self._up.add(name)

    def _start_munge(self) -> None:
        place = self.folder / "munge"
        (place / "key").write_bytes(os.urandom(1024))
        (place / "key").chmod(0o400)
        place.chmod(0o711)
        named = {
            "socket": "sock",
            "key-file": "key",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        options = [f"--{option}={place / file}" for option, file in named.items()]
        self._begin("munge", "munged", "--foreground", "--force", "--num-threads=2", *options)
        wait_until((place / "sock").exists)

    def _start_accounting(self, database: int, port: int) -> None:
        """slurmdbd above a MariaDB without users or any table of its own: it makes what it needs."""
        data, socket = self.folder / "data", self.folder / "munge" / "sock"
        data.mkdir()
        options = {
            "datadir": data,
            "socket": self.folder / "sql",
            "pid-file": self.folder / "sql.pid",
            "bind-address": "127.0.0.1",
            "port": database,
            "innodb-buffer-pool-size": "32M",
            "innodb-log-file-size": "8M",
        }
        flags = [f"--{key}={value}" for key, value in options.items()]
        self._begin("mariadbd", "mariadbd", "--no-defaults", "--user=root", "--skip-grant-tables", *flags)
        wait_until((self.folder / "sql").exists)
        lines = {
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={socket}",
            "DbdHost": "localhost",
            "DbdAddr": "127.0.0.1",
            "DbdPort": port,
            "SlurmUser": "root",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "127.0.0.1",
            "StoragePort": database,
            "StorageUser": "root",
            "StorageLoc": "records",
            "PidFile": self.folder / "slurmdbd.pid",
            "LogFile": self.folder / "log" / "slurmdbd.log",
        }
        path = self.folder / "slurmdbd.conf"
        path.touch(mode=0o600)
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self._settings |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": port,
            "AccountingStoragePass": socket,
        }
        self.configure()
        self._begin("slurmdbd", "slurmdbd", "-D")
        asked = ("sacctmgr", "-i", "add", "cluster", "lab")
        wait_until(lambda: "Adding Cluster" in self.run(*asked, check=False))

    def start_controller(self) -> None:
        self._begin("slurmctld", "slurmctld", "-D", "-f", self.env["SLURM_CONF"])

    def start_node(self, node: str) -> None:
        self._begin(node, "slurmd", "-D", "-N", node, "-f", self.env["SLURM_CONF"])

    def start_login(self, port: int) -> list[str]:
        """A login node; the flags of `ssh` to get there."""
        from tests.engines.sshd import Sshd  # which knows the scenarios' labs

        env = {"SLURM_CONF": self.env["SLURM_CONF"]}
        self.login = Sshd(self._keeper, self.folder / "ssh", port, env)
        return self.login.begin()

    def kill(self, daemon: str, number: int = signal.SIGKILL, *, whole: bool = False) -> None:
        """Of a node the daemon only: what it runs goes on, as behind a cut cable. `whole`: all of it."""
        self._keeper.end(daemon, number, whole=whole)
        self._up.discard(daemon)

    def end_controller(self) -> None:
        """It saves what it knows. One that is killed may forget jobs, and give their numbers again."""
        self.kill("slurmctld", signal.SIGTERM)

    def is_up(self, daemon: str) -> bool:
        return daemon in self._up

    def close(self) -> None:
        self._keeper.close()

    # -- what people do with it --------------------------------------------------------------------------

    def run(self, *command: str, limit_s: float = PATIENCE_S, check: bool = True) -> str:
        done = subprocess.run(
            command,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
            cwd=self.folder,
        )
        if check and done.returncode:
            raise OSError(f"{' '.join(command)[:200]}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def stranger(self, *flags: str, sleeps_s: int = 3600, partition: str = "low") -> str:
        """A job of somebody else; its id."""
        command = ("sbatch", "--parsable", "-p", partition, "-J", "stranger", "-o", "/dev/null")
        return self.run(*command, *flags, f"--wrap=exec sleep {sleeps_s}").strip()

    def wait_until_empty(self) -> None:
        wait_until(lambda: not self.run("squeue", "-h"))

    def wait_until_up(self) -> None:
        """Every node answers and takes jobs."""
        asked = ("sinfo", "-h", "-N", "-p", self._default, "-t", "idle,mixed,allocated", "-o", "%N %T")
        wait_until(lambda: self.run(*asked, check=False).count("\n") == len(self.nodes))


def wait_until(check: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > until:
            raise AssertionError(f"still not after {PATIENCE_S} s")
        time.sleep(0.03)


# How long its parts wait for each other. One that answers late on a busy machine is not lost for that.
PATIENT = {"SlurmdTimeout": 900, "MessageTimeout": 90}
LOSES_NODES = {"SlurmdTimeout": 10, "MessageTimeout": 3}


def _settings(folder: Path, port: int) -> dict[str, object]:
    return {
        "ClusterName": "lab",
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmctldPort": port,
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge/sock",
        "CredType": "cred/munge",
        "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
        "StateSaveLocation": f"{folder}/ctld",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/ctld.pid",
        "SlurmdPidFile": f"{folder}/%n.pid",
        "SlurmctldLogFile": f"{folder}/log/ctld.log",
        "SlurmdLogFile": f"{folder}/log/%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=1,sched_min_interval=0,requeue_delay=0,bf_yield_interval=200000",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        "ReturnToService": 2,
        "PriorityType": "priority/multifactor",
        "PriorityWeightPartition": 1000,
        "PriorityCalcPeriod": 1,
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "KillWait": 5,
        **PATIENT,
        "MinJobAge": 300,
        "MaxJobCount": 100000,
        "SlurmdParameters": "config_overrides",
        "TopologyPlugin": "topology/tree",
        "GresTypes": "gpu",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": f"{folder}/log/jobcomp.txt",
    }


def _configure(folder: Path, groups: Sequence[tuple[str, int, str, int]], ports: Sequence[int]) -> list[str]:
    """Write what there is beside slurm.conf; its lines of nodes."""
    lines, gres, switches, left = list[str](), list[str](), list[str](), iter(ports)
    for prefix, count, kind, gpus in groups:
        for i in range(count):
            lines.append(
                f"NodeName={prefix}{i} NodeAddr=127.0.0.1 NodeHostname=localhost Port={next(left)} CPUs=64"
                f" RealMemory=64000 Gres=gpu:{kind}:{gpus} Feature={kind}"
            )
        names = f"{prefix}[0-{count - 1}]"
        gres.append(f"NodeName={names} Name=gpu Type={kind} File=/dev/tty[0-{gpus - 1}]")
        switches.append(f"SwitchName=rack-{kind} Nodes={names}")
    racks = ",".join(f"rack-{kind}" for _, _, kind, _ in groups)
    (folder / "gres.conf").write_text("\n".join(gres) + "\n")
    (folder / "topology.conf").write_text("\n".join([*switches, f"SwitchName=spine Switches={racks}"]) + "\n")
    return lines
