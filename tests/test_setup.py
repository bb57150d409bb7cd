"""tools/setup.sh with a Python that only pretends: when it installs, and how it recovers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Writes down what it is asked to do; makes an environment by copying itself; fails to install while
# a file `broken` exists.
FAKE_PYTHON = """#!/bin/sh
echo "$*" >>calls
case "$*" in
--version) echo "Python 3.99.0" ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip install"*) if [ -e broken ]; then exit 1; fi ;;
esac
"""


class Checkout:
    """A folder with the files setup.sh looks at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tools").mkdir()
        shutil.copy(ROOT / "tools" / "setup.sh", folder / "tools")
        (folder / "pyproject.toml").write_text("first")
        (folder / "constraints.txt").write_text("")
        python = folder / "python"
        python.write_text(FAKE_PYTHON)
        python.chmod(0o755)

    def setup(self, which: str = "run", python: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(self.folder / "tools" / "setup.sh"), which],
            env={"PATH": "/usr/bin:/bin", "PYTHON": python or str(self.folder / "python")},
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self, word: str) -> int:
        log = self.folder / "calls"
        return sum(word in line for line in log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_first_call_makes_and_installs_and_the_second_does_nothing(checkout: Checkout) -> None:
    first, second = checkout.setup(), checkout.setup()
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(first.stderr.splitlines()) == 2
    assert second.stderr == ""
    assert (checkout.calls("-m venv"), checkout.calls("pip install")) == (1, 1)


def test_changed_requirements_are_installed_into_the_same_environment(checkout: Checkout) -> None:
    checkout.setup()
    (checkout.folder / "pyproject.toml").write_text("second")
    checkout.setup()
    assert (checkout.calls("-m venv"), checkout.calls("pip install")) == (1, 2)


def test_each_set_has_a_stamp_of_its_own(checkout: Checkout) -> None:
    checkout.setup("run")
    checkout.setup("dev")
    assert (checkout.calls(".[server]"), checkout.calls(".[dev]")) == (1, 1)


def test_an_environment_with_another_python_than_the_one_named_is_made_anew(checkout: Checkout) -> None:
    checkout.setup()
    other = checkout.folder / "other"
    other.write_text(FAKE_PYTHON + 'case "$*" in "-c import sys; print("*) echo other ;; esac\n')
    other.chmod(0o755)
    named, again = checkout.setup(python=str(other)), checkout.setup(python=str(other))
    assert (named.returncode, again.returncode, again.stderr) == (0, 0, "")
    assert "is not what .venv was made with" in named.stderr
    assert checkout.calls("-m venv") == 2


def test_a_python_that_does_not_work_removes_nothing(checkout: Checkout) -> None:
    checkout.setup()
    done = checkout.setup(python="/nowhere/python3")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert (checkout.folder / ".venv" / ".ready-run").exists()


def test_an_interrupted_installation_is_thrown_away(checkout: Checkout) -> None:
    checkout.setup()
    dead = subprocess.Popen(["true"])
    dead.wait()
    (checkout.folder / ".venv" / ".installing").write_text(str(dead.pid))
    again = checkout.setup()
    assert again.returncode == 0
    assert "interrupted" in again.stderr
    assert checkout.calls("-m venv") == 2


def test_an_installation_that_failed_is_tried_again(checkout: Checkout) -> None:
    (checkout.folder / "broken").touch()
    assert checkout.setup().returncode == 1
    (checkout.folder / "broken").unlink()
    assert checkout.setup().returncode == 0
    assert (checkout.calls("-m venv"), checkout.calls("pip install")) == (1, 2)


def test_an_environment_that_was_moved_is_made_anew(checkout: Checkout) -> None:
    checkout.setup()
    moved = checkout.folder / "elsewhere"
    moved.mkdir()
    for name in ("tools", "pyproject.toml", "constraints.txt", ".venv", "python"):
        (checkout.folder / name).rename(moved / name)
    done = subprocess.run(
        ["sh", "tools/setup.sh", "run"],
        cwd=moved,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(moved / "python")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "making .venv" in done.stderr


def test_a_python_that_is_none_is_named_in_one_sentence(checkout: Checkout) -> None:
    done = checkout.setup(python="/bin/false")
    assert done.returncode == 1
    assert done.stderr == "brimful: PYTHON=/bin/false is not a working Python 3.11 or newer\n"
    assert not (checkout.folder / ".venv").exists()
