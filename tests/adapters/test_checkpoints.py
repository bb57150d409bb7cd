"""A job goes on from its newest whole checkpoint, at its site or another, and never from half of one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.adapters.engines.checkpoints import make_ready, sealed_in
from brimful.adapters.engines.local import LocalEngine
from brimful.fleet.job import Job
from brimful.job import newest, seal
from brimful.language import Plain, Sentence, say
from brimful.scheduler.ports import Observation
from tests.builders import a_node, eventually, start_one, stop_one


def a_checkpoint(folder: Path, step: int, text: str = "weights") -> Path:
    made = folder / f"step-{step}"
    made.mkdir(parents=True)
    (made / "state.pt").write_text(f"{text} {step}")
    seal(made, step=step)
    return made


def goes_on_from(name: str) -> Sentence:
    return say("adapters.goes_on_from", name=name)


def not_used(folder: Path, wrong: Sentence) -> Sentence:
    return say("adapters.not_used", folder=folder, wrong=wrong)


def test_the_newest_of_both_sites_is_the_one(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    a_checkpoint(here, 5)
    a_checkpoint(there, 9)
    a_checkpoint(there, 3)
    fetched = say("adapters.goes_on_fetched", name="step-9", source=there)
    assert list(make_ready(here, sealed_in(there))) == [fetched]
    assert (here / "step-9" / "state.pt").read_text() == "weights 9"
    assert list(make_ready(here, sealed_in(there))) == [goes_on_from("step-9")], "and again changes nothing"


def test_one_byte_that_changed_sends_it_back_to_the_checkpoint_before(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    a_checkpoint(here, 5)
    bad = a_checkpoint(there, 9)
    (bad / "state.pt").write_text("weighty 9")
    remarks = list(make_ready(here, sealed_in(there)))
    assert remarks == [
        not_used(bad, say("job.digest_differs", name="state.pt")),
        goes_on_from("step-5"),
    ]
    found = newest(here)
    assert found is not None
    assert found.step == 5


def test_a_damaged_one_here_is_put_aside_and_not_used(tmp_path: Path) -> None:
    (a_checkpoint(tmp_path, 9) / "state.pt").write_text("short")
    a_checkpoint(tmp_path, 5)
    assert list(make_ready(tmp_path)) == [
        not_used(tmp_path / "step-9", say("job.size_differs", name="state.pt", found=5, size=9)),
        goes_on_from("step-5"),
    ]
    assert (tmp_path / "damaged-step-9" / "state.pt").exists()


def test_half_written_ones_are_never_used(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here / ".saving-x", here / ".fetching-y", there / "checkpoint-7"):
        folder.mkdir(parents=True)
        (folder / "state.pt").write_text("half")
    assert list(make_ready(here, sealed_in(there))) == []
    assert list(here.iterdir()) == []


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    (a_checkpoint(tmp_path, 9) / "state.pt").unlink()
    assert list(make_ready(tmp_path)) == [
        not_used(
            tmp_path / "step-9", say("job.cannot_read", name="state.pt", error=say("language.os_enoent"))
        )
    ]


COUNTS = """
import json, time
from brimful.job import Run
run = Run()
start = json.loads((run.latest / "n.json").read_text()) if run.latest else 0
print("from", start, flush=True)
for step in range(start, 10_000):
    time.sleep(0.01)
    print("did", step, flush=True)
    run.after(step + 1, lambda folder: (folder / "n.json").write_text(json.dumps(step + 1)))
"""


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[LocalEngine, LocalEngine]]:
    east = LocalEngine(tmp_path / "east", [replace(a_node("e-0"), site="east")], site="east")
    west = LocalEngine(tmp_path / "west", [replace(a_node("w-0"), site="west")], site="west")
    yield east, west
    for engine, lease in ((east, "a.1"), (west, "a.2")):
        stop_one(engine, lease, grace_s=1)
        eventually(lambda e=engine, n=lease: _state(e, n) in ("ended", "absent"))  # type: ignore[misc]
        eventually(lambda e=engine, n=lease: not e._has_runner(n))  # type: ignore[misc]


def _seen(engine: LocalEngine, lease: str) -> Observation | None:
    return next(iter(engine.observe([lease])), None)


def _state(engine: LocalEngine, lease: str) -> str:
    seen = _seen(engine, lease)
    return "" if seen is None else seen.state


def test_a_job_that_was_stopped_goes_on_at_another_site_with_each_step_done_once(
    sites: tuple[LocalEngine, LocalEngine], tmp_path: Path
) -> None:
    east, west = sites
    job = Job(job="a", gpus=1, command=(sys.executable, "-c", COUNTS), folder=str(tmp_path))
    start_one(east, "a.1", job, node="e-0", gpus=(0,))
    eventually(lambda: b"did 20" in east.log("a.1").data)
    stop_one(east, "a.1", grace_s=600)
    eventually(lambda: _state(east, "a.1") == "ended")
    ended = _seen(east, "a.1")
    assert ended is not None
    assert (ended.exit_code, ended.problem) == (143, say("adapters.exit_code", exit_code=Plain(143)))
    assert ended.kept_work_s is not None
    notice = json.loads((tmp_path / "east" / "a.1" / "notice.json").read_text())
    assert ended.ended_s is not None
    assert ended.ended_s < notice["deadline_s"] <= ended.ended_s + 600

    start_one(west, "a.2", job, node="w-0", gpus=(0,), source=east.checkpoints("a"))
    eventually(lambda: west.log("a.2").data.count(b"did") > 20)
    first = [int(line.split()[1]) for line in _lines(east, "a.1") if line.startswith("did")]
    then = [int(line.split()[1]) for line in _lines(west, "a.2")[:-1] if line.startswith("did")]
    assert first + then == list(range(len(first) + len(then)))
    assert any("fetched from" in line for line in _lines(west, "a.2"))


def _lines(engine: LocalEngine, lease: str) -> list[str]:
    return engine.log(lease).data.decode().splitlines()


def test_a_stop_is_remembered_for_a_lease_that_never_began(
    sites: tuple[LocalEngine, LocalEngine], tmp_path: Path
) -> None:
    """A deposed leader that wakes up late may still ask for the start."""
    east, _ = sites
    stop_one(east, "a.1", grace_s=1)
    start_one(east, "a.1", Job(job="a", gpus=1, command=("true",), folder="/"), node="e-0", gpus=(0,))
    assert _state(east, "a.1") == "absent"
    assert not (tmp_path / "east" / "a.1" / "order.json").exists()


def test_two_servers_that_both_start_a_lease_start_it_once(
    sites: tuple[LocalEngine, LocalEngine], tmp_path: Path
) -> None:
    east, _ = sites
    other = LocalEngine(tmp_path / "east", east.nodes(), site="east")
    job = Job(job="a", gpus=1, command=("sh", "-c", "echo once; sleep 0.3"), folder="/")
    for engine in (east, other):
        start_one(engine, "a.1", job, node="e-0", gpus=(0,))
    eventually(lambda: _state(east, "a.1") == "ended")
    eventually(lambda: not east._has_runner("a.1") and not other._has_runner("a.1"))
    assert east.log("a.1").data == b"once\n"
    assert not (tmp_path / "east" / "a.1" / "order.json").exists(), "it may hold secrets"
