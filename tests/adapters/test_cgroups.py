"""Control groups: found in v1, v2 and mixtures, by the kernel's own account.

v1 is tried live by test_isolation.py and test_attacks.py where the machine has it. v2 is tried here against
folders with its files in their documented form; no machine with it was at hand when this was written.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brimful.adapters.engines.job_users import cgroups
from brimful.adapters.engines.job_users.cgroups import Limits, Place

V1 = """\
30 29 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / {at}/memory rw shared:10 - cgroup cgroup rw,memory
33 30 0:29 {root} {at}/pids rw shared:11 - cgroup cgroup rw,pids
34 30 0:30 / {at}/unified rw - cgroup2 cgroup2 rw,nsdelegate
"""
V2 = "30 29 0:26 {root} {at} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"


def placed(places: list[Place]) -> dict[str, tuple[int, str]]:
    return {each.controller: (each.version, str(each.folder)) for each in places}


def test_in_v1_groups_are_made_below_our_own() -> None:
    own = "9:memory:/user.slice\n8:pids:/docker/7f/app\n7:cpu,cpuacct:/\n0::/\n"
    found = cgroups.places_of(V1.format(at="/sys/fs/cgroup", root="/docker/7f"), own)
    assert placed(found) == {
        "memory": (1, "/sys/fs/cgroup/memory/user.slice/brimful"),
        "pids": (1, "/sys/fs/cgroup/pids/app/brimful"),
    }


def a_v2(folder: Path, *groups: str) -> str:
    """Files as a kernel with v2 has them; below each group too."""
    for group in ("", *groups):
        (folder / group).mkdir(parents=True, exist_ok=True)
        (folder / group / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma\n")
        (folder / group / "cgroup.subtree_control").write_text("cpu memory pids\n" if not group else "\n")
    return V2.format(at=folder, root="/")


@pytest.mark.parametrize(
    ("own", "where"),
    [
        ("0::/system.slice/brimful.service\n", "system.slice/brimful"),
        ("0::/\n", "brimful"),
        ("0::/../elsewhere\n", "brimful"),
    ],
)
def test_in_v2_groups_are_made_beside_our_own(own: str, where: str, tmp_path: Path) -> None:
    found = cgroups.places_of(a_v2(tmp_path, "system.slice"), own)
    assert placed(found) == {name: (2, str(tmp_path / where)) for name in ("memory", "pids")}


def test_a_controller_that_v1_holds_is_not_looked_for_in_v2(tmp_path: Path) -> None:
    text = V1.format(at=tmp_path, root="/")
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("memory pids\n")
    found = cgroups.places_of(text, "2:memory:/\n1:pids:/\n0::/\n")
    assert {each.version for each in found} == {1}


def test_v2_controllers_are_passed_down_where_they_are_not(tmp_path: Path) -> None:
    a_v2(tmp_path, "system.slice", "system.slice/brimful")
    place = Place(controller="memory", version=2, folder=tmp_path / "system.slice" / "brimful")
    cgroups._prepare(place)
    assert (tmp_path / "system.slice" / "cgroup.subtree_control").read_text() == "+memory"
    assert (place.folder / "cgroup.subtree_control").read_text() == "+memory"
    assert place.folder.stat().st_mode & 0o777 == 0o711


def a_group(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in ("cgroup.procs", *names):
        (folder / name).touch()
    return folder


def test_a_v2_group_gets_its_limits_and_its_member(tmp_path: Path) -> None:
    group = a_group(tmp_path / "a", "memory.max", "memory.swap.max", "memory.events", "pids.max")
    cgroups.make([group], Limits(memory_bytes=1 << 30, processes=64))
    cgroups.join([group])
    names = ("memory.max", "memory.swap.max", "pids.max", "cgroup.procs")
    assert [(group / name).read_text() for name in names] == [str(1 << 30), "0", "64", "0"]
    assert not cgroups.out_of_memory([group])
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 41\noom 2\noom_kill 1\noom_group_kill 0\n")
    assert cgroups.out_of_memory([group])


def test_v1_groups_get_theirs(tmp_path: Path) -> None:
    memory = a_group(tmp_path / "m", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    pids = a_group(tmp_path / "p", "pids.max")
    cgroups.make([memory, pids], Limits(memory_bytes=1 << 30, processes=64))
    assert (memory / "memory.memsw.limit_in_bytes").read_text() == str(1 << 30)
    assert (pids / "pids.max").read_text() == "64"
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert cgroups.out_of_memory([memory, pids])


def test_half_of_the_limits_is_none(tmp_path: Path) -> None:
    group = a_group(tmp_path / "a", "pids.max")
    with pytest.raises(OSError, match="memory and processes"):
        cgroups.make([group], Limits(memory_bytes=1 << 30, processes=64))


def test_where_one_controller_is_missing_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("32 30 0:28 / /sys/fs/cgroup/x rw - cgroup cgroup rw,memory\n")
    (tmp_path / "cgroup").write_text("9:memory:/\n")
    assert cgroups.find(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: control groups are made")
def test_on_this_machine_a_group_is_made_joined_and_removed() -> None:
    places = cgroups.find()
    if not places:
        pytest.skip("needs cgroup controllers for memory and processes")
    groups = cgroups.folders(places, f"test-{os.getpid()}")
    cgroups.make(groups, Limits(memory_bytes=64 << 20, processes=8))
    assert all((group / "cgroup.procs").exists() for group in groups)
    cgroups.remove(groups)
    assert not any(group.exists() for group in groups)
