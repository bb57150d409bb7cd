"""One answer to a message, a log or a question: the cause, how sure it is, and what to change.

A message that a run died of is a fact: it did fail. Its own numbers decide between the causes; where they do
not, the answer says that it is not certain. Every answer ends in a fix.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from brimful.diagnose.claims.reading import folded
from brimful.diagnose.claims.words import parameters, percents, says, sizes
from brimful.diagnose.oom import OutOfMemory
from brimful.errors import BrimfulError
from brimful.fit.count import A100_FLOPS_PER_S
from brimful.language import Language, Percent, Sentence, Size, figures, say
from brimful.specs.gpu import Gpu, find_gpu
from brimful.units import GIB

_MAX_QUESTION = 1000  # characters: more is a log

# Cause -> what to change, in the order of trying.
FIXES: dict[str, tuple[str, ...]] = {
    "own_tensors_fill_card": ("lower_batch", "checkpointing", "shorter_sequence", "more_memory"),
    "request_larger_than_card": ("lower_batch", "shorter_sequence", "more_memory"),
    "absurd_request": ("find_bug",),
    "fragmentation": ("expandable_segments", "lower_batch"),
    "other_process": ("free_the_card",),
    "context_overhead": ("lower_batch", "free_the_card"),
    "driver_spill": ("lower_batch", "more_memory"),
    "free_but_refused": ("free_the_card", "expandable_segments", "lower_batch"),
    "memory_fraction_limit": ("raise_fraction",),
    "host_out_of_memory": ("more_host_ram",),
    "host_shared_memory": ("more_shm",),
    "no_room_for_kv_cache": ("raise_fraction", "shorter_sequence", "smaller_model", "more_memory"),
    "kv_cache_too_small": ("shorter_sequence", "raise_fraction", "more_memory"),
    "not_enough_free_at_start": ("free_the_card", "lower_fraction"),
    "warmup_too_large": ("lower_max_seqs", "lower_fraction"),
    "library_handle_failed": ("lower_batch", "free_the_card"),
    "nccl_timeout": ("nccl_debug",),
    "nccl_network": ("nccl_debug",),
    "nccl_out_of_memory": ("lower_batch", "checkpointing", "more_memory"),
    "communication_bound": ("profile", "more_memory"),
    "loss_scale_exhausted": ("bf16",),
    "memory_pressure": ("lower_batch", "checkpointing", "offload", "expandable_segments"),
    "memory_leak": ("detach",),
    "quantized_model_does_not_fit": ("smaller_model", "free_the_card", "offload", "more_memory"),
    "kernel_shared_memory": ("smaller_blocks",),
    "framework_preallocation": ("no_preallocation", "none_needed"),
    "mps_limit": ("lower_batch", "watermark"),
    "wrong_build": ("right_wheel",),
    "index_out_of_range": ("find_bug",),
    "input_starved": ("more_workers", "profile"),
    "memory_is_not_compute": ("profile", "set_peak"),
    "util_is_not_mfu": ("profile",),
    "wrong_mfu_peak": ("set_peak",),
    "optimizer_state_second_step": ("lower_batch", "checkpointing", "smaller_model"),
    "compile_saves_memory": ("keep_compile",),
    "same_size_dtypes": ("none_needed",),
    "states_exceed_card": ("smaller_model", "offload", "more_memory"),
    "cached_memory": ("none_needed", "expandable_segments"),
}

# Causes the words alone do not prove.
_UNSURE = {
    "own_tensors_fill_card",
    "library_handle_failed",
    "free_but_refused",
    "host_out_of_memory",
    "nccl_timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    cause: str
    certain: bool
    evidence: tuple[Sentence, ...] = ()  # numbers of the text itself, worked out
    also: tuple[str, ...] = ()  # what else it may be, where it is not certain

    @property
    def says(self) -> tuple[Sentence, ...]:
        head = Sentence(f"causes.is_{self.cause}", {})
        sure = () if self.certain else (say("causes.not_certain"),)
        others = tuple(Sentence(f"causes.is_{one}", {}) for one in self.also)
        return (head, *self.evidence, *sure, *others)

    @property
    def fixes(self) -> tuple[str, ...]:
        return FIXES[self.cause]

    @property
    def changes(self) -> tuple[Sentence, ...]:
        return tuple(Sentence(f"causes.fix_{fix}", {}) for fix in self.fixes)

    def as_dict(self, spoken: Language) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "certain": self.certain,
            "also": list(self.also),
            "fixes": list(self.fixes),
            "says": [spoken.text(one) for one in self.says],
            "change": [spoken.text(one) for one in self.changes],
        }


def find_answer(text: str, messages: list[OutOfMemory], gpu: Gpu | None) -> Answer | None:
    """Of a whole log: what the run died of before what it only warned of."""
    told = [message for message in messages if message.tells]
    if told and (told[-1].total_bytes is not None or told[-1].absurd):
        return _of_numbers(told[-1])
    flat = re.sub(r"[ \t]+", " ", text)
    for cause, pattern in _printed():
        if match := pattern.search(flat):
            evidence = tuple(_printed_numbers(flat, match))
            others = ("other_process", "framework_preallocation") if "RESOURCE" in match[0] else ()
            return Answer(cause=cause, certain=cause not in _UNSURE, evidence=evidence, also=others)
    if told:
        return _of_numbers(told[-1])
    if messages:
        host = messages[-1].kind == "host"
        return Answer(cause="host_out_of_memory" if host else "own_tensors_fill_card", certain=False)
    return _of_question(text, gpu)


@cache
def _printed() -> tuple[tuple[str, re.Pattern[str]], ...]:
    text = resources.files("brimful.diagnose").joinpath("printed.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["printed"]
    return tuple((row["cause"], re.compile("|".join(row["any"]), re.MULTILINE)) for row in rows)


def _printed_numbers(text: str, match: re.Match[str]) -> list[Sentence]:
    """The line itself: whatever it gives, in its own figures."""
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    line = text[start : end if end > 0 else len(text)].strip()
    shown = [say("causes.it_says", line=line if len(line) <= 400 else line[:400] + " …")]
    if host := re.search(r"CPU Virtual Memory: used = [\d.]+ GB, percent = [\d.]+%", text):
        shown.append(say("causes.it_says", line=host[0]))
    if byte := re.search(r"\b(\d{7,15}) bytes", line):
        shown.append(say("causes.that_is", size=Size(int(byte[1]))))
    return shown


# -- by the numbers of an out-of-memory message ------------------------------------------------------------


def _of_numbers(m: OutOfMemory) -> Answer:
    cause, certain = _cause(m)
    known = (m.tried_bytes, m.total_bytes, m.allocated_bytes, m.reserved_bytes)
    evidence: tuple[Sentence, ...] = ()
    if m.tried_bytes and m.total_bytes and m.allocated_bytes is not None and m.reserved_bytes is not None:
        tried, total, allocated, reserved = (Size(each or 0) for each in known)
        evidence = (say("causes.numbers", tried=tried, total=total, allocated=allocated, reserved=reserved),)
    also = ("other_process", "fragmentation") if cause == "free_but_refused" else ()
    return Answer(cause=cause, certain=certain, evidence=evidence, also=also)


def _cause(m: OutOfMemory) -> tuple[str, bool]:  # noqa: PLR0911 - one for each cause, the surest first
    """The cause and whether the numbers prove it."""
    tried, total, free = m.tried_bytes, m.total_bytes, m.free_bytes
    if m.absurd or (tried and total and tried > 20 * total):
        return "absurd_request", True
    if m.allowed_bytes is not None:
        return "memory_fraction_limit", True
    if total and max(m.reserved_bytes or 0, m.allocated_bytes or 0) > 1.02 * total:
        return "driver_spill", True
    if tried and total and tried > total:
        return "request_larger_than_card", True
    if tried is None or total is None or free is None:
        return "own_tensors_fill_card", False
    if free >= tried:
        return "free_but_refused", False
    allocated, cached = m.allocated_bytes or 0, m.cached_bytes or 0
    outside = total - free - (m.process_bytes or m.reserved_bytes or total)
    alone_fits = allocated + tried <= 0.95 * total
    if alone_fits and outside > max(1.5 * GIB, 0.2 * total):
        return "other_process", outside > 0.4 * total
    if alone_fits and cached >= tried and cached >= 0.05 * (allocated + cached):
        return "fragmentation", cached > 1.5 * tried
    if alone_fits and outside > max(0.5 * GIB, tried):
        return "context_overhead", False
    return "own_tensors_fill_card", not alone_fits


# -- a plain question --------------------------------------------------------------------------------------


# What holds whoever asks: by definition, by arithmetic, or in every published table.
_PROVEN = {
    *("same_size_dtypes", "wrong_mfu_peak", "states_exceed_card", "memory_is_not_compute", "util_is_not_mfu"),
    "compile_saves_memory",
}


def _of_question(text: str, gpu: Gpu | None) -> Answer | None:
    plain = folded(text)
    if len(plain) > _MAX_QUESTION or not re.search(r"[a-z]{3}", plain):
        return None
    shares = percents(plain)
    card = gpu or card_in(plain)
    for cause, is_asked in _questions(plain, [low for low, _ in shares], card):
        if is_asked:
            return Answer(
                cause=cause, certain=cause in _PROVEN, evidence=tuple(_worked_out(cause, plain, card))
            )
    return None


def _questions(text: str, shares: list[float], card: Gpu | None) -> list[tuple[str, bool]]:
    """Cause -> whether the question is about it, the more special above."""

    def any_of(*ideas: str) -> bool:
        return any(says(idea, text) for idea in ideas)

    runs_out = says("runs_out", text)
    cpu = says("cpu", text)
    steps = says("each_step", text)
    several = says("several", text)
    reserved = any_of("cache") and bool(re.search(r"alloc|asign|alou|belegt|zugewies|alloz|allou", text))
    shown = "nvidia-smi" in text and len(sizes(text)) > 1
    full = max(shares, default=0) > 0.9
    return [
        ("wrong_mfu_peak", says("mfu", text) and any(share > 1 for share in shares)),
        ("framework_preallocation", any_of("jax") and any_of("memory", "card")),
        ("cached_memory", reserved or shown or (any_of("cache") and any_of("memory") and not runs_out)),
        ("states_exceed_card", _states_exceed(text, card)),
        ("optimizer_state_second_step", says("first_step", text) and (runs_out or any_of("memory"))),
        ("memory_leak", any_of("memory") and steps and not any_of("mfu", "util", "batch", "context")),
        ("same_size_dtypes", says("fp16", text) and says("bf16", text)),
        ("compile_saves_memory", says("compile", text) and any_of("memory")),
        ("communication_bound", several and any_of("speed", "util", "compute", "low")),
        ("memory_is_not_compute", any_of("memory") and (any_of("mfu", "busy", "compute") or "util" in text)),
        ("input_starved", cpu and (any_of("util", "card", "busy", "low") or bool(shares))),
        ("util_is_not_mfu", (any_of("util") or bool(shares)) and (any_of("slower", "busy", "mfu") or full)),
        ("wrong_mfu_peak", says("mfu", text)),
        ("input_starved", bool(shares) and min(shares, default=1) < 0.6 and any_of("card", "util")),
        ("own_tensors_fill_card", runs_out and any_of("memory", "card")),
    ]  # fmt: skip


def _states_exceed(text: str, card: Gpu | None) -> bool:
    count, told = parameters(text), sizes(text)
    room = told[-1][0] if told else card.memory_bytes if card else 0
    trains = re.search(r"train|entra[iî]n|entren|fine-?tun|feintun|afinar", text)
    return bool(count and room and trains and 16 * count > room and not says("lora", text))


def card_in(text: str) -> Gpu | None:
    """The first card a text names."""
    for name in re.findall(r"\b(?:rtx ?|gtx ?)?(?:[ahvtlb]\d{2,4}|[2-5]0[5-9]0)(?: ?(?:ti|super))*\b", text):
        for full in (name, f"{name} sxm 80gb", f"{name} sxm"):
            try:
                return find_gpu(full)
            except BrimfulError:
                continue
    return None


def _worked_out(cause: str, text: str, card: Gpu | None) -> list[Sentence]:
    """The question's own figures, put to use."""
    shares = [low for low, _ in percents(text)]
    told = (
        [say("causes.you_say", shares=", ".join(f"{100 * share:g} %" for share in shares))] if shares else []
    )
    if sizes(text):
        told = [say("causes.you_say", shares=", ".join(re.findall(r"\d[\d.,]* ?[kmgt]i?[bo]\b", text)))]
    about_mfu = cause in ("wrong_mfu_peak", "memory_is_not_compute", "util_is_not_mfu") and says("mfu", text)
    if about_mfu and shares and card is not None:
        peaks = card.dense_flops_per_s
        own = peaks.get("bf16") or peaks.get("fp16") or peaks["fp32"]
        printed = _mfu_share(text, shares)
        rate = printed * A100_FLOPS_PER_S
        told.append(
            say(
                "causes.mfu_of_a100",
                printed=Percent(printed),
                tflops=figures(rate / 1e12),
                own=Percent(rate / own),
                gpu=card.title,
                peak=figures(own / 1e12),
            )
        )
    elif about_mfu:
        told.append(say("causes.mfu_needs_card"))
    if cause == "states_exceed_card" and (count := parameters(text)):
        told.append(say("causes.states_need", count=figures(count / 1e9), size=Size(16 * count)))
    return told


def _mfu_share(text: str, shares: list[float]) -> float:
    """The share that stands nearest to the word MFU."""
    at = text.index("mfu") if "mfu" in text else 0
    spots = [
        match.start() for match in re.finditer(r"\d+(?:[.,]\d+)?\s?(?:-|–)?\s?\d*(?:[.,]\d+)?\s?%", text)
    ]
    nearest = min(range(len(shares)), key=lambda n: abs(spots[n] - at) if n < len(spots) else 10**6)
    return shares[nearest]
