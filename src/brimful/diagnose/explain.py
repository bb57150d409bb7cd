"""Text in, explanation out: recognise what it is, and say in sentences what follows from its numbers.

Nothing is said that the numbers do not support. What would be needed to say more is listed as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from brimful.configs.reading import Reading
from brimful.diagnose.causes import Answer, find_answer, worked_out
from brimful.diagnose.claims.reading import folded
from brimful.diagnose.oom import OutOfMemory, find_out_of_memory
from brimful.diagnose.others import Elsewhere, elsewhere_needs, elsewhere_says, find_elsewhere
from brimful.diagnose.rates import log_needs, log_says
from brimful.diagnose.tables import (
    DTYPE_BYTES,
    Buffer,
    MemorySummary,
    SmiGpu,
    SmiTable,
    find_buffers,
    find_smi,
    find_summary,
)
from brimful.diagnose.tensors import LOGITS, is_block, moment, of_shape, of_size
from brimful.errors import NotFound
from brimful.fit.count import A100_FLOPS_PER_S
from brimful.language import Language, Number, Percent, Sentence, Several, Size, say
from brimful.meter.logs import LogLine, find_log_lines
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu, find_gpu
from brimful.units import GIB, MIB

MAX_CHARACTERS = 4_000_000  # of the end: a run dies at the end of its log
_SHOWN = 4  # the most messages, tables or buffers reported
_QUOTED = 400  # characters of a log that has no message
_CLEAR_GIB = 0.2  # a process always holds this much outside PyTorch: the CUDA context


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the user gave in addition to the text."""

    reading: Reading | None = None
    gpu: Gpu | None = None
    estimate: Estimate | None = None  # of reading on gpu, if both are known


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    kind: str
    title: Sentence
    facts: dict[str, Any]
    says: tuple[Sentence, ...]
    missing: tuple[Sentence, ...] = ()

    def as_dict(self, spoken: Language) -> dict[str, Any]:
        def as_dicts(sentences: tuple[Sentence, ...]) -> list[dict[str, Any]]:
            return [
                {"code": finding(each), "text": spoken.text(each), "reason": each.as_dict()}
                for each in sentences
            ]

        return {
            "kind": self.kind,
            "title": spoken.text(self.title),
            "facts": self.facts,
            "says": as_dicts(self.says),
            "missing": as_dicts(self.missing),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What a text reports, before anybody asks."""

    plain: str
    table: SmiTable | None
    elsewhere: list[Elsewhere]
    messages: list[OutOfMemory]
    log_lines: list[LogLine]


@lru_cache(maxsize=1)  # a log is long, and both `explain` and `answer` read it
def _read(text: str) -> _Read:
    plain = clean(text)
    elsewhere, rest = find_elsewhere(plain)
    return _Read(
        plain=plain,
        table=find_smi(plain.split("\n")),
        elsewhere=elsewhere,
        messages=find_out_of_memory(rest),
        log_lines=find_log_lines(plain),
    )


def finding(said: Sentence) -> str:
    """The code that programs match: 'asked' of `diagnose.asked.of_free`, one of its wordings."""
    return said.code.split(".")[1]


def explain(text: str, about: About | None = None) -> tuple[Explanation, ...]:
    """Everything recognised in the text; empty if there is nothing."""
    about = about or About()
    read = _read(text)
    plain, table, elsewhere = read.plain, read.table, read.elsewhere
    lines = plain.split("\n")
    found: list[Explanation] = []
    about = _with_card(about, table)
    messages = read.messages[:_SHOWN]
    if elsewhere and not any(message.tells for message in messages):
        messages = []  # the program on top repeats 'CUDA error: out of memory'
    buffers = find_buffers(plain)
    last = buffers[-1] if buffers else None
    found += [_out_of_memory(message, last, about) for message in messages]
    found += [_elsewhere(message) for message in elsewhere[:_SHOWN]]
    if not messages:
        found += [_buffer(buffer, about) for buffer in buffers[:_SHOWN]]
    if (summary := find_summary(lines)) is not None:
        found.append(_summary(summary))
    if table is not None:
        found.append(_smi(table))
    for line in read.log_lines:
        evidence = (line, about.reading, about.gpu, about.estimate)
        found.append(
            Explanation(
                kind="log_line",
                title=say("diagnose.title_log_line", framework=line.framework),
                facts=asdict(line),
                says=tuple(log_says(*evidence)),
                missing=tuple(log_needs(*evidence)),
            )
        )
    return tuple(found)


def answer(text: str, about: About | None = None) -> Answer | None:
    """The cause of what the text reports or asks, and what to change; None if it does neither."""
    read = _read(text)
    about = _with_card(about or About(), read.table)
    found = find_answer(read.plain, read.messages, about.gpu)
    divided = [each for each in read.log_lines if each.mfu is not None and each.divides == "always"]
    if found is None and divided:
        quote = read.plain.strip()[-_QUOTED:]
        by_a100 = divided[-1].divided_by_flops_per_s == A100_FLOPS_PER_S
        evidence = worked_out("wrong_mfu_peak", folded(quote), about.gpu) if by_a100 else ()
        return Answer(cause="wrong_mfu_peak", certain=False, evidence=tuple(evidence), quote=quote)
    return found


def other_bytes_told(text: str) -> int | None:
    """What other programs held of the card, if an out-of-memory message gives every number for it."""
    for m in reversed(find_out_of_memory(clean(text))):
        if m.total_bytes is not None and m.free_bytes is not None and m.process_bytes is not None:
            return max(0, m.total_bytes - m.free_bytes - m.process_bytes)
    return None


def _with_card(about: About, table: SmiTable | None) -> About:
    """If no card was named, the one in an nvidia-smi table beside the text, if it shows one kind."""
    names = {card.name for card in table.cards} if table is not None else set()
    if about.gpu is not None or len(names) != 1:
        return about
    try:
        return replace(about, gpu=find_gpu(names.pop()))
    except NotFound:  # truncated by nvidia-smi itself, or new to us
        return about


def printable(text: str) -> str:
    """Without colours and control characters."""
    text = re.sub(r"\x1b\[[0-9;?]{0,20}[A-Za-z]", "", text[-MAX_CHARACTERS:])
    return re.sub(r"[^\n\t\x20-\ud7ff\ue000-\U0010ffff]", " ", text.replace("\r", "\n"))


def clean(text: str) -> str:
    """And without the prefixes that ranks, quotes and wrappers put before a line."""
    text = printable(text)
    return re.sub(r"^(?:[ \t]*(?:>|\[rank\d{1,4}\]:))+ ?", "", text, flags=re.MULTILINE)


# -- out of memory -----------------------------------------------------------------------------------------


def _out_of_memory(m: OutOfMemory, buffer: Buffer | None, about: About) -> Explanation:
    which = list(_which(m, buffer, about))
    says = [*_asked(m), *which, *_where(m, which), *_shares(m), *_fragments(m), *_odd_numbers(m)]
    titles = {"host": say("diagnose.title_host")}
    return Explanation(
        kind="out_of_memory",
        title=titles.get(m.kind) or say("diagnose.title_out_of_memory", kind=m.kind),
        facts=m.as_dict(),
        says=tuple(says),
        missing=tuple(_unknown(m, says, about)),
    )


def _elsewhere(m: Elsewhere) -> Explanation:
    return Explanation(
        kind="out_of_memory",
        title=say("diagnose.title_out_of_memory", kind=m.kind),
        facts=asdict(m),
        says=tuple(elsewhere_says(m)),
        missing=tuple(elsewhere_needs(m)),
    )


def _asked(m: OutOfMemory) -> Iterator[Sentence]:
    if m.kind == "host":
        yield say("diagnose.host")
    elif m.tried_bytes is None:
        return
    elif m.total_bytes is not None and m.tried_bytes > m.total_bytes:
        yield say("diagnose.larger_than_card", tried=Size(m.tried_bytes), total=Size(m.total_bytes))
    elif m.free_bytes is not None and m.total_bytes is not None:
        yield say(
            "diagnose.asked.of_free",
            tried=Size(m.tried_bytes),
            free=Size(m.free_bytes),
            total=Size(m.total_bytes),
        )
    else:
        yield say("diagnose.asked.more", tried=Size(m.tried_bytes))


def _which(m: OutOfMemory, buffer: Buffer | None, about: About) -> Iterator[Sentence]:
    """The tensor, by the buffer above the message or else by the config."""
    if buffer is not None and m.tried_bytes is not None:
        for size in (DTYPE_BYTES.get(buffer.dtype or ""), 2, 4):
            if size and abs(buffer.numbers * size - m.tried_bytes) <= 0.0051 * GIB:
                yield from _buffer_says(buffer, size, about)
                return
    if m.tried_bytes is None:
        return
    if is_block(m.tried_bytes):
        yield say("diagnose.block", tried=Size(m.tried_bytes))
    elif about.reading is not None:
        found = of_size(m.tried_bytes, about.reading.model, about.reading.training)
        if len(found) == 1:
            (tensor,) = found
            yield _product(tensor.product, tensor.number_bytes, tensor.bytes, tensor.what)
        elif found:
            kinds = Several(tuple({tensor.what.code: tensor.what for tensor in found}.values()), between="; ")
            yield say("diagnose.tensor_one_of", kinds=kinds)
        else:
            yield say("diagnose.tensor_unknown")


def _product(shape: str, number_bytes: int, total: int, what: Sentence) -> Sentence:
    size = Size(total)
    return say("diagnose.tensor.bytes", shape=shape, number_bytes=number_bytes, size=size, what=what)


def _where(m: OutOfMemory, which: list[Sentence]) -> Iterator[Sentence]:
    if (where := moment(m.trace)) is not None:
        yield say("diagnose.moment.happened", where=where)
    elif any(LOGITS in (said.values.get("what"), _inner(said)) for said in which):
        yield say("diagnose.moment.logits")


def _inner(said: Sentence) -> object:
    """What 'by its shape …' is about."""
    what = said.values.get("what")
    return what.values.get("what") if isinstance(what, Sentence) else None


def _shares(m: OutOfMemory) -> Iterator[Sentence]:
    """Who holds the card: tensors, PyTorch's cache, the rest of this process, other programs."""
    if m.allocated_bytes is not None and m.cached_bytes is not None:
        yield say("diagnose.allocated", allocated=Size(m.allocated_bytes), cached=Size(m.cached_bytes))
    if m.total_bytes is None or m.free_bytes is None or m.reserved_bytes is None:
        return
    used = m.total_bytes - m.free_bytes
    if m.process_bytes and m.reserved_bytes <= m.process_bytes <= used:
        yield say("diagnose.context", own=Size(m.process_bytes - m.reserved_bytes))
        if used - m.process_bytes > _CLEAR_GIB * GIB:
            yield say("diagnose.others", others=Size(used - m.process_bytes))
    elif 0 <= m.reserved_bytes <= used:
        rest = used - m.reserved_bytes
        yield (
            say("diagnose.rest.held", rest=Size(rest))
            if rest > _CLEAR_GIB * GIB
            else say("diagnose.rest.nothing")
        )


def _fragments(m: OutOfMemory) -> Iterator[Sentence]:
    """Fragmentation, by numbers: before it gives up, PyTorch releases all fully free segments."""
    if m.tried_bytes is None or m.cached_bytes is None or m.free_bytes is None:
        return
    if m.allowed_bytes is not None and m.reserved_bytes is not None:
        yield say("diagnose.allowed", allowed=Size(m.allowed_bytes), reserved=Size(m.reserved_bytes))
        return
    have = m.free_bytes + m.cached_bytes
    if m.free_bytes >= m.tried_bytes:
        yield say("diagnose.free_enough")
    elif abs(have - m.tried_bytes) <= _rounding(m.tried_bytes, m.free_bytes, m.cached_bytes):
        yield say("diagnose.fragmentation_unsure", have=Size(have))
    elif have >= m.tried_bytes:
        yield say("diagnose.fragmentation", have=Size(have))
    else:
        yield say("diagnose.no_fragmentation", have=Size(have), short=Size(m.tried_bytes - have))


def _rounding(*sizes: int) -> float:
    """By how much sums of printed sizes may be off: each is rounded to a hundredth of its unit."""
    return sum(0.005 * (GIB if size >= GIB else MIB) for size in sizes)


def _odd_numbers(m: OutOfMemory) -> Iterator[Sentence]:
    if m.total_bytes and (m.reserved_bytes or 0) > 1.02 * m.total_bytes:
        yield say("diagnose.more_than_card", reserved=Size(m.reserved_bytes or 0))
    if m.absurd:
        yield say("diagnose.absurd")
    if m.mixed:
        yield say("diagnose.mixed")
    if m.private_bytes:
        yield say("diagnose.private", private=Size(m.private_bytes))


def _unknown(m: OutOfMemory, says: list[Sentence], about: About) -> Iterator[Sentence]:
    codes = set(map(finding, says))
    if m.kind == "host":
        return
    if m.tried_bytes is None:
        yield say("diagnose.needs_numbers")
    elif m.cached_bytes is None or m.free_bytes is None:
        yield say("diagnose.needs_rest")
    if m.tried_bytes is not None and not codes & {"tensor", "tensor_one_of", "tensor_unknown", "block"}:
        yield say("diagnose.needs_config.tensor")
    if "moment" not in codes and m.tried_bytes is not None:
        yield say("diagnose.needs_trace")
    if about.estimate is None and about.reading is not None:
        yield say("diagnose.needs_gpu.config")


# -- tables ------------------------------------------------------------------------------------------------


def _buffer(buffer: Buffer, about: About) -> Explanation:
    size = DTYPE_BYTES.get(buffer.dtype or "")
    if size is None and about.reading is not None:
        size = 2 if about.reading.training.half else 4
    says = list(_buffer_says(buffer, size, about))
    says += _where(OutOfMemory(kind="CUDA"), says)
    missing = []
    if size is None:
        missing.append(say("diagnose.needs_dtype"))
    if of_shape(buffer)[0] is None and about.reading is None:
        missing.append(say("diagnose.needs_config.shape"))
    return Explanation(
        kind="buffer",
        title=say("diagnose.title_buffer", name=buffer.name),
        facts=buffer.as_dict(),
        says=tuple(says),
        missing=tuple(missing),
    )


def _buffer_says(buffer: Buffer, size: int | None, about: About) -> Iterator[Sentence]:
    reading = about.reading
    what, sure = of_shape(buffer, reading.model, reading.training) if reading else of_shape(buffer)
    if what is None:
        what = say("diagnose.tensor_not_told")
    elif not sure:
        what = say("diagnose.tensor_by_shape", what=what)
    shape = " x ".join(map(str, buffer.shape))
    if size is not None:
        yield _product(shape, size, buffer.numbers * size, what)
    else:
        yield say(
            "diagnose.tensor.either_format",
            shape=shape,
            half=Size(2 * buffer.numbers),
            full=Size(4 * buffer.numbers),
            what=what,
        )


def _summary(s: MemorySummary) -> Explanation:
    peak, current = s.peak_bytes, s.current_bytes
    says = [
        say("diagnose.peaks", allocated=Size(peak["allocated"]), reserved=Size(peak["reserved"])),
        say(
            "diagnose.now",
            allocated=Size(current["allocated"]),
            cached=Size(max(0, current["reserved"] - current["allocated"])),
        ),
    ]
    if s.ooms:
        says.append(say("diagnose.ooms", times=s.ooms))
    if s.retries:
        says.append(say("diagnose.retries", times=s.retries))
    if peak["reserved"] > 1.3 * peak["allocated"]:
        ratio = peak["reserved"] / max(1, peak["allocated"])
        says.append(say("diagnose.fragmented", ratio=Number(ratio, 2)))
    title = say("diagnose.title_summary")
    return Explanation(kind="memory_summary", title=title, facts=asdict(s), says=tuple(says))


def _smi(table: SmiTable) -> Explanation:
    says = [said for card in table.cards[:_SHOWN] for said in _card(card)]
    training = ("python", "train", "torchrun", "vllm", "[not found]")
    others = [p for p in table.processes if not any(word in p.program.lower() for word in training)]
    graphics = sum(each.bytes for each in others)
    if graphics:
        says.append(say("diagnose.programs", size=Size(graphics)))
    says += [say("diagnose.memory_is_not_compute.table"), say("diagnose.util")]
    return Explanation(
        kind="nvidia_smi",
        title=say("diagnose.title_smi"),
        facts=asdict(table),
        says=tuple(says),
        missing=(say("diagnose.needs_log"),),
    )


def _card(card: SmiGpu) -> Iterator[Sentence]:
    yield say(
        "diagnose.card",
        index=card.index,
        name=card.name,
        used=Size(card.used_bytes),
        total=Size(card.total_bytes),
        frac=Percent(card.used_bytes / card.total_bytes),
    )
    if card.busy_frac is not None and card.watts is not None and card.watts_cap:
        yield say(
            "diagnose.card_busy",
            busy=Percent(card.busy_frac),
            watts=Number(card.watts),
            cap=Number(card.watts_cap),
        )
