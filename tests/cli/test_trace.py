"""`brimful trace`: scripts that train, and scripts that do everything else a script may do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brimful.cli.main import main
from brimful.language import words
from tests.builders import eventually
from tests.patience import PATIENCE_S
from tests.tracing.scripts import TRAINING

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]


def trace(script: Path, *words: str) -> int:
    return main(["trace", str(script), "--gpu", "rtx-4070", *words])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    return path


def test_gpt2_says_first_that_logits_and_loss_are_more_than_half(capsys: pytest.CaptureFixture[str]) -> None:
    assert trace(ROOT / "examples" / "train_gpt2.py") == 1
    text = capsys.readouterr().out
    lines = text.splitlines()

    assert lines[0].startswith("DOES NOT FIT")
    assert f"{words('specs.part_logits_loss')}, 6.91 GiB" in lines[1]
    assert "train_gpt2.py:58 in forward" in text
    assert max(len(line) for line in lines) <= 80


def test_arguments_after_two_dashes_are_the_scripts_own(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trace(script, "--json", "--", "--batch", "4096") == 0
    data = json.loads(capsys.readouterr().out)["data"]

    # the hidden layer of 2,048 in fp32, before and after the ReLU
    assert data["peak_tensor_bytes"] > 2 * 4096 * 2048 * 4
    assert data["values_invented"] == 2  # loss.item() in each step
    assert list(data["values_at"]) == ["train.py:19"]


def test_a_script_that_crashes_is_told_with_its_line_and_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\ntorch.ones(2, device='cuda')\nprint('so far')\nraise ValueError('bad shape')"
    )

    assert trace(path) == 2
    text = capsys.readouterr().err
    assert "train.py:4: ValueError: bad shape" in text
    assert "so far" in text


def test_a_script_that_aborts_in_native_code_is_told_by_which_signal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGABRT)")

    assert trace(path, "--json") == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], "SIGABRT" in error["problem"]) == ("script_aborted", True)


def test_a_script_that_hangs_is_ended_with_all_it_started_and_its_line_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, note = tmp_path / "train.py", tmp_path / "pid"
    path.write_text(
        "import subprocess, time\n"
        "daemon = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(note)!r}, 'w').write(f'{{subprocess.Popen([\"sleep\", \"600\"]).pid}} {{daemon.pid}}')\n"
        "time.sleep(600)\n"
    )

    assert trace(path, "--limit", "6", "--json") == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "too_slow"
    assert "train.py:4" in error["problem"]
    assert all(_is_gone(int(pid)) for pid in note.read_text().split())


def test_a_trace_whose_waiting_process_is_killed_ends_too(tmp_path: Path) -> None:
    path, note = tmp_path / "train.py", tmp_path / "pid"
    path.write_text(
        "import os, time\n"
        f"open({str(tmp_path / 'part')!r}, 'w').write(str(os.getpid()))\n"
        f"os.rename({str(tmp_path / 'part')!r}, {str(note)!r})\n"
        "time.sleep(600)\n"
    )
    words = [sys.executable, "-m", "brimful.cli.main", "trace", str(path), "--gpu", "rtx-4070"]
    waiting = subprocess.Popen(words, env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        eventually(note.exists)
    finally:
        waiting.kill()
        waiting.wait()
    assert _is_gone(int(note.read_text()))


def _is_gone(pid: int) -> bool:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if (Path("/proc") / str(pid) / "stat").read_text().split()[2] == "Z":
            return True  # dead; whoever adopted it has yet to collect it
        time.sleep(0.1)
    return False


def test_no_such_script_and_no_such_gpu_are_bad_input(tmp_path: Path, script: Path) -> None:
    assert trace(tmp_path / "absent.py") == 2
    assert main(["trace", str(script), "--gpu", "rtx-9999"]) == 2


def test_rough_mode_says_so(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace(script, "--rough", "--json") == 0
    assert json.loads(capsys.readouterr().out)["data"]["mode"] == "rough"
