"""A cloud takes nodes of a Slurm cluster back: runners hear of it, and Slurm goes on offering them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.builders import code_of, eventually
from tests.engines.labs import GANG, NODES
from tests.engines.slurm_lab import SlurmLab
from tests.engines.test_conformance import POLITE


def test_a_gang_leaves_whole_is_not_done_and_the_node_is_not_offered_again(tmp_path: Path) -> None:
    signal_file = tmp_path / "signal.yml"
    lab = SlurmLab(tmp_path, notices=f"mithril@{signal_file}")
    try:
        lab.start(POLITE, parts=GANG)
        eventually(lambda: all("up" in lab.log(rank=rank) for rank in (0, 1)))
        lab.waits_for("running")
        end = datetime.now(UTC) + timedelta(seconds=15)
        signal_file.write_text(
            f"instance_status: STATUS_PREEMPTING\nend_time: {end.strftime('%Y-%m-%dT%H:%M:%SZ')}\n"
        )
        ended = lab.waits_for("ended")
        assert (ended.cause, ended.exit_code) == ("preempted_by_engine", None), "it left with 0"
        assert code_of(ended.problem) == "adapters.machine_taken"
        offered = {node.node: node.offered_gpus for node in lab.engine.nodes()}
        assert min(offered[name] for name in NODES) == 0, "the one whose runner heard it first"
        assert any(offered.values()), "nobody said anything of the others"
    finally:
        lab.close()


STAYS_TO_SAVE = """
import pathlib, signal, sys, time
def leave(*_):
    print("saves", flush=True)
    while not pathlib.Path("saved").exists():
        time.sleep(0.05)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
signal.pause()
"""


def test_a_node_is_closed_while_its_job_still_saves(tmp_path: Path) -> None:
    signal_file = tmp_path / "signal.yml"
    lab = SlurmLab(tmp_path, notices=f"mithril@{signal_file}")
    try:
        lab.start(STAYS_TO_SAVE)
        eventually(lambda: "up" in lab.log())
        lab.waits_for("running")
        end = datetime.now(UTC) + timedelta(seconds=15)
        signal_file.write_text(
            f"instance_status: STATUS_PREEMPTING\nend_time: {end.strftime('%Y-%m-%dT%H:%M:%SZ')}\n"
        )
        eventually(lambda: "saves" in lab.log())
        lab.look()
        offered = {node.node: node.offered_gpus for node in lab.engine.nodes()}
        assert offered[NODES[0]] <= 1, "what its own lease holds"
        assert offered[NODES[1]] == 8
        (tmp_path / "saved").touch()
        assert lab.waits_for("ended").cause == "preempted_by_engine"
    finally:
        (tmp_path / "saved").touch()
        lab.close()
