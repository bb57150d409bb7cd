"""A pasted text as statements: encoding repaired, front matter and markup removed, wrapped lines joined."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

# Encodings that UTF-8 is most often mistaken for. The one that turns most of a text back into UTF-8 is used.
_MISREAD_AS = ("cp1252", "mac_roman", "cp850")
MAX_STATEMENT = 2000  # characters of a sentence or line of code
_FRONT_MATTER = re.compile(r"\A\s*---\s*\n.*?\n---\s*\n", re.DOTALL)
_MARKUP = re.compile(r"\*\*|`+|^\s*(?:[*+•-]|\d{1,2}[.)]|#{1,6})\s+", re.MULTILINE)
_BULLET = re.compile(r"\s*(?:[*+•>#-]|\d{1,2}[.)])\s")
_CODE = re.compile(r"\s*+(?:#\s*+)?[\w.]{1,60}\s?[=:](?:\s|\S*\s+#)|\s*+(?:export|pip|python)\s")
_END = re.compile(r"(?<=[.!?…])(?<!\b\w\.)(?<!\s\d\.)\s+(?=[^\Wa-z_]|[¿¡«\"'(])")
# Program output.
_PRINTED = re.compile(
    r"Tried to allocate \d|Traceback \(|^\s*File \"|\biter \d+: loss|\|\s+\d+MiB /|RESOURCE_EXHAUSTED"
)
_COMMON = {
    "en": "the of is and to you it that not your with for are was this but does my why how",
    "fr": "le les des est et vous ne pas une dans pour du sur au il ce avec mon ma votre pourquoi elle",
    "es": "el los las y una con por tu para al es lo del en se como tengo muy mi mis qué cuánto",
    "de": "der die das ist und nicht ein eine mit auf den dass von bei im sind auch ich mein meine warum wie",
}


@dataclass(frozen=True, slots=True)
class Statement:
    text: str  # as written, with encoding and markup repaired
    paragraph: int  # statements of one paragraph share a subject

    @property
    def folded(self) -> str:
        return folded(self.text)


def repaired(text: str) -> str:
    """UTF-8 that was decoded with another encoding, decoded again; any other text stays."""
    runs = [run for run in re.findall(r"[^\x00-\x7f]{2,}", text) if not run.isspace()]
    back = {codec: [_utf8(run, codec) for run in runs] for codec in _MISREAD_AS}
    best = max(_MISREAD_AS, key=lambda codec: sum(map(bool, back[codec])))
    if 2 * sum(map(bool, back[best])) <= len(runs):
        return text
    return re.sub(r"[^\x00-\x7f]{2,}", lambda run: _utf8(run[0], best) or run[0], text)


def _utf8(run: str, codec: str) -> str:
    """Empty if the run is not misread UTF-8. Bytes that a code page leaves undefined are kept."""
    raw = b"".join(
        bytes([ord(each)]) if 0x80 <= ord(each) < 0xA0 else each.encode(codec, "ignore") or b"\xff"
        for each in run
    )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return ""


def folded(text: str) -> str:
    """Lower case without accents: 'Größe' is 'grosse', 'mémoire' is 'memoire'."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in plain if not unicodedata.combining(c)).replace("’", "'").replace("\xa0", " ")


def statements(text: str) -> tuple[Statement, ...]:
    """Sentences of prose, and lines of code with their trailing comment."""
    found = []
    for number, block in enumerate(_blocks(_FRONT_MATTER.sub("", text, count=1))):
        if block.lstrip().startswith(">"):
            continue  # a quote: evidence, not a claim of this text
        plain = _MARKUP.sub("", block).strip()
        parts = [plain] if _CODE.match(block) else _END.split(re.sub(r"\s+", " ", plain))
        short = (piece for part in parts for piece in _pieces(part.strip()))
        found += [Statement(piece, number) for piece in short if re.search(r"\w", piece)]
    return tuple(found)


def _pieces(part: str) -> Iterator[str]:
    """Longer than any sentence is cut between words: what is found in one costs up to its square."""
    while len(part) > MAX_STATEMENT:
        end = part.rfind(" ", 1, MAX_STATEMENT)
        end = end if end > 0 else MAX_STATEMENT
        yield part[:end]
        part = part[end:].lstrip()
    yield part


def _blocks(text: str) -> Iterator[str]:
    """Whole paragraphs, bullets and headings; code line by line."""
    held: list[str] = []
    fenced = False
    for line in [*text.splitlines(), ""]:
        fence = line.lstrip().startswith(("```", "~~~"))
        fenced ^= fence
        heading = bool(re.match(r"\s*#{1,6}\s", line)) and not fenced
        if _PRINTED.search(line) and not line.lstrip().startswith(">"):
            line = ""  # noqa: PLW2901 - evidence, not a claim of the author
        alone = fenced or bool(_CODE.match(line) and not line.rstrip().endswith((",", ".", ":")))
        if (not line.strip() or fence or alone or heading or _BULLET.match(line)) and held:
            yield "\n".join(held)
            held = []
        if (alone or heading) and not fence:
            yield line
        elif line.strip() and not fence:
            held.append(line)
    if held:
        yield "\n".join(held)


def language_of(text: str) -> str | None:
    """The language whose commonest words the text has most of; None if it has too few to tell."""
    words = re.findall(r"\w+", text.casefold())
    hits = {
        code: sum(words.count(each.casefold()) for each in some.split()) for code, some in _COMMON.items()
    }
    best = max(hits, key=lambda code: hits[code])
    return best if hits[best] >= 2 and sorted(hits.values())[-2] < hits[best] else None
