"""Jobs as users of their own: what a job and brimful tell each other still arrives, and nothing is run twice.

What such a job cannot do: test_attacks.py. Whom it runs as: test_users.py.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.chaos import python_for_all
from brimful import job as job_module
from brimful.adapters.code import CodeStore
from brimful.adapters.engines import runner
from brimful.adapters.engines.job_users import users as users_module
from brimful.adapters.engines.job_users.isolation import is_isolated
from brimful.adapters.engines.job_users.users import JobUsers, find_users
from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.engines.processes import held
from brimful.adapters.files import read_json
from brimful.client.pack import packed
from brimful.fleet.events import Parts
from brimful.fleet.job import Job
from brimful.job import FENCE
from brimful.scheduler.ports import Observation, Start
from tests.builders import a_node, code_of, eventually

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="needs root on Linux: jobs run as other users"
)

SAVES = """
run = Run()
print("goes on from", run.latest and (run.latest / "state").read_text())
with run.saving(7) as folder:
    (folder / "state").write_text("seven")
"""
WAITS = """
import sys
run = Run()
print("ready", flush=True)
while not run.told:
    time.sleep(0.01)
while run.deadline_s is None:
    time.sleep(0.01)
print("told of", int(run.deadline_s), flush=True)
sys.exit(5)
"""
FOREVER = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(600)"


class Shop:
    """An engine whose two tenants, red and blue, each have a user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uid = 1_100_000_000 + 2 * os.getpid()
        self.python = python_for_all()
        self.users, self.code = self.make_users(), CodeStore(folder / "code")
        self.engines = [self.make_engine()]
        self.leases: list[str] = []

    def make_users(self, processes_per_gpu: int = 4096) -> JobUsers:
        named = find_users({"red": str(self.uid), "blue": str(self.uid + 1)})
        return JobUsers(
            self.folder,
            named,
            memory_mib_per_gpu=128,
            processes_per_gpu=processes_per_gpu,
            hidden=(self.folder,),
        )

    def make_engine(self, site: str = "leases") -> LocalEngine:
        nodes = [a_node(), a_node("node-1")]
        return LocalEngine(self.folder / site, nodes, runs_as=self.users, code=self.code)

    @property
    def engine(self) -> LocalEngine:
        return self.engines[-1]

    def restart(self) -> None:
        self.engines.append(self.make_engine())

    def start(
        self,
        command: Sequence[str],
        lease: str = "a.1",
        parts: Parts = (("node-0", (0,)),),
        source: str = "",
        **more: object,
    ) -> None:
        fields: dict[str, object] = {"folder": "/", "tenant": "red", **more}
        job = Job(job=lease.partition(".")[0], gpus=1, command=tuple(command), **fields)  # type: ignore[arg-type]
        self.leases.append(lease)
        failed = self.engine.start([Start(lease=lease, job=job, parts=parts, checkpoints_from=source)])
        assert not failed

    def run(self, code: str, lease: str = "a.1", **more: object) -> None:
        """Python, with everything of `brimful.job` at hand: the job's user need not have it installed."""
        source = Path(job_module.__file__).read_text() + code
        self.start([self.python, "-c", source], lease, **more)  # type: ignore[arg-type]

    def look(self, lease: str = "a.1") -> Observation | None:
        return next(iter(self.engine.observe([lease])), None)

    def is_state(self, state: str, lease: str = "a.1") -> bool:
        seen = self.look(lease)
        return seen is not None and seen.state == state

    def ended(self, lease: str = "a.1") -> Observation:
        eventually(lambda: self.is_state("ended", lease))
        seen = self.look(lease)
        assert seen is not None
        return seen

    def text(self, lease: str = "a.1") -> str:
        return self.engine.log(lease).data.decode()

    def ready(self, lease: str = "a.1") -> None:
        eventually(lambda: "ready" in self.text(lease))

    def fact(self, name: str, lease: str = "a.1") -> dict[str, int]:
        found = read_json(self.engine._folder(lease) / name)
        assert found is not None
        return found

    @contextmanager
    def long_preparation(self, job: str = "a") -> Iterator[None]:
        """Whoever prepares it waits for an orphan to leave its checkpoints."""
        folder = Path(self.engine.checkpoints(job))
        folder.mkdir(parents=True)
        with (folder / FENCE).open("w") as fence:
            fcntl.flock(fence, fcntl.LOCK_SH)
            os.chown(folder / FENCE, self.uid, self.uid)
            yield

    def kill_runner(self, lease: str = "a.1") -> None:
        os.kill(self.fact("started.json", lease)["pid"], signal.SIGKILL)
        eventually(lambda: not held(self.engine._folder(lease) / "runner.lock"))

    def is_over(self, lease: str) -> bool:
        self.engine.stop([lease], grace_s=1)
        over = self.look(lease)
        reaped = not any(engine._has_runner(lease) for engine in self.engines)
        return reaped and over is not None and over.state in ("ended", "absent")

    def living(self) -> set[int]:
        """Of those two users, who has a process."""
        found = set()
        for entry in Path("/proc").iterdir():
            try:
                found.add(entry.stat().st_uid if entry.name.isdigit() else -1)
            except OSError:
                continue
        return found & {self.uid, self.uid + 1}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    eventually(lambda: all(shop.is_over(lease) for lease in shop.leases))
    assert not shop.living()


def test_a_job_saves_as_its_user_and_goes_on_from_there(shop: Shop) -> None:
    shop.run(SAVES)
    assert shop.ended().exit_code == 0
    assert "goes on from None" in shop.text()
    state = Path(shop.engine.checkpoints("a")) / "step-000000007" / "state"
    assert state.stat().st_uid == shop.uid
    shop.run(SAVES, "a.2")
    assert shop.ended("a.2").exit_code == 0
    assert "brimful: resumes from step-000000007\n" in shop.text("a.2")
    assert "goes on from seven" in shop.text("a.2")


def test_a_job_goes_on_from_another_sites_checkpoint(shop: Shop) -> None:
    shop.run(SAVES)
    shop.ended()
    source = shop.engine.checkpoints("a")
    shop.engines.append(shop.make_engine("elsewhere"))
    shop.run(SAVES, "a.2", source=source)
    assert shop.ended("a.2").exit_code == 0
    assert "goes on from seven" in shop.text("a.2")


def test_a_job_is_told_to_leave_and_until_when(shop: Shop) -> None:
    shop.run(WAITS)
    shop.ready()
    shop.engine.stop(["a.1"], grace_s=300)
    seen = shop.ended()
    assert seen.exit_code == 5
    assert f"told of {shop.fact('stop.json')['deadline_s']}" in shop.text()


def test_a_job_is_warned_and_the_warning_taken_back(shop: Shop) -> None:
    shop.run(
        "\nrun = Run()\nprint('ready', flush=True)\n"
        "while not run.warned: time.sleep(0.01)\nprint('warned', run.deadline_s, flush=True)\n"
        "while run.warned: time.sleep(0.01)\n"
    )
    shop.ready()
    until_s = int(time.time()) + 1000
    shop.engine.warn("a.1", until_s=until_s)
    eventually(lambda: f"warned {until_s}" in shop.text())
    shop.engine.warn("a.1", until_s=None)
    assert shop.ended().exit_code == 0


def test_a_job_that_does_not_hear_is_killed_with_all_it_started(shop: Shop) -> None:
    shop.start(["sh", "-c", "trap '' TERM; setsid sleep 1000 & echo ready; while :; do sleep 1; done"])
    shop.ready()
    shop.engine.stop(["a.1"], grace_s=1)
    assert code_of(shop.ended().problem) == "adapters.killed_by"
    assert not shop.living()


def test_what_its_meter_measured_is_read_and_nobody_elses(shop: Shop) -> None:
    shop.run("\nPath(os.environ['BRIMFUL_SAMPLES']).write_text('{}')\n")
    shop.ended()
    assert shop.engine.sample("a.1") == b"{}"


@pytest.mark.parametrize(
    ("path", "confined", "said"),
    [
        ("/usr/bin:/tmp/clone/.venv/bin", {"uid": 1}, "adapters.no_job_command_private"),
        ("/usr/bin", {"uid": 1}, "adapters.no_job_command"),
        ("/tmp/clone/.venv/bin", None, "adapters.no_job_command"),
    ],
)
def test_a_program_in_a_folder_that_the_job_does_not_see_is_missed_with_the_reason(
    path: str, confined: dict[str, int] | None, said: str
) -> None:
    order = {"folder": "/", "command": ["nothing-of-this-name"], "env": {"PATH": path}, "isolation": confined}
    _, problem = runner._not_started(order, FileNotFoundError())
    assert code_of(problem) == said


def test_a_program_that_links_to_where_the_user_may_not_go_is_named(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(tmp_path / "nowhere")
    order = {"folder": "/", "command": ["python"], "env": {"PATH": str(tmp_path)}, "isolation": {"uid": 1}}
    _, problem = runner._not_started(order, PermissionError())
    assert problem.as_dict() == {"code": "adapters.job_command_closed", "path": str(tmp_path / "python")}


def test_an_end_is_told_as_it_was(shop: Shop) -> None:
    ends = {
        "a.1": (["sh", "-c", "exit 255"], 255, "adapters.exit_code"),
        "b.1": (["sh", "-c", "kill -KILL $$"], 137, "adapters.killed_by"),
        "c.1": (["there-is-no-such-command"], 127, "adapters.no_job_command"),
        "d.1": (["/etc/passwd"], 126, "adapters.cannot_start_command"),
    }
    for lease, (command, _, _) in ends.items():
        shop.start(command, lease, env=(("PATH", "/usr/bin:/bin"),))  # none of them private, wherever we are
    for lease, (_, code, said) in ends.items():
        seen = shop.ended(lease)
        assert (seen.exit_code, code_of(seen.problem)) == (code, said)


def test_a_folder_that_its_user_may_not_enter_is_none_to_run_in(shop: Shop) -> None:
    closed = shop.folder / "closed"
    closed.mkdir(mode=0o700)
    shop.start(["true"], folder="/root" if Path("/root").stat().st_mode & 0o077 == 0 else str(closed))
    assert shop.ended().exit_code == 126


def test_it_sees_its_own_user_and_home(shop: Shop) -> None:
    shop.start(["sh", "-c", "echo $USER $HOME $TMPDIR; id -u; pwd; echo again >> /dev/stdout"], folder="")
    assert shop.ended().exit_code == 0
    assert shop.text() == f"{shop.uid} /tmp /tmp\n{shop.uid}\n/tmp\nagain\n"


def test_packed_code_runs_as_its_user_who_may_write_there(shop: Shop) -> None:
    project = shop.folder / "project"
    (project / "deep").mkdir(parents=True)
    (project / "deep" / "main.sh").write_text("pwd; ls -l deep | tail -1; echo more > deep/result")
    with packed(project) as pack, shop.code.receiving("red", pack.code) as kept:
        kept.write(pack.file.read())
    shop.start(["sh", "deep/main.sh"], folder=str(project), code=pack.code)
    assert shop.ended().exit_code == 0
    where, listed = shop.text().splitlines()
    assert where == "/run/brimful/work"
    assert listed.split()[2] == str(shop.uid)


def test_a_lease_is_run_once_however_often_it_is_started(shop: Shop) -> None:
    for _ in range(3):
        shop.start(["sh", "-c", "echo ran >> $BRIMFUL_CHECKPOINT_DIR/ran"])
        shop.restart()
    shop.ended()
    shop.start(["sh", "-c", "echo ran >> $BRIMFUL_CHECKPOINT_DIR/ran"])
    eventually(lambda: not any(engine._has_runner("a.1") for engine in shop.engines))
    assert (Path(shop.engine.checkpoints("a")) / "ran").read_text() == "ran\n"


def test_a_job_outlives_its_runner_and_is_found_and_stopped(shop: Shop) -> None:
    shop.run(WAITS)
    shop.ready()
    shop.kill_runner()
    shop.restart()
    assert shop.is_state("running")
    shop.start(["sh", "-c", "echo twice"])
    shop.engine.stop(["a.1"], grace_s=300)
    eventually(lambda: shop.is_state("ended"))
    assert "told of" in shop.text()
    assert "twice" not in shop.text()
    assert not shop.living()


def test_a_runner_that_dies_before_it_wrote_down_the_job_starts_nothing(shop: Shop) -> None:
    """Its init waits for the word that it is written down, and takes silence for the end."""
    with shop.long_preparation():
        shop.start(["sh", "-c", "echo ran"])
        eventually((shop.engine._folder("a.1") / "started.json").exists)
        shop.kill_runner()
    shop.restart()
    assert code_of(shop.ended().problem) == "adapters.vanished"
    assert "ran" not in shop.text()


def test_a_job_that_is_stopped_while_it_is_prepared_never_begins(shop: Shop) -> None:
    with shop.long_preparation():
        shop.start(["sh", "-c", "echo ran"])
        eventually((shop.engine._folder("a.1") / "started.json").exists)
        shop.engine.stop(["a.1"], grace_s=300)
        assert code_of(shop.ended().problem) == "adapters.stopped_before_begun"
    assert "ran" not in shop.text()


def test_another_tenants_process_that_carries_its_mark_does_not_keep_a_lease_alive(shop: Shop) -> None:
    shop.start([shop.python, "-c", FOREVER])
    shop.ready()
    forged = {"BRIMFUL_LEASE": "a.1", "BRIMFUL_ENGINE": shop.engine.identity}
    words = [f"{key}={value}" for key, value in forged.items()]
    shop.start(["env", *words, shop.python, "-c", FOREVER], "b.1", tenant="blue")
    shop.ready("b.1")
    shop.kill_runner()
    os.kill(shop.fact("child.json")["group"], signal.SIGKILL)
    assert code_of(shop.ended().problem) == "adapters.vanished"
    assert shop.is_state("running", "b.1")
    assert "a.1" not in shop.engine.living()
    gone, there = (shop.users._groups(shop.engine.identity, lease) for lease in ("a.1", "b.1"))
    assert not any(group.exists() for group in gone)
    assert all(group.exists() for group in there)


def test_a_gang_is_isolated_as_one_and_ends_whole(shop: Shop) -> None:
    code = """
print("rank", os.environ["BRIMFUL_RANK"], flush=True)
meeting = Path("/dev/shm/meeting")
if os.environ["BRIMFUL_RANK"] == "0":
    meeting.touch()
    time.sleep(600)
while not meeting.exists():
    time.sleep(0.01)
raise SystemExit(4)
"""
    shop.run(code, parts=(("node-0", (0,)), ("node-1", (0,))))
    seen = shop.ended()
    assert (seen.exit_code, seen.exit_codes) == (4, (143, 4))
    assert code_of(seen.problem) == "adapters.rank_failed"
    assert shop.engine.log("a.1", rank=1).data == b"rank 1\n"


def test_a_fork_bomb_ends_at_its_limit(shop: Shop) -> None:
    shop.users = shop.make_users(processes_per_gpu=20)
    shop.restart()
    code = "\nimport time\nn = 1\ntry:\n    while os.fork(): n += 1\n    time.sleep(600)\n"
    shop.run(code + "except BlockingIOError:\n    print('stood at', n, flush=True)\n")
    assert shop.ended().exit_code == 0
    assert "stood at 20\n" in shop.text()


def test_of_device_files_it_has_those_of_its_gpus(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "device_files", lambda _devices: ["/dev/kmsg"])
    shop.start(["sh", "-c", "test -c /dev/kmsg && ls /dev"])
    assert shop.ended().exit_code == 0
    plain = ["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty"]
    assert shop.text().split() == sorted([*plain, "kmsg", "urandom", "zero"])


def test_a_job_of_a_shared_user_is_as_it_was(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path / "leases", [a_node()], runs_as=JobUsers(tmp_path, {}))
    job = Job(job="a", gpus=1, command=("id", "-u"), folder="/")
    engine.start([Start(lease="a.1", job=job, parts=(("node-0", (0,)),))])
    eventually(lambda: [each.state for each in engine.observe(["a.1"])] == ["ended"])
    assert engine.log("a.1").data == b"0\n"
    assert not is_isolated(tmp_path / "leases" / "a.1")
    eventually(lambda: not engine._has_runner("a.1"))
