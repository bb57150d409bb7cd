"""What the memory at one moment consists of: categories, modules, and the largest holders."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from brimful.language import Sentence
from brimful.specs.parts import Part, part
from brimful.tracing.tape import BACKWARD, FORWARD, OPTIMIZER, SETUP, Block, Tape

OUTSIDE = "(outside a module)"  # a key of the JSON, among names of modules
# Keys of the JSON that are older than the codes, if they are not simply the English name.
_KEYS: dict[Part, str] = {
    "weights": "parameters",
    "optimizer_state": "optimizer",
    "weight_casts": "casts of weights",
    "ddp_buckets": "gradient buckets",
}


def key(code: Part) -> str:
    """The name of a part in the JSON, beside its code."""
    return _KEYS.get(code) or str(part(code))


def why(code: Part) -> Sentence:
    return Sentence(f"tracing.why_{code}", {})


# Ops that belong to a loss whatever module calls them.
_LOSS_OP = re.compile(
    r"nll_loss|_log_softmax|cross_entropy|mse_loss|l1_loss|huber_loss|kl_div|ctc_loss|margin_loss"
)
_COPIES = frozenset({"_to_copy", "clone", "contiguous", "copy"})
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Blocks alive at the peak that were made by one op on one line."""

    category: Part
    op: str
    module: str
    line: str
    count: int
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "category": key(self.category), "code": self.category}


def categories(tape: Tape) -> list[Part]:
    """The category of every block."""
    loss = _loss_blocks(tape)
    return [_category(tape, number, block, loss) for number, block in enumerate(tape.blocks)]


def live_at(tape: Tape, event: int) -> list[int]:
    """Blocks alive right after an event."""
    return [n for n, b in enumerate(tape.blocks) if b.born <= event and (b.died is None or b.died > event)]


def by_category(tape: Tape, live: Iterable[int], category: list[Part]) -> dict[Part, int]:
    found: defaultdict[Part, int] = defaultdict(int)
    for number in live:
        found[category[number]] += tape.blocks[number].bytes
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def by_module(tape: Tape, live: Iterable[int], *, most: int = 12) -> dict[str, int]:
    """Bytes by module, layers of one kind together: h.0.mlp and h.1.mlp are h.*.mlp."""
    found: defaultdict[str, int] = defaultdict(int)
    for number in live:
        block = tape.blocks[number]
        found[_NUMBER.sub("*", block.place.module) or OUTSIDE] += block.bytes
    return dict(sorted(found.items(), key=lambda pair: -pair[1])[:most])


def holders(tape: Tape, live: Iterable[int], category: list[Part], *, most: int = 10) -> list[Holder]:
    found: dict[tuple[Part, str, str, str], tuple[int, int]] = {}
    for number in live:
        block = tape.blocks[number]
        place = block.place
        made = (category[number], place.op, _NUMBER.sub("*", place.module), place.line)
        count, size = found.get(made, (0, 0))
        found[made] = (count + 1, size + block.bytes)
    largest = sorted(found.items(), key=lambda pair: -pair[1][1])[:most]
    return [
        Holder(category=c, op=op, module=module, line=line, count=count, bytes=size)
        for (c, op, module, line), (count, size) in largest
    ]


def _category(tape: Tape, number: int, block: Block, loss: Collection[int]) -> Part:
    if block.role or number in loss:
        return block.role or "logits_loss"
    phase = block.place.phase
    if phase in (OPTIMIZER, BACKWARD):
        return "optimizer_temporaries" if phase == OPTIMIZER else "temporaries"
    if phase == SETUP or not (block.place.module or block.sources):
        return "data"
    made_of = {tape.blocks[source].role for source in block.sources}
    if block.place.op == "_to_copy" and made_of == {"weights"}:
        return "weight_casts"
    return "activations" if _waits_for_backward(tape, block) else "temporaries"


def _waits_for_backward(tape: Tape, block: Block) -> bool:
    begins = next((start for start in tape.backward_starts if start >= block.born), None)
    return begins is not None and (block.died is None or block.died >= begins)


def _loss_blocks(tape: Tape) -> set[int]:
    """Blocks of the loss: by op, by the line of such an op, or made outside any module after the model.

    Their floating-point inputs are the logits; copies in another number format on the way belong to them too.
    """
    blocks = tape.blocks
    lines = {(b.place.module, b.place.line) for b in blocks if b.place.line and _LOSS_OP.search(b.place.op)}
    found = set()
    for number, block in enumerate(blocks):
        place = block.place
        if block.role or place.phase not in (FORWARD, BACKWARD):
            continue
        floating = block.dtype.startswith(("float", "bfloat"))
        outside = floating and block.sources and place.line and not place.module
        if _LOSS_OP.search(place.op) or (place.module, place.line) in lines or outside:
            found.add(number)
    wave = [n for n in found if blocks[n].place.phase == FORWARD]
    while wave:
        number = wave.pop()
        for source in blocks[number].sources:
            made = blocks[source]
            is_logits = number in found and made.dtype.startswith(("float", "bfloat")) and len(made.shape) > 1
            if made.role or source in found or made.place.phase != FORWARD or not is_logits:
                continue
            found.add(source)
            if made.place.op in _COPIES:
                wave.append(source)
    return found
