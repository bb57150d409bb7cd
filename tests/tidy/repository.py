"""The repository as the tidy tests see it."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SRC = ROOT / "src" / "brimful"
DOCS = ROOT / "docs"


@cache
def files() -> tuple[Path, ...]:
    """What is tracked, and what would be at the next `git add`; not what is ignored or deleted."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return tuple(path for name in names if name and (path := ROOT / name).is_file())


def python_files() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


def pages() -> list[Path]:
    """What people read: README, CONTRIBUTING and the documentation."""
    return [path for path in files() if path.suffix == ".md"]


def rooms() -> list[Path]:
    return sorted(
        {path.parent for path in python_files() if path.name == "__init__.py" and path.parent.parent == SRC}
    )


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
