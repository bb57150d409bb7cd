"""The contents of a job file of any kind, and detecting its kind."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brimful.configs.files import decode
from brimful.configs.plain import parse_plain
from brimful.configs.yaml_file import MAX_BYTES
from brimful.errors import BadInput, NotFound, unreadable
from brimful.files import read_given
from brimful.language import Number, Quoted, Sentence, os_words, say
from brimful.units import integer_from_text

TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(MiB|MB|M|GiB|GB|G|TiB|TB|T)?", re.IGNORECASE)
MIB = {"m": 1, "g": 1024, "t": 1024 * 1024}


@dataclass(slots=True)
class JobFile:
    """A submission in progress. `unsupported` names what the file asks for and brimful cannot do."""

    kind: str  # brimful, skypilot, sbatch
    body: dict[str, Any]  # fields of POST /v1/jobs
    fit: str = ""  # the training config to make an estimate from
    steps: int | None = None
    env_from: list[str] = field(default_factory=list)  # variables to take from the submitter's environment
    unsupported: dict[str, Sentence] = field(default_factory=dict)  # field -> why not
    notes: list[Sentence] = field(default_factory=list)


def read_job_file(path: Path) -> JobFile:
    """Read the file by its kind: a batch script, a SkyPilot task, or our own job file."""
    from brimful.server.jobfiles.own import read_own
    from brimful.server.jobfiles.sbatch import is_sbatch, read_sbatch
    from brimful.server.jobfiles.skypilot import is_skypilot, read_skypilot

    text = _text(path)
    if is_sbatch(text):
        return read_sbatch(text, path)
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise BadInput(say("jobfile.unknown_kind", path=path))
    data = parse_plain(text, name=str(path), suffix=path.suffix)
    return read_skypilot(data, path) if is_skypilot(data) else read_own(data, path)


def _text(path: Path) -> str:
    """The whole file; a pipe works too, as in `brimful submit <(generate)`."""

    def too_large(size: int) -> BadInput:
        sizes = {"size": Number(size), "max_bytes": Number(MAX_BYTES)}
        return BadInput(say("jobfile.too_large", path=path, **sizes), code="too_large")

    try:
        raw = read_given(path, most=MAX_BYTES, too_large=too_large, or_pipe=True)
    except FileNotFoundError as error:
        raise NotFound(say("jobfile.no_file", path=path)) from error
    except OSError as error:
        raise unreadable(say("jobfile.cannot_read", path=path, error=os_words(error)), error) from error
    return decode(raw, name=str(path)).replace("\r\n", "\n")


def resolved(folder: Path, named: object, what: str) -> str:
    """The path that a job file names, relative to `folder`."""
    try:
        return str((folder / str(named)).resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a symlink loop, NUL
        raise BadInput(say("jobfile.cannot_be", field=what, given=Quoted(str(named)[:60]))) from error


def seconds(value: object, what: str) -> int:
    """90, '90s', '15m', '4h', '2d'."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = TIME.fullmatch(str(value).strip())
    if match is None:
        raise BadInput(say("jobfile.not_a_time", what=what, given=Quoted(str(value)[:40])))
    return round(float(match[1]) * SECONDS[match[2]])


def integer(value: object, what: str, *, least: int = 1, most: int = 100_000) -> int:
    number = integer_from_text(str(value), low=least, high=most)
    if number is None:
        raise BadInput(say("jobfile.not_whole", what=what, given=Quoted(str(value)[:40]), least=least))
    return number


def mebibytes(value: object, what: str) -> int:
    """'16GiB', '512M'; a bare number is gibibytes, as in SkyPilot."""
    match = SIZE.fullmatch(str(value).strip().rstrip("+"))
    if match is None or isinstance(value, bool):
        raise BadInput(say("jobfile.not_a_size", what=what, given=Quoted(str(value)[:40])))
    return round(float(match[1]) * MIB[(match[2] or "g")[0].lower()])
