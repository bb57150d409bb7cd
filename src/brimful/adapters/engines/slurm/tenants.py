"""Ownership of jobs when a server running as root submits them as their tenants' users (`--job-users`).

A lease's folder then belongs to its tenant: its runner is that user's process and writes there. The server
looks into it with that user's rights.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from brimful.adapters.acting import acting_as_owner, closed_to
from brimful.adapters.code import read_packed
from brimful.adapters.engines.job_users.users import JobUser
from brimful.adapters.engines.lease_folders import failing
from brimful.errors import BadInput
from brimful.files import write_whole
from brimful.language import say


class Tenants:
    def __init__(self, users: Mapping[str, JobUser], *, site: str) -> None:
        self.users, self._site = users, site

    def acting_in(self, folder: Path) -> contextlib.AbstractContextManager[None]:
        if not self.users:
            return contextlib.nullcontext()
        with contextlib.suppress(OSError):  # closing one's own folder must not hide a lease
            if folder.lstat().st_mode & 0o700 != 0o700:
                folder.chmod(0o700)
        return acting_as_owner(folder)

    def is_owner(self, folder: Path, uid: int) -> bool:
        """Whether this user owns the lease of this folder. Without users, Slurm shows only our jobs."""
        if not self.users:
            return True
        try:
            return folder.lstat().st_uid == uid
        except OSError:
            return False

    def let_in(self, root: Path, python: Path) -> None:
        """Tenants must be able to reach their leases and the Python that runs there."""
        # setfsuid does not change groups: with root's groups a planted link could reach more.
        if os.geteuid() == 0:
            os.setgroups([])
        with failing("adapters.folder_unusable", root=root):
            for each in (root, root / ".checkpoints"):
                each.mkdir(exist_ok=True)
                each.chmod(0o711)
        for user in self.users.values():
            for path in (root, python):
                if closed := closed_to(path, user.uid, user.gid):
                    facts = {"site": self._site, "user": user.name, "path": closed}
                    if closed in path.parents:
                        raise BadInput(say("slurm.user_cannot_reach", **facts))
                    raise BadInput(say("slurm.user_cannot_reach_link", link=path, **facts))

    def copy_code(self, code: Mapping[str, str], folder: Path) -> dict[str, str]:
        """Only the server can read packed code, so a tenant's runner gets a copy."""
        packed = read_packed(Path(code["archive"]))
        with self.acting_in(folder):
            write_whole(folder / "code.tar", packed, mode=0o600)
        return {**code, "archive": str(folder / "code.tar")}


def give_folder(folder: Path, user: JobUser | None) -> None:
    """Created by us, in a folder that only we can write to."""
    folder.mkdir(exist_ok=True, mode=0o700)
    if user is not None:
        os.chown(folder, user.uid, user.gid, follow_symlinks=False)
