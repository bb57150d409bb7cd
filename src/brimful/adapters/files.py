"""Files that are either wholly there or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from brimful.errors import WorldFailed


def write_atomically(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write beside, flush to disk, rename over: a reader or a crash never meets half a file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def write_json(path: Path, body: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(body))


def read_json(path: Path) -> dict[str, Any] | None:
    """What the file holds, or None where there is no such file."""
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        # We only ever write it whole, so the disk or a person has changed it.
        raise WorldFailed(f"{path} is damaged: {error}", hint="restore it from a backup") from error
    return body
