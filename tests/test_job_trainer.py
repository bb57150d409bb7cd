"""Hugging Face's own Trainer, told to leave in the middle: it goes on from its checkpoint, each step once."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import missing

SCRIPT = """
import json, os, pathlib
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from brimful.job import Run

torch.set_num_threads(1)
run = Run()


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return {"x": torch.full((4,), i / 64), "labels": torch.tensor([i / 64])}


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.line = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return {"loss": ((self.line(x) - labels) ** 2).mean()}


class Tell(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        print("did", state.global_step, flush=True)
        if state.global_step == int(os.environ.get("LEAVE_AT", -1)):
            pathlib.Path(os.environ["BRIMFUL_NOTICE"]).write_text(json.dumps({"deadline_s": 1}))


options = TrainingArguments(
    output_dir=str(run.folder), max_steps=9, per_device_train_batch_size=4, report_to=[],
    save_strategy="no", use_cpu=True, disable_tqdm=True, logging_steps=1,
)
trainer = Trainer(model=Line(), args=options, train_dataset=Rows(), callbacks=[Tell(), run.for_trainer()])
trainer.train(resume_from_checkpoint=str(run.latest) if run.latest else None)
print("weights", trainer.model.line.weight.tolist(), flush=True)
"""


@pytest.mark.torch
def test_the_trainer_leaves_and_goes_on(tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None:
        missing("transformers and accelerate", "`make test` installs them")

    def train(folder: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = {
            **os.environ,
            "BRIMFUL_CHECKPOINT_DIR": str(tmp_path / folder),
            "BRIMFUL_NOTICE": str(tmp_path / f"{folder}.notice"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **more,
        }
        command = [sys.executable, "-c", SCRIPT]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)

    def said(done: subprocess.CompletedProcess[str], word: str) -> list[str]:
        return [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith(word)]

    first = train("moved", LEAVE_AT="4")
    assert first.returncode == 143, first.stderr[-2000:]
    assert json.loads((tmp_path / "moved" / "checkpoint-4" / "brimful.json").read_text())["step"] == 4
    (tmp_path / "moved.notice").unlink()
    second = train("moved")
    assert second.returncode == 0, second.stderr[-2000:]
    assert said(first, "did") + said(second, "did") == [str(i) for i in range(1, 10)]
    alone = train("alone")
    assert said(second, "weights") == said(alone, "weights"), "as if nobody had stopped it"
