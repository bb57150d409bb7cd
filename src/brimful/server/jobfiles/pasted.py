"""A pasted job file, batch script or task: parsed like a file, but nothing is opened."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from brimful.configs.pasted import suffix_of
from brimful.configs.plain import parse_plain
from brimful.configs.yaml_file import write_yaml
from brimful.server.jobfiles.jobfile import JobFile
from brimful.server.jobfiles.own import read_own
from brimful.server.jobfiles.sbatch import directives_of, is_sbatch, read_sbatch
from brimful.server.jobfiles.skypilot import is_skypilot, read_skypilot
from brimful.units import MICROUSD

PASTED = Path("/pasted")
UNITS = (("d", 86400), ("h", 3600), ("m", 60))
# Job file fields that a submission has under other names, with the same or nearly the same values.
SAME = ("name", "gpus", "within", "tenant", "queue", "priority", "deferrable", "retries", "array", "cpus")
LISTS = {"gpu": "gpu_types", "tier": "tiers", "sites": "sites", "after": "after"}
TIMES = {"max_run": "max_run_s", "checkpoint_every": "checkpoint_interval_s"}
SUMS = {"budget": "budget_microusd", "max_price": "limit_microusd_per_gpu_hour"}
USUAL = {"gpus": 1, "within": "node", "priority": "normal", "deferrable": False, "retries": 0, "cpus": 0}


def read_pasted(text: str) -> JobFile | None:
    """None if it is something else: a training config, or prose.

    Folders stay as written: the server does not know whose machine they are on.
    """
    text = text.replace("\r\n", "\n")
    if is_sbatch(text):
        found = read_sbatch(text, PASTED)
        found.body["folder"] = _folder(directives_of(text, PASTED).get("chdir"))
        found.body["name"] = "" if found.body["name"] == PASTED.stem else found.body["name"]
        return found
    kind = suffix_of(text) or (".yaml" if text.lstrip().startswith("command:") else None)
    if kind not in (".yaml", ".json"):
        return None
    data = parse_plain(text, name="pasted", suffix=kind)
    if is_skypilot(data):
        found = read_skypilot({**data, "workdir": None}, PASTED)
        found.body["folder"] = _folder(data.get("workdir"))
        return found
    if "command" not in data:
        return None
    found = read_own({key: value for key, value in data.items() if key not in ("folder", "fit")}, PASTED)
    found.body["folder"] = _folder(data.get("folder"))
    return found


def _folder(named: object) -> str:
    text = posixpath.normpath(str(named)) if named else ""
    return text if text.startswith("/") else ""


def as_job_file(body: Mapping[str, Any]) -> str:
    """The job file equivalent to this submission."""
    command = list(body.get("command") or ())
    said: dict[str, Any] = {"command": shell_of(command) if command else ""}
    if body.get("folder"):
        said["folder"] = body["folder"]
    said |= {name: body[name] for name in SAME if body.get(name) not in (None, "", USUAL.get(name))}
    said |= {name: list(body[field]) for name, field in LISTS.items() if body.get(field)}
    said |= {name: time_of(body[field]) for name, field in TIMES.items() if body.get(field) is not None}
    said |= {name: _usd(body[field]) for name, field in SUMS.items() if body.get(field)}
    if body.get("deadline_s"):
        said["deadline"] = f"{datetime.fromtimestamp(body['deadline_s'], UTC):%Y-%m-%dT%H:%M:%S+00:00}"
    if body.get("memory_mib"):
        said["memory"] = f"{body['memory_mib']}MiB"
    if body.get("env"):
        said["env"] = dict(body["env"])
    return write_yaml(said)


def shell_of(command: list[str]) -> str:
    """As a person would type it."""
    if len(command) >= 3 and command[0].endswith("sh") and command[1] == "-c":
        return command[2]
    return shlex.join(command)


def time_of(seconds: int) -> str:
    """In the largest unit that divides it, in job file syntax."""
    unit, size = next((each for each in UNITS if seconds and seconds % each[1] == 0), ("s", 1))
    return f"{seconds // size}{unit}"


def _usd(microusd: int) -> str:
    return f"{microusd / MICROUSD:.6f}".rstrip("0").rstrip(".")
