"""One answer to a message, a log or a question: the cause, how certain it is, and what to change.

The message that ended a run is a fact: it did fail. Its own numbers decide between the causes; if they do
not, the answer says that it is not certain: words alone never make it so. Every answer ends with a fix.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any

from brimful.diagnose.arithmetic import Change, batch_change, part_of, strangers_on_first
from brimful.diagnose.claims.reading import folded
from brimful.diagnose.claims.words import bytes_each, parameters, percents, says, sizes
from brimful.diagnose.oom import OutOfMemory, bytes_of, read_elsewhere
from brimful.diagnose.tables import find_processes
from brimful.errors import BrimfulError
from brimful.fit.count import A100_FLOPS_PER_S
from brimful.language import Language, Percent, Sentence, Size, figures, say
from brimful.specs.gpu import Gpu, find_gpu
from brimful.units import GIB

_MAX_QUESTION = 2000  # characters: more is a log
_CONTEXT_BYTES = round(0.3 * GIB)  # the least CUDA itself takes of a card
_SLIVER_FRAC = 0.02  # of a card: less is full, whatever the request; the driver keeps some to itself
_STARVED_FRAC = 0.3  # of a step spent waiting for its data: more workers pay
_SMALL_BYTES = GIB // 2  # a program that needs less runs on any free card

_CARDS_GB = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 256, 288)
_MOMENT_LENGTH = 4000  # characters of the end: a traceback and what its reader says of it
_LINES_SHOWN = 3  # of a log besides the one that was recognised


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    cause: str
    certain: bool
    evidence: tuple[Sentence, ...] = ()  # from the text's own numbers
    also: tuple[str, ...] = ()  # other possible causes, if it is not certain
    quote: str = ""  # the program's own words that decided
    first: tuple[str, ...] = ()  # what to change first, by when it happened

    @property
    def says(self) -> tuple[Sentence, ...]:
        head = Sentence(f"causes.is_{self.cause}", {})
        sure = () if self.certain else (say("causes.not_certain"),)
        others = (say("causes.also_possible", cause=Sentence(f"causes.is_{one}", {})) for one in self.also)
        return (head, *self.evidence, *sure, *others)

    @property
    def fixes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.first, *_data()["fixes"][self.cause])))

    @property
    def changes(self) -> tuple[Sentence, ...]:
        return tuple(Sentence(f"causes.fix_{fix}", {}) for fix in self.fixes)

    def as_dict(self, spoken: Language) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "certain": self.certain,
            "also": list(self.also),
            "fixes": list(self.fixes),
            "quote": self.quote,
            "says": [spoken.text(one) for one in self.says],
            "says_codes": [one.as_dict() for one in self.says],
            "change": [spoken.text(one) for one in self.changes],
        }


def find_answer(text: str, messages: list[OutOfMemory], gpu: Gpu | None) -> Answer | None:
    """For a whole log: what ended the run comes before what it only warned about."""
    found = _find(text, messages, gpu)
    if found is None or found.cause != "own_tensors_fill_card":
        return found
    return replace(_within(found, text), first=_by_moment(text))


def _within(found: Answer, text: str) -> Answer:
    """Memory ran out while something special was done, which is the cause then; its words do not prove it."""
    near = text[-_MOMENT_LENGTH:].casefold()
    for row in _data()["within"]:
        if all(re.search(sign, near) for sign in row["every"]):
            return replace(found, cause=row["cause"], certain=False, also=(found.cause,))
    return found


def _find(text: str, messages: list[OutOfMemory], gpu: Gpu | None) -> Answer | None:
    told = [message for message in messages if message.tells]
    flat = re.sub(r"[ \t]+", " ", text)
    if told and (told[-1].total_bytes is not None or told[-1].absurd):
        return _of_numbers(told[-1], flat)
    if (printed := _of_printed(text, flat, gpu)) is not None:
        return printed
    if told:
        return _of_numbers(told[-1], flat)
    if messages:
        return _of_bare(messages[-1], text, gpu)
    if (strangers := strangers_on_first(find_processes(text.split("\n")))) is not None:
        return Answer(cause="ranks_on_first_gpu", certain=False, evidence=(strangers,))
    return _of_data_time(flat) or _of_taken(text, flat) or _of_question(text, gpu)


def _of_printed(text: str, flat: str, gpu: Gpu | None) -> Answer | None:
    for cause, signs in _printed():
        found = [match for part, sign in signs if part in flat and (match := _compiled(sign).search(flat))]
        if not found:
            continue
        match = min(found, key=re.Match.start)
        evidence = tuple(_printed_numbers(flat, match))
        quote = _line(flat, match)
        if cause in ("own_tensors_fill_card", "no_room_for_kv_cache") and _above_card(text, gpu):
            return Answer(cause="request_larger_than_card", certain=False, evidence=evidence, quote=quote)
        if cause == "own_tensors_fill_card":
            return _of_words_about_memory(text, gpu) or _of_program(flat, evidence)
        return Answer(cause=cause, certain=False, evidence=evidence, quote=quote)
    return None


def _above_card(text: str, gpu: Gpu | None) -> bool:
    """One request is more than the whole card that the text names; a program's own total is for `_cause`."""
    numbers = read_elsewhere(text)
    if numbers.tried_bytes is None or numbers.total_bytes is not None:
        return False
    card = gpu or card_in(folded(text))
    return card is not None and numbers.tried_bytes > card.memory_bytes


def _of_bare(message: OutOfMemory, text: str, gpu: Gpu | None) -> Answer:
    """Memory ran out, and the message says no more; the words beside it may."""
    if message.kind == "host":
        return Answer(cause="host_out_of_memory", certain=False)
    asked = _of_question(text, gpu)
    if asked is not None and asked.cause in ("own_tensors_fill_card", *_data()["says_when"]):
        return asked
    return Answer(cause="own_tensors_fill_card", certain=False)


# The seconds of a step and of waiting for its data, as torchvision, mmcv and detectron2 print them.
_STEP_TIMES = re.compile(
    r"^.{0,200}?\b(?:batch_?)?time:? +(\d+(?:\.\d+)?)\b"
    r".{0,200}?\bdata(?:_?time)?:? +(\d+(?:\.\d+)?)\b.{0,200}",
    re.IGNORECASE | re.MULTILINE,
)


def _of_data_time(text: str) -> Answer | None:
    """Log lines that time the data: most of the step is waiting, by their own sums."""
    times = list(_STEP_TIMES.finditer(text))
    step_s, data_s = (sum(float(each[n]) for each in times) for n in (1, 2))
    if not times or not data_s <= 1.02 * step_s or data_s < _STARVED_FRAC * step_s:
        return None
    longest = max(times, key=lambda each: float(each[2]))[0].strip()
    evidence = (
        say("causes.data_time", frac=Percent(data_s / step_s)),
        say("causes.it_says", line=" ".join(longest[:400].split())),
    )
    return Answer(cause="input_starved", certain=False, evidence=evidence, quote=longest)


# A server's log says what it took for its cache at start.
_TAKEN = re.compile(
    r"^.*(?:alloc\w{0,20} .{0,60}\bk/?v[- _]?cache|tokens in paged kv cache"
    r"|kv cache (?:is allocated|size:)).*$",
    re.IGNORECASE | re.MULTILINE,
)


def _of_taken(text: str, flat: str) -> Answer | None:
    """Asked where the memory is: a log without an error says that the program took it by design."""
    match = _TAKEN.search(flat)
    plain = folded(_prose(text)) if match else ""
    asks = any(_says(idea, plain) for idea in ("memory", "consumes")) and not _says("runs_out", plain)
    if match is None or not asks or "?" not in plain:
        return None
    evidence = tuple(_printed_numbers(flat, match))
    return Answer(cause="framework_preallocation", certain=False, evidence=evidence, quote=_line(flat, match))


def _of_words_about_memory(text: str, gpu: Gpu | None) -> Answer | None:
    """A program said no more than that memory ran out; its user may say when, or since when."""
    if read_elsewhere(text).tried_bytes is not None:
        return None
    asked = _of_question(text, gpu)
    return asked if asked and asked.cause in _data()["says_when"] else None


def _by_moment(text: str) -> tuple[str, ...]:
    near = text[-_MOMENT_LENGTH:].casefold()
    return tuple(
        row["fix"] for row in _data()["moments"] if any(re.search(sign, near) for sign in row["any"])
    )


@cache
def _data() -> dict[str, Any]:
    text = resources.files("brimful.diagnose").joinpath("causes.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _printed() -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Each sign, after a part of it that is quick to look for: a log has few of them."""
    return tuple(
        (row["cause"], tuple((plain_part(sign), sign) for sign in row["any"])) for row in _data()["printed"]
    )


@cache
def _compiled(sign: str) -> re.Pattern[str]:
    return re.compile(sign, re.MULTILINE)


_PIECES = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|[\s\S]")


def plain_part(sign: str) -> str:
    """The longest text that every match of a regular expression contains; it may be empty."""
    runs, run, depth = [""], "", 0
    pieces = [*_PIECES.findall(sign), ""]
    for piece, after in pairwise(pieces):
        if (piece == "|" and not depth) or sign.startswith("(?i)"):
            return ""
        letter = piece[-1] if re.fullmatch(r"[^\\\[\](){}|.^$*+?]|\\[^\w\s]", piece) else ""
        if depth or not letter or after.startswith(("?", "*", "{")):
            runs.append(run)
            run = ""
        else:
            run += letter
        depth += (piece == "(") - (piece == ")")
    return max((*runs, run), key=len)


_NUMBERED = re.compile(r"\d ?(?:[KMGT]i?B?|bytes|%)(?:\W|$)|\bsm_\d|\bshape ?[\[(]\d")


def _printed_numbers(text: str, match: re.Match[str]) -> list[Sentence]:
    """The line itself, and the next ones with a size: whatever the program reports, in its own figures."""
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    line = _line(text, match)
    lines = (text[max(0, start - 600) : start] + (text[end : end + 800] if end > 0 else "")).split("\n")
    sized = [each.strip() for each in lines if _NUMBERED.search(each)]
    others = [
        *sized,
        *(each.strip() for each in lines if re.search(r"\d", each) and each.strip() not in sized),
    ]
    told = (each if len(each) <= 400 else f"{each[:400]} …" for each in (line, *others[:_LINES_SHOWN]))
    shown = [say("causes.it_says", line=" ".join(each.split())) for each in told]
    if byte := re.search(r"\b(\d[\d,]{6,18}) ?(?:bytes|B\b)|(?:size|buffer)\D{1,8}(\d{7,15})\b", line):
        shown.append(say("causes.that_is", size=Size(int((byte[1] or byte[2]).replace(",", "")))))
    if (part := part_of(line)) is not None:
        shown.append(part)
    return shown


def _line(text: str, match: re.Match[str]) -> str:
    start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    return text[start : end if end > 0 else len(text)].strip()


_PROGRAM_NEEDS = re.compile(r"total allocation: ([\d.]+) ?([KMG]i?B)")


def _of_program(text: str, evidence: tuple[Sentence, ...]) -> Answer:
    """A program other than PyTorch ran out: its own numbers first.

    If it needs little, it failed because the card was already full.
    """
    numbers = read_elsewhere(text)
    if numbers.tried_bytes is not None and numbers.total_bytes is not None:
        sizes_told = {"tried": Size(numbers.tried_bytes), "total": Size(numbers.total_bytes)}
        evidence = (*evidence, say("causes.asked_of_total", **sizes_told))
    elif (
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
    told = list(re.finditer(r"[Tt]ried to allocate[^\n]{0,600}", text))
    if None not in known.values():
        evidence = (say("causes.numbers", **{name: Size(value) for name, value in known.items()}),)
    elif told:
        evidence = (say("causes.it_says", line=told[-1][0][:200]),)
    also: tuple[str, ...] = ("other_process", "fragmentation") if cause == "free_but_refused" else ()
    if cause == "other_process" and m.free_bytes is None:
        also = ("free_but_refused",)
    if cause == "own_tensors_fill_card" and not certain and None not in known.values():
        # Too little is cached to matter for long, but this request would have been served from the pieces.
        served = (m.free_bytes or 0) + (m.cached_bytes or 0) >= (m.tried_bytes or 0)
        also = ("fragmentation",) if served else ()
    quote = told[-1][0] if told else ""
    return Answer(cause=cause, certain=certain, evidence=evidence, also=also, quote=quote)


def _cause(m: OutOfMemory) -> tuple[str, bool]:  # noqa: PLR0911 - one for each cause, the surest first
    """The cause and whether the numbers prove it: whose memory would have been enough?"""
    tried, total, free = m.tried_bytes, m.total_bytes, m.free_bytes
    if m.absurd or (tried and total and tried > 20 * total):
        return "absurd_request", True
    if m.allowed_bytes is not None and (total is None or m.allowed_bytes < 0.98 * total):
        return "memory_fraction_limit", True
    if total and max(m.reserved_bytes or 0, m.allocated_bytes or 0) > 1.02 * total:
        return "driver_spill", True
    if tried and total and tried > total:
        return "request_larger_than_card", True
    held = max(m.reserved_bytes or 0, m.allocated_bytes or 0)
    if tried and total and free is None and m.allocated_bytes is not None and held + tried < 0.8 * total:
        return "other_process", False  # or refused: what is free is not told
    if tried is None or total is None or free is None:
        return "own_tensors_fill_card", False
    if free >= tried and free > _SLIVER_FRAC * total:
        return "free_but_refused", False
    allocated, cached = m.allocated_bytes or 0, m.cached_bytes or 0
    outside = total - free - (m.process_bytes or m.reserved_bytes or total)
    if allocated + tried > total - _CONTEXT_BYTES:
        return "own_tensors_fill_card", True  # even alone on the card, with nothing cached
    if outside > max(tried - free, 0.2 * total, cached):
        return "other_process", m.process_bytes is not None  # otherwise some of it may be this process itself
    if cached + free + 0.01 * tried >= tried and cached >= 0.05 * (allocated + cached):
        return "fragmentation", cached > 1.5 * tried
    if m.process_bytes is None and allocated < 0.8 * total and outside > max(0.5 * GIB, tried - free):
        return "context_overhead", False
    return "own_tensors_fill_card", False


# -- a plain question --------------------------------------------------------------------------------------


def _of_question(text: str, gpu: Gpu | None) -> Answer | None:
    said = _prose(text)
    plain = folded(said) if len(said) <= _MAX_QUESTION else ""
    if not re.search(r"[a-z]{3}", plain):
        return None
    shares = [low for low, _ in percents(plain)]
    card = gpu or card_in(plain)
    for cause in _asked(plain, shares, card):
        return Answer(
            cause=cause,
            certain=False,
            evidence=tuple(worked_out(cause, folded(text), card)),
            quote=text.strip(),
        )
    return None


_A_WORD = re.compile(r"""(?<!\S)[("'“«¿¡]*[^\W\d_]+(?:[-'’][^\W\d_]+)*[).,;:!?…"'”»]*(?!\S)""")
_RECORD = re.compile(  # of a log: its level first, or a place in a source file
    r"\s*\W?(?:INFO|WARN|ERROR|DEBUG|CRITICAL|FATAL|time=)\b|.*\b\w+\.(?:py|cc?|cpp|cu|go|mm|rs):\d"
)


def _prose(text: str) -> str:
    """The lines that are words: a question beside a log is not answered by the log's words."""
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > 1:
        lines = [line for line in lines if _is_prose(line)]
    return "\n".join(line for line in lines if "?" in line or not _RECORD.match(line))


def _is_prose(line: str) -> bool:
    parts = len(line.split())
    return parts >= 4 and len(_A_WORD.findall(line)) >= 0.6 * parts


def _asked(text: str, shares: list[float], card: Gpu | None) -> Iterator[str]:
    if _states_exceed(text, card):
        yield "states_exceed_card"
    if (change := _change(text)) is not None and change.less_than_in_proportion:
        yield "fixed_part_stays"
    if _fits_all_but_not_one(text):
        yield "memory_not_pooled"
    if 0 < _room(text, card) < _weights_bytes(text):
        yield "quantized_model_does_not_fit" if (bytes_each(text) or 2) <= 1 else "own_tensors_fill_card"
    if sizes(text):
        text += " vram"  # gigabytes are of memory
    is_told = {
        "above": any(share > 1 for share in shares),
        "full": any(share > 0.9 for share in shares),
        "low": any(share < 0.6 for share in shares),
        "usual": any(0.35 <= share <= 0.6 for share in shares),
        "any": bool(shares),
    }
    for row in _data()["asked"]:
        share = row.get("share")
        if (
            (share is None or is_told[share])
            and _all(row["every"], text)
            and not any(_says(idea, text) for idea in row.get("none", "").split())
        ):
            yield row["cause"]


def _change(text: str) -> Change | None:
    if not says("batch", text) or says("runs_out", text):
        return None
    return batch_change(text, halved=says("half", text))


def _fits_all_but_not_one(text: str) -> bool:
    """The question adds up several cards: one size is a multiple of another, the need is between."""
    told = sorted({size for size, _ in sizes(text)})
    if not _says("many_gpus", text) or not _says("in_all", text):
        return False
    needs = [*told, (parameters(text) or 0) * (bytes_each(text) or 0)]
    return any(
        abs(whole / one - round(whole / one)) < 0.01 and any(one < need < whole for need in needs)
        for one in told
        for whole in told
        if 1.9 < whole / one < 65
    )


def _all(every: str, text: str) -> bool:
    """Every idea of a list ('a|b' is either)."""
    return all(any(_says(one, text) for one in each.split("|")) for each in every.split())


def _says(idea: str, text: str) -> bool:
    own = _data()["ideas"].get(idea)
    return says(idea, text) if own is None else any(re.search(one, text) for one in own)


def _states_exceed(text: str, card: Gpu | None) -> bool:
    count, room = parameters(text), _room(text, card)
    trains = re.search(r"train|entra[iî]n|entren|tun(?:e|ing)|afinar|ajust|\badamw?\b", text)
    adapters = says("lora", re.sub(r"\b(?:without|no|not|sans|sin|ohne) (?:\w+ )?q?lora", "", text))
    return bool(count and room and trains and 16 * count > room and not adapters)


def _room(text: str, card: Gpu | None) -> float:
    """Bytes of one card, as the question says: 640 GB in all are eight cards of 80."""
    told = [size for size, _ in sizes(text)]
    cards = [size for size in told if size / 1e9 in _CARDS_GB or size / GIB in _CARDS_GB]
    return min(cards) if cards else told[-1] if told else card.memory_bytes if card else 0


def _weights_bytes(text: str) -> float:
    """Of the named format, if the question names both; 0 if not. Several cards may share them."""
    if _says("many_gpus", text):
        return 0
    return (parameters(text) or 0) * (bytes_each(text) or 0)


def card_in(text: str) -> Gpu | None:
    """The first card a text names."""
    for name in re.findall(r"\b(?:rtx ?|gtx ?)?(?:[ahvtlb]\d{2,4}|[2-5]0[5-9]0)(?: ?(?:ti|super))*\b", text):
        for full in (name, f"{name} sxm 80gb", f"{name} sxm"):
            try:
                return find_gpu(full)
            except BrimfulError:
                continue
    return None


_TOLD = re.compile(r"(?<![\w.])(\d[\d.,]*)[ -]?([kmgt])(i?[bo])?\b")


def worked_out(cause: str, text: str, card: Gpu | None) -> list[Sentence]:
    """Conclusions from the question's own figures."""
    shares = [low for low, _ in percents(text)]
    figures_told = [f"{100 * share:g} %" for share in shares]
    figures_told += [
        f"{number} {unit.upper()}{rest or 'b'}".replace("b", "B")
        for number, unit, rest in _TOLD.findall(text)
        if rest or unit == "g"  # "0.00m" are minutes
    ]
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
    if cause == "fixed_part_stays" and (change := _change(text)) is not None:
        told.append(say("causes.fixed_part", size=Size(round(change.fixed_bytes))))
    not_trained = cause in ("quantized_model_does_not_fit", "own_tensors_fill_card")
    if not_trained and (weights := _weights_bytes(text)):
        told.append(
            say(
                "causes.weights_need",
                count=figures((parameters(text) or 0) / 1e9),
                each=figures(bytes_each(text) or 0),
                gb=figures(weights / 1e9),
                size=Size(round(weights)),
            )
        )
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
