"""A job's checkpoints in a store.

    blocks/<sha256>             a piece of a file, named by its hash: an existing block is not sent again
    saved/<lease>/<step>.json   a manifest: written last and once; without it there is no checkpoint
    fence/<lease>.json          this lease has taken over the job, and these are the manifests it found

A lease writes manifests only under its own number, so none can overwrite another's. What an orphan saves
after a later lease took over is on no fence and is never used.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from brimful.adapters.files import discard
from brimful.adapters.objects.store import Objects, StoreFailed
from brimful.errors import Refused
from brimful.job import SEAL, SEAL_BYTES, Checkpoint, damage, open_plain, read_seal
from brimful.language import Sentence, os_words, say

BLOCK_BYTES = 32 << 20
AT_ONCE = 4  # blocks in flight: they are held in memory
FETCHING = ".fetching-"
Tell = Callable[[int], object]  # bytes just moved


class Overtaken(Refused):
    """A later lease of the job has taken over: this one is an orphan and keeps nothing."""


class Damaged(Exception):
    """The fetched bytes are not what was sealed."""

    def __init__(self, said: Sentence) -> None:
        super().__init__(str(said))
        self.said = said


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a file."""

    file: str
    offset: int
    size: int
    sha256: str = ""  # empty: only the whole file's hash is known


class Source(Protocol):
    """Has a checkpoint to fetch."""

    @property
    def step(self) -> int: ...
    @property
    def at_s(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def seal(self) -> bytes: ...
    @property
    def files(self) -> Mapping[str, tuple[int, str]]: ...
    def blocks(self) -> Iterable[Block]: ...
    def read(self, block: Block) -> bytes:
        """Its bytes; Damaged if they are not what was sealed."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A checkpoint in a local folder."""

    checkpoint: Checkpoint

    @property
    def step(self) -> int:
        return self.checkpoint.step

    @property
    def at_s(self) -> int:
        return self.checkpoint.at_s

    @property
    def name(self) -> str:
        return self.checkpoint.folder.name

    @property
    def place(self) -> str:
        return str(self.checkpoint.folder.parent)

    @property
    def files(self) -> Mapping[str, tuple[int, str]]:
        return self.checkpoint.files

    @property
    def seal(self) -> bytes:
        return self.read(Block(SEAL, 0, SEAL_BYTES))

    def blocks(self) -> Iterator[Block]:
        for name, (size, _) in self.files.items():
            if size < 0:
                raise Damaged(say("job.size_differs", name=name, found=0, size=size))
            for offset in range(0, max(size, 1), BLOCK_BYTES):
                yield Block(name, offset, min(BLOCK_BYTES, size - offset))

    def read(self, block: Block) -> bytes:
        folder = self.checkpoint.folder
        try:
            with open_plain(folder / block.file, below=folder.parent) as file:
                file.seek(block.offset)
                data = file.read(block.size)
        except OSError as error:
            raise Damaged(say("adapters.cannot_copy", why=os_words(error))) from error
        if len(data) != block.size and block.file != SEAL:  # early: a seal may claim any size
            found, size = block.offset + len(data), self.files[block.file][0]
            raise Damaged(say("job.size_differs", name=block.file, found=found, size=size))
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint in a store, from its manifest."""

    shelf: Shelf
    key: str
    lease: int
    seal: bytes
    step: int
    at_s: int
    name: str
    files: Mapping[str, tuple[int, str]]
    held: tuple[Block, ...]

    @property
    def place(self) -> str:
        return self.shelf.uri

    def blocks(self) -> Iterable[Block]:
        return self.held

    def read(self, block: Block) -> bytes:
        data = self.shelf.objects.get(f"blocks/{block.sha256}")
        if data is None:
            raise Damaged(say("adapters.block_missing", name=block.file, uri=self.shelf.uri))
        if hashlib.sha256(data).hexdigest() != block.sha256:
            # Move it away; otherwise a lease with the right bytes would think they are already there.
            self.shelf.objects.put(f"damaged/{block.sha256}", data)
            self.shelf.objects.remove([f"blocks/{block.sha256}"])
            at = block.offset // BLOCK_BYTES
            raise Damaged(say("adapters.block_damaged", name=block.file, at=at, uri=self.shelf.uri))
        return data


class Shelf:
    """What one lease does in its job's store."""

    def __init__(self, objects: Objects, lease: str) -> None:
        self.objects, self.uri, self.lease = objects, objects.uri, number_of(lease)
        self.before = 0  # the lease that had it last
        self._known: set[str] = set()  # blocks already in the store

    def take_over(self) -> list[Saved]:
        """From now on only this lease keeps checkpoints. Returns what it can resume from, newest first."""
        fences = self._fences()
        if max(fences, default=0) > self.lease:
            raise self._overtaken(fences)
        mine, self.before = f"fence/{self.lease:06d}.json", max({*fences} - {self.lease}, default=0)
        found = None if self.lease not in fences else self._fence(self.lease)
        if found is None:
            found = sorted(self._eligible(self.before))
            if not self.objects.put(mine, json.dumps({"found": found}).encode()):
                found = self._fence(self.lease)  # this lease started it before
        fences = self._fences()
        if max(fences) > self.lease:
            raise self._overtaken(fences)
        saved = [each for key in found or () if (each := self._manifest(key)) is not None]
        return sorted(saved, key=lambda each: (each.step, each.at_s), reverse=True)

    def send(self, checkpoint: Checkpoint, *, tell: Tell = lambda _: None) -> int:
        """Send what is missing, manifest last; returns bytes sent. Damaged: it is not what was sealed."""
        source, seal, sent = Sealed(checkpoint), Sealed(checkpoint).seal, 0
        self._known |= {key.rpartition("/")[2] for key in self.objects.keys("blocks/")}
        blocks: dict[str, list[tuple[int, str]]] = {name: [] for name in checkpoint.files}
        whole = _Hashes(checkpoint.files)

        def put(name: str, data: bytes) -> int:
            self.objects.put(f"blocks/{name}", data)
            return len(data)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for batch in _batches(source.blocks(), AT_ONCE):
                under_way = []
                for block, data in zip(batch, pool.map(source.read, batch), strict=True):
                    whole.add(block, data)
                    name = hashlib.sha256(data).hexdigest()
                    blocks[block.file].append((len(data), name))
                    if name not in self._known:
                        self._known.add(name)
                        under_way.append(pool.submit(put, name, data))
                for each in as_completed(under_way):
                    sent += each.result()
                    tell(each.result())
        whole.check()
        self.guard()
        body = {"version": 1, "name": checkpoint.folder.name, "seal": seal.decode(), "blocks": blocks}
        manifest = json.dumps(body).encode()
        self.objects.put(f"saved/{self.lease:06d}/{checkpoint.step:012d}.json", manifest)
        tell(len(manifest))
        return sent + len(manifest)

    def guard(self) -> None:
        """Raises Overtaken if a later lease has taken over the job."""
        fences = self._fences()
        if max(fences, default=0) > self.lease:
            raise self._overtaken(fences)

    def retain(self, keep: int) -> None:
        """Delete all but the newest, and the blocks that only the deleted ones used."""
        every = self.objects.keys("saved/")
        mine = sorted((key for key in every if _lease_of(key) == self.lease), reverse=True)
        found = sorted((self._fence(self.lease) or []), reverse=True)
        gone = {key for key in every if _lease_of(key) <= self.lease} - {*[*mine, *found][:keep]}
        if not gone:
            return
        dropped = {b.sha256 for key in gone if (each := self._manifest(key)) for b in each.held}
        kept = {b.sha256 for key in every.keys() - gone if (each := self._manifest(key)) for b in each.held}
        self.guard()
        self.objects.remove(gone)
        self.objects.remove(f"blocks/{each}" for each in dropped - kept)
        self._known -= dropped - kept

    def _eligible(self, last: int) -> Collection[str]:
        """Valid manifests: those of the last lease, and those that it had found."""
        own = set(self.objects.keys(f"saved/{last:06d}/")) if last else set()
        return own | set(self._fence(last) or () if last else ())

    def _fences(self) -> list[int]:
        return [int(Path(key).stem) for key in self.objects.keys("fence/") if Path(key).stem.isdecimal()]

    def _fence(self, lease: int) -> list[str] | None:
        data = self.objects.get(f"fence/{lease:06d}.json")
        return None if data is None else [str(key) for key in json.loads(data)["found"]]

    def _overtaken(self, fences: Collection[int]) -> Overtaken:
        return Overtaken(
            say("adapters.overtaken", uri=self.uri, mine=self.lease, owner=max(fences)), code="overtaken"
        )

    def _manifest(self, key: str) -> Saved | None:
        """Its contents; None if it is gone or not one of ours."""
        data = self.objects.get(key)
        try:
            return None if data is None else _read_manifest(self, key, json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def _read_manifest(shelf: Shelf, key: str, body: Any) -> Saved | None:  # noqa: ANN401 - JSON
    seal = json.loads(body["seal"])
    name = str(body["name"])
    files = {str(n): (int(f["bytes"]), str(f["sha256"])) for n, f in seal["files"].items()}
    paths = (Path(each) for each in (name, *files))
    if any(each.is_absolute() or ".." in each.parts for each in paths) or "/" in name or name.startswith("."):
        return None
    held = []
    for file in files:
        at = 0
        for size, sha256 in body["blocks"][file]:
            held.append(Block(file, at, int(size), str(sha256)))
            at += int(size)
    return Saved(
        shelf=shelf,
        key=key,
        lease=_lease_of(key),
        seal=body["seal"].encode(),
        step=int(seal["step"]),
        at_s=int(seal["at_s"]),
        name=name,
        files=files,
        held=tuple(held),
    )


class _Hashes:
    """Hashes of files whose blocks come in order: only bytes that match the seal are sent."""

    def __init__(self, files: Mapping[str, tuple[int, str]]) -> None:
        self._files = files
        self._found = {name: hashlib.sha256() for name in files}

    def add(self, block: Block, data: bytes) -> None:
        self._found[block.file].update(data)

    def check(self) -> None:
        for name, (_, digest) in self._files.items():
            if self._found[name].hexdigest() != digest:
                raise Damaged(say("job.digest_differs", name=name))


def fetch(source: Source, here: Path, *, tell: Tell = lambda _: None) -> int:
    """Fetch the checkpoint into `here`, every byte as sealed, or raise Damaged and leave nothing.

    Blocks are fetched in parallel. Returns bytes fetched.
    """
    half = here / f"{FETCHING}{source.name}"
    discard(half)
    lock, fetched = threading.Lock(), 0
    try:
        for name, (size, _) in source.files.items():
            path = half / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.truncate(size)
        half.mkdir(parents=True, exist_ok=True)

        def one(block: Block) -> int:
            data = source.read(block)
            with (half / block.file).open("r+b") as file:
                file.seek(block.offset)
                file.write(data)
            with lock:
                tell(len(data))
            return len(data)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for batch in _batches(source.blocks(), AT_ONCE * 4):
                for done in as_completed([pool.submit(one, block) for block in batch]):
                    fetched += done.result()
        (half / SEAL).write_bytes(source.seal)
        _check(half)
        discard(here / source.name)
        half.replace(here / source.name)
    except OSError as error:
        discard(half)
        raise Damaged(say("adapters.cannot_copy", why=os_words(error))) from error
    except (Damaged, StoreFailed):
        discard(half)
        raise
    return fetched


def _check(half: Path) -> None:
    copied = read_seal(half)
    wrong = say("adapters.bad_seal") if copied is None else damage_said(copied)
    if wrong:
        raise Damaged(wrong)


def _batches(blocks: Iterable[Block], size: int) -> Iterator[list[Block]]:
    batch: list[Block] = []
    for block in blocks:
        batch.append(block)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _lease_of(key: str) -> int:
    return number_of(f".{key.split('/')[1]}")


def damage_said(checkpoint: Checkpoint) -> Sentence | None:
    found = damage(checkpoint)
    if found is None:
        return None
    values = {key: os_words(it) if isinstance(it, OSError) else it for key, it in found.values.items()}
    return say(f"job.{found.kind}", **values)


def number_of(lease: str) -> int:
    """A job's leases are numbered as they are granted: `name.1`, `name.2`, …"""
    digits = lease.rpartition(".")[2]
    return int(digits) if digits.isdecimal() else 0
