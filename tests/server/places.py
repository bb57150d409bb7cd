"""The numbers of a page, each with its place: section, row, column or heading, and the text around it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import NamedTuple

NUMBER = re.compile(
    r"(?<![\w.-])-?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?: ?%| [KMG]iB|×| (?:d|h|min|ms|s)\b)?(?![\w-])"
)
EMPTY = {"input", "br", "line", "rect", "polyline", "polygon", "path", "circle"}
UNSEEN = {"time", "code", "option", "title", "nav", "pre"}  # moments, and what users typed
UNITS = {"td", "th", "dd", "dt", "p", "li", "figcaption", "h2", "h3", "summary"}


class Place(NamedTuple):
    section: str
    row: str  # of its table, or the heading of its article
    label: str  # its column, term or figure; else what kind of text it is
    text: str


@dataclass(slots=True)
class _Open:
    tag: str
    kind: str
    words: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[Place] = []
        self._open: list[_Open] = []
        self._heads: list[str] = []
        self._section = self._article = self._row = self._term = ""
        self._column = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in EMPTY:
            return
        given = {name: value or "" for name, value in attrs}
        kind = given.get("class", "")
        if tag == "section":
            self._section = given.get("aria-labelledby") or given.get("aria-label") or kind
            self._article = self._row = ""
        elif tag == "table":
            self._heads = []
        elif tag == "tr":
            self._column, self._row = -1, ""
        elif tag in ("td", "th"):
            self._column += 1
        is_unit = tag in UNITS and not (tag == "p" and self._in_figure())
        is_unit |= kind.partition(" ")[0] == "figure" or (kind == "note" and self._in("dt"))
        self._open.append(_Open(tag, (kind or tag) if is_unit else ""))

    def handle_endtag(self, tag: str) -> None:
        while tag not in EMPTY and self._open:
            closed = self._open.pop()
            self._close(closed)
            if closed.tag == tag:
                return

    def _in(self, tag: str) -> bool:
        return any(each.tag == tag for each in self._open)

    def _in_figure(self) -> bool:
        """A key figure: its value, its heading and its note are one text."""
        return any(each.kind.partition(" ")[0] == "figure" for each in self._open)

    def _close(self, each: _Open) -> None:
        text = " ".join(" ".join(each.words).split())
        if each.tag == "table":
            self._row = self._article
        if each.tag == "th" and self._in("thead"):
            self._heads.append(text)
            return
        if each.tag == "th":
            self._row = text
        if each.tag == "h3" and self._in("article"):
            self._article = self._row = text
        if each.tag in ("dt", "h2"):
            self._term = text
        label = each.kind.partition(" ")[0]
        if each.tag in ("td", "th"):
            label = self._heads[self._column] if self._column < len(self._heads) else ""
        elif each.tag == "dd" or each.kind.partition(" ")[0] == "figure":
            label = self._term
        if each.kind and NUMBER.search(text):
            self.found.append(Place(self._section, self._row, label, text))

    def handle_data(self, data: str) -> None:
        if any(each.tag in UNSEEN for each in self._open):
            return
        for each in reversed(self._open):
            if each.kind:
                each.words.append(data)
                return


def numbers_of(page: str) -> list[Place]:
    reader = _Reader()
    reader.feed(page[page.index("<main") : page.index("</main>") + len("</main>")])
    return reader.found
