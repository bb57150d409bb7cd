"""For a job that runs under brimful: keep checkpoints, leave in time, resume. Standard library only.

    from brimful.job import Run

    run, start = Run(every_s=600), 0
    if run.latest:
        state = torch.load(run.latest / "state.pt")
        model.load_state_dict(state["model"]); start = state["step"]
    for step in range(start, steps):
        train_one(model, step)
        run.after(step + 1, lambda folder: torch.save(
            {"model": model.state_dict(), "step": step + 1}, folder / "state.pt"))

The contract behind it, for programs in any language. brimful sets `BRIMFUL_CHECKPOINT_DIR`, a folder that
outlives the run, and `BRIMFUL_NOTICE`, a file that appears when the job has to leave: JSON with `deadline_s`
(UTC seconds) inside. SIGTERM means the same. With `"may_stay": true` in it the file is a warning: the job may
go on until then, and the file disappears if it does not have to leave after all. A checkpoint is a folder in
the first with a file `brimful.json`, written last, that lists each file with its size and SHA-256. A folder
without it is incomplete and is never used; one whose files do not match it is set aside. The newest complete
one is there at the next start, at this site or another. A job that does none of this is simply started again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

SEAL = "brimful.json"
FENCE = ".lease"  # the lease that may write checkpoints in a folder
UNFINISHED = ".saving-"
LEFT_IN_TIME = 128 + signal.SIGTERM  # the exit code that a shell shows after SIGTERM
BLOCK_BYTES = 1 << 20
SEAL_BYTES = 8 << 20  # the seal of 50,000 files fits
# Limits for a search for checkpoints, whatever a job has put in its folder.
MOST_ENTRIES, MOST_BYTES = 10_000, 64 << 20
PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A sealed folder, and the contents of its seal."""

    folder: Path
    step: int
    at_s: int
    files: dict[str, tuple[int, str]]  # by relative path: bytes and SHA-256
    lease: str = ""  # the lease that sealed it, if brimful ran it


class Run:
    """One run of a training job. Works without brimful too: then it only keeps checkpoints."""

    def __init__(
        self, *, every_s: float | None = None, keep: int = 2, folder: str | Path = "checkpoints"
    ) -> None:
        """Saves when told to leave and every `every_s`; keeps `keep` checkpoints. `folder`: without
        brimful."""
        self.folder = Path(os.environ.get("BRIMFUL_CHECKPOINT_DIR") or folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._notice = os.environ.get("BRIMFUL_NOTICE", "")
        self._every_s, self._keep = every_s, max(1, keep)
        self._saved = time.monotonic()
        self._signalled = False
        self._saved_for: float | None = None  # the deadline of the warning for which a checkpoint was saved
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._hear)

    @property
    def latest(self) -> Path | None:
        """The newest complete checkpoint."""
        found = newest(self.folder)
        return None if found is None else found.folder

    @property
    def told(self) -> bool:
        """Whether it has to leave: save now, and stop."""
        said = self._said()
        return self._signalled or (said is not None and said.get("may_stay") is not True)

    @property
    def warned(self) -> bool:
        """Whether it has to leave at `deadline_s`, unless it may stay after all: a good time to save."""
        said = self._said()
        return said is not None and said.get("may_stay") is True

    @property
    def deadline_s(self) -> float | None:
        """UTC second at which it will be told to end or be killed, once there is a notice."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return float((self._said() or {})["deadline_s"])
        return None

    def _said(self) -> dict[str, Any] | None:
        """The notice; None while there is none."""
        try:
            said = json.loads(Path(self._notice).read_text(encoding="utf-8")) if self._notice else None
        except OSError:
            return None
        except ValueError:
            return {}
        return said if said is None or isinstance(said, dict) else {}

    def after(self, step: int, save: Callable[[Path], object]) -> None:
        """After each step: save if it is time, and leave if told to."""
        told = self.told
        late = self._every_s is not None and time.monotonic() - self._saved >= self._every_s
        deadline_s = self.deadline_s if self.warned else None
        warned = deadline_s is not None and deadline_s != self._saved_for
        if told or late or warned:
            self._saved_for = deadline_s
            with self.saving(step) as folder:
                save(folder)
        if told:
            raise SystemExit(LEFT_IN_TIME)

    @contextlib.contextmanager
    def saving(self, step: int) -> Iterator[Path]:
        """A folder to write a checkpoint into; it is sealed and becomes visible only if all went well."""
        half = Path(tempfile.mkdtemp(dir=self.folder, prefix=UNFINISHED))
        try:
            yield half
            with fenced(self.folder):
                _seal(half, step=step)
                whole = self.folder / f"step-{step:09d}"
                if whole.exists():  # the same step again, after going back to an older one
                    shutil.rmtree(whole)
                half.replace(whole)
                _sync(self.folder)
                self._saved = time.monotonic()
                self._forget_older()
        except BaseException:
            shutil.rmtree(half, ignore_errors=True)
            raise

    def for_trainer(self) -> Any:  # noqa: ANN401 - a class of an optional library
        """A callback for Hugging Face's Trainer with `output_dir=run.folder`.

        trainer.train(resume_from_checkpoint=str(run.latest) if run.latest else None)
        """
        from transformers import TrainerCallback

        run = self

        class Leave(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, _args: Any, _state: Any, control: Any, **_more: Any) -> Any:  # noqa: ANN401
                if run.told:
                    control.should_save = control.should_training_stop = True
                return control

            def on_save(self, args: Any, state: Any, control: Any, **_more: Any) -> Any:  # noqa: ANN401
                folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
                if state.is_world_process_zero:
                    seal(folder, step=state.global_step)
                return control

            def on_train_end(self, *_args: Any, **_more: Any) -> None:  # noqa: ANN401
                if run.told:
                    raise SystemExit(LEFT_IN_TIME)

        return Leave()

    def for_lightning(self) -> Any:  # noqa: ANN401 - a class of an optional library
        """A callback for Lightning's Trainer; `trainer.fit(…, ckpt_path=run.lightning_path)` resumes."""
        try:
            from lightning.pytorch.callbacks import Callback
        except ModuleNotFoundError:
            from pytorch_lightning.callbacks import Callback

        run = self

        class Leave(Callback):  # type: ignore[misc]
            def on_train_batch_end(self, trainer: Any, *_args: Any, **_more: Any) -> None:  # noqa: ANN401
                run.after(trainer.global_step, lambda folder: trainer.save_checkpoint(folder / "last.ckpt"))

        return Leave()

    @property
    def lightning_path(self) -> str | None:
        return None if self.latest is None else str(self.latest / "last.ckpt")

    def _hear(self, _number: int, _frame: object) -> None:
        self._signalled = True

    def _forget_older(self) -> None:
        for old in whole_ones(self.folder)[self._keep :]:
            shutil.rmtree(old.folder, ignore_errors=True)


class LeaseOver(RuntimeError):
    """Another lease of this job writes checkpoints now: this process is an orphan, and saves nothing."""


@contextlib.contextmanager
def fenced(folder: Path) -> Iterator[None]:
    """Write checkpoints in the folder, as long as no newer lease of the job does."""
    lease = os.environ.get("BRIMFUL_LEASE", "")
    try:
        fence = open_plain(folder / FENCE, below=folder)
    except OSError:  # this folder has no fence
        yield
        return
    with fence:
        fcntl.flock(fence, fcntl.LOCK_SH)
        owner = fence.read(200).decode(errors="replace")
        if lease and owner and owner != lease:
            raise LeaseOver(f"{folder} is written by lease {owner} now, and this is lease {lease}")
        yield


def seal(folder: Path, *, step: int) -> None:
    """Seal the folder's current contents: flush to disk, then list each file with its hash."""
    with fenced(folder.parent):
        _seal(folder, step=step)


def _seal(folder: Path, *, step: int) -> None:
    files = {}
    for path in sorted(path for path in folder.rglob("*") if _is_plain(path) and path.name != SEAL):
        _sync(path)
        with path.open("rb") as file:
            digest = sha256(file)
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": digest}
    facts = {"step": step, "at_s": int(time.time()), "lease": os.environ.get("BRIMFUL_LEASE", "")}
    body = json.dumps({**facts, "files": files}, indent=1)
    temporary = folder / f".{SEAL}"
    temporary.write_text(body, encoding="utf-8")
    _sync(temporary)
    temporary.replace(folder / SEAL)
    _sync(folder)


def _is_plain(path: Path) -> bool:
    """Links are not sealed: their targets may change, and are not copied along."""
    return stat.S_ISREG(path.lstat().st_mode)


def read_seal(folder: Path, *, most_bytes: int = SEAL_BYTES) -> Checkpoint | None:
    """The contents of the seal, or None if there is none or it cannot be read. The files are not checked."""
    try:
        body = json.loads(read_plain(folder / SEAL, below=folder.parent, most_bytes=most_bytes))
        files = {str(n): (int(f["bytes"]), str(f["sha256"])) for n, f in body["files"].items()}
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            return None
        if SEAL in files or any(size < 0 for size, _ in files.values()):
            return None  # it cannot list itself, and readers that add up sizes must not be misled
        return Checkpoint(
            folder=folder,
            step=int(body["step"]),
            at_s=int(body["at_s"]),
            files=files,
            lease=str(body.get("lease", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


class Damage(NamedTuple):
    """What is wrong with a checkpoint: a code and its values. The caller puts it into words."""

    kind: Literal["size_differs", "digest_differs", "cannot_read", "not_a_file_name"]
    values: dict[str, Any]


def damage(checkpoint: Checkpoint) -> Damage | None:
    """What is wrong with it, by its seal; None if every byte is as it was sealed."""
    for name, (size, digest) in checkpoint.files.items():
        try:
            with open_plain(checkpoint.folder / name, below=checkpoint.folder.parent) as file:
                found = os.fstat(file.fileno()).st_size
                if found != size:
                    return Damage("size_differs", {"name": name, "found": found, "size": size})
                if sha256(file) != digest:
                    return Damage("digest_differs", {"name": name})
        except OSError as error:
            return Damage("cannot_read", {"name": name, "error": error})
        except ValueError:
            return Damage("not_a_file_name", {"name": repr(name)})
    return None


def whole_ones(folder: Path, *, most_bytes: int = SEAL_BYTES) -> list[Checkpoint]:
    """The sealed checkpoints of a folder, newest first; only some, if a job has put too many there."""
    found: list[Checkpoint] = []
    left = MOST_BYTES
    try:
        with os.scandir(folder) as entries:
            for entry in itertools.islice(entries, MOST_ENTRIES):
                if entry.name.startswith((".", "damaged-")) or not entry.is_dir(follow_symlinks=False):
                    continue
                path = folder / entry.name
                size = _size(path / SEAL)
                if not 0 < size <= min(left, most_bytes):
                    continue
                left -= size
                if (sealed := read_seal(path, most_bytes=most_bytes)) is not None:
                    found.append(sealed)
    except OSError:
        pass
    return sorted(found, key=lambda each: (each.step, each.at_s), reverse=True)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def newest(folder: Path, *, most_bytes: int = SEAL_BYTES) -> Checkpoint | None:
    """`most_bytes`: of a seal; larger ones are not read."""
    found = whole_ones(folder, most_bytes=most_bytes)
    return found[0] if found else None


def sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def open_plain(path: Path, *, below: Path) -> BinaryIO:
    """Open a file that others may have put there, without ever blocking: no pipe, no device, and no link from
    `below` on, since a link may lead to another user's file."""
    *folders, name = path.relative_to(below).parts
    at = os.open(below, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            inner = os.open(folder, PLAIN | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
        handle = os.open(name, PLAIN, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return os.fdopen(handle, "rb")


def read_plain(path: Path, *, below: Path, most_bytes: int) -> bytes:
    with open_plain(path, below=below) as file:
        # A sparse file reports its size without being read. What grows meanwhile is still cut off.
        is_larger = os.fstat(file.fileno()).st_size > most_bytes
        data = b"" if is_larger else file.read(most_bytes + 1)
    if is_larger or len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return data


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
