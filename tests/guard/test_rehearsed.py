"""A guarded run from end to end on a card that is not there: the allocator itself runs out in the script."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from brimful.allocator import Settings, run
from brimful.diagnose.oom import find_out_of_memory
from brimful.fit.overhead import context_bytes
from brimful.specs.gpu import find_gpu
from tests.conftest import ROOT
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.torch

SCRIPT = ROOT / "examples" / "nanogpt" / "train.py"
SMALL = [
    "--n_layer=1", "--block_size=128", "--gradient_accumulation_steps=1", "--batch_size=8", "--max_iters=2",
    "--eval_interval=1", "--eval_iters=1",
]  # fmt: skip


def rehearsed(memory_bytes: int, *words: str) -> list[str]:
    head = [sys.executable, "-m", "tests.tracing.rehearse", "--gpu", "rtx-4070"]
    return [*head, "--memory", str(memory_bytes), str(SCRIPT), *words]


def guarded(folder: Path, *options: str, command: list[str]) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON answer, and what was said on the way."""
    done = subprocess.run(
        [sys.executable, "-m", "brimful.cli.main", "run", "--json", *options, "--", *command],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        timeout=PATIENCE_S,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout)["data"], done.stderr


def predicted_failure(words: list[str], folder: Path) -> tuple[int, int, int]:
    """A card whose second step does not fit; at which request it fails, and for how many bytes.

    By the trace of the same script: nothing here knows what the guarded run will do.
    """
    from brimful.tracing.cuda_device import cuda_device
    from brimful.tracing.session import recording
    from brimful.tracing.steps import EnoughSteps

    gpu = find_gpu("rtx-4070")
    with pytest.MonkeyPatch.context() as patch, recording(cuda_device(gpu), steps=2) as recorder:
        patch.setattr(sys, "argv", [str(SCRIPT), *words])
        patch.chdir(folder)
        with suppress(EnoughSteps):
            runpy.run_path(str(SCRIPT), run_name="__main__")
    context = round(context_bytes(gpu).likely)
    requests = recorder.tape.requests()
    first = run(requests[: recorder.tape.step_ends[0]], Settings()).peak_reserved_bytes
    both = run(requests, Settings()).peak_reserved_bytes
    assert both > first, "the second step has AdamW's state besides"
    memory_bytes = context + (first + both) // 2
    outcome = run(requests, Settings(), memory_bytes, other_bytes=context)
    assert outcome.out_of_memory is not None
    assert outcome.failed_at is not None
    return memory_bytes, outcome.failed_at, outcome.out_of_memory.requested_bytes


def test_it_runs_out_where_predicted_goes_on_from_its_checkpoint_and_finishes(tmp_path: Path) -> None:
    memory_bytes, event, wanted_bytes = predicted_failure(SMALL, tmp_path)

    code, data, said = guarded(tmp_path, "--gpu", "rtx-4070", command=rehearsed(memory_bytes, *SMALL))

    assert code == 0, said
    first, second = data["tries"]
    log = Path(tmp_path / first["log"]).read_text()
    # Step 1 went well and was saved; step 2 failed at the very request the trace foretold.
    assert "iter 0: loss" in log
    assert "saving checkpoint" in log
    assert "iter 1: loss" not in log
    assert f"request {event:,} of {wanted_bytes:,} bytes" in log
    message = find_out_of_memory(log)[0]
    assert message.total_bytes == pytest.approx(memory_bytes, rel=0.005)
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in log
    # The same effective batch, and nothing else changed.
    assert first["ended"] == "out_of_memory"
    assert second["ended"] == "finished"
    added, gone = set(second["words"]) - set(first["words"]), set(first["words"]) - set(second["words"])
    batch = data["changed"]["batch_size"][1]
    assert added == {
        f"--batch_size={batch}",
        f"--gradient_accumulation_steps={8 // batch}",
        "--init_from=resume",
    }
    assert gone == {"--batch_size=8", "--gradient_accumulation_steps=1"}
    assert data["changed"] == {"batch_size": [8, batch], "gradient_accumulation_steps": [1, 8 // batch]}
    again = Path(tmp_path / second["log"]).read_text()
    per_step = "tokens per iteration will be: 1,024"
    assert per_step in log
    assert per_step in again
    assert second["resumed_from"] == "out/ckpt.pt"
    assert "iter 0: loss" not in again
    assert "iter 1: loss" in again
    assert "done after 2 iterations" in again
    assert f"batch_size 8 -> {batch}" in said


def test_what_can_never_fit_is_tried_once_and_told_why(tmp_path: Path) -> None:
    memory_bytes = 400 << 20  # less than the CUDA context and the weights

    code, data, said = guarded(tmp_path, "--gpu", "rtx-4070", command=rehearsed(memory_bytes, *SMALL))

    assert code == 1
    assert [each["ended"] for each in data["tries"]] == ["out_of_memory"]
    reason = data["reason"]
    assert (reason["code"], reason["tries"]["n"], reason["why"]["code"]) == (
        "guard.gave_up", 1, "guard.smallest_needs",
    )  # fmt: skip
    assert reason["why"]["low"] > reason["why"]["usable"]
    assert "gave up" in said
