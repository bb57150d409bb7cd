"""Recipes of LitGPT, torchtune and torchtitan, and what DeepSpeed and accelerate say, in our own words.

A recipe names its model and says how it is trained; here its words become those of our flags, and the
framework's own habits come from `specs/framework.py`. DeepSpeed's and accelerate's files name no model: they
become the TrainingArguments that Trainer would make of them.
Source: config_hub/ of Lightning-AI/litgpt, recipes/configs/ of pytorch/torchtune, train_configs/ of
pytorch/torchtitan, DeepSpeed's configuration reference, accelerate's default_config.yaml.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brimful.configs.files import decode, read_config
from brimful.configs.flags import read_flags
from brimful.configs.plain import read_plain
from brimful.configs.reading import Reading
from brimful.configs.settings import parse_sets
from brimful.errors import BadInput

Found = Mapping[str, Any]
Words = dict[str, Any]

_LITGPT_TARGETS = {"lora_query": 1, "lora_key": 1, "lora_value": 1, "lora_projection": 1, "lora_mlp": 3}
_CHUNKED = ("ChunkedOutputLoss", "LinearCrossEntropyLoss")
_CHUNKS = 8  # num_output_chunks, torchtune's default


def read_recipe(path: Path, overrides: Sequence[str]) -> Reading | None:
    """The reading of a recipe; None where the file is not one of theirs."""
    found = _toml(path) if path.suffix.lower() == ".toml" else read_plain(path)
    for sign, words_of in _RECIPES:
        if sign(found):
            model, words = words_of(found)
            said = {key: value for key, value in words.items() if value is not None}
            return read_flags(model, _spread({**said, **parse_sets(overrides)}))
    if path.suffix.lower() == ".toml":
        raise BadInput(
            f"{path.name} is no torchtitan config: it has no [model] with a flavor",
            hint="other TOML files are not known; give a config.json and --args, or --model NAME",
        )
    return None


def _spread(said: Words) -> Words:
    """Over several GPUs all three shard everything (FSDP), also where only a flag says how many."""
    if "gpus" not in said:
        return {key: value for key, value in said.items() if key != "expert"}
    many = isinstance(said["gpus"], int) and said["gpus"] > 1
    return {"sharding": "zero3", **said} if many else said


def _toml(path: Path) -> dict[str, Any]:
    text = decode(read_config(path, what="a torchtitan .toml"), name=str(path))
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise BadInput(f"{path.name} is no TOML: {str(error)[:120]}", hint="fix that line") from error


# -- LitGPT ------------------------------------------------------------------------------------------------


def _is_litgpt(found: Found) -> bool:
    named = isinstance(found.get("checkpoint_dir") or found.get("model_name"), str)
    return named and "micro_batch_size" in _block(found, "train")


def _litgpt(found: Found) -> tuple[str, Words]:
    train = _block(found, "train")
    gpus = (_whole(found.get("devices")) or 1) * (_whole(found.get("num_nodes")) or 1)
    micro, whole = _whole(train.get("micro_batch_size")), _whole(train.get("global_batch_size"))
    words: Words = {
        "framework": "litgpt",
        "batch_size": micro,
        "gradient_accumulation_steps": max(1, whole // (micro * gpus)) if micro and whole else None,
        "seq_len": _whole(train.get("max_seq_length")),
        "precision": found.get("precision"),
        "optimizer": _litgpt_optimizer(found.get("optimizer")),
        "gpus": gpus if gpus > 1 else None,
    }
    if "lora_r" in found:
        words["qlora" if found.get("quantize") else "lora"] = True
        words["rank"] = _whole(found["lora_r"])
        words["targets"] = sum(n for name, n in _LITGPT_TARGETS.items() if found.get(name) is True) or None
    name = str(found.get("checkpoint_dir") or found.get("model_name"))
    return name.rstrip("/").rpartition("/")[2], words


def _litgpt_optimizer(said: object) -> str | None:
    """A name, or a class by its path; torch's own Adam is fused (utils.py: instantiate_torch_optimizer)."""
    named = said.get("class_path") if isinstance(said, Mapping) else said
    name = str(named or "").rpartition(".")[2]
    return "adamw-fused" if name in ("AdamW", "Adam") else name or None


# -- torchtune ---------------------------------------------------------------------------------------------


def _is_torchtune(found: Found) -> bool:
    return str(_block(found, "model").get("_component_", "")).startswith("torchtune.models.")


def _torchtune(found: Found) -> tuple[str, Words]:
    model, optimizer = _block(found, "model"), _block(found, "optimizer")
    kind, name = _torchtune_name(str(model["_component_"]))
    loss = str(_block(found, "loss").get("_component_", ""))
    words: Words = {
        "framework": "torchtune",
        "batch_size": _whole(found.get("batch_size")),
        "gradient_accumulation_steps": _whole(found.get("gradient_accumulation_steps")),
        "seq_len": _whole(_block(found, "tokenizer").get("max_seq_len")),
        "precision": found.get("dtype"),
        "compile": found.get("compile") is True,
        "checkpointing": "full" if found.get("enable_activation_checkpointing") is True else "none",
        "offload_activations": found.get("enable_activation_offloading") is True or None,
        "optimizer": _torchtune_optimizer(optimizer),
        "in_backward": found.get("optimizer_in_bwd") is True or None,
        "loss_chunks": _CHUNKS if loss.endswith(_CHUNKED) else None,
    }
    if kind:
        modules = model.get("lora_attn_modules")
        attention = len(set(modules)) if isinstance(modules, list) else 2
        words[kind] = True
        words["rank"] = _whole(model.get("lora_rank"))
        words["targets"] = attention + (3 if model.get("apply_lora_to_mlp") is True else 0)
    return name, words


def _torchtune_name(component: str) -> tuple[str, str]:
    """'torchtune.models.llama3_1.lora_llama3_1_8b' -> lora, 'llama3.1-8b'."""
    tail = component.rpartition(".")[2]
    kind = next((word for word in ("qlora", "lora") if tail.startswith(f"{word}_")), "")
    plain = tail.removeprefix(f"{kind}_") if kind else tail
    return kind, re.sub(r"^([a-z]+\d?)_(\d)_(?=\d)", r"\1.\2-", plain).replace("_", "-")


def _torchtune_optimizer(block: Found) -> str | None:
    name = str(block.get("_component_", "")).rpartition(".")[2]
    if name in ("AdamW", "Adam"):
        return "adamw-fused" if block.get("fused") is True else "adamw-foreach"
    return name or None


# -- torchtitan --------------------------------------------------------------------------------------------


def _is_torchtitan(found: Found) -> bool:
    return isinstance(_block(found, "model").get("flavor"), str) and "training" in found


def _torchtitan(found: Found) -> tuple[str, Words]:
    model, training = _block(found, "model"), _block(found, "training")
    degrees = {
        name: _whole(_block(found, "parallelism").get(f"{name}_parallel_degree")) or 1
        for name in ("tensor", "pipeline", "context")
    }
    parallel = _block(found, "parallelism")
    shard = _whole(parallel.get("data_parallel_shard_degree"))  # -1: what torchrun leaves over
    replicas = _whole(parallel.get("data_parallel_replicate_degree")) or 1
    split = degrees["tensor"] * degrees["pipeline"] * degrees["context"]
    gpus = (shard or 1) * replicas * split
    converters = model.get("converters", ())
    words: Words = {
        "framework": "torchtitan",
        "batch_size": _whole(training.get("local_batch_size", training.get("batch_size"))),
        "seq_len": _whole(training.get("seq_len")),
        "compile": (training.get("compile") or _block(found, "compile").get("enable")) is True,
        "checkpointing": _block(found, "activation_checkpoint").get("mode", "selective"),
        "precision": "fsdp-bf16",
        "optimizer": _titan_optimizer(_block(found, "optimizer")),
        "fp8": "float8" in str(converters) or None,
        "gpus": gpus if gpus > 1 else None,
        "expert": _titan_experts(parallel, degrees["tensor"]),
    }
    if gpus > 1:
        words |= {name: degree for name, degree in degrees.items() if degree > 1}
    if degrees["pipeline"] > 1 and words["batch_size"]:
        # its local batch is cut into micro-batches, of one sequence each where nobody says (job_config.py);
        # up to spring 2025 their number was said instead
        size = _whole(parallel.get("pipeline_parallel_microbatch_size")) or 1
        said = _whole(parallel.get("pipeline_parallel_microbatches"))
        many = min(words["batch_size"], said or max(1, words["batch_size"] // size))
        words |= {"batch_size": words["batch_size"] // many, "gradient_accumulation_steps": many}
        words["virtual_stages"] = (
            2 if "Interleaved" in str(parallel.get("pipeline_parallel_schedule")) else None
        )
    name = str(model.get("name", "llama3"))
    family = "llama3.1" if name == "llama3" else name  # its llama3 is the 3.1 of 128k tokens
    return f"{family}-{model['flavor']}", words


def _titan_experts(parallel: Found, tensor: int) -> int | None:
    """GPUs with sequences of their own that experts are spread over.

    Its degree counts tensor-parallel GPUs too, each with whole experts, unless those are split as well
    (expert_tensor_parallel_degree): a GPU holds as many bytes of them either way.
    """
    degree = _whole(parallel.get("expert_parallel_degree")) or 1
    split = _whole(parallel.get("expert_tensor_parallel_degree")) or 1
    others = degree if split == tensor else degree // tensor
    return others if others > 1 else None


def _titan_optimizer(block: Found) -> str:
    name = str(block.get("name", "AdamW"))
    fused = block.get("implementation", "fused") == "fused"
    return ("adamw-fused" if fused else "adamw-foreach") if name == "AdamW" else name


_RECIPES: tuple[tuple[Callable[[Found], bool], Callable[[Found], tuple[str, Words]]], ...] = (
    (_is_litgpt, _litgpt),
    (_is_torchtune, _torchtune),
    (_is_torchtitan, _torchtitan),
)


# -- DeepSpeed and accelerate ------------------------------------------------------------------------------


def as_arguments(found: dict[str, Any]) -> tuple[dict[str, Any], list[str]] | None:
    """TrainingArguments that say the same, and words of ours; None where it is neither of the two."""
    if "train_micro_batch_size_per_gpu" in found or "zero_optimization" in found:
        return _deepspeed(found), []
    if "distributed_type" in found:
        return _accelerate(found)
    return None


def _deepspeed(found: dict[str, Any]) -> dict[str, Any]:
    """'auto' is what the Trainer fills in: left out here, so that its defaults are told as assumed."""
    given: dict[str, Any] = {"deepspeed": found}
    for theirs, ours in (
        ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ):
        if (number := _whole(found.get(theirs))) is not None:
            given[ours] = number
    for switch in ("bf16", "fp16"):
        if _block(found, switch).get("enabled") is True:
            given[switch] = True
    return given


def _accelerate(found: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    given: dict[str, Any] = {}
    words = []
    precision = str(found.get("mixed_precision", "no")).lower()
    if precision in ("bf16", "fp16"):
        given[precision] = True
    elif precision == "fp8":
        words.append("precision=fp8")
    kind = str(found["distributed_type"]).upper()
    if kind == "FSDP":
        block = _block(found, "fsdp_config")
        # its second version says whether weights are given up after the forward pass, its first has words
        kept = block.get("fsdp_reshard_after_forward") is False
        strategy = str(block.get("fsdp_sharding_strategy", "SHARD_GRAD_OP" if kept else "FULL_SHARD")).lower()
        numbered = {"1": "full_shard", "2": "shard_grad_op", "3": "no_shard", "4": "hybrid_shard"}
        offload = " offload" if block.get("fsdp_offload_params") is True else ""
        given["fsdp"] = f"{numbered.get(strategy, strategy)} auto_wrap{offload}"
        if block.get("fsdp_activation_checkpointing") is True:
            given["gradient_checkpointing"] = True
    elif kind == "DEEPSPEED":
        block = _block(found, "deepspeed_config")
        zero: dict[str, Any] = {"stage": _whole(block.get("zero_stage")) or 0}
        if (device := block.get("offload_optimizer_device")) is not None:
            zero["offload_optimizer"] = {"device": device}
        given["deepspeed"] = {"zero_optimization": zero}
        if (steps := _whole(block.get("gradient_accumulation_steps"))) is not None:
            given["gradient_accumulation_steps"] = steps
    if (gpus := _whole(found.get("num_processes"))) is not None and gpus > 1:
        words.append(f"gpus={gpus}")
    return given, words


def _block(found: Found, name: str) -> Found:
    block = found.get(name)
    return block if isinstance(block, Mapping) else {}


def _whole(value: object) -> int | None:
    """A number a setting can be; 'auto', -1 and nothing are none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else None
