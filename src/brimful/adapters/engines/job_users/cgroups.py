"""Memory and process limits of jobs: one control group per lease.

The controllers are in cgroup v2 or, on older machines, each in a v1 hierarchy; we look for each one in both.
Files and formats: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/{memory,pids}.rst of Linux.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CONTROLLERS = ("memory", "pids")
GROUP = "brimful"  # the parent of all our groups
NO_LIMIT = 1 << 50  # bytes: more than any machine has

Version = Literal[1, 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    memory_bytes: int
    processes: int  # threads count too


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one controller's groups are created."""

    controller: str
    version: Version
    folder: Path


def find(proc: Path = Path("/proc/self")) -> list[Place]:
    """Where memory and processes can be limited: both or none. Verified by creating and removing a group."""
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
    """From the kernel's mount table and this process's groups.

    In v1 the place is below our own group, whose limits then apply to jobs too. In v2 it is beside our group:
    a v2 group that has processes cannot have limited children.
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
    """The folder of a group. In a container only the part of the tree below `root` is mounted."""
    inside = os.path.relpath(group, root)
    return point if inside.startswith("..") else point / inside


def _prepare(place: Place) -> None:
    place.folder.mkdir(exist_ok=True)
    place.folder.chmod(0o711)  # a job can reach its own group but cannot list the others
    if place.version == 2:
        for folder in (place.folder.parent, place.folder):
            switch = folder / "cgroup.subtree_control"
            if place.controller not in switch.read_text().split():
                switch.write_text(f"+{place.controller}")


def folders(places: Sequence[Place], name: str) -> list[Path]:
    """The groups of this name: one in v2, one per controller in v1."""
    return list(dict.fromkeys(place.folder / name for place in places))


def make(groups: Sequence[Path], limits: Limits) -> None:
    wanted = {
        "memory.max": limits.memory_bytes,  # v2
        "memory.swap.max": 0,
        "memory.limit_in_bytes": limits.memory_bytes,  # v1
        "memory.memsw.limit_in_bytes": limits.memory_bytes,  # with swap; set after the one without
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
    """Moves this process, and everything it starts from now on, into the groups."""
    for group in groups:
        (group / "cgroup.procs").write_text("0")


def out_of_memory(groups: Sequence[Path]) -> bool:
    """Whether the kernel killed a process for exceeding the limit."""
    for group in groups:
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                counts = dict(line.split() for line in (group / name).read_text().splitlines())
                if int(counts.get("oom_kill", 0)):
                    return True
    return False


def remove(groups: Sequence[Path]) -> None:
    """Leaves a group that still has processes."""
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()
