"""How much memory and how many processes a job may have: one control group for each lease.

The controllers sit in cgroup v2 or, on older machines, each in a v1 hierarchy: both are looked for, one by
one. Files and formats: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/{memory,pids}.rst of Linux.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CONTROLLERS = ("memory", "pids")
GROUP = "brimful"  # all groups of ours are in one of this name
NO_LIMIT = 1 << 50  # bytes: more than a machine has

Version = Literal[1, 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    memory_bytes: int
    processes: int  # threads count too


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the groups of one controller are made."""

    controller: str
    version: Version
    folder: Path


def find(proc: Path = Path("/proc/self")) -> list[Place]:
    """Where memory and processes can be limited; both or none. Proven by making a group and removing it."""
    try:
        places = places_of((proc / "mountinfo").read_text(), (proc / "cgroup").read_text())
        if [each.controller for each in places] != [*CONTROLLERS]:
            return []
        for each in places:
            _prepare(each)
        trial = folders(places, f"trial-{os.getpid()}")
        make(trial, Limits(memory_bytes=NO_LIMIT, processes=1))
        remove(trial)
    except OSError:
        return []
    return places


def places_of(mountinfo: str, own: str) -> list[Place]:
    """By the kernel's own account of what is mounted where, and in which groups this process is.

    In v1 below our own group, whose limits hold for jobs too. In v2 beside it: there a group that has
    processes cannot divide what it has.
    """
    ours = {names: path for _, names, path in (line.split(":", 2) for line in own.splitlines())}
    found: dict[str, Place] = {}
    for line in mountinfo.splitlines():
        facts, _, after = line.partition(" - ")
        root, point = facts.split()[3:5]
        kind, *_, options = after.split()
        version: Version = 2 if kind == "cgroup2" else 1
        there = Path(point)
        if kind == "cgroup2":
            with contextlib.suppress(OSError):
                for name in (there / "cgroup.controllers").read_text().split():
                    group = _below(there, root, ours.get("", "/"))
                    parent = group if group == there else group.parent
                    found.setdefault(name, Place(controller=name, version=version, folder=parent / GROUP))
        elif kind == "cgroup":
            for name in options.split(","):
                mine = next((path for names, path in ours.items() if name in names.split(",")), "/")
                folder = _below(there, root, mine) / GROUP
                found[name] = Place(controller=name, version=version, folder=folder)
    return [found[name] for name in CONTROLLERS if name in found]


def _below(point: Path, root: str, group: str) -> Path:
    """The folder of a group; in a container only the part of the tree below `root` is mounted."""
    inside = os.path.relpath(group, root)
    return point if inside.startswith("..") else point / inside


def _prepare(place: Place) -> None:
    place.folder.mkdir(exist_ok=True)
    place.folder.chmod(0o711)  # a job finds its own group, and no list of the others
    if place.version == 2:
        for folder in (place.folder.parent, place.folder):
            switch = folder / "cgroup.subtree_control"
            if place.controller not in switch.read_text().split():
                switch.write_text(f"+{place.controller}")


def folders(places: Sequence[Place], name: str) -> list[Path]:
    """The groups of this name: one in v2, one for each controller in v1."""
    return list(dict.fromkeys(place.folder / name for place in places))


def make(groups: Sequence[Path], limits: Limits) -> None:
    wanted = {
        "memory.max": limits.memory_bytes,  # v2
        "memory.swap.max": 0,
        "memory.limit_in_bytes": limits.memory_bytes,  # v1
        "memory.memsw.limit_in_bytes": limits.memory_bytes,  # with swap; after the one without
        "pids.max": limits.processes,
    }
    written: set[str] = set()
    for group in groups:
        group.mkdir(exist_ok=True)
        for name, value in wanted.items():
            if (group / name).exists():
                (group / name).write_text(str(value))
                written.add(name.partition(".")[0])
    if written != {*CONTROLLERS}:
        raise OSError(f"{' and '.join(map(str, groups))} cannot limit both memory and processes")


def join(groups: Sequence[Path]) -> None:
    """This process, and all it starts from here on."""
    for group in groups:
        (group / "cgroup.procs").write_text("0")


def out_of_memory(groups: Sequence[Path]) -> bool:
    """Whether the kernel has ended a process for reaching the limit."""
    for group in groups:
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                counts = dict(line.split() for line in (group / name).read_text().splitlines())
                if int(counts.get("oom_kill", 0)):
                    return True
    return False


def remove(groups: Sequence[Path]) -> None:
    """A group in which a process lives stays."""
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()
