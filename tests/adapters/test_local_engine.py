"""Real processes: started once, stopped politely and then not, found again, and never mistaken."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from brimful.adapters.engines import local
from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.engines.processes import born
from brimful.adapters.files import read_json, reserve, write_json, write_reserved
from brimful.errors import WorldFailed
from brimful.fleet.events import JobHeld, JobSubmitted, LeaseEnding
from brimful.fleet.job import Job
from brimful.fleet.state import Fleet
from brimful.language import Plain, say, verbatim
from brimful.scheduler.loop import tick
from brimful.scheduler.ports import CannotStart, Observation, Ports
from brimful.scheduler.rules import Rules
from brimful.sim.world import MemoryStore
from tests.builders import a_node, code_of, eventually, refuses, start_one, stop_one


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
        start_one(self.engine, lease, job, node="node-0", gpus=(0, 3))

    def python(self, code: str, lease: str = "a.1") -> None:
        self.start([sys.executable, "-c", code], lease)

    def look(self, lease: str = "a.1") -> Observation | None:
        return next(iter(self.engine.observe([lease])), None)

    def is_state(self, state: str) -> bool:
        seen = self.look()
        return seen is not None and seen.state == state

    def text(self) -> str:
        return self.engine.log("a.1").data.decode()

    def kill_runner(self) -> None:
        eventually((self.lease / "child.json").exists)
        os.kill(self.fact("started.json")["pid"], signal.SIGKILL)
        eventually(lambda: not self.engine._has_runner("a.1"))

    @property
    def lease(self) -> Path:
        return self.folder / "leases" / "a.1"

    def fact(self, name: str) -> dict[str, int]:
        facts: dict[str, int] = json.loads((self.lease / name).read_text())
        return facts


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    leases = [each.name for each in (tmp_path / "leases").iterdir() if each.is_dir() and each.name[0] != "."]
    eventually(lambda: all(_is_over(site, lease) for lease in leases))


def _is_over(site: Site, lease: str) -> bool:
    stop_one(site.engine, lease, grace_s=1)
    seen = site.look(lease)
    reaped = not any(engine._has_runner(lease) for engine in [*site.gone, site.engine])
    return reaped and seen is not None and seen.state in ("ended", "absent")


def test_a_command_runs_prints_and_ends(site: Site) -> None:
    site.start(["sh", "-c", "echo hello $CUDA_VISIBLE_DEVICES $BRIMFUL_JOB; exit 3"])
    eventually(lambda: site.is_state("ended"))
    seen = site.look()
    assert seen is not None
    assert (seen.exit_code, seen.problem) == (3, say("adapters.exit_code", exit_code=Plain(3)))
    assert seen.started_s is not None
    assert seen.ended_s is not None
    assert seen.started_s <= seen.ended_s
    assert site.text() == "hello 0,3 a\n"
    assert (site.lease / "log").stat().st_mode & 0o777 == 0o600


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
    stop_one(site.engine, "a.1", grace_s=600)
    eventually(lambda: site.is_state("ended"))
    assert site.text() == "ready\nsaved\n"


def test_a_job_may_die_of_a_signal_that_has_no_name(site: Site) -> None:
    site.start([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 1)"])
    eventually(lambda: site.is_state("ended"))
    seen = site.look()
    assert seen is not None
    number = signal.SIGRTMIN + 1
    assert (seen.exit_code, seen.problem) == (128 + number, say("adapters.killed_by", signal="SIGRTMIN+1"))


def test_a_deaf_job_is_killed_when_its_grace_is_over_with_all_its_children(site: Site) -> None:
    # The grandchild leaves the process group, as a daemon does; it must not keep the GPU all the same.
    site.start(
        ["sh", "-c", "trap '' TERM; setsid sleep 600 & echo $! > pid; echo ready; while :; do sleep 1; done"]
    )
    eventually(lambda: "ready" in site.text())
    stop_one(site.engine, "a.1", grace_s=1)
    eventually(lambda: site.is_state("ended"))
    seen = site.look()
    assert seen is not None
    assert (seen.exit_code, seen.problem) == (137, say("adapters.killed_by", signal="SIGKILL"))
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


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_that_goes_leaves_its_runners_without_a_warning(site: Site) -> None:
    site.python("import time; time.sleep(600)")
    eventually(lambda: site.is_state("running"))
    site.engine = LocalEngine(site.folder / "leases", [a_node()])
    gc.collect()
    assert site.is_state("running")
    stop_one(site.engine, "a.1", grace_s=1)
    eventually(lambda: site.is_state("ended"))


def test_a_job_whose_runner_was_killed_still_counts_as_running_and_can_be_stopped(site: Site) -> None:
    site.start(["sleep", "600"])
    site.kill_runner()
    assert site.is_state("running")
    stop_one(site.engine, "a.1", grace_s=1)
    eventually(lambda: site.is_state("ended"))
    seen = site.look()
    assert seen is not None
    assert seen.exit_code is None
    assert seen.problem == say("adapters.vanished")


@pytest.mark.parametrize("restarted", [False, True])
def test_without_its_runner_a_job_still_gets_its_grace(site: Site, restarted: bool) -> None:
    site.python(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    eventually(lambda: "ready" in site.text())
    site.kill_runner()
    if restarted:
        site.restart()
    stop_one(site.engine, "a.1", grace_s=600)
    eventually(lambda: site.is_state("ended"))
    assert site.text() == "ready\nsaved\n"


def test_without_its_runner_a_deaf_job_is_killed_at_its_deadline_and_not_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start(["sh", "-c", "trap 'echo heard' TERM; echo ready; while :; do sleep 0.05; done"])
    eventually(lambda: "ready" in site.text())
    site.kill_runner()
    for _ in range(3):
        stop_one(site.engine, "a.1", grace_s=600)
    eventually(lambda: "heard" in site.text())
    assert site.is_state("running")
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 601)
    stop_one(site.engine, "a.1", grace_s=600)
    eventually(lambda: site.is_state("ended"))


def test_a_worker_that_outlives_runner_and_leader_still_holds_its_gpus_until_stopped(site: Site) -> None:
    # Python closes the lock in the worker; the leader, whose number names the group, is gone.
    site.python(
        "import subprocess, pathlib, time\n"
        "worker = subprocess.Popen(['sleep', '600'])\n"
        "pathlib.Path('pid').write_text(str(worker.pid))\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.02)"
    )
    eventually(lambda: (site.folder / "pid").exists() and (site.folder / "pid").read_text())
    site.kill_runner()
    (site.folder / "go").touch()
    eventually(lambda: born(site.fact("child.json")["group"]) is None)
    worker = int((site.folder / "pid").read_text())
    site.restart()
    assert site.is_state("running")
    stop_one(site.engine, "a.1", grace_s=600)
    eventually(lambda: site.is_state("ended"))
    assert born(worker) is None


def test_a_stranger_with_the_same_pid_is_left_alone(site: Site) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        site.start(["sleep", "600"])
        site.kill_runner()
        for number in ("12345", None):  # another birth, or one that nobody knows
            facts = {"group": stranger.pid, "born": number}
            (site.lease / "child.json").write_text(json.dumps(facts))
            stop_one(site.engine, "a.1", grace_s=1)
        eventually(lambda: site.is_state("ended"))
        assert stranger.poll() is None
        stranger.kill()


def test_a_lease_of_the_same_name_in_another_folder_is_left_alone(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path / "other")
    for each in (site, other):
        each.start(["sleep", "600"], folder=str(tmp_path))
        each.kill_runner()
    stop_one(site.engine, "a.1", grace_s=1)
    eventually(lambda: site.is_state("ended"))
    assert other.is_state("running")
    eventually(lambda: _is_over(other, "a.1"))


def test_a_full_disk_does_not_swallow_how_a_job_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(tmp_path / "ended.json")

    def full(*_given: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("brimful.adapters.files.write_whole", full)
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "other.json", {})
    write_reserved(tmp_path / "ended.json", {"exit_code": 0})
    assert read_json(tmp_path / "ended.json") == {"exit_code": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["ended.json"]


def test_a_start_that_met_a_full_disk_is_tried_again_later(site: Site) -> None:
    def full(*_given: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brimful.adapters.files.write_whole", full)
        with refuses(WorldFailed, "adapters.cannot_start_in", "a.1", {"code": "language.os_enospc"}):
            site.start(["true"])
    assert site.is_state("absent")
    site.start(["true"])
    eventually(lambda: site.is_state("ended"))


def test_a_start_that_never_can_be_is_certain_to_run_nothing(site: Site) -> None:
    site.lease.write_text("a file in the way")
    with refuses(CannotStart, "adapters.cannot_start_in", "a.1"):
        site.start(["true"])
    site.lease.unlink()


def test_a_start_that_failed_leaves_no_secret_behind(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_given: object, **_more: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "no such Python")

    with monkeypatch.context() as patched:
        patched.setattr(local, "Runner", gone)
        with refuses(CannotStart, "adapters.cannot_start_in", {"code": "language.os_enoent"}):
            site.start(["true"], env=(("HF_TOKEN", "hf_secret"),))
    assert not [path for path in site.lease.iterdir() if b"hf_secret" in path.read_bytes()]


def test_a_job_that_cannot_leave_notes_any_more_is_still_waited_for(site: Site) -> None:
    # A folder in the way fails as a full disk does: after the start, at the note about the child.
    (site.lease / "child.json").mkdir(parents=True)
    (site.lease / "child.json" / "x").touch()
    site.start(["sh", "-c", "sleep 0.2; exit 7"])
    eventually(lambda: site.is_state("ended"))
    seen = site.look()
    assert seen is not None
    assert seen.exit_code == 7


@pytest.mark.parametrize(
    ("in_the_way", "problem"),
    [
        ("lock", "adapters.cannot_begin_in"),
        ("log", "adapters.cannot_begin_in"),
    ],
)
def test_a_runner_that_cannot_begin_is_an_end_with_its_reason_and_not_tried_for_ever(
    site: Site, in_the_way: str, problem: str
) -> None:
    (site.lease / in_the_way).mkdir(parents=True)
    site.start(["true"])
    eventually(lambda: site.is_state("ended"))
    seen = site.look()
    assert seen is not None
    assert code_of(seen.problem) == problem
    eventually(lambda: not site.engine._has_runner("a.1"))
    site.start(["true"])
    assert not site.engine._has_runner("a.1")
    (site.lease / in_the_way).rmdir()


@pytest.mark.parametrize(("booted_ago_s", "seen_ago_s"), [(None, 100), (900, 100), (200, 200)])
def test_who_vanished_has_ended_when_it_was_last_seen_or_as_the_machine_went_down(
    site: Site, monkeypatch: pytest.MonkeyPatch, booted_ago_s: int | None, seen_ago_s: int
) -> None:
    site.start(["sleep", "600"])
    eventually(lambda: site.is_state("running") and (site.lease / "beat").exists())
    site.kill_runner()
    os.killpg(site.fact("child.json")["group"], signal.SIGKILL)
    eventually(lambda: site.is_state("ended"))
    started = site.fact("started.json")
    (site.lease / "started.json").write_text(json.dumps({**started, "at_s": started["at_s"] - 500}))
    for name, seconds in (("beat", 100), ("log", 300)):
        os.utime(site.lease / name, (started["at_s"] - seconds,) * 2)
    booted_s = None if booted_ago_s is None else int(started["at_s"]) - booted_ago_s
    monkeypatch.setattr(local, "boot_s", lambda: booted_s)
    site.restart()
    seen = site.look()
    assert seen is not None
    assert seen.ended_s == int(started["at_s"]) - seen_ago_s


@pytest.mark.parametrize("vanishes", [False, True])
def test_a_run_keeps_its_length_when_the_clock_is_set_back_after_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, vanishes: bool
) -> None:
    site.start(["sleep", "600"])
    eventually(lambda: site.is_state("running"))
    site.kill_runner()
    os.killpg(site.fact("child.json")["group"], signal.SIGKILL)
    eventually(lambda: site.is_state("ended"))
    began_s = int(site.fact("started.json")["at_s"])
    if vanishes:
        for name in ("beat", "log"):
            os.utime(site.lease / name, (began_s + 600,) * 2)
    else:
        ended = {"at_s": began_s + 600, "exit_code": 0, "problem": None, "sealed_s": 0, "told": False}
        (site.lease / "ended.json").write_text(json.dumps(ended))
    now_s = began_s - 7200
    monkeypatch.setattr("time.time", lambda: now_s)
    site.restart()
    seen = site.look()
    assert seen is not None
    assert (seen.started_s, seen.ended_s) == (now_s - 600, now_s)
    assert seen.kept_work_s == (0 if vanishes else 600)


def test_a_runner_gives_signs_of_life(site: Site) -> None:
    site.start(["sleep", "600"])
    eventually((site.lease / "child.json").exists)
    os.utime(site.lease / "beat", (1, 1))
    eventually(lambda: (site.lease / "beat").stat().st_mtime > 1)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_job_can_be_stopped_whatever_became_of_its_notes(site: Site, text: str) -> None:
    site.start(["sleep", "600"])
    eventually((site.lease / "child.json").exists)
    started = (site.lease / "started.json").read_text()
    for name in ("started.json", "child.json"):
        (site.lease / name).write_text(text)
    stop_one(site.engine, "a.1", grace_s=1)
    eventually((site.lease / "ended.json").exists)
    (site.lease / "started.json").write_text(started)
    eventually(lambda: site.is_state("ended"))
    seen = site.look()
    assert seen is not None
    assert seen.problem == say("adapters.killed_by", signal="SIGTERM")


def test_finished_runners_are_reaped_though_nobody_asks_about_their_leases(site: Site) -> None:
    site.start(["true"])
    runner = site.engine._runners["a.1"]
    eventually(lambda: site.engine.observe([]) == [] and not site.engine._runners)
    assert runner.returncode == 0


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_one_bad_file_hides_one_lease_and_not_the_site(site: Site, text: str) -> None:
    site.start(["true"])
    site.start(["true"], "b.1")
    eventually(lambda: site.is_state("ended"))
    started = (site.lease / "started.json").read_text()
    (site.lease / "started.json").write_text(text)
    eventually(lambda: [seen.lease for seen in site.engine.observe(["a.1", "b.1"])] == ["b.1"])
    assert site.engine.complaints()["a.1"].as_dict()["code"] == "adapters.cannot_look"
    (site.lease / "started.json").write_text(started)
    assert site.is_state("ended")
    assert site.engine.complaints() == {}


def test_a_lease_nobody_started_is_absent_and_stopping_it_does_nothing(site: Site) -> None:
    stop_one(site.engine, "a.1", grace_s=1)
    assert site.is_state("absent")


@pytest.mark.parametrize(
    ("command", "folder", "exit_code", "problem"),
    [
        (["no-such-command"], None, 127, "adapters.no_job_command"),
        (["true"], "/no/such/folder", 126, "adapters.no_job_folder"),
        (["/"], None, 126, "adapters.cannot_start_command"),
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
    assert code_of(seen.problem) == problem


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
    assert site.engine.log("a.1", offset=4, limit=3) == (4, b"456", 10)
    assert site.engine.log("a.1", offset=-2) == (8, b"89", 10)
    assert site.engine.log("a.1", offset=99) == (10, b"", 10)


@pytest.mark.parametrize("begins", [True, False], ids=["soon", "after it was called over"])
def test_a_lease_that_is_over_cannot_be_begun_by_a_runner_that_comes_late(
    site: Site, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    """The server dies just after it ordered a start; its runner, slow to begin, outlives it.

    Meanwhile the job was put on hold. Whoever says that the lease is over, and gives its GPUs to others or
    the job another lease, must have seen to it that the runner finds that out.
    """
    ran = site.folder / "ran"
    job = Job(job="a", gpus=1, command=("touch", str(ran)), folder=str(site.folder))
    store, fleet = MemoryStore(), Fleet()
    assert store.append([JobSubmitted(at_s=0, job=job)], after=0)

    def ports() -> Ports:
        return Ports(store=store, engines={site.engine.site: site.engine})

    late: list[list[str]] = []
    with monkeypatch.context() as patched:
        patched.setattr(local, "Runner", lambda words, **_: late.append(words))
        tick(fleet, ports(), Rules(), now_s=1)
    assert "a.1" in fleet.open_leases
    ending = LeaseEnding(at_s=1, lease="a.1", reason=verbatim("on hold"), requeue=True)
    assert store.append([JobHeld(at_s=1, job="a"), ending], after=fleet.seq)
    site.restart()
    again = ports()
    tick(fleet, again, Rules(), now_s=2)
    if not begins:
        tick(fleet, again, Rules(), now_s=3)
        assert fleet.jobs["a"].phase == "held"
    subprocess.run(late[0], check=True)
    tick(fleet, again, Rules(), now_s=4)
    assert fleet.jobs["a"].phase == "held"
    assert not ran.exists()
