"""Lines that training loops print, read into seconds, tokens a second, bytes and MFU.

An MFU is a share of a peak, and every loop has its own idea of which: that is read too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from typing import Any

_F = r"([-+]?(?:\d{1,15}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?|nan|inf))"
A100_FLOPS_PER_S, H100_FLOPS_PER_S = 312e12, 989e12


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """The last line of its kind, and how many there are. None: the line does not say, or says 'unknown'."""

    framework: str
    lines: int
    step: int | None = None
    loss: float | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    reserved_bytes: int | None = None
    flops_per_s: float | None = None  # of one GPU, as the loop counts them
    mfu: float | None = None
    divided_by_flops_per_s: float | None = None  # the peak that MFU is a share of
    divides: str = ""  # how that is known: always, table, line

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


_NANOGPT = re.compile(rf"\biter (\d{{1,12}}): loss {_F}, time {_F} ?ms(?:, mfu {_F}%)?")
_LLMC = re.compile(
    rf"\bstep +(\d{{1,12}})/\d{{1,12}} \| (?:train )?loss {_F}.{{0,80}}?\| +{_F} ms \| "
    rf"{_F}% (?:bf16|fp16|fp32|tf32) MFU \| {_F} tok/s"
)
_LLMC_OLD = re.compile(
    rf"\bstep +(\d{{1,12}})/\d{{1,12}}: train loss {_F}(?: \(acc [^)]{{0,20}}\))? \({_F} ms, {_F} tok/s\)"
)
_NANOCHAT = re.compile(
    rf"\bstep (\d{{1,12}})/\d{{1,12}} \([\d.]{{1,8}}%\) \| loss: {_F} \|.{{0,80}}?\bdt: {_F}ms \| "
    rf"tok/sec: ([\d,]{{1,20}}) \| (bf16_)?mfu: {_F}"
)
_TITAN = re.compile(
    rf"\bstep: +(\d{{1,12}}) +loss: +{_F}.{{0,60}}?\bmemory: +{_F}GiB\({_F}%\) +(?:tps|wps): +([\d,]{{1,20}})"
    rf"(?: +tflops: +([\d,.]{{1,20}}))?(?: +mfu: +{_F}%)?"
)
_TRAINER = re.compile(r"\{[^{}]{0,20}'(?:train_runtime|loss)'[^{}]{0,600}\}")

# A progress bar of tqdm: seconds for an iteration, or iterations a second. Downloads count bytes, not `it`.
_TQDM = re.compile(
    rf"\b\d{{1,3}}%\|[^|\n]{{0,300}}\| *(\d{{1,12}})/\d{{1,12}} "
    rf"\[[\d:]{{1,12}}<[\d:?]{{1,12}}, *{_F}(s/it|it/s)\b(?:, ?(?:train_)?loss={_F}\b)?"
)


def find_log_lines(text: str) -> list[LogLine]:
    readers = (_nanogpt, _llmc, _llmc_old, _nanochat, _titan, _trainer, _tqdm)
    return [line for reader in readers if (line := reader(text)) is not None]


def _last(pattern: re.Pattern[str], text: str) -> tuple[re.Match[str] | None, int]:
    found = list(pattern.finditer(text))
    return (found[-1] if found else None), len(found)


def _nanogpt(text: str) -> LogLine | None:
    match, lines = _last(_NANOGPT, text)
    if match is None:
        return None
    return LogLine(
        framework="nanoGPT",
        lines=lines,
        step=int(match[1]),
        loss=_number(match[2]),
        step_s=_milliseconds(match[3]),
        mfu=_share(match[4]),
        divided_by_flops_per_s=A100_FLOPS_PER_S if match[4] else None,
        divides="always" if match[4] else "",
    )


def _llmc(text: str) -> LogLine | None:
    match, lines = _last(_LLMC, text)
    if match is None:
        return None
    return LogLine(
        framework="llm.c",
        lines=lines,
        step=int(match[1]),
        loss=_number(match[2]),
        step_s=_milliseconds(match[3]),
        mfu=_share(match[4]),
        divides="table",
        tokens_per_s=_number(match[5]),
    )


def _llmc_old(text: str) -> LogLine | None:
    match, lines = _last(_LLMC_OLD, text)
    if match is None:
        return None
    return LogLine(
        framework="llm.c",
        lines=lines,
        step=int(match[1]),
        loss=_number(match[2]),
        step_s=_milliseconds(match[3]),
        tokens_per_s=_number(match[4]),
    )


def _nanochat(text: str) -> LogLine | None:
    match, lines = _last(_NANOCHAT, text)
    if match is None:
        return None
    own_table = bool(match[5])  # since January 2026 it looks the card up, and says bf16_mfu
    return LogLine(
        framework="nanochat",
        lines=lines,
        step=int(match[1]),
        loss=_number(match[2]),
        step_s=_milliseconds(match[3]),
        tokens_per_s=_number(match[4]),
        mfu=_share(match[6]),
        divided_by_flops_per_s=None if own_table else H100_FLOPS_PER_S,
        divides="table" if own_table else "always",
    )


def _titan(text: str) -> LogLine | None:
    """Where the line gives TFLOPS and MFU, their quotient is the peak it was divided by."""
    match, lines = _last(_TITAN, text)
    if match is None:
        return None
    memory_gib, mfu = _number(match[3]), _share(match[7])
    tflops = _number(match[6]) if match[6] else None
    flops = tflops * 1e12 if tflops else None
    return LogLine(
        framework="torchtitan",
        lines=lines,
        step=int(match[1]),
        loss=_number(match[2]),
        tokens_per_s=_number(match[5]),
        reserved_bytes=round(memory_gib * 2**30) if memory_gib is not None else None,
        flops_per_s=flops,
        mfu=mfu,
        divided_by_flops_per_s=flops / mfu if flops and mfu else None,
        divides="line" if flops and mfu else "table" if mfu else "",
    )


def _trainer(text: str) -> LogLine | None:
    found = _TRAINER.findall(text)
    if not found:
        return None
    said = {
        key: _number(value)
        for key, value in re.findall(rf"'(\w{{1,40}})': '?{_F}'?(?=[,}}])", " ".join(found))
    }
    if not {"epoch", "train_runtime"} & said.keys():
        return None
    rate = said.get("train_steps_per_second")
    step = said.get("step")
    return LogLine(
        framework="Hugging Face Trainer",
        lines=len(found),
        step=int(step) if step is not None else None,
        loss=said.get("loss", said.get("train_loss")),
        step_s=1 / rate if rate else None,
        samples_per_s=said.get("train_samples_per_second"),
    )


def _tqdm(text: str) -> LogLine | None:
    match, lines = _last(_TQDM, text)
    pace = _number(match[2]) if match else None
    if match is None or not pace or pace < 0:
        return None
    return LogLine(
        framework="tqdm",
        lines=lines,
        step=int(match[1]),
        loss=_number(match[4]) if match[4] else None,
        step_s=pace if match[3] == "s/it" else 1 / pace,
    )


def _number(text: str) -> float | None:
    value = float(text.replace(",", ""))
    return value if isfinite(value) else None


def _milliseconds(text: str) -> float | None:
    value = _number(text)
    return value / 1000 if value is not None and value > 0 else None


def _share(text: str | None) -> float | None:
    """-100 % is how nanoGPT and llm.c say that they do not know."""
    value = _number(text) if text else None
    return value / 100 if value is not None and value > 0 else None
