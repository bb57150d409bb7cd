"""SkyPilot's own API server on loopback, with two regions of a cloud that is ours (`plugin/`)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.conftest import missing
from tests.engines.keeper import Keeper, below
from tests.engines.ports import is_free, reserve_ports
from tests.engines.sshd import SSHD
from tests.server.live import wait_for

SKYPILOT = Path(os.environ.get("BRIMFUL_SKYPILOT", f"{sys.prefix}/skypilot"))
QUEUE_PORT = 50011  # of every API server, whatever port it is given
PLUGIN = Path(__file__).with_name("plugin")
REGIONS = {"tor1": 0.36, "ams3": 0.72}  # dollars an hour
ROW = "gpu-t4x1,T4,1.0,4.0,16.0,{usd},{region},\"{{'Gpus': [{{'Name': 'T4', 'Count': 1.0}}]}}\",\n"


class Lab:
    def __init__(self) -> None:
        if not (SKYPILOT / "bin" / "python").exists():
            missing("SkyPilot", "run `tools/setup.sh skypilot`")
        if not Path(SSHD).exists():
            missing("sshd", "run `apt-get install openssh-server` as root")
        assert is_free(QUEUE_PORT), "another of SkyPilot's API servers runs on this machine"
        self.folder = Path(tempfile.mkdtemp(prefix="brimful-sky-"))
        self.cloud, self._home = self.folder / "cloud", self.folder / "home"
        lock, ports = reserve_ports(12)
        with lock:
            self._keeper = Keeper(self.folder, holds=lock.fileno())
        self.address = f"http://127.0.0.1:{ports[0]}"
        self.cloud.mkdir()
        (self.cloud / "ports").write_text(" ".join(map(str, ports[1:])))
        self.refuse()
        self.slow(0.0)
        self._write_home()
        Path("/run/sshd").mkdir(exist_ok=True, mode=0o755)
        try:
            self.begin()
        except BaseException:
            self.close()
            raise

    @property
    def catalog(self) -> Path:
        return self._home / ".sky" / "catalogs" / "v8"

    def refuse(self, *regions: str) -> None:
        """These have no machines now."""
        (self.cloud / "full").write_text(" ".join(regions))

    def slow(self, seconds: float) -> None:
        """Before a machine is there, and again until the cloud says so."""
        (self.cloud / "slow_s").write_text(str(seconds))

    def machines(self) -> list[str]:
        folder = self.cloud / "machines"
        return sorted(each.name for each in folder.iterdir()) if folder.exists() else []

    def evict(self) -> None:
        """The cloud takes its machines back, and tells nobody."""
        for name in self.machines():
            folder = self.cloud / "machines" / name
            pid = int((folder / "pid").read_text())
            for each in [*below(pid), pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            (self.cloud / f"port-{(folder / 'port').read_text()}").rmdir()
            shutil.rmtree(folder)
            with (self.cloud / "bill").open("a") as bill:
                bill.write(json.dumps({"event": "removed", "machine": name}) + "\n")

    def bill(self) -> list[dict[str, Any]]:
        path = self.cloud / "bill"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def begin(self) -> None:
        port = self.address.rpartition(":")[2]
        command = [str(SKYPILOT / "bin" / "python"), "-m", "sky.server.server"]
        env = {
            "HOME": str(self._home),
            # rsync is asked for its version alone: nothing is copied.
            "PATH": f"{self._home / 'bin'}:{SKYPILOT / 'bin'}:/usr/bin:/bin:/usr/sbin",
            "PYTHONPATH": str(PLUGIN),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "BRIMFUL_CLOUD": str(self.cloud),
        }
        out = self.folder / "server.log"
        self._keeper.begin("server", [*command, "--host", "127.0.0.1", "--port", port], env=env, out=out)
        wait_for(self._answers)

    def kill(self) -> None:
        self._keeper.end("server", whole=True)

    def close(self) -> None:
        self._keeper.close()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/api/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _write_home(self) -> None:
        (self.catalog / "do").mkdir(parents=True)
        (self.catalog / "common").mkdir()
        columns = (
            "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
        )
        rows = [ROW.format(usd=usd, region=region) for region, usd in REGIONS.items()]
        (self.catalog / "do" / "vms.csv").write_text(columns + "".join(rows))
        (self.catalog / "common" / "accelerators.csv").write_text("AcceleratorName,Clouds\nT4,DO\n")
        (self._home / ".sky" / "config.yaml").write_text("allowed_clouds: [do]\n")
        (self._home / ".sky" / "plugins.yaml").write_text("plugins:\n  - class: brimful_cloud.Plugin\n")
        (self._home / "bin").mkdir()
        rsync = self._home / "bin" / "rsync"
        rsync.write_text("#!/bin/sh\n")
        rsync.chmod(0o755)
