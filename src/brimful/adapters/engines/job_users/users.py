"""Which user of this machine a tenant's jobs run as, and whose jobs may run here at all."""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from brimful.adapters.acting import closed_to
from brimful.adapters.engines.devices import device_files
from brimful.adapters.engines.job_users import cgroups
from brimful.adapters.engines.job_users.isolation import CHECKPOINTS, FETCHED, INSIDE, OWN, TOLD, Isolation
from brimful.adapters.engines.runner import WORK
from brimful.adapters.objects.store import is_store
from brimful.errors import BadInput, Refused, WorldFailed
from brimful.language import Plain, Quoted, Sentence, os_words, say

log = logging.getLogger("brimful")

MEMORY_FRAC = 0.9  # of the machine's memory, for all jobs together
PROCESSES_PER_GPU = 4096
MOST_UID = (1 << 32) - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUser:
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    @property
    def environment(self) -> dict[str, str]:
        """Replaces the server's own."""
        return {
            "HOME": self.home,
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": self.shell,
            "TMPDIR": "/tmp",  # noqa: S108 - its own
        }


def find_users(named: Mapping[str, str]) -> dict[str, JobUser]:
    """By tenant. Each has a separate user, and none is root."""
    if named and os.geteuid() != 0:
        raise BadInput(say("adapters.users_need_root", uid=Plain(os.geteuid())), code="users_need_root")
    found: dict[str, JobUser] = {}
    for tenant, name in named.items():
        user = _find_user(name)
        if 0 in (user.uid, user.gid, *user.groups):
            values = {"uid": Plain(user.uid), "gid": Plain(user.gid)}
            raise BadInput(say("adapters.user_is_root", tenant=tenant, user=Quoted(name), **values))
        other = next((each for each, its in found.items() if its.uid == user.uid), None)
        if other is not None:
            said = say("adapters.user_shared", tenant=tenant, other=other, uid=Plain(user.uid))
            raise BadInput(said)
        found[tenant] = user
    return found


def _find_user(name: str) -> JobUser:
    """A name or a uid, which need not be in the user database."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except (KeyError, OverflowError):
        if not name.isdecimal() or int(name) > MOST_UID:
            raise BadInput(say("adapters.no_such_user", user=Quoted(name[:60]))) from None
        uid = int(name)
        return JobUser(name=name, uid=uid, gid=uid, groups=(), home="/tmp", shell="/bin/sh")  # noqa: S108, S604 - it has none
    return JobUser(
        name=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        groups=tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)),
        home=entry.pw_dir,
        shell=entry.pw_shell or "/bin/sh",
    )


class JobUsers:
    """The rule of one machine: tenants whose jobs cannot be separated do not share it unless allowed to."""

    def __init__(
        self,
        folder: Path,
        users: Mapping[str, JobUser],
        *,
        shares: bool = False,
        memory_mib_per_gpu: int = 0,
        processes_per_gpu: int = PROCESSES_PER_GPU,
        hidden: tuple[Path, ...] = (),
        gpus: int = 1,
    ) -> None:
        """`folder`: the engines' folder. `gpus`: of the machine; they share its memory by default."""
        self._folder, self._users, self._shares = folder, users, shares
        self._hidden = tuple(map(str, hidden))
        self._bytes_per_gpu = memory_mib_per_gpu << 20 or int(_memory_bytes() * MEMORY_FRAC / max(1, gpus))
        self._processes_per_gpu = processes_per_gpu
        self.places = cgroups.find() if users else []
        if users and not self.places:
            log.warning("%s", say("adapters.no_limits"))
        python = Path(sys.executable)
        closed = {
            user.name: found for user in users.values() if (found := closed_to(python, user.uid, user.gid))
        }
        if closed:
            facts = {"users": ", ".join(sorted(closed)), "python": python, "folder": min(closed.values())}
            log.warning("%s", say("adapters.python_closed", **facts))

    @property
    def users(self) -> Mapping[str, JobUser]:
        """By tenant; empty: all jobs run as the server's user."""
        return self._users

    def user_of(self, tenant: str) -> JobUser | None:
        """None: the server's own."""
        return self._users.get(tenant)

    def admit(self, tenant: str) -> None:
        """Raises if jobs of this tenant may not run here."""
        if self._users and tenant not in self._users:
            known = ", ".join(sorted(self._users))
            raise Refused(say("adapters.tenant_without_user", tenant=tenant, known=known), code="no_job_user")
        if self._shares or self.places:
            return
        first = self._first(tenant)
        if first != tenant:
            said = say("adapters.second_tenant", tenant=tenant, first=first, why=self._why())
            raise Refused(said, code="second_tenant")

    def _why(self) -> Sentence:
        if self._users:
            return say("adapters.no_limits")
        return say("adapters.same_user", uid=Plain(os.geteuid()))

    def _first(self, tenant: str) -> str:
        """The tenant whose jobs run here: the first one, recorded beside the jobs."""
        path = self._folder / ".tenant"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileExistsError):
                path.symlink_to(tenant)  # a dangling link: text that is written atomically
            return str(path.readlink())
        except OSError as error:
            raise WorldFailed(say("adapters.folder_unusable", root=path, error=os_words(error))) from error

    def _groups(self, engine: str, lease: str) -> list[Path]:
        """Of all engines of this machine."""
        return cgroups.folders(self.places, f"{engine[:12]}.{lease}")

    def clear(self, engine: str, lease: str) -> None:
        """Removes what a killed runner leaves behind."""
        cgroups.remove(self._groups(engine, lease))

    def confine(self, order: Mapping[str, Any], user: JobUser, *, folder: Path, gpus: int) -> dict[str, Any]:
        """The lease's order for a job that runs as this user, with folders to read and to write."""
        checkpoints, elsewhere = Path(order["checkpoints"]), order["checkpoints_from"]
        shared = [(str(folder / TOLD), TOLD, False), (str(folder / OWN), OWN, True)]
        shared.append((str(checkpoints), CHECKPOINTS, True))
        carried = is_store(elsewhere or "") or is_store(order["store"])
        source = str(folder / FETCHED) if carried else elsewhere
        fetched = str(INSIDE / FETCHED) if source and (carried or Path(source).is_dir()) else None
        if source and fetched:
            shared.append((source, FETCHED, False))
        place = order["folder"]
        if order.get("code"):
            place = str(INSIDE / WORK)
            shared.append((str(folder / WORK), WORK, True))
        for path in (folder / TOLD, folder / OWN, checkpoints):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / TOLD).chmod(0o755)
        for path in (folder / OWN, checkpoints):
            os.chown(path, user.uid, user.gid)
        env = {
            **order["env"],
            "BRIMFUL_NOTICE": str(INSIDE / TOLD / "notice.json"),
            "BRIMFUL_SAMPLES": str(INSIDE / OWN / Path(order["env"]["BRIMFUL_SAMPLES"]).name),
            "BRIMFUL_CHECKPOINT_DIR": str(INSIDE / CHECKPOINTS),
        }
        devices = [each for rank in order["ranks"] for each in rank["CUDA_VISIBLE_DEVICES"].split(",")]
        isolation = Isolation(
            uid=user.uid,
            gid=user.gid,
            groups=user.groups,
            shared=shared,
            hidden=self._hidden,
            devices=device_files(devices),
            cgroups=[*map(str, self._groups(env["BRIMFUL_ENGINE"], env["BRIMFUL_LEASE"]))],
            memory_bytes=self._bytes_per_gpu * gpus,
            processes=self._processes_per_gpu * gpus,
        )
        told = {"env": env, "folder": place, "isolation": asdict(isolation)}
        told |= {"fetched": fetched}
        return {**order, **told}


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
