"""Shared by engines that keep a folder per lease: runner orders, environments, and kept work."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from brimful.adapters.code import CodeStore, read_packed
from brimful.adapters.engines import samples
from brimful.adapters.engines.job_users.users import JobUser, JobUsers
from brimful.adapters.engines.runner import WORK
from brimful.adapters.files import NOTE_BYTES, identity, in_words, is_trap, read_json, write_json
from brimful.adapters.objects.store import below
from brimful.errors import BrimfulError, Refused, Said, WorldFailed
from brimful.fleet.arrays import task_env
from brimful.fleet.job import Job, lacks_values
from brimful.job import newest
from brimful.language import os_words, say, verbatim
from brimful.scheduler.ports import CannotStart, Failures, Observation, Start

log = logging.getLogger("brimful")
T = TypeVar("T")
BEYOND = (OverflowError, RecursionError)  # raised by numbers and JSON from someone else
LookAt = Callable[[str], Iterable[Observation]]

MOST_EXIT_CODE = 1 << 16
MOST_SPEED = 1e6  # relative to the slowest GPU; larger values are rejected
LOG_BYTES = 64 << 20  # per lease: about how much of the latest output is kept
# What a job may see of the server's environment. It must not contain the server's secrets.
PASSED_ON = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")


class LeaseFolders:
    """The folders of a site's leases, with its jobs' environments and checkpoints beside them."""

    def __init__(
        self,
        root: Path,
        *,
        site: str,
        log_bytes: int,
        code: CodeStore | None,
        runs_as: JobUsers | None,
        store: str = "",
        store_env: Mapping[str, str] | None = None,
        notices: str = "",
    ) -> None:
        """`runs_as`: the users jobs run as; None: all jobs run as the current user.

        `store`: the URI that checkpoints are sent to, and its environment; empty: they stay here. `notices`:
        the cloud whose preemption notices runners watch; empty: none.
        """
        self._root, self.site = root, site
        self._store, self._store_env = store, store_env or {}
        self._notices = notices
        self._log_bytes = log_bytes
        self._code = code  # where packed code is stored
        self._runs_as = runs_as
        self._complaints: dict[str, Said] = {}
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.identity = identity(root)
        except OSError as error:
            raise WorldFailed(
                say("adapters.folder_unusable", root=root, error=in_words(error)), code="folder_unusable"
            ) from error

    def _look_at_each(
        self,
        leases: Collection[str],
        look: LookAt,
        *,
        fatal: str = "",
        then: Callable[[], Iterable[tuple[str, LookAt]]] = tuple,
    ) -> list[Observation]:
        """News of each lease. An unreadable lease becomes a complaint and does not block the others.

        `fatal`: the code of an error that concerns the whole site, not one lease. `then`: called after all of
        them; says which leases to look at again, and how.
        """
        found: dict[str, Said] = {}
        seen: list[Observation] = []

        def each() -> Iterator[tuple[str, LookAt]]:
            yield from ((lease, look) for lease in leases)
            yield from then()

        for lease, look_at in each():
            try:
                seen += look_at(lease)
            except (BrimfulError, OSError, LookupError, TypeError, ValueError, *BEYOND) as error:
                if isinstance(error, WorldFailed) and error.code == fatal:
                    raise
                why = error.said if isinstance(error, BrimfulError) else verbatim(str(error)[:200])
                found[lease] = say("adapters.cannot_look", lease=lease, why=why)
                if self._complaints.get(lease) != found[lease]:
                    log.warning("%s", found[lease])
        self._complaints = found
        return seen

    def _code_of(self, job: Job) -> dict[str, str] | None:
        """The archive that its runner unpacks."""
        if not job.code:
            return None
        if self._code is None or self._code.size(job.tenant, job.code) is None:
            raise CannotStart(say("adapters.code_gone", hash=job.code[:12]))
        return {"archive": str(self._code.path(job.tenant, job.code)), "code": job.code}

    def _archive(self, job: Job) -> bytes | None:
        """Its packed code, for nodes that do not share a folder with us."""
        found = self._code_of(job)
        return None if found is None else read_packed(Path(found["archive"]))

    def _order(
        self, start: Start, folder: Path, *, user: JobUser | None, speed: float, env: Mapping[str, str]
    ) -> dict[str, Any]:
        """What the runner of this folder is told, except its ranks."""
        lease, job = start.lease, start.job
        checkpoints = str(self.checkpoint_folder(job.job))
        return {
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
                **env,
            },
            "checkpoints": checkpoints,
            "store": below(self._store, job.job) if self._store else "",
            "store_env": dict(self._store_env),
            "checkpoints_from": start.checkpoints_from or None,
            "kept_until_s": start.kept_until_s,
            "log_bytes": self._log_bytes,
            "notices": self._notices,
            "speed": speed * (job.spread_rate if len(start.parts) > 1 else 1.0),
        }

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
        return below(self._store, job) if self._store else str(self.checkpoint_folder(job))

    def checkpoint_folder(self, job: str) -> Path:
        """One folder for all leases of the job at this site."""
        return self._folder(job).parent / ".checkpoints" / job

    def keep_env(self, job: str, env: Mapping[str, str]) -> None:
        with failing("adapters.cannot_keep_environment", job=job):
            self._env_file(job).parent.mkdir(exist_ok=True, mode=0o700)
            write_json(self._env_file(job), dict(env))

    def forget_env(self, job: str) -> None:
        with contextlib.suppress(OSError):
            self._env_file(job).unlink()

    def _kept_env(self, job: Job) -> Mapping[str, str]:
        path = self._env_file(job.array or job.job)
        kept = None if is_trap(path) else read_json(path)
        if kept is None and lacks_values(job.env):
            raise CannotStart(say("adapters.environment_lost", job=job.job))
        return dict(job.env) | (kept or {})

    def _env_file(self, job: str) -> Path:
        return self._folder(job).parent / ".env" / f"{job}.json"

    def _mark(self, lease: str) -> dict[str, str]:
        """Carried by every process of this lease and by no other: another folder's leases have another id."""
        return {"BRIMFUL_LEASE": lease, "BRIMFUL_ENGINE": self.identity}

    def _folder(self, lease: str) -> Path:
        assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", lease), f"{lease!r} is no name for a folder"
        return self._root / lease


@contextlib.contextmanager
def failing(code: str, **values: object) -> Iterator[None]:
    """Turns an OS error into WorldFailed with this code."""
    try:
        yield
    except OSError as error:
        raise WorldFailed(say(code, **values, error=os_words(error))) from error


def facts(path: Path) -> dict[str, Any] | None:
    """None if the file is missing, empty if it is unreadable: the job must still be stoppable."""
    try:
        return read_json(path, most_bytes=NOTE_BYTES)
    except (BrimfulError, OSError):
        return {}


def second(value: object) -> int:
    """A timestamp from a file that a job may have written: never in the future."""
    return max(0, min(moment(value), int(time.time())))


def moment(value: object) -> int:
    """The same as it was written: it is in the future if the clock was set back since."""
    if not isinstance(value, int | float):
        raise TypeError(f"{str(value)[:40]!r} is not a moment")
    return int(value)


def by_this_clock(started: dict[str, Any], ended: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both, moved back together if the clock was set back since: the time between them is what is billed."""
    late_s = moment(ended["at_s"]) - int(time.time())
    if late_s <= 0:
        return started, ended
    sealed_s = ended.get("sealed_s")
    moved = {"at_s": moment(ended["at_s"]) - late_s}
    if isinstance(sealed_s, int) and sealed_s > late_s:
        moved["sealed_s"] = sealed_s - late_s
    return {**started, "at_s": moment(started["at_s"]) - late_s}, {**ended, **moved}


def kept_work_s(
    started: Mapping[str, Any], ended: Mapping[str, Any], ended_s: int | None, *, is_done: bool
) -> float | None:
    """Work of this lease that a later one need not repeat: up to its last complete checkpoint.

    All of it only if the job finished: a job that was told to stop may have saved nothing.
    """
    speed, began_s = started.get("speed"), second(started["at_s"])
    if not isinstance(speed, int | float) or not 0 <= speed <= MOST_SPEED:
        return None
    ran_s = max(0, (began_s if ended_s is None else ended_s) - began_s)
    if is_done:
        return speed * ran_s
    sealed_s = ended.get("sealed_s")  # from its runner; otherwise we parse the seals, which is quick
    if not isinstance(sealed_s, int):
        last = newest(Path(str(started.get("checkpoints", ""))), most_bytes=NOTE_BYTES)
        sealed_s = 0 if last is None else last.at_s
    return speed * min(ran_s, max(0, sealed_s - began_s))


def is_done(folder: Path, ended: Mapping[str, Any]) -> bool:
    """It exited with 0, and not because someone told it to: an order to stop may have come too late.

    If its runner did not say, a stop order also counts if it is a dangling link.
    """
    told = ended.get("told", os.path.lexists(folder / "stop.json"))
    return ended.get("exit_code") == 0 and not told


def each_lease(
    act: Callable[[T], None], those: Mapping[str, T], run: Callable[..., Iterable[object]] = map
) -> Failures:
    """Do it for each lease; a failure of one does not block the others."""
    failed: dict[str, BrimfulError] = {}

    def one(lease: str) -> None:
        try:
            act(those[lease])
        except BrimfulError as error:
            failed[lease] = error
        except OSError as error:  # such as a folder that its job has closed
            failed[lease] = WorldFailed(say("adapters.cannot_look", lease=lease, why=os_words(error)))

    for _ in run(one, those):
        pass
    return failed


def exit_code_of(code: object) -> int | None:
    return code if isinstance(code, int) and abs(code) <= MOST_EXIT_CODE else None


def rank_env(rank: int, ranks: int) -> dict[str, str]:
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
        # brimful's own Python is last on the path, so that `python` exists even on Debian.
        "PATH": f"{path}{os.pathsep}{Path(sys.executable).parent}",
        "PYTHONUNBUFFERED": "1",  # otherwise the log lags minutes behind the job
        **wanted,
        **task_env(job),
        "BRIMFUL_JOB": job.job,
    }
