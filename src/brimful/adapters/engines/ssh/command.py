"""How we call OpenSSH."""

from __future__ import annotations

import re
from collections.abc import Sequence

ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9\[][A-Za-z0-9.:\]_-]*")  # cannot be an ssh option
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "SSH_AUTH_SOCK")
FAILED = 255  # ssh's exit code for a failed connection


def ssh_to(address: str, *more: str) -> list[str]:
    """Never prompts, and detects a dead peer within 15 s."""
    return [
        "ssh",
        *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
        *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
        *more,
        address,
        "--",
    ]


def shared(sockets: object) -> Sequence[str]:
    """One connection serves all commands and closes a minute after the last."""
    return ("-o", "ControlMaster=auto", "-o", f"ControlPath={sockets}/%C", "-o", "ControlPersist=60")
