"""The words people use for the choices of `Training`, in any file or flag.

An unknown word is not an error: it gets a fallback that the answer names, and the answer's interval widens,
because the truth may be elsewhere. A mistyped word is an error: see `refuse_slip`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

from brimful.errors import BadInput
from brimful.language import Quoted, Sentence, either, say
from brimful.language.near import slips_of
from brimful.specs.training import OPTIMIZERS, Attention, Checkpointing, Sharding

Fields = dict[str, Any]  # of Training

_AMP: Fields = {"casts": "autocast"}
_PURE: Fields = {"casts": "none"}

# Setting -> its possible words -> the fields of Training it sets. The first of each is our own word. Sources:
# TrainingArguments.optim and FSDPOption of huggingface/transformers; Lightning's precision plugins;
# torchtitan's and axolotl's documentation for the rest.
CHOICES: dict[str, dict[str, Fields]] = {
    "precision": {
        "amp-bf16": {"dtype": "bfloat16", **_AMP},
        "amp-fp16": {"dtype": "float16", **_AMP},
        "fsdp-bf16": {"dtype": "bfloat16", "casts": "gather"},
        "fsdp-fp16": {"dtype": "float16", "casts": "gather"},
        "bf16": {"dtype": "bfloat16", **_PURE},
        "fp16": {"dtype": "float16", **_PURE},
        "fp8": {"dtype": "bfloat16", **_AMP, "fp8": True},
        "tf32": {"dtype": "float32", "tf32": True},
        "fp32": {"dtype": "float32", "tf32": False},
    },
    "optimizer": {
        **{name: {"optimizer": name} for name in OPTIMIZERS},
        "adamw-fused": {"optimizer": "adamw", "optimizer_kernel": "fused"},
        "adamw-foreach": {"optimizer": "adamw", "optimizer_kernel": "foreach"},
        "adamw-loop": {"optimizer": "adamw", "optimizer_kernel": "loop"},
    },
    "attention": {word: {"attention": word} for word in get_args(Attention)},
    "checkpointing": {word: {"checkpointing": word} for word in get_args(Checkpointing)},
    "sharding": {word: {"sharding": word} for word in get_args(Sharding)},
}

# Other names -> our word.
_ALSO: dict[str, dict[str, str]] = {
    "precision": {
        "bf16mixed": "amp-bf16", "mixedbf16": "amp-bf16", "ampbfloat16": "amp-bf16", "autocast": "amp-bf16",
        "amp": "amp-fp16", "16mixed": "amp-fp16", "fp16mixed": "amp-fp16", "mixedfp16": "amp-fp16",
        "bf16true": "bf16", "purebf16": "bf16", "bfloat16": "bf16",
        "16true": "fp16", "purefp16": "fp16", "float16": "fp16", "half": "fp16",
        "32": "fp32", "float32": "fp32", "32true": "fp32", "no": "fp32", "tensorfloat32": "tf32",
        "float8": "fp8", "ampfp8": "fp8", "fp8mixed": "fp8", "bf16fp8": "fp8",
    },
    "optimizer": {
        "adamwtorch": "adamw-foreach", "adamwtorchfused": "adamw-fused", "adamwfused": "adamw-fused",
        "adamwapexfused": "adamw-fused", "adamwhf": "adamw-loop", "decoupledadamw": "adamw",
        "adamw8bit": "adam8bit", "8bitadam": "adam8bit", "8bitadamw": "adam8bit", "adamwbnb8bit": "adam8bit",
        "pagedadamw8bit": "adam8bit", "adamwtorch8bit": "adam8bit",
        "pagedadamw": "adamw", "pagedadamw32bit": "adamw", "adamwanyprecision": "adamw",
        "sgdmomentum": "momentum", "lion32bit": "lion", "pagedlion32bit": "lion",
    },
    "attention": {
        "sdpa": "flash", "flashattention": "flash", "flashattention2": "flash", "flashattention3": "flash",
        "flash2": "flash", "flash3": "flash", "fa2": "flash", "fa3": "flash", "cudnn": "flash",
        "memefficient": "efficient", "memoryefficient": "efficient", "xformers": "efficient",
        "eager": "math", "naive": "math",
    },
    "checkpointing": {
        "true": "full", "yes": "full", "on": "full", "layer": "full", "block": "full", "unsloth": "full",
        "false": "none", "no": "none", "off": "none", "sac": "selective", "op": "selective",
    },
    "sharding": {
        "single": "none", "dp": "ddp", "no": "none", "noshard": "ddp", "zero0": "ddp",
        "fsdp": "zero3", "fsdp2": "zero3", "fullshard": "zero3", "hybridshard": "zero3", "stage3": "zero3",
        "deepspeed3": "zero3", "shardgradop": "zero2", "stage2": "zero2", "deepspeed2": "zero2",
        "stage1": "zero1", "deepspeed1": "zero1",
    },
}  # fmt: skip

# For an unknown word. Each errs towards more memory: a run said to fit should fit.
_FALLBACK = {
    "precision": "amp-bf16",
    "optimizer": "adamw",
    "attention": "efficient",
    "checkpointing": "none",
    "sharding": "ddp",
}


class Choice(NamedTuple):
    """What a word means; `known` is false if the fallback was used."""

    word: str
    fields: Fields
    known: bool


def choose(asked: str, word: object) -> Choice:
    """The fields of Training that `word` means, or those of the fallback."""
    said = _plain(word)
    own = {_plain(name): name for name in CHOICES[asked]}
    name = own.get(said) or _ALSO[asked].get(said)
    known = name is not None
    name = name or _FALLBACK[asked]
    return Choice(name, CHOICES[asked][name], known)


# Other numbers there name what exists and is not modelled: FlashAttention 4, an Adam in 4 bits.
_NUMBERED = frozenset({"optimizer", "attention"})
# One keystroke from a known word, and yet what they say: optimizers that are not modelled.
_MEANT = frozenset({"nadam", "radam", "adamp", "adan", "sgdp", "sgdw"})


def refuse_slip(asked: str, word: object) -> None:
    """Raise for a word one keystroke from a known one: `--optimizer adamm` is a slip, `sophia` is not."""
    said = _plain(word)
    spoken = {**{_plain(name): name for name in CHOICES[asked]}, **_ALSO[asked]}
    near = slips_of(said, spoken) if len(said) > 2 and said not in _MEANT else []
    if asked in _NUMBERED:
        near = [each for each in near if _digits(each) == _digits(said)]
    if near:
        names = either(list(dict.fromkeys(spoken[each] for each in near))[:3])
        raise BadInput(
            say("configs.word_slip", key=asked, word=Quoted(str(word)[:40])),
            hint=say("configs.hint_word_slip", names=names, known=", ".join(CHOICES[asked])),
            code="unknown_word",
        )


def _plain(word: object) -> str:
    return "".join(c for c in str(word).lower()[:100] if c.isalnum())


def _digits(word: str) -> str:
    return "".join(c for c in word if c.isdigit())


def word_not_known(key: str, said: object, choice: Choice) -> Sentence:
    """The message when the fallback was used."""
    return say("configs.word_unknown", key=key, word=Quoted(str(said)[:40]), taken=choice.word)


def precision_of(fields: Fields) -> str:
    """Our word for the precision in these fields: the first whose fields all match."""
    agree = (name for name, wanted in CHOICES["precision"].items() if wanted.items() <= fields.items())
    return next(agree, f"{fields['casts']}-{fields['dtype']}")
