"""What a text's own figures decide, whatever its words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import median

from brimful.diagnose.oom import bytes_of
from brimful.diagnose.tables import Process
from brimful.language import Sentence, Size, say
from brimful.units import GIB

_CONTEXT_BYTES = 2 * GIB  # more than a CUDA context and its libraries ever take
_FIGURE = r"(\d{1,7}(?:[.,]\d{1,3})?)"
_UNIT = r"(?: ?([kmgt]i?[bo])\b)?"
# "from 8 to 4", "von 21,3 auf 18,9 GiB", "8 -> 4": on folded text.
_CHANGE = re.compile(rf"{_FIGURE}{_UNIT} ?(?:->|→|=>|\b(?:to|auf|a|zu)\b) ?{_FIGURE}{_UNIT}")
_PART = re.compile(r"(?<![\w./])(\d{1,6}(?:\.\d{1,4})?) ?/ ?(\d{1,6}(?:\.\d{1,4})?) ?([KMGT]i?B)\b")


@dataclass(frozen=True, slots=True)
class Change:
    """Of the batch size, and of the memory with it."""

    batch: tuple[float, float]
    memory_bytes: tuple[int, int]

    @property
    def fixed_bytes(self) -> float:
        """Memory at a batch of zero, on the line through both points."""
        (first, then), (before, after) = self.batch, self.memory_bytes
        return (first * after - then * before) / (first - then)

    @property
    def less_than_in_proportion(self) -> bool:
        (first, then), (before, after) = self.batch, self.memory_bytes
        same_way = (then - first) * (after - before) > 0
        return same_way and self.fixed_bytes > 0.1 * before


def batch_change(text: str, *, halved: bool) -> Change | None:
    """A pair of plain numbers is the batch, a pair with a unit the memory."""
    pairs = [
        (float(low.replace(",", ".")), float(high.replace(",", ".")), unit or other)
        for low, other, high, unit in _CHANGE.findall(text)
    ]
    memory = [pair for pair in pairs if pair[2]]
    batches = [pair[:2] for pair in pairs if not pair[2] and pair[0] != pair[1]]
    if not batches and halved:
        batches = [(2.0, 1.0)]
    if not memory or not batches:
        return None
    before, after, unit = memory[0]
    size = (bytes_of(str(before), unit), bytes_of(str(after), unit))
    return Change(batches[0], size)


def strangers_on_first(processes: tuple[Process, ...]) -> Sentence | None:
    """Other ranks of a program that hold a mere CUDA context on a card where one of them works."""
    by_card: dict[tuple[int, str], list[int]] = {}
    for each in processes:
        by_card.setdefault((each.gpu, each.program), []).append(each.bytes)
    found = []
    for (gpu, program), held in by_card.items():
        *small, large = sorted(held)
        usual = median(small) if small else 0
        alike = all(abs(each - usual) <= 0.1 * usual for each in small)
        if len(small) >= 2 and alike and usual < min(_CONTEXT_BYTES, large / 2):
            found.append((gpu, program, len(small), round(usual)))
    if len(found) != 1:  # on every card alike: a server with helpers, not ranks that went astray
        return None
    gpu, program, count, usual_bytes = found[0]
    return say("causes.first_gpu", gpu=gpu, program=program, count=count, each=Size(usual_bytes))


def part_of(line: str) -> Sentence | None:
    """'(1.53/22.05 GiB)': both sizes have the unit that is written once."""
    match = _PART.search(line)
    if match is None:
        return None
    part, whole = (Size(bytes_of(match[n], match[3])) for n in (1, 2))
    return say("causes.that_is_of", part=part, whole=whole)
