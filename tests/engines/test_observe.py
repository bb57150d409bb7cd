"""A Slurm that is only watched: nothing is started, and what is reported is a rehearsal of what was seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from brimful.adapters.capabilities import SeenJob
from brimful.adapters.engines.slurm.text import everybodys_from
from brimful.adapters.observed import Observer, fleet_text, read_jobs, trace_text
from brimful.audit.readers.read import Asked, read
from brimful.audit.sweep import sweep
from brimful.cli.main import main
from brimful.fleet.node import Node
from brimful.language import Number, words
from tests.builders import a_node
from tests.engines.slurm_lab import the_cluster
from tests.server.live import live, wait_for

WATCHED = "watched"  # of a partition that no other test submits to: Slurm remembers their jobs for minutes


def test_a_site_that_is_only_watched_sees_everybodys_jobs_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = the_cluster()
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    for node in ("n-0", "n-1"):
        cluster.stranger("-w", node, "--gres=gpu:a100:8", sleeps_s=1, partition=WATCHED)
    for _ in range(4):
        cluster.stranger("--gres=gpu:a100:4", sleeps_s=1, partition=WATCHED)
    sites = tmp_path / "sites.toml"
    described = f'partition = "{WATCHED}"\nmode = "observe"\nusd_per_gpu_hour = 2\n'
    sites.write_text(f'[hpc]\nengine = "slurm"\n{described}')
    folder = tmp_path / "data" / "sites" / "hpc"
    with live(tmp_path / "data", "--sites", str(sites)) as server:
        wait_for((folder / "observed.json").exists)
        cluster.stranger("--gres=gpu:v100:2", "-N2", sleeps_s=1, partition=WATCHED)
        wait_for(lambda: _all_over(folder, jobs=7))
        assert server.ask("fleet", "show")["gpus"] == 0, "what is watched is not for jobs"
        ours = server.submit("--gpus", "1", command=("true",))
        wait_for(lambda: server.show(ours)["why_code"])
        assert (server.show(ours)["phase"], server.show(ours)["leases"]) == ("waiting", [])
        names = cluster.run("squeue", "-h", "-t", "all", "-p", WATCHED, "-o", "%j").split()
        assert names == ["stranger"] * 7, "nothing was started"
        told = server.ask("admin", "observed", "hpc")
        audited = server.ask("audit", str(folder / "observed.json"))
        again = server.ask("simulate", str(folder / "observed.csv"), "--fleet", str(folder / "fleet.toml"))
    assert (told["jobs"], told["gpus"], told["still_waiting"]) == (7, 24, 0)
    del told["rehearsed"]["cpu_s"]
    rehearsed = {key: again["runs"][0][key] for key in told["rehearsed"]}
    assert told["rehearsed"] == rehearsed
    assert told["observed"]["mean_first_wait_h"] >= 0
    sooner_h = told["observed"]["makespan_h"] - told["rehearsed"]["makespan_h"]
    assert told["saved_usd"] == pytest.approx(sooner_h * 24 * 2)
    assert audited["paid_usd"] > 0


def _all_over(folder: Path, *, jobs: int) -> bool:
    found = read_jobs(folder) if (folder / "observed.json").exists() else {}
    return len(found) == jobs and all(job.ended_s is not None for job in found.values())


def test_estimates_of_starts_and_ends_are_not_taken_for_what_happened() -> None:
    lines = """\
7|RUNNING|ann|2|gres:gpu:a100:4|2026-11-17T10:00:00|2026-11-17T10:01:00|2027-11-17T10:01:00|n[1-2]|None
8|PENDING|bob|1|gres:gpu:2|2026-11-17T10:00:00|2027-11-17T10:00:00|N/A||Dependency
9|CANCELLED|bob|1||2026-11-17T10:00:00|2026-11-17T10:02:00|2026-11-17T10:02:00||
10|COMPLETED|bob|1|gres/gpu:1|2026-11-17T10:00:00|2026-11-17T10:02:00|2026-11-17T10:03:00|n1|None"""
    runs, waits, cancelled, over = everybodys_from(lines)
    assert (runs.gpus.total * runs.nodes, (runs.started_s or 0) - runs.submitted_s, runs.ended_s) == (
        8,
        60,
        None,
    )
    assert (waits.started_s, waits.ended_s, waits.reason) == (None, None, "Dependency")
    assert (runs.places, over.places, cancelled.places) == (("n1", "n2"), ("n1",), ())
    assert cancelled.started_s is None
    assert (over.ended_s or 0) - (over.started_s or 0) == 60


class Watched:
    """A site that shows what it is given."""

    site = "hpc"

    def __init__(self, *jobs: SeenJob, nodes: Sequence[Node] = ()) -> None:
        self.jobs, self._nodes = jobs, nodes

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def seen_jobs(self) -> Sequence[SeenJob]:
        return self.jobs


def test_a_recording_is_audited_like_any_other_book(tmp_path: Path) -> None:
    nodes = [a_node(name, gpus=8) for name in ("a", "b")]
    first = SeenJob("1", "ann", 16, 2, "", 0, 0, places=("a", "b"))
    held = SeenJob("2", "bob", 8, 1, "", 0, held=True)
    clock = iter((0, 1800, 3600, 5400, 7200))
    site = Watched(first, held, nodes=nodes)
    observer = Observer(site, tmp_path, lambda: next(clock))
    observer.look()
    site.jobs = (first, held._replace(held=False))
    observer.look()
    over = first._replace(ended_s=3600, outcome="kept")
    runs = held._replace(held=False, started_s=3600, places=("a",))
    site.jobs, site._nodes = (over, runs), nodes[:1]  # b is drained
    observer.look()
    observer.look()
    site.jobs = ()  # the site has forgotten both: the second was there at the look before
    observer.look()
    records = read([str(tmp_path / "observed.json")], Asked())
    tree = sweep(records, start_s=0, end_s=7200).tree
    assert tree.amount().microusd == 16 * 2 * 2_000_000
    assert tree.amount("allocated.kept").gpu_s == 16 * 3600
    assert tree.amount("allocated.unknown").gpu_s == 8 * 1800
    assert tree.amount("out_of_service.unknown").gpu_s == 8 * 5400 - 8 * 1800
    assert [(wait.start_s, wait.end_s) for wait in records.waits] == [(1800, 3600)], "not while it was held"


def test_a_job_that_the_site_forgets_ended_at_the_last_look(tmp_path: Path) -> None:
    site = Watched(SeenJob("7", "ann", 8, 1, "", 1000, 1060), SeenJob("8", "bob", 1, 1, "", 1000))
    Observer(site, tmp_path, lambda: 1100.0).look()
    site.jobs = site.jobs[1:]
    Observer(site, tmp_path, lambda: 9000.0).look()  # brimful was away for hours
    found = read_jobs(tmp_path)
    assert (found["7"].ended_s, found["8"].ended_s) == (1100, None)
    site.jobs = ()
    Observer(site, tmp_path, lambda: 9001.0).look()
    assert read_jobs(tmp_path)["8"].started_s is None, "it left without having begun"


def test_time_in_which_nobody_looked_is_not_paid(tmp_path: Path) -> None:
    site = Watched(nodes=[a_node("a", gpus=8)])
    for looks in ((0, 3600), (36000, 37800)):
        clock = iter(looks)
        observer = Observer(site, tmp_path, lambda: next(clock))  # noqa: B023 - used up in this round
        for _ in looks:
            observer.look()
    paid = read([str(tmp_path / "observed.json")], Asked()).paid
    assert [(each.start_s, each.end_s) for each in paid] == [(0, 3600), (36000, 37800)]


def test_what_was_seen_is_written_as_a_trace_and_a_fleet() -> None:
    over = SeenJob("7", "ann", 8, 2, "a100", 1000, 1060, 1360)
    runs, waits = SeenJob("8", "bob", 1, 1, "", 1010, 1020), SeenJob("9", "bob", 1, 1, "", 1010)
    text = trace_text([runs, over, waits], now_s=1100)
    assert text.splitlines()[1:] == ["7,0,300,8,ann,a100,site", "8,10,80,1,bob,,node"]
    assert json.dumps(fleet_text([a_node("a", gpus=8), a_node("b", gpus=8)])).count("count = 2") == 1


def test_what_has_not_started_is_said_and_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [SeenJob("1", "ann", 8, 1, "", 0, 0, 60), SeenJob("2", "bob", 8, 1, "", 0)]
    site = Watched(*jobs, nodes=[a_node("a", gpus=8)])
    folder = tmp_path / "sites" / "hpc"
    folder.mkdir(parents=True)
    Observer(site, folder, lambda: 60.0).look()
    monkeypatch.setenv("BRIMFUL_ENGINES", str(tmp_path))
    assert main(["admin", "observed", "hpc"]) == 0
    said = capsys.readouterr().out
    assert words("operate.observed_waiting", jobs=Number(1)) in said
    assert words("operate.observed_same") in said
