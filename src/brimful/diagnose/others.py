"""Out-of-memory messages of programs other than PyTorch's CUDA allocator: what they say, and what follows.

JAX, TensorFlow, llama.cpp, vLLM, DirectML and Apple's MPS each have one sentence, with a number or two. A
number counts only where its unit, or the word after it, still stands: a message that was cut off gives no
wrong figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from brimful.language import Sentence, Size, say

Says = tuple[str, Sentence]

_SIZE = r"(\d{1,20}(?:\.\d{1,4})?) ?(bytes|[KMGT]i?B)\b"
# PyTorch's MPS allocator divides by 1024 and used to write GB for it; XLA writes GiB.
_UNITS = {"bytes": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_TF_BYTES = {
    "float": 4, "half": 2, "bfloat16": 2, "double": 8, "int32": 4, "int64": 8, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1,
}  # fmt: skip

_XLA = re.compile(
    r"(?:RESOURCE_EXHAUSTED|Resource exhausted): Out of memory "
    rf"(?:while trying to allocate|allocating) {_SIZE}"
)
_TENSORFLOW = re.compile(
    r"OOM when allocating tensor with shape ?\[([\d,]{1,200})\]"
    r"(?: and type (\w{1,20}) on (?:\S{0,80}?device:(\w{1,8}):(\d{1,4})\b)?)?"
)
_LLAMA = re.compile(rf"allocating {_SIZE} on device (\d{{1,4}}): (?:cuda|hip)Malloc failed: out of memory")
_VLLM = re.compile(r"No available memory for the cache blocks")
_VLLM_TOKENS = re.compile(
    r"max seq len \((\d{1,12})\) is larger than the maximum number of tokens that can be stored in KV cache "
    r"\((\d{1,12})\)"
)
_DIRECTML = re.compile(
    r"Could not allocate tensor with (\d{1,20}) bytes\. There is not enough GPU video memory available"
)
_MPS = re.compile(r"MPS backend out of memory")
_MPS_LENGTH = 400  # characters of its message
_MPS_FIELDS = {
    "allocated_bytes": re.compile(rf"MPS allocated: {_SIZE}"),
    "other_bytes": re.compile(rf"other allocations: {_SIZE}"),
    "allowed_bytes": re.compile(rf"max allowed: {_SIZE}"),
    "tried_bytes": re.compile(rf"Tried to allocate {_SIZE} on (?:private|shared) pool"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """One message. A number it does not give is None."""

    kind: str  # XLA, TensorFlow, llama.cpp, vLLM, DirectML or MPS
    gpu_index: int | None = None
    tried_bytes: int | None = None
    allocated_bytes: int | None = None
    other_bytes: int | None = None
    allowed_bytes: int | None = None
    shape: tuple[int, ...] = ()
    number_bytes: int | None = None
    tokens_wanted: int | None = None
    tokens_held: int | None = None

    def as_dict(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in self.__slots__}
        return {**facts, "shape": list(self.shape)}


def find_elsewhere(text: str) -> tuple[list[Elsewhere], str]:
    """Every different message, and the text without those of MPS, which speak as PyTorch's others do."""
    flat = re.sub(r"\s+", " ", text)
    found = [
        *(Elsewhere(kind="XLA", tried_bytes=_bytes(m[1], m[2])) for m in _XLA.finditer(flat)),
        *(_tensorflow(m) for m in _TENSORFLOW.finditer(flat)),
        *(
            Elsewhere(kind="llama.cpp", tried_bytes=_bytes(m[1], m[2]), gpu_index=int(m[3]))
            for m in _LLAMA.finditer(flat)
        ),
        *(Elsewhere(kind="vLLM") for _ in _VLLM.finditer(flat)),
        *(
            Elsewhere(kind="vLLM", tokens_wanted=int(m[1]), tokens_held=int(m[2]))
            for m in _VLLM_TOKENS.finditer(flat)
        ),
        *(Elsewhere(kind="DirectML", tried_bytes=int(m[1])) for m in _DIRECTML.finditer(flat)),
        *(_mps(flat[m.start() : m.start() + _MPS_LENGTH]) for m in _MPS.finditer(flat)),
    ]
    rest = re.sub(rf"MPS backend out of memory.{{0,{_MPS_LENGTH}}}", " ", flat)
    return list(dict.fromkeys(found)), rest


def _tensorflow(match: re.Match[str]) -> Elsewhere:
    shape = tuple(int(side) for side in match[1].split(",") if side)
    size = _TF_BYTES.get(match[2] or "")
    return Elsewhere(
        kind="TensorFlow",
        gpu_index=int(match[4]) if match[3] == "GPU" else None,
        shape=shape,
        number_bytes=size,
        tried_bytes=prod(shape) * size if size else None,
    )


def _mps(message: str) -> Elsewhere:
    def number(name: str) -> int | None:
        """One that stands there twice with two values, as where two messages are mixed, is none."""
        values = {_bytes(*match.groups()) for match in _MPS_FIELDS[name].finditer(message)}
        return values.pop() if len(values) == 1 else None

    return Elsewhere(
        kind="MPS",
        tried_bytes=number("tried_bytes"),
        allocated_bytes=number("allocated_bytes"),
        other_bytes=number("other_bytes"),
        allowed_bytes=number("allowed_bytes"),
    )


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit.replace("i", "")])


def elsewhere_says(m: Elsewhere) -> tuple[tuple[Says, ...], tuple[Says, ...]]:
    """Sentences, and what is missing to say more."""
    says = tuple({
        "XLA": _xla_says,
        "TensorFlow": _tensorflow_says,
        "llama.cpp": _llama_says,
        "vLLM": _vllm_says,
        "DirectML": _directml_says,
        "MPS": _mps_says,
    }[m.kind](m))  # fmt: skip
    missing: list[Says] = []
    if m.tried_bytes is None and m.kind != "vLLM":
        missing.append(("needs_numbers", say("diagnose.sentence_numbers_tried_allocate_gib")))
    if m.kind != "vLLM":
        missing.append(("needs_table", say("diagnose.else_held_card_nvidia_smi")))
    return says, tuple(missing)


def _xla_says(m: Elsewhere) -> Iterator[Says]:
    if m.tried_bytes is not None:
        yield "asked", say("diagnose.xla_asked_once", tried=Size(m.tried_bytes))
    yield (
        "preallocates",
        say("diagnose.jax_takes_75_card_when"),
    )


def _tensorflow_says(m: Elsewhere) -> Iterator[Says]:
    shape = " x ".join(map(str, m.shape))
    if m.tried_bytes is not None and m.number_bytes is not None:
        yield (
            "tensor",
            say(
                "diagnose.x_bytes_tensor_tensorflow_found",
                shape=shape,
                number_bytes=m.number_bytes,
                size=Size(m.tried_bytes),
            ),
        )
    else:
        yield (
            "tensor",
            say(
                "diagnose.tensorflow_found_no_room_tensor",
                shape=shape,
                size=Size(4 * prod(m.shape)),
            ),
        )
    yield (
        "culprit",
        say("diagnose.last_tensor_asked_ones_filled"),
    )


def _llama_says(m: Elsewhere) -> Iterator[Says]:
    yield (
        "asked",
        say(
            "diagnose.llama_cpp_asked_one_piece",
            tried=Size(m.tried_bytes or 0),
            index=m.gpu_index or 0,
        ),
    )
    yield (
        "less",
        say("diagnose.fewer_layers_card_ngl_shorter"),
    )


def _vllm_says(m: Elsewhere) -> Iterator[Says]:
    if m.tokens_wanted is not None and m.tokens_held is not None:
        yield (
            "tokens",
            say(
                "diagnose.sequence_may_tokens_kv_cache",
                wanted=m.tokens_wanted,
                held=m.tokens_held,
            ),
        )
        yield (
            "less",
            say(
                "diagnose.set_max_model_len_less",
                held=str(m.tokens_held),
            ),
        )
        return
    yield (
        "no_room",
        say("diagnose.vllm_may_use_share_gpu"),
    )
    yield (
        "less",
        say("diagnose.larger_share_weights_fewer_bits"),
    )


def _directml_says(m: Elsewhere) -> Iterator[Says]:
    yield "asked", say("diagnose.pytorch_asked_more", tried=Size(m.tried_bytes or 0))
    yield "silent", say("diagnose.directml_not_say_allocated_free")


def _mps_says(m: Elsewhere) -> Iterator[Says]:
    if m.tried_bytes is not None:
        yield "asked", say("diagnose.pytorch_asked_more", tried=Size(m.tried_bytes))
    if m.allocated_bytes is not None and m.other_bytes is not None and m.allowed_bytes is not None:
        yield (
            "shared",
            say(
                "diagnose.tensors_took_other_metal_buffers",
                allocated=Size(m.allocated_bytes),
                other=Size(m.other_bytes),
                allowed=Size(m.allowed_bytes),
            ),
        )
