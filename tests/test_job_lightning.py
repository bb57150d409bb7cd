"""Lightning's own Trainer, told to leave in the middle of an epoch: it goes on, each step and batch once."""

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
import json, os, pathlib, warnings
warnings.simplefilter("ignore")
import torch
import lightning.pytorch as pl
from torchdata.stateful_dataloader import StatefulDataLoader
from brimful.job import Run

torch.set_num_threads(1)
run = Run()


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return torch.full((4,), i / 20), torch.tensor([i / 20])


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.line = torch.nn.Linear(4, 1)

    def training_step(self, batch, _index):
        x, wanted = batch
        return ((self.line(x) - wanted) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


class Tell(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        print("did", trainer.global_step, flush=True)
        if trainer.global_step == int(os.environ.get("LEAVE_AT", -1)):
            pathlib.Path(os.environ["BRIMFUL_NOTICE"]).write_text(json.dumps({"deadline_s": 1}))


def train(callbacks, path):
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_steps=9, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
    )
    model = Line()
    trainer.fit(model, StatefulDataLoader(Rows(), batch_size=4), ckpt_path=path)
    return model.line.weight.tolist()


print("moved", train([Tell(), run.for_lightning()], run.lightning_path), flush=True)
print("alone", train([], None), flush=True)
"""


@pytest.mark.torch
def test_lightning_leaves_and_goes_on(tmp_path: Path) -> None:
    if importlib.util.find_spec("lightning") is None or importlib.util.find_spec("torchdata") is None:
        missing("lightning and torchdata", "`make test` installs them")

    def train(**more: str) -> subprocess.CompletedProcess[str]:
        env = {
            **os.environ,
            "BRIMFUL_CHECKPOINT_DIR": str(tmp_path / "kept"),
            "BRIMFUL_NOTICE": str(tmp_path / "notice"),
            "OMP_NUM_THREADS": "1",
            **more,
        }
        command = [sys.executable, "-c", SCRIPT]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)

    def said(done: subprocess.CompletedProcess[str], word: str) -> list[str]:
        return [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith(word)]

    first = train(LEAVE_AT="4")
    assert first.returncode == 143, first.stderr[-2000:]
    sealed = tmp_path / "kept" / "step-000000004" / "brimful.json"
    assert json.loads(sealed.read_text())["step"] == 4
    (tmp_path / "notice").unlink()
    second = train()
    assert second.returncode == 0, second.stderr[-2000:]
    assert said(first, "did") + said(second, "did") == [str(i) for i in range(1, 10)]
    assert said(second, "moved") == said(second, "alone"), "as if nobody had stopped it"
