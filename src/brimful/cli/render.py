"""Tables, bars and colour for the terminal. Works without colour; colour only for a person."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from shutil import get_terminal_size
from textwrap import wrap

from brimful.language import told, words
from brimful.language.printable import one_line, printable

EIGHTHS = " ▁▂▃▄▅▆▇█"
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_LINES = re.compile(r"([\n\t])")
_OURS = re.compile(rf"([\n\t]|\x1b\[(?:0|{'|'.join(_CODES.values())})m)")
# For a screen that is redrawn.
HOME, CLEAR_BELOW, HIDE, SHOW = "\x1b[H", "\x1b[J", "\x1b[?25l", "\x1b[?25h"
ALTERNATE, NORMAL = "\x1b[?1049h", "\x1b[?1049l"
KEPT = "\u2007"  # a space at which textwrap does not break
_UNIT = re.compile(r"(?<=\d) (?=%|[GMK]i[Bo]\b|TFLOPS|W\b|s\b)")


def colours() -> bool:
    """Whether to use colour: the terminal supports it, and nobody turned it off (no-color.org)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str) -> str:
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if colours() else text


def clean(text: str) -> str:
    """Text made safe for a terminal: marks unprintable characters except newlines, tabs and our colours.

    Names of files and tenants, arguments, and texts from a trace or a log are untrusted. They could move the
    cursor, change the writing direction, or not be text at all.
    """
    if text.isprintable():
        return text
    parts = (_OURS if colours() else _LINES).split(text)
    return "".join(part if at % 2 else printable(part) for at, part in enumerate(parts))


def tell(text: str, *, aside: bool = False) -> None:
    """All output for people goes through here; `aside`: to standard error."""
    stream = sys.stderr if aside else sys.stdout
    stream.write(clean(text) + "\n")
    stream.flush()


def bar(frac: float, width: int = 24) -> str:
    """A bar of eighth blocks: 12 % and 14 % look different."""
    eighths = round(max(0.0, min(1.0, frac)) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")).ljust(width)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Columns as wide as their widest cell, each row on one line; those in `right` are right-aligned."""
    cells = [list(map(one_line, row)) for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([paint(line(cells[0]), "dim"), *[line(row) for row in cells[1:]]])


def noted_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str], *, right: Sequence[int] = ()
) -> str:
    """A table no wider than the page, with the full note of each row below it."""
    title, *lines = (cut(line, page_columns()) for line in table(header, rows, right=right).splitlines())
    out = [title]
    for line, note in zip(lines, notes, strict=True):
        out += [line, *wrapped("    ", note)]
    return "\n".join(out)


def spark(values: Sequence[float], width: int, *, top: float | None = None) -> str:
    """A sparkline: each character is the highest value of its slice, `top` is a full block."""
    top = max(values, default=0.0) if top is None else top
    if not values or top <= 0:
        return ""
    slices = [values[i * len(values) // width : (i + 1) * len(values) // width] for i in range(width)]
    heights = [max(part) for part in slices if part]
    return "".join("▁▂▃▄▅▆▇█"[min(7, max(0, int(height / top * 8 - 1e-9)))] for height in heights)


def columns_of(fracs: Sequence[float], rows: int) -> list[str]:
    """A column per share of the height, this many rows high: the top row first."""
    eighths = [round(frac * rows * 8) for frac in fracs]
    return [
        "".join(EIGHTHS[max(0, min(8, height - 8 * row))] for height in eighths)
        for row in reversed(range(rows))
    ]


def live(draw: Callable[[int, int], str], *, every_s: int) -> None:
    """Redraw the whole screen, with its columns and lines, until Ctrl-C."""
    sys.stdout.write(ALTERNATE + HIDE)
    try:
        while True:
            columns, lines = get_terminal_size((100, 30))
            rows = [f"{clean(line)}\x1b[K" for line in draw(columns, lines).splitlines()[: lines - 1]]
            sys.stdout.write(HOME + "\n".join(rows) + CLEAR_BELOW)
            sys.stdout.flush()
            time.sleep(every_s)
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(SHOW + NORMAL)
        sys.stdout.flush()


def page_columns() -> int:
    """How wide text for people may be: the terminal's width, within limits."""
    return max(40, min(120, get_terminal_size((100, 24)).columns))


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def wrapped(head: str, said: object, *, rest: str | None = None, columns: int = 0) -> list[str]:
    """A sentence after its head, wrapped; `rest` goes before the other lines, by default the same indent.

    A number stays with its unit.
    """
    lines = wrap(
        _UNIT.sub(KEPT, told(said)),
        width=columns or page_columns(),
        initial_indent=head,
        subsequent_indent=" " * len(head) if rest is None else rest,
        break_on_hyphens=False,
        break_long_words=False,  # so that paths can be copied
    )
    return [line.replace(KEPT, " ") for line in lines]


def paragraph(said: object, first: str = "", rest: str | None = None, *, columns: int = 0) -> str:
    return "\n".join(wrapped(first, said, rest=rest, columns=columns))


def day(at_s: int) -> str:
    return clock(at_s).partition(" ")[0]


def clock(at_s: int | None) -> str:
    """The viewer's local time; stored times are UTC."""
    if at_s is None:
        return words("fleet.not_yet")
    return datetime.fromtimestamp(at_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
