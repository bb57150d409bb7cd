"""Out-of-memory messages, in every wording PyTorch has used since 1.0, read into bytes.

Each number is searched for separately, so a message that is cut off, wrapped or mixed with another still
gives what is left of it. A number that occurs twice with different values is not used at all.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

_SIZE = r"(\d{1,20}(?:\.\d{1,4})?) ?(bytes|[KMGT]iB)"
_BEYOND_BYTES = 2**44  # 16 TiB: no card has it; an unsigned number that went below zero looks like this
_LENGTH = 2500  # characters of one message: the longest wording, with a long list of processes

_START = re.compile(
    r"\b(CUDA|HIP|XPU|NPU|MUSA|MLU) out of memory\b|(?<!out of memory\. )\b[Tt]ried to allocate \d"
)
# Messages that say no more than that memory ran out.
_BARE = re.compile(
    r"CUDA error: out of memory|cuda runtime error \(2\) ?: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|CUBLAS_STATUS_ALLOC_FAILED|hipErrorOutOfMemory|Cuda failure (?:\d+ )?'out of memory'"
)
# Host memory, which no GPU setting changes.
_HOST = re.compile(r"DefaultCPUAllocator: can't allocate memory|\bOOMKilled\b|std::bad_alloc")

# Field -> every wording of it.
_FIELDS: dict[str, tuple[str, ...]] = {
    "tried_bytes": (rf"[Tt]ried to allocate {_SIZE}",),
    "total_bytes": (rf"{_SIZE} total capacity", rf"total capaci?ty of {_SIZE}"),
    "free_bytes": (rf"{_SIZE} free;", rf"of which {_SIZE} is free"),
    "allocated_bytes": (rf"{_SIZE} already allocated", rf"{_SIZE} is allocated by PyTorch"),
    "reserved_bytes": (rf"{_SIZE} reserved in total by PyTorch",),
    # Up to PyTorch 1.3: cached and not allocated; the same as the next one.
    "cached_bytes": (rf"{_SIZE} cached\)", rf"{_SIZE} is reserved by PyTorch but unallocated"),
    "process_bytes": (rf"this process has {_SIZE} memory in use",),
    "private_bytes": (rf"{_SIZE} allocated in private pools",),
    "allowed_bytes": (rf"{_SIZE} allowed",),
}
_PATTERNS = {name: [re.compile(one) for one in wordings] for name, wordings in _FIELDS.items()}
_GPU = re.compile(r"[GNX]PU (\d{1,4})(?:;| has a total)")
_OTHERS = re.compile(rf"Process \d{{1,10}} has {_SIZE} memory in use")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """One message. A number it does not give, or gives twice, is None."""

    kind: str  # CUDA, HIP, XPU, NPU, MUSA or MLU; host for the machine's memory
    gpu_index: int | None = None
    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    cached_bytes: int | None = None  # reserved and not allocated
    process_bytes: int | None = None  # this process, CUDA context included
    private_bytes: int | None = None
    allowed_bytes: int | None = None
    other_process_bytes: tuple[int, ...] = ()
    absurd: tuple[str, ...] = ()  # numbers no card can have
    mixed: tuple[str, ...] = ()  # numbers that occur twice with different values
    trace: str = field(default="", compare=False)  # the text before it: its traceback

    @property
    def tells(self) -> bool:
        """Whether it says more than that memory ran out."""
        return bool(self.absurd or self.mixed or self.tried_bytes is not None or self.total_bytes is not None)

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "trace"}


def find_out_of_memory(text: str) -> list[OutOfMemory]:
    """Every distinct message of the text, in order. Ranks that print the same count once."""
    flat = re.sub(r"\s+", " ", text)
    starts = [match.start() for match in _START.finditer(flat)]
    found: list[OutOfMemory] = []
    for number, start in enumerate(starts):
        end = min(starts[number + 1] if number + 1 < len(starts) else len(flat), start + _LENGTH)
        before = starts[number - 1] if number else 0
        message = _read(flat[start:end], trace=flat[max(before, start - 20_000) : start])
        if message not in found:
            found.append(message)
    # “I get CUDA out of memory. Here is the message: …”: the mention adds nothing to the message.
    found = [message for message in found if message.tells] or found
    if not found and (bare := _BARE.search(flat)):
        found.append(OutOfMemory(kind="CUDA", trace=flat[max(0, bare.start() - 20_000) : bare.start()]))
    if not found and _HOST.search(flat):
        found.append(OutOfMemory(kind="host"))
    return found


def _read(message: str, *, trace: str) -> OutOfMemory:
    numbers: dict[str, int | None] = {}
    absurd, mixed = [], []
    for name, wordings in _PATTERNS.items():
        values = {bytes_of(*match.groups()) for wording in wordings for match in wording.finditer(message)}
        if len(values) > 1:
            mixed.append(name)
        value = values.pop() if len(values) == 1 else None
        if value is not None and value >= _BEYOND_BYTES:
            absurd.append(name)
            value = None
        numbers[name] = value
    allocated, reserved, cached = (numbers[f"{name}_bytes"] for name in ("allocated", "reserved", "cached"))
    if allocated is not None and reserved is not None and cached is None:
        numbers["cached_bytes"] = max(0, reserved - allocated)
    if allocated is not None and cached is not None and reserved is None:
        numbers["reserved_bytes"] = cached + allocated
    gpus = set(_GPU.findall(message))
    kind = re.match(r"(CUDA|HIP|XPU|NPU|MUSA|MLU)", message)
    return OutOfMemory(
        kind=kind[1] if kind else "CUDA",
        gpu_index=int(gpus.pop()) if len(gpus) == 1 else None,
        other_process_bytes=tuple(bytes_of(*match.groups()) for match in _OTHERS.finditer(message)),
        absurd=tuple(absurd),
        mixed=tuple(mixed),
        trace=trace,
        **numbers,
    )


# The same numbers as XLA, TensorFlow, CuPy, Paddle, MindSpore, TensorRT, ONNX Runtime and ComfyUI print them.
_ANY = r"([\d,]{1,20}(?:\.\d{1,6})?) ?(bytes|B\b|[KMGT](?:i?B)?)"
_ELSEWHERE = {
    "tried_bytes": (
        rf"(?:failed to|trying to|cannot|can't|could not|allocat\w+:?) (?:allocate|allocating)? ?{_ANY}",
        rf"request(?:ed)?(?: size)?(?: was| for)?[ :]*{_ANY}",
        r"buffer of size (\d{4,20})()", r"(?:alloc|request memory) size ?[:=]? ?(\d{4,20})()",
        r"alloc\w* fail.{0,80}? size ?[:=] ?(\d{4,20})()", r"<= available failed, (\d{4,20})()",
    ),
    "total_bytes": (
        rf"(?:limit set to|device limit)[ :]*{_ANY}", rf"used [\d.]+\w{{0,3}} of {_ANY}",
        r"total memory: \d{4,20}/(\d{4,20})()", r"total mem(?:ory)? size ?[:=]? ?(\d{4,20})()",
        rf"(?:device|hbm) (?:hbm )?memory size ?[:=] ?{_ANY}",
    ),
    "free_bytes": (
        rf"available memory is only {_ANY}", rf"free \(according to cuda\)[ :]*{_ANY}",
        r"total memory: (\d{4,20})/\d{4,20}()", r"<= available failed, \d{4,20} > (\d{4,20})()",
    ),
    "allocated_bytes": (
        rf"(?:allocated so far|currently allocated)[ :]*{_ANY}", rf"{_ANY} memory has been allocated",
        r"\binuse: {1,40}(\d{4,20})()", rf"\bused {_ANY} of [\d.]+",
    ),
}  # fmt: skip
_ELSEWHERE_PATTERNS = {
    name: [re.compile(one, re.IGNORECASE) for one in wordings] for name, wordings in _ELSEWHERE.items()
}


def read_elsewhere(text: str) -> OutOfMemory:
    """What a program other than PyTorch says about its request; the first of several values counts."""
    flat = re.sub(r"\s+", " ", text)
    found: dict[str, int] = {}
    for name, wordings in _ELSEWHERE_PATTERNS.items():
        if match := next(filter(None, (wording.search(flat) for wording in wordings)), None):
            found[name] = bytes_of(match[1].replace(",", ""), match[2] or "bytes")
    return OutOfMemory(kind="CUDA", **found)  # type: ignore[arg-type]


def bytes_of(number: str, unit: str) -> int:
    """'1.54', 'GiB' in bytes. Every program here divides by 1024, even if it writes GB."""
    scale: int = 1024 ** "bkmgt".index(unit[0].lower())
    return round(float(number) * scale)
