"""Packed code: stored once per tenant and content, and unpacked for a lease without trusting anything in it.

code/<tenant>/<sha-256>.tar
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from brimful.adapters.files import discard, is_trap
from brimful.errors import BadInput, Refused, WorldFailed
from brimful.files import replacing
from brimful.job import open_plain, read_plain
from brimful.language import Number, Quoted, Size, os_words, say

MAX_BYTES = 100 << 20
MAX_FILES = 20_000
# What the archive adds to the files: a 512-byte block each, twice that for a long name, and padding.
MAX_PACKED_BYTES = MAX_BYTES + MAX_FILES * 2048 + (1 << 16)
MAX_DEPTH = 100  # nested folders
MAX_TENANT_BYTES = 20 << 30
LEAST_BYTES = 1 << 20  # the minimum an archive counts for: files take more disk than their bytes
NAME = re.compile(r"[0-9a-f]{64}")
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
BLOCK_BYTES = 1 << 20


class CodeStore:
    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, tenant: str, code: str) -> Path:
        assert TENANT.fullmatch(tenant), f"{tenant!r} is no name of a folder"
        assert NAME.fullmatch(code), f"{code!r} is no SHA-256"
        return self.root / tenant / f"{code}.tar"

    def size(self, tenant: str, code: str) -> int | None:
        """In bytes; None if this tenant has no such code. Counts as a use, which delays its deletion."""
        path = self.path(tenant, code)
        try:
            os.utime(path)
            return None if is_trap(path) else path.stat().st_size
        except OSError:
            return None

    @contextlib.contextmanager
    def receiving(self, tenant: str, code: str) -> Iterator[Receiving]:
        """Stored only if it arrives complete and matches its hash."""
        path = self.path(tenant, code)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._check_room(path.parent, tenant)
            with replacing(path, mode=0o600) as file:
                upload = Receiving(file)
                yield upload
                upload.check(code)
        except OSError as error:
            raise WorldFailed(say("adapters.cannot_keep_code", error=os_words(error))) from error

    def _check_room(self, folder: Path, tenant: str) -> None:
        sizes = (entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))
        held = sum(max(size, LEAST_BYTES) for size in sizes)
        if held > MAX_TENANT_BYTES:
            raise Refused(
                say("adapters.code_full", tenant=tenant, held=Size(held), most=Size(MAX_TENANT_BYTES)),
                code="code_full",
            )


def read_packed(archive: Path) -> bytes:
    return read_plain(archive, below=archive.parent, most_bytes=MAX_PACKED_BYTES)


class Receiving:
    """An upload in progress."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > MAX_PACKED_BYTES:
            raise BadInput(say("adapters.code_too_large", most=Size(MAX_PACKED_BYTES)), code="too_large")
        self._digest.update(data)
        self._file.write(data)

    def check(self, code: str) -> None:
        found = self._digest.hexdigest()
        if found != code:
            raise BadInput(say("adapters.code_differs", size=Number(self.size), found=found, named=code))


def leaves(name: str, target: str) -> bool:
    """Whether a link to this name could lead out of the folder: `..` may only come first, and not too often.

    A later `..` could pass through another link and end up somewhere else.
    """
    parts = [part for part in target.split("/") if part != "."]
    up = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    return not target or target.startswith("/") or ".." in parts[up:] or up > name.count("/")


def unpack(archive: Path, into: Path, *, code: str) -> int:
    """Unpack plain files, folders and links that stay inside, and nothing else; returns how many there were.

    The archive is read once, through the file opened first, so that what was checked is what is unpacked.
    """
    discard(into)
    into.mkdir(mode=0o700)
    with open_plain(archive, below=archive.parent) as file:
        digest = hashlib.sha256()
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
        if digest.hexdigest() != code:
            raise BadInput(say("adapters.code_damaged", hash=code[:12]))
        file.seek(0)
        links: list[tarfile.TarInfo] = []
        count = size = 0
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for count, entry in enumerate(tar, start=1):
                    size += entry.size
                    _check(entry, count, size)
                    if entry.issym():
                        links.append(entry)  # created last, so that nothing is written through one
                    else:
                        _write(tar, entry, into)
        except (tarfile.TarError, ValueError, LookupError, ArithmeticError) as error:  # from sparse headers
            raise BadInput(say("adapters.code_no_archive", error=str(error)[:200])) from error
        names = {entry.name for entry in links}
        for entry in links:
            path = into / entry.name
            # A path below a link is not where its name says: it could create files outside the folder.
            if not names.isdisjoint(map(str, PurePosixPath(entry.name).parents)):
                raise BadInput(say("adapters.code_bad_entry", name=Quoted(entry.name[:100])))
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.symlink_to(entry.linkname)
    return count


def _check(entry: tarfile.TarInfo, count: int, size: int) -> None:
    """`count` and `size` are the totals so far, including this entry."""
    if count > MAX_FILES:
        raise BadInput(say("adapters.code_too_many", most=Number(MAX_FILES)))
    if size > MAX_BYTES:  # a sparse file takes almost no space in the archive
        raise BadInput(say("adapters.code_too_large_inside", most=Size(MAX_BYTES)))
    # A name that starts with a slash has an empty first part.
    parts = entry.name.split("/")
    is_bad = not {"", ".", ".."}.isdisjoint(parts) or "\0" in entry.name or len(parts) > MAX_DEPTH
    if is_bad or not (entry.isreg() or (entry.issym() and not leaves(entry.name, entry.linkname))):
        raise BadInput(say("adapters.code_bad_entry", name=Quoted(entry.name[:100])))


def _write(tar: tarfile.TarFile, entry: tarfile.TarInfo, into: Path) -> None:
    path = into / entry.name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    source = tar.extractfile(entry)
    assert source is not None, "it is a plain file"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o700 if entry.mode & 0o100 else 0o600), "wb") as file:
        while block := source.read(BLOCK_BYTES):
            file.write(block)
