"""A cloud for SkyPilot's API server: loaded there as a plugin, it stands in for DigitalOcean.

Every machine is an sshd of its own on loopback, which lets in the key that SkyPilot made. What SkyPilot would
install on a machine comes from the web, so its commands are answered here with success; all else is its own:
optimizer, requests, locks, status, fail-over, teardown. Each machine that is made or removed is in `bill`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from sky import provision
from sky.clouds import DO
from sky.provision import common
from sky.server import plugins
from sky.utils import status_lib

CLOUD = Path(os.environ["BRIMFUL_CLOUD"])
MACHINES = CLOUD / "machines"
SSHD = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized
PidFile {folder}/pid
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
"""


def _note(event: str, machine: str) -> None:
    line = json.dumps({"event": event, "machine": machine, "at_s": time.time()})
    with (CLOUD / "bill").open("a") as bill:
        bill.write(line + "\n")


def _port() -> int:
    for port in map(int, (CLOUD / "ports").read_text().split()):
        with contextlib.suppress(FileExistsError):
            (CLOUD / f"port-{port}").mkdir()
            return port
    raise RuntimeError("quota exceeded: no port is free")


class Runner:
    """Answers for the machine."""

    node_id = "brimful"

    def run(self, _command: object, *, require_outputs: bool = False, **_more: object) -> Any:
        return (0, "", "") if require_outputs else 0

    run_setup = run_driver = run

    def rsync(self, *_given: object, **_more: object) -> None:
        """Nothing is copied."""

    rsync_setup = rsync


class Machines:
    """What a module in sky.provision has."""

    @staticmethod
    def bootstrap_instances(_region: str, _name: str, config: Any) -> Any:
        return config

    @staticmethod
    def run_instances(region: str, _shown: str, name: str, config: Any) -> Any:
        if region in (CLOUD / "full").read_text().split():
            raise RuntimeError(f"no capacity in {region}")
        slow_s = float((CLOUD / "slow_s").read_text())
        time.sleep(slow_s)
        folder = MACHINES / name
        is_new = not folder.exists()
        if is_new:
            port = _port()
            folder.mkdir(parents=True)
            (folder / "port").write_text(str(port))
            _note("made", name)
            (folder / "authorized").write_text(config.authentication_config["ssh_public_key"])
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host")],
                check=True,
                stdin=subprocess.DEVNULL,
            )
            (folder / "sshd.conf").write_text(SSHD.format(port=port, folder=folder))
        if not (folder / "pid").exists():
            subprocess.run(["/usr/sbin/sshd", "-f", str(folder / "sshd.conf")], check=True)
        time.sleep(slow_s)
        return common.ProvisionRecord(
            provider_name="do",
            region=region,
            zone=None,
            cluster_name=name,
            head_instance_id=name,
            resumed_instance_ids=[],
            created_instance_ids=[name] if is_new else [],
        )

    @staticmethod
    def wait_instances(*_given: object, **_more: object) -> None:
        """They are there."""

    @staticmethod
    def query_instances(_shown: str, name: str, *_given: object, **_more: object) -> dict[str, Any]:
        return {name: (status_lib.ClusterStatus.UP, None)} if (MACHINES / name).exists() else {}

    @staticmethod
    def terminate_instances(name: str, *_given: object, **_more: object) -> None:
        folder = MACHINES / name
        if folder.exists():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
                os.kill(int((folder / "pid").read_text()), signal.SIGTERM)
            port = (folder / "port").read_text()
            shutil.rmtree(folder)
            (CLOUD / f"port-{port}").rmdir()
            _note("removed", name)

    @staticmethod
    def get_cluster_info(_region: str, name: str, provider_config: Any = None) -> Any:
        folder, found = MACHINES / name, {}
        if folder.exists():
            port = int((folder / "port").read_text())
            machine = common.InstanceInfo(
                instance_id=name,
                internal_ip="127.0.0.1",
                external_ip="127.0.0.1",
                ssh_port=port,
                tags={},
                node_name=name,
            )
            found = {name: [machine]}
        return common.ClusterInfo(
            instances=found,
            head_instance_id=name if found else None,
            provider_name="do",
            provider_config=provider_config,
        )

    @staticmethod
    def get_command_runners(*_given: object, **_more: object) -> list[Runner]:
        return [Runner()]

    @staticmethod
    def cleanup_ports(*_given: object, **_more: object) -> None:
        """None was opened."""


class Plugin(plugins.BasePlugin):  # type: ignore[misc]  # SkyPilot has no types here
    def install(self, extension_context: object) -> None:
        provision.register_provisioner("do", Machines)
        DO._check_compute_credentials = classmethod(lambda _cls: (True, None))
        DO.uses_ray = classmethod(lambda _cls: False)
