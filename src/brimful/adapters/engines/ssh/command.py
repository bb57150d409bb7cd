"""How we call OpenSSH, wherever we do."""

from __future__ import annotations

import re
from collections.abc import Sequence

ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9\[][A-Za-z0-9.:\]_-]*")  # never a flag of ssh
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "SSH_AUTH_SOCK")
FAILED = 255  # what ssh says where it did not get there


def ssh_to(address: str, *more: str) -> list[str]:
    """It asks for nothing, and notices within 15 s that the other end is gone."""
    return [
        "ssh",
        *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
        *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
        *more,
        address,
        "--",
    ]


def shared(sockets: object) -> Sequence[str]:
    """One connection serves all commands, and ends a minute after the last."""
    return ("-o", "ControlMaster=auto", "-o", f"ControlPath={sockets}/%C", "-o", "ControlPersist=60")
