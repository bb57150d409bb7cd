"""Slurm batch scripts: `#SBATCH` directives as sbatch(1) describes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brimful.adapters.engines.devices import catalog_names
from brimful.errors import BadInput
from brimful.fleet.arrays import after_from, tasks_from
from brimful.language import Plain, Quoted, say
from brimful.server.jobfiles.jobfile import JobFile, integer, mebibytes, resolved
from brimful.units import integer_from_text

SHORT = {
    "J": "job-name",
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "t": "time",
    "p": "partition",
    "A": "account",
    "G": "gpus",
    "D": "chdir",
    "o": "output",
    "e": "error",
    "a": "array",
    "d": "dependency",
    "C": "constraint",
    "w": "nodelist",
    "x": "exclude",
    "q": "qos",
}
# Safe to ignore: the job does the same work without them. The reasons: `jobfile.drop_<why>`.
LEFT_OUT = {
    **dict.fromkeys(("output", "error", "open-mode"), "prints"),
    **dict.fromkeys(("mail-type", "mail-user"), "mail"),
    **dict.fromkeys(("verbose", "parsable"), "slurm"),
    "comment": "comment",
    "ntasks-per-node": "tasks",
}
MOST = 10**9  # for any part of a time
AFTER = {"afterok": "ok", "afterany": "any"}
FLAGS = {"requeue", "no-requeue", "exclusive", "verbose", "parsable", "hold", "overcommit", "contiguous"}


def is_sbatch(text: str) -> bool:
    return text.startswith("#!") and re.search(r"^#SBATCH\s", text, re.MULTILINE) is not None


def read_sbatch(text: str, path: Path) -> JobFile:
    found = JobFile(kind="sbatch", body={"name": path.stem, "folder": str(Path.cwd())})
    directives = directives_of(text, path)
    for name, value in directives.items():
        if name in READERS:
            target, read = READERS[name]
            said = read(value, f"{path}: --{name}")
            found.body |= {} if said is None else {target: said}
        elif name in LEFT_OUT:
            why = say(f"jobfile.drop_{LEFT_OUT[name]}")
            found.notes.append(say("jobfile.left_out", field=f"--{name}", why=why))
        elif name not in COUNTED:
            known = name in CANNOT
            found.unsupported[f"--{name}"] = say(
                f"jobfile.sbatch_{name}" if known else "jobfile.no_directive"
            )
    _count(found, directives, path)
    interpreter = shlex.split(text.splitlines()[0].removeprefix("#!").strip()) or ["/bin/sh"]
    # The text itself, as Slurm stores it: later changes to the file do not matter.
    found.body["command"] = [*interpreter, "-c", text, path.name]
    if not interpreter[0].endswith("sh"):
        raise BadInput(say("jobfile.not_shell", path=path, interpreter=Quoted(interpreter[0])))
    if re.search(r"^\s*srun\s", text, re.MULTILINE):
        found.notes.append(say("jobfile.calls_srun"))
    return found


def directives_of(text: str, path: Path) -> dict[str, str]:
    """Before the first command, as Slurm reads them; the last of several wins."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        if not line.startswith("#SBATCH"):
            continue
        try:
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        except ValueError as error:
            raise BadInput(say("jobfile.bad_line", path=path, number=Plain(number), error=error)) from error
        while words:
            word = words.pop(0)
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
            elif word.startswith("-") and len(word) > 1:
                name, value = SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
                equals = value
            else:
                problem = say("jobfile.bad_directive", path=path, number=Plain(number), word=Quoted(word))
                raise BadInput(problem)
            if not equals and name not in FLAGS and words:
                value = words.pop(0)
            found[name] = value
    return found


def _count(found: JobFile, directives: dict[str, str], path: Path) -> None:
    """GPUs, CPUs and memory, for which Slurm has several notations."""
    nodes = integer(directives.get("nodes", "1").partition("-")[0], f"{path}: --nodes")
    tasks = integer(directives.get("ntasks", "1"), f"{path}: --ntasks")
    types: list[str] = []
    gpus = 0
    for name in ("gpus", "gpus-per-node", "gpus-per-task", "gres"):
        if name not in directives:
            continue
        value = directives[name]
        if name == "gres":
            parts = [part for part in value.split(",") if part.split(":")[0] == "gpu"]
            others = [part for part in value.split(",") if part not in parts]
            if others:
                found.unsupported[f"--gres={','.join(others)}"] = say("jobfile.only_gpus")
            value = (parts[0].partition(":")[2] or "1") if parts else "0"
        kind, _, count = value.rpartition(":")
        times = {"gpus": 1, "gpus-per-task": tasks}.get(name, nodes)
        gpus = max(gpus, integer(count, f"{path}: --{name}", least=0) * times)
        types = catalog_names([kind]) if kind else types
    if not gpus:
        raise BadInput(say("jobfile.asks_no_gpu", path=path))
    found.body |= {"gpus": gpus, "gpu_types": types, "within": "node" if nodes == 1 else "site"}
    if "cpus-per-task" in directives:
        found.body["cpus"] = float(integer(directives["cpus-per-task"], f"{path}: --cpus-per-task") * tasks)
    if "mem" in directives:
        text = directives["mem"]
        found.body["memory_mib"] = (
            mebibytes(text if text[-1:].isalpha() else f"{text}M", f"{path}: --mem") * nodes
        )


def minutes_of(text: str, what: str) -> int:
    """Slurm's times, in seconds: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    given = [*parts, *([days] if dash else [])]
    if len(parts) > 3 or any(integer_from_text(part, low=0, high=MOST) is None for part in given):
        raise BadInput(say("jobfile.not_slurm_time", what=what, given=Quoted(text[:40])))
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def _longest_s(value: str, what: str) -> int | None:
    return None if value.upper() in ("UNLIMITED", "INFINITE") else max(1, minutes_of(value, what))


def _array(value: str, _what: str) -> str:
    tasks_from(value)
    return value


def _after(value: str, what: str) -> list[str]:
    """afterok:job-7:job-8,afterany:job-9; Slurm's other rules and its own job numbers are refused."""
    found = []
    for part in value.split(","):
        rule, *names = part.split(":")
        if rule not in AFTER or not names or any(name.isdigit() for name in names):
            raise BadInput(say("jobfile.bad_dependency", what=what, given=Quoted(part[:60])))
        found += [":".join(after_from(f"{name}:{AFTER[rule]}")) for name in names]
    return found


def _same(value: str, _what: str) -> str:
    return value


# The submission's field for each directive, and its parser.
READERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "job-name": ("name", _same),
    "account": ("tenant", _same),
    "partition": ("queue", _same),
    "time": ("max_run_s", _longest_s),
    "chdir": ("folder", lambda value, what: resolved(Path(), value, what)),
    "array": ("array", _array),
    "dependency": ("after", _after),
    "requeue": ("retries", lambda _value, _what: 1),
    "no-requeue": ("retries", lambda _value, _what: 0),
}
COUNTED = {"nodes", "ntasks", "gpus", "gpus-per-node", "gpus-per-task", "gres", "cpus-per-task", "mem"}
# Why, and what to do instead: `jobfile.sbatch_<name>`.
CANNOT = (
    *("constraint", "nodelist", "exclude", "exclusive", "qos", "signal", "export"),
    *("begin", "deadline"),
)
