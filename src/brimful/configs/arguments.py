"""Hugging Face TrainingArguments, as JSON or YAML: how Trainer would train the model.

The names that TRL, axolotl and LLaMA-Factory use for the same settings are known too. What the file leaves
out takes Trainer's default and is listed as assumed.
Source: training_args.py of huggingface/transformers, trl's SFTConfig and ModelConfig. The format in which a
script loads its weights is not in the file: fp32 with TRL and up to transformers 4, the checkpoint's own
format from 5 on (huggingface/trl pull request 4770). fp32 is assumed, as it needs more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brimful.configs.bounds import Check, checked, whole_between
from brimful.configs.reading import Dialect
from brimful.configs.words import choose, word_not_known
from brimful.errors import BadInput
from brimful.language import Quoted, Sentence, say
from brimful.specs.training import Training

# Their name -> the one TrainingArguments uses.
_ALSO = {
    "micro_batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "batch_size": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "optimizer": "optim",
    "max_seq_length": "max_length",
    "model_max_length": "max_length",
    "sequence_len": "max_length",
    "seq_len": "max_length",
    "cutoff_len": "max_length",
    "block_size": "max_length",
    "attention": "attn_implementation",
    "dtype": "torch_dtype",
    "compile": "torch_compile",
    "checkpointing": "gradient_checkpointing",
    "fused_loss": "use_liger_kernel",
    "use_liger": "use_liger_kernel",
    "quantization_bit": "load_in_bits",
    "rank": "lora_r",
    "lora_rank": "lora_r",
    "lora_target": "lora_target_modules",
    "flash_attn": "attn_implementation",
    "enable_liger_kernel": "use_liger_kernel",
}
# TrainingArguments' defaults. max_length is TRL's: Trainer itself uses the length of the data.
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_length": 1024,
    "bf16": False,
    "fp16": False,
    "tf32": False,
    "gradient_checkpointing": False,
    "optim": "adamw_torch_fused",
    "torch_compile": False,
    "attn_implementation": "sdpa",
    "use_liger_kernel": False,
}
_CHECKS: dict[str, Check] = {
    "per_device_train_batch_size": whole_between(1, 10_000_000),
    "gradient_accumulation_steps": whole_between(1, 1_000_000_000),
    "max_length": whole_between(1, 100_000_000),
    "lora_r": whole_between(1, 100_000),
    **dict.fromkeys((
        "bf16", "fp16", "tf32", "gradient_checkpointing", "torch_compile", "use_liger_kernel", "use_peft",
        "load_in_4bit", "load_in_8bit", "bf16_full_eval", "flash_attention", "lora_target_linear",
    ), checked(lambda value: isinstance(value, bool), say("configs.yaml_true_or_false"))),
    **dict.fromkeys((
        "optim", "attn_implementation", "torch_dtype", "fsdp", "deepspeed", "adapter", "finetuning_type",
    ), checked(lambda value: isinstance(value, (str, dict, list, bool)), say("configs.name"))),
}  # fmt: skip
_OTHER = frozenset({"lora_target_modules", "load_in_bits", "fsdp_config", "gradient_checkpointing_kwargs"})
KNOWN = frozenset({*DEFAULTS, *_CHECKS, *_OTHER})
MODEL_WORDS = ("model_name_or_path", "base_model", "model_id", "model_name", "model")
# Prefixes of settings that affect neither bytes nor seconds of a step. Known, so no warning is needed.
_WITHOUT_EFFECT = (
    "output_dir", "overwrite", "do_", "eval", "per_device_eval", "learning_rate", "lr_", "warmup",
    "weight_decay", "adam_", "num_train_epochs", "num_epochs", "max_steps", "logging", "log_",
    "report_to", "run_name", "save", "seed", "data", "hub", "push_to_hub", "wandb", "max_grad_norm",
    "load_best", "metric", "greater", "resume", "remove_unused", "label", "ddp_", "dataloader",
    "chat_template", "tokenizer", "lora_alpha", "lora_dropout", "model_revision", "trust_remote", "val",
    "train_", "early", "group_by", "packing", "pad", "bnb_4bit", "lora_task", "disable_tqdm", "include",
    "special_tokens", "template", "stage", "plot", "strict", "beta", "use_cache",
    "gradient_checkpointing_use", "optim_args", "sample_packing", "preprocessing", "epochs",
)  # fmt: skip

Found = dict[str, Any]


def _lines(training: Training) -> dict[str, Any]:
    """The lines of TrainingArguments that express this training."""
    adam = {"fused": "adamw_torch_fused", "foreach": "adamw_torch", "loop": "adamw_hf"}
    optim = {"adamw": adam[training.optimizer_kernel], "adam8bit": "adamw_bnb_8bit", "lion": "lion_32bit"}
    lines = {
        "per_device_train_batch_size": training.batch_size,
        "gradient_accumulation_steps": training.accumulation,
        "max_length": training.sequence_tokens,
        "bf16": training.dtype == "bfloat16",
        "fp16": training.dtype == "float16",
        "tf32": training.tf32 and not training.half,
        "gradient_checkpointing": training.checkpointing == "full",
        "optim": optim.get(training.optimizer, training.optimizer),
        "torch_compile": training.compiled,
        "attn_implementation": {"math": "eager"}.get(training.attention, "sdpa"),
        "use_liger_kernel": training.fused_loss,
    }
    if training.casts == "none":
        lines["torch_dtype"] = training.dtype
    if training.tuning == "lora":
        lines |= {"use_peft": True, "lora_r": training.rank}
        lines |= {"load_in_4bit": True} if training.frozen_bits == 4 else {}
    shards = {"zero2": "shard_grad_op auto_wrap", "zero3": "full_shard auto_wrap"}
    if training.sharding in shards:
        lines["fsdp"] = shards[training.sharding]
    return lines


ARGUMENTS = Dialect(
    name="TrainingArguments",
    says=frozenset({
        "batch_size", "accumulation", "sequence_tokens", "dtype", "casts", "tf32", "checkpointing",
        "optimizer", "optimizer_kernel", "compiled", "attention", "fused_loss", "tuning", "rank",
        "frozen_bits", "sharding", "shards",
    }),
    lines=_lines,
    code=say("configs.training_script"),
    unsaid={"checkpointing": ("selective",), "sharding": ("zero1",), "attention": ("efficient",)},
)  # fmt: skip


def own_name(key: str) -> str | None:
    """TrainingArguments' name for `key`, or None if it has none."""
    word = _ALSO.get(key, key)
    return word if word in KNOWN else None


def _dialects(found: Mapping[str, Any]) -> Found:
    """axolotl's and LLaMA-Factory's own settings, and the latter's defaults, as TrainingArguments.

    Source: config reference of axolotl (`bf16: auto` uses bf16 if the card has it, which is as many bytes as
    fp16; `full` also loads the weights in it); src/llamafactory/hparams of hiyouga/LLaMA-Factory.
    """
    said = dict(found)
    auto = {"bf16": True, "fp16": False, "tf32": False}
    said |= {key: value for key, value in auto.items() if said.get(key) == "auto"}
    if said.get("bf16") == "full":
        said |= {"bf16": True, "torch_dtype": "bfloat16"}
    if (loaded := _load_dtype(said)) is not None:
        said.setdefault("torch_dtype", loaded)
    if "finetuning_type" not in said:
        return said
    said = {"cutoff_len": 2048, "lora_rank": 8, "lora_target": "all", **said}
    said.setdefault("gradient_checkpointing", said.pop("disable_gradient_checkpointing", False) is not True)
    if said.pop("pure_bf16", False) is True:
        said["torch_dtype"] = "bfloat16"
    if isinstance(said["lora_target"], str) and said["lora_target"] != "all":
        said["lora_target"] = said["lora_target"].split(",")
    attention = {"auto": "sdpa", "disabled": "eager"}
    if said.get("flash_attn") in attention:
        said["flash_attn"] = attention[said["flash_attn"]]
    return said


def _load_dtype(said: Mapping[str, Any]) -> str | None:
    """The 16-bit format in which axolotl and LLaMA-Factory load weights; None if they end up in fp32.

    LLaMA-Factory casts everything that is trained back to fp32, so only an adapter's frozen weights stay
    16-bit. In full, sharded training, FSDP and DeepSpeed keep fp32 weights. PEFT casts the tables of a 4-bit
    model to fp32, which axolotl reverts for flash attention.
    Source: axolotl, utils/config: normalize_config, and loaders/model.py; LLaMA-Factory, model/patcher.py:
    patch_config, and model/adapter.py: init_adapter.
    """
    dtype = "bfloat16" if said.get("bf16") is True else "float16" if said.get("fp16") is True else None
    if "finetuning_type" in said:
        return dtype if said["finetuning_type"] == "lora" else None
    adapted = said.get("adapter") in ("lora", "qlora")
    if "base_model" not in said or (not adapted and (said.get("deepspeed") or said.get("fsdp"))):
        return None
    four_bits = said.get("load_in_4bit") is True or said.get("adapter") == "qlora"
    return dtype if said.get("flash_attention") or not four_bits else None


def sort_arguments(found: Mapping[str, Any]) -> tuple[Found, list[str]]:
    """The settings that matter, by TrainingArguments' names; and the unknown ones."""
    use: Found = {}
    strange = []
    for key, value in _dialects(found).items():
        word = own_name(key)
        if word is not None:
            if value is not None:
                use[word] = value
        elif key not in MODEL_WORDS and not key.startswith(_WITHOUT_EFFECT):
            strange.append(key[:60])
    return use, strange


def training_of(given: Found, *, name: object, context: int) -> tuple[Training, list[Sentence], int]:
    """The training these arguments describe, deviations from what they say, and how many there are."""
    for key, value in given.items():
        if key in _CHECKS:
            _CHECKS[key](key, value, name)
    use = {**DEFAULTS, **given}
    optimizer = choose("optimizer", use["optim"])
    attention = choose("attention", "flash" if use.get("flash_attention") else use["attn_implementation"])
    sharding, shard_notes = _sharding(use)
    chosen = {"optim": optimizer, "attn_implementation": attention}
    warnings = [word_not_known(key, use[key], choice) for key, choice in chosen.items() if not choice.known]
    warnings += shard_notes
    unsure = len(warnings)
    training = Training(
        batch_size=use["per_device_train_batch_size"],
        sequence_tokens=min(use["max_length"], context),
        accumulation=use["gradient_accumulation_steps"],
        compiled=use["torch_compile"],
        checkpointing="full" if use["gradient_checkpointing"] else "none",
        fused_loss=use["use_liger_kernel"],
        **{**_precision(use), **optimizer.fields, **attention.fields, **sharding, **_tuning(use)},
    )
    if use["max_length"] > context and "max_length" in given:
        warnings.append(say("configs.max_length_cut", asked=use["max_length"], most=context))
    return training, warnings, unsure


def _precision(use: Found) -> dict[str, Any]:
    """bf16 and fp16 switch autocast on; torch_dtype loads the weights themselves in 16 bits."""
    loaded = str(use.get("torch_dtype", "")).removeprefix("torch.")
    tf32 = bool(use["tf32"])
    if use["bf16"] and use["fp16"]:
        raise BadInput(say("configs.bf16_and_fp16"))
    mixed = "bfloat16" if use["bf16"] else "float16" if use["fp16"] else None
    if loaded in ("bfloat16", "float16"):
        return {"dtype": loaded, "casts": "none", "tf32": tf32}
    if mixed is None:
        return {"dtype": "float32", "tf32": tf32}
    return {"dtype": mixed, "casts": "autocast", "tf32": tf32}


def _sharding(use: Found) -> tuple[dict[str, Any], list[Sentence]]:
    if use.get("deepspeed"):
        return _deepspeed(use["deepspeed"])
    words = str(use.get("fsdp") or "").split()
    if not words:
        return {}, []
    choice = choose("sharding", words[0])
    said = [] if choice.known else [word_not_known("fsdp", words[0], choice)]
    return {**choice.fields, "offload_states": "offload" in words}, said


def _deepspeed(found: object) -> tuple[dict[str, Any], list[Sentence]]:
    """ZeRO's stage and offloading, from a DeepSpeed config; a file that was not found counts as stage 2."""
    zero = found.get("zero_optimization") if isinstance(found, dict) else None
    if not isinstance(zero, dict):
        if isinstance(found, str):
            return {"sharding": "zero2"}, [say("configs.no_zero_stage_in", file=Quoted(found[:60]))]
        return {"sharding": "zero2"}, [say("configs.no_zero_stage")]
    known = {0: "ddp", 1: "zero1", 2: "zero2", 3: "zero3"}
    stage = zero["stage"] if isinstance(zero.get("stage"), int) else -1
    moved = zero.get("offload_optimizer")
    offload = isinstance(moved, dict) and moved.get("device") in ("cpu", "nvme")
    said = [] if stage in known else [say("configs.zero_stage_unknown")]
    return {"sharding": known.get(stage, "zero2"), "offload_states": offload}, said


def _tuning(use: Found) -> dict[str, Any]:
    adapter = str(use.get("adapter") or use.get("finetuning_type") or "").lower()
    bits = use.get("load_in_bits") or (4 if use.get("load_in_4bit") else 8 if use.get("load_in_8bit") else 0)
    lora = bool(use.get("use_peft")) or adapter in ("lora", "qlora")
    if not lora:
        return {}
    targets = use.get("lora_target_modules")
    count = len(targets) if isinstance(targets, list) and targets else 2
    if targets in ("all-linear", "all") or use.get("lora_target_linear"):
        count = 7
    bits = 4 if adapter == "qlora" else bits if bits in (4, 8) else 0
    found = {"tuning": "lora", "rank": use.get("lora_r", 16), "targets": count, "frozen_bits": bits}
    # PEFT trains adapters in fp32 whatever the format of the weights (autocast_adapter_dtype, its default)
    return {**found, "adapter_dtype": "float32"}
