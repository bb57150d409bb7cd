"""One tiny GPT on three sites: `python -m tests.engines.journey FOLDER`, where there is loopback alone.

It begins on Slurm (`hpc`), is preempted for an urgent job, goes on at `ray` over S3, and ends at `desk`. Its
twin is preempted with it, and a byte of what it sent changes on the way. What happened is in
FOLDER/journey.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from brimful.adapters.objects.store import below, open_store
from brimful.client.client import Client
from brimful.client.settings import read_settings
from brimful.errors import WorldFailed
from tests.engines.ray_cluster import PORT, ray_cluster
from tests.engines.seaweed import s3_lab
from tests.engines.slurm_cluster import Cluster
from tests.paced import Pace
from tests.server.live import Live, wait_for

STEPS = 240
EXAMPLES = Path(__file__).parents[2] / "examples"
GPT = (sys.executable, str(EXAMPLES / "tiny_gpt.py"), "--steps", str(STEPS))
USD = {"hpc": 3.6, "ray": 1.8, "desk": 0.36}  # 1,000, 500 and 100 micro-dollars a second
USD_PER_GIB = {"hpc": 90, "ray": 120, "desk": 0}


def sites_text(store: str, folder: Path) -> str:
    """The example's sites, at the addresses of the labs and at prices that can be seen in a bill."""
    sites = tomllib.loads((EXAMPLES / "three-sites.toml").read_text())
    sites["hpc"] |= {"partition": "low"}
    sites["ray"] |= {"address": f"127.0.0.1:{PORT}", "node_ip": "127.0.0.1", "folder": str(folder)}
    sites["ray"] |= {"gpu": "slot"}
    sites["desk"] |= {"gpus": 1}
    for name, site in sites.items():
        site |= {"checkpoints": store, "usd_per_gpu_hour": USD[name], "usd_per_gib_moved": USD_PER_GIB[name]}
    tables = ({key: json.dumps(value) for key, value in site.items()} for site in sites.values())
    return "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in table.items())
        for name, table in zip(sites, tables, strict=True)
    )


def damage_one_byte(store: str, job: str) -> None:
    objects = open_store(below(store, job))
    key = min(objects.keys("blocks/"))
    data = objects.get(key)
    assert data
    objects.remove([key])
    objects.put(key, bytes([data[0] ^ 1]) + data[1:])


def losses(text: str) -> list[tuple[int, str]]:
    return [(int(step), loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", text, re.MULTILINE)]


def until(flag: Path) -> tuple[str, ...]:
    return ("sh", "-c", f"while ! test -e {flag}; do sleep 0.1; done")


def travel(server: Live, store: str, folder: Path) -> dict[str, Any]:
    def begun(job: str) -> list[str]:
        """Its leases, but for those that an engine handed back before they had started."""
        return [each["lease"] for each in server.show(job)["leases"] if each["started_s"] is not None]

    def log_of(job: str, nth: int) -> str:
        client, leases = Client(read_settings(env=server.env)), begun(job)
        with contextlib.suppress(WorldFailed):  # a node that does not answer in time is asked again
            return client.log(job, lease=leases[nth - 1], limit=1 << 18)["text"] if len(leases) >= nth else ""
        return ""

    def steps_of(job: str, nth: int) -> int:
        return len(losses(log_of(job, nth)))

    def phases(*jobs: str) -> set[str]:
        return {server.show(job)["phase"] for job in jobs}

    wait_for(lambda: {"hpc", "ray"} <= {node["site"] for node in server.ask("fleet", "nodes")})
    ends = {name: folder / name for name in ("filler", "urgent")}
    at_ray = ("--priority", "urgent", "--site", "ray", "--gpus", "4")
    pace = Pace(folder / "limit", steps=STEPS)
    pace.may_go_to(STEPS // 3)
    fillers = [server.submit(*at_ray, command=until(ends["filler"])) for _ in range(2)]
    wait_for(lambda: phases(*fillers) == {"running"})
    given = ("--priority", "background", "--site", "hpc", "--site", "ray", "--env", "OMP_NUM_THREADS=1")
    gpt, twin = (server.submit(*given, "--name", name, command=pace.command) for name in ("gpt", "twin"))
    wait_for(lambda: steps_of(gpt, 1) >= 30 and steps_of(twin, 1) >= 30)
    urgent = server.submit(
        "--priority", "urgent", "--site", "hpc", "--gpus", "2", command=until(ends["urgent"])
    )
    wait_for(lambda: phases(gpt, twin) == {"waiting"} and phases(urgent) == {"running"})
    damage_one_byte(store, twin)
    pace.may_go_to(2 * STEPS // 3)
    ends["filler"].touch()
    wait_for(lambda: steps_of(gpt, 2) >= 30 and steps_of(twin, 2) >= 1)
    twins = wait_for(partial(log_of, twin, 2))
    server.ask("job", "cancel", twin)
    server.ask("job", "move", gpt, "--to", "desk")
    wait_for(lambda: len(begun(gpt)) == 3)
    pace.may_go_to(STEPS + 1)
    wait_for(lambda: phases(gpt) == {"finished"})
    ends["urgent"].touch()
    wait_for(lambda: phases(urgent, *fillers) == {"finished"} and phases(twin) == {"cancelled"})
    return {
        "job": server.show(gpt),
        "logs": [wait_for(partial(log_of, gpt, lease)) for lease in (1, 2, 3)],
        "twin": twins,
        "bills": server.ask("invoice", "--by", "site"),
        "by_job": server.ask("invoice", "--by", "job", "--data", str(server.data)),
        "pages": {words: server.read(*words.split()) for words in (f"job show {gpt}", "invoice --by site")},
    }


def main(folder: Path) -> None:
    with contextlib.ExitStack() as labs:
        store = labs.enter_context(s3_lab(folder / "s3"))
        labs.enter_context(ray_cluster(folder / "ray", inside=True))
        slurm = labs.enter_context(contextlib.closing(Cluster([("n-", 1, "a100", 2)])))
        server = Live(
            folder / "data", "--sites", str(folder / "sites.toml"), "--min-run-s", "1", "--grace-s", "300"
        )
        server.env |= {**store.env, "SLURM_CONF": slurm.env["SLURM_CONF"]}
        os.environ |= store.env
        (folder / "sites.toml").write_text(sites_text(store.uri("journey"), folder / "nodes"))
        try:
            found = travel(server.up(), store.uri("journey"), folder)
        finally:
            server.down()
    alone = subprocess.run(GPT, cwd=folder, env=server.env, capture_output=True, text=True, check=True)
    found["alone"] = alone.stdout
    (folder / "journey.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
