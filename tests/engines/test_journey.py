"""A GPT trains at three sites and goes on at each from what the one before it sent to S3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, missing
from tests.engines.journey import STEPS, USD, USD_PER_GIB, losses

KILLS = 20

pytestmark = [pytest.mark.engines, pytest.mark.torch]


def in_a_namespace(module: str, folder: Path, *more: str) -> None:
    """Where there is nothing but loopback: what starts there reaches nobody, and nobody reaches it."""
    if os.geteuid() != 0:
        missing("root, for a network namespace", "run the tests as root")
    # Slurm looks names up with AI_ADDRCONFIG: where every address is a loopback one, it finds none.
    lines = (
        "ip link set lo up",
        "ip addr add 192.0.2.1/32 dev lo",
        f'exec "$0" -m tests.engines.{module} "$@"',
    )
    command = ["unshare", "-n", "sh", "-c", " && ".join(lines), sys.executable, str(folder), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_gpt_trains_on_three_sites_as_if_on_one(tmp_path: Path) -> None:
    in_a_namespace("journey", tmp_path)
    found = json.loads((tmp_path / "journey.json").read_text())
    logs = found["logs"]
    leases = [each for each in found["job"]["leases"] if each["started_s"] is not None]
    assert [lease["site"] for lease in leases] == ["hpc", "ray", "desk"]
    assert "preempted by" in leases[0]["reason"]
    curve = [each for log in logs for each in losses(log)]
    assert [step for step, _ in curve] == list(range(STEPS)), "every step once, in order"
    assert curve == losses(found["alone"]), "to six decimals the curve of a run that nobody stopped"
    for log in logs[1:]:
        assert "fetched from s3://checkpoints/journey/" in log
    bills = {bill["of"]: bill for bill in found["bills"]["bills"]}
    assert bills.keys() == USD.keys()
    for site, bill in bills.items():
        moved = bill["moved_bytes"] * USD_PER_GIB[site] * 1_000_000 >> 30
        assert bill["moved_bytes"] > 1_000_000, "a GPT of 100,000 parameters with its AdamW moments"
        assert 0 <= moved - bill["egress_microusd"] < bill["leases"], "each lease's is rounded down"
    due = sum(lease["billed_s"] * round(USD[lease["site"]] * 1_000_000) // 3600 for lease in leases)
    gpt = next(bill for bill in found["by_job"]["bills"] if bill["of"] == found["job"]["job"])
    # GPU time and egress of a lease are rounded down together, once.
    assert 0 <= found["job"]["posted_microusd"] - due - gpt["egress_microusd"] <= len(leases)
    assert found["by_job"]["sum_of_balances"] == 0
    assert "SHA-256 differs" in found["twin"], "the byte that changed on the way"
    assert losses(found["twin"])[0][0] == 0, "what was refused is not gone on from"


def test_a_server_killed_around_starts_and_stops_runs_every_command_at_most_once(tmp_path: Path) -> None:
    in_a_namespace("kills", tmp_path, str(KILLS))
    found = json.loads((tmp_path / "kills.json").read_text())
    ran = [path.read_text() if (path := tmp_path / f"ran-{i}").exists() else "" for i in range(KILLS)]
    assert set(ran) <= {"", "x\n"}, "at most once"
    done = [i for i in range(KILLS) if (tmp_path / f"done-{i}").exists()]
    assert done == found["done_when_over"], "what is over does nothing more"
    for i, (job, phase) in enumerate(found["phases"].items()):
        if job not in found["cancelled"]:
            assert (phase, (tmp_path / f"done-{i}").read_text()) == ("finished", "x\n"), "none lost"
    assert found["invoice"]["sum_of_balances"] == 0
