"""Where objects are kept: a folder (also on NFS) or a bucket. Objects are written whole and never change.

/mnt/shared/brimful                                    a folder that every site mounts
s3://bucket/prefix?endpoint=http://host:8333&region=…  S3 or a compatible store (brimful[s3])
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, urlsplit, urlunsplit

from brimful.adapters.files import discard
from brimful.errors import BadInput, WorldFailed
from brimful.job import open_plain
from brimful.language import Quoted, os_words, say

HALF = ".half-"
OPTIONS = frozenset({"endpoint", "region"})


class StoreFailed(WorldFailed):
    """The store does not answer or denies access. Its contents are unknown."""


class Objects(Protocol):
    """Objects by key, under one URI. Any call may raise StoreFailed; calls are thread-safe."""

    uri: str

    def put(self, key: str, data: bytes) -> bool:
        """Write it unless the key exists; False: it does, and stays unchanged."""

    def get(self, key: str) -> bytes | None:
        """The whole object; None if it does not exist."""

    def keys(self, under: str) -> dict[str, int]:
        """Sizes in bytes by key, for all keys that start with `under`, which ends with a slash."""

    def remove(self, keys: Iterable[str]) -> None:
        """Removes those that exist."""


class Folder:
    """Files below a folder. A hard link makes a name appear at once and complete, on NFS too."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._root = Path(urlsplit(store_uri(uri)).path)

    def put(self, key: str, data: bytes) -> bool:
        path = self._root / key
        half = path.with_name(f"{HALF}{os.urandom(8).hex()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                with half.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                half.chmod(0o600)
                os.link(half, path)
            finally:
                half.unlink(missing_ok=True)
        except FileExistsError:
            return False
        except OSError as error:
            raise _failed(self.uri, error) from error
        return True

    def get(self, key: str) -> bytes | None:
        try:
            with open_plain(self._root / key, below=self._root) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(self.uri, error) from error

    def keys(self, under: str) -> dict[str, int]:
        found: dict[str, int] = {}
        try:
            # A missing mount looks like an empty folder: a job would start from scratch.
            if not self._root.parent.is_dir():
                raise FileNotFoundError(2, os.strerror(2), str(self._root.parent))
            for folder, _, names in os.walk(self._root / under.rstrip("/")):
                for name in names:
                    if not name.startswith(HALF):
                        path = Path(folder, name)
                        with contextlib.suppress(FileNotFoundError):
                            found[path.relative_to(self._root).as_posix()] = path.stat().st_size
        except OSError as error:
            raise _failed(self.uri, error) from error
        return found

    def remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            discard(self._root / key)


def _failed(uri: str, error: OSError) -> StoreFailed:
    return StoreFailed(say("adapters.store_failed", uri=uri, error=os_words(error)), code="store_failed")


def is_store(place: str) -> bool:
    """Whether it is a store's URI, and not a local checkpoint folder."""
    return "://" in place


def store_uri(place: str) -> str:
    """The operator's setting as a URI; BadInput if it is not a store."""
    uri = f"file://{place}" if place.startswith("/") else place
    parts = urlsplit(uri)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return uri
    if parts.scheme == "s3" and parts.netloc and parse_qs(parts.query).keys() <= OPTIONS:
        return uri
    raise BadInput(say("adapters.bad_store", uri=Quoted(place[:200])), code="bad_store")


def below(uri: str, name: str) -> str:
    """The URI of this name in the store."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def open_store(uri: str) -> Objects:
    """The store at the URI (`store_uri`). Does not connect yet."""
    parts = urlsplit(store_uri(uri))
    if parts.scheme == "file":
        return Folder(uri)
    from brimful.adapters.objects.s3 import Bucket

    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    return Bucket(uri, bucket=parts.netloc, prefix=parts.path.strip("/"), **options)
