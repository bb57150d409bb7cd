"""Whatever a job puts where brimful reads, nobody waits for it, follows it, or falls over it."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.hostile import PLANTS, READ, READ_TOO, SECRET, STARTED, TEXTS, Fuzz
from brimful.adapters.engines.checkpoints import make_ready, sealed_in
from brimful.adapters.engines.local import LocalEngine
from brimful.errors import BrimfulError
from brimful.job import MOST_ENTRIES, Checkpoint, newest, seal, whole_ones
from brimful.language import say
from brimful.language.record import as_record
from brimful.scheduler.ports import Observation
from tests.builders import a_node, stop_one
from tests.patience import PATIENCE_S


def in_time(look: Callable[[], object]) -> object:
    """Its answer. A thread, because what is looked for is a wait without end."""
    answer: list[object] = []

    def ask() -> None:
        try:
            answer.append(look())
        except BrimfulError as error:
            answer.append(error.problem)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert answer, "it waits for ever, or fell over"
    return answer[0]


def kept(seen: Observation) -> tuple[Observation, str]:
    """As the log keeps it and answers tell it: JSON without NaN, in characters that can be written."""
    facts = [as_record(seen.problem), seen.started_s, seen.ended_s, seen.exit_code, seen.kept_work_s]
    json.dumps(facts, ensure_ascii=False, allow_nan=False).encode()
    return seen, str(seen.problem)


def asked_everything(engine: LocalEngine, lease: str) -> list[object]:
    def looks() -> list[object]:
        found: list[object] = []
        for look in (
            lambda: [kept(each) for each in engine.observe([lease])],
            lambda: engine.log(lease).data,
            lambda: engine.sample(lease),
            lambda: engine.warn(lease, until_s=1),
            lambda: stop_one(engine, lease, grace_s=1),
            lambda: [kept(each) for each in engine.observe([lease])],
            engine.living,
        ):
            try:
                found.append(look())
            except BrimfulError as error:
                found.append(error.problem)
        return found

    return in_time(looks)  # type: ignore[return-value]


@pytest.mark.parametrize("seed", range(2))
def test_a_lease_folder_full_of_traps_is_looked_at_and_left(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    engine = LocalEngine(tmp_path / "leases", [a_node()])
    for case in range(40):
        lease = f"a.{case}"
        folder = tmp_path / "leases" / lease
        folder.mkdir(mode=0o700)
        for name in rng.sample(READ + READ_TOO, rng.randrange(1, 6)):
            rng.choice(PLANTS)(folder / name, rng, secret)
        told = asked_everything(engine, lease)
        assert SECRET not in str(told)
        assert secret.read_text() == SECRET


@pytest.mark.parametrize("seed", range(2))
def test_a_checkpoint_folder_full_of_traps_gives_the_whole_ones(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    for case in range(40):
        folder, elsewhere = tmp_path / f"here-{case}", tmp_path / f"there-{case}"
        for place in (folder, elsewhere):
            place.mkdir()
            for name in ("x", "y\nz", ".saving-1", ".fetching-x", "damaged-y"):
                plant = rng.choice(PLANTS)
                if rng.random() < 0.5:
                    plant(place / name, rng, secret)
                else:
                    (place / name).mkdir()
                    plant(place / name / rng.choice(("brimful.json", "state.pt")), rng, secret)
        whole = folder / "step-7"
        whole.mkdir()
        (whole / "state.pt").write_text("seven")
        seal(whole, step=7)
        found = in_time(lambda folder=folder: newest(folder))  # type: ignore[misc]
        assert isinstance(found, Checkpoint)
        assert found.folder == whole
        told = in_time(lambda here=folder, there=elsewhere: list(make_ready(here, sealed_in(there))))  # type: ignore[misc]
        assert told == [say("adapters.goes_on_from", name="step-7")]
        assert secret.read_text() == SECRET


def test_a_file_of_a_checkpoint_that_is_a_link_is_neither_read_nor_carried(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    there = tmp_path / "there"
    (there / "step-1").mkdir(parents=True)
    (there / "step-1" / "state.pt").write_text(SECRET)
    seal(there / "step-1", step=1)
    (there / "step-1" / "state.pt").unlink()
    (there / "step-1" / "state.pt").symlink_to(secret)
    told = list(make_ready(tmp_path / "here", sealed_in(there)))
    assert len(told) == 1
    assert told[0].code == "adapters.not_used"
    assert not any((tmp_path / "here").iterdir())


def test_of_very_many_entries_only_so_many_are_looked_at(tmp_path: Path) -> None:
    for number in range(MOST_ENTRIES + 50):
        (tmp_path / f"x{number}").touch()
    assert whole_ones(tmp_path) == []
    looked, real = 0, os.scandir

    def counted(path: Path) -> object:
        class Entries:
            def __enter__(self) -> object:
                self.inner = real(path)
                return self

            def __exit__(self, *_: object) -> None:
                self.inner.close()

            def __iter__(self) -> object:
                return self

            def __next__(self) -> object:
                nonlocal looked
                looked += 1
                return next(self.inner)

        return Entries()

    os.scandir = counted  # type: ignore[assignment]
    try:
        whole_ones(tmp_path)
    finally:
        os.scandir = real
    assert looked == MOST_ENTRIES


@pytest.mark.parametrize("text", ['{"deadline_s": "never"}', "{}", "not JSON"])
def test_a_job_that_writes_its_own_stop_is_stopped_all_the_same(tmp_path: Path, text: str) -> None:
    engine = LocalEngine(tmp_path, [a_node()])
    (tmp_path / "a.1").mkdir()
    (tmp_path / "a.1" / "stop.json").write_text(text)
    stop_one(engine, "a.1", grace_s=7)
    assert json.loads((tmp_path / "a.1" / "stop.json").read_text())["grace_s"] == 7


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_whatever_a_job_writes_of_its_own_end_can_be_recorded(tmp_path: Path, text: bytes) -> None:
    engine = LocalEngine(tmp_path, [a_node()])
    (tmp_path / "a.1").mkdir()
    for started in (b'{"at_s": 1, "speed": 1}', text):
        (tmp_path / "a.1" / "started.json").write_bytes(started)
        (tmp_path / "a.1" / "ended.json").write_bytes(text)
        assert all(kept(each) for each in engine.observe(["a.1"]))


def test_traps_under_a_scheduler_that_runs_stop_nothing(tmp_path: Path) -> None:
    """The same as `python -m bench.hostile 5000`, which also measures the loop's longest pause."""
    found = Fuzz(tmp_path, seed=1).run(60)
    assert (found.cases, found.broken) == (60 + STARTED, [])


def test_the_same_complaint_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A job could otherwise fill the server's log, at every look."""
    engine = LocalEngine(tmp_path, [a_node()])
    (tmp_path / "a.1").mkdir()
    (tmp_path / "a.1" / "started.json").write_bytes(b"\xff\xfe")
    for _ in range(3):
        engine.observe(["a.1"])
    assert caplog.text.count("cannot check") == 1
