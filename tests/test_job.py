"""The helper inside a job: what it saves is whole or not there, and it leaves when told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful.job import LEFT_IN_TIME, Run, damage, newest, read_seal, whole_ones


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setenv("BRIMFUL_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("BRIMFUL_NOTICE", str(tmp_path / "notice.json"))
    before = signal.getsignal(signal.SIGTERM)
    yield Run()
    signal.signal(signal.SIGTERM, before)


def save(text: str) -> object:
    def write(folder: Path) -> None:
        (folder / "state.txt").write_text(text)
        (folder / "more").mkdir()
        (folder / "more" / "optimizer.txt").write_text(text * 2)

    return write


def test_nothing_is_saved_until_it_is_time(run: Run) -> None:
    run.after(1, save("x"))  # type: ignore[arg-type]
    assert run.latest is None


def test_it_saves_and_leaves_when_the_notice_is_there(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notice.json").write_text(json.dumps({"deadline_s": 123}))
    assert (run.told, run.deadline_s) == (True, 123)
    with pytest.raises(SystemExit) as left:
        run.after(7, save("seven"))  # type: ignore[arg-type]
    assert left.value.code == LEFT_IN_TIME == 143
    assert run.latest is not None
    assert (run.latest / "more" / "optimizer.txt").read_text() == "sevenseven"
    sealed = read_seal(run.latest)
    assert sealed is not None
    assert (sealed.step, sorted(sealed.files), damage(sealed)) == (
        7,
        ["more/optimizer.txt", "state.txt"],
        None,
    )


def test_a_signal_says_the_same(run: Run) -> None:
    told = [run.told]
    os.kill(os.getpid(), signal.SIGTERM)
    told.append(run.told)
    assert told == [False, True]
    assert run.deadline_s is None


def test_a_save_that_fails_leaves_the_one_before(run: Run) -> None:
    with run.saving(1) as folder:
        (folder / "a").write_text("1")

    def fail(step: int) -> None:
        with run.saving(step) as folder:
            (folder / "a").write_text("half")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fail(2)
    assert run.latest is not None
    assert (run.latest / "a").read_text() == "1"
    assert [path.name for path in run.folder.iterdir()] == ["step-000000001"]


def test_only_the_newest_ones_are_kept(run: Run) -> None:
    for step in range(1, 6):
        with run.saving(step) as folder:
            (folder / "a").write_text(str(step))
    assert [each.step for each in whole_ones(run.folder)] == [5, 4]


def test_every_so_often_it_saves_without_being_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRIMFUL_CHECKPOINT_DIR", raising=False)
    run = Run(every_s=0, folder=tmp_path / "mine")
    run.after(3, save("x"))  # type: ignore[arg-type]
    found = newest(tmp_path / "mine")
    assert found is not None
    assert found.step == 3
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_what_was_killed_while_it_wrote_is_not_a_checkpoint(run: Run) -> None:
    script = (
        "from brimful.job import Run; import sys, time\nrun = Run()\n"
        "with run.saving(9) as folder:\n"
        "    (folder / 'a').write_text('half'); print('writing', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    child.kill()
    child.communicate()
    assert list(run.folder.glob(".saving-*"))
    assert run.latest is None


@pytest.mark.parametrize(
    "seal",
    [
        *("", "[]", "{}", "\0"),
        '{"step": 1, "at_s": 1, "files": {"../../x": {"bytes": 1, "sha256": ""}}}',
        # The carrier read one block after the other of a file that never seemed too short.
        '{"step": 1, "at_s": 1, "files": {"brimful.json": {"bytes": 9000000000000000, "sha256": ""}}}',
        # With its opposite beside it a sparse file of terabytes was within every limit.
        '{"step": 1, "at_s": 1, "files": {"x": {"bytes": -9000000000000000, "sha256": ""}}}',
    ],
)
def test_a_seal_that_cannot_be_read_is_none(tmp_path: Path, seal: str) -> None:
    (tmp_path / "brimful.json").write_text(seal)
    assert read_seal(tmp_path) is None


def test_importing_it_costs_no_other_part_of_brimful() -> None:
    script = (
        "import sys, brimful.job; print([m for m in sys.modules if m.startswith('brimful.')],"
        " 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['brimful.job'] False"


def test_the_time_in_the_seal_is_now(run: Run) -> None:
    before_s = int(time.time())
    with run.saving(1) as folder:
        (folder / "a").write_text("1")
    found = newest(run.folder)
    assert found is not None
    assert before_s <= found.at_s <= time.time() + 1


class _Control:
    should_save = should_training_stop = False


class _State:
    global_step, is_world_process_zero = 12, True


def test_the_callback_for_the_trainer_saves_seals_and_leaves(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the calls Hugging Face's Trainer makes, in its order."""
    library = types.ModuleType("transformers")
    library.TrainerCallback = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", library)
    callback, control = run.for_trainer(), _Control()
    arguments = types.SimpleNamespace(output_dir=str(run.folder))
    assert not callback.on_step_end(arguments, _State, control).should_save
    (tmp_path / "notice.json").write_text(json.dumps({"deadline_s": 1}))
    control = callback.on_step_end(arguments, _State, control)
    assert control.should_save
    assert control.should_training_stop
    folder = run.folder / "checkpoint-12"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    found = [run.latest]
    callback.on_save(arguments, _State, control)
    found.append(run.latest)
    assert found == [None, folder], "not before it is sealed"
    with pytest.raises(SystemExit):
        callback.on_train_end(arguments, _State, control)
