"""Retention: what goes by which rule, and that nothing a live job needs ever does."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.adapters.code import CodeStore
from brimful.adapters.identity.store import AccessStore, Deed
from brimful.adapters.stores.sql import SqlStore
from brimful.cli.main import main
from brimful.errors import BadInput, NotFound
from brimful.fleet.events import (
    ArraySubmitted,
    CancelRequested,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
)
from brimful.fleet.state import OVER, Fleet, JobState
from brimful.language import verbatim
from brimful.server.retention import (
    SETTLED_S,
    Item,
    Jobs,
    Keep,
    clean_tables,
    read_keep,
    remove,
    surplus,
    unneeded,
)
from tests.builders import a_job, a_node, joined, refuses

NOW_S = 2_000_000_000
NOTHING = read_keep("leases=0s checkpoints=0s code=0s")  # keep as little as may be


def an_item(name: str, *, size: int = 1, age_s: int = 0, kind: Any = "leases") -> Item:
    return Item(kind=kind, name=name, path=Path(name), size=size, last_s=NOW_S - age_s)


def names(items: list[Item]) -> list[str]:
    return [item.name for item in items]


def test_rules_are_age_size_and_how_many() -> None:
    assert read_keep("leases=30d,5GiB,100 code=7d") == {
        "leases": Keep(age_s=30 * 86400, size=5 << 30, last=100),
        "code": Keep(age_s=7 * 86400),
    }
    for text in ("logs=3d", "leases", "leases=", "leases=3w", "leases=-1", "leases=3d,,"):
        with refuses(BadInput, "server.bad_keep"):
            read_keep(text)


def test_the_newest_are_kept_first_and_other_kinds_are_left_alone() -> None:
    items = [an_item("a", size=4, age_s=10), an_item("b", size=4, age_s=5), an_item("c", size=4, age_s=1)]
    items.append(an_item("x", age_s=10**6, kind="checkpoints"))

    def gone(**rule: int) -> list[str]:
        return names(surplus(items, {"leases": Keep(**rule)}, now_s=NOW_S))

    assert gone() == []
    assert gone(age_s=5) == ["b", "a"]
    assert gone(last=1) == ["b", "a"]
    assert gone(size=8) == ["a"]
    assert gone(size=3) == ["c", "b", "a"]


def log_of(plan: list[tuple[str, bool]]) -> list[Event]:
    """A log with a job for each: how far it came, and whether it has packed code."""
    events: list[Event] = [joined(a_node(gpus=64))]
    for number, (how, has_code) in enumerate(plan):
        name, code = f"job-{number + 1}", f"{number % 3}" * 64 if has_code else ""
        job = a_job(name, code=code, after=(("job-1", "any"),) if how == "pending" and number else ())
        if how == "array":
            events.append(ArraySubmitted(at_s=1, job=job, indices=(0, 1), at_most=1))
            continue
        events.append(JobSubmitted(at_s=1, job=job))
        if how in {"pending", "waiting"}:
            continue
        if how == "cancelled":
            events.append(CancelRequested(at_s=2, job=name))
            continue
        lease = f"{name}.1"
        events.append(
            LeaseGranted(
                at_s=2, lease=lease, job=name, node="node-0", gpus=(number,), microusd_per_gpu_hour=1
            )
        )
        if how == "starting":
            continue
        events.append(LeaseStarted(3, lease))
        if how in {"stopping", "requeued"}:
            events.append(LeaseEnding(at_s=4, lease=lease, reason=verbatim("x"), requeue=True))
        if how in {"finished", "failed", "requeued"}:
            events.append(LeaseEnded(at_s=5, lease=lease, exit_code=int(how != "finished")))
    return events


def find_in(fleet: Fleet, name: str) -> JobState:
    if name not in fleet.jobs:
        raise NotFound(verbatim(name))
    return fleet.jobs[name]


HOW = [
    "pending",
    "waiting",
    "starting",
    "running",
    "stopping",
    "requeued",
    "array",
    "finished",
    "failed",
    "cancelled",
]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(HOW), st.booleans()), min_size=1, max_size=12))
def test_nothing_that_a_live_job_needs_is_ever_removed(plan: list[tuple[str, bool]]) -> None:
    fleet = Fleet()
    for event in log_of(plan):
        fleet.apply(event)
    jobs = Jobs(fleet, lambda name: find_in(fleet, name))
    with tempfile.TemporaryDirectory() as folder:
        engines = Path(folder)
        store = CodeStore(engines / "code")
        needed, rest = set[Path](), set[Path]()
        for name, state in fleet.jobs.items():
            live = needed if state.phase not in OVER else rest
            root = engines / ("leases" if state.serial % 2 else "sites/west")
            places = [root / f"{name}.1" / "log", root / ".checkpoints" / name / "step-1" / "x"]
            if state.job.code:
                places.append(store.path(state.job.tenant, state.job.code))
            for path in places:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("x")
                os.utime(path, (5, 5))
                live.add(path)
        unknown = engines / "leases" / "of-another-log.1"
        unknown.mkdir(parents=True)
        (engines / "leases" / ".id").write_text("identity")
        items = surplus(unneeded(engines, jobs, now_s=NOW_S), NOTHING, now_s=NOW_S)
        remove(items, jobs, now_s=NOW_S, engines=engines)
        assert all(path.exists() for path in needed)
        assert not any(path.exists() for path in rest - needed)  # and the rest does go
        assert unknown.exists()
        assert (engines / "leases" / ".id").exists()


def test_code_that_was_just_sent_or_asked_for_stays(tmp_path: Path) -> None:
    store, jobs = CodeStore(tmp_path / "code"), Jobs(Fleet(), lambda name: find_in(Fleet(), name))
    path = store.path("default", "0" * 64)
    path.parent.mkdir(parents=True)
    path.write_text("x")
    now_s = int(time.time())
    assert list(unneeded(tmp_path, jobs, now_s=now_s)) == []
    assert len(list(unneeded(tmp_path, jobs, now_s=now_s + SETTLED_S + 60))) == 1
    os.utime(path, (5, 5))
    store.size("default", "0" * 64)  # a submit that is on its way
    assert list(unneeded(tmp_path, jobs, now_s=now_s)) == []


def test_what_somebody_needs_by_now_is_not_removed_after_all(tmp_path: Path) -> None:
    fleet = Fleet()
    store, jobs = CodeStore(tmp_path / "code"), Jobs(fleet, lambda name: find_in(fleet, name))
    path = store.path("default", "0" * 64)
    path.parent.mkdir(parents=True)
    path.write_text("x")
    os.utime(path, (5, 5))
    items = surplus(unneeded(tmp_path, jobs, now_s=NOW_S), NOTHING, now_s=NOW_S)
    fleet.apply(JobSubmitted(at_s=1, job=a_job("a", code="0" * 64)))
    assert (len(items), remove(items, jobs, now_s=NOW_S, engines=tmp_path)) == (1, [])


def test_links_in_a_jobs_folder_are_removed_and_not_followed(tmp_path: Path) -> None:
    fleet = Fleet()
    for event in log_of([("finished", False)]):
        fleet.apply(event)
    jobs = Jobs(fleet, lambda name: find_in(fleet, name))
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    lease = tmp_path / "leases" / "job-1.1"
    lease.mkdir(parents=True)
    (lease / "out").symlink_to(tmp_path / "precious")
    os.mkfifo(lease / "pipe")
    items = surplus(unneeded(tmp_path, jobs, now_s=NOW_S), NOTHING, now_s=NOW_S)
    assert names(remove(items, jobs, now_s=NOW_S, engines=tmp_path)) == ["job-1.1"]
    assert (tmp_path / "precious" / "file").exists()


def test_the_audit_log_is_kept_by_age_and_number(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'x.db'}")
    access = AccessStore(store)
    access.note(
        [Deed(at_s=at, token="t", name="n", tenant="x", verb="v", target="", outcome="ok") for at in range(9)]
    )
    assert clean_tables(store, read_keep("audit=100s"), now_s=105, dry_run=True) == 5
    assert clean_tables(store, read_keep("audit=100s"), now_s=105, dry_run=False) == 5
    assert clean_tables(store, read_keep("audit=1"), now_s=105, dry_run=False) == 3
    assert [deed["at_s"] for deed in access.deeds()] == [8]
    store.close()


def test_clean_says_first_what_would_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'brimful.db'}")
    store.append(log_of([("finished", False), ("running", False)]), after=0)
    store.close()
    for lease in ("job-1.1", "job-2.1"):
        (tmp_path / "leases" / lease).mkdir(parents=True)
    words = ["admin", "clean", "--data", str(tmp_path), "--keep", "leases=1d"]
    assert main([*words, "--dry-run"]) == 0
    assert "job-1.1" in capsys.readouterr().out
    assert (tmp_path / "leases" / "job-1.1").exists()
    assert main(words) == 0
    assert not (tmp_path / "leases" / "job-1.1").exists()
    assert (tmp_path / "leases" / "job-2.1").exists()
