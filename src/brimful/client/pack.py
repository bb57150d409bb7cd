"""The folder a job was submitted from, as one archive: the same content gives the same bytes.

In a git work tree: what git tracks, and what it does not ignore; elsewhere the whole folder. Always left out:
`ALWAYS`, a server's data folder, and what a `.brimfulignore` names. Whoever unpacks it trusts none of this.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import posixpath
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from brimful.adapters.code import MAX_BYTES, MAX_FILES, leaves
from brimful.errors import BadInput
from brimful.job import open_plain
from brimful.language import Number, Quoted, Several, Size, say
from brimful.language.failures import os_errors_as

IGNORE = ".brimfulignore"
MAX_IGNORE_BYTES = 1 << 20
# Secrets, and what every machine makes for itself.
HOMES = (".ssh", ".aws", ".kube", ".gnupg", ".local", ".cache")  # when submitting from a home folder
ALWAYS = (".git", ".env", ".env.*", ".venv", "__pycache__", *HOMES)
IN_MEMORY_BYTES = 16 << 20
LARGEST = 3  # names shown if it is too much


@dataclass(frozen=True, slots=True)
class Pack:
    """An archive, ready to send. `left_out`: files excluded by our rules or by `.brimfulignore`."""

    code: str  # its SHA-256, the server's name for it
    file: IO[bytes]
    size: int
    files: int
    files_bytes: int  # without the archive's own
    left_out: tuple[str, ...]


@contextlib.contextmanager
def packed(folder: Path) -> Iterator[Pack]:
    patterns = [*ALWAYS, *_ignored(folder)]
    names, left_out = list[str](), list[str]()
    listed = _listed(folder, patterns)
    secret = _data_folders(listed)
    if "" in secret:
        raise BadInput(say("client.pack_data_folder", folder=folder))
    patterns += [f"/{_literal(each)}/" for each in secret]
    for name in sorted(listed):
        (left_out if _matches(name, patterns) else names).append(name)
    sizes = _sizes(folder, names)
    with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as file:
        hashing = _Hashing(file)
        with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.GNU_FORMAT) as tar:
            for name in sizes:
                _add(tar, folder, name)
        size = file.tell()
        file.seek(0)
        yield Pack(hashing.code, file, size, len(sizes), sum(sizes.values()), tuple(left_out))


class _Hashing(io.RawIOBase):
    """Passes writes on, and knows the SHA-256 of what it passed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest = file, hashlib.sha256()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._digest.update(data)
        return self._file.write(data)

    @property
    def code(self) -> str:
        return self._digest.hexdigest()


def _listed(folder: Path, patterns: Sequence[str]) -> set[str]:
    """Files and links by their path in the folder; excluded folders are not searched."""
    asked = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        git = subprocess.run(asked, capture_output=True, check=False)
    except OSError:
        return set(_walked(folder, patterns))
    if git.returncode:
        return set(_walked(folder, patterns))
    return {os.fsdecode(name) for name in git.stdout.split(b"\0") if name}


def _is_data(names: Collection[str]) -> bool:
    """Whether these are files of a server's data folder: jobs must not read its tokens."""
    return "brimful.db" in names or {"token", "server.lock"} <= set(names)


def _data_folders(listed: Collection[str]) -> set[str]:
    within: dict[str, set[str]] = {}
    for name in listed:
        at, _, last = name.rpartition("/")
        within.setdefault(at, set()).add(last)
    return {at for at, names in within.items() if _is_data(names)}


def _literal(name: str) -> str:
    """A pattern that matches only this name."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _walked(folder: Path, patterns: Sequence[str]) -> Iterator[str]:
    found, todo = 0, [""]
    while todo:
        at = todo.pop()
        with _readable(at):
            entries = list(os.scandir(folder / at))
        is_data = _is_data({entry.name for entry in entries})
        for entry in entries:
            name = posixpath.join(at, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if not _matches(name, patterns) and not is_data:
                    todo.append(name)
                continue
            yield name
            found += 1
            if found > MAX_FILES * 2:  # someone's home, or a data set: no need to count it all
                raise BadInput(say("client.pack_too_many", files=Number(found), most=Number(MAX_FILES)))


def _sizes(folder: Path, names: Sequence[str]) -> dict[str, int]:
    """By name; skips what is not a file (a submodule, a pipe), and refuses too much."""
    sizes: dict[str, int] = {}
    for name in names:
        with _readable(name), suppress(FileNotFoundError):  # git knows it, but it is deleted
            facts = (folder / name).lstat()
            if stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode):
                sizes[name] = facts.st_size
    if len(sizes) > MAX_FILES:
        raise BadInput(say("client.pack_too_many", files=Number(len(sizes)), most=Number(MAX_FILES)))
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST]
        shown = Several(tuple(say("client.pack_file", name=Quoted(n), size=Size(sizes[n])) for n in largest))
        raise BadInput(
            say("client.pack_too_large", size=Size(total), most=Size(MAX_BYTES), largest=shown),
            code="too_large",
        )
    return sizes


def _add(tar: tarfile.TarFile, folder: Path, name: str) -> None:
    entry, path = tarfile.TarInfo(name), folder / name
    with _readable(name):
        if path.is_symlink():
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
            if leaves(name, entry.linkname):
                target = Quoted(entry.linkname[:200])
                raise BadInput(say("client.pack_link_leaves", name=Quoted(name), target=target))
            tar.addfile(entry)
            return
        with open_plain(path, below=folder) as file:
            facts = os.fstat(file.fileno())
            entry.size = facts.st_size
            # No other metadata: another clone of the same code must give the same bytes.
            entry.mode = 0o755 if facts.st_mode & 0o100 else 0o644
            tar.addfile(entry, file)


def _readable(name: str) -> AbstractContextManager[None]:
    return os_errors_as("client.pack_unreadable", BadInput, name=Quoted(name or "."))


def _ignored(folder: Path) -> list[str]:
    lines: list[str] = []
    path = folder / IGNORE
    with _readable(str(path)):  # `exists` raises where the folder may not be entered
        if path.exists():
            with path.open(encoding="utf-8", errors="surrogateescape") as file:
                lines = file.read(MAX_IGNORE_BYTES).splitlines()
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if excepted := [each for each in patterns if each.startswith("!")]:
        raise BadInput(say("client.pack_bad_pattern", pattern=Quoted(excepted[0][:60]), file=IGNORE))
    return patterns


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """`*.bin` and `data` at any depth, `data/` folders only, `/data` and `a/b` from the top."""
    parts = name.split("/")
    for i, part in enumerate(parts):
        is_folder = i < len(parts) - 1
        for pattern in patterns:
            plain = pattern.strip("/")
            if pattern.endswith("/") and not is_folder:
                continue
            if fnmatchcase("/".join(parts[: i + 1]) if "/" in pattern.rstrip("/") else part, plain):
                return True
    return False
