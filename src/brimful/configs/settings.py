"""Our own names for model and training settings: what flags and `--set` may say, checked and applied.

Every reader knows the names of its own format; these work on top of any of them.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from brimful.configs.bounds import Check, fraction, shown, whole_between
from brimful.configs.literals import Unreadable, Value, evaluate
from brimful.configs.reading import OWN, Reading
from brimful.configs.words import CHOICES, choose, refuse_slip, word_not_known
from brimful.errors import BadInput
from brimful.language import Plain, Quoted, Sentence, either, say
from brimful.specs.estimate import Assumption
from brimful.specs.framework import Framework, find_framework
from brimful.specs.model import Images, Model
from brimful.specs.torch import Torch, find_torch
from brimful.specs.training import Training

# Numbers by our name for them. The bounds are far beyond any run, and keep sums finite.
_NUMBERS: dict[str, Check] = {
    "batch_size": whole_between(1, 10_000_000),
    "seq_len": whole_between(1, 100_000_000),
    "gradient_accumulation_steps": whole_between(1, 1_000_000_000),
    "loss_chunks": whole_between(1, 100_000),
    "rank": whole_between(1, 100_000),
    "targets": whole_between(1, 8),
    "gpus": whole_between(1, 1_000_000),
    "shards": whole_between(1, 1_000_000),
    "tensor": whole_between(1, 10_000),
    "pipeline": whole_between(1, 10_000),
    "virtual_stages": whole_between(1, 1_000),
    "context": whole_between(1, 10_000),
    "expert": whole_between(1, 10_000),
    "layers": whole_between(1, 10_000),
    "heads": whole_between(1, 100_000),
    "kv_heads": whole_between(1, 100_000),
    "head_size": whole_between(0, 1_000_000),
    "width": whole_between(1, 1_000_000),
    "mlp_width": whole_between(1, 10_000_000),
    "vocab": whole_between(1, 100_000_000),
    "positions": whole_between(0, 100_000_000),
    "gelu_tensors": whole_between(1, 16),
    "image_size": whole_between(1, 100_000),
    "dropout": fraction,
    "attention_dropout": fraction,
}
# Every switch of Training, and some of Model.
_SWITCHES = {"compile", *(f.name for f in fields(Training) if f.type == "bool")}
_SWITCHES |= {"tied", "bias", "gated", "rotary"}
_OF_MODEL = frozenset(f.name for f in fields(Model))
_FIELDS = {word: name for name, word in OWN.items()}
_TUNING = ("lora", "qlora")
_FRAMEWORK, _TORCH = "framework", "torch"

# Common aliases for some of them.
_ALSO = {
    "accumulation": "gradient_accumulation_steps",
    "accum": "gradient_accumulation_steps",
    "sequence_tokens": "seq_len",
    "sequence_length": "seq_len",
    "max_length": "seq_len",
    "max_seq_length": "seq_len",
    "block_size": "seq_len",
    "vocab_size": "vocab",
    "lora_rank": "rank",
    "lora_r": "rank",
    "world_size": "gpus",
}

# Our name -> TrainingArguments' and nanoGPT's names for the same.
_ANSWERS: dict[str, tuple[str, ...]] = {
    "batch_size": ("per_device_train_batch_size",),
    "seq_len": ("max_length",),
    "precision": ("bf16", "fp16", "tf32", "torch_dtype", "dtype"),
    "optimizer": ("optim",),
    "attention": ("attn_implementation",),
    "checkpointing": ("gradient_checkpointing",),
    "compile": ("torch_compile",),
    "fused_loss": ("use_liger_kernel",),
}

WORDS = frozenset({*_NUMBERS, *_SWITCHES, *_TUNING, *CHOICES, _FRAMEWORK, _TORCH})


# Fields of Training: new values on top of the earlier ones.
Now = ChainMap[str, Any]


def parse_sets(texts: Iterable[str], names: Mapping[str, Value] | None = None) -> dict[str, Value]:
    """`key=value` settings of the command line; a value may use `names` and earlier settings."""
    said: dict[str, Value] = {}
    for text in texts:
        key, equals, raw = text.partition("=")
        key = key.strip().lstrip("-").replace("-", "_")
        if not equals or not key:
            raise BadInput(say("configs.set_not_a_pair", text=Quoted(text[:60])))
        # 1.10 is a release, not the number 1.1
        said[key] = raw.strip() if key == _TORCH else _parse_value(raw.strip(), {**(names or {}), **said})
    return said


def _parse_value(raw: str, names: Mapping[str, Value]) -> Value:
    """A value from the command line: Python if it parses as Python, else the word itself (dtype=float16)."""
    if raw in ("true", "false"):
        return raw == "true"
    if raw.isidentifier() and raw not in ("True", "False", "None"):
        return raw  # a word, even if a setting has the same name (precision=tf32)
    try:
        return evaluate(ast.parse(raw, mode="eval").body, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError, Unreadable):
        return raw


def own_word(key: str) -> str | None:
    """Our name for `key`, or None if it is not one of ours."""
    return key if key in WORDS else _ALSO.get(key)


def unknown_key(key: str, known: Iterable[str]) -> BadInput:
    """The error for `--set` with a name that neither the format nor we know."""
    from difflib import get_close_matches

    words = sorted({*known, *WORDS})
    near = get_close_matches(key[:60], words, n=2)
    hint = say("configs.hint_words_that_matter", words=", ".join(words))
    if near:
        hint = say("configs.hint_did_you_mean", names=either(near))
    return BadInput(say("configs.set_unknown", key=Quoted(key[:60])), hint=hint, code="unknown_key")


def apply_settings(reading: Reading, said: Mapping[str, Value]) -> Reading:
    """The reading with our own settings applied. An unknown choice gets its fallback and is listed."""
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    warnings: list[Sentence] = []
    unsure = 0
    code = framework_of(said) or reading.training.framework
    training["framework"] = code
    torch = training["torch"] = find_torch(str(said[_TORCH])) if _TORCH in said else reading.training.torch
    # An adapter has its own defaults, which other settings may override.
    for key, value in sorted(said.items(), key=lambda pair: own_word(pair[0]) not in _TUNING):
        word = own_word(key)
        assert word is not None, key
        if word in (_FRAMEWORK, _TORCH):
            continue
        if word in _TUNING:
            training |= _tuning(word, _switch(key, value), code, reading.model.name)
        elif word in CHOICES:
            choice = choose(word, value)
            training |= choice.fields
            if not choice.known:
                refuse_slip(word, value)
                unsure += 1
                warnings.append(word_not_known(word, value, choice))
        else:
            found = _switch(key, value) if word in _SWITCHES else _NUMBERS[word](key, value, "")
            if word == "image_size":
                model["images"] = _images(reading.model, found)
            else:
                (model if word in _OF_MODEL else training)[_FIELDS.get(word, word)] = found
    now = ChainMap(training, {f.name: getattr(reading.training, f.name) for f in fields(Training)})
    _spread(now)
    without = _older(torch, now)
    warnings += without.values()
    warnings += _framework_rules(code, now)
    shape = _model(reading.model, model)
    _image_length(shape, training)
    _check_split(now)
    _check_parts(shape, now)
    words = {own_word(key) for key in said} | without.keys()
    return replace(
        reading,
        model=shape,
        training=replace(reading.training, **training),
        assumed=tuple(a for a in reading.assumed if not _is_given(a, words)),
        warnings=(*reading.warnings, *warnings),
        unsure=reading.unsure + unsure,
    )


def _is_given(assumption: Assumption, words: set[str | None]) -> bool:
    """Whether one of our settings gives what was assumed, whatever the format calls it."""
    names = {name for word in words for name in _ANSWERS.get(word or "", ())}
    return assumption.name in names or (own_word(assumption.name) or assumption.name) in words


def framework_of(said: Mapping[str, Value]) -> Framework | None:
    """The framework that these settings name, if any."""
    return find_framework(str(said[_FRAMEWORK])) if _FRAMEWORK in said else None


def lora_defaults(code: Framework, model_name: str) -> tuple[int, int]:
    """Default targets and rank: the framework's recipe for this model, or the usual values."""
    targets, rank = code.recipe(model_name)
    return targets or 7, rank or 16


def _older(torch: Torch, now: Now) -> dict[str | None, Sentence]:
    """What a release lacks is not counted unless the user asks for it: setting -> the message."""
    release = torch.release
    slow = say("configs.steps_by_parameter", release=release)
    plain = say("configs.no_fused_attention", release=release)
    eager = say("configs.no_torch_compile", release=release)
    instead = [
        (torch.foreach, "optimizer", "optimizer_kernel", ("fused", "foreach"), "loop", slow),
        (torch.sdpa, "attention", "attention", ("flash", "efficient"), "math", plain),
        (torch.compiles, "compile", "compiled", (True,), False, eager),
    ]
    lacks: dict[str | None, Sentence] = {}
    for has, word, field, newer, value, said in instead:
        if not has and field not in now.maps[0] and now[field] in newer:
            now[field] = value
            lacks[word] = said
    return lacks


def _framework_rules(code: Framework, now: Now) -> list[Sentence]:
    """What the framework does whatever the settings say; each is reported."""
    adapted = now["tuning"] != "full"
    if code.fp32_gradients and "fp32_gradients" not in now.maps[0]:
        now["fp32_gradients"] = True
    if adapted and code.loss_chunk_tokens and now["loss_chunks"] == 1:
        now["loss_chunks"] = -(-now["sequence_tokens"] // code.loss_chunk_tokens)
    sharded = adapted and now["sharding"] == "zero3"
    if sharded and code.checkpoints_sharded and now["checkpointing"] != "full":
        now["checkpointing"] = "full"
        return [say("configs.always_checkpoints", framework=code.title)]
    return []


def _tuning(word: str, on: bool, code: Framework, model_name: str) -> dict[str, Any]:
    """LoRA freezes 16-bit weights and trains an adapter; QLoRA stores them in 4 bits and adapts every matrix.

    Source: Hu et al., LoRA, arXiv:2106.09685; Dettmers et al., QLoRA, arXiv:2305.14314, section 4.
    """
    if not on:
        return {"tuning": "full", "frozen_bits": 0}
    targets, rank = lora_defaults(code, model_name)
    adapter = {
        "tuning": "lora",
        "targets": targets,
        "rank": rank,
    }  # the same for both: one can follow the other
    return adapter if word == "lora" else {**adapter, "frozen_bits": 4}


def _spread(now: Now) -> None:
    """Several GPUs copy the model by default; sharded states are spread over all of them."""
    if now["gpus"] > 1 and now["sharding"] == "none":
        now["sharding"] = "ddp"
    said = now.maps[0]
    if "shards" not in said and ("gpus" in said or "sharding" in said):
        sharded = now["sharding"] in ("zero1", "zero2", "zero3")
        now["shards"] = max(1, now["gpus"] // (now["tensor"] * now["pipeline"])) if sharded else 1
    half = now["dtype"] != "float32"
    if now["sharding"] in ("zero2", "zero3") and half and now["casts"] == "autocast":
        now["casts"] = "gather"  # FSDP and DeepSpeed cast the shards, not the ops


def _check_split(now: Now) -> None:
    """Refuse a split over more GPUs than there are, and an update that would come too early."""
    gpus, copy = now["gpus"], now["tensor"] * now["pipeline"]
    split, held = copy * now["context"], copy * now["shards"]
    if gpus % split or held > gpus:
        enough = -(-max(gpus, held) // split) * split
        names = ("tensor", "pipeline", "context", "shards")
        parts = ", ".join(f"{name}={now[name]}" for name in names if now[name] != 1)
        wanted = (
            say("configs.multiple_of", split=split) if gpus % split else say("configs.at_least", low=held)
        )
        raise BadInput(
            say("configs.split_takes_gpus", parts=parts, wanted=wanted, gpus=gpus, enough=Plain(enough))
        )
    if now["fp8_inputs"] and not now["fp8"]:
        raise BadInput(say("configs.fp8_inputs_without_fp8"))
    if now["in_backward"] and now["accumulation"] > 1:
        raise BadInput(say("configs.in_backward_accumulates", steps=now["accumulation"]))


def _check_parts(model: Model, now: Now) -> None:
    """Refuse to spread more heads, layers or experts than there are."""
    pieces = now["pipeline"] * now["virtual_stages"]
    if model.heads % now["tensor"]:
        raise BadInput(say("configs.heads_do_not_split", heads=model.heads, gpus=now["tensor"]))
    if pieces > model.layers:
        raise BadInput(say("configs.layers_do_not_split", layers=model.layers, pieces=pieces))
    degree = now["expert"]
    if degree == 1:
        return
    if model.experts is None:
        raise BadInput(say("configs.no_experts_to_spread", name=model.name, degree=degree))
    replicas = now["gpus"] // (now["tensor"] * now["pipeline"])
    if model.experts.count % degree or replicas % degree:
        raise BadInput(
            say(
                "configs.experts_do_not_divide",
                count=model.experts.count,
                degree=degree,
                replicas=replicas,
            )
        )


def _images(before: Model, size: int) -> Images:
    """The same patches of a larger or smaller image; its position table is interpolated, not replaced."""
    if before.images is None:
        raise BadInput(say("configs.reads_no_images", name=before.name))
    if size < before.images.patch:
        raise BadInput(say("configs.image_smaller_than_patch", size=size, patch=before.images.patch))
    return replace(before.images, size=size)


def _image_length(model: Model, training: dict[str, Any]) -> None:
    """A sequence is an image: its length cannot be chosen."""
    if model.images is None:
        return
    tokens, said = model.images.tokens, training.get("sequence_tokens")
    if said is not None and said != tokens:
        raise BadInput(
            say(
                "configs.seq_len_of_images",
                name=model.name,
                size=model.images.size,
                patch=model.images.patch,
                tokens=tokens,
            )
        )
    training["sequence_tokens"] = tokens


def _model(before: Model, changes: Mapping[str, Any]) -> Model:
    """The changed model, after checking what its assertions would."""
    heads = changes.get("heads", before.heads)
    kv_heads = changes.get("kv_heads", heads if before.kv_heads == before.heads else before.kv_heads)
    width, head_size = changes.get("width", before.width), changes.get("head_size", before.head_size)
    if not head_size and width % heads:
        raise BadInput(say("configs.width_not_multiple_of_heads", width=width, heads=heads))
    if heads % kv_heads:
        raise BadInput(say("configs.heads_not_multiple_of_kv_heads", heads=heads, kv_heads=kv_heads))
    return replace(before, **{**changes, "kv_heads": kv_heads}) if changes else before


def _switch(key: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("yes", "no"):
        return value.lower() == "yes"
    raise BadInput(say("configs.not_a_switch", key=key, shown=shown(value)))
