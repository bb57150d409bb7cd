"""Two real torch jobs share one declared GPU on the local engine; a third whose memory does not fit waits.

The GPU is declared, and torch runs on the CPU: what is shown is the accounting, that both run at once, and
what each is told. That MPS then holds them to it is not shown: no card was at hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.server.live import live, wait_for
from tests.server.test_moves import losses

TRAIN = """
import os, pathlib, sys, time, torch
for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"):
    print(name, os.environ.get(name, "unset"))
model, wanted, step = torch.nn.Linear(8, 1), torch.ones(16, 1), 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while not pathlib.Path(sys.argv[1]).exists():
    loss = torch.nn.functional.mse_loss(model(torch.ones(16, 8)), wanted)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("step", step, "loss", loss.item(), flush=True)
    step += 1
    time.sleep(0.05)
"""


@pytest.mark.torch
def test_two_torch_jobs_share_a_gpu_within_its_memory_and_a_third_waits_until_it_fits(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    ends = {name: tmp_path / name for name in ("large", "small", "third")}
    options = ("--sites", "here=1xrtx-4070@1", "--policy", "brim?share=1", "--min-run-s", "1")
    try:
        with live(tmp_path / "data", *options) as server:

            def submit(name: str, memory: str, compute: float) -> str:
                file = tmp_path / f"{name}.yaml"
                file.write_text(
                    f"command: exec {sys.executable} {script} {ends[name]}\n"
                    f"gpu_memory: {memory}\ncompute: {compute}\n"
                )
                return str(server.ask("submit", str(file), "--no-pack")["job"])

            def log(job: str) -> str:
                path = tmp_path / "data" / "sites" / "here" / f"{job}.1" / "log"
                return path.read_text() if path.exists() else ""

            def works_on(*jobs: str) -> None:
                had = [len(losses(log(job))) for job in jobs]
                wait_for(lambda: all(len(losses(log(job))) > n + 3 for job, n in zip(jobs, had, strict=True)))

            large = submit("large", "9GiB", 0.3)
            wait_for(lambda: server.show(large)["phase"] == "running")
            third = submit("third", "4GiB", 0.3)  # 13 GiB with the first: a card of this type has 11.7
            small = submit("small", "2GiB", 0.5)
            works_on(large, small)
            leases = [server.show(job)["leases"][-1] for job in (large, small)]
            assert server.show(third)["phase"] == "waiting"
            ends["large"].touch()
            wait_for(lambda: server.show(large)["phase"] == "finished")
            works_on(small, third)
            said = [log(job) for job in (large, small, third)]
    finally:
        for flag in ends.values():
            flag.touch()

    assert leases[0]["gpus"] == leases[1]["gpus"] == [0]
    assert [lease["ended_s"] for lease in leases] == [None, None]
    assert [re.findall(r"^CUDA\S* (.*)$", text, re.MULTILINE) for text in said] == [
        ["0", "30", "0=9216M"],
        ["0", "50", "0=2048M"],
        ["0", "30", "0=4096M"],
    ]
