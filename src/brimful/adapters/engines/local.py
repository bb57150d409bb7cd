"""The local engine: real processes on this machine.

Each lease has a folder and a runner process of its own (see runner.py), so jobs go on while the server is
away, and what happened meanwhile is read from the folder when it is back.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from brimful.adapters.capabilities import LogPiece
from brimful.adapters.code import CodeStore
from brimful.adapters.engines import logs, samples
from brimful.adapters.engines.isolation import NOTICE_MODE, OWN, is_isolated, notice_file
from brimful.adapters.engines.processes import (
    boot_s,
    born,
    carries,
    held,
    leases_living,
    marked,
    signal_marked,
)
from brimful.adapters.engines.runner import WORK
from brimful.adapters.engines.users import JobUser, JobUsers
from brimful.adapters.files import NOTE_BYTES, identity, read_json, reserve, write_json
from brimful.errors import BrimfulError, Refused, Said, WorldFailed
from brimful.fleet.arrays import task_env
from brimful.fleet.events import Cause
from brimful.fleet.job import Job
from brimful.fleet.state import Node
from brimful.job import newest, read_plain
from brimful.language import Plain, Sentence, os_words, say, verbatim
from brimful.language.record import as_record, said_by_anybody
from brimful.meter.samples import GpuSample
from brimful.scheduler.ports import CannotStart, Failures, Observation, Start

log = logging.getLogger("brimful")

T = TypeVar("T")

SHOWN_CHARS = 300
MOST_EXIT_CODE = 1 << 16
MOST_RANKS = 4096
MOST_SPEED = 1e6  # of a GPU beside the slowest; more is not believed
# Troubles of the machine, not of the lease: they pass, or somebody mends them.
PASSING = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "EIO", "EMFILE", "ENFILE", "ENOMEM", "EAGAIN")
)

# What a job may know of the server's environment. Secrets of the server are not among it.
LOG_BYTES = 64 << 20  # of each lease: about so much of what it printed last is kept

PASSED_ON = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")


class LocalEngine:
    """Runs leases as processes under `root`, on the nodes it was told of."""

    def __init__(
        self,
        root: Path,
        nodes: Sequence[Node],
        *,
        site: str = "local",
        devices: Mapping[str, Sequence[str]] | None = None,
        problems: Mapping[str, Said] | None = None,
        users: Callable[[], Mapping[str, Collection[int]]] = dict,
        log_bytes: int = LOG_BYTES,
        code: CodeStore | None = None,
        look: Callable[[float], Sequence[GpuSample]] | None = None,
        runs_as: JobUsers | None = None,
    ) -> None:
        """`devices`: by node, which of the driver's GPUs stands behind each of ours; `problems`: theirs.

        `users`: by such a GPU, the processes that use it now, as far as the driver tells.
        `runs_as`: whom jobs run as; None: all as the user who runs this, whosever they are.
        """
        self._runs_as = runs_as
        self._users = users
        self._devices = devices or {}
        self._problems = problems or {}
        self._log_bytes = log_bytes
        self._code = code  # where packed code is
        self._look_at_gpus = look  # asks the driver; None: there is none
        self._root = root
        self._nodes = nodes
        self.site = site
        self._runners: dict[str, subprocess.Popen[bytes]] = {}
        self._not_begun: dict[str, Sentence] = {}  # leases whose runner failed before it began, and why
        self._asked: set[str] = set()  # leases without a runner that we have asked to end ourselves
        self._complaints: dict[str, Said] = {}
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.identity = identity(root)
        except OSError as error:
            raise WorldFailed(
                say("adapters.folder_unusable", root=root, error=os_words(error)), code="folder_unusable"
            ) from error

    def nodes(self) -> Sequence[Node]:
        used = self._users()
        pids = {pid for those in used.values() for pid in those}
        ours = {pid for pid in pids if carries(pid, {"BRIMFUL_ENGINE": self.identity})} if pids else set()
        foreign = {device for device, those in used.items() if not ours.issuperset(those)}
        taken = {
            node.node: tuple(i for i, name in enumerate(self._devices.get(node.node, ())) if name in foreign)
            for node in self._nodes
        }
        if any(taken[node.node] != node.taken for node in self._nodes):
            self._nodes = [replace(node, taken=taken[node.node]) for node in self._nodes]
        return self._nodes

    def start(self, starts: Sequence[Start]) -> Failures:
        return _each(self._start, {each.lease: each for each in starts})

    def _start(self, start: Start) -> None:
        lease = start.lease
        folder = self._folder(lease)
        begun = any((folder / name).exists() for name in ("started.json", "ended.json", "stop.json"))
        if begun or self._has_runner(lease) or lease in self._not_begun:
            return
        try:
            folder.mkdir(exist_ok=True, mode=0o700)
            reserve(folder / "ended.json")
            write_json(folder / "order.json", self._order(start))
            with (folder / "runner.err").open("ab") as complaints:
                # -P: the server's working folder must not shadow our modules.
                runner = subprocess.Popen(
                    [sys.executable, "-P", "-m", "brimful.adapters.engines.runner", str(folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=complaints,
                    start_new_session=True,
                )
        except OSError as error:
            with contextlib.suppress(OSError):
                (folder / "order.json").unlink()  # its environment may hold secrets, and nobody reads it now
            # Nothing runs. A full disk passes, and the next tick asks again; a file in the way does not.
            kind = WorldFailed if error.errno in PASSING else CannotStart
            raise kind(
                say("adapters.cannot_start_in", lease=lease, folder=folder, error=os_words(error))
            ) from error
        self._runners[lease] = runner

    def _code_of(self, job: Job) -> dict[str, str] | None:
        """The archive that its runner unpacks."""
        if not job.code:
            return None
        if self._code is None or self._code.size(job.tenant, job.code) is None:
            raise CannotStart(say("adapters.code_gone", hash=job.code[:12]))
        return {"archive": str(self._code.path(job.tenant, job.code)), "code": job.code}

    def _order(self, start: Start) -> dict[str, object]:
        """What the runner is told."""
        lease, job, parts = start.lease, start.job, start.parts
        user = self._user_of(job)
        folder, checkpoints = self._folder(lease), self.checkpoints(job.job)
        speed = next((job.rate(each.gpu) for each in self._nodes if each.node == parts[0][0]), 1.0)
        order: dict[str, object] = {
            "lease": lease,
            "command": list(job.command),
            "folder": str(folder / WORK) if job.code else job.folder or _home(user),
            "code": self._code_of(job),
            "env": {
                **_environment(self._kept_env(job), job, user),
                **self._mark(lease),
                "BRIMFUL_NOTICE": str(folder / "notice.json"),
                "BRIMFUL_SAMPLES": str(folder / samples.NAME),
                "BRIMFUL_CHECKPOINT_DIR": checkpoints,
                "BRIMFUL_SUBMIT_DIR": job.folder,
                **_master(len(parts)),
            },
            "ranks": [
                {"BRIMFUL_NODE": node, **self._visible(node, gpus), **_rank(rank, len(parts))}
                for rank, (node, gpus) in enumerate(parts)
            ],
            "checkpoints": checkpoints,
            "checkpoints_from": start.checkpoints_from or None,
            "kept_until_s": start.kept_until_s,
            "log_bytes": self._log_bytes,
            "speed": speed * (job.spread_rate if len(parts) > 1 else 1.0),
        }
        if self._runs_as is None or user is None:
            return order
        return self._runs_as.confine(order, user, folder=folder, gpus=job.gpus)

    def admit(self, tenant: str) -> None:
        if self._runs_as is not None:
            self._runs_as.admit(tenant)

    def _user_of(self, job: Job) -> JobUser | None:
        try:
            self.admit(job.tenant)
        except Refused as error:
            raise CannotStart(error.said) from error
        return None if self._runs_as is None else self._runs_as.user_of(job.tenant)

    def checkpoints(self, job: str) -> str:
        """One folder for all leases of the job at this site."""
        return str(self._folder(job).parent / ".checkpoints" / job)

    def _visible(self, node: str, gpus: Sequence[int]) -> dict[str, str]:
        known = self._devices.get(node)
        if known is None:
            return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
        # CUDA's own order is fastest first; the driver's indices are those of the bus.
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(known[i] for i in gpus),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }

    def busy_frac(self, node: str, gpus: Sequence[int]) -> float | None:
        devices = self._devices.get(node)
        if devices is None or self._look_at_gpus is None:
            return None
        mine = {devices[i] for i in gpus}
        try:
            seen = self._look_at_gpus(time.time())
        except BrimfulError:
            return None  # it is said where its cards are shown
        found = [x.busy_frac for x in seen if (str(x.index) if x.mig is None else x.uuid) in mine]
        known = [busy for busy in found if busy is not None]
        return max(known) if known and len(known) == len(mine) else None

    def keep_env(self, job: str, env: Mapping[str, str]) -> None:
        with _failing("adapters.cannot_keep_environment", job=job):
            self._env_file(job).parent.mkdir(exist_ok=True, mode=0o700)
            write_json(self._env_file(job), dict(env))

    def forget_env(self, job: str) -> None:
        with contextlib.suppress(OSError):
            self._env_file(job).unlink()

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        return _each(lambda lease: self._stop(lease, grace_s=grace_s), {lease: lease for lease in leases})

    def _stop(self, lease: str, *, grace_s: int) -> None:
        folder = self._folder(lease)
        stop = _facts(folder / "stop.json")
        if not stop or not isinstance(stop.get("deadline_s"), int):
            stop = {"grace_s": grace_s, "deadline_s": int(time.time()) + grace_s}
            with _failing("adapters.cannot_ask_stop", lease=lease, folder=folder):
                # Also where nothing has begun: whoever is asked to start it later, and too late, finds this.
                folder.mkdir(exist_ok=True, mode=0o700)
                write_json(folder / "stop.json", stop)
            runner = (_facts(folder / "started.json") or {}).get("pid")
            if isinstance(runner, int) and held(folder / "runner.lock"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(runner, signal.SIGTERM)
                return
        self._end_orphans(lease, deadline_s=stop["deadline_s"])

    def warn(self, lease: str, *, until_s: int | None) -> None:
        """The file `BRIMFUL_NOTICE` comes and goes. When it is told to stop, its runner says so there."""
        folder = self._folder(lease)
        path = notice_file(folder)
        before = _facts(path)
        notice = None if until_s is None else {"deadline_s": until_s, "may_stay": True}
        if before == notice or (folder / "stop.json").exists() or not folder.exists():
            return
        with _failing("adapters.cannot_give_notice", lease=lease, folder=folder):
            if notice is None:
                path.unlink(missing_ok=True)
            else:
                write_json(path, notice, mode=NOTICE_MODE)

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        """News of each. What cannot be read of one lease is a complaint, and keeps nobody from the others."""
        self._reap()
        found: dict[str, Said] = {}
        seen: list[Observation] = []
        for lease in leases:
            try:
                seen += self._look(lease)
            except (BrimfulError, OSError, KeyError, TypeError, ValueError, OverflowError) as error:
                why = error.said if isinstance(error, BrimfulError) else verbatim(str(error))
                found[lease] = say("adapters.cannot_look", lease=lease, why=why)
                if self._complaints.get(lease) != found[lease]:
                    log.warning("%s", found[lease])
        self._complaints = found
        return seen

    def living(self) -> list[str]:
        """Leases of which any process lives, whoever asked for it."""
        found = {name for name, uid in leases_living(self.identity) if uid in self._uids(name)}
        return sorted(found)

    def _uids(self, lease: str) -> set[int]:
        """Whose a process of the lease is; root's where it does not let itself be looked at."""
        folder = self._root / Path(lease).name
        try:
            return {0, (folder / OWN if is_isolated(folder) else folder).stat().st_uid}
        except OSError:
            return set()

    def complaints(self) -> Mapping[str, Said]:
        return {**self._problems, **self._complaints}

    def log(self, lease: str, *, rank: int = 0, offset: int = 0, limit: int = 1 << 20) -> LogPiece:
        with _failing("adapters.cannot_read_log", lease=lease):
            return logs.read(self._folder(lease) / logs.name_of(rank), offset=offset, limit=limit)

    def sample(self, lease: str) -> bytes | None:
        return samples.read_sample(self._folder(lease))

    def _look(self, lease: str) -> Iterator[Observation]:
        folder = self._folder(lease)
        alive = self._has_runner(lease)
        started = read_json(folder / "started.json", most_bytes=NOTE_BYTES)
        if started is not None and held(folder / "lock"):
            prepares = not (folder / "child.json").exists() and (folder / "order.json").exists()
            yield _prepares(lease) if prepares else self._alive(lease, started)
            return
        ended = read_json(folder / "ended.json", most_bytes=NOTE_BYTES)
        if ended is None and alive:
            return  # on its way
        if ended is None and started is None and lease not in self._not_begun:
            if not held(folder / "lock"):  # else a runner that another server started is about to begin
                yield Observation(lease=lease, state="absent")
            return
        if ended is None and started is not None and self._lives_on(lease):
            yield self._alive(lease, started)
            return
        if ended is None:
            if self._runs_as is not None:
                self._runs_as.clear(self.identity, lease)
            problem = self._not_begun.get(lease) or say("adapters.vanished")
            ended = {
                "problem": as_record(problem),
                "at_s": None if started is None else _last_seen_s(folder, started),
            }
        began_s, code = None if started is None else _second(started["at_s"]), ended.get("exit_code")
        ended_s = None if ended.get("at_s") is None else max(began_s or 0, _second(ended["at_s"]))
        yield Observation(
            lease=lease,
            state="ended",
            started_s=began_s,
            ended_s=ended_s,
            exit_code=_exit_code(code),
            problem=said_by_anybody(ended["problem"]),
            kept_work_s=None if started is None else self._kept_work_s(folder, started, ended, ended_s),
            cause=self._cause(folder, code, began_s=began_s),
            exit_codes=tuple(map(_exit_code, _listed(ended.get("exit_codes")))),
            resumes_s=None if started is None else self._resumes_s(folder),
        )

    def _cause(self, folder: Path, code: object, *, began_s: int | None) -> Cause:
        """Whose doing its end was. An order to stop counts also where it is a link that leads nowhere."""
        if os.path.lexists(folder / "stop.json"):
            return "stopped_by_us"
        if code is None and began_s is not None and began_s < (boot_s() or 0):
            return "node_lost"
        return "finished" if code == 0 else "failed"

    def _resumes_s(self, folder: Path) -> int | None:
        found = (_facts(folder / "child.json") or {}).get("resumes_s")
        return _second(found) if isinstance(found, int) else None

    def _kept_work_s(
        self, folder: Path, started: Mapping[str, Any], ended: Mapping[str, Any], ended_s: int | None
    ) -> float | None:
        """Work of this lease that a later one need not do again: up to its last whole checkpoint.

        All of it only where the job ended well by itself: one that was told to stop may have kept nothing.
        """
        speed, began_s = started.get("speed"), _second(started["at_s"])
        if not isinstance(speed, int | float) or not 0 <= speed <= MOST_SPEED:
            return None
        ran_s = max(0, (began_s if ended_s is None else ended_s) - began_s)
        # Also where the order to stop is a link that leads nowhere.
        if ended.get("exit_code") == 0 and not os.path.lexists(folder / "stop.json"):
            return speed * ran_s
        sealed_s = ended.get("sealed_s")  # its runner looked; else we do, at seals that are parsed quickly
        if not isinstance(sealed_s, int):
            last = newest(Path(str(started.get("checkpoints", ""))), most_bytes=NOTE_BYTES)
            sealed_s = 0 if last is None else last.at_s
        return speed * min(ran_s, max(0, sealed_s - began_s))

    def _alive(self, lease: str, started: Mapping[str, Any]) -> Observation:
        folder = self._folder(lease)
        if not held(folder / "runner.lock"):
            with contextlib.suppress(OSError):
                # Its runner cannot any more: we have seen it live.
                os.utime(folder / "beat", follow_symlinks=False)
        return Observation(
            lease=lease,
            state="running",
            started_s=_second(started["at_s"]),
            resumes_s=self._resumes_s(folder),
        )

    def _lives_on(self, lease: str) -> bool:
        """Whether anything of a job without a runner lives, though nothing of it holds the lock.

        The lock is a file descriptor that programs close when they start others (Python does by default).
        """
        if self._group(lease) is not None:
            return True
        # Another tenant's job may carry the same mark, and would keep this lease from ending. The first
        # process of an isolated one is root's, and the last of it to end.
        return not is_isolated(self._folder(lease)) and any(marked(self._mark(lease)))

    def _group(self, lease: str) -> int | None:
        """The job's process group while its first process lives; never one that merely has its number."""
        child = _facts(self._folder(lease) / "child.json") or {}
        group, birth = child.get("group"), child.get("born")
        if not isinstance(group, int) or birth is None or born(group) != birth:
            return None
        return group

    def _reap(self) -> None:
        """Hear of every runner that has ended, also of leases nobody asks about any more."""
        for lease in list(self._runners):
            self._has_runner(lease)

    def _has_runner(self, lease: str) -> bool:
        """Whether a runner of ours is alive; one that has ended is reaped on the way."""
        runner = self._runners.get(lease)
        if runner is None:
            return False
        code = runner.poll()
        if code is None:
            return True
        del self._runners[lease]
        folder = self._folder(lease)
        if code != 0 and not any((folder / name).exists() for name in ("started.json", "ended.json")):
            words = _last_words(folder, code)
            self._not_begun[lease] = say("adapters.runner_not_begun", words=words)
        return False

    def _end_orphans(self, lease: str, *, deadline_s: float) -> None:
        """End a job whose runner was killed: a signal, the grace it was promised, then the last signal."""
        folder = self._folder(lease)
        if held(folder / "runner.lock") or not (folder / "started.json").exists():
            return
        late = time.time() >= deadline_s
        if lease in self._asked and not late:
            return
        self._asked.add(lease)
        number = signal.SIGKILL if late else signal.SIGTERM
        if not late:
            with contextlib.suppress(OSError):
                write_json(notice_file(folder), {"deadline_s": int(deadline_s)}, mode=NOTICE_MODE)
        signal_marked(self._mark(lease), number)
        group = self._group(lease)
        if group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)

    def _kept_env(self, job: Job) -> Mapping[str, str]:
        kept = read_json(self._env_file(job.array or job.job))
        if kept is None and job.env and not any(value for _, value in job.env):
            raise CannotStart(say("adapters.environment_lost", job=job.job))
        return dict(job.env) if kept is None else kept

    def _env_file(self, job: str) -> Path:
        return self._folder(job).parent / ".env" / f"{job}.json"

    def _mark(self, lease: str) -> dict[str, str]:
        """What every process of the lease carries, and no other: another folder's leases have its own id."""
        return {"BRIMFUL_LEASE": lease, "BRIMFUL_ENGINE": self.identity}

    def _folder(self, lease: str) -> Path:
        assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", lease), f"{lease!r} is no name for a folder"
        return self._root / lease


@contextlib.contextmanager
def _failing(code: str, **values: object) -> Iterator[None]:
    """What the disk does not do, said with this code."""
    try:
        yield
    except OSError as error:
        raise WorldFailed(say(code, **values, error=os_words(error))) from error


def _facts(path: Path) -> dict[str, Any] | None:
    """What the file holds, and nothing where that cannot be read: a job must be stoppable all the same."""
    try:
        return read_json(path, most_bytes=NOTE_BYTES)
    except (BrimfulError, OSError):
        return {}


def _second(value: object) -> int:
    """A moment told by a file, which a job may have written: never one that has yet to come."""
    if not isinstance(value, int | float):
        raise TypeError(f"{str(value)[:40]!r} is not a moment")
    return max(0, min(int(value), int(time.time())))


def _last_seen_s(folder: Path, started: Mapping[str, Any]) -> int:
    """The last proof that a job lived which ended without a word. Nobody is billed for what came after."""
    began_s = seen_s = _second(started["at_s"])
    for name in ("beat", "log"):
        with contextlib.suppress(OSError):
            seen_s = max(seen_s, int((folder / name).lstat().st_mtime))
    booted_s = boot_s()
    if booted_s is not None and began_s < booted_s:
        seen_s = min(seen_s, booted_s)
    return max(began_s, min(seen_s, int(time.time())))


def _last_words(folder: Path, code: int) -> Sentence:
    """What a failed runner wrote last, which is the error itself; else its exit code."""
    try:
        read = read_plain(folder / "runner.err", below=folder, most_bytes=1 << 20)
        text = read.decode(errors="replace").strip()
    except OSError:
        text = ""
    if not text:
        return say("adapters.exit_code", exit_code=Plain(code))
    return verbatim(text.splitlines()[-1][-SHOWN_CHARS:])


def _each(act: Callable[[T], None], those: Mapping[str, T]) -> Failures:
    """Do it for each lease; what is wrong with one keeps nobody from the others."""
    failed: dict[str, BrimfulError] = {}
    for lease, what in those.items():
        try:
            act(what)
        except BrimfulError as error:
            failed[lease] = error
    return failed


def _prepares(lease: str) -> Observation:
    return Observation(lease=lease, state="waiting", problem=say("adapters.readies_checkpoints"))


def _exit_code(code: object) -> int | None:
    return code if isinstance(code, int) and abs(code) <= MOST_EXIT_CODE else None


def _listed(value: object) -> list[object]:
    return value[:MOST_RANKS] if isinstance(value, list) else []


def _master(ranks: int) -> dict[str, str]:
    """Where the ranks of a gang meet: a port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found = {"BRIMFUL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # PyTorch's own names only for a gang: many scripts take RANK alone as a sign that there are others.
    return found if ranks == 1 else {**found, "WORLD_SIZE": str(ranks)}


def _rank(rank: int, ranks: int) -> dict[str, str]:
    found = {"BRIMFUL_RANK": str(rank)}
    return found if ranks == 1 else {**found, "RANK": str(rank), "LOCAL_RANK": "0"}


def _home(user: JobUser | None) -> str:
    return str(Path.home()) if user is None else user.home


def _environment(env: Mapping[str, str], job: Job, user: JobUser | None) -> Mapping[str, str]:
    wanted = dict(env)
    path = wanted.pop("PATH", os.environ.get("PATH", os.defpath))
    return {
        **{key: os.environ[key] for key in PASSED_ON if key in os.environ},
        **({} if user is None else user.environment),
        # Last on the path is the Python that runs brimful: `python` is found even where Debian has none.
        "PATH": f"{path}{os.pathsep}{Path(sys.executable).parent}",
        "PYTHONUNBUFFERED": "1",  # or the log would lag minutes behind the job
        **wanted,
        **task_env(job),
        "BRIMFUL_JOB": job.job,
    }
