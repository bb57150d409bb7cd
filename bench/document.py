"""Result tables, written into the documentation by the run that measured them.

A page has a place for each: `<!-- bench: NAME -->` … `<!-- end -->`. A benchmark group with `tables()` fills
the places; what it cannot measure here (the public data is missing) stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from bench.measure import ROOT

PLACE = re.compile(r"(<!-- bench: ([a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


MISSED = "**missed**"  # beside a bar that a row misses; then `make bench` fails


def judged(bar: str, *, is_met: bool) -> str:
    return bar if is_met else f"{bar} {MISSED}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with columns as wide as their widest cell; all but the first are right-aligned."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "| "
        + " | ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in cells
    ]
    rule = (
        "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    )
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


def fill_places(text: str, tables: Mapping[str, str]) -> str:
    """The page with every available table in its place."""
    return PLACE.sub(lambda m: f"{m[1]}{tables[m[2]]}{m[3]}" if m[2] in tables else m[0], text)


def write(tables: Mapping[str, str]) -> list[str]:
    """Put the tables into docs/**/*.md; returns the pages that changed."""
    changed = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        fresh = fill_places(text, tables)
        if fresh != text:
            path.write_text(fresh, encoding="utf-8")
            changed.append(str(path.relative_to(ROOT)))
    return changed
