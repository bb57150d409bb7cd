"""The local engine: real processes on this machine.

Each lease has a folder and a runner process (see runner.py), so jobs keep running while the server is down.
When it is back, it reads from the folder what happened in the meantime.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from brimful.adapters.capabilities import GpuUse, LogPiece
from brimful.adapters.code import CodeStore
from brimful.adapters.engines import logs, samples
from brimful.adapters.engines.job_users.isolation import NOTICE_MODE, OWN, is_isolated, notice_file
from brimful.adapters.engines.job_users.users import JobUsers
from brimful.adapters.engines.lease_folders import (
    LOG_BYTES,
    LeaseFolders,
    by_this_clock,
    each_lease,
    exit_code_of,
    facts,
    failing,
    is_done,
    kept_work_s,
    moment,
    rank_env,
    second,
)
from brimful.adapters.engines.processes import (
    boot_s,
    born,
    carries,
    held,
    leases_living,
    marked,
    signal_marked,
)
from brimful.adapters.files import (
    NOTE_BYTES,
    discard,
    in_words,
    is_trap,
    make_folder,
    open_to_write,
    read_json,
    reserve,
    write_json,
)
from brimful.adapters.mps import mps_env
from brimful.adapters.objects.carriage import read_carried
from brimful.adapters.providers.cloud_word import cloud_word
from brimful.errors import BrimfulError, Said, WorldFailed
from brimful.fleet.events import Cause
from brimful.fleet.state import Node
from brimful.job import read_plain
from brimful.language import Plain, Quoted, Sentence, say, verbatim
from brimful.language.record import as_record, said_by_anybody
from brimful.meter.samples import GpuSample
from brimful.scheduler.ports import CannotStart, Failures, Observation, Start

SHOWN_CHARS = 300
NONE: tuple[Node, ...] = ()  # always the same object: nothing has changed since the last call
MOST_RANKS = 4096
MARKS = ("started.json", "ended.json", "stop.json")  # of a lease that is never started again
# Trouble with the machine, not the lease: it passes, or someone fixes it.
PASSING = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "EIO", "EMFILE", "ENFILE", "ENOMEM", "EAGAIN")
)


class Runner(subprocess.Popen[bytes]):
    """Outlives the engine that started it by design, so leaving it behind is not a leak to warn about."""

    def __del__(self) -> None:
        # The rest of the inherited `__del__`, so that a runner that ends later is still reaped.
        super().__del__(_warn=lambda *_, **__: None)  # type: ignore[call-arg]


class LocalEngine(LeaseFolders):
    """Runs leases as processes under `root`, on the given nodes."""

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
        store: str = "",
        store_env: Mapping[str, str] | None = None,
        notices: str = "",
    ) -> None:
        """`devices`: by node, the driver's GPU behind each of ours; `problems`: what is wrong with them.

        `users`: by driver GPU, the processes that use it now, as far as the driver tells.
        """
        super().__init__(
            root,
            site=site,
            log_bytes=log_bytes,
            code=code,
            runs_as=runs_as,
            store=store,
            store_env=store_env,
            notices=notices,
        )
        self._users = users
        self._devices = devices or {}
        self._problems = problems or {}
        self._look_at_gpus = look  # asks the driver; None: there is none
        self._nodes = nodes
        self._runners: dict[str, Runner] = {}
        self._not_begun: dict[str, Sentence] = {}  # leases whose runner failed early, and why
        self._asked: set[str] = set()  # leases without a runner that we have told to end
        self._cloud = cloud_word(notices)

    def under_notice(self) -> Said | None:
        """Whether the cloud is taking this machine back: nothing new should start here."""
        if self._cloud is None or self._cloud.first() is None:
            return None
        return say("adapters.machine_under_notice", cloud=self._notices.partition("@")[0])

    def nodes(self) -> Sequence[Node]:
        if self.under_notice() is not None:
            return NONE
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
        return each_lease(self._start, {each.lease: each for each in starts})

    def _start(self, start: Start) -> None:
        lease = start.lease
        folder = self._folder(lease)
        with starting(lease, folder):
            make_folder(folder)
        if self.has_begun(lease):
            return
        with starting(lease, folder):
            self._runners[lease] = self._run(start, folder)

    def _run(self, start: Start, folder: Path) -> Runner:
        try:
            reserve(folder / "ended.json")
            write_json(folder / "order.json", self._local_order(start))
            with open_to_write(folder / "runner.err") as complaints:
                # -P: the server's working directory must not shadow our modules.
                return Runner(
                    [sys.executable, "-P", "-m", "brimful.adapters.engines.runner", str(folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=complaints,
                    start_new_session=True,
                )
        except OSError:
            with contextlib.suppress(OSError):
                (folder / "order.json").unlink()  # its environment may hold secrets, and nobody will read it
            raise

    def has_begun(self, lease: str) -> bool:
        """Whether it begins, has begun or was told to stop, so that a start changes nothing.

        A runner lives until it holds the lock, and holds that until it has left a mark: asked in this order,
        none is missed.
        """
        folder = self._folder(lease)
        if self._has_runner(lease) or lease in self._not_begun or held(folder / "lock"):
            return True
        return any(os.path.lexists(folder / name) for name in MARKS)

    def _local_order(self, start: Start) -> dict[str, Any]:
        parts, user, folder = start.parts, self._user_of(start.job), self._folder(start.lease)
        speed = next((start.job.rate(each.gpu) for each in self._nodes if each.node == parts[0][0]), 1.0)
        env = _master(len(parts)) | mps_env(start, self._nodes)
        order = self._order(start, folder, user=user, speed=speed, env=env)
        order["ranks"] = [
            {"BRIMFUL_NODE": node, **self._visible(node, gpus), **rank_env(rank, len(parts))}
            for rank, (node, gpus) in enumerate(parts)
        ]
        if self._runs_as is None or user is None:
            return order
        return self._runs_as.confine(order, user, folder=folder, gpus=start.job.gpus)

    def _visible(self, node: str, gpus: Sequence[int]) -> dict[str, str]:
        known = self._devices.get(node)
        if known is None:
            return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
        # CUDA orders fastest first by default; the driver's indices follow the bus.
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(known[i] for i in gpus),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }

    def gpu_use(self) -> dict[tuple[str, int], GpuUse]:
        if not self._devices or self._look_at_gpus is None:
            return {}
        try:
            seen = self._look_at_gpus(time.time())
        except BrimfulError:
            return {}  # reported where its cards are shown
        use = {
            (str(x.index) if x.mig is None else x.uuid): GpuUse(x.memory_used_bytes, x.busy_frac)
            for x in seen
        }
        return {
            (node, i): use[device]
            for node, devices in self._devices.items()
            for i, device in enumerate(devices)
            if device in use
        }

    def busy_frac(self, node: str, gpus: Sequence[int]) -> float | None:
        use = self.gpu_use()
        found = [use[node, i].busy_frac for i in gpus if (node, i) in use]
        known = [busy for busy in found if busy is not None]
        return max(known) if known and len(known) == len(gpus) else None

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        return each_lease(
            lambda lease: self._stop(lease, grace_s=grace_s), {lease: lease for lease in leases}
        )

    def _stop(self, lease: str, *, grace_s: int) -> None:
        folder = self._folder(lease)
        stop = facts(folder / "stop.json")
        if not stop or not isinstance(stop.get("deadline_s"), int):
            stop = {"grace_s": grace_s, "deadline_s": int(time.time()) + grace_s}
            try:
                with failing("adapters.cannot_ask_stop", lease=lease, folder=folder):
                    # Also if nothing has started: a start that comes too late finds this.
                    make_folder(folder)
                    if is_trap(folder / "stop.json"):
                        discard(folder / "stop.json")
                    write_json(folder / "stop.json", stop)
            finally:  # a full disk must not prevent a job from being stopped
                is_told = _told_runner(folder)
            if is_told:
                return
        self._end_orphans(lease, deadline_s=stop["deadline_s"])

    def warn(self, lease: str, *, until_s: int | None) -> None:
        """Creates or removes the `BRIMFUL_NOTICE` file. On a stop, the runner writes to it."""
        folder = self._folder(lease)
        path = notice_file(folder)
        before = facts(path)
        notice = None if until_s is None else {"deadline_s": until_s, "may_stay": True}
        if before == notice or (folder / "stop.json").exists() or not folder.exists():
            return
        with failing("adapters.cannot_give_notice", lease=lease, folder=folder):
            if notice is None:
                path.unlink(missing_ok=True)
            else:
                write_json(path, notice, mode=NOTICE_MODE)

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        self._reap()
        return self._look_at_each(leases, self._look)

    def living(self) -> list[str]:
        """Leases with a living process, whoever asked for it."""
        found = {each.lease for each in leases_living({self.identity}) if each.uid in self._uids(each.lease)}
        return sorted(found)

    def _uids(self, lease: str) -> set[int]:
        """The owner of a lease's process; root if it cannot be inspected."""
        folder = self._root / Path(lease).name
        try:
            return {0, (folder / OWN if is_isolated(folder) else folder).stat().st_uid}
        except OSError:
            return set()

    def complaints(self) -> Mapping[str, Said]:
        said = self.under_notice()
        noticed = {} if said is None else {node.node: said for node in self._nodes}
        return {**self._problems, **self._complaints, **noticed}

    def log(self, lease: str, *, rank: int = 0, offset: int = 0, limit: int = 1 << 20) -> LogPiece:
        with failing("adapters.cannot_read_log", lease=lease):
            return logs.read(self._folder(lease) / logs.name_of(rank), offset=offset, limit=limit)

    def sample(self, lease: str) -> bytes | None:
        return samples.read_sample(self._folder(lease))

    def _look(self, lease: str) -> Iterator[Observation]:
        folder = self._folder(lease)
        alive = self._has_runner(lease)
        trap = _trap(folder)
        if trap and not (alive or held(folder / "lock") or self._lives_on(lease)):
            said = say("adapters.in_the_way", name=Quoted(trap))
            cause: Cause = "stopped_by_us" if (folder / "stop.json").is_file() else "failed"
            yield Observation(lease=lease, state="ended", problem=said, cause=cause)
            return
        started = read_json(folder / "started.json", most_bytes=NOTE_BYTES)
        if started is not None and held(folder / "lock"):
            prepares = not (folder / "child.json").exists() and (folder / "order.json").exists()
            yield _prepares(lease, folder) if prepares else self._alive(lease, started)
            return
        ended = read_json(folder / "ended.json", most_bytes=NOTE_BYTES)
        if ended is None and alive:
            return  # starting
        if ended is None and started is None and lease not in self._not_begun:
            if not held(folder / "lock"):  # otherwise another server's runner is about to start it
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
        if started is not None and ended.get("at_s") is not None:
            started, ended = by_this_clock(started, ended)
        began_s = None if started is None else second(started["at_s"])
        cause, code = _cause(folder, ended, began_s=began_s), exit_code_of(ended.get("exit_code"))
        ended_s = None if ended.get("at_s") is None else max(began_s or 0, second(ended["at_s"]))
        yield Observation(
            lease=lease,
            state="ended",
            started_s=began_s,
            ended_s=ended_s,
            # An evicted job may exit with 0 and still not be finished.
            exit_code=code or None if cause == "preempted_by_engine" else code,
            problem=say("adapters.sent_away")
            if ended.get("sent_away")
            else said_by_anybody(ended["problem"]),
            kept_work_s=None
            if started is None
            else kept_work_s(started, ended, ended_s, is_done=cause == "finished"),
            cause=cause,
            exit_codes=tuple(map(exit_code_of, _listed(ended.get("exit_codes")))),
            resumes_s=None if started is None else self._resumes_s(folder),
            moved_bytes=read_carried(folder).moved_bytes,
        )

    def _resumes_s(self, folder: Path) -> int | None:
        found = (facts(folder / "child.json") or {}).get("resumes_s")
        return second(found) if isinstance(found, int) else None

    def _alive(self, lease: str, started: Mapping[str, Any]) -> Observation:
        folder = self._folder(lease)
        if not held(folder / "runner.lock"):
            with contextlib.suppress(OSError):
                # Its runner no longer can: we have seen it alive.
                os.utime(folder / "beat", follow_symlinks=False)
        return Observation(
            lease=lease,
            state="running",
            started_s=second(started["at_s"]),
            resumes_s=self._resumes_s(folder),
        )

    def _lives_on(self, lease: str) -> bool:
        """Whether anything is left of a job without a runner, even though nothing holds the lock.

        The lock is a file descriptor, and programs close it when they start others (Python does by default).
        """
        if self._group(lease) is not None:
            return True
        # Another tenant's job may carry the same mark and would keep this lease from ending. The first
        # process of an isolated job is root's, and the last to end.
        return not is_isolated(self._folder(lease)) and any(marked(self._mark(lease)))

    def _group(self, lease: str) -> int | None:
        """The job's process group while its first process lives; never one that merely reuses its number."""
        child = facts(self._folder(lease) / "child.json") or {}
        group, birth = child.get("group"), child.get("born")
        if not isinstance(group, int) or birth is None or born(group) != birth:
            return None
        return group

    def _reap(self) -> None:
        """Reap every runner that has ended, also of leases that nobody asks about any more."""
        for lease in list(self._runners):
            self._has_runner(lease)

    def _has_runner(self, lease: str) -> bool:
        """Whether a runner of ours is alive; one that has ended is reaped here."""
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
            is_ours = code == -signal.SIGKILL and (folder / "stop.json").exists()
            early, late = say("adapters.stopped_before_begun"), say("adapters.runner_not_begun", words=words)
            self._not_begun[lease] = early if is_ours else late
        return False

    def _end_runner(self, lease: str) -> None:
        """One that never came as far as its job, whatever keeps it: it has nothing to save."""
        folder = self._folder(lease)
        if not os.path.lexists(folder / "order.json") or os.path.lexists(folder / "child.json"):
            return
        if self._has_runner(lease):
            self._runners[lease].kill()
        elif not _told_runner(folder, signal.SIGKILL):
            return
        with contextlib.suppress(OSError):
            (folder / "order.json").unlink()

    def _end_orphans(self, lease: str, *, deadline_s: float) -> None:
        """End a job whose runner was killed: SIGTERM, the promised grace, then SIGKILL."""
        folder = self._folder(lease)
        late = time.time() >= deadline_s
        if late:
            self._end_runner(lease)
        if held(folder / "runner.lock") or not (folder / "started.json").exists():
            return
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


@contextlib.contextmanager
def starting(lease: str, folder: Path) -> Iterator[None]:
    """Nothing runs. A full disk is temporary and the next tick tries again; a file in the way stays."""
    try:
        yield
    except OSError as error:
        kind = WorldFailed if error.errno in PASSING else CannotStart
        raise kind(
            say("adapters.cannot_start_in", lease=lease, folder=folder, error=in_words(error))
        ) from error


def _trap(folder: Path) -> str:
    """The first mark that is not a file: a job of our own user put it there."""
    traps = [name for name in MARKS if is_trap(folder / name)]
    is_marked = any((folder / name).is_file() for name in MARKS if name not in traps)
    return "" if not traps or (traps == ["stop.json"] and is_marked) else traps[0]


def _told_runner(folder: Path, number: int = signal.SIGTERM) -> bool:
    runner = (facts(folder / "started.json") or {}).get("pid")
    if not isinstance(runner, int) or not held(folder / "runner.lock"):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(runner, number)
    return True


def _cause(folder: Path, ended: Mapping[str, Any], *, began_s: int | None) -> Cause:
    """Who or what ended it."""
    if is_done(folder, ended):
        return "finished"
    if os.path.lexists(folder / "stop.json"):
        return "stopped_by_us"
    if ended.get("taken") is True or ended.get("sent_away") is True:
        return "preempted_by_engine"
    if ended.get("exit_code") is None and began_s is not None and began_s < (boot_s() or 0):
        return "node_lost"
    return "failed"


def _last_seen_s(folder: Path, started: Mapping[str, Any]) -> int:
    """The last sign of life of a job that ended without a record. Nobody is billed for the time after it."""
    began_s = seen_s = max(0, moment(started["at_s"]))
    for name in ("beat", "log"):
        with contextlib.suppress(OSError):
            seen_s = max(seen_s, int((folder / name).lstat().st_mtime))
    booted_s = boot_s()
    if booted_s is not None and began_s < booted_s:
        seen_s = min(seen_s, booted_s)
    now_s = int(time.time())
    return seen_s if began_s > now_s else min(seen_s, now_s)


def _last_words(folder: Path, code: int) -> Sentence:
    """The last line of a failed runner, which is the error itself; otherwise its exit code."""
    try:
        read = read_plain(folder / "runner.err", below=folder, most_bytes=1 << 20)
        text = read.decode(errors="replace").strip()
    except OSError:
        text = ""
    if not text:
        return say("adapters.exit_code", exit_code=Plain(code))
    return verbatim(text.splitlines()[-1][-SHOWN_CHARS:])


def _prepares(lease: str, folder: Path) -> Observation:
    return Observation(lease=lease, state="waiting", problem=read_carried(folder).said)


def _listed(value: object) -> list[object]:
    return value[:MOST_RANKS] if isinstance(value, list) else []


def _master(ranks: int) -> dict[str, str]:
    """Where the ranks of a gang meet: a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found = {"BRIMFUL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # Only gangs get PyTorch's own names: many scripts take RANK alone as a sign of other ranks.
    return found if ranks == 1 else {**found, "WORLD_SIZE": str(ranks)}
