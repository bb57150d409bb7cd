"""Private sshds on loopback: a login node, or plain machines of which each can be cut off by itself."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.adapters.engines.ssh.engine import Reach, SshEngine
from brimful.errors import WorldFailed
from brimful.scheduler.cloud.providers import Host
from tests.builders import a_node, eventually
from tests.conftest import missing
from tests.engines.keeper import Keeper
from tests.engines.labs import NODES, Lab, sigterm
from tests.engines.ports import is_free, reserve_ports

SSHD = "/usr/sbin/sshd"


class Sshd:
    """For whoever has the key in its folder."""

    def __init__(self, keeper: Keeper, folder: Path, port: int, env: Mapping[str, str]) -> None:
        """`env`: what everybody finds there."""
        self._keeper, self.folder, self.port, self._env = keeper, folder, port, dict(env)
        self._out = folder / "out"
        self.name = f"sshd-{port}"

    def begin(self) -> list[str]:
        """The flags of `ssh` to get there."""
        self.folder.mkdir(mode=0o700, parents=True)
        for name in ("host", "key"):
            made = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
            subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
        (self.folder / "key.pub").rename(self.folder / "authorized")
        settings = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "HostKey": self.folder / "host",
            "AuthorizedKeysFile": self.folder / "authorized",
            "PermitRootLogin": "prohibit-password",
            "StrictModes": "no",  # of folders in /tmp
            "UsePAM": "no",
            "PidFile": "none",
        }
        if self._env:
            settings["SetEnv"] = " ".join(f"{key}={value}" for key, value in self._env.items())
        text = "".join(f"{key} {value}\n" for key, value in settings.items())
        (self.folder / "sshd.conf").write_text(text)
        Path("/run/sshd").mkdir(exist_ok=True, mode=0o755)  # what Debian's unit does
        self.open()
        return ["-F", "none", "-p", str(self.port), *self.flags]

    @property
    def flags(self) -> list[str]:
        known = (
            "-o",
            "StrictHostKeyChecking=accept-new",
            "-o",
            f"UserKnownHostsFile={self.folder / 'known'}",
        )
        return ["-i", str(self.folder / "key"), *known]

    def open(self) -> None:
        command = (SSHD, "-D", "-e", "-f", str(self.folder / "sshd.conf"))
        self._keeper.begin(self.name, command, env={"PATH": "/usr/bin:/bin"}, out=self._out)
        eventually(lambda: not is_free(self.port))

    def close(self) -> None:
        """And cut every connection to it."""
        self._keeper.end(self.name, whole=True)

    def logins(self) -> int:
        return self._out.read_text().count("Accepted publickey")


class Machines:
    """Plain machines by name, each with an sshd of its own. `flags` of ssh know where they are."""

    def __init__(self, names: Sequence[str]) -> None:
        if not Path(SSHD).exists():
            missing("sshd", "run `apt-get install openssh-server` as root")
        self.folder = Path(tempfile.mkdtemp(prefix="brimful-ssh-"))
        lock, ports = reserve_ports(len(names))
        with lock:
            self._keeper = Keeper(self.folder, holds=lock.fileno())
        self._sshds: dict[str, Sshd] = {}
        self._up: set[str] = set()
        config = []
        try:
            for name, port in zip(names, ports, strict=True):
                made = self._sshds[name] = Sshd(self._keeper, self.folder / name, port, {})
                made.begin()
                self._up.add(name)
                config += [f"Host {name}", "HostName 127.0.0.1", f"Port {port}", "User root"]
                config += [f"IdentityFile {made.folder}/key", f"UserKnownHostsFile {made.folder}/known"]
                config += ["StrictHostKeyChecking accept-new"]
        except BaseException:
            self.close()
            raise
        (self.folder / "config").write_text("\n".join(config) + "\n")
        self.flags = ("-F", str(self.folder / "config"))

    def cut(self, name: str) -> None:
        self._sshds[name].close()
        self._up.discard(name)

    def mend(self, name: str) -> None:
        if name not in self._up:
            self._sshds[name].open()
            self._up.add(name)

    def logins(self, name: str) -> int:
        return self._sshds[name].logins()

    def close(self) -> None:
        """With everything that was started over it."""
        self._keeper.close()


_MACHINES: list[Machines] = []


def the_machines() -> Machines:
    """One set for all scenarios."""
    if not _MACHINES:
        _MACHINES.append(Machines(NODES))
    return _MACHINES[0]


def close_machines() -> None:
    while _MACHINES:
        _MACHINES.pop().close()


def _all_answer(engine: SshEngine) -> bool:
    try:
        return len(engine.nodes()) == len(NODES)
    except WorldFailed:
        return False


class SshLab(Lab):
    faults = frozenset({"engine_gone", "node_lost", "told_by_others"})

    def __init__(self, folder: Path, **options: object) -> None:
        self.machines = the_machines()
        self.options = Reach(
            ssh=self.machines.flags,
            python=sys.executable,
            folder=str(folder / "nodes"),
            **{"lost_s": 600, **options},  # type: ignore[arg-type]
        )
        super().__init__(folder)

    def new_engine(self) -> SshEngine:
        made = SshEngine(self.folder / "leases", self.options, site="ssh", log_bytes=1 << 20)
        nodes = [replace(a_node(name, gpus=4), site="ssh") for name in NODES]
        made.take({node.node: Host(node, node.node) for node in nodes})
        eventually(lambda: _all_answer(made))  # on a busy machine a first connection takes longer than a look
        return made

    def tell_by_others(self, lease: str) -> None:
        sigterm(self.folder, lease)

    def occupy(self, node: str, gpu: int) -> None:
        pytest.skip("the ssh engine does not ask who else uses a machine")

    def vacate(self) -> None:
        raise NotImplementedError

    def engine_goes(self) -> None:
        for name in NODES:
            self.machines.cut(name)

    def engine_returns(self) -> None:
        for name in NODES:
            self.machines.mend(name)

    def lose_node(self, node: str) -> None:
        self.machines.cut(node)
        assert isinstance(self.engine, SshEngine)
        self.engine._options = replace(self.options, lost_s=1)

    def node_returns(self, node: str) -> None:
        self.engine_returns()
        assert isinstance(self.engine, SshEngine)
        self.engine._options = self.options

    def close(self) -> None:
        self.engine_returns()
        super().close()
        for engine in (*self.gone, self.engine):
            assert isinstance(engine, SshEngine)
            engine.close()
