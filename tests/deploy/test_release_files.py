"""A workflow, a citation, a container file: each linter takes ours, and refuses a broken one."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from brimful import __version__

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
CITATION = ROOT / "CITATION.cff"
CONTAINER = ROOT / "deploy" / "container" / "Containerfile"


def check(kind: str, path: Path) -> int:
    command = [str(BIN / "check-jsonschema"), "--builtin-schema", f"vendor.{kind}", str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    ("kind", "path", "good", "bad"),
    [
        ("github-workflows", WORKFLOW, "runs-on:", "run-on:"),
        ("citation-file-format", CITATION, "authors:", "writers:"),
    ],
)
def test_the_schema_takes_it(kind: str, path: Path, good: str, bad: str, tmp_path: Path) -> None:
    assert check(kind, path) == 0
    broken = tmp_path / path.name
    broken.write_text(path.read_text("utf-8").replace(good, bad), "utf-8")
    assert check(kind, broken) == 1


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load(CITATION.read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (cited["version"], cited["license"]) == (__version__, project["license"])


def test_the_workflow_runs_our_own_targets_on_every_python_we_name() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert jobs["test"]["strategy"]["matrix"]["python"] == named
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    made = [run.split()[1] for run in runs if run.startswith("make ")]
    assert {"check", "test", "docs", "test-engines", "test-release"} <= set(made) <= targets
    others = [run for run in runs if not run.startswith("make ")]
    assert all(run.startswith("apt-get update && apt-get install ") for run in others)


def test_hadolint_takes_the_container_file(tmp_path: Path) -> None:
    hadolint = [str(BIN / "hadolint"), "--failure-threshold", "style"]
    done = subprocess.run([*hadolint, str(CONTAINER)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    broken = tmp_path / "Containerfile"
    broken.write_text(
        CONTAINER.read_text("utf-8").replace("python:3.13-slim-bookworm", "python:latest"), "utf-8"
    )
    assert subprocess.run([*hadolint, str(broken)], capture_output=True, check=False).returncode == 1


def test_the_container_copies_what_the_build_needs(tmp_path: Path) -> None:
    """The wheel is built here from the files that it copies, and from nothing else."""
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINER.read_text("utf-8"), re.MULTILINE)
    for name in " ".join(copied).split():
        for path in [ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                there = tmp_path / "source" / path.relative_to(ROOT)
                there.parent.mkdir(parents=True, exist_ok=True)
                there.write_bytes(path.read_bytes())
    (tmp_path / "source" / "src" / "brimful" / "commit.txt").write_text("0123456789ab\n")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(command, cwd=tmp_path / "source", check=True, capture_output=True)
    assert [path.suffix for path in (tmp_path / "dist").iterdir()] == [".whl"]
