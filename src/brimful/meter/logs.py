"""Lines that training loops print, parsed into seconds, tokens per second, bytes and MFU.

An MFU is a share of a peak, and loops differ in which peak they use: that is read too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from brimful.fit.count import A100_FLOPS_PER_S

_F = r"[-+]?(?:\d{1,15}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?|nan|inf)"
_STEP, _LOSS, _MS = r"(?P<step>\d{1,12})", f"(?P<loss>{_F})", f"(?P<ms>{_F})"
_MFU, _TOKENS = f"(?P<mfu>{_F})", f"(?P<tokens>{_F})"
H100_FLOPS_PER_S = 989e12


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


# What the loops print, with the group names that `_read` knows. The last line of each kind counts.
_PATTERNS = (
    ("nanoGPT", rf"\biter {_STEP}: loss {_LOSS}, time {_MS} ?ms(?:, mfu {_MFU}%)?"),
    ("llm.c", rf"\bstep +{_STEP}/\d{{1,12}} \| (?:train )?loss {_LOSS}.{{0,80}}?\| +{_MS} ms \| ",
              rf"{_MFU}% (?:bf16|fp16|fp32|tf32) MFU \| {_TOKENS} tok/s"),
    ("llm.c", rf"\bstep +{_STEP}/\d{{1,12}}: train loss {_LOSS}(?: \(acc [^)]{{0,20}}\))? ",
              rf"\({_MS} ms, {_TOKENS} tok/s\)"),
    ("nanochat", rf"\bstep {_STEP}/\d{{1,12}} \([\d.]{{1,8}}%\) \| loss: {_LOSS} \|.{{0,80}}?\bdt: {_MS}ms ",
                 rf"\| tok/sec: (?P<tokens>[\d,]{{1,20}}) \| (?P<table>bf16_)?mfu: {_MFU}"),
    ("torchtitan", rf"\bstep: +{_STEP} +loss: +{_LOSS}.{{0,60}}?\bmemory: +(?P<gib>{_F})GiB\({_F}%\) +",
                   r"(?:tps|wps): +(?P<tokens>[\d,]{1,20})(?: +tflops: +(?P<tflops>[\d,.]{1,20}))?",
                   rf"(?: +mfu: +{_MFU}%)?"),
    # A progress bar: seconds per iteration, or iterations per second. Downloads count bytes, not `it`.
    ("tqdm", rf"\b\d{{1,3}}%\|[^|\n]{{0,300}}\| *{_STEP}/\d{{1,12}} \[[\d:]{{1,12}}<[\d:?]{{1,12}}, *",
             rf"(?P<pace>{_F})(?P<unit>s/it|it/s)\b(?:, ?(?:train_)?loss={_LOSS}\b)?"),
)  # fmt: skip
_KINDS = tuple((framework, re.compile("".join(parts))) for framework, *parts in _PATTERNS)
_TRAINER = re.compile(r"\{[^{}]{0,20}'(?:train_runtime|loss)'[^{}]{0,600}\}")


def find_log_lines(text: str) -> list[LogLine]:
    found = [_read(framework, pattern, text) for framework, pattern in _KINDS]
    found.insert(-1, _trainer(text))
    return [line for line in found if line is not None]


def _read(framework: str, pattern: re.Pattern[str], text: str) -> LogLine | None:
    lines = list(pattern.finditer(text))
    if not lines:
        return None
    said = lines[-1].groupdict()
    number = {name: _number(value) for name, value in said.items() if name not in ("unit", "table")}
    pace, tflops, memory_gib = number.get("pace"), number.get("tflops"), number.get("gib")
    if "pace" in said and (not pace or pace < 0):
        return None
    mfu = _positive(number.get("mfu"), per=100)  # nanoGPT and llm.c print -100 % for unknown
    flops = tflops * 1e12 if tflops else None
    peak, divides = _divisor(framework, said, flops=flops, mfu=mfu)
    step_s = _positive(number.get("ms"), per=1000)
    if pace:
        step_s = pace if said["unit"] == "s/it" else 1 / pace
    return LogLine(
        framework=framework,
        lines=len(lines),
        step=int(said["step"]),
        loss=number["loss"],
        step_s=step_s,
        tokens_per_s=number.get("tokens"),
        reserved_bytes=round(memory_gib * 2**30) if memory_gib is not None else None,
        flops_per_s=flops,
        mfu=mfu,
        divided_by_flops_per_s=peak,
        divides=divides,
    )


def _divisor(
    framework: str, said: Mapping[str, str | None], *, flops: float | None, mfu: float | None
) -> tuple[float | None, str]:
    """The peak that the loop divides by, and how that is known."""
    if framework == "torchtitan":  # if the line gives TFLOPS and MFU, their quotient is the peak
        return (flops / mfu, "line") if flops and mfu else (None, "table" if mfu else "")
    if not said.get("mfu"):
        return None, ""
    if framework == "nanoGPT":
        return A100_FLOPS_PER_S, "always"
    if framework == "nanochat" and not said["table"]:  # since January 2026 it looks up the card: bf16_mfu
        return H100_FLOPS_PER_S, "always"
    return None, "table"


def _trainer(text: str) -> LogLine | None:
    found = _TRAINER.findall(text)
    words = re.findall(rf"'(\w{{1,40}})': '?({_F})'?(?=[,}}])", " ".join(found))
    said = {key: _number(value) for key, value in words}
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


def _number(text: str | None) -> float | None:
    value = float(text.replace(",", "")) if text else None
    return value if value is not None and isfinite(value) else None


def _positive(value: float | None, *, per: float) -> float | None:
    return value / per if value is not None and value > 0 else None
