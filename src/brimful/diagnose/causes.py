"""One answer to a message, a log or a question: the cause, how certain it is, and what to change.

The message that ended a run is a fact: it did fail. Its own numbers decide between the causes; if they do
not, the answer says that it is not certain: words alone never make it so. Every answer ends with a fix.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from brimful.diagnose.claims.reading import folded
from brimful.diagnose.claims.words import parameters, percents, says, says_all, sizes
from brimful.diagnose.oom import OutOfMemory, bytes_of, read_elsewhere
from brimful.errors import BrimfulError
from brimful.fit.count import A100_FLOPS_PER_S
from brimful.language import Language, Percent, Sentence, Size, figures, say
from brimful.specs.gpu import Gpu, find_gpu
from brimful.units import GIB

_MAX_QUESTION = 1000  # characters: more is a log
_CONTEXT_BYTES = round(0.3 * GIB)  # the least CUDA itself takes of a card
_SMALL_BYTES = GIB // 2  # a program that needs less runs on any free card

_LINES_SHOWN = 3  # of a log besides the one that was recognised


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    cause: str
    certain: bool
    evidence: tuple[Sentence, ...] = ()  # from the text's own numbers
    also: tuple[str, ...] = ()  # other possible causes, if it is not certain

    @property
    def says(self) -> tuple[Sentence, ...]:
        head = Sentence(f"causes.is_{self.cause}", {})
        sure = () if self.certain else (say("causes.not_certain"),)
        others = tuple(Sentence(f"causes.is_{one}", {}) for one in self.also)
        return (head, *self.evidence, *sure, *others)

    @property
    def fixes(self) -> tuple[str, ...]:
        return tuple(_data()["fixes"][self.cause])

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
    """For a whole log: what ended the run comes before what it only warned about."""
    told = [message for message in messages if message.tells]
    flat = re.sub(r"[ \t]+", " ", text)
    if told and (told[-1].total_bytes is not None or told[-1].absurd):
        return _of_numbers(told[-1], flat)
    for cause, pattern in _printed():
        if match := pattern.search(flat):
            evidence = tuple(_printed_numbers(flat, match))
            if cause == "own_tensors_fill_card":
                return _of_program(flat, evidence)
            return Answer(cause=cause, certain=False, evidence=evidence)
    if told:
        return _of_numbers(told[-1], flat)
    if messages:
        host = messages[-1].kind == "host"
        return Answer(cause="host_out_of_memory" if host else "own_tensors_fill_card", certain=False)
    return _of_question(text, gpu)


@cache
def _data() -> dict[str, Any]:
    text = resources.files("brimful.diagnose").joinpath("causes.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _printed() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((row["cause"], re.compile("|".join(row["any"]), re.MULTILINE)) for row in _data()["printed"])


_NUMBERED = re.compile(r"\d ?(?:[KMGT]i?B?|bytes|%)(?:\W|$)|\bsm_\d|\bshape ?[\[(]\d")


def _printed_numbers(text: str, match: re.Match[str]) -> list[Sentence]:
    """The line itself, and the next ones with a size: whatever the program reports, in its own figures."""
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    line = text[start : end if end > 0 else len(text)].strip()
    lines = (text[max(0, start - 600) : start] + (text[end : end + 800] if end > 0 else "")).split("\n")
    others = [each.strip() for each in lines if _NUMBERED.search(each)]
    told = (each if len(each) <= 400 else f"{each[:400]} …" for each in (line, *others[:_LINES_SHOWN]))
    shown = [say("causes.it_says", line=each) for each in told]
    if byte := re.search(r"\b(\d[\d,]{6,18}) ?(?:bytes|B\b)|size (?:was )?(\d{7,15})", line):
        shown.append(say("causes.that_is", size=Size(int((byte[1] or byte[2]).replace(",", "")))))
    return shown


_PROGRAM_NEEDS = re.compile(r"total allocation: ([\d.]+) ?([KMG]i?B)")


def _of_program(text: str, evidence: tuple[Sentence, ...]) -> Answer:
    """A program other than PyTorch ran out: its own numbers first.

    If it needs little, it failed because the card was already full.
    """
    numbers = read_elsewhere(text)
    if (
        numbers.tried_bytes is not None
        and (told := say("causes.that_is", size=Size(numbers.tried_bytes))) not in evidence
    ):
        evidence = (*evidence, told)
    cause, certain = _cause(numbers)
    if cause == "driver_spill":  # only PyTorch on Windows spills; here it is what the program would need
        cause = "own_tensors_fill_card"
    if cause == "own_tensors_fill_card" and not certain:
        needs = _PROGRAM_NEEDS.search(text)
        small = needs is not None and bytes_of(needs[1], needs[2]) < _SMALL_BYTES
        both = ("other_process", "own_tensors_fill_card") if small else (cause, "other_process")
        return Answer(
            cause=both[0], certain=False, evidence=evidence, also=(both[1], "framework_preallocation")
        )
    return Answer(cause=cause, certain=certain, evidence=evidence)


# -- by the numbers of an out-of-memory message ------------------------------------------------------------


def _of_numbers(m: OutOfMemory, text: str) -> Answer:
    cause, certain = _cause(m)
    names = ("tried", "total", "free", "allocated", "reserved")
    known = {name: getattr(m, f"{name}_bytes") for name in names}
    evidence: tuple[Sentence, ...] = ()
    if None not in known.values():
        evidence = (say("causes.numbers", **{name: Size(value) for name, value in known.items()}),)
    elif at := re.search(r"[Tt]ried to allocate[^\n]{0,200}", text):
        evidence = (say("causes.it_says", line=at[0]),)
    also = ("other_process", "fragmentation") if cause == "free_but_refused" else ()
    return Answer(cause=cause, certain=certain, evidence=evidence, also=also)


def _cause(m: OutOfMemory) -> tuple[str, bool]:  # noqa: PLR0911 - one for each cause, the surest first
    """The cause and whether the numbers prove it: whose memory would have been enough?"""
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
    if allocated + tried > total - _CONTEXT_BYTES:
        return "own_tensors_fill_card", True  # even alone on the card, with nothing cached
    if outside > max(tried - free, 0.2 * total, cached):
        return "other_process", m.process_bytes is not None  # otherwise some of it may be this process itself
    if cached + 0.01 * tried >= tried and cached >= 0.05 * (allocated + cached):
        return "fragmentation", cached > 1.5 * tried
    if m.process_bytes is None and allocated < 0.8 * total and outside > max(0.5 * GIB, tried - free):
        return "context_overhead", False
    return "own_tensors_fill_card", False


# -- a plain question --------------------------------------------------------------------------------------


def _of_question(text: str, gpu: Gpu | None) -> Answer | None:
    plain = folded(text)
    if len(plain) > _MAX_QUESTION or not re.search(r"[a-z]{3}", plain):
        return None
    shares = [low for low, _ in percents(plain)]
    card = gpu or card_in(plain)
    for cause in _asked(plain, shares, card):
        return Answer(cause=cause, certain=False, evidence=tuple(_worked_out(cause, plain, card)))
    return None


def _asked(text: str, shares: list[float], card: Gpu | None) -> Iterator[str]:
    if _states_exceed(text, card):
        yield "states_exceed_card"
    if sizes(text):
        text += " vram"  # gigabytes are of memory
    is_told = {
        "above": any(share > 1 for share in shares),
        "full": any(share > 0.9 for share in shares),
        "low": any(share < 0.6 for share in shares),
        "any": bool(shares),
    }
    for row in _data()["asked"]:
        share = row.get("share")
        if (share is None or is_told[share]) and says_all(row["every"], text, none=row.get("none", "")):
            yield row["cause"]


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
    """Conclusions from the question's own figures."""
    shares = [low for low, _ in percents(text)]
    figures_told = [f"{100 * share:g} %" for share in shares] + re.findall(
        r"\d[\d.,]*[ -]?[kmgt]i?[bo]\b", text
    )
    told = [say("causes.you_say", shares=", ".join(figures_told))] if figures_told else []
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
        told.append(
            say(
                "causes.states_need",
                count=figures(count / 1e9),
                gb=figures(16 * count / 1e9),
                size=Size(16 * count),
            )
        )
    return told


def _mfu_share(text: str, shares: list[float]) -> float:
    """The share closest to the word MFU."""
    at = text.index("mfu") if "mfu" in text else 0
    spots = [
        match.start() for match in re.finditer(r"\d+(?:[.,]\d+)?\s?(?:-|–)?\s?\d*(?:[.,]\d+)?\s?%", text)
    ]
    nearest = min(range(len(shares)), key=lambda n: abs(spots[n] - at) if n < len(spots) else 10**6)
    return shares[nearest]
