"""At a Slurm site a lease's folder is its tenant's: whatever is in it, it is that lease's trouble alone."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from brimful.adapters.engines.slurm.commands import Commands
from brimful.adapters.engines.slurm.engine import SlurmEngine
from brimful.adapters.engines.slurm.options import SlurmOptions
from brimful.adapters.engines.slurm.text import EndRow, Gpus, JobRow, NodeRow, Span
from brimful.adapters.sites import Site
from brimful.fleet.job import Job
from brimful.scheduler.ports import Observation, Start
from tests.patience import PATIENCE_S

NOW_S = 1_700_000_000


class Fake(Commands):
    """A cluster of three nodes that says of our jobs what it is told."""

    def __init__(self) -> None:
        super().__init__("low")
        self.rows: list[JobRow] = []
        self.asked: list[str] = []
        self.used = 0

    def nodes(self) -> list[NodeRow]:
        return [
            NodeRow(f"n-{i}", Gpus("h100", 2), self.used * (i == 0), frozenset({"idle"}), "", "")
            for i in range(3)
        ]

    def jobs(self, prefix: str) -> list[JobRow]:
        return [row._replace(name=f"{prefix}{row.name}") for row in self.rows]

    def holders(self, but: Collection[str]) -> dict[str, list[str]]:
        return {}

    def racks(self) -> dict[str, str]:
        return {}

    def ends(self, jobs: Sequence[str]) -> list[EndRow]:
        self.asked += jobs
        return []

    def cancel_pending(self, jobs: Sequence[str]) -> None:
        pass

    def submit(self, flags: Sequence[str], script: str) -> str:
        return "7"

    def clock_s(self) -> int:
        return int(time.time())

    def says(
        self, lease: str, state: str, *, nodes: tuple[str, ...] = ("n-0",), span: Span | None = None
    ) -> None:
        known = Span(NOW_S, NOW_S + 60 if state == "COMPLETED" else None) if span is None else span
        self.rows.append(JobRow("7", "7", state, nodes, 1, "Resources", os.getuid(), lease, known))


class Hpc:
    def __init__(self, root: Path) -> None:
        self.root, self.slurm, self.now = root, Fake(), 0.0
        self.engine = SlurmEngine(
            root,
            self.slurm,
            SlurmOptions(),
            site=Site(site="hpc", engine="slurm", notices="aws"),
            microusd_per_gpu_hour=1,
            log_bytes=1 << 20,
            clock=lambda: self.now,
        )
        self.engine.nodes()

    def lease(self, lease: str, **files: object) -> Path:
        """Its folder, with these in that of its first rank."""
        own = self.root / lease / "ranks" / "0"
        own.mkdir(parents=True)
        for name, body in files.items():
            (own / f"{name}.json").write_text(json.dumps(body))
        return self.root / lease

    def sound(self) -> None:
        """Somebody else's, that is over."""
        folder = self.lease("good.1", **ENDED)
        (folder / "submitted.json").write_text(json.dumps({"job": "7", "at_s": NOW_S, "nodes": ["n-1"]}))
        self.slurm.says("good.1", "COMPLETED", nodes=("n-1",))

    def looks(self, *leases: str) -> dict[str, Observation]:
        self.engine.nodes()  # as its worker does: they are of one poll
        return {each.lease: each for each in in_time(lambda: self.engine.observe(leases))}


ENDED: dict[str, dict[str, object]] = {
    "started": {"at_s": NOW_S, "speed": 1.0},
    "child": {"resumes_s": 0},
    "ended": {"at_s": NOW_S + 60, "exit_code": 0, "problem": None, "sealed_s": 0, "told": False},
}


def in_time(look: Callable[[], Sequence[Observation]]) -> Sequence[Observation]:
    answer: list[Sequence[Observation]] = []
    thread = threading.Thread(target=lambda: answer.append(look()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert answer, "it waits for ever, or fell over"
    return answer[0]


@pytest.fixture
def hpc(tmp_path: Path) -> Hpc:
    return Hpc(tmp_path / "leases")


def trap(path: Path, kind: str) -> None:
    path.parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "without end"])
@pytest.mark.parametrize("name", ["won/id", "failed"])
def test_nobody_waits_for_a_pipe_or_reads_without_end(hpc: Hpc, name: str, kind: str) -> None:
    trap(hpc.lease("bad.1", **ENDED) / name, kind)
    hpc.slurm.says("bad.1", "COMPLETED")
    hpc.sound()
    assert hpc.looks("bad.1", "good.1")["good.1"].cause == "finished"


@pytest.mark.parametrize(
    "started", [{"at_s": "x"}, {"at_s": float("inf")}, {}, {"at_s": NOW_S, "checkpoints": 3, "speed": []}]
)
def test_a_forgotten_job_whose_files_are_nonsense_keeps_nobody_from_the_others(
    hpc: Hpc, started: dict[str, object]
) -> None:
    folder = hpc.lease("bad.1", started=started, ended={"exit_code": [], "problem": {"code": []}})
    (folder / "submitted.json").write_text(json.dumps({"job": "\0--" + "9" * 200_000, "nodes": 3}))
    (folder / "won").mkdir()
    (folder / "won" / "id").write_text("nobody's")
    hpc.slurm.says("bad.1", "RUNNING")
    hpc.sound()
    assert hpc.looks("bad.1", "good.1")["good.1"].cause == "finished"
    assert hpc.slurm.asked == []


FORGED = [NOW_S + 30, 0, -1, 10**300, float("inf"), float("nan"), "x", [], None]


@pytest.mark.parametrize("at_s", FORGED, ids=repr)
@pytest.mark.parametrize("state", ["COMPLETED", "COMPLETING", "TIMEOUT", "FAILED"])
def test_a_lease_is_billed_by_slurms_times_whatever_its_runner_says(
    hpc: Hpc, state: str, at_s: object
) -> None:
    ended = {**ENDED["ended"], "at_s": at_s, "sealed_s": NOW_S + 9999}
    folder = hpc.lease("bad.1", started={"at_s": at_s, "speed": 1.0}, child={"resumes_s": at_s}, ended=ended)
    (folder / "submitted.json").write_text(json.dumps({"job": "7", "at_s": at_s, "nodes": ["n-0"]}))
    (folder / "skew.json").write_text('{"skew_s": 1e9}')
    hpc.slurm.says("bad.1", state, span=Span(NOW_S, NOW_S + 60))
    seen = hpc.looks("bad.1")["bad.1"]
    assert (seen.state, seen.started_s, seen.ended_s, seen.skew_s) == ("ended", NOW_S, NOW_S + 60, 0.0)
    assert seen.kept_work_s is None or 0 <= seen.kept_work_s <= 60


@pytest.mark.parametrize("name", ["started", "child", "ended"])
def test_a_record_that_cannot_be_read_keeps_no_lease_from_its_end_and_its_bill(hpc: Hpc, name: str) -> None:
    folder = hpc.lease("bad.1", **ENDED)
    (folder / "ranks" / "0" / f"{name}.json").write_text("no JSON")
    (folder / "submitted.json").write_text("nor this")
    hpc.slurm.says("bad.1", "COMPLETED")
    seen = hpc.looks("bad.1")["bad.1"]
    assert (seen.state, seen.started_s, seen.ended_s) == ("ended", NOW_S, NOW_S + 60)


def test_a_job_that_slurm_has_forgotten_is_billed_by_its_runner_up_to_now(hpc: Hpc) -> None:
    ended = {**ENDED["ended"], "at_s": 10**300}
    folder = hpc.lease("bad.1", **{**ENDED, "ended": ended})
    (folder / "submitted.json").write_text(json.dumps({"job": "7", "nodes": ["n-0"]}))
    seen = hpc.looks("bad.1")["bad.1"]
    assert seen.started_s == NOW_S
    assert seen.ended_s is not None
    assert NOW_S < seen.ended_s <= time.time() + 2


def test_the_bill_of_a_lost_node_ends_with_its_last_sign_of_life(hpc: Hpc) -> None:
    folder = hpc.lease("a.1", **{key: ENDED[key] for key in ("started", "child")})
    (folder / "ranks" / "0" / "beat").touch()
    os.utime(folder / "ranks" / "0" / "beat", (NOW_S + 20, NOW_S + 20))
    hpc.slurm.says("a.1", "NODE_FAIL", span=Span(NOW_S, NOW_S + 320))
    seen = hpc.looks("a.1")["a.1"]
    assert (seen.cause, seen.started_s, seen.ended_s) == ("node_lost", NOW_S, NOW_S + 20)


def test_a_tenant_holds_no_nodes_but_its_own(hpc: Hpc) -> None:
    folder = hpc.lease("bad.1", **{key: ENDED[key] for key in ("started", "child")})
    (folder / "taken").write_text("n-0\nn-1\nn-2\n")
    os.utime(folder / "taken", (2**32, 2**32))
    hpc.slurm.says("bad.1", "RUNNING")
    hpc.looks("bad.1")
    hpc.now = 1.0
    assert held(hpc) == {"n-0"}
    hpc.now = 301.0
    assert held(hpc) == set()


@pytest.mark.parametrize("used", [1, 2], ids=["not yet counted", "counted"])
@pytest.mark.parametrize("state", ["CONFIGURING", "RUNNING", "COMPLETING"])
def test_a_lease_that_begins_while_nodes_are_listed_frees_nothing_that_a_stranger_has(
    hpc: Hpc, state: str, used: int
) -> None:
    hpc.slurm.used = 1  # a stranger's
    assert taken(hpc) == 1
    hpc.slurm.says("a.1", state)
    hpc.slurm.used = used
    assert taken(hpc) >= 1
    hpc.slurm.used = 2
    assert taken(hpc) >= 1
    assert state != "RUNNING" or taken(hpc) == 1, "ours is not taken for a stranger's"


def test_a_lease_that_ends_as_another_begins_frees_nothing_that_a_stranger_has(hpc: Hpc) -> None:
    hpc.slurm.says("a.1", "RUNNING")
    hpc.slurm.used = 2
    assert taken(hpc) == 1
    assert taken(hpc) == 1
    hpc.slurm.rows = [row._replace(state="COMPLETED") for row in hpc.slurm.rows]
    hpc.slurm.says("b.1", "RUNNING")
    hpc.slurm.rows[-1] = hpc.slurm.rows[-1]._replace(job="8", number="8")
    hpc.slurm.used = 1  # between the two
    assert taken(hpc) == 1


@pytest.mark.parametrize("state", ["COMPLETING", "COMPLETED"])
def test_the_gpu_of_a_lease_that_has_just_ended_does_not_look_like_a_strangers(hpc: Hpc, state: str) -> None:
    """Otherwise, of two that were stopped for a gang, one would take its GPU back before the gang."""
    hpc.slurm.says("a.1", "RUNNING")
    hpc.slurm.used = 1
    assert taken(hpc) == 0
    hpc.slurm.rows = [row._replace(state=state) for row in hpc.slurm.rows]
    assert taken(hpc) == 0, "the node was asked for before the job's end, and says that it is used"
    hpc.slurm.used = 0
    assert taken(hpc) == 0


def test_a_lease_that_waits_is_not_handed_back_because_another_of_ours_began(hpc: Hpc) -> None:
    job = Job(job="a", gpus=1, command=("true",))
    assert hpc.engine.start([Start("a.1", job, (("n-0", (0,)),))]) == {}
    hpc.slurm.says("a.1", "PENDING", nodes=())
    hpc.looks("a.1")
    hpc.slurm.says("b.1", "RUNNING")
    hpc.slurm.rows[-1] = hpc.slurm.rows[-1]._replace(job="8", number="8", gpus_per_node=2)
    hpc.slurm.used = 2
    hpc.looks("a.1")
    assert not (hpc.root / "a.1" / "handed_back.json").exists()


@pytest.mark.parametrize("nodes", [["n-1", "n-2"], 5, "n-1"])
def test_one_that_waits_hands_back_what_it_was_ordered_on(hpc: Hpc, nodes: object) -> None:
    job = Job(job="bad", gpus=1, command=("true",))
    assert hpc.engine.start([Start("bad.1", job, (("n-0", (0,)),))]) == {}
    submitted = hpc.root / "bad.1" / "submitted.json"
    submitted.write_text(json.dumps({"job": "7", "nodes": nodes, "gpus": ["x"]}))
    hpc.slurm.says("bad.1", "PENDING", nodes=())
    hpc.looks("bad.1")
    hpc.now = 6.0
    hpc.sound()
    assert hpc.looks("bad.1", "good.1")["good.1"].cause == "finished"
    assert held(hpc) == {"n-0"}


def taken(hpc: Hpc) -> int:
    return len(next(node for node in hpc.engine.nodes() if node.node == "n-0").taken)


def held(hpc: Hpc) -> set[str]:
    return {node.node for node in hpc.engine.nodes() if node.taken}
