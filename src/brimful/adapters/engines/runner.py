"""The small process between brimful and a job: `python -m brimful.adapters.engines.runner DIR`.

It starts the job, waits for it, and records how it ended, so that a job outlives the server and the server
learns of its end whenever it comes back. Everything it knows is in its lease folder:

    order.json    what to run (written by the engine, removed once the job runs)
    started.json  written before the job is started: if it exists, the job is never started again
    child.json    the job's process group, and when the checkpoint it resumes from was sealed (0: none)
    beat          touched every few seconds while the runner lives: the last sign of life
    stop.json     a request to end (written by the engine), with the grace and its deadline
    notice.json   what the job is told about that: the deadline (BRIMFUL_NOTICE)
    ended.json    exit code and time: nothing of the job runs any more. Its space is reserved beforehand, so
                  that a full disk cannot swallow it
    sample.json   the latest Meter sample (BRIMFUL_SAMPLES); written by the job, so never trusted
    work          the packed code it runs in, unpacked (only with code)
    log           what the job printed; log.start: where it begins now. log.1, ...: the gang's other ranks
    carried.json  what the checkpoint carrier has moved and is doing (objects/carrier.py; only with a store)
    runner.err    the runner's own errors
    lock          held by runner and job as long as either lives: no pid can be mistaken

An isolated job (isolation.py) never sees this folder, only two of its subfolders: `told` with notice.json, to
read, and `own` for sample.json, to write. Its init holds the lock for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from brimful.adapters.code import unpack
from brimful.adapters.engines.checkpoints import make_ready, sealed_in, take_over
from brimful.adapters.engines.job_users import isolation
from brimful.adapters.engines.logs import name_of
from brimful.adapters.engines.processes import born
from brimful.adapters.engines.watch import FAILED, StoppedBeforeBegun, Watch, ignore_signals, signal_group
from brimful.adapters.files import (
    discard,
    in_words,
    open_to_write,
    read_json,
    write_json,
    write_reserved,
)
from brimful.adapters.objects.carriage import Carriage
from brimful.adapters.objects.store import is_store
from brimful.errors import BadInput, Said, WorldFailed
from brimful.job import newest
from brimful.language import Plain, Quoted, Seconds, Sentence, os_words, say, verbatim
from brimful.language.record import as_record, said_by_anybody

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
NOT_FOUND, NOT_STARTED = 127, 126  # as in a shell
HEARS_S = 1.0  # how much later than its job a runner may get the engine's signal
PROBLEM_CHARS = 500
WORK = "work"
BEGINS = b"\x1ebrimful "  # starts the line after which everything is the job's


def main(folder: Path) -> int:
    order = read_json(folder / "order.json")
    if order is None:
        return 0  # another runner has carried it out
    with contextlib.ExitStack() as stack:
        try:
            lock, own = (
                stack.enter_context(open_to_write(folder / name)) for name in ("lock", "runner.lock")
            )
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0  # another runner holds it
        except OSError as error:  # nobody can ever hold it, so the job can never run
            return _cannot_begin(folder, order, error)
        # Our parent may kill its children when it exits, and must not kill this one. Not before the lock is
        # held: until then it is our life that tells an agent that the lease has begun.
        if os.environ.get("BRIMFUL_DETACH") and os.fork():
            os._exit(0)
        has_run = any(os.path.lexists(folder / name) for name in ("started.json", "ended.json"))
        if has_run:
            # A job never runs twice under one lease. Delete what a late engine ordered: it contains the job's
            # environment.
            (folder / "order.json").unlink(missing_ok=True)
        elif os.path.lexists(folder / "stop.json"):
            _write_end(folder, _End(None, say("adapters.stopped_before_begun")))
        if has_run or (folder / "ended.json").exists():
            return 0
        _adopt_orphans()
        try:
            open_to_write(folder / "beat").close()
            # Before anyone can learn our pid and signal it.
            watch = Watch(folder, order)
            asked = {key: order.get(key) for key in ("speed", "checkpoints")}
            began = _Began()
            write_json(folder / "started.json", {"at_s": began.at_s, "pid": os.getpid(), **asked})
            log = _open_log(folder, order)
        except OSError as error:
            return _cannot_begin(folder, order, error)
        with log:
            end, carriage = _End(None, say("adapters.stopped_before_begun")), Carriage(folder, order)
            with contextlib.suppress(StoppedBeforeBegun):
                with watch.preparing():
                    failed = _unpacked(folder, order)
                end = failed or _run(folder, order, log, lock.fileno(), watch=watch, carriage=carriage)
        watch.shorten_logs()  # output since the last look
        if not watch.told:
            _mark_failed(order, end)
        sealed_s = _sealed_s(order, carriage)
        if watch.taken:
            end = end._replace(
                problem=say("adapters.machine_taken", cloud=order["notices"].partition("@")[0])
            )
        _write_end(folder, end, at_s=began.now_s(), sealed_s=sealed_s, watch=watch)
        with contextlib.suppress(OSError):
            (folder / "order.json").unlink()  # a late engine may have written it again
        ignore_signals()
    return 0


def _cannot_begin(folder: Path, order: dict[str, Any], error: OSError) -> int:
    where = str(folder)[:PROBLEM_CHARS]
    end = _End(None, say("adapters.cannot_begin_in", folder=where, error=in_words(error)))
    _mark_failed(order, end)  # otherwise the other ranks would wait for this one forever
    _write_end(folder, end)
    ignore_signals()
    return 1


def _sealed_s(order: dict[str, Any], carriage: Carriage) -> int:
    """When the newest checkpoint that a later lease can use was sealed."""
    sent_s = carriage.sealed_s()
    if sent_s is not None:
        return sent_s
    last = newest(Path(order["checkpoints"]))
    return 0 if last is None else last.at_s


class _Began:
    """When it started, and how long ago by a monotonic clock: the elapsed time is what is billed."""

    def __init__(self) -> None:
        self._wall, self._awake = time.time(), time.monotonic()
        self.at_s = int(self._wall)

    def now_s(self) -> int:
        return int(self._wall + time.monotonic() - self._awake)


def _open_log(folder: Path, order: dict[str, Any], rank: int = 0) -> IO[bytes]:
    if order.get("prints"):  # someone else stores our output
        return os.fdopen(os.dup(sys.stdout.fileno()), "ab")
    log = open_to_write(folder / name_of(rank))
    os.fchmod(log.fileno(), 0o600)
    if confined := order.get("isolation"):
        os.fchown(log.fileno(), confined["uid"], confined["gid"])  # the job may open /dev/stdout
    return log


def _make_ready(order: dict[str, Any], carriage: Carriage) -> tuple[list[Said], int]:
    """Put the newest complete checkpoint where the job looks for it, and let only this lease write there.

    Returns what there is to say, and when that checkpoint was sealed; 0 if there is none and the job starts
    from scratch.
    """
    # An isolated job sees fetched checkpoints, or another local site's, under a separate name.
    source = order.get("fetched" if order.get("isolation") else "checkpoints_from") or ""
    here = Path(order["env"]["BRIMFUL_CHECKPOINT_DIR"])
    said: list[Said] = []
    found_s = 0
    try:
        if carriage.goes and not order.get("isolation"):
            said.extend(carriage.fetch(here, fence=True))
        else:
            take_over(here, order.get("lease", ""))
            elsewhere = sealed_in(Path(source)) if source and not is_store(source) else []
            said.extend(make_ready(here, elsewhere, since=carriage.before))
        found = newest(here)
        found_s = 0 if found is None else found.at_s
    except OSError as error:
        said.append(verbatim(f"its checkpoints cannot be used: {error}"))
    if (lost_s := order.get("kept_until_s", 0) - found_s) > 0:
        code = "adapters.progress_lost" if found_s else "adapters.progress_lost_all"
        said.append(say(code, lost=Seconds(lost_s)))
    return said, found_s


def _fetch_for_isolated(folder: Path, order: dict[str, Any], carriage: Carriage) -> list[Said]:
    """The job must not see a store's credentials, so its checkpoint is fetched before it starts."""
    fetched = folder / isolation.FETCHED
    discard(fetched)
    fetched.mkdir(mode=0o700)
    said = carriage.fetch(fetched, fence=False)
    confined = order["isolation"]
    for path in (fetched, *fetched.rglob("*")):
        os.chown(path, confined["uid"], confined["gid"], follow_symlinks=False)
    return said


def _tell(log: IO[bytes], said: Iterable[object]) -> None:
    for line in said:
        log.write(f"brimful: {line}\n".encode())
    log.flush()


def _tell_begin(folder: Path, order: dict[str, Any], log: IO[bytes], resumes_s: int) -> None:
    """For engines that see only what it prints."""
    if order.get("prints"):
        began = {"at_s": (read_json(folder / "started.json") or {}).get("at_s"), "resumes_s": resumes_s}
        log.write(BEGINS + json.dumps(began).encode() + b"\n")
        log.flush()


class _End(NamedTuple):
    """How a job ended."""

    exit_code: int | None  # of the rank that failed first, otherwise 0
    problem: Said | None
    exit_codes: Sequence[int] = ()  # by rank


def _unpacked(folder: Path, order: dict[str, Any]) -> _End | None:
    """Unpack its code where it runs; returns why it cannot start, if so."""
    code = order.get("code")
    if code is not None:
        try:
            unpack(Path(code["archive"]), folder / WORK, code=code["code"])
            if confined := order.get("isolation"):
                for path in (folder / WORK, *(folder / WORK).rglob("*")):  # only we have been in there
                    os.chown(path, confined["uid"], confined["gid"], follow_symlinks=False)
        except BadInput as error:
            return _End(NOT_STARTED, error.said)
        except OSError as error:
            return _End(NOT_STARTED, say("adapters.cannot_unpack", error=os_words(error)))
    return None


def _mark_failed(order: dict[str, Any], end: _End) -> None:
    """Tell the other ranks, whose runners are elsewhere: the first to fail is the one reported."""
    if order.get("gang") and end.problem is not None:
        with contextlib.suppress(OSError), (Path(order["gang"]) / FAILED).open("x") as marked:
            marked.write(f"{order['rank']} {NOT_STARTED if end.exit_code is None else end.exit_code}\n")


def _write_end(
    folder: Path,
    end: _End,
    *,
    at_s: int | None = None,
    sealed_s: int = 0,
    watch: Watch | None = None,
) -> None:
    ended = {
        "at_s": int(time.time()) if at_s is None else at_s,
        "exit_code": end.exit_code,
        "problem": as_record(end.problem),
        "sealed_s": sealed_s,  # of its newest checkpoint
        "exit_codes": list(end.exit_codes) if len(end.exit_codes) > 1 else [],
        "told": watch is not None and watch.told,  # someone had asked it to end
        "taken": watch is not None and watch.taken,  # it was the cloud, which takes the machine back
        "sent_away": watch is not None and watch.sent_away,  # or someone else who is not us
    }
    write_reserved(folder / "ended.json", ended)


def _run(
    folder: Path, order: dict[str, Any], log: IO[bytes], lock: int, *, watch: Watch, carriage: Carriage
) -> _End:
    """Start the job, wait for it to end, and for everything it started."""
    try:
        job, resumes_s = _start(folder, order, log, lock, watch=watch, carriage=carriage)
    except OSError as error:
        return _End(*_not_started(order, error))
    except WorldFailed as error:  # the store is unreachable: starting over would lose what is in it
        return _End(NOT_STARTED, error.said)
    # From here on the job runs: nothing, least of all a full disk, may end the runner before it.
    with contextlib.suppress(OSError):
        (folder / "order.json").unlink()  # its environment may hold secrets, and nobody needs it again
    with contextlib.suppress(OSError):
        write_json(folder / "child.json", {"group": job.pid, "born": born(job.pid), "resumes_s": resumes_s})
    job.go()
    watch.over(job)
    first, problem = 0, None
    for rank, how in job.ends():
        if how is not None and problem is None:
            first, problem = rank, how
            if len(_ranks(order)) > 1:
                problem = say("adapters.rank_failed", rank=Plain(rank), how=how)
                watch.ask()  # a gang ends as a whole: the others would wait for this one forever
    signal_group(job.pid, signal.SIGKILL)
    hears = order.get("hears_engine") and isolation.code_unreaped(job.pid) == -signal.SIGTERM
    if hears and not watch.told:
        time.sleep(HEARS_S)  # a kill of all processes of a job reaches us after the job
    watch.let_go()
    codes = [128 - code if code < 0 else code for code in job.wait()]
    _end_strays(but=carriage.pid)
    carriage.finish()
    return _End(codes[first], problem, codes)


def _ranks(order: dict[str, Any]) -> list[dict[str, str]]:
    """Per rank, the environment beyond what all ranks share."""
    return order.get("ranks") or [{}]


def _start(
    folder: Path, order: dict[str, Any], log: IO[bytes], lock: int, *, watch: Watch, carriage: Carriage
) -> tuple[_Ranks | isolation.Isolated, int]:
    """The job, and when the checkpoint it resumes from was sealed."""
    if not order.get("readies", True):
        return _Ranks(folder, order, lock), 0  # the first rank, elsewhere, has done so for all
    if not order.get("isolation"):
        with watch.preparing():
            said, resumes_s = _make_ready(order, carriage)
        _tell(log, said)
        _tell_begin(folder, order, log, resumes_s)
        carriage.begin_sending()
        return _Ranks(folder, order, lock), resumes_s
    fetched: list[Said] = []
    if carriage.goes:
        with watch.preparing():
            fetched = _fetch_for_isolated(folder, order, carriage)
        _tell(log, fetched)
    job = _start_isolated(folder, order, lock, carriage)
    try:
        with watch.preparing():
            found = job.prepared() or {"said": [], "resumes_s": 0}
    except StoppedBeforeBegun:
        # Kills its init, and with it the whole namespace. The group that init leads may not exist yet.
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
        raise
    again = {str(each) for each in fetched}
    _tell(log, (each for one in found["said"] if str(each := said_by_anybody(one)) not in again))
    carriage.begin_sending()
    return job, found["resumes_s"]


def _start_isolated(folder: Path, order: dict[str, Any], lock: int, carriage: Carriage) -> isolation.Isolated:
    def prepare() -> object:
        lines, found_s = _make_ready(order, carriage)
        return {"said": [as_record(line) for line in lines], "resumes_s": found_s}

    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(_open_log(folder, order, rank)) for rank in range(len(_ranks(order)))]
        return isolation.start(
            isolation.Isolation(**order["isolation"]),
            prepare,
            lambda rank: _become(order, rank),
            logs=[each.fileno() for each in logs],
            lock=lock,
        )


def _become(order: dict[str, Any], rank: int) -> tuple[int, Sentence]:
    """As the job's user: become the rank, or report why not."""
    try:
        os.chdir(order["folder"])
        env = {**order["env"], **_ranks(order)[rank]}
        os.execvpe(order["command"][0], order["command"], env)  # noqa: S606 - the requested command
    except OSError as error:
        return _not_started(order, error)


class _Ranks:
    """One process per rank, all in one process group; all of them, or an OSError and none."""

    def __init__(self, folder: Path, order: dict[str, Any], lock: int) -> None:
        self._ranks: list[subprocess.Popen[bytes]] = []
        for rank, env in enumerate(_ranks(order)):
            try:
                with _open_log(folder, order, rank) as log:
                    self._ranks.append(
                        subprocess.Popen(
                            order["command"],
                            cwd=order["folder"],
                            env={**order["env"], **env},
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            process_group=self._ranks[0].pid if self._ranks else 0,
                            pass_fds=[lock],
                        )
                    )
            except OSError:
                if self._ranks:
                    signal_group(self._ranks[0].pid, signal.SIGKILL)
                raise

    @property
    def pid(self) -> int:
        """Of the first rank and of the group."""
        return self._ranks[0].pid

    def go(self) -> None:
        """They already run."""

    def ends(self) -> Iterator[tuple[int, Said | None]]:
        """Each rank as it ends, and what was wrong with its end.

        Left unreaped, so that the group's number cannot be reused before the rest of the group has ended.
        """
        ended: queue.SimpleQueue[tuple[int, Said | None]] = queue.SimpleQueue()

        def wait(rank: int) -> None:
            ended.put((rank, isolation.how_ended(isolation.code_unreaped(self._ranks[rank].pid))))

        for rank in range(len(self._ranks)):
            threading.Thread(target=wait, args=(rank,), daemon=True).start()
        for _ in self._ranks:
            yield ended.get()

    def is_over(self) -> bool:
        return all(isolation.is_over(rank.pid) for rank in self._ranks)

    def wait(self) -> list[int]:
        return [rank.wait() for rank in self._ranks]


def _not_started(order: dict[str, Any], error: OSError) -> tuple[int, Sentence]:
    if not Path(order["folder"]).is_dir():
        return NOT_STARTED, say("adapters.no_job_folder", folder=order["folder"][:PROBLEM_CHARS])
    command = Quoted(order["command"][0][:PROBLEM_CHARS])
    # If a folder on the path is closed, the system says "not permitted" for a command that exists nowhere.
    found = shutil.which(order["command"][0], path=order["env"].get("PATH"))
    if isinstance(error, FileNotFoundError) or (found is None and os.sep not in order["command"][0]):
        folders = order["env"].get("PATH", "").split(os.pathsep)
        there = [each for each in folders if os.path.lexists(Path(each) / order["command"][0])]
        if there and found is None:  # such as a virtual environment's link to a Python in root's home
            path = f"{there[0]}/{order['command'][0]}"[:PROBLEM_CHARS]
            return NOT_FOUND, say("adapters.job_command_closed", path=path)
        looked_in = (order["command"][0], *folders)
        if order.get("isolation") and any(each.startswith(isolation.PRIVATE) for each in looked_in):
            private = ", ".join(isolation.PRIVATE)
            return NOT_FOUND, say("adapters.no_job_command_private", command=command, folders=private)
        return NOT_FOUND, say("adapters.no_job_command", command=command)
    return NOT_STARTED, say("adapters.cannot_start_command", command=command, error=os_words(error))


def _adopt_orphans() -> None:
    """Become the parent of processes that the job leaves behind, to find and end them (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_strays(*, but: int | None) -> None:
    """When a job ends, all its processes end: a stray one would keep holding GPU memory."""
    while rest := [pid for pid in _children() if pid != but]:
        for pid in rest:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in rest:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    listing = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    try:
        return [int(pid) for pid in listing.read_text().split()]
    except OSError:
        return []  # not Linux: ending the process group must do


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
