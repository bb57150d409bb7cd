"""Out-of-memory messages of programs other than PyTorch's CUDA allocator: what they say, and what follows.

JAX, TensorFlow, llama.cpp, vLLM, DirectML and Apple's MPS each have one sentence, with a number or two. A
number counts only if its unit, or the word after it, is still there: a truncated message gives no wrong
figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from brimful.diagnose.oom import bytes_of
from brimful.language import Plain, Sentence, Size, say

_SIZE = r"(\d{1,20}(?:\.\d{1,4})?) ?(bytes|[KMGT]i?B)\b"
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
_MPS_FIELDS = (
    re.compile(rf"Tried to allocate {_SIZE} on (?:private|shared) pool"),
    re.compile(rf"MPS allocated: {_SIZE}"),
    re.compile(rf"other allocations: {_SIZE}"),
    re.compile(rf"max allowed: {_SIZE}"),
)


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


def find_elsewhere(text: str) -> tuple[list[Elsewhere], str]:
    """Every distinct message, and the text without those of MPS, which are worded like PyTorch's others."""
    flat = re.sub(r"\s+", " ", text)
    found = [
        *(Elsewhere(kind="XLA", tried_bytes=bytes_of(m[1], m[2])) for m in _XLA.finditer(flat)),
        *(_tensorflow(m) for m in _TENSORFLOW.finditer(flat)),
        *(
            Elsewhere(kind="llama.cpp", tried_bytes=bytes_of(m[1], m[2]), gpu_index=int(m[3]))
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
    def number(field: re.Pattern[str]) -> int | None:
        """None if it occurs twice with different values, as in two mixed messages."""
        values = {bytes_of(*match.groups()) for match in field.finditer(message)}
        return values.pop() if len(values) == 1 else None

    tried, allocated, other, allowed = map(number, _MPS_FIELDS)
    return Elsewhere(
        kind="MPS",
        tried_bytes=tried,
        allocated_bytes=allocated,
        other_bytes=other,
        allowed_bytes=allowed,
    )


def elsewhere_says(m: Elsewhere) -> Iterator[Sentence]:
    tried = Size(m.tried_bytes or 0)
    if m.kind == "XLA":
        if m.tried_bytes is not None:
            yield say("diagnose.asked.xla", tried=tried)
        yield say("diagnose.preallocates")
    elif m.kind == "TensorFlow":
        shape = " x ".join(map(str, m.shape))
        if m.tried_bytes is not None:
            yield say("diagnose.tensor.tensorflow", shape=shape, number_bytes=m.number_bytes, size=tried)
        else:
            yield say("diagnose.tensor.tensorflow_if_fp32", shape=shape, size=Size(4 * prod(m.shape)))
        yield say("diagnose.culprit")
    elif m.kind == "llama.cpp":
        yield say("diagnose.asked.llama", tried=tried, index=m.gpu_index or 0)
        yield say("diagnose.less.llama")
    elif m.kind == "vLLM":
        yield from _vllm_says(m)
    elif m.tried_bytes is not None:
        yield say("diagnose.asked.more", tried=tried)
    if m.kind == "DirectML":
        yield say("diagnose.silent")
    if m.allocated_bytes is not None and m.other_bytes is not None and m.allowed_bytes is not None:
        yield say(
            "diagnose.shared",
            allocated=Size(m.allocated_bytes),
            other=Size(m.other_bytes),
            allowed=Size(m.allowed_bytes),
        )


def _vllm_says(m: Elsewhere) -> Iterator[Sentence]:
    if m.tokens_wanted is not None and m.tokens_held is not None:
        yield say("diagnose.tokens.kv_cache", wanted=m.tokens_wanted, held=m.tokens_held)
        yield say("diagnose.less.vllm_tokens", held=Plain(m.tokens_held))
    else:
        yield say("diagnose.no_room")
        yield say("diagnose.less.vllm")


def elsewhere_needs(m: Elsewhere) -> Iterator[Sentence]:
    """What is missing to say more."""
    if m.kind != "vLLM":
        if m.tried_bytes is None:
            yield say("diagnose.needs_numbers")
        yield say("diagnose.needs_table")
