"""Run by Hatchling: puts the commit into the wheel and the sdist, where `brimful --version` finds it."""

from __future__ import annotations

import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        commit = _commit(Path(self.root))
        if version == "editable" or not commit:  # a checkout asks git each time
            return
        self.made = Path(tempfile.mkdtemp(prefix="brimful-build-")) / "commit.txt"
        self.made.write_text(f"{commit}\n", encoding="utf-8")
        inside = "brimful" if self.target_name == "wheel" else "src/brimful"
        build_data["force_include"][str(self.made)] = f"{inside}/commit.txt"

    def finalize(self, *_: object) -> None:
        if made := getattr(self, "made", None):
            shutil.rmtree(made.parent)


def _commit(root: Path) -> str:
    package = root / "src" / "brimful"
    if (package / "commit.txt").exists():  # an sdist has it
        return (package / "commit.txt").read_text(encoding="utf-8").strip()
    # By path: the package being built need not be installed.
    commit_of = runpy.run_path(str(package / "cli" / "version.py"))["commit_of"]
    return str(commit_of(root)) if (root / ".git").exists() else ""
