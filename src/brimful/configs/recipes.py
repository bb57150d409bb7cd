"""Recipes of LitGPT, torchtune and torchtitan, and DeepSpeed and accelerate files, in our own names.

A recipe names its model and says how it is trained; here its settings become those of our flags, and the
framework's own defaults come from `specs/framework.py`. DeepSpeed's and accelerate's files do not name a
model: they become the TrainingArguments that Trainer would make of them.
Source: config_hub/ of Lightning-AI/litgpt, recipes/configs/ of pytorch/torchtune, train_configs/ of
pytorch/torchtitan, DeepSpeed's configuration reference, accelerate's default_config.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from brimful.configs.files import read_config
from brimful.configs.flags import read_flags
from brimful.configs.paths import Settings, with_value
from brimful.configs.plain import read_plain
from brimful.configs.reading import Reading
from brimful.configs.settings import own_word, parse_sets, unknown_key
from brimful.errors import BadInput
from brimful.language import Quoted, say
from brimful.specs.toml import parse_toml

Words = dict[str, Any]
# The model's name, and our settings for its training; None if the file is not one of theirs.
Recipe = tuple[str, Words] | None

_LITGPT_TARGETS = {"lora_query": 1, "lora_key": 1, "lora_value": 1, "lora_projection": 1, "lora_mlp": 3}
# Sequences on a GPU at a time, and in a step: what `setup` takes in litgpt/finetune/*.py and pretrain.py.
_LITGPT_FINETUNES, _LITGPT_PRETRAINS = (1, 16), (4, 512)
_CHUNKED = ("ChunkedOutputLoss", "LinearCrossEntropyLoss")
_CHUNKS = 8  # num_output_chunks, torchtune's default


def read_recipe(path: Path, overrides: Sequence[str]) -> Reading | None:
    """The reading of a recipe; None if the file is not one of theirs."""
    found = _toml(path) if path.suffix.lower() == ".toml" else read_plain(path)
    sets = parse_sets(overrides)
    overruled = {key: value for key, value in sets.items() if own_word(key)}
    theirs = {key: value for key, value in sets.items() if key not in overruled}
    ours = {own_word(key) or key for key in overruled}
    for title, words_of in _RECIPES.items():
        file = Settings(path.name, found, ours)
        recipe = words_of(file)
        if recipe is not None and theirs:
            file = Settings(path.name, _changed(file, theirs), ours)
            recipe = words_of(file)
        if recipe is not None:
            model, words = recipe
            said = {key: value for key, value in words.items() if value is not None}
            reading = read_flags(model, _spread({**said, **overruled}))
            assumed = (*file.assumed(title), *reading.assumed)
            return replace(reading, assumed=assumed, warnings=(*reading.warnings, *file.ignored(title)))
    if path.suffix.lower() == ".toml":
        raise BadInput(say("configs.not_torchtitan", name=path.name))
    return None


def _changed(file: Settings, theirs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The file with other values at its own paths; a plain name will do where only one path ends in it."""
    found, known = file.found, dict.fromkeys(file.looked)
    for key, value in theirs.items():
        ends = [path for path in known if path == key] or [
            path for path in known if path.rpartition(".")[2] == key
        ]
        if len(ends) != 1:
            raise unknown_key(key, known)
        found = with_value(found, ends[0], value)
    return found


def _spread(said: Words) -> Words:
    """Over several GPUs all three shard everything (FSDP), even if only a flag gives the number of GPUs."""
    if "gpus" not in said:
        return {key: value for key, value in said.items() if key != "expert"}
    many = isinstance(said["gpus"], int) and said["gpus"] > 1
    return {"sharding": "zero3", **said} if many else said


def _toml(path: Path) -> dict[str, Any]:
    text = read_config(path, what=say("configs.torchtitan_toml"))
    try:
        return parse_toml(text, name=path.name)
    except ValueError as error:
        raise BadInput(say("configs.not_toml", name=path.name, problem=str(error)[:120])) from error


# -- LitGPT ------------------------------------------------------------------------------------------------


def _litgpt(file: Settings) -> Recipe:
    name = file.at("checkpoint_dir") or file.at("model_name")
    if not isinstance(name, str) or "train" not in file.found:
        return None
    if not isinstance(train := file.found["train"], Mapping):
        what = say("configs.not_an_object", name=type(train).__name__)
        raise BadInput(say("configs.in_file", name=Quoted(f"{file.file}: train"), what=what))
    usual_micro, usual_together = _LITGPT_FINETUNES if file.at("checkpoint_dir") else _LITGPT_PRETRAINS
    gpus = (file.integer("devices", "gpus") or 1) * (file.integer("num_nodes", "gpus") or 1)
    micro = file.integer("train.micro_batch_size", "batch_size") or file.default("batch_size", usual_micro)
    steps = "gradient_accumulation_steps"
    together = file.integer("train.global_batch_size", steps) or 0
    usual = max(1, usual_together // (micro * gpus))
    words: Words = {
        "framework": "litgpt",
        "batch_size": micro,
        steps: max(1, together // (micro * gpus)) if together else file.default(steps, usual),
        "seq_len": file.integer("train.max_seq_length", "seq_len"),
        "precision": file.setting("precision"),
        "optimizer": _litgpt_optimizer(file),
        "gpus": gpus if gpus > 1 else None,
    }
    if "lora_r" in file.found:
        words["qlora" if file.setting("quantize") else "lora"] = True
        words["rank"] = file.integer("lora_r", "rank")
        words["targets"] = sum(n for name, n in _LITGPT_TARGETS.items() if file.at(name) is True) or None
    file.leave("model_config")
    return name.rstrip("/").rpartition("/")[2], words


def _litgpt_optimizer(file: Settings) -> str | None:
    """A name, or a class by its path; torch's own Adam is fused (utils.py: instantiate_torch_optimizer)."""
    said = file.at("optimizer")
    name = file.text("optimizer.class_path" if isinstance(said, Mapping) else "optimizer").rpartition(".")[2]
    return "adamw-fused" if name in ("AdamW", "Adam") else name or None


# -- torchtune ---------------------------------------------------------------------------------------------


def _torchtune(file: Settings) -> Recipe:
    component = file.text("model._component_")
    if not component.startswith("torchtune.models."):
        return None
    kind, name = _torchtune_name(component)
    words: Words = {
        "framework": "torchtune",
        "batch_size": file.integer("batch_size", "batch_size"),
        "gradient_accumulation_steps": file.integer(
            "gradient_accumulation_steps", "gradient_accumulation_steps"
        ),
        "seq_len": file.integer("tokenizer.max_seq_len", "seq_len"),
        "precision": file.setting("dtype"),
        "compile": file.setting("compile") is True,
        "checkpointing": "full" if file.setting("enable_activation_checkpointing") is True else "none",
        "offload_activations": file.setting("enable_activation_offloading") is True or None,
        "optimizer": _torchtune_optimizer(file),
        "in_backward": file.setting("optimizer_in_bwd") is True or None,
        "loss_chunks": _CHUNKS if file.text("loss._component_").endswith(_CHUNKED) else None,
    }
    file.leave("fsdp_cpu_offload", "tensor_parallel_dim", "teacher_model")
    if kind:
        modules = file.at("model.lora_attn_modules")
        attention = len(set(map(str, modules))) if isinstance(modules, list) else 2
        words[kind] = True
        words["rank"] = file.integer("model.lora_rank", "rank")
        words["targets"] = attention + (3 if file.at("model.apply_lora_to_mlp") is True else 0)
    return name, words


def _torchtune_name(component: str) -> tuple[str, str]:
    """'torchtune.models.llama3_1.lora_llama3_1_8b' -> lora, 'llama3.1-8b'."""
    tail = component.rpartition(".")[2]
    kind = next((word for word in ("qlora", "lora") if tail.startswith(f"{word}_")), "")
    plain = tail.removeprefix(f"{kind}_") if kind else tail
    return kind, re.sub(r"^([a-z]+\d?)_(\d)_(?=\d)", r"\1.\2-", plain).replace("_", "-")


def _torchtune_optimizer(file: Settings) -> str | None:
    name = file.text("optimizer._component_").rpartition(".")[2]
    if name in ("AdamW", "Adam"):
        return "adamw-fused" if file.at("optimizer.fused") is True else "adamw-foreach"
    return name or None


# -- torchtitan --------------------------------------------------------------------------------------------


def _torchtitan(file: Settings) -> Recipe:
    if not isinstance(file.at("model.flavor"), str) or "training" not in file.found:
        return None
    degrees = {
        name: file.integer(f"parallelism.{name}_parallel_degree", name) or 1
        for name in ("tensor", "pipeline", "context")
    }
    shard = file.integer("parallelism.data_parallel_shard_degree", "gpus")  # -1: what torchrun leaves over
    replicas = file.integer("parallelism.data_parallel_replicate_degree", "gpus") or 1
    split = degrees["tensor"] * degrees["pipeline"] * degrees["context"]
    gpus = (shard or 1) * replicas * split
    words: Words = {
        "framework": "torchtitan",
        "batch_size": file.integer("training.local_batch_size", "batch_size")
        or file.integer("training.batch_size", "batch_size"),
        "seq_len": file.integer("training.seq_len", "seq_len"),
        "compile": (file.at("training.compile") or file.at("compile.enable")) is True,
        "checkpointing": file.at("activation_checkpoint.mode", "selective"),
        "precision": "fsdp-bf16",
        "optimizer": _titan_optimizer(file),
        "fp8": "float8" in file.text("model.converters") or None,
        "gpus": gpus if gpus > 1 else None,
        "expert": _titan_experts(file, degrees["tensor"]),
    }
    if gpus > 1:
        words |= {name: degree for name, degree in degrees.items() if degree > 1}
    if degrees["pipeline"] > 1 and words["batch_size"]:
        words |= _titan_stages(file, words["batch_size"])
    name = str(file.at("model.name", "llama3"))
    family = "llama3.1" if name == "llama3" else name  # its llama3 is version 3.1, with 128k tokens
    return f"{family}-{file.at('model.flavor')}", words


def _titan_stages(file: Settings, batch_size: int) -> Words:
    """Its local batch is split into micro-batches, by default of one sequence each (job_config.py).

    Until spring 2025 the config gave their number instead.
    """
    size = file.integer("parallelism.pipeline_parallel_microbatch_size", "batch_size") or 1
    said = file.integer("parallelism.pipeline_parallel_microbatches", "gradient_accumulation_steps")
    many = min(batch_size, said or max(1, batch_size // size))
    interleaved = "Interleaved" in file.text("parallelism.pipeline_parallel_schedule")
    return {
        "batch_size": batch_size // many,
        "gradient_accumulation_steps": many,
        "virtual_stages": 2 if interleaved else None,
    }


def _titan_experts(file: Settings, tensor: int) -> int | None:
    """The data-parallel GPUs that experts are spread over.

    Its degree also counts tensor-parallel GPUs, each with whole experts, unless those are split as well
    (expert_tensor_parallel_degree): a GPU holds as many bytes of them either way.
    """
    degree = file.integer("parallelism.expert_parallel_degree", "expert") or 1
    split = file.integer("parallelism.expert_tensor_parallel_degree", "expert") or 1
    others = degree if split == tensor else degree // tensor
    return others if others > 1 else None


def _titan_optimizer(file: Settings) -> str:
    name = str(file.at("optimizer.name", "AdamW"))
    fused = file.at("optimizer.implementation", "fused") == "fused"
    return ("adamw-fused" if fused else "adamw-foreach") if name == "AdamW" else name


_RECIPES: dict[str, Callable[[Settings], Recipe]] = {
    "LitGPT": _litgpt,
    "torchtune": _torchtune,
    "torchtitan": _torchtitan,
}


# -- DeepSpeed and accelerate ------------------------------------------------------------------------------


def as_arguments(
    found: dict[str, Any], *, name: str, overruled: Collection[str]
) -> tuple[dict[str, Any], list[str]] | None:
    """Equivalent TrainingArguments, and our own settings; None if it is neither of the two."""
    file = Settings(name, found, overruled)
    if "train_micro_batch_size_per_gpu" in found or "zero_optimization" in found:
        return _deepspeed(file), []
    if "distributed_type" in found:
        return _accelerate(file)
    return None


def _deepspeed(file: Settings) -> dict[str, Any]:
    """'auto' is filled in by the Trainer: left out here, so that its defaults are listed as assumed."""
    given: dict[str, Any] = {"deepspeed": file.found}
    for theirs, ours in (
        ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ):
        if (number := file.integer(theirs, ours)) is not None:
            given[ours] = number
    for switch in ("bf16", "fp16"):
        if file.at(f"{switch}.enabled") is True:
            given[switch] = True
    return given


def _accelerate(file: Settings) -> tuple[dict[str, Any], list[str]]:
    given: dict[str, Any] = {}
    words = []
    precision = file.text("mixed_precision").lower()  # unquoted `no` is false
    if precision in ("bf16", "fp16"):
        given[precision] = True
    elif precision == "fp8":
        words.append("precision=fp8")
    kind = file.text("distributed_type").upper()
    if kind == "FSDP":
        # its version 2 says whether weights are freed after the forward pass, version 1 uses names
        kept = file.at("fsdp_config.fsdp_reshard_after_forward") is False
        otherwise = "SHARD_GRAD_OP" if kept else "FULL_SHARD"
        strategy = str(file.at("fsdp_config.fsdp_sharding_strategy", otherwise)).lower()
        numbered = {"1": "full_shard", "2": "shard_grad_op", "3": "no_shard", "4": "hybrid_shard"}
        offload = " offload" if file.at("fsdp_config.fsdp_offload_params") is True else ""
        given["fsdp"] = f"{numbered.get(strategy, strategy)} auto_wrap{offload}"
        if file.at("fsdp_config.fsdp_activation_checkpointing") is True:
            given["gradient_checkpointing"] = True
    elif kind == "DEEPSPEED":
        zero: dict[str, Any] = {"stage": file.at("deepspeed_config.zero_stage", 0)}
        if (device := file.at("deepspeed_config.offload_optimizer_device")) is not None:
            zero["offload_optimizer"] = {"device": device}
        given["deepspeed"] = {"zero_optimization": zero}
        steps = "gradient_accumulation_steps"
        if (number := file.integer(f"deepspeed_config.{steps}", steps)) is not None:
            given[steps] = number
    if (gpus := file.integer("num_processes", "gpus")) is not None and gpus > 1:
        words.append(f"gpus={gpus}")
    return given, words
