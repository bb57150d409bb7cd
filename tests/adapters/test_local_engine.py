"""Real processes: started once, stopped politely and then not, found again, and never mistaken."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from brimful.adapters.engines.local import LocalEngine
from brimful.fleet.job import Job
from brimful.scheduler.ports import Observation
from tests.builders import a_node, eventually


class Site:
    """A local engine in a folder of its own, and the means to look at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = LocalEngine(folder / "leases", [a_node()])
        self.gone: list[LocalEngine] = []

    def restart(self) -> None:
        """The server went away and came back; what it knew in memory is gone."""
        self.gone.append(self.engine)
        self.engine = LocalEngine(self.folder / "leases", [a_node()])

    def start(self, command: Sequence[str], lease: str = "a.1", **more: object) -> None:
        fields: dict[str, object] = {"folder": str(self.folder), **more}
        job = Job(job="a", gpus=2, command=tuple(command), **fields)  # type: ignore[arg-type]
        self.engine.start(lease, job, node="node-0", gpus=(0, 3))

    def python(self, code: str, lease: str = "a.1") -> None:
        self.start([sys.executable, "-c", code], lease)

    def look(self, lease: str = "a.1") -> Observation | None:
        return next(iter(self.engine.observe([lease])), None)

    def is_state(self, state: str) -> bool:
        seen = self.look()
        return seen is not None and seen.state == state

    def text(self) -> str:
        return self.engine.log("a.1")[1].decode()

    def fact(self, name: str) -> dict[str, int]:
        facts: dict[str, int] = json.loads((self.folder / "leases" / "a.1" / name).read_text())
        return facts


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    leases = [folder.name for folder in (tmp_path / "leases").iterdir()]
    eventually(lambda: all(_is_over(site, lease) for lease in leases))


def _is_over(site: Site, lease: str) -> bool:
    site.engine.stop(lease, grace_s=1)
    seen = site.look(lease)
    reaped = not any(engine._has_runner(lease) for engine in [*site.gone, site.engine])
    return reaped and seen is not None and seen.state in ("ended", "absent")


def test_a_command_runs_prints_and_ends(site: Site) -> None:
    site.start(["sh", "-c", "echo hello $CUDA_VISIBLE_DEVICES $BRIMFUL_JOB; exit 3"])
    eventually(lambda: site.is_state("ended"))
    seen = site.look()
    assert seen is not None
    assert (seen.exit_code, seen.problem) == (3, "exit code 3")
    assert seen.started_s is not None
    assert seen.ended_s is not None
    assert seen.started_s <= seen.ended_s
    assert site.text() == "hello 0,3 a\n"


def test_starting_twice_runs_once_even_after_a_restart(site: Site) -> None:
    for _ in range(3):
        site.start(["sh", "-c", "echo ran >> ran; sleep 0.2"])
        site.restart()
    eventually(lambda: site.is_state("ended"))
    site.start(["sh", "-c", "echo ran >> ran"])
    eventually(lambda: site.is_state("ended") and not site.engine._has_runner("a.1"))
    assert (site.folder / "ran").read_text() == "ran\n"


def test_a_polite_job_ends_by_itself_when_asked(site: Site) -> None:
    site.python(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    eventually(lambda: "ready" in site.text())
    site.engine.stop("a.1", grace_s=30)
    eventually(lambda: site.is_state("ended"))
    assert site.text() == "ready\nsaved\n"


def test_a_deaf_job_is_killed_when_its_grace_is_over_with_all_its_children(site: Site) -> None:
    # The grandchild leaves the process group, as a daemon does; it must not keep the GPU all the same.
    site.start(
        ["sh", "-c", "trap '' TERM; setsid sleep 600 & echo $! > pid; echo ready; while :; do sleep 1; done"]
    )
    eventually(lambda: "ready" in site.text())
    site.engine.stop("a.1", grace_s=1)
    eventually(lambda: site.is_state("ended"))
    seen = site.look()
    assert seen is not None
    assert (seen.exit_code, seen.problem) == (137, "killed by SIGKILL")
    with pytest.raises(ProcessLookupError):
        os.kill(int((site.folder / "pid").read_text()), 0)


def test_a_job_outlives_the_server_and_is_found_again(site: Site) -> None:
    site.start(["sh", "-c", "echo up; read line < go; echo end $line"])
    os.mkfifo(site.folder / "go")
    eventually(lambda: site.is_state("running") and "up" in site.text())
    site.restart()
    assert site.is_state("running")
    (site.folder / "go").write_text("well\n")
    eventually(lambda: site.is_state("ended"))
    assert site.text() == "up\nend well\n"


def test_a_job_whose_runner_was_killed_still_counts_as_running_and_can_be_stopped(site: Site) -> None:
    site.start(["sleep", "600"])
    eventually((site.folder / "leases" / "a.1" / "child.json").exists)
    os.kill(site.fact("started.json")["pid"], signal.SIGKILL)
    eventually(lambda: not site.engine._has_runner("a.1"))
    assert site.is_state("running")
    site.engine.stop("a.1", grace_s=1)
    eventually(lambda: site.is_state("ended"))
    seen = site.look()
    assert seen is not None
    assert seen.exit_code is None
    assert "vanished" in seen.problem


def test_a_stranger_with_the_same_pid_is_left_alone(site: Site) -> None:
    site.start(["sleep", "600"])
    child = site.folder / "leases" / "a.1" / "child.json"
    eventually(child.exists)
    os.kill(site.fact("started.json")["pid"], signal.SIGKILL)
    eventually(lambda: not site.engine._has_runner("a.1"))
    facts = json.loads(child.read_text())
    child.write_text(json.dumps({**facts, "born": "12345"}))  # another birth: not ours
    site.engine.stop("a.1", grace_s=1)
    assert site.is_state("running")
    child.write_text(json.dumps(facts))


def test_a_lease_nobody_started_is_absent_and_stopping_it_does_nothing(site: Site) -> None:
    site.engine.stop("a.1", grace_s=1)
    assert site.is_state("absent")


@pytest.mark.parametrize(
    ("command", "folder", "exit_code", "problem"),
    [
        (["no-such-command"], None, 127, "no command 'no-such-command' on the PATH"),
        (["true"], "/no/such/folder", 126, "there is no folder /no/such/folder"),
        (["/"], None, 126, "Permission denied"),
    ],
)
def test_what_cannot_start_says_why(
    site: Site, command: list[str], folder: str | None, exit_code: int, problem: str
) -> None:
    site.start(command, **({"folder": folder} if folder else {}))
    eventually(lambda: site.is_state("ended"))
    seen = site.look()
    assert seen is not None
    assert seen.exit_code == exit_code
    assert problem in seen.problem


def test_a_job_sees_only_what_it_may_of_the_servers_environment(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    site.start(["env"], env=(("WANDB_MODE", "offline"),))
    eventually(lambda: site.is_state("ended"))
    assert "WANDB_MODE=offline" in site.text()
    assert "hush" not in site.text()


def test_a_log_can_be_read_from_any_place(site: Site) -> None:
    site.start(["printf", "0123456789"])
    eventually(lambda: site.is_state("ended"))
    assert site.engine.log("a.1", offset=4, limit=3) == (4, b"456")
    assert site.engine.log("a.1", offset=-2) == (8, b"89")
    assert site.engine.log("a.1", offset=99) == (10, b"")
