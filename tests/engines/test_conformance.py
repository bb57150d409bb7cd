"""What every engine must do, whatever it runs jobs with. The engines are in conftest.py."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from brimful.fleet.events import Parts
from brimful.fleet.node import Node
from tests.builders import eventually
from tests.engines.labs import ALONE, GANG, NODES, Lab

RUNS = "import os; open('ran', 'a').write('x'); print('up', flush=True)"
STAYS = f"{RUNS}\nimport signal; signal.pause()"
DEAF = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", deaf])
open("pids", "w").write(f"{os.getpid()} {child.pid}")
print("up", flush=True)
signal.pause()
"""
POLITE = """
import signal, sys
def leave(*_):
    print("leaves", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
signal.pause()
"""
# Leaves a second after it was first told to, so that a second time is not missed.
COUNTS = """
import signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: (told.append(1), print("told", flush=True)))
print("up", flush=True)
while not told:
    time.sleep(0.05)
time.sleep(1)
"""
TELLS = """
import os
for name in ("BRIMFUL_RANK", "BRIMFUL_WORLD_SIZE", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
             "BRIMFUL_NODE", "CUDA_VISIBLE_DEVICES"):
    print(f"{name}={os.environ.get(name, '')}")
"""
# Rank 1 fails; the others would wait for it for ever, as they do in a collective.
FAILS = """
import os, pathlib, signal, sys, time
first = pathlib.Path("first-is-up")
print("rank", os.environ["BRIMFUL_RANK"], flush=True)
if os.environ["BRIMFUL_RANK"] == "0":
    first.touch()
    signal.pause()
while not first.exists():
    time.sleep(0.05)
sys.exit(3)
"""
MEETS = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print(f"sum={total.item()}", flush=True)
dist.destroy_process_group()
"""
SAVES = """
import json, signal, time
from brimful.job import Run
run = Run()
print("from", run.latest.name if run.latest else None, flush=True)
with run.saving(7) as folder:
    (folder / "n").write_text("7")
print("saved", flush=True)
signal.pause() if not run.told else None
"""


def seal_a_terabyte(site: Lab) -> None:
    """Hashing it takes hours; a sparse one costs the job nothing."""
    folder = Path(site.engine.checkpoints("a")) / "step-1"
    folder.mkdir(parents=True)
    with (folder / "huge").open("wb") as file:
        file.truncate(1 << 40)
    sealed = {"step": 1, "at_s": 1, "files": {"huge": {"bytes": 1 << 40, "sha256": "0" * 64}}}
    (folder / "brimful.json").write_text(json.dumps(sealed))


def up(site: Lab, lease: str = "a.1") -> None:
    eventually(lambda: "up" in site.log(lease))


def test_a_start_runs_once_and_its_end_is_told(site: Lab) -> None:
    assert site.start(RUNS) == {}
    ended = site.waits_for("ended")
    assert (ended.exit_code, ended.cause, ended.problem) == (0, "finished", None)
    assert ended.started_s is not None
    assert ended.ended_s is not None
    assert ended.started_s <= ended.ended_s
    assert site.log() == ["up"]


def test_a_second_start_runs_nothing_not_even_after_our_restart(site: Lab) -> None:
    order = site.order(STAYS)
    assert site.engine.start([order, order]) == {}
    up(site)
    site.restart()
    assert site.start(STAYS) == {}
    site.stop("a.1", grace_s=1)
    site.waits_for("ended")
    assert site.start(STAYS) == {}
    assert (site.folder / "ran").read_text() == "x"


def test_a_start_after_a_stop_runs_nothing(site: Lab) -> None:
    assert site.stop("a.1") == {}
    assert site.start(RUNS) == {}
    seen = site.look()
    assert seen is None or seen.state == "absent" or seen.cause == "stopped_by_us"
    site.restart()
    assert site.start(RUNS) == {}
    eventually(lambda: (found := site.look()) is not None and found.state != "running")
    assert not (site.folder / "ran").exists()


def test_a_job_that_is_told_to_stop_may_leave_by_itself(site: Lab) -> None:
    site.start(POLITE)
    up(site)
    site.stop("a.1", grace_s=600)
    ended = site.waits_for("ended")
    assert site.log() == ["up", "leaves"]
    assert (ended.exit_code, ended.cause) == (0, "stopped_by_us"), "it was not done, whatever it answered"
    assert ended.kept_work_s in (None, 0.0), "no checkpoint proves that anything was kept"


@pytest.mark.parametrize("parts", [ALONE, GANG])
def test_a_job_that_was_faster_than_its_stop_is_done(site: Lab, parts: Parts) -> None:
    site.start(RUNS, parts=parts)
    site.waits_for("ended")
    site.stop("a.1", grace_s=600)
    ended = site.waits_for("ended")
    assert (ended.exit_code, ended.cause, ended.problem) == (0, "finished", None)


@pytest.mark.parametrize("parts", [ALONE, GANG])
def test_every_rank_is_told_to_stop_once(site: Lab, parts: Parts) -> None:
    site.start(COUNTS, parts=parts)
    eventually(lambda: all("up" in site.log(rank=rank) for rank in range(len(parts))))
    site.waits_for("running")
    site.stop("a.1", grace_s=600)
    site.stop("a.1", grace_s=600)
    assert site.waits_for("ended").cause == "stopped_by_us"
    assert [site.log(rank=rank) for rank in range(len(parts))] == [["up", "told"]] * len(parts)


def test_a_deaf_job_is_killed_after_its_grace_with_all_it_started(site: Lab) -> None:
    site.start(DEAF)
    up(site)
    site.stop("a.1", grace_s=1)
    ended = site.waits_for("ended")
    assert ended.cause == "stopped_by_us"
    for pid in map(int, (site.folder / "pids").read_text().split()):
        assert not _lives(pid)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_job_that_failed_is_told_from_one_that_was_stopped(site: Lab) -> None:
    site.start("import sys; sys.exit(3)")
    ended = site.waits_for("ended")
    assert (ended.exit_code, ended.cause) == (3, "failed")
    assert ended.problem is not None


def test_the_ranks_of_a_gang_know_their_place_and_where_to_meet(site: Lab) -> None:
    site.start(TELLS, parts=GANG)
    ended = site.waits_for("ended")
    assert (ended.exit_code, ended.exit_codes, ended.cause) == (0, (0, 0), "finished")
    ranks = [site.facts(rank=rank) for rank in range(len(GANG))]
    for rank, facts in enumerate(ranks):
        assert facts["BRIMFUL_RANK"] == facts["RANK"] == str(rank)
        assert facts["BRIMFUL_WORLD_SIZE"] == facts["WORLD_SIZE"] == "2"
        assert facts["BRIMFUL_NODE"] == GANG[rank][0]
        assert len(facts["CUDA_VISIBLE_DEVICES"].split(",")) == len(GANG[rank][1])
    assert len({(facts["MASTER_ADDR"], facts["MASTER_PORT"]) for facts in ranks}) == 1
    assert ranks[0]["MASTER_ADDR"]
    assert int(ranks[0]["MASTER_PORT"]) > 0


def test_a_single_process_is_not_taken_for_a_rank(site: Lab) -> None:
    """nanoGPT and others take RANK alone as a sign that there are others."""
    site.start(TELLS)
    site.waits_for("ended")
    facts = site.facts()
    assert (facts["BRIMFUL_RANK"], facts["BRIMFUL_WORLD_SIZE"], facts["RANK"]) == ("0", "1", "")


def test_one_rank_that_fails_ends_its_gang_and_exit_codes_are_by_rank(site: Lab) -> None:
    site.start(FAILS, parts=GANG)
    ended = site.waits_for("ended")
    assert (ended.exit_code, ended.cause) == (3, "failed"), "the code of the rank that failed first"
    assert ended.exit_codes == (128 + signal.SIGTERM, 3)
    assert "1" in str(ended.problem)
    assert (site.log(rank=0), site.log(rank=1)) == (["rank 0"], ["rank 1"])


def test_what_runs_is_found_again_after_our_restart(site: Lab) -> None:
    site.start(STAYS)
    up(site)
    before = site.waits_for("running")
    site.restart()
    after = site.waits_for("running")
    assert after.started_s == before.started_s
    site.stop("a.1", grace_s=1)
    assert site.waits_for("ended").cause == "stopped_by_us"
    assert (site.folder / "ran").read_text() == "x"


def test_gpus_that_others_use_are_told_and_our_own_are_not_among_them(site: Lab) -> None:
    site.start(STAYS)
    up(site)
    site.occupy(NODES[1], 2)
    ours, theirs = (node for node in site.engine.nodes() if node.node in NODES)
    assert (ours.taken, len(theirs.taken)) == ((), 1)
    assert theirs.chosen_by == "count" or theirs.taken == (2,)
    unchanged = site.engine.nodes()
    assert site.engine.nodes() is unchanged, "the same list says that nothing has changed"
    site.vacate()
    assert all(_is_free(node) for node in site.engine.nodes())


def _is_free(node: Node) -> bool:
    return not node.taken


@pytest.mark.fault("crowd")
def test_five_hundred_living_leases_are_observed_at_once(site: Lab) -> None:
    names = [f"x.{i}" for i in range(500)]
    running = site.crowd(names)
    expected = Counter(running=running, waiting=len(names) - running)
    known: dict[str, str] = {}  # a look need not repeat what it told before
    eventually(lambda: _states(site, known, names) == +expected)
    site.restart()
    assert _states(site, {}, names) == +expected, "of each, by one look of a server that is new"
    assert site.stop(*names, grace_s=1) == {}
    eventually(lambda: _states(site, known, names) == Counter(ended=len(names)))
    site.begun.clear()  # nothing is left of them to stop


def _states(site: Lab, known: dict[str, str], names: Sequence[str]) -> Counter[str]:
    known |= {seen.lease: seen.state for seen in site.engine.observe(names)}
    return Counter(known.values())


def test_two_running_leases_are_told_from_five_hundred_that_never_began(site: Lab) -> None:
    names = [f"x.{i}" for i in range(502)]
    assert site.stop(*names[2:], grace_s=1) == {}  # never begun, and never will be
    orders = [site.order(STAYS, name, parts=((NODES[0], (i,)),)) for i, name in enumerate(names[:2])]
    assert site.engine.start(orders) == {}
    for name in names[:2]:
        up(site, name)
    states = {seen.lease: seen.state for seen in site.engine.observe(names)}
    assert [states[name] for name in names[:2]] == ["running", "running"]
    assert {states[name] for name in names[2:]} <= {"absent", "ended"}
    assert len(states) == len(names)
    assert site.stop(*names, grace_s=1) == {}


def test_a_lease_goes_on_from_its_checkpoint_and_says_when_that_is_gone(site: Lab) -> None:
    site.start(SAVES)
    eventually(lambda: "saved" in site.log())
    site.stop("a.1", grace_s=1)
    kept = site.waits_for("ended")
    assert kept.resumes_s == 0
    site.start(SAVES, "a.2", kept_until_s=1)
    eventually(lambda: "saved" in site.log("a.2"))
    running = site.waits_for("running", "a.2")
    assert running.resumes_s is not None
    assert running.resumes_s > 0
    assert "from step-000000007" in site.log("a.2")
    site.stop("a.2", grace_s=1)
    site.waits_for("ended", "a.2")
    for folder in Path(site.engine.checkpoints("a")).glob("step-*"):
        shutil.rmtree(folder)
    site.start(SAVES, "a.3", kept_until_s=running.resumes_s)
    eventually(lambda: "saved" in site.log("a.3"))
    assert site.waits_for("running", "a.3").resumes_s == 0
    assert any("progress lost" in line for line in site.log("a.3"))


def test_a_lease_can_be_stopped_while_its_checkpoints_are_made_ready(site: Lab) -> None:
    seal_a_terabyte(site)
    site.start(RUNS)
    eventually(lambda: site.waits_for("waiting").problem is not None)  # None: only just on its way
    site.stop("a.1", grace_s=600)
    assert site.waits_for("ended").cause == "stopped_by_us"
    assert not (site.folder / "ran").exists()


def test_an_orphan_of_an_older_lease_cannot_write_over_a_newer_checkpoint(site: Lab) -> None:
    site.start(SAVES)
    eventually(lambda: "saved" in site.log())
    site.stop("a.1", grace_s=1)
    site.waits_for("ended")
    site.start(SAVES, "a.2")
    eventually(lambda: "saved" in site.log("a.2"))
    folder = site.engine.checkpoints("a")
    sealed = (Path(folder) / "step-000000007" / "brimful.json").read_text()
    environment = {**os.environ, "BRIMFUL_CHECKPOINT_DIR": folder, "BRIMFUL_LEASE": "a.1"}
    orphan = _run(SAVES, environment)
    assert "LeaseOver" in orphan
    assert (Path(folder) / "step-000000007" / "brimful.json").read_text() == sealed


def _run(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    return done.stderr


@pytest.mark.torch
def test_the_ranks_of_a_gang_meet_under_a_real_torchrun(site: Lab) -> None:
    pytest.importorskip("torch")
    program = site.folder / "meets.py"
    program.write_text(MEETS)
    launch = (
        f"{sys.executable} -m torch.distributed.run --nnodes $WORLD_SIZE --node-rank $RANK --nproc-per-node 1"
        f" --master-addr $MASTER_ADDR --master-port $MASTER_PORT {program}"
    )
    env_command = ["/bin/sh", "-c", f"OMP_NUM_THREADS=1 exec {launch}"]
    assert site.engine.start([site.command(env_command, parts=GANG)]) == {}
    ended = site.waits_for("ended")
    assert (ended.exit_code, ended.cause) == (0, "finished"), [*site.log(), *site.log(rank=1)]
    assert [site.facts(rank=rank)["sum"] for rank in (0, 1)] == ["3", "3"]


# Rank 0 is done at once; rank 1 leaves with 0 when it is told to, as one that has saved does.
DONE_EARLY = """
import os, signal, sys
if os.environ["BRIMFUL_RANK"] == "0":
    sys.exit(0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("up", flush=True)
signal.pause()
"""


def test_a_gang_of_which_one_rank_was_done_before_the_stop_has_kept_nothing_for_that(site: Lab) -> None:
    site.start(DONE_EARLY, parts=GANG)
    eventually(lambda: "up" in site.log(rank=1))
    time.sleep(1.1)  # so that the first rank's second of work would count
    site.stop("a.1", grace_s=600)
    ended = site.waits_for("ended")
    assert (ended.exit_code, ended.cause, ended.exit_codes) == (0, "stopped_by_us", (0, 0))
    assert ended.kept_work_s in (None, 0.0), "no checkpoint proves that anything was kept"
