"""A start reads a snapshot and what came after it, and ends up where the whole log leads."""

from __future__ import annotations

import io
import json
import pickle
import zlib
from dataclasses import asdict
from pathlib import Path

import pytest

from brimful.adapters.stores import snapshot
from brimful.adapters.stores.leader import Leadership
from brimful.adapters.stores.past import PastJob, past_job_row
from brimful.adapters.stores.snapshot import Fold, advance, dump, load
from brimful.adapters.stores.snapshot_apart import Apart
from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.events import Event, JobSubmitted, LeaseEnded, LeaseStarted
from brimful.server.doctor import examine
from tests.builders import a_job, a_node, granted, joined


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "KEEP", 3)
    monkeypatch.setattr(snapshot, "TRANSFERS", 4)


def a_life(number: int) -> list[Event]:
    """A job from submit to end, one second long; every third has a budget."""
    name, at_s = f"job-{number}", 10 * number
    budget = 5_000_000 if number % 3 == 0 else None
    return [
        JobSubmitted(at_s=at_s, job=a_job(name, tenant="ab"[number % 2], budget_microusd=budget)),
        granted(name, gpus=(number % 8,), at_s=at_s + 1),
        LeaseStarted(at_s=at_s + 2, lease=f"{name}.1"),
        LeaseEnded(at_s=at_s + 2 + number, lease=f"{name}.1", exit_code=number % 2),
    ]


def a_history(jobs: int) -> list[Event]:
    return [joined(a_node()), *(event for i in range(1, jobs + 1) for event in a_life(i))]


def folded(events: list[Event]) -> Fold:
    fold = Fold()
    for event in events:
        fold.apply(event)
    return fold


def same(one: Fold, other: Fold) -> bool:
    """Compared by what a user can see."""

    def seen(fold: Fold) -> object:
        fleet, ledger = fold.fleet, fold.ledger
        return (
            fleet.seq,
            fleet.submitted,
            fleet.jobs,
            {name: fleet.free(name) for name in fleet.nodes},
            list(fleet.waiting),
            fleet.finished,
            ledger.balances,
            ledger.spent_microusd,
            ledger.rounding,
            ledger.held_by_tenant,
            [fold.bills.bills(by) for by in ("team", "user", "site", "gpu", "day")],
        )

    return seen(one) == seen(other)


def test_a_snapshot_and_the_rest_of_the_log_are_the_whole_log(url: str) -> None:
    store = SqlStore(url)
    events = a_history(8)
    assert store.append(events[:25], after=0)
    assert advance(store, at_least=1) == 25
    assert store.append(events[25:], after=25)
    fold = load(store)
    assert fold.fleet.seq == 25
    for event in store.since(25):
        fold.apply(event)
    assert same(fold, folded(events))
    assert advance(store, at_least=100) == 0, "not enough has happened"
    store.close()


def test_jobs_that_left_memory_are_found_in_the_table_with_their_leases_and_cost(url: str) -> None:
    store = SqlStore(url)
    events = a_history(8)
    assert store.append(events, after=0)
    advance(store, at_least=1)
    assert list(load(store).fleet.jobs) == ["job-6", "job-7", "job-8"]
    everything = Fold()
    everything.fleet._keep = None
    for event in events:
        everything.apply(event)
    for name in ("job-1", "job-3", "job-5"):
        past = store.past_job(name)
        assert past is not None
        assert past.state == everything.fleet.jobs[name]
        assert past.spent_microusd == everything.ledger.spent_microusd[name]
    assert [past.state.job.job for past in store.past_jobs(limit=2)] == ["job-5", "job-4"]
    assert [past.state.job.job for past in store.past_jobs(before=2)] == ["job-2", "job-1"]
    assert [past.state.job.job for past in store.past_jobs(tenants={"a"})] == ["job-4", "job-2"]
    assert store.past_job("job-8") is None
    store.close()


def test_memory_does_not_grow_with_history() -> None:
    fold = folded(a_history(400))
    assert len(fold.fleet.jobs) == len(fold.fleet.leases) == 3
    assert len(fold.ledger.transfers) <= 2 * 4 + 2
    assert sum(fold.ledger.balances.values()) == 0
    assert len(fold.fleet.leaving) == 397, "until somebody keeps them"


def test_other_code_does_not_read_it_but_folds_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    assert store.append(a_history(2), after=0)
    advance(store, at_least=1)
    assert load(store).fleet.seq == 9
    monkeypatch.setattr(snapshot, "code_id", lambda: "another")
    assert load(store).fleet.seq == 0
    store.close()


class _Harm:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("harm",))


def test_a_snapshot_can_name_nothing_but_our_nouns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(snapshot._Unpickler(io.BytesIO(zlib.decompress(dump(Fold())))).load(), Fold)
    with pytest.raises(pickle.UnpicklingError, match=r"may not name builtins\.print"):
        snapshot._Unpickler(io.BytesIO(pickle.dumps(_Harm()))).load()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "body", [b"", b"no zlib", zlib.compress(b"no pickle"), zlib.compress(pickle.dumps({}))]
)
def test_a_damaged_snapshot_is_as_good_as_none(tmp_path: Path, body: bytes) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    history = a_history(5)
    assert store.append(history, after=0)
    store.keep_snapshot(len(history), snapshot.code_id(), body, left=[])
    assert load(store).fleet.seq == 0
    broken = [each.as_dict()["code"] for found in examine(store) for each in found.broken]
    assert "doctor.snapshot_damaged" in broken
    assert store.append(a_life(6), after=len(history))
    assert advance(store, at_least=1) == 4  # which folds the whole log, and mends it
    assert load(store).fleet.jobs == folded(a_history(6)).fleet.jobs
    store.close()


def test_what_is_kept_of_a_job_is_all_of_it() -> None:
    for state in folded(a_history(6)).fleet.jobs.values():
        row = past_job_row(PastJob(state=state, spent_microusd=1))
        kept = asdict(state)
        del kept["kin"]  # what is known of its like is learned from the log
        assert row["body"] == json.dumps(kept)


def test_a_process_of_its_own_keeps_the_same_snapshot_and_only_for_who_leads(url: str) -> None:
    store = SqlStore(url)
    events = a_history(8)
    assert store.append(events, after=0)
    leadership = Leadership(store)
    assert leadership.seek()
    problem = Apart().advance(store, fence=leadership.token + 1, at_least=1)
    assert "lead" in problem
    assert store.snapshot_seq() == 0
    assert Apart().advance(store, fence=leadership.token, at_least=1) == ""
    fold = load(store)
    assert fold.fleet.seq == store.snapshot_seq() == len(events)
    assert fold.ledger.balances == folded(events).ledger.balances
    store.close()
