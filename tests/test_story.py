"""The story of an RTX 4070, without one: out of memory, the cause, the fix, and a run that goes through.

Every step is a command as its user types it. The card is the rehearsal's: real PyTorch on fake tensors, whose
memory runs out where the allocator's rules say so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brimful.specs.gpu import find_gpu
from brimful.units import MIB
from tests.conftest import ROOT
from tests.patience import PATIENCE_S

CARD = "rtx-4070"
TRAIN = ROOT / "examples" / "nanogpt" / "train.py"
DESKTOP_MIB = 990
# In the words of PyTorch 2.5. What is neither free nor the process's is the desktop's: 990 MiB.
CRASH = """\
step 0: train loss 10.9886, val loss 10.9898
Traceback (most recent call last):
  File "/data/nanoGPT/train.py", line 300, in <module>
    logits, loss = model(X, Y)
                   ^^^^^^^^^^^
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 has a total capacity of \
11.69 GiB of which 812.00 MiB is free. Including non-PyTorch memory, this process has 9.93 GiB memory in \
use. Of the allocated memory 9.20 GiB is allocated by PyTorch, and 412.00 MiB is reserved by PyTorch but \
unallocated. If reserved but unallocated memory is large try setting \
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory \
Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)
"""
# A GPT of nanoGPT's for a single desktop card: 64 sequences a step.
CONFIG = """\
out_dir = "out"
batch_size = 16
block_size = 1024
gradient_accumulation_steps = 4

n_layer = 12
n_head = 12
n_embd = 576
bias = False

max_iters = 1
dtype = "bfloat16"
compile = True
"""


class Desk:
    """A folder with the user's config and log, and the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "config.py").write_text(CONFIG)
        (folder / "crash.log").write_text(CRASH)

    def asks(self, *words: str, command: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
        """Exit code and answer of one brimful command."""
        users = ["--", *command] if command else []
        done = subprocess.run(
            [sys.executable, "-m", "brimful.cli.main", *words, "--json", *users],
            cwd=self.folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        answer = json.loads(done.stdout)
        assert answer["ok"], answer
        return done.returncode, answer["data"]

    def training(self) -> tuple[str, ...]:
        """`python train.py config.py`, on a card of which a desktop holds its part."""
        left_bytes = find_gpu(CARD).memory_bytes - DESKTOP_MIB * MIB
        head = (sys.executable, "-m", "tests.tracing.rehearse", "--gpu", CARD)
        return (*head, "--memory", str(left_bytes), str(TRAIN), "config.py")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where the rehearsal is
    return Desk(tmp_path)


def test_the_message_is_explained_and_the_config_is_fixed_with_the_same_effective_batch(desk: Desk) -> None:
    code, data = desk.asks("explain", "crash.log", "--config", "config.py", "--gpu", CARD)
    message, config = data["recognised"]
    said = {each["code"]: each["text"] for each in message["says"]}
    assert code == 0
    assert message["kind"] == "out_of_memory"
    assert message["facts"]["tried_bytes"] == pytest.approx(16 * 1024 * 50304 * 2, rel=0.005)
    assert "16 x 1024 x 50304 x 2 bytes" in said["tensor"], "the cause: the logits"
    assert f"{DESKTOP_MIB} MiB" in said["others"]
    assert "no_fragmentation" in said
    assert config["facts"]["verdict"] == "likely_does_not_fit"

    code, predicted = desk.asks("fit", "config.py", "--gpu", CARD)
    assert (code, predicted["verdict"]) == (1, "likely_does_not_fit")
    assert predicted["other_programs"]["basis"] == "assumed", "nobody had to know --other-mib"
    largest = max(predicted["memory"]["items"], key=lambda item: item["bytes"])
    assert largest["code"] == "logits_loss"
    fix = predicted["fixes"][0]
    assert (fix["verdict"], fix["keeps_effective_batch"], fix["keeps_numerics"]) == ("fits", True, True)

    code, written = desk.asks("fit", "config.py", "--gpu", CARD, "--write")
    assert code == 0
    assert written["change"] == {"batch_size": [16, 8], "gradient_accumulation_steps": [4, 8]}
    patched = (desk.folder / "config.py").read_text()
    assert patched == CONFIG.replace("= 16\n", "= 8\n").replace("steps = 4\n", "steps = 8\n")
    assert Path(written["backup"]).read_text() == CONFIG

    code, fixed = desk.asks("fit", "config.py", "--gpu", CARD, "--other-mib", str(DESKTOP_MIB))
    assert (code, fixed["verdict"]) == (0, "fits")


@pytest.mark.torch
def test_as_it_was_it_runs_out_on_that_card_and_fixed_it_is_guarded_to_its_end(
    desk: Desk,
) -> None:
    as_it_was = subprocess.run(
        desk.training(), cwd=desk.folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert as_it_was.returncode != 0
    assert "torch.OutOfMemoryError: CUDA out of memory." in as_it_was.stderr

    desk.asks("fit", "config.py", "--gpu", CARD, "--write")
    others = ("--other-mib", str(DESKTOP_MIB))
    code, data = desk.asks("run", "--gpu", CARD, *others, command=desk.training())

    assert code == 0
    assert [each["ended"] for each in data["tries"]] == ["finished"]
    assert data["changed"] == {}
    log = (desk.folder / data["tries"][0]["log"]).read_text()
    assert f"tokens per iteration will be: {16 * 4 * 1024:,}" in log, "the same effective batch"
    assert "done after 1 iterations" in log
