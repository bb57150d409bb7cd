"""One tiny GPT on three sites: `python -m tests.engines.journey FOLDER`, where there is loopback alone.

It begins at `hpc`, is preempted for an urgent job, goes on at `ray` over S3, and ends at `desk`.
What happened is written to FOLDER/journey.json.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from brimful.client.client import Client
from brimful.client.settings import read_settings
from tests.engines.ray_cluster import PORT, ray_cluster
from tests.engines.seaweed import s3_lab
from tests.server.live import Live, wait_for

STEPS = 240
EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny_gpt.py"
GPT = (sys.executable, str(EXAMPLE), "--steps", str(STEPS))
USD = {"hpc": 3.6, "ray": 1.8, "desk": 0.36}  # 1,000, 500 and 100 micro-dollars a second
USD_PER_GIB = {"hpc": 90, "ray": 120, "desk": 0}

SITES = """
[hpc]
engine = "local"
gpus = 1
usd_per_gpu_hour = {usd[hpc]}
usd_per_gib_moved = {gib[hpc]}
checkpoints = "{store}"

[ray]
engine = "ray"
address = "127.0.0.1:{port}"
node_ip = "127.0.0.1"
folder = "{folder}"
gpu = "slot"
usd_per_gpu_hour = {usd[ray]}
usd_per_gib_moved = {gib[ray]}
checkpoints = "{store}"
checkpoint_env = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]

[desk]
engine = "local"
gpus = 1
usd_per_gpu_hour = {usd[desk]}
checkpoints = "{store}"
"""


def losses(text: str) -> list[tuple[int, str]]:
    return [(int(step), loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", text, re.MULTILINE)]


def until(flag: Path) -> tuple[str, ...]:
    return ("sh", "-c", f"while ! test -e {flag}; do sleep 0.1; done")


def travel(server: Live, folder: Path) -> dict[str, Any]:
    def log_of(lease: int) -> str:
        client = Client(read_settings(env=server.env))
        return client.log(gpt, lease=f"{gpt}.{lease}", limit=1 << 18)["text"]

    def steps_of(lease: int) -> int:
        return len(losses(log_of(lease))) if len(server.show(gpt)["leases"]) >= lease else 0

    def runs(job: str) -> bool:
        return bool(server.show(job)["phase"] == "running")

    wait_for(lambda: "ray" in {node["site"] for node in server.ask("fleet", "nodes")})
    ends = {name: folder / name for name in ("filler", "urgent")}
    filler = server.submit(
        "--priority", "urgent", "--site", "ray", "--gpus", "4", command=until(ends["filler"])
    )
    second = server.submit(
        "--priority", "urgent", "--site", "ray", "--gpus", "4", command=until(ends["filler"])
    )
    wait_for(lambda: runs(filler) and runs(second))
    given = ("--name", "gpt", "--priority", "background", "--site", "hpc", "--site", "ray")
    gpt = server.submit(*given, "--env", "OMP_NUM_THREADS=1", command=GPT)
    wait_for(lambda: steps_of(1) >= 30)
    urgent = server.submit("--priority", "urgent", "--site", "hpc", command=until(ends["urgent"]))
    wait_for(lambda: server.show(gpt)["phase"] == "waiting" and runs(urgent))
    ends["filler"].touch()
    wait_for(lambda: steps_of(2) >= 30)
    server.ask("job", "move", gpt, "--to", "desk")
    wait_for(lambda: server.show(gpt)["phase"] == "finished")
    ends["urgent"].touch()
    wait_for(lambda: all(server.show(each)["phase"] == "finished" for each in (urgent, filler, second)))
    return {
        "job": server.show(gpt),
        "logs": [log_of(lease) for lease in (1, 2, 3)],
        "bills": server.ask("invoice", "--by", "site"),
        "pages": {words: server.read(*words.split()) for words in (f"job show {gpt}", "invoice --by site")},
    }


def main(folder: Path) -> None:
    with s3_lab(folder / "s3") as store, ray_cluster(folder / "ray", inside=True):
        server = Live(
            folder / "data", "--sites", str(folder / "sites.toml"), "--min-run-s", "1", "--grace-s", "300"
        )
        server.env |= store.env
        nodes = folder / "nodes"
        (folder / "sites.toml").write_text(
            SITES.format(usd=USD, gib=USD_PER_GIB, port=PORT, folder=nodes, store=store.uri("journey"))
        )
        try:
            found = travel(server.up(), folder)
        finally:
            server.down()
    alone = subprocess.run(GPT, cwd=folder, env=server.env, capture_output=True, text=True, check=True)
    found["alone"] = alone.stdout
    (folder / "journey.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
