"""Training programs of frameworks, traced whole, beside a count of live tensors in a real run on the CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brimful.tracing.launch import trace_script
from tests.conftest import missing
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.torch

# The model all of them train: fp32, no dropout, so a CPU keeps the same tensors as a GPU.
MODEL = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM

CPU = "--cpu" in sys.argv


def a_model():
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=256, intermediate_size=768, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=2048, use_cache=False, attn_implementation="eager",
    ))


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, i):
        ids = torch.arange(i, i + 64) % 2048
        return {"input_ids": ids, "labels": ids}
"""
TRAINER = (
    MODEL
    + """
import tempfile
from transformers import Trainer, TrainingArguments

options = TrainingArguments(
    output_dir=tempfile.mkdtemp(), max_steps=2 if CPU else 50, per_device_train_batch_size=8, report_to=[],
    save_strategy="no", use_cpu=CPU, disable_tqdm=True, logging_steps=1, optim="adamw_torch",
    dataloader_num_workers=0 if CPU else 2,
)
Trainer(model=a_model(), args=options, train_dataset=Rows()).train()
"""
)
LIGHTNING = (
    MODEL
    + """
import lightning.pytorch as pl


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = a_model()

    def training_step(self, batch, _):
        loss = self.model(**batch).loss
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


pl.Trainer(
    accelerator="cpu" if CPU else "gpu", devices=1, max_steps=2 if CPU else 50, logger=False,
    enable_checkpointing=False, gradient_clip_val=1.0,
).fit(Module(), torch.utils.data.DataLoader(Rows(), batch_size=8))
"""
)
# Runs a script on the CPU for real and counts the bytes of all storages alive, nothing else.
COUNT = """
import json, runpy, sys, weakref
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

torch.set_num_threads(1)


class Alive(TorchDispatchMode):
    now = peak = 0
    seen = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in self.seen:
                    self.seen[key] = weakref.finalize(storage, self.gone, key, size)
                    Alive.now += size
                    Alive.peak = max(Alive.peak, Alive.now)
        return out

    def gone(self, key, size):
        del self.seen[key]
        Alive.now -= size


answer, script = sys.argv[1:3]
sys.argv[:] = [script, *sys.argv[3:]]
with Alive():
    runpy.run_path(script, run_name="__main__")
json.dump(Alive.peak, open(answer, "w"))
"""


@pytest.mark.parametrize(("framework", "script"), [("transformers", TRAINER), ("lightning", LIGHTNING)])
def test_a_program_of(framework: str, script: str, tmp_path: Path) -> None:
    for name in ("transformers", framework):
        if importlib.util.find_spec(name) is None:
            missing(name, "`make test` installs it")
    path = tmp_path / "train.py"
    path.write_text(script)
    data = trace_script(path, [], gpu="rtx-4090", steps=2, limit_s=PATIENCE_S)
    counted = _counted(path, ["--cpu"], tmp_path)

    assert data["verdict"] == "fits", data["doubts"]
    assert data["steps"] == 2
    assert data["speed"]["flops"] > 0
    assert data["peak_tensor_bytes"] == pytest.approx(counted, rel=0.01)
    parts = {item["code"]: item["bytes"] for item in data["items"]}
    assert parts["activations"] > parts.get("optimizer_temporaries", 0)


def _counted(script: Path, words: list[str], folder: Path) -> int:
    count = folder / "count.py"
    count.write_text(COUNT)
    answer = folder / "answer.json"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "WANDB_MODE": "disabled"}
    environment["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # weights read on other threads are not seen by a mode
    command = [sys.executable, str(count), str(answer), str(script), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: Any = json.loads(answer.read_text())
    return int(found)


RECIPES = Path(__file__).resolve().parents[2] / ".venv" / "recipes"
# A tokenizer of 2,048 words, random weights and 64 rows of text: what trl's script asks a hub for.
LOCAL = """
import json, sys
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

folder = Path(sys.argv[1])
special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
words = [*special.values(), *(f"w{i}" for i in range(2044))]
plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=plain, **special).save_pretrained(folder / "model")
LlamaForCausalLM(LlamaConfig(
    hidden_size=256, intermediate_size=768, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, vocab_size=2048,
)).save_pretrained(folder / "model")
rows = [json.dumps({"text": " ".join(f"w{(i + j) % 2000}" for j in range(63))}) for i in range(64)]
(folder / "data").mkdir()
(folder / "data" / "train.jsonl").write_text("\\n".join(rows))
"""


# LoRA has a dropout here: a CPU keeps its mask in fp32, a GPU in bytes, so the trace is 0.6 % below.
_LORA = pytest.param(["--use_peft", "true", "--lora_r", "8"], id="lora")


@pytest.mark.parametrize("tuning", [pytest.param([], id="full"), _LORA])
def test_trl_sft_as_published(tuning: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file inside TRL's wheel, unchanged, beside the same file run for real on the CPU."""
    script = RECIPES / "trl" / "scripts" / "sft.py"
    if not script.is_file():
        pytest.skip("needs TRL apart from .venv: `tools/setup.sh recipes` installs it")
    monkeypatch.setenv("PYTHONPATH", str(RECIPES))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "made"
    made.mkdir()
    (tmp_path / "make.py").write_text(LOCAL)
    subprocess.run([sys.executable, "make.py", str(made)], check=True, capture_output=True)
    words = [
        *("--model_name_or_path", str(made / "model"), "--dataset_name", str(made / "data")),
        *("--output_dir", str(tmp_path / "out"), "--save_strategy", "no", "--report_to", "none"),
        *("--per_device_train_batch_size", "8", "--max_length", "64", "--optim", "adamw_torch"),
        *("--dtype", "float32", "--bf16", "false", "--attn_implementation", "eager"),
        *("--gradient_checkpointing", "false", "--disable_tqdm", "true", *tuning),
    ]
    data = trace_script(script, [*words, "--max_steps", "50"], gpu="rtx-4090", steps=2, limit_s=PATIENCE_S)
    counted = _counted(script, [*words, "--max_steps", "2", "--use_cpu", "true"], tmp_path)

    assert data["verdict"] == "fits", data["doubts"]
    assert data["speed"]["flops"] > 0
    assert data["peak_tensor_bytes"] == pytest.approx(counted, rel=0.01)


NANOGPT = "NANOGPT_FOLDER"


def test_nanogpt_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own train.py, from a checkout named by a variable; its data are zeros."""
    folder = os.environ.get(NANOGPT)
    if not folder or not (Path(folder) / "train.py").is_file():
        pytest.skip(f"needs a checkout of karpathy/nanoGPT: name its folder in {NANOGPT}")
    data = tmp_path / "data" / "openwebtext"
    data.mkdir(parents=True)
    for name in ("train.bin", "val.bin"):
        (data / name).write_bytes(bytes(2 * 1_000_000))
    for name in ("train.py", "model.py", "configurator.py"):
        (tmp_path / name).symlink_to(Path(str(folder)).resolve() / name)
    monkeypatch.chdir(tmp_path)
    words = ["--compile=False", "--eval_iters=1", "--gradient_accumulation_steps=1"]
    found = trace_script(Path("train.py"), words, gpu="rtx-4090", steps=2, limit_s=PATIENCE_S)

    assert found["verdict"] == "fits"
    # 6ND and attention, and nothing like the 0 of empty slices
    assert found["speed"]["flops"] == pytest.approx(10.7e12, rel=0.01)
    assert found["peak_allocated_bytes"] == pytest.approx(12.41 * 2**30, rel=0.01)
