"""The local engine: real processes on this machine.

Each lease has a folder and a runner process of its own (see runner.py), so jobs go on while the server is
away, and what happened meanwhile is read from the folder when it is back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from brimful.adapters.engines.runner import born
from brimful.adapters.files import read_json, write_json
from brimful.errors import WorldFailed
from brimful.fleet.events import Parts
from brimful.fleet.job import Job
from brimful.fleet.state import Node
from brimful.scheduler.ports import Observation

# What a job may know of the server's environment. Secrets of the server are not among it.
PASSED_ON = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")


class LocalEngine:
    """Runs leases as processes under `root`, on the nodes it was told of."""

    def __init__(self, root: Path, nodes: Sequence[Node], *, site: str = "local") -> None:
        self._root = root
        self._nodes = nodes
        self._site = site
        self._runners: dict[str, subprocess.Popen[bytes]] = {}
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def site(self) -> str:
        return self._site

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def start(self, lease: str, job: Job, *, node: str, gpus: Sequence[int], rest: Parts = ()) -> None:
        assert not rest, "this machine is one node"
        folder = self._folder(lease)
        if self._has_runner(lease) or (folder / "started.json").exists():
            return
        try:
            folder.mkdir(exist_ok=True, mode=0o700)
            order = {
                "command": list(job.command),
                "folder": job.folder or str(Path.home()),
                "env": _environment(job, lease=lease, node=node, gpus=gpus),
            }
            write_json(folder / "order.json", order)
            # -P: the server's working folder must not shadow our modules.
            runner = subprocess.Popen(
                [sys.executable, "-P", "-m", "brimful.adapters.engines.runner", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise WorldFailed(f"cannot start {lease} in {folder}: {error.strerror}") from error
        self._runners[lease] = runner

    def stop(self, lease: str, *, grace_s: int) -> None:
        folder = self._folder(lease)
        if not folder.exists() or (folder / "stop.json").exists():
            # Asked before. Should the runner be gone and the job not, nobody is left to end it but us.
            self._end_orphans(folder)
            return
        try:
            write_json(folder / "stop.json", {"grace_s": grace_s})
        except OSError as error:
            raise WorldFailed(f"cannot ask {lease} to stop in {folder}: {error.strerror}") from error
        started = read_json(folder / "started.json")
        if started is not None and _held(folder / "runner.lock"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(started["pid"]), signal.SIGTERM)
        else:
            self._end_orphans(folder)

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        try:
            return [seen for lease in leases for seen in self._look(lease)]
        except OSError as error:
            raise WorldFailed(f"cannot look into {self._root}: {error.strerror}") from error

    def log(self, lease: str, *, offset: int = 0, limit: int = 1 << 20) -> tuple[int, bytes]:
        """Up to `limit` bytes of what it printed and where they begin; a negative offset is from the end."""
        try:
            with (self._folder(lease) / "log").open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = file.seek(max(0, size + offset) if offset < 0 else min(offset, size))
                return start, file.read(limit)
        except FileNotFoundError:
            return 0, b""
        except OSError as error:
            raise WorldFailed(f"cannot read the log of {lease}: {error.strerror}") from error

    def _look(self, lease: str) -> Iterator[Observation]:
        folder = self._folder(lease)
        started, alive = read_json(folder / "started.json"), self._has_runner(lease)
        if started is not None and _held(folder / "lock"):
            yield Observation(lease=lease, state="running", started_s=int(started["at_s"]))
            return
        ended = read_json(folder / "ended.json")
        if ended is None and alive:
            return  # on its way
        if ended is None and started is None:
            yield Observation(lease=lease, state="absent")
            return
        facts = ended or {"problem": "it vanished without a word, as after kill -9 or a reboot"}
        yield Observation(
            lease=lease,
            state="ended",
            started_s=None if started is None else int(started["at_s"]),
            ended_s=facts.get("at_s"),
            exit_code=facts.get("exit_code"),
            problem=str(facts["problem"]),
        )

    def _has_runner(self, lease: str) -> bool:
        """Whether a runner of ours is alive; one that has ended is reaped on the way."""
        runner = self._runners.get(lease)
        if runner is None:
            return False
        if runner.poll() is None:
            return True
        del self._runners[lease]
        return False

    def _end_orphans(self, folder: Path) -> None:
        """Kill a job whose runner was killed. Its grace is over: the one who kept the time is dead."""
        child = read_json(folder / "child.json")
        if child is None or not _held(folder / "lock") or _held(folder / "runner.lock"):
            return
        if born(int(child["group"])) == child["born"]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(child["group"]), signal.SIGKILL)

    def _folder(self, lease: str) -> Path:
        assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", lease), f"{lease!r} is no name for a folder"
        return self._root / lease


def _held(path: Path) -> bool:
    """Whether a living process holds the lock."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False


def _environment(job: Job, *, lease: str, node: str, gpus: Sequence[int]) -> Mapping[str, str]:
    wanted = dict(job.env)
    path = wanted.pop("PATH", os.environ.get("PATH", os.defpath))
    return {
        **{key: os.environ[key] for key in PASSED_ON if key in os.environ},
        # Last on the path is the Python that runs brimful: `python` is found even where Debian has none.
        "PATH": f"{path}{os.pathsep}{Path(sys.executable).parent}",
        "PYTHONUNBUFFERED": "1",  # or the log would lag minutes behind the job
        **wanted,
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        "BRIMFUL_JOB": job.job,
        "BRIMFUL_LEASE": lease,
        "BRIMFUL_NODE": node,
    }
