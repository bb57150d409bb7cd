"""A real torchrun job grows and shrinks on the local engine, and its loss curve does not show it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.server.live import live, wait_for
from tests.server.test_moves import losses, until

DDP = str(ROOT / "examples" / "elastic_ddp.py")
LAUNCH = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node"


@pytest.mark.torch
def test_a_torchrun_job_grows_and_shrinks_with_an_unbroken_loss_curve(tmp_path: Path) -> None:
    file, left, done = tmp_path / "job.yaml", tmp_path / "left", tmp_path / "done"
    file.write_text(
        f"command: exec {LAUNCH} $BRIMFUL_GANG_GPUS {DDP} --steps 100000 --pause 0.1\n"
        "gpus: 1..4\nrestart_takes: 1\nenv: {OMP_NUM_THREADS: 1}\n"
    )
    options = ("--sites", "here=4xslot@1", "--min-run-s", "1", "--grace-s", "300")
    try:
        with live(tmp_path / "data", *options) as server:

            def logs(job: str) -> list[str]:
                folders = sorted((tmp_path / "data" / "sites" / "here").glob(f"{job}.*/log"))
                return [path.read_text() for path in folders]

            def works(job: str, lease: int) -> bool:
                return len(logs(job)) == lease and len(losses(logs(job)[-1])) >= 3

            filler = server.submit("--gpus", "3", command=until(left))
            wait_for(lambda: server.show(filler)["phase"] == "running")
            gang = server.ask("submit", str(file), "--no-pack")["job"]
            wait_for(lambda: works(gang, 1))  # on the one GPU that is free
            left.touch()
            wait_for(lambda: works(gang, 2))  # on all four
            rigid = server.submit("--gpus", "2", command=until(done))
            wait_for(lambda: works(gang, 3))  # on two, beside the other
            assert server.show(rigid)["phase"] == "running"
            done.touch()
            wait_for(lambda: works(gang, 4))  # on four again
            server.ask("job", "cancel", gang)
            wait_for(lambda: server.show(gang)["phase"] == "cancelled")
            shown, said = server.show(gang), logs(gang)
    finally:
        left.touch()
        done.touch()

    assert [len(lease["gpus"]) for lease in shown["leases"]] == [1, 4, 2, 4]
    assert [lease["reason_code"]["code"] for lease in shown["leases"][:3]] == ["scheduler.resized"] * 3
    begins = [re.findall(r"^(\d+) workers, (\d+) micro-batches", text, re.MULTILINE) for text in said]
    assert begins == [[("1", "4")], [("4", "1")], [("2", "2")], [("4", "1")]]
    curve = [each for text in said for each in losses(text)]
    assert [step for step, _ in curve] == list(range(len(curve))), "every step once, in order"
    alone = subprocess.run(
        [*LAUNCH.split(), "1", DDP, "--steps", str(len(curve))],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "BRIMFUL_ACCUMULATE": "4"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [loss for _, loss in curve] == pytest.approx([loss for _, loss in losses(alone.stdout)], rel=1e-3)
