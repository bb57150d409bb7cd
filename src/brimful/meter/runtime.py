"""Where a Meter leaves its newest sample, so that `brimful watch` and `brimful admin exporter` find it.

One file per process in a folder that only its owner can enter: `$XDG_RUNTIME_DIR/brimful/meter`, or
`brimful-UID/meter` in the folder for temporary files. A file is trusted about one process only: the one it is
named for, while that still runs, began when the file says, and belongs to the owner of the file.

A brimful job leaves the same text a second time, in the file that its engine names (BRIMFUL_SAMPLES); that
one stays when the run is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from brimful.errors import WorldFailed
from brimful.language import say
from brimful.meter.samples import EndSample, RunSample, StepSample, as_line, from_dict

MOST_BYTES = 64 * 1024
STALE_S, STALE_STEPS = 30.0, 5.0  # a sample older than both says nothing about now


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What a running process last reported about itself."""

    pid: int
    run: RunSample
    step: StepSample | None
    end: EndSample | None = None  # its Meter was closed; only a file that outlives the process has it
    began: object = None  # when the process began, as it reports itself

    def age_s(self, now_s: float) -> float:
        """Since the last step ended, or since the run began if there was none."""
        return max(0.0, now_s - (self.step or self.run).at_s)

    def fresh(self, now_s: float) -> bool:
        step_s = self.step.step_s if self.step else 0.0
        return self.age_s(now_s) <= max(STALE_S, STALE_STEPS * step_s)


def runtime_folder(*, make: bool) -> Path | None:
    """This user's folder, after checking its owner; None if it does not exist and must not be made."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given.startswith("/") and Path(given).is_dir():
        ours = Path(given) / "brimful"
    else:
        ours = Path(tempfile.gettempdir()) / f"brimful-{os.geteuid()}"
    folder = ours / "meter"
    if make:
        for each in (ours, folder):
            with contextlib.suppress(FileExistsError):
                each.mkdir(mode=0o700)
    for each in (ours, folder):
        try:
            found = each.lstat()
        except OSError:
            return None
        # Anyone can write to /tmp: a folder of this name made by another user must not receive our samples.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise WorldFailed(say("meter.shared_folder", folder=each), code="unsafe_runtime_folder")
    return folder


class Place:
    """A file of this process. `leave` replaces it atomically; `close` removes it."""

    def __init__(self, path: Path | None = None) -> None:
        """Without a path, where `brimful watch` looks."""
        self._pid = os.getpid()
        if path is None:
            folder = runtime_folder(make=True)
            assert folder is not None
            path = folder / f"{self._pid}.json"
        self._path = path
        self._half = path.parent / f".{self._pid}.new"
        self._began = began(self._pid)

    def leave(self, run: RunSample, step: StepSample | None, end: EndSample | None = None) -> None:
        parts = [f'"pid": {self._pid}', f'"began": {self._began or 0}', f'"run": {as_line(run)}']
        parts += [f'"step": {as_line(step)}'] if step else []
        parts += [f'"end": {as_line(end)}'] if end else []
        self._half.unlink(missing_ok=True)
        handle = os.open(self._half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("{" + ", ".join(parts) + "}\n")
        self._half.replace(self._path)

    def close(self) -> None:
        for path in (self._path, self._half):
            with contextlib.suppress(OSError):
                path.unlink()


def live() -> list[Live]:
    """Every process of this user that has reported and still runs."""
    folder = runtime_folder(make=False)
    if folder is None:
        return []
    return [found for path in sorted(folder.glob("[0-9]*.json")) if (found := _read(path)) is not None]


def _read(path: Path) -> Live | None:
    """The contents of a file, if they can be trusted; a file of a process that ended is removed."""
    try:
        pid = int(path.stem)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES or found.st_uid != os.geteuid():
            return None
        said = read_said(os.read(handle, MOST_BYTES))
        if said.pid != pid or said.began != began(pid):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
    except (OSError, ValueError):
        return None
    finally:
        os.close(handle)
    return said


def read_said(text: bytes) -> Live:
    """What a process has left, if it is well formed; ValueError says what is wrong with it."""
    try:
        said = json.loads(text, parse_constant=_refuse)
        run = from_dict(said["run"])
        step = from_dict(said["step"]) if "step" in said else None
        end = from_dict(said["end"]) if "end" in said else None
        pid, began_ticks = said["pid"], said["began"]
    except KeyError as error:
        raise ValueError(say("meter.field_missing", field=error.args[0])) from error
    except (TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(say("meter.not_from_a_meter")) from error
    if (
        not isinstance(run, RunSample)
        or not isinstance(step, StepSample | None)
        or not isinstance(end, EndSample | None)
        or type(pid) is not int
    ):
        raise ValueError(say("meter.not_from_a_meter"))
    return Live(pid=pid, began=began_ticks, run=run, step=step, end=end)


def _refuse(constant: str) -> float:
    raise ValueError(say("meter.not_a_number", constant=constant))


def began(pid: int) -> int | None:
    """When a process began, in ticks since boot: a pid is reused, but not with the same start."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        if Path(f"/proc/{pid}").stat().st_uid != os.geteuid():
            return None
        return int(line.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
