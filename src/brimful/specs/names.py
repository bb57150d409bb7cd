"""Catalogs that find their entries by any common name: GPUs in `gpus.toml`, models in `models.toml`.

A catalog is a TOML file with one self-contained table per entry. A lookup parses only that table, because
reading all of them takes as long as starting Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from brimful.errors import NotFound
from brimful.language import Quoted, Sentence, either, say
from brimful.language.near import slips_of

_TOO_MANY = 8  # with more choices, an ambiguous name's list stops helping

Words = Callable[[str], list[str]]  # a name -> the words that distinguish entries
Refusal = Callable[
    [Sentence, Sentence | None], NotFound
]  # problem and hint -> the error, with the code of its kind


def read_table(file: str) -> dict[str, Any]:
    """A TOML file of this package, complete."""
    import tomllib

    return tomllib.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))


class Catalog:
    """The tables of one file, found by name, title or alias."""

    def __init__(
        self,
        file: str,
        *,
        kind: Sentence,
        every: Sentence,
        words: Words,
        ambiguous: Refusal,
        unknown: Refusal,
        drops: str = "",
    ) -> None:
        self._kind = kind
        self._list = every  # where to see all of them
        self._path = Path(__file__).parent / file
        self._words = words
        self._ambiguous = ambiguous
        self._unknown = unknown
        self._drops = drops  # a first word that people leave out: "rtx "

    def find(self, text: str) -> str:
        """The entry meant by `text`, written the way people write it.

        An exact name, title or alias wins; else the one entry whose name contains every word. A name that
        several share is refused with the choices.
        """
        if text in self._tables:
            return text  # most lookups, without building the index
        wanted = self._key(text)
        exact = [name for name, keys in self._index.items() if wanted in keys]
        if wanted and len(exact) == 1:
            return exact[0]
        holding = exact or self._holding(text)
        if len(holding) == 1:
            return holding[0]
        if holding:
            shown = ", ".join(holding[:_TOO_MANY]) + (", …" if len(holding) > _TOO_MANY else "")
            problem = say(
                "specs.name_ambiguous", name=Quoted(text), n=len(holding), kind=self._kind, shown=shown
            )
            raise self._ambiguous(problem, say("specs.hint_name_one_of_them"))
        short = text if len(text) <= 60 else text[:57] + "..."
        problem = say("specs.name_unknown", kind=self._kind, name=Quoted(short))
        raise self._unknown(problem, self._near(text))

    def variants(self, text: str) -> list[str]:
        """The entries that `text` may mean: one, or all that share it as a part of their name."""
        try:
            return [self.find(text)]
        except NotFound:
            return self._holding(text)

    def _holding(self, text: str) -> list[str]:
        words = set(self._words(text))
        return [name for name in self._index if words and words <= set(self._words(name))]

    def slips(self, text: str) -> list[str]:
        """The entries whose name, title or alias is one keystroke from `text`."""
        spoken = {key: name for name, keys in self._index.items() for key in keys}
        return list(dict.fromkeys(spoken[key] for key in slips_of(self._key(text), spoken)))

    def names(self) -> list[str]:
        """Every entry, in the order of the file."""
        return list(self._tables)

    def row(self, name: str) -> dict[str, Any]:
        """One table, parsed."""
        import tomllib

        return tomllib.loads(self._tables[name])

    def _near(self, text: str) -> Sentence:
        """The entries with the most similar names, and where all are listed."""
        from difflib import get_close_matches

        spoken = {key: name for name, keys in self._index.items() for key in keys}
        close = get_close_matches(self._key(text), spoken, n=4, cutoff=0.55)
        near = dict.fromkeys(spoken[key] for key in close)
        if not near:
            return self._list
        return say("specs.hint_did_you_mean", names=either(list(near)[:3]), rest=self._list)

    def _key(self, text: str) -> str:
        return " ".join(self._words(text))

    @cached_property
    def _tables(self) -> dict[str, str]:
        """Name -> the unparsed lines of its table. A name with a dot is in quotes."""
        parts = (part.partition("]\n") for part in self._path.read_text(encoding="utf-8").split("\n[")[1:])
        return {name.strip('"'): body for name, _, body in parts}

    @cached_property
    def _index(self) -> dict[str, frozenset[str]]:
        """Name -> every spelling that means this entry and no other variant of it."""
        index = {}
        for name, body in self._tables.items():
            lines = [line for line in body.splitlines() if line.startswith(("title", "aliases"))]
            spoken = [name, *re.findall(r'"([^"]+)"', " ".join(line.partition(" = ")[2] for line in lines))]
            keys = {self._key(word) for word in spoken}
            index[name] = frozenset(keys | {key.removeprefix(self._drops) for key in keys})
        return index
