"""What the world does to an engine. Each runs on the engines whose lab can make the fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.errors import WorldFailed
from tests.builders import eventually
from tests.engines.labs import NODES, Lab
from tests.engines.test_conformance import COUNTS, POLITE, RUNS, SAVES, STAYS, seal_a_terabyte, up


@pytest.mark.fault("engine_gone")
def test_an_engine_that_is_gone_is_an_error_and_what_ran_is_found_when_it_is_back(site: Lab) -> None:
    site.start(STAYS)
    up(site)
    before = site.waits_for("running")
    site.engine_goes()
    with pytest.raises(WorldFailed):
        site.engine.nodes()
    with pytest.raises(WorldFailed):
        site.look()
    site.engine_returns()
    site.restart()
    assert site.waits_for("running").started_s == before.started_s
    eventually(lambda: {node.node for node in site.engine.nodes()} >= set(NODES))
    assert (site.folder / "ran").read_text() == "x"


@pytest.mark.fault("stop_without_engine")
def test_a_stop_is_obeyed_while_the_engine_is_away(site: Lab) -> None:
    site.start(STAYS)
    up(site)
    site.waits_for("running")
    site.engine_goes()
    with pytest.raises(WorldFailed):
        site.stop("a.1", grace_s=1)
    eventually(lambda: _is_over(site))
    site.engine_returns()
    assert site.waits_for("ended").cause == "stopped_by_us"


def _is_over(site: Lab) -> bool:
    return any((site.folder / "leases" / "a.1").rglob("ended.json"))


@pytest.mark.fault("stop_waits")
def test_a_stop_that_the_engine_could_not_hear_is_obeyed_when_it_is_back(site: Lab) -> None:
    site.start(STAYS)
    up(site)
    site.waits_for("running")
    site.engine_goes()
    assert _is_unheard(site)
    site.engine_returns()
    site.waits_for("running")  # nobody has told it
    assert site.stop("a.1", grace_s=1) == {}
    assert site.waits_for("ended").cause == "stopped_by_us"
    assert (site.folder / "ran").read_text() == "x"


def _is_unheard(site: Lab) -> bool:
    """Of the lease, or of the site as a whole: whoever ordered it is told, and orders it again."""
    try:
        return "a.1" in site.stop("a.1", grace_s=1)
    except WorldFailed:
        return True


@pytest.mark.fault("node_lost")
def test_a_lost_node_ends_the_lease_burns_no_try_and_its_orphan_keeps_nothing(site: Lab) -> None:
    site.start(SAVES)
    eventually(lambda: "saved" in site.log())
    site.waits_for("running")
    site.lose_node(NODES[0])
    ended = site.waits_for("ended")
    assert (ended.cause, ended.exit_code) == ("node_lost", None)
    assert NODES[0] not in {node.node for node in site.engine.nodes()}
    site.start(SAVES, "a.2", parts=((NODES[1], (0,)),))
    eventually(lambda: "saved" in site.log("a.2"))
    folder = Path(site.engine.checkpoints("a"))
    sealed = (folder / "step-000000007" / "brimful.json").read_text()
    env = {**os.environ, "BRIMFUL_CHECKPOINT_DIR": str(folder), "BRIMFUL_LEASE": "a.1"}
    orphan = subprocess.run(
        [sys.executable, "-c", SAVES], env=env, capture_output=True, text=True, check=False
    )
    assert "LeaseOver" in orphan.stderr
    assert (folder / "step-000000007" / "brimful.json").read_text() == sealed
    site.node_returns(NODES[0])
    eventually(lambda: NODES[0] in {node.node for node in site.engine.nodes()})


@pytest.mark.fault("preempted")
def test_a_lease_that_the_engine_sends_away_has_kept_its_checkpoint_and_is_not_done(site: Lab) -> None:
    site.start(SAVES)
    eventually(lambda: "saved" in site.log())
    site.waits_for("running")
    site.preempt(NODES[0])
    ended = site.waits_for("ended")
    assert ended.cause == "preempted_by_engine"
    assert ended.exit_code != 0, "who is sent away has not finished, whatever it answered"
    assert ended.kept_work_s is not None
    assert ended.problem is not None


@pytest.mark.fault("preempted")
def test_a_lease_that_the_engine_sends_away_is_told_so_once(site: Lab) -> None:
    site.start(COUNTS)
    up(site)
    site.waits_for("running")
    site.preempt(NODES[0])
    assert site.waits_for("ended").cause == "preempted_by_engine"
    assert site.log() == ["up", "told"]


@pytest.mark.fault("pending")
def test_a_lease_that_the_engine_keeps_waiting_is_handed_back(site: Lab) -> None:
    for gpu in range(8):
        site.occupy(NODES[0], gpu)
    site.start(RUNS)
    site.waits_for("waiting")
    ended = site.waits_for("ended")
    assert (ended.cause, ended.started_s, ended.exit_code) == ("preempted_by_engine", None, None)
    assert not (site.folder / "ran").exists()


@pytest.mark.fault("held_back")
def test_one_that_others_keep_waiting_is_handed_back_at_the_next_look(site: Lab) -> None:
    site.start(RUNS, "a.0")  # so that it knows the nodes, and all about them
    site.waits_for("ended", "a.0")
    for gpu in range(8):
        site.occupy(NODES[0], gpu)
    site.start(STAYS)
    site.waits_for("waiting")
    site.engine.nodes()
    site.look()
    assert site.waits_for("ended").cause == "preempted_by_engine"
    site.vacate()
    first = next(node for node in site.engine.nodes() if node.node == NODES[0])
    assert first.offered_gpus == first.gpus, "it was theirs as long as they held it"


@pytest.mark.fault("held_back")
def test_where_the_engine_does_not_say_who_is_in_the_way_the_nodes_are_given_a_rest(site: Lab) -> None:
    site.hold_back(NODES[0])
    site.start(RUNS)
    ended = site.waits_for("ended")
    assert (ended.cause, ended.started_s, ended.exit_code) == ("preempted_by_engine", None, None)
    site.let_go(NODES[0])
    first = next(node for node in site.engine.nodes() if node.node == NODES[0])
    assert first.offered_gpus == 0, "not offered again at once, or it would go round in a circle"
    assert not (site.folder / "ran").exists()


@pytest.mark.fault("skewed_clock")
def test_a_clock_that_is_ahead_is_noticed_and_what_ran_is_measured_by_it(site: Lab) -> None:
    site.start_ahead(STAYS, by_s=300)
    running = site.waits_for("running")
    assert running.started_s is not None
    assert 290 <= running.skew_s <= 300
    site.restart()
    assert site.waits_for("running").skew_s == running.skew_s


@pytest.mark.fault("told_by_others")
@pytest.mark.parametrize("code", [POLITE, STAYS])
def test_a_job_that_others_tell_to_end_is_not_done_and_burns_no_try(site: Lab, code: str) -> None:
    site.start(code)
    up(site)
    site.waits_for("running")
    site.tell_by_others("a.1")
    ended = site.waits_for("ended")
    assert ended.cause == "preempted_by_engine", "a machine that shuts down, or an administrator"
    assert ended.exit_code != 0, "it left with 0, and is not done for that"
    assert ended.kept_work_s == 0.0


@pytest.mark.fault("told_by_others")
def test_one_that_is_sent_away_while_its_checkpoints_are_made_ready_has_not_failed(site: Lab) -> None:
    seal_a_terabyte(site)
    site.start(RUNS)
    eventually(lambda: _is_begun(site))
    site.tell_by_others("a.1")
    ended = site.waits_for("ended")
    assert (ended.cause, ended.exit_code) == ("preempted_by_engine", None)
    assert not (site.folder / "ran").exists()


def _is_begun(site: Lab) -> bool:
    site.engine.observe(["a.1"])  # where its place is not there yet, an engine goes on when it is asked
    return any("a.1" in each.parts for each in site.folder.rglob("started.json"))
