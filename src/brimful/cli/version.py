"""The version of this brimful, and the commit it was built from or runs in."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path


def version() -> str:
    from brimful import __version__

    commit = _commit()
    return f"{__version__} ({commit})" if commit else __version__


def _commit() -> str:
    built = files("brimful") / "commit.txt"  # tools/build_hook.py puts it into a wheel, and runs this file
    if built.is_file():
        return built.read_text(encoding="utf-8").strip()
    checkout = Path(__file__).parents[3]
    return commit_of(checkout) if (checkout / ".git").exists() else ""


def commit_of(checkout: Path) -> str:
    """Its first twelve digits, with `-dirty` if files have changed since; empty if git cannot tell."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
