"""What a guard makes of a command, and what it turns down when memory runs out."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.diagnose.oom import find_out_of_memory
from brimful.errors import BadInput
from brimful.guard.checkpoints import Keeper
from brimful.guard.command import Command, read_command
from brimful.guard.forecast import Forecast, Room, forecast, read_settings
from brimful.guard.replan import (
    Failure,
    NextTry,
    NoTry,
    bounded,
    climbed,
    failure_of,
    halve,
    replan,
    room_bytes,
    spoken_training,
)
from brimful.specs.desktop import others_on
from brimful.specs.gpu import find_gpu
from brimful.units import GIB, MIB
from tests.conftest import ROOT

NANOGPT = """
import os, torch
out_dir = 'out'
init_from = 'scratch'
gradient_accumulation_steps = 5 * 8
batch_size = 12
block_size = 1024
n_layer = 12
n_head = 12
n_embd = 768
dtype = 'bfloat16' if torch.cuda.is_available() else 'float16'
compile = True
exec(open('configurator.py').read())
"""
TRAINER = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)"
OWN = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", "-b", type=int, default=16)
parser.add_argument("--grad-accum", type=int, default=1)
parser.add_argument("--gradient-checkpointing", action="store_true")
"""
CARD = find_gpu("rtx-4070")


def a_command(
    folder: Path, script: str, words: str = "", *, launcher: str = "python", **more: list[str]
) -> Command:
    path = folder / "train.py"
    path.write_text(script)
    return read_command([*launcher.split(), str(path), *words.split()], **more)


def a_forecast(command: Command, *, others: int = 0, model: str | None = None) -> Forecast:
    reading = read_settings(command, config=None, model=model, sets=())
    return forecast(reading, Room(gpu=CARD, others=others_on(CARD, others), by_driver=False), None)


def test_a_nanogpt_script_is_read_with_its_own_defaults_its_config_and_its_words(tmp_path: Path) -> None:
    config = tmp_path / "x.py"
    config.write_text("batch_size = 16\nn_embd = 576\nwarmup_iters = 700\n")
    command = a_command(tmp_path, NANOGPT, f"{config} --batch_size=24")

    assert command.style == "nanoGPT"
    assert (command.says["batch_size"], command.says["gradient_accumulation_steps"]) == (24, 40)
    reading = read_settings(command, config=None, model=None, sets=())
    assert (reading.training.batch_size, reading.model.width, reading.model.layers) == (24, 576, 12)
    told = command.saying({"batch_size": 12, "gradient_accumulation_steps": 80})
    assert told.words[2:] == (str(config), "--batch_size=12", "--gradient_accumulation_steps=80")


def test_torchrun_divides_the_accumulation_and_the_words_say_it_for_all_gpus(tmp_path: Path) -> None:
    command = a_command(tmp_path, NANOGPT, "--batch_size=24", launcher="torchrun --nproc_per_node=4")
    found = a_forecast(command)
    assert (command.gpus, found.reading.training.accumulation) == (4, 10)

    plan = replan(found.reading.training, found.predict, CARD, command)

    assert isinstance(plan, NextTry)
    batch, accumulation = plan.lines["batch_size"], plan.lines["gradient_accumulation_steps"]
    assert batch * accumulation == 24 * 40
    assert accumulation % 4 == 0


def test_trainer_is_told_by_two_words_and_checkpoints_when_smaller_batches_do_not_do(tmp_path: Path) -> None:
    words = "--model_name_or_path gpt2-xl --per_device_train_batch_size 2 --bf16 --max_length 1024"
    command = a_command(tmp_path, TRAINER, words)
    found = a_forecast(command)
    training = found.reading.training
    one = replace(training, batch_size=1, accumulation=2)
    checkpointed = replace(one, checkpointing="full")
    high = found.predict(one).memory.device_bytes.likely
    low = found.predict(checkpointed).memory.device_bytes.likely
    assert low < high

    plan = replan(training, bounded(found.predict, round((low + high) / 2)), CARD, command)

    assert isinstance(plan, NextTry)
    assert plan.lines["gradient_checkpointing"] is True
    told = command.saying(plan.lines).words
    assert told[told.index("--gradient_checkpointing") + 1] == "True"
    assert told[told.index("--per_device_train_batch_size") + 1] == str(
        plan.lines.get("per_device_train_batch_size", 2)
    )
    assert plan.training is not None
    assert plan.training.effective_batch == training.effective_batch
    assert plan.training.optimizer == training.optimizer


def test_a_script_of_ones_own_is_only_told_what_it_knows(tmp_path: Path) -> None:
    command = a_command(tmp_path, OWN, "--batch-size 8 --lr 3e-4")

    assert command.says["per_device_train_batch_size"] == 8
    assert set(command.keys) == {
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
    }
    told = command.saying({"per_device_train_batch_size": 4, "gradient_checkpointing": True}).words[2:]
    assert told == ("--lr", "3e-4", "--batch-size", "4", "--gradient-checkpointing")


def test_without_a_key_for_accumulation_a_smaller_batch_would_be_another_run(tmp_path: Path) -> None:
    script = OWN.replace('parser.add_argument("--grad-accum", type=int, default=1)\n', "")
    command = a_command(tmp_path, script, "--batch-size 8")
    found = a_forecast(command, model="gpt2")

    plan = replan(found.reading.training, bounded(found.predict, 2 * GIB), CARD, command)

    assert isinstance(plan, NoTry)
    assert plan.why.as_dict()["no_key"] == {"code": "guard.no_key", "key": "gradient_accumulation_steps"}


def test_a_key_that_is_no_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        a_command(tmp_path, "x = 1", set_keys=["batch"])
    assert caught.value.said.as_dict() == {"code": "guard.bad_set_key", "text": "batch"}


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 48),
    accumulation=st.integers(1, 40),
    room_gib=st.floats(1, 11),
    short=st.lists(st.floats(0.2, 0.99), max_size=4),
)
def test_every_plan_keeps_the_effective_batch_and_none_repeats_what_failed(
    batch: int, accumulation: int, room_gib: float, short: list[float]
) -> None:
    """However wrong the predictions are: each failure leads to something new, or to a reason."""
    words = ["python", str(ROOT / "examples" / "nanogpt" / "train.py"), "--compile=False"]
    command = read_command(
        [
            *words,
            f"--batch_size={batch}",
            f"--gradient_accumulation_steps={accumulation}",
            "--block_size=1024",
        ]
    )
    found = a_forecast(command)
    now, failed, failures = found.reading.training, [], []
    for part in short:
        failed.append(now)
        likely = found.predict(now).memory.device_bytes.likely
        usable = round(room_gib * GIB)
        failures.append(
            Failure(predicted_bytes=likely, usable_bytes=usable, needed_bytes=round(usable / part))
        )
        room = room_bytes(failures, CARD.memory_bytes)
        plan = replan(now, bounded(found.predict, room), CARD, command, failed=failed)
        if isinstance(plan, NoTry):
            assert plan.why
            return
        assert plan.training is not None
        assert plan.training not in failed
        assert plan.training.effective_batch == batch * accumulation
        assert set(plan.lines) <= {"batch_size", "gradient_accumulation_steps", "compile"}
        now = plan.training


def test_a_message_says_what_the_process_could_have_had_and_what_it_needs() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 12.00 GiB of which "
        "1.00 GiB is free. Process 77 has 3.00 GiB memory in use. Including non-PyTorch memory, this process "
        "has 8.00 GiB memory in use. Of the allocated memory 7.00 GiB is allocated by PyTorch, and 500.00 "
        "MiB is reserved by PyTorch but unallocated."
    )
    failure = failure_of(find_out_of_memory(text)[0], 6.0 * GIB)

    assert failure.usable_bytes == 9 * GIB
    assert failure.needed_bytes == 10 * GIB
    # 6 GiB were predicted where it needs at least 10 of 9: the next prediction stays below 5.4.
    assert room_bytes([failure], 12 * GIB) == pytest.approx(5.4 * GIB, rel=1e-6)


def test_the_next_rung_is_never_one_that_asks_for_more_than_what_failed(tmp_path: Path) -> None:
    command = a_command(tmp_path, NANOGPT, "--batch_size=16 --gradient_accumulation_steps=3")
    found = a_forecast(command)
    goal = found.reading.training
    four = replace(goal, batch_size=4, accumulation=12)

    rung = climbed(four, goal, found.predict, command, failed=[goal])
    assert rung is not None
    assert rung.lines == {"batch_size": 6, "gradient_accumulation_steps": 8}
    six = replace(goal, batch_size=6, accumulation=8)
    assert climbed(four, goal, found.predict, command, failed=[goal, six]) is None


def test_a_checkpoint_of_another_run_or_half_of_one_is_no_place_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keeper = Keeper(command=a_command(tmp_path, NANOGPT))
    path = tmp_path / "out" / "ckpt.pt"
    path.parent.mkdir()
    path.write_bytes(b"PK\x03\x04 half of a zip")
    assert keeper.find(0.0) is None
    with zipfile.ZipFile(path, "w") as whole:
        whole.writestr("data.pkl", b"x" * MIB)
    os.utime(path, (1000, 1000))

    assert keeper.find(2000.0) is None
    found = keeper.find(500.0)
    assert found is not None
    assert found.words == ("--init_from=resume",)


def test_trainer_goes_on_from_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    command = a_command(tmp_path, TRAINER, f"--output_dir {tmp_path}/out")
    for step, whole in ((500, True), (1500, True), (2000, False)):
        folder = tmp_path / "out" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        if whole:
            (folder / "trainer_state.json").write_text("{}")

    found = Keeper(command=command).find(0.0)

    assert found is not None
    assert found.path.name == "checkpoint-1500"
    assert command.adding(found.words).words[-1] == f"--resume_from_checkpoint={found.path}"


@pytest.mark.parametrize(
    "words", ["-b 32", "-b32", "-b=32", "--batch 32", "--batch-si=32", "--batch-size 32"]
)
def test_the_batch_is_known_however_argparse_was_told(tmp_path: Path, words: str) -> None:
    """Read as the default of 16, "the same effective batch" would be half of what the user asked for."""
    command = a_command(tmp_path, OWN, f"{words} --grad-accum 2")

    training = spoken_training(command)
    assert training is not None
    assert training.effective_batch == 64
    plan = halve(training, command)
    assert isinstance(plan, NextTry)
    assert plan.lines == {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4}


def test_a_key_with_its_value_in_the_next_word_goes_with_that_word(tmp_path: Path) -> None:
    command = a_command(tmp_path, TRAINER, "--resume_from_checkpoint out/checkpoint-10 --output_dir out")

    assert command.adding(["--resume_from_checkpoint=out/checkpoint-20"]).words[2:] == (
        "--output_dir", "out", "--resume_from_checkpoint=out/checkpoint-20",
    )  # fmt: skip


def test_halving_under_torchrun_leaves_each_gpu_whole_micro_steps(tmp_path: Path) -> None:
    """nanoGPT divides the accumulation among the GPUs, and stops where that leaves a rest."""
    words = "--batch_size=9 --gradient_accumulation_steps=4"
    command = a_command(tmp_path, NANOGPT, words, launcher="torchrun --nproc_per_node=4")

    training = spoken_training(command)
    assert training is not None
    plan = halve(training, command)
    assert isinstance(plan, NextTry)
    assert plan.lines == {"batch_size": 3, "gradient_accumulation_steps": 12}
