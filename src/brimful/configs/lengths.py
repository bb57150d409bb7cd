"""Sequence lengths of a user's data set: one per line, or a length and its count.

A micro-batch is padded to its own longest sequence, so the step that needs most is as long as the longest of
all, and if lengths differ PyTorch's cache grows (decision 57).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from brimful.configs.files import read_config
from brimful.configs.reading import Reading
from brimful.errors import BadInput
from brimful.language import Number, Percent, Quoted, say

_LINE = re.compile(r"\s*(\d{1,9})(?:[\s,;:]+(\d{1,12}))?\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How often each length occurs."""

    counts: tuple[tuple[int, int], ...]  # length, count; shortest first

    @property
    def longest(self) -> int:
        return self.counts[-1][0]

    @property
    def sequences(self) -> int:
        return sum(times for _, times in self.counts)

    def cut(self, limit: int) -> Lengths:
        """What a trainer sees that truncates longer sequences at its limit."""
        return _counted([(min(length, limit), times) for length, times in self.counts])

    def fill(self, batch_size: int) -> float:
        """Share of a padded micro-batch that is real tokens, on average over random micro-batches.

        Formula: the mean length over the mean of the longest of `batch_size` random ones, by its
        distribution: the longest is at most x with chance F(x)^b.
        """
        seen, below, longest, mean = 0, 0.0, 0.0, 0.0
        for length, times in self.counts:
            seen += times
            chance = (seen / self.sequences) ** batch_size
            longest += length * (chance - below)
            mean += length * times / self.sequences
            below = chance
        return mean / longest


def _counted(pairs: list[tuple[int, int]]) -> Lengths:
    found: dict[int, int] = {}
    for length, times in pairs:
        found[length] = found.get(length, 0) + times
    return Lengths(counts=tuple(sorted(found.items())))


def read_lengths(path: Path) -> Lengths:
    """A file of lengths; a first line of words is a header."""
    pairs = []
    for number, line in enumerate(read_config(path, what=say("configs.lengths_file")).splitlines(), 1):
        if not line.strip() or (number == 1 and re.search(r"[A-Za-z]", line)):
            continue
        match = _LINE.fullmatch(line)
        times = int(match[2]) if match and match[2] else 1
        if match is None or int(match[1]) == 0 or times == 0:
            problem = say("configs.lengths_line", path=path, number=number, line=Quoted(line.strip()[:40]))
            raise BadInput(problem, code="lengths_unreadable")
        pairs.append((int(match[1]), times))
    if not pairs:
        raise BadInput(say("configs.lengths_none", path=path), code="lengths_unreadable")
    return _counted(pairs)


def with_lengths(reading: Reading, lengths: Lengths) -> Reading:
    """The same training on these sequences, estimated at the longest micro-batch it will see."""
    training = reading.training
    seen = lengths.cut(training.sequence_tokens)
    varies = len(seen.counts) > 1
    code = replace(training.framework, varying_lengths=varies)
    note = say(
        "configs.lengths_note",
        n=Number(lengths.sequences), low=Number(lengths.counts[0][0]), high=Number(lengths.longest),
        used=Number(seen.longest), fill=Percent(seen.fill(training.batch_size)),
    )  # fmt: skip
    changed = replace(training, sequence_tokens=seen.longest, framework=code, even_lengths=not varies)
    return replace(reading, training=changed, warnings=(*reading.warnings, note))
