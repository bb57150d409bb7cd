"""Runs a job as its tenant's user, in separate namespaces (decision 33). Linux, as root.

    runner            root; its children are in a new PID namespace
      init            root; process 1 of that namespace: waits, passes SIGTERM on, holds the lease's lock
        the ranks     the tenant's user, no new privileges, in the job's control groups

When init ends, the kernel ends every process of the namespace: nothing of a job outlives its lease. `INSIDE`
holds what the job shares with brimful; /tmp, /var/tmp, /dev and /proc are private to the job, and the
server's folders are hidden.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from brimful.adapters.engines.job_users import cgroups
from brimful.language import Plain, Sentence, Several, os_words, say
from brimful.language.record import as_record, said_by_anybody

INSIDE = Path("/run/brimful")  # where a job finds what it shares with brimful
TOLD, OWN = "told", "own"  # subfolders of a lease: what the job may read, and where it writes
CHECKPOINTS, FETCHED = "checkpoints", "fetched"  # the job's, from here and from another site
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")  # what any program may expect in /dev
DEV_LINKS = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"} | {
    name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))
}
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - covered by the job's private folders
NOT_STARTED = 126
HEARD = {signal.SIGTERM, signal.SIGCHLD}
NOTICE_MODE = 0o644  # only the server and the job can reach it

# linux/sched.h, linux/mount.h, linux/prctl.h, linux/keyctl.h
NEW_MOUNTS, NEW_IPC, NEW_PIDS = 0x00020000, 0x08000000, 0x20000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, MOVE, RECURSIVE, SLAVE = (
    *(1, 2, 4, 8),
    *(32, 4096, 8192, 16384, 1 << 19),
)
PR_SET_NO_NEW_PRIVS = 38
JOIN_SESSION_KEYRING = 1
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}  # syscall numbers


Signals = set[int | signal.Signals]
Shared = tuple[str, str, bool]  # a folder, its name in INSIDE, and whether the job may write to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """A job's identity and its view of the machine. Written into its order as JSON."""

    uid: int
    gid: int
    groups: Sequence[int]
    shared: Sequence[Shared]
    hidden: Sequence[str]  # folders
    devices: Sequence[str]  # files in /dev for its GPUs
    cgroups: Sequence[str]  # empty: no limits
    memory_bytes: int
    processes: int


def notice_file(folder: Path) -> Path:
    """Where the lease's job is told that it has to stop."""
    return (folder / TOLD if is_isolated(folder) else folder) / "notice.json"


def is_isolated(folder: Path) -> bool:
    return (folder / OWN).is_dir()


class Isolated:
    """The ranks of a job on one node, as their runner sees them: through their init."""

    def __init__(self, pid: int, go: int, record: IO[bytes], isolation: Isolation, ranks: int) -> None:
        self.pid, self._go = pid, go
        self._record, self._isolation = record, isolation
        self._codes: list[int | None] = [None] * ranks
        self._early: list[dict[str, Any]] = []

    def prepared(self) -> Any:  # noqa: ANN401 - JSON
        """What `prepare` returned; None if it failed."""
        said = self._read()
        if "prepared" in said:
            return said["prepared"]
        self._early.append(said)
        return None

    def go(self) -> None:
        """Called once the job's identity is on disk: until then init only waits, and exits if we do."""
        with contextlib.suppress(OSError):
            os.write(self._go, b"1")

    def ends(self) -> Iterator[tuple[int, Sentence | Several | None]]:
        """Each rank as it ends, and what was wrong with its end."""
        while said := self._early.pop() if self._early else self._read():
            rank, code = said["rank"], said["exit_code"]
            if self._codes[rank] is not None:
                continue  # it has already reported why it could not start
            self._codes[rank] = code
            problem = said_by_anybody(said["problem"])
            if code and problem is None and cgroups.out_of_memory(self._groups):
                problem = say("adapters.memory_limit", limit_mib=self._isolation.memory_bytes >> 20)
            yield rank, problem or how_ended(code)
        for rank, known in enumerate(self._codes):
            if known is None:  # its init was killed, which killed it too
                yield rank, how_ended(code_unreaped(self.pid) or NOT_STARTED)

    def is_over(self) -> bool:
        return is_over(self.pid)

    def wait(self) -> list[int]:
        """Each rank's exit code, or minus the signal that killed it."""
        _, status = os.waitpid(self.pid, 0)
        self._record.close()
        cgroups.remove(self._groups)
        last = os.waitstatus_to_exitcode(status) or NOT_STARTED
        return [last if code is None else code for code in self._codes]

    @property
    def _groups(self) -> list[Path]:
        return [Path(each) for each in self._isolation.cgroups]

    def _read(self) -> dict[str, Any]:
        """The next line of the record; empty at its end."""
        line = self._record.readline()
        return json.loads(line) if line else {}


def code_unreaped(pid: int) -> int:
    """Wait for a child to exit but leave it unreaped; its exit code, or minus the signal that killed it."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None, "WNOHANG was not asked for"
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def is_over(pid: int) -> bool:
    """Whether a child has exited that nobody has reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def how_ended(code: int) -> Sentence | None:
    if code < 0:
        return say("adapters.killed_by", signal=_signal_name(-code))
    return say("adapters.exit_code", exit_code=Plain(code)) if code else None


def _signal_name(number: int) -> str:
    """Python has names only for the first and last real-time signal, but a job may die of any."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN{number - signal.SIGRTMIN:+d}" if sys.platform == "linux" else str(number)


def start(
    isolation: Isolation,
    prepare: Callable[[], object],
    run: Callable[[int], tuple[int, Sentence]],
    *,
    logs: Sequence[int],
    lock: int,
) -> Isolated:
    """Both functions run as the job's user, inside: `prepare` once, and `run` for each rank with its log.

    `run` becomes the rank, or returns how that failed. Neither may load our modules or files: the job's user
    has no right to read what the server can.
    """
    if groups := [Path(each) for each in isolation.cgroups]:
        limits = cgroups.Limits(memory_bytes=isolation.memory_bytes, processes=isolation.processes)
        cgroups.make(groups, limits)
    _call("unshare", NEW_PIDS)  # for processes started from now on
    reading, record = os.pipe()
    waits, go = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)  # a SIGTERM that arrives now is not lost
    pid = os.fork()
    if pid == 0:
        init = _Init(isolation, prepare, run, logs, record=record, waits=waits, mask=before)
        _never_return(record, 0, lambda: init.main({*logs, lock, record, waits}))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for handle in (record, waits):
        os.close(handle)
    return Isolated(pid, go, os.fdopen(reading, "rb"), isolation, len(logs))


def _never_return(record: int, rank: int, body: Callable[[], tuple[int, Sentence] | None]) -> NoReturn:
    try:
        failed = body()
    except BaseException as error:  # noqa: BLE001 - no caller above this process
        words = os_words(error) if isinstance(error, OSError) else repr(error)[:200]
        failed = NOT_STARTED, say("adapters.cannot_isolate", error=words)
    if failed is not None:
        code, problem = failed
        _write(record, {"rank": rank, "exit_code": code, "problem": as_record(problem)})
    os._exit(0 if failed is None else NOT_STARTED)


def _write(record: int, body: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the runner may be gone
        os.write(record, f"{json.dumps(body)}\n".encode())


@dataclass(frozen=True, slots=True)
class _Init:
    """Process 1 of a job's namespace."""

    isolation: Isolation
    prepare: Callable[[], object]
    run: Callable[[int], tuple[int, Sentence]]
    logs: Sequence[int]
    _: KW_ONLY
    record: int
    waits: int
    mask: Signals

    def main(self, kept: set[int]) -> None:
        for handle in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - names
            if handle > 2 and handle not in kept:
                with contextlib.suppress(OSError):  # the descriptor that lists them is closed already
                    os.close(handle)
        os.setsid()
        os.umask(0o022)  # the server's may be stricter; the job's user must be able to see these files
        _call("unshare", NEW_MOUNTS | NEW_IPC)
        _arrange(self.isolation)
        _, status = os.waitpid(self._fork(0, self._prepare), 0)
        if status == 0 and os.read(self.waits, 1):  # otherwise the runner is gone
            self._watch({self._fork(rank, partial(self.run, rank)): rank for rank in range(len(self.logs))})

    def _prepare(self) -> None:
        _write(self.record, {"prepared": self.prepare()})

    def _fork(self, rank: int, body: Callable[[], tuple[int, Sentence] | None]) -> int:
        pid = os.fork()
        if pid == 0:
            _never_return(self.record, rank, lambda: self._become(rank, body))
        return pid

    def _watch(self, ranks: dict[int, int]) -> None:
        while ranks:
            if signal.sigwait(HEARD) == signal.SIGTERM:
                for pid in ranks:
                    _tell(pid)
                continue
            pid, status = os.waitpid(-1, os.WNOHANG)
            while pid:
                code = os.waitstatus_to_exitcode(status)
                if (rank := ranks.pop(pid, None)) is not None:
                    _write(self.record, {"rank": rank, "exit_code": code, "problem": None})
                pid, status = os.waitpid(-1, os.WNOHANG) if ranks else (0, 0)

    def _become(
        self, rank: int, body: Callable[[], tuple[int, Sentence] | None]
    ) -> tuple[int, Sentence] | None:
        """From here on nothing runs as root."""
        given = self.isolation
        cgroups.join([Path(each) for each in given.cgroups])
        Path("/proc/self/oom_score_adj").write_text("0")  # the server's own value may protect it
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for standard in (1, 2):
            os.dup2(self.logs[rank], standard)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.setgroups(list(given.groups))
        os.setresgid(given.gid, given.gid, given.gid)
        os.setresuid(given.uid, given.uid, given.uid)
        _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        # Whoever has the server's session keyring has its keys, so the job's user gets a new one.
        with _unless(errno.ENOSYS):
            _call("syscall", KEYCTL[platform.machine()], JOIN_SESSION_KEYRING, None)
        return body()


def _tell(job: int) -> None:
    try:
        os.killpg(job, signal.SIGTERM)
    except ProcessLookupError:  # its group does not exist yet
        os.kill(job, signal.SIGTERM)


def _arrange(isolation: Isolation) -> None:
    """The job's view of the file system. Host folders are bound before they are covered."""
    _mount("none", "/", flags=RECURSIVE | SLAVE)  # none of these mounts is visible outside
    INSIDE.mkdir(parents=True, exist_ok=True)
    _tmpfs(INSIDE, "mode=0755,size=1m")
    scratch = f"mode=1777,size={isolation.memory_bytes // 2}"  # in memory: counts against the job's limit
    _arrange_dev(INSIDE / "dev", isolation.devices, scratch)
    for folder, name, writable in isolation.shared:
        (INSIDE / name).mkdir()
        _mount(folder, INSIDE / name, flags=BIND)
        flags = REMOUNT | BIND | NOSUID | NODEV | (0 if writable else RDONLY)
        _mount("none", INSIDE / name, flags=flags)
    _mount("none", INSIDE, flags=REMOUNT | BIND | RDONLY | NOSUID | NODEV)
    # hidepid=2: users see only their own processes and cannot tell that others exist.
    _mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC, "hidepid=2")
    for folder in ("/tmp", "/var/tmp"):  # noqa: S108 - covered
        _tmpfs(Path(folder), scratch)
    for folder in isolation.hidden:
        if Path(folder).is_dir():
            _tmpfs(Path(folder), "mode=0000,size=4k", RDONLY)


def _arrange_dev(stage: Path, devices: Sequence[str], scratch: str) -> None:
    stage.mkdir()
    _tmpfs(stage, "mode=0755,size=1m", NOEXEC)
    for name in (*DEVICES, *(each.removeprefix("/dev/") for each in devices)):
        (stage / name).parent.mkdir(exist_ok=True)
        (stage / name).touch()
        _mount(f"/dev/{name}", stage / name, flags=BIND)
    for name, target in DEV_LINKS.items():
        (stage / name).symlink_to(target)
    for name in ("pts", "shm"):
        (stage / name).mkdir()
    _mount("devpts", stage / "pts", "devpts", NOSUID | NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    _tmpfs(stage / "shm", scratch)
    _mount(stage, "/dev", flags=MOVE)
    stage.rmdir()


def _tmpfs(target: Path, options: str, flags: int = 0) -> None:
    _mount("tmpfs", target, "tmpfs", NOSUID | NODEV | flags, options)


def _mount(source: str | Path, target: str | Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    texts = (str(source).encode(), str(target).encode(), kind.encode() or None)
    try:
        _call("mount", *texts, ctypes.c_ulong(flags), options.encode() or None)
    except OSError as error:
        error.filename = str(target)
        raise


def _call(name: str, *arguments: object) -> None:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "namespaces are Linux's")
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


@contextlib.contextmanager
def _unless(number: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != number:
            raise
