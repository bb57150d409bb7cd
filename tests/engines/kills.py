"""The server of a Ray site is killed around starts and stops: `python -m tests.engines.kills FOLDER KILLS`.

Where there is loopback alone. What every command did is in FOLDER; the account in FOLDER/kills.json.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from pathlib import Path

from tests.engines.ray_cluster import PORT, ray_cluster
from tests.server.live import Live, wait_for

SITES = """
[ray]
engine = "ray"
address = "127.0.0.1:{port}"
node_ip = "127.0.0.1"
folder = "{folder}"
gpu = "slot"
usd_per_gpu_hour = 3.6
"""
WORK_S = 3  # of each command
OVER = {"finished", "failed", "cancelled", "stopped"}


def main(folder: Path, kills: int) -> None:
    (folder / "sites.toml").write_text(SITES.format(port=PORT, folder=folder / "nodes"))
    server = Live(folder / "data", "--sites", str(folder / "sites.toml"), "--grace-s", "2")
    rng = random.Random(17)
    jobs: dict[str, bool] = {}  # and whether it was cancelled
    with ray_cluster(folder / "ray", inside=True):
        server.up()
        try:
            wait_for(lambda: server.ask("fleet", "nodes"))
            for i in range(kills):
                command = (
                    "sh",
                    "-c",
                    f"echo x >> {folder}/ran-{i}; sleep {WORK_S}; echo x >> {folder}/done-{i}",
                )
                job = server.submit("--name", f"job-{i}", command=command)
                jobs[job] = i % 2 == 1
                time.sleep(rng.uniform(0, 4))  # before, while or after it starts
                if jobs[job]:
                    with contextlib.suppress(AssertionError):  # it may be over by now
                        server.ask("job", "cancel", job)
                    time.sleep(rng.uniform(0, 0.5))
                server.kill()
                server.up()
            wait_for(lambda: all(server.show(job)["phase"] in OVER for job in jobs))
            found = {
                "phases": {job: server.show(job)["phase"] for job in jobs},
                "cancelled": [job for job, is_cancelled in jobs.items() if is_cancelled],
                "done_when_over": [i for i in range(kills) if (folder / f"done-{i}").exists()],
                "invoice": server.ask("invoice", "--data", str(folder / "data")),
            }
            time.sleep(WORK_S + 1)  # whatever still runs would be done by now
        finally:
            server.down()
    (folder / "kills.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
