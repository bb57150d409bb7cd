"""Text in, explanation out: recognise what it is, and say in sentences what follows from its numbers.

Nothing is said that the numbers do not give. What would be needed to say more is listed as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from brimful.configs.reading import Reading
from brimful.diagnose.oom import OutOfMemory, find_out_of_memory
from brimful.diagnose.others import Elsewhere, elsewhere_says, find_elsewhere
from brimful.diagnose.rates import log_says
from brimful.diagnose.tables import (
    DTYPE_BYTES,
    Buffer,
    Card,
    MemorySummary,
    SmiTable,
    find_buffers,
    find_smi,
    find_summary,
)
from brimful.diagnose.tensors import LOGITS, is_block, moment, of_shape, of_size
from brimful.errors import NotFound
from brimful.language import Language, Number, Percent, Sentence, Several, Size, say
from brimful.meter.logs import find_log_lines
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu, find_gpu
from brimful.units import GIB, MIB

MAX_CHARACTERS = 4_000_000  # of the end: a run dies at the end of its log
_SHOWN = 4  # messages, tables or buffers told of at most
_CLEAR_GIB = 0.2  # a process holds as much outside PyTorch by itself: the CUDA context

Says = tuple[str, Sentence]  # a code that programs match, and what people read


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the user told beside the text."""

    reading: Reading | None = None
    gpu: Gpu | None = None
    estimate: Estimate | None = None  # of reading on gpu, where both are known


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    kind: str
    title: Sentence
    facts: dict[str, Any]
    says: tuple[Says, ...]
    missing: tuple[Says, ...] = ()

    def as_dict(self, spoken: Language) -> dict[str, Any]:
        def told(pairs: tuple[Says, ...]) -> list[dict[str, str]]:
            return [{"code": code, "text": spoken.text(sentence)} for code, sentence in pairs]

        return {
            "kind": self.kind,
            "title": spoken.text(self.title),
            "facts": self.facts,
            "says": told(self.says),
            "missing": told(self.missing),
        }


def explain(text: str, about: About | None = None) -> tuple[Explanation, ...]:
    """Everything recognised in the text; empty where there is nothing."""
    about = about or About()
    plain = clean(text)
    lines = plain.split("\n")
    found: list[Explanation] = []
    table = find_smi(lines)
    about = _with_card(about, table)
    elsewhere, rest = find_elsewhere(plain)
    messages = find_out_of_memory(rest)[:_SHOWN]
    if elsewhere and not any(message.tells for message in messages):
        messages = []  # 'CUDA error: out of memory' is said once more by what runs on top
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
    for line in find_log_lines(plain):
        says, missing = log_says(line, about.reading, about.gpu, about.estimate)
        found.append(
            Explanation(
                kind="log_line",
                title=say("A log line of {framework}", framework=line.framework),
                facts=line.as_dict(),
                says=says,
                missing=missing,
            )
        )
    return tuple(found)


def _with_card(about: About, table: SmiTable | None) -> About:
    """Where nobody named the card, the one that an nvidia-smi table beside it shows, if it shows one kind."""
    names = {card.name for card in table.cards} if table is not None else set()
    if about.gpu is not None or len(names) != 1:
        return about
    try:
        return replace(about, gpu=find_gpu(names.pop()))
    except NotFound:  # cut short by nvidia-smi itself, or new to us
        return about


def clean(text: str) -> str:
    """Without colours, control characters and the marks that ranks, quotes and wrappers put before a line."""
    text = re.sub(r"\x1b\[[0-9;?]{0,20}[A-Za-z]", "", text[-MAX_CHARACTERS:])
    text = re.sub(r"[^\n\t\x20-\ud7ff\ue000-\U0010ffff]", " ", text.replace("\r", "\n"))
    return re.sub(r"^(?:[ \t]*(?:>|\[rank\d{1,4}\]:))+ ?", "", text, flags=re.MULTILINE)


# -- out of memory -----------------------------------------------------------------------------------------


def _out_of_memory(m: OutOfMemory, buffer: Buffer | None, about: About) -> Explanation:
    which = list(_which(m, buffer, about))
    says = [*_asked(m), *which, *_where(m, which), *_shares(m), *_fragments(m), *_strange(m)]
    title = (
        say("Out of memory on the host, not on the card")
        if m.kind == "host"
        else say("Out of memory ({kind})", kind=m.kind)
    )
    return Explanation(
        kind="out_of_memory",
        title=title,
        facts=m.as_dict(),
        says=tuple(says),
        missing=tuple(_unknown(m, says, about)),
    )


def _elsewhere(m: Elsewhere) -> Explanation:
    says, missing = elsewhere_says(m)
    title = say("Out of memory ({kind})", kind=m.kind)
    return Explanation(kind="out_of_memory", title=title, facts=m.as_dict(), says=says, missing=missing)


def _asked(m: OutOfMemory) -> Iterator[Says]:
    if m.kind == "host":
        yield "host", say("It is memory of the machine that ran out: no setting of the GPU changes that.")
    elif m.tried_bytes is None:
        return
    elif m.total_bytes is not None and m.tried_bytes > m.total_bytes:
        yield (
            "larger_than_card",
            say(
                "{tried} was asked for at once, and the whole card has {total}: only a smaller tensor helps.",
                tried=Size(m.tried_bytes),
                total=Size(m.total_bytes),
            ),
        )
    elif m.free_bytes is not None and m.total_bytes is not None:
        yield (
            "asked",
            say(
                "PyTorch asked for {tried} more; {free} of the card's {total} was free.",
                tried=Size(m.tried_bytes),
                free=Size(m.free_bytes),
                total=Size(m.total_bytes),
            ),
        )
    else:
        yield "asked", say("PyTorch asked for {tried} more.", tried=Size(m.tried_bytes))


def _which(m: OutOfMemory, buffer: Buffer | None, about: About) -> Iterator[Says]:
    """The tensor, by the buffer above the message or else by the config."""
    if buffer is not None and m.tried_bytes is not None:
        for size in (DTYPE_BYTES.get(buffer.dtype or ""), 2, 4):
            if size and abs(buffer.numbers * size - m.tried_bytes) <= 0.0051 * GIB:
                yield from _buffer_says(buffer, size, about)
                return
    if m.tried_bytes is None:
        return
    if is_block(m.tried_bytes):
        yield (
            "block",
            say(
                "{tried} is the block PyTorch takes for any small tensor: the last straw, not the culprit.",
                tried=Size(m.tried_bytes),
            ),
        )
    elif about.reading is not None:
        found = of_size(m.tried_bytes, about.reading.model, about.reading.training)
        if len(found) == 1:
            (tensor,) = found
            yield "tensor", _product(tensor.product, tensor.number_bytes, tensor.bytes, tensor.what)
        elif found:
            kinds = Several(tuple({tensor.what.text: tensor.what for tensor in found}.values()), between="; ")
            yield "tensor_one_of", say("Several tensors of this config have that size: {kinds}.", kinds=kinds)
        else:
            yield (
                "tensor_unknown",
                say(
                    "No large tensor of this config has that size: was it another batch, or another program?"
                ),
            )


def _product(shape: str, number_bytes: int, total: int, what: Sentence) -> Sentence:
    return say(
        "{shape} x {number_bytes} bytes = {size}: {what}.",
        shape=shape,
        number_bytes=number_bytes,
        size=Size(total),
        what=what,
    )


def _where(m: OutOfMemory, which: list[Says]) -> Iterator[Says]:
    if (where := moment(m.trace)) is not None:
        yield "moment", say("It happened {where}.", where=where)
    elif any(LOGITS in (said.values.get("what"), _inner(said)) for _, said in which):
        yield "moment", LOGITS_MOMENT


def _inner(said: Sentence) -> object:
    """What 'by its shape …' is about."""
    what = said.values.get("what")
    return what.values.get("what") if isinstance(what, Sentence) else None


LOGITS_MOMENT = say(
    "They are made at the end of the forward pass, and their gradient, just as large, at the start of the "
    "backward "
    "pass."
)


def _shares(m: OutOfMemory) -> Iterator[Says]:
    """Who holds the card: tensors, PyTorch's cache, the rest of this process, other programs."""
    if m.allocated_bytes is not None and m.cached_bytes is not None:
        yield (
            "allocated",
            say(
                "Tensors alive (allocated) took {allocated}; {cached} more were freed blocks that PyTorch "
                "keeps "
                "for later (cached).",
                allocated=Size(m.allocated_bytes),
                cached=Size(m.cached_bytes),
            ),
        )
    if m.total_bytes is None or m.free_bytes is None or m.reserved_bytes is None:
        return
    used = m.total_bytes - m.free_bytes
    if m.process_bytes and m.reserved_bytes <= m.process_bytes <= used:
        yield (
            "context",
            say(
                "This process held {own} outside PyTorch: CUDA context and libraries.",
                own=Size(m.process_bytes - m.reserved_bytes),
            ),
        )
        if used - m.process_bytes > _CLEAR_GIB * GIB:
            yield (
                "others",
                say(
                    "Other programs held {others}: `nvidia-smi` names them.",
                    others=Size(used - m.process_bytes),
                ),
            )
    elif 0 <= m.reserved_bytes <= used:
        rest = used - m.reserved_bytes
        yield (
            "rest",
            say(
                "{rest} were held outside PyTorch: the CUDA context, about 0.2 to 1.4 GiB, and other "
                "programs.",
                rest=Size(rest),
            )
            if rest > _CLEAR_GIB * GIB
            else say("Next to nothing was held by other programs."),
        )


def _fragments(m: OutOfMemory) -> Iterator[Says]:
    """Fragmentation, by numbers: before it gives up, PyTorch returns every cached block nobody shares."""
    if m.tried_bytes is None or m.cached_bytes is None or m.free_bytes is None:
        return
    if m.allowed_bytes is not None and m.reserved_bytes is not None:
        yield (
            "allowed",
            say(
                "The process may take no more than {allowed} (set_per_process_memory_fraction), and had "
                "{reserved}.",
                allowed=Size(m.allowed_bytes),
                reserved=Size(m.reserved_bytes),
            ),
        )
        return
    have = m.free_bytes + m.cached_bytes
    if m.free_bytes >= m.tried_bytes:
        yield (
            "free_enough",
            say(
                "More was free than asked for, so the numbers do not explain it: another program may have "
                "taken "
                "it meanwhile, and Windows limits what one allocation may take."
            ),
        )
    elif abs(have - m.tried_bytes) <= _rounding(m.tried_bytes, m.free_bytes, m.cached_bytes):
        yield (
            "fragmentation_unsure",
            say(
                "Cannot tell whether it was fragmentation: free and cached memory together, {have}, is what "
                "was asked for, as far as the rounded numbers of the message go.",
                have=Size(have),
            ),
        )
    elif have >= m.tried_bytes:
        yield (
            "fragmentation",
            say(
                "Fragmentation was the cause: free and cached memory together, {have}, would have been "
                "enough, but "
                "not in one piece. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True can help.",
                have=Size(have),
            ),
        )
    else:
        yield (
            "no_fragmentation",
            say(
                "Fragmentation was not the cause: free and cached memory together, {have}, is {short} less "
                "than "
                "asked for. expandable_segments would not have helped.",
                have=Size(have),
                short=Size(m.tried_bytes - have),
            ),
        )


def _rounding(*sizes: int) -> float:
    """By how much sums of printed sizes may be off: each is rounded to a hundredth of its unit."""
    return sum(0.005 * (GIB if size >= GIB else MIB) for size in sizes)


def _strange(m: OutOfMemory) -> Iterator[Says]:
    if m.total_bytes and (m.reserved_bytes or 0) > 1.02 * m.total_bytes:
        yield (
            "more_than_card",
            say(
                "{reserved} is more than the card has: Windows lends host memory over the bus, which is "
                "slow. "
                "These counters are not of the card alone.",
                reserved=Size(m.reserved_bytes or 0),
            ),
        )
    if m.absurd:
        yield (
            "absurd",
            say(
                "A number of the message is beyond any card: PyTorch printed a negative one without its sign."
            ),
        )
    if m.mixed:
        yield "mixed", say("Two messages are printed into each other here; what they say twice is left out.")
    if m.private_bytes:
        yield "private", say("{private} belong to CUDA graphs.", private=Size(m.private_bytes))


def _unknown(m: OutOfMemory, says: list[Says], about: About) -> Iterator[Says]:
    codes = {code for code, _ in says}
    if m.kind == "host":
        return
    if m.tried_bytes is None:
        yield "needs_numbers", say("the sentence with the numbers: “Tried to allocate … GiB”")
    elif m.cached_bytes is None or m.free_bytes is None:
        yield "needs_rest", say("the rest of the message, which says what was allocated, cached and free")
    if m.tried_bytes is not None and not codes & {"tensor", "tensor_one_of", "tensor_unknown", "block"}:
        yield "needs_config", say("which tensor it was: give the config with --config, or the lines above it")
    if "moment" not in codes and m.tried_bytes is not None:
        yield "needs_trace", say("where in the step it was: the traceback above the message tells")
    if about.estimate is None and about.reading is not None:
        yield "needs_gpu", say("the card, with --gpu: then what this config needs on it, and what to change")


# -- tables ------------------------------------------------------------------------------------------------


def _buffer(buffer: Buffer, about: About) -> Explanation:
    size = DTYPE_BYTES.get(buffer.dtype or "")
    if size is None and about.reading is not None:
        size = 2 if about.reading.training.half else 4
    says = list(_buffer_says(buffer, size, about))
    says += _where(OutOfMemory(kind="CUDA"), says)
    missing = []
    if size is None:
        missing.append(("needs_dtype", say("its number format: the end of that line says torch.…")))
    if of_shape(buffer)[0] is None and about.reading is None:
        missing.append(("needs_config", say("what a tensor of this shape is: give the config with --config")))
    return Explanation(
        kind="buffer",
        title=say("A tensor that torch.compile makes ({name})", name=buffer.name),
        facts=buffer.as_dict(),
        says=tuple(says),
        missing=tuple(missing),
    )


def _buffer_says(buffer: Buffer, size: int | None, about: About) -> Iterator[Says]:
    reading = about.reading
    what, sure = of_shape(buffer, reading.model, reading.training) if reading else of_shape(buffer)
    if what is None:
        what = say("cannot tell which tensor")
    elif not sure:
        what = say("by its shape {what}", what=what)
    shape = " x ".join(map(str, buffer.shape))
    if size is not None:
        yield "tensor", _product(shape, size, buffer.numbers * size, what)
    else:
        yield (
            "tensor",
            say(
                "{shape} is {half} in 2 bytes (bf16, fp16) and {full} in 4 (fp32): {what}.",
                shape=shape,
                half=Size(2 * buffer.numbers),
                full=Size(4 * buffer.numbers),
                what=what,
            ),
        )


def _summary(s: MemorySummary) -> Explanation:
    peak, current = s.peak_bytes, s.current_bytes
    says: list[Says] = [
        (
            "peaks",
            say(
                "At its peak PyTorch held {allocated} of tensors (allocated) and {reserved} from the driver "
                "(reserved); nvidia-smi shows the second, and the CUDA context on top.",
                allocated=Size(peak["allocated"]),
                reserved=Size(peak["reserved"]),
            ),
        ),
        (
            "now",
            say(
                "Now {allocated} are tensors and {cached} is cache, which torch.cuda.empty_cache() would "
                "return.",
                allocated=Size(current["allocated"]),
                cached=Size(max(0, current["reserved"] - current["allocated"])),
            ),
        ),
    ]
    if s.ooms:
        says.append(("ooms", say("Times it ran out of memory: {times}.", times=s.ooms)))
    if s.retries:
        says.append(
            (
                "retries",
                say(
                    "Times it gave its cache back and asked again: {times}. Each costs time.",
                    times=s.retries,
                ),
            )
        )
    if peak["reserved"] > 1.3 * peak["allocated"]:
        ratio = peak["reserved"] / max(1, peak["allocated"])
        says.append(
            (
                "fragmented",
                say(
                    "Reserved is {ratio} times allocated; steady training loops are near 1.1. Sizes that "
                    "change from "
                    "step to step fragment the cache: expandable_segments can help.",
                    ratio=Number(ratio, 2),
                ),
            )
        )
    return Explanation(
        kind="memory_summary",
        title=say("A memory summary of PyTorch"),
        facts=s.as_dict(),
        says=tuple(says),
    )


def _smi(table: SmiTable) -> Explanation:
    says: list[Says] = []
    for card in table.cards[:_SHOWN]:
        says += _card(card)
    graphics = sum(size for _, name, size in table.processes if not _trains(name))
    if graphics:
        says.append(
            ("programs", say("Programs that do not look like training hold {size}.", size=Size(graphics)))
        )
    says.append(
        (
            "memory_is_not_compute",
            say(
                "Memory in use says nothing about compute in use: PyTorch keeps what it once took, and a "
                "card can "
                "be full and idle."
            ),
        )
    )
    says.append(
        (
            "util",
            say(
                "GPU-Util is the share of time in which any kernel ran, not how much of the chip it used: "
                "100 % is "
                "possible at 5 % MFU. Power near its limit is the better sign of work."
            ),
        )
    )
    missing: list[Says] = [
        ("needs_log", say("how much of the compute is used: a log line with the step time, and the config"))
    ]
    return Explanation(
        kind="nvidia_smi",
        title=say("A table of nvidia-smi"),
        facts=table.as_dict(),
        says=tuple(says),
        missing=tuple(missing),
    )


def _trains(program: str) -> bool:
    return any(word in program.lower() for word in ("python", "train", "torchrun", "vllm", "[not found]"))


def _card(card: Card) -> Iterator[Says]:
    yield (
        "card",
        say(
            "GPU {index}, {name}: {used} of {total} in use ({frac}).",
            index=card.index,
            name=card.name,
            used=Size(card.used_bytes),
            total=Size(card.total_bytes),
            frac=Percent(card.used_bytes / card.total_bytes),
        ),
    )
    if card.busy_frac is not None and card.watts is not None and card.watts_cap:
        yield (
            "card_busy",
            say(
                "A kernel ran {busy} of the time, at {watts} of {cap} W.",
                busy=Percent(card.busy_frac),
                watts=Number(card.watts),
                cap=Number(card.watts_cap),
            ),
        )
