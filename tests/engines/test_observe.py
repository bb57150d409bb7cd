"""A Slurm that is only watched: nothing is started, and what is reported is a rehearsal of what was seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brimful.adapters.capabilities import SeenJob
from brimful.adapters.engines.slurm.text import everybodys_from
from brimful.adapters.observed import fleet_text, read_jobs, trace_text
from tests.builders import a_node
from tests.engines.slurm_lab import the_cluster
from tests.server.live import live, wait_for


def test_a_site_that_is_only_watched_sees_everybodys_jobs_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = the_cluster()
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    for node in ("n-0", "n-1"):
        cluster.stranger("-w", node, "--gres=gpu:a100:8", sleeps_s=1)
    waits = [cluster.stranger("--gres=gpu:a100:4", sleeps_s=1) for _ in range(4)]
    waits.append(cluster.stranger("--gres=gpu:v100:2", "-N2", sleeps_s=1))
    sites = tmp_path / "sites.toml"
    sites.write_text('[hpc]\nengine = "slurm"\npartition = "low"\nmode = "observe"\nusd_per_gpu_hour = 2\n')
    folder = tmp_path / "data" / "sites" / "hpc"
    with live(tmp_path / "data", "--sites", str(sites)) as server:
        wait_for(lambda: _all_over(folder, jobs=7))
        assert server.ask("fleet", "show")["gpus"] == 0, "what is watched is not for jobs"
        assert "brimful" not in cluster.run("squeue", "-h", "-t", "all", "-o", "%j").replace("stranger", "")
        told = server.ask("admin", "observed", "hpc")
        again = server.ask("simulate", str(folder / "observed.csv"), "--fleet", str(folder / "fleet.toml"))
    assert (told["jobs"], told["gpus"], told["still_waiting"]) == (7, 24, 0)
    del told["rehearsed"]["cpu_s"]
    rehearsed = {key: again["runs"][0][key] for key in told["rehearsed"]}
    assert told["rehearsed"] == rehearsed
    assert told["observed"]["mean_first_wait_h"] >= 0


def _all_over(folder: Path, *, jobs: int) -> bool:
    found = read_jobs(folder) if (folder / "observed.json").exists() else {}
    return len(found) == jobs and all(job.ended_s is not None for job in found.values())


def test_estimates_of_starts_and_ends_are_not_taken_for_what_happened() -> None:
    lines = """7|RUNNING|ann|2|gres:gpu:a100:4|2026-11-17T10:00:00|2026-11-17T10:01:00|2027-11-17T10:01:00|a|b
8|PENDING|bob|1|gres:gpu:2|2026-11-17T10:00:00|2027-11-17T10:00:00|N/A|x
9|CANCELLED|bob|1||2026-11-17T10:00:00|2026-11-17T10:02:00|2026-11-17T10:02:00|never began
10|COMPLETED|bob|1|gres/gpu:1|2026-11-17T10:00:00|2026-11-17T10:02:00|2026-11-17T10:03:00|z"""
    runs, waits, cancelled, over = everybodys_from(lines)
    assert (runs.gpus.total * runs.nodes, (runs.started_s or 0) - runs.submitted_s, runs.ended_s) == (
        8,
        60,
        None,
    )
    assert (waits.started_s, waits.ended_s) == (None, None)
    assert cancelled.started_s is None
    assert (over.ended_s or 0) - (over.started_s or 0) == 60


def test_what_was_seen_is_written_as_a_trace_and_a_fleet() -> None:
    over = SeenJob("7", "ann", 8, 2, "a100", 1000, 1060, 1360)
    runs, waits = SeenJob("8", "bob", 1, 1, "", 1010, 1020), SeenJob("9", "bob", 1, 1, "", 1010)
    text = trace_text([runs, over, waits], now_s=1100)
    assert text.splitlines()[1:] == ["7,0,300,8,ann,a100,site", "8,10,80,1,bob,,node"]
    assert json.dumps(fleet_text([a_node("a", gpus=8), a_node("b", gpus=8)])).count("count = 2") == 1
