"""Gather the sentences of the source into the catalogs, and compile these: `python -m tools.catalogs`.

Each language has `locale/XX/LC_MESSAGES/brimful.po`, which people edit, and the `.mo` beside it, which
`brimful` reads with the standard library alone. A sentence nobody has translated is left empty, and the tests
are red until somebody has.
"""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from brimful.language import LANGUAGES
from tools.plain_phrases import LISTED, plain_phrases

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "brimful"
LOCALE = SOURCE / "language" / "locale"
_DAY = datetime(2026, 11, 15, tzinfo=UTC)  # one day for good: a date that moves would make every file stale
TRANSLATED = tuple(code for code in LANGUAGES if code != "en")


@cache
def sentences() -> list[str]:
    """Every template in a call of `say` or told as plain English, once, in alphabetical order."""
    found: set[str] = set(plain_phrases())
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "say(" in text:
            found |= set(_said(ast.parse(text)))
    return sorted(found)


def _said(tree: ast.AST) -> Iterator[str]:
    """The first argument of each `say`, also of one inside an f-string, where Babel does not look."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="say"), args=[ast.Constant(value=str(text)), *_]):
                yield text


def catalog(code: str) -> Catalog:
    """The catalog of one language with exactly the sentences of the source."""
    path = po_path(code)
    old = Catalog(locale=code)
    if path.is_file():
        with path.open("rb") as file:
            old = read_po(file, locale=code)
    fresh = Catalog(
        locale=code,
        project="brimful",
        header_comment=f"# brimful's sentences in {code}. A sentence's {{names}} stay as they are.",
        fuzzy=False,
        copyright_holder="the brimful authors",
        creation_date=_DAY,
        revision_date=_DAY,
    )
    for text in sentences():
        known = old.get(text)
        fresh.add(text, known.string if known is not None else "")
    return fresh


def po_path(code: str) -> Path:
    return LOCALE / code / "LC_MESSAGES" / "brimful.po"


def files() -> Iterator[tuple[Path, bytes]]:
    """Both files of each language, and the list of plain phrases, as they should be."""
    yield LISTED, (json.dumps(plain_phrases(), indent=1, ensure_ascii=False) + "\n").encode()
    for code in TRANSLATED:
        fresh = catalog(code)
        po, mo = io.BytesIO(), io.BytesIO()
        write_po(po, fresh, width=110, omit_header=False, sort_output=True, no_location=True)
        write_mo(mo, fresh)
        yield po_path(code), po.getvalue()
        yield po_path(code).with_suffix(".mo"), mo.getvalue()


def write_catalogs(*, check: bool) -> bool:
    """Write what is stale, or only name it; whether anything was."""
    stale = [(path, body) for path, body in files() if not path.is_file() or path.read_bytes() != body]
    for path, body in stale:
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        print(f"{path.relative_to(ROOT)}: {'stale, run `make generate`' if check else 'written'}")
    return bool(stale)


if __name__ == "__main__":
    write_catalogs(check=False)
