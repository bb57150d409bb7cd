"""Our own words for model and training: what flags and `--set` may say, checked and put in place.

Every reader knows the words of its own format; these work on top of any of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from brimful.configs.bounds import FRACTION, is_fraction, is_whole, out_of_range, shown, whole_number
from brimful.configs.literals import Unreadable, Value, evaluate
from brimful.configs.reading import Reading
from brimful.configs.words import CHOICES, choose, word_not_known
from brimful.errors import BadInput
from brimful.language import Quoted, Sentence, either, say
from brimful.specs.estimate import Assumption
from brimful.specs.framework import Framework, find_framework
from brimful.specs.model import Images, Model
from brimful.specs.torch import Torch, find_torch
from brimful.specs.training import Training

# Word -> (field, lowest, highest). The bounds are far beyond any run, and keep sums finite.
_TRAINING_WHOLE: dict[str, tuple[str, int, int]] = {
    "batch_size": ("batch_size", 1, 10_000_000),
    "seq_len": ("sequence_tokens", 1, 100_000_000),
    "gradient_accumulation_steps": ("accumulation", 1, 1_000_000_000),
    "loss_chunks": ("loss_chunks", 1, 100_000),
    "rank": ("rank", 1, 100_000),
    "targets": ("targets", 1, 8),
    "gpus": ("gpus", 1, 1_000_000),
    "shards": ("shards", 1, 1_000_000),
    "tensor": ("tensor", 1, 10_000),
    "pipeline": ("pipeline", 1, 10_000),
    "virtual_stages": ("virtual_stages", 1, 1_000),
    "context": ("context", 1, 10_000),
    "expert": ("expert", 1, 10_000),
}
# Every switch of Training, by its own name.
_TRAINING_SWITCH = {"compile": "compiled"} | {f.name: f.name for f in fields(Training) if f.type == "bool"}
_MODEL_WHOLE: dict[str, tuple[str, int, int]] = {
    "layers": ("layers", 1, 10_000),
    "heads": ("heads", 1, 100_000),
    "kv_heads": ("kv_heads", 1, 100_000),
    "head_size": ("head_size", 0, 1_000_000),
    "width": ("width", 1, 1_000_000),
    "mlp_width": ("mlp_width", 1, 10_000_000),
    "vocab": ("vocab", 1, 100_000_000),
    "positions": ("positions", 0, 100_000_000),
    "gelu_tensors": ("gelu_tensors", 1, 16),
}
_MODEL_SWITCH = {"tied": "tied", "bias": "bias", "gated": "gated", "rotary": "rotary"}
_IMAGE_SIZE = "image_size"
_MODEL_FRAC = {"dropout": "dropout", "attention_dropout": "attention_dropout"}
_TUNING = ("lora", "qlora")
_FRAMEWORK, _TORCH = "framework", "torch"

# What people type for some of them.
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

# Our word -> what TrainingArguments and nanoGPT call the same.
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

WORDS: frozenset[str] = frozenset(
    {
        *_TRAINING_WHOLE,
        *_TRAINING_SWITCH,
        *_MODEL_WHOLE,
        *_MODEL_SWITCH,
        *_MODEL_FRAC,
        _IMAGE_SIZE,
        *_TUNING,
        *CHOICES,
        _FRAMEWORK,
        _TORCH,
    }
)


def parse_sets(texts: Iterable[str], names: Mapping[str, Value] | None = None) -> dict[str, Value]:
    """`key=value` words of the command line; a value may build on `names` and on words before it."""
    said: dict[str, Value] = {}
    for text in texts:
        key, equals, raw = text.partition("=")
        key = key.strip().lstrip("-").replace("-", "_")
        if not equals or not key:
            raise BadInput(say("configs.set_not_a_pair", text=Quoted(text[:60])))
        # 1.10 is a release, not the number 1.1
        said[key] = raw.strip() if key == _TORCH else _spoken(raw.strip(), {**(names or {}), **said})
    return said


def _spoken(raw: str, names: Mapping[str, Value]) -> Value:
    """A value from the command line: Python where it is Python, else the word itself (dtype=float16)."""
    if raw in ("true", "false"):
        return raw == "true"
    if raw.isidentifier() and raw not in ("True", "False", "None"):
        return raw  # a word, even where a setting has the same name (precision=tf32)
    try:
        return evaluate(ast.parse(raw, mode="eval").body, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError, Unreadable):
        return raw


def own_word(key: str) -> str | None:
    """Our word for `key`, or None where it is not one of ours."""
    return key if key in WORDS else _ALSO.get(key)


def unknown_key(key: str, known: Iterable[str]) -> BadInput:
    """What to say about `--set` with a word that neither the format nor we know."""
    from difflib import get_close_matches

    words = sorted({*known, *WORDS})
    near = get_close_matches(key[:60], words, n=2)
    hint = say("configs.hint_words_that_matter", words=", ".join(words))
    if near:
        hint = say("configs.hint_did_you_mean", names=either(near))
    return BadInput(say("configs.set_unknown", key=Quoted(key[:60])), hint=hint, code="unknown_key")


def apply_settings(reading: Reading, said: Mapping[str, Value]) -> Reading:
    """The reading with our own words in place. A choice we do not know gets its fallback and is listed."""
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    warnings: list[Sentence] = []
    unsure = 0
    code = framework_of(said) or reading.training.framework
    training["framework"] = code
    torch = training["torch"] = find_torch(str(said[_TORCH])) if _TORCH in said else reading.training.torch
    # An adapter brings defaults of its own, which other words may overrule.
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
                unsure += 1
                warnings.append(word_not_known(word, value, choice))
        elif word in _TRAINING_WHOLE:
            training[_TRAINING_WHOLE[word][0]] = _whole(key, value, _TRAINING_WHOLE[word])
        elif word in _TRAINING_SWITCH:
            training[_TRAINING_SWITCH[word]] = _switch(key, value)
        elif word in _MODEL_WHOLE:
            model[_MODEL_WHOLE[word][0]] = _whole(key, value, _MODEL_WHOLE[word])
        elif word == _IMAGE_SIZE:
            model["images"] = _images(reading.model, _whole(key, value, ("", 1, 100_000)))
        elif word in _MODEL_SWITCH:
            model[_MODEL_SWITCH[word]] = _switch(key, value)
        else:
            model[_MODEL_FRAC[word]] = _frac(key, value)
    _spread(reading.training, training)
    without = _older(torch, reading.training, training)
    warnings += without.values()
    warnings += _always(code, reading.training, training)
    shape = _model(reading.model, model)
    _image_length(shape, training)
    _possible(reading.training, training)
    _possible_parts(shape, reading.training, training)
    words = {own_word(key) for key in said} | without.keys()
    return replace(
        reading,
        model=shape,
        training=replace(reading.training, **training),
        assumed=tuple(a for a in reading.assumed if not _answered(a, words)),
        warnings=(*reading.warnings, *warnings),
        unsure=reading.unsure + unsure,
    )


def _answered(assumption: Assumption, words: set[str | None]) -> bool:
    """Whether one of our words says what was assumed, under whatever name its format has for it."""
    names = {name for word in words for name in _ANSWERS.get(word or "", ())}
    return assumption.name in names or (own_word(assumption.name) or assumption.name) in words


def framework_of(said: Mapping[str, Value]) -> Framework | None:
    """The framework that these words name, if one is among them."""
    return find_framework(str(said[_FRAMEWORK])) if _FRAMEWORK in said else None


def lora_defaults(code: Framework, model_name: str) -> tuple[int, int]:
    """Targets and rank where nobody says: the framework's recipe for this model, or what recipes take."""
    targets, rank = code.recipe(model_name)
    return targets or 7, rank or 16


def _older(torch: Torch, before: Training, training: dict[str, Any]) -> dict[str | None, Sentence]:
    """What a release lacks is not counted unless a word of the user's asks for it: word -> what is told."""
    release = torch.release
    slow = say("configs.steps_by_parameter", release=release)
    plain = say("configs.no_fused_attention", release=release)
    eager = say("configs.no_torch_compile", release=release)
    instead = [
        (torch.foreach, "optimizer", "optimizer_kernel", ("fused", "foreach"), "loop", slow),
        (torch.sdpa, "attention", "attention", ("flash", "efficient"), "math", plain),
        (torch.compiles, "compile", "compiled", (True,), False, eager),
    ]
    told: dict[str | None, Sentence] = {}
    for has, word, field, newer, value, said in instead:
        if not has and field not in training and getattr(before, field) in newer:
            training[field] = value
            told[word] = said
    return told


def _always(code: Framework, before: Training, training: dict[str, Any]) -> list[Sentence]:
    """What the framework does whatever the settings say; each is told."""

    def now(field: str) -> Any:  # noqa: ANN401 - a field of Training
        return training.get(field, getattr(before, field))

    adapted = now("tuning") != "full"
    if adapted and code.loss_chunk_tokens and now("loss_chunks") == 1:
        training["loss_chunks"] = -(-now("sequence_tokens") // code.loss_chunk_tokens)
    sharded = adapted and now("sharding") == "zero3"
    if sharded and code.checkpoints_sharded and now("checkpointing") != "full":
        training["checkpointing"] = "full"
        return [say("configs.always_checkpoints", framework=code.title)]
    return []


def _tuning(word: str, on: bool, code: Framework, model_name: str) -> dict[str, Any]:
    """LoRA freezes 16-bit weights and trains an adapter; QLoRA holds them in 4 bits and adapts every matrix.

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


def _spread(before: Training, training: dict[str, Any]) -> None:
    """Several GPUs copy the model unless told otherwise; sharded states are spread over all of them."""
    gpus = training.get("gpus", before.gpus)
    sharding = training.get("sharding", before.sharding)
    if gpus > 1 and sharding == "none":
        sharding = training["sharding"] = "ddp"
    if "shards" not in training and ("gpus" in training or "sharding" in training):
        sharded = sharding in ("zero1", "zero2", "zero3")
        others = 1
        for field in ("tensor", "pipeline"):
            others *= training.get(field, getattr(before, field))
        training["shards"] = max(1, gpus // others) if sharded else 1
    dtype, casts = training.get("dtype", before.dtype), training.get("casts", before.casts)
    if sharding in ("zero2", "zero3") and dtype != "float32" and casts == "autocast":
        training["casts"] = "gather"  # FSDP and DeepSpeed cast the shards, not the ops


def _possible(before: Training, changes: Mapping[str, Any]) -> None:
    """Refuse a split over GPUs that are not there, and an update that would come too early."""

    def now(field: str) -> int:
        return int(changes.get(field, getattr(before, field)))

    gpus, copy = now("gpus"), now("tensor") * now("pipeline")
    split, held = copy * now("context"), copy * now("shards")
    if gpus % split or held > gpus:
        enough = -(-max(gpus, held) // split) * split
        named = [f"{name}={now(name)}" for name in ("tensor", "pipeline", "context", "shards")]
        parts = ", ".join(part for part in named if not part.endswith("=1"))
        wanted = (
            say("configs.multiple_of", split=split) if gpus % split else say("configs.at_least", low=held)
        )
        raise BadInput(say("configs.split_takes_gpus", parts=parts, wanted=wanted, gpus=gpus, enough=enough))
    if now("fp8_inputs") and not now("fp8"):
        raise BadInput(say("configs.fp8_inputs_without_fp8"))
    if now("in_backward") and now("accumulation") > 1:
        raise BadInput(say("configs.in_backward_accumulates", steps=now("accumulation")))


def _possible_parts(model: Model, before: Training, changes: Mapping[str, Any]) -> None:
    """Refuse to spread heads, layers or experts that are not there."""
    made = {
        name: changes.get(name, getattr(before, name)) for name in ("gpus", "tensor", "pipeline", "expert")
    }
    pieces = made["pipeline"] * changes.get("virtual_stages", before.virtual_stages)
    if model.heads % made["tensor"]:
        raise BadInput(say("configs.heads_do_not_split", heads=model.heads, gpus=made["tensor"]))
    if pieces > model.layers:
        raise BadInput(say("configs.layers_do_not_split", layers=model.layers, pieces=pieces))
    degree = made["expert"]
    if degree == 1:
        return
    if model.experts is None:
        raise BadInput(say("configs.no_experts_to_spread", name=model.name, degree=degree))
    replicas = made["gpus"] // (made["tensor"] * made["pipeline"])
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
    """The same patches of a larger or smaller image; its position table is stretched, not made anew."""
    if before.images is None:
        raise BadInput(say("configs.reads_no_images", name=before.name))
    if size < before.images.patch:
        raise BadInput(say("configs.image_smaller_than_patch", size=size, patch=before.images.patch))
    return replace(before.images, size=size)


def _image_length(model: Model, training: dict[str, Any]) -> None:
    """A sequence is an image: its length is no choice."""
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
    """The changed model, after asking what its assertions would."""
    heads = changes.get("heads", before.heads)
    kv_heads = changes.get("kv_heads", heads if before.kv_heads == before.heads else before.kv_heads)
    width, head_size = changes.get("width", before.width), changes.get("head_size", before.head_size)
    if not head_size and width % heads:
        raise BadInput(say("configs.width_not_multiple_of_heads", width=width, heads=heads))
    if heads % kv_heads:
        raise BadInput(say("configs.heads_not_multiple_of_kv_heads", heads=heads, kv_heads=kv_heads))
    return replace(before, **{**changes, "kv_heads": kv_heads}) if changes else before


def _whole(key: str, value: object, bounds: tuple[str, int, int]) -> int:
    _, low, high = bounds
    if is_whole(value, low, high):
        return value
    raise out_of_range(key, value, whole_number(low, high))


def _switch(key: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("yes", "no"):
        return value.lower() == "yes"
    raise BadInput(say("configs.not_a_switch", key=key, shown=shown(value)))


def _frac(key: str, value: object) -> float:
    if is_fraction(value):
        return float(value)
    raise out_of_range(key, value, FRACTION)
