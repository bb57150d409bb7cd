"""Tables people paste: nvidia-smi, torch.cuda.memory_summary(), and a line of inductor's generated code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

from brimful.diagnose.oom import bytes_of
from brimful.units import MIB

DTYPE_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiGpu:
    """One card of an nvidia-smi table."""

    index: int
    name: str
    used_bytes: int
    total_bytes: int
    busy_frac: float | None
    watts: float | None
    watts_cap: float | None


@dataclass(frozen=True, slots=True)
class Process:
    gpu: int
    program: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiTable:
    cards: tuple[SmiGpu, ...]
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySummary:
    """torch.cuda.memory_summary(): current and peak bytes by counter."""

    device: int
    ooms: int | None
    retries: int | None  # times the allocator had to return its cache to the driver
    current_bytes: dict[str, int]
    peak_bytes: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One line of inductor's code that makes a tensor."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    dtype: str | None  # None if the line does not say

    @property
    def numbers(self) -> int:
        """How many numbers it takes, including gaps in its strides."""
        if self.stride is None or len(self.stride) != len(self.shape):
            return prod(self.shape)
        return 1 + sum((side - 1) * step for side, step in zip(self.shape, self.stride, strict=True))

    def as_dict(self) -> dict[str, Any]:
        size = DTYPE_BYTES.get(self.dtype or "")
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "bytes": self.numbers * size if size else None,
        }


_CARD = re.compile(r"^\|\s*(\d{1,3})\s+(\S.*?)\s+(?:On|Off|N/A|TCC|WDDM)\s*\|")
_USE = re.compile(r"(\d{1,7}) ?MiB ?/ +?(\d{1,7}) ?MiB \|(?:\s*(\d{1,3})%|\s*N/A)?")
# A slice of a card: GPU, GPU instance, compute instance, MIG device. Its card's own line says N/A.
_MIG = re.compile(r"^\|\s*(\d{1,3})\s+\d{1,3}\s+\d{1,3}\s+(\d{1,3})\s*\|\s*\d{1,7} ?MiB */")
_WATTS = re.compile(r"(\d{1,4})W\s*/\s*(\d{1,4})W")
_PROCESS = re.compile(
    r"^\|\s*(\d{1,3})\s+(?:(?:N/A|\d{1,3})\s+(?:N/A|\d{1,3})\s+)?(\d{1,9})\s+[CGM+]{1,3}\s+"
    r"(\S.*?)\s+(\d{1,7})MiB\s*\|"
)


def find_smi(lines: list[str]) -> SmiTable | None:
    """A card is two lines: its name, then what it uses. One without the other is skipped."""
    cards: list[SmiGpu] = []
    named: tuple[int, str] | None = None
    for line in lines:
        if part := _MIG.match(line):
            named = int(part[1]), f"MIG {part[2]}"
        if "MiB" in line and (use := _USE.search(re.sub(r" +", " ", line))):
            if named is not None:
                watts = _WATTS.search(line)
                cards.append(
                    SmiGpu(
                        index=named[0],
                        name=named[1],
                        used_bytes=int(use[1]) * MIB,
                        total_bytes=int(use[2]) * MIB,
                        busy_frac=int(use[3]) / 100 if use[3] else None,
                        watts=float(watts[1]) if watts else None,
                        watts_cap=float(watts[2]) if watts else None,
                    )
                )
            named = None
        elif card := _CARD.match(line):
            named = int(card[1]), card[2]
    sound = [card for card in cards if card.used_bytes <= card.total_bytes and card.total_bytes]
    return SmiTable(cards=tuple(sound), processes=find_processes(lines)) if sound else None


def find_processes(lines: list[str]) -> tuple[Process, ...]:
    """The rows below the cards, which people also paste alone."""
    rows = (_PROCESS.match(line) for line in lines if line.startswith("|"))
    return tuple(Process(int(row[1]), row[3], int(row[4]) * MIB) for row in rows if row)


_HEADER = re.compile(r"PyTorch CUDA memory summary, device ID (\d{1,4})")
_COUNTS = re.compile(r"CUDA OOMs: (\d{1,9})\s*\|\s*cudaMalloc retries: (\d{1,9})")
_ROW = re.compile(
    r"\|\s*(?:GPU )?(Allocated|Active|Requested|reserved|Non-releasable) memory\s*"
    r"\|\s*(\d{1,12}) ([KMGT]?)i?B?\s*\|\s*(\d{1,12}) ([KMGT]?)i?B?\s*\|"
)


def find_summary(lines: list[str]) -> MemorySummary | None:
    text = "\n".join(lines)
    header = _HEADER.search(text)
    if header is None:
        return None
    rest = text[header.start() :]
    if (following := _HEADER.search(rest, 1)) is not None:
        rest = rest[: following.start()]
    current, peak = {}, {}
    for row in _ROW.finditer(rest):
        counter = row[1].lower().replace("-", "_")
        current[counter] = bytes_of(row[2], row[3] or "B")
        peak[counter] = bytes_of(row[4], row[5] or "B")
    if "allocated" not in peak or "reserved" not in peak:
        return None
    counts = _COUNTS.search(rest)
    return MemorySummary(
        device=int(header[1]),
        ooms=int(counts[1]) if counts else None,
        retries=int(counts[2]) if counts else None,
        current_bytes=current,
        peak_bytes=peak,
    )


_BUFFER = re.compile(
    r"\b(\w{1,40}) = (?:torch\.)?empty_strided(?:_cuda)?\(\s*\(([\d, ]{1,120})\)"
    r"(?:,\s*\(([\d, ]{1,200})\))?([^\n]{0,120})"
)


def find_buffers(text: str) -> list[Buffer]:
    found = []
    for match in _BUFFER.finditer(text):
        shape = _whole_numbers(match[2])
        stride = _whole_numbers(match[3]) if match[3] else None
        dtype = re.search(r"torch\.(\w+)", match[4])
        known = dtype[1] if dtype and dtype[1] in DTYPE_BYTES else None
        if shape and 0 not in shape:
            found.append(Buffer(name=match[1], shape=shape, stride=stride, dtype=known))
    return list(dict.fromkeys(found))


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,12}", text))
