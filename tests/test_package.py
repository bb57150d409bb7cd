"""What is published: the same bytes from the same files, and a program that needs nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful import __version__
from tests.conftest import missing

ROOT = Path(__file__).resolve().parent.parent
FIT = ["fit", "--model", "gpt2", "--gpu", "4070"]
NOTHING = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
GIT = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]


class Published:
    """Built twice: from a checkout, and from the sdist of that, elsewhere and by a stricter umask."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        names = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT)
        for name in filter(None, names.decode().split("\0")):
            if (ROOT / name).is_file():
                (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.checkout / name)
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all of it"]):
            subprocess.run([*GIT, *words], cwd=self.checkout, check=True)
        self.first = build(self.checkout, folder / "first")
        sdist = next(path for path in self.first if path.suffix == ".gz")
        before = os.umask(0o077)
        try:
            with tarfile.open(sdist) as archive:
                archive.extractall(folder / "from-sdist", filter="data")
            for path in (folder / "from-sdist").rglob("*"):
                os.utime(path, (0, 0))
            self.second = build(next((folder / "from-sdist").iterdir()), folder / "second")
        finally:
            os.umask(before)
        self.wheel = next(path for path in self.first if path.suffix == ".whl")

    def commit(self) -> str:
        command = ["git", "rev-parse", "--short=12", "HEAD"]
        return subprocess.check_output(command, cwd=self.checkout, text=True).strip()


def build(source: Path, to: Path) -> list[Path]:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(to)]
    env = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    done = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(to.iterdir())


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return Published(tmp_path_factory.mktemp("published"))


def test_two_builds_are_the_same_bytes(published: Published) -> None:
    def hashes(paths: list[Path]) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    assert len(published.first) == 2
    assert hashes(published.first) == hashes(published.second)


def test_the_wheel_holds_the_package_and_nothing_else(published: Published) -> None:
    inside = set(zipfile.ZipFile(published.wheel).namelist())
    package = {f"brimful/{path.relative_to(ROOT / 'src' / 'brimful')}" for path in sources()}
    info = f"brimful-{__version__}.dist-info/"
    assert {name for name in inside if not name.startswith(info)} == package | {"brimful/commit.txt"}


def sources() -> list[Path]:
    found = (ROOT / "src" / "brimful").rglob("*")
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def test_the_wheel_alone_predicts_a_job(published: Published, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--quiet"]
    subprocess.run([*install, "--disable-pip-version-check", str(published.wheel)], check=True)
    brimful = str(python.with_name("brimful"))
    env = NOTHING | {"HOME": str(tmp_path)}
    said = subprocess.run([brimful, *FIT], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert "RTX 4070" in said.stdout
    version = subprocess.check_output([brimful, "--version"], env=env, cwd=tmp_path, text=True)
    assert version == f"brimful {__version__} ({published.commit()})\n"


@pytest.fixture
def debian_13(tmp_path: Path) -> Iterator[Path]:
    """A system of its own, made by debootstrap, which fetches Debian's packages; 400 MB that nobody keeps."""
    if shutil.which("debootstrap") is None or os.getuid() != 0:
        missing("debootstrap and root", "run `apt-get install debootstrap` as root")
    there = tmp_path / "trixie"
    command = ["debootstrap", "--variant=minbase", "--include=python3,python3-pip", "trixie", str(there)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    yield there
    assert not (there / "proc").is_mount()
    shutil.rmtree(there)


@pytest.mark.release
def test_the_wheel_runs_on_debian_13(published: Published, debian_13: Path) -> None:
    there = debian_13
    shutil.copy(published.wheel, there / "root")
    wheel = f"/root/{published.wheel.name}"

    def inside(*words: str) -> subprocess.CompletedProcess[str]:
        env = NOTHING | {"HOME": "/root"}
        return subprocess.run(
            ["chroot", str(there), *words], env=env, capture_output=True, text=True, check=False
        )

    assert "3.13" in inside("python3", "--version").stdout
    options = ("--no-index", "--break-system-packages", "--root-user-action=ignore")
    done = inside("python3", "-m", "pip", "install", *options, wheel)
    assert done.returncode == 0, done.stderr
    said = inside("/usr/local/bin/brimful", *FIT)
    assert (said.returncode, said.stderr) == (0, "")
    assert "RTX 4070" in said.stdout
