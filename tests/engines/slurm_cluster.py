"""A private Slurm in a folder, on loopback: its own munge, controller and one slurmd for each node."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.patience import PATIENCE_S

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue")
PLACES = "/usr/sbin:/usr/bin:/sbin:/bin"
REMEDY = "run `apt-get install slurmctld slurmd slurm-client munge` as root"
USUAL = (("n-", 2, "a100", 8), ("v-", 2, "v100", 4))  # prefix, nodes, type, GPUs


def is_missing() -> str:
    """What is not here of what a cluster needs; empty: nothing."""
    if os.geteuid() != 0:
        return "root"  # munged and slurmd of the Debian packages want it
    return ", ".join(name for name in PROGRAMS if shutil.which(name, path=PLACES) is None)


class Cluster:
    """Started by its maker, ended by `close`: every daemon writes its pid, and nobody else's is touched."""

    def __init__(
        self, groups: Sequence[tuple[str, int, str, int]] = USUAL, *, more: Mapping[str, object] | None = None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="brimful-slurm-"))
        self.nodes = [f"{prefix}{i}" for prefix, count, _, _ in groups for i in range(count)]
        self.env = {"PATH": PLACES, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("munge", "ctld", "log", *(f"spool/{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True, mode=0o755)
        self.folder.chmod(0o711)
        self._configure(groups, more or {})
        try:
            self._start_munge()
            self.start_controller()
            for node in self.nodes:
                self.start_node(node)
            self.wait_until_up()
        except BaseException:
            self.close()
            raise

    def _configure(self, groups: Sequence[tuple[str, int, str, int]], more: Mapping[str, object]) -> None:
        ports = free_ports(len(self.nodes) + 1)
        settings = {**_settings(self.folder, ports[0]), **more}
        lines, gres, switches = [f"{key}={value}" for key, value in settings.items()], [], []
        at = 1
        for prefix, count, kind, gpus in groups:
            for i in range(count):
                lines.append(
                    f"NodeName={prefix}{i} NodeAddr=127.0.0.1 NodeHostname=localhost Port={ports[at]} CPUs=64"
                    f" RealMemory=64000 Gres=gpu:{kind}:{gpus} Feature={kind}"
                )
                at += 1
            names = f"{prefix}[0-{count - 1}]"
            gres.append(f"NodeName={names} Name=gpu Type={kind} File=/dev/tty[0-{gpus - 1}]")
            switches.append(f"SwitchName=rack-{kind} Nodes={names}")
        racks = ",".join(f"rack-{kind}" for _, _, kind, _ in groups)
        lines.append("PartitionName=low Nodes=ALL PriorityTier=1 Default=YES PreemptMode=REQUEUE GraceTime=0")
        lines.append("PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF")
        for name, text in (
            ("slurm.conf", lines),
            ("gres.conf", gres),
            ("topology.conf", [*switches, f"SwitchName=spine Switches={racks}"]),
        ):
            (self.folder / name).write_text("\n".join(text) + "\n")

    # -- daemons -----------------------------------------------------------------------------------------

    def _begin(self, name: str, *command: str) -> None:
        """As our child, which dies with us. Steps that run then do not: `close` ends them, if reached."""
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
            )

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

    def start_controller(self) -> None:
        self._begin("slurmctld", "slurmctld", "-D", "-f", self.env["SLURM_CONF"])

    def start_node(self, node: str) -> None:
        self._begin(node, "slurmd", "-D", "-N", node, "-f", self.env["SLURM_CONF"])

    def kill(self, daemon: str) -> None:
        """Of a node the daemon only: what it runs goes on, as behind a cut cable."""
        self._daemons[daemon].kill()
        self._daemons.pop(daemon).wait()

    def end_controller(self) -> None:
        """It saves what it knows. One that is killed may forget jobs, and give their numbers again."""
        self._daemons["slurmctld"].terminate()
        self._daemons.pop("slurmctld").wait()

    def is_up(self, daemon: str) -> bool:
        return daemon in self._daemons

    def close(self) -> None:
        if self.is_up("slurmctld"):
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                self.run("scancel", "--full", "--signal=KILL", "--user=root", limit_s=10)
        for daemon in list(self._daemons):
            self.kill(daemon)
        mark = f"SLURM_CONF={self.env['SLURM_CONF']}".encode()
        for entry in Path("/proc").iterdir():  # steps that have lost their daemon, and what they run
            with contextlib.suppress(OSError, ValueError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

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
        asked = ("sinfo", "-h", "-N", "-p", "low", "-t", "idle,mixed,allocated", "-o", "%N %T")
        wait_until(lambda: self.run(*asked, check=False).count("\n") == len(self.nodes))


def wait_until(check: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > until:
            raise AssertionError(f"still not after {PATIENCE_S} s")
        time.sleep(0.03)


def _settings(folder: Path, port: int) -> dict[str, object]:
    return {
        "ClusterName": "lab",
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmctldPort": port,
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge/sock,cred_expire=5",
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
        "SlurmdTimeout": 10,
        "MessageTimeout": 3,
        "MinJobAge": 300,
        "MaxJobCount": 100000,
        "SlurmdParameters": "config_overrides",
        "TopologyPlugin": "topology/tree",
        "GresTypes": "gpu",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": f"{folder}/log/jobcomp.txt",
    }


def free_ports(count: int) -> list[int]:
    """As many as are asked for at once, so that none is given twice."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
