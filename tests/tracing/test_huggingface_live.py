"""Hugging Face's own classes, made from a configuration without any weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import brimful
from tests.conftest import missing

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _installed() -> None:
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("peft") is None:
        missing("transformers and peft", "`make test` installs them")


def a_llama() -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=2048,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


def a_training(make: Callable[[], Any]) -> Callable[[], Callable[[], None]]:
    def build() -> Callable[[], None]:
        model = make().cuda()
        adamw = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

        def step() -> None:
            ids = torch.randint(2000, (2, 128), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            adamw.step()
            adamw.zero_grad()

        return step

    return build


def test_a_model_from_its_config_is_traced_without_weights_or_values() -> None:
    trace = brimful.trace(a_training(a_llama), gpu="rtx-4070")

    assert trace.steps == 2
    assert trace.values_invented == 0
    assert trace.rules_fired["attention kernel: flash"] == 2 * 2
    assert any(item.code == "logits_loss" for item in trace.items)


def test_lora_by_peft_trains_little_and_keeps_little() -> None:
    from peft import LoraConfig, get_peft_model

    def adapted() -> Any:
        return get_peft_model(a_llama(), LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))

    full, lora = (brimful.trace(a_training(make), gpu="rtx-4070") for make in (a_llama, adapted))
    states = [{item.code: item.bytes for item in t.items}.get("optimizer_state", 0) for t in (full, lora)]
    assert 0 < states[1] < 0.05 * states[0]
    assert lora.tensor_bytes < full.tensor_bytes


def test_the_trainer_runs_and_looks_into_its_masks_as_on_a_gpu(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    def program() -> None:
        data = [{"input_ids": list(range(64)), "labels": list(range(64))} for _ in range(32)]
        arguments = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=4, max_steps=10, bf16=True,
            report_to=[], save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        Trainer(model=a_llama(), args=arguments, train_dataset=data).train()

    trace = brimful.trace(program, gpu="rtx-4070")
    assert trace.steps == 2
    assert trace.rules_fired["attention kernel: flash"] == 2 * 2  # no mask is made where nothing is padded
    assert trace.values_invented > 0
