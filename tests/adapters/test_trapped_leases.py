"""Jobs that share the server's user can put anything into the folder of a lease that has not started."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from brimful.adapters.code import CodeStore
from brimful.adapters.engines import local, processes
from brimful.adapters.engines.agent import NodeAgent, Part
from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.files import identity, is_trap, open_to_write, write_json, write_reserved
from brimful.errors import BrimfulError, WorldFailed
from brimful.fleet.job import Job
from brimful.scheduler.ports import CannotStart, Observation, Start
from tests.adapters.test_hostile_folders import in_time
from tests.builders import a_node, eventually, start_one, stop_one

OPENED = ("runner.err", "lock", "runner.lock", "log", "beat", "ended.json", "work")
OURS = (*OPENED, "started.json", "stop.json", "order.json", "child.json")
SLEEP = Job(job="a", gpus=1, command=("sleep", "60"), folder="/")
OURS_TOO = ("log.start", ".ended.json.reserved", "notice.json", "sample.json", "carried.json")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    made = LocalEngine(tmp_path / "leases", [a_node()])
    yield made
    for lease in ("a.1", "a.2"):
        stop_one(made, lease, grace_s=0)
        eventually(lambda lease=lease: not made._has_runner(lease))  # type: ignore[misc]


def a_folder(engine: LocalEngine, lease: str = "a.1") -> Path:
    folder = engine._folder(lease)
    folder.mkdir(mode=0o700)
    return folder


def a_touch(folder: Path, name: str = "ran") -> Job:
    code = f"open({str(folder / name)!r}, 'a').write('ran\\n')"
    return Job(job="a", gpus=1, command=(sys.executable, "-c", code), folder="/")


def started(engine: LocalEngine, job: Job, lease: str = "a.1") -> BrimfulError | None:
    def begin() -> list[BrimfulError | None]:
        try:
            start_one(engine, lease, job, node="node-0", gpus=(0,))
        except BrimfulError as error:
            return [error]
        return [None]

    found = in_time(begin)
    assert isinstance(found, list)
    failed: BrimfulError | None = found[0]
    return failed


def seen(engine: LocalEngine, lease: str = "a.1") -> Observation | None:
    return next(iter(engine.observe([lease])), None)


def end_of(engine: LocalEngine, lease: str = "a.1") -> Observation:
    found: list[Observation | None] = []
    eventually(lambda: found.append(seen(engine, lease)) or (found[-1] and found[-1].state == "ended"))  # type: ignore[func-returns-value]
    assert found[-1] is not None
    return found[-1]


@pytest.mark.parametrize(
    ("kind", "names"), [("fifo", OURS + OURS_TOO), ("dangling", OPENED), ("folder", OPENED)]
)
def test_leases_whose_folders_have_traps_run_once_or_end_with_a_reason(
    engine: LocalEngine, tmp_path: Path, kind: str, names: Sequence[str]
) -> None:
    refused: dict[str, BrimfulError] = {}
    for name in names:
        path = a_folder(engine, f"a.{name}") / name
        match kind:
            case "fifo":
                os.mkfifo(path)
            case "dangling":
                path.symlink_to(tmp_path / "made")
            case "folder":
                (path / "inner").mkdir(parents=True)
        failed = started(engine, a_touch(tmp_path, name), f"a.{name}")
        if failed is not None:
            refused[name] = failed
    for name in names:
        if name in refused:
            assert isinstance(refused[name], CannotStart)
            assert repr(name) in refused[name].problem
        else:
            found, ran = end_of(engine, f"a.{name}"), (tmp_path / name).exists()
            assert ran == (found.exit_code == 0), found
            assert ran or repr(name) in str(found.problem), found
            assert started(engine, a_touch(tmp_path, name), f"a.{name}") is None
    for name in names:
        eventually(lambda name=name: not engine._has_runner(f"a.{name}"))  # type: ignore[misc]
        assert not (tmp_path / name).exists() or (tmp_path / name).read_text() == "ran\n"
    assert not (tmp_path / "made").exists()
    assert len(refused) < len(names)


def test_a_folder_that_is_a_link_to_another_lease_starts_nothing(engine: LocalEngine, tmp_path: Path) -> None:
    start_one(engine, "a.1", SLEEP, node="node-0", gpus=(0,))
    eventually(lambda: (found := seen(engine)) is not None and found.state == "running")
    engine._folder("a.2").symlink_to(engine._folder("a.1"))
    assert isinstance(started(engine, a_touch(tmp_path), "a.2"), CannotStart)
    with pytest.raises(WorldFailed):
        stop_one(engine, "a.2", grace_s=0)
    assert (found := seen(engine)) is not None
    assert found.state == "running"
    engine._folder("a.2").unlink()


def test_marks_of_a_real_lease_are_never_discarded(engine: LocalEngine, tmp_path: Path) -> None:
    folder = a_folder(engine)
    write_json(folder / "started.json", {"at_s": 1, "speed": 1.0, "pid": 1, "checkpoints": ""})
    os.mkfifo(folder / "lock")
    assert started(engine, a_touch(tmp_path)) is None
    assert not (tmp_path / "ran").exists()
    assert (folder / "started.json").is_file()


def test_a_job_that_ruins_its_marks_while_it_runs_is_stopped_and_ends(engine: LocalEngine) -> None:
    start_one(engine, "a.1", SLEEP, node="node-0", gpus=(0,))
    eventually(lambda: (found := seen(engine)) is not None and found.state == "running")
    folder = engine._folder("a.1")
    runner = json.loads((folder / "started.json").read_text())["pid"]
    for name in ("started.json", "stop.json"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    with pytest.raises(OSError, match="plain"):
        list(engine._look("a.1"))  # alive: a complaint, not an end
    os.kill(runner, signal.SIGTERM)
    assert end_of(engine).problem is not None


@pytest.mark.parametrize("begun", [False, True])
def test_a_runner_that_never_comes_to_its_job_is_ended_after_the_grace(
    engine: LocalEngine, tmp_path: Path, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever keeps it: here, a runner that only sleeps, with SIGTERM ignored."""
    stuck = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    if begun:
        stuck += (
            "import fcntl, json, os; from pathlib import Path; folder = Path(sys.argv[1])\n"
            "held = [open(folder / name, 'w') for name in ('lock', 'runner.lock')]\n"
            "[fcntl.flock(each, fcntl.LOCK_EX) for each in held]\n"
            "(folder / 'started.json').write_text(json.dumps({'at_s': 1, 'pid': os.getpid()}))\n"
        )
    stuck += "time.sleep(86400)"
    real = local.Runner
    monkeypatch.setattr(
        local, "Runner", lambda command, **more: real([command[0], "-c", stuck, command[-1]], **more)
    )
    assert started(engine, a_touch(tmp_path)) is None
    folder = engine._folder("a.1")
    if begun:
        eventually((folder / "started.json").exists)
        restarted = LocalEngine(engine._root, [a_node()])
        first, engine = engine, restarted
    stop_one(engine, "a.1", grace_s=1)
    found: list[Observation | None] = []

    def is_over() -> bool:
        stop_one(engine, "a.1", grace_s=1)
        found.append(seen(engine))
        if begun:
            first._reap()
        return found[-1] is not None and found[-1].state == "ended"

    eventually(is_over)
    assert found[-1] is not None
    assert found[-1].cause == "stopped_by_us"
    assert not (folder / "order.json").exists(), "its environment may hold secrets"


def test_a_lease_that_cannot_be_looked_at_does_not_stop_others(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a folder that its job has closed to us; root may open any, so that is put on here."""
    real = processes.held

    def closed(path: Path) -> bool:
        if path.parent.name == "a.1":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(local, "held", closed)
    starts = [
        Start(lease, Job(job="a", gpus=1, command=("true",), folder="/"), parts=(("node-0", (0,)),))
        for lease in ("a.1", "a.2")
    ]
    assert set(engine.start(starts)) == {"a.1"}
    a_mark = engine._folder("a.1") / "started.json"
    a_mark.write_text('{"at_s": 1, "pid": 1}')
    assert set(engine.stop(["a.1", "a.2"], grace_s=1)) == {"a.1"}
    monkeypatch.setattr(local, "held", real)


def test_code_that_became_a_pipe_is_gone(tmp_path: Path) -> None:
    store = CodeStore(tmp_path)
    path = store.path("t", "0" * 64)
    path.parent.mkdir()
    os.mkfifo(path)
    assert in_time(lambda: [store.size("t", "0" * 64)]) == [None]


@pytest.mark.parametrize("name", ["part.json", "runner.err", "lock", "log"])
def test_an_agent_is_not_stopped_by_a_trap_in_a_later_lease(tmp_path: Path, name: str) -> None:
    agent = NodeAgent(str(tmp_path / "node"), a_node(), {"log_bytes": 1 << 20})
    folder = tmp_path / "node" / "node-0" / "a.1"
    folder.mkdir(parents=True)
    os.mkfifo(folder / name)
    start = Start("a.1", a_touch(tmp_path), parts=(("node-0", (0,)),))
    part = Part(start, rank=0, ranks=1, devices=(0,), master=("127.0.0.1", 1), env={})
    failed = in_time(lambda: [agent.start(part)])
    if failed != [None]:
        assert isinstance(failed[0], CannotStart)  # type: ignore[index]
        return
    found: list[Observation] = []

    def is_over() -> bool:
        found[:] = [each.observation for each in agent.observe(["a.1"])[0]]
        return bool(found) and found[0].state == "ended"

    eventually(is_over)
    assert (found[0].exit_code == 0) == (tmp_path / "ran").exists()
    eventually(lambda: not agent._engine._has_runner("a.1"))


def test_an_id_that_is_a_pipe_does_not_stop_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".id")
    assert str(tmp_path) in str(in_time(lambda: LocalEngine(tmp_path, [a_node()])))
    with pytest.raises(OSError, match="plain"):
        identity(tmp_path)


def test_what_is_in_the_way_of_the_end_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".ended.json.reserved")
    (tmp_path / "ended.json" / "x").mkdir(parents=True)
    in_time(lambda: write_reserved(tmp_path / "ended.json", {"a": 1}) or "done")  # type: ignore[func-returns-value]
    assert (tmp_path / "ended.json").read_text().strip() == '{"a": 1}'


def test_a_pipe_with_a_reader_is_not_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="plain"):
            open_to_write(tmp_path / "log")
    finally:
        os.close(reader)
    assert is_trap(tmp_path / "log")
