"""YAML, for training configs and job files alike: PyYAML splits the text, nothing is ever constructed.

What two readers could understand differently is refused: anchors and aliases, tags, duplicate keys, several
documents. A plain value is null, a switch, a number, or else text as written, so dates, `12:30` and `010`
stay text where YAML 1.1 makes a date, 750 and 8 of them. Keys are always text. Decision 20 says why PyYAML.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from brimful.errors import BadInput, WorldFailed
from brimful.language import Number, Plain, Quoted, Sentence, say

if TYPE_CHECKING:
    from yaml.events import Event, ScalarEvent

# Of some 900 YAML files that eight projects publish, none has more than 46 kB, 11 levels or 2,600 values.
MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_VALUES = 10_000

_WORDS: dict[str, bool | None] = {
    form: value
    for words, value in (
        (("", "~", "null"), None),
        (("true", "yes", "on"), True),
        (("false", "no", "off"), False),
    )
    for word in words
    for form in (word, word.capitalize(), word.upper())
}
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]*[0-9a-fA-F]|0b[01_]*[01])")
_FLOAT = re.compile(
    r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=e))(e[-+]?[0-9]+)?", re.IGNORECASE
)
_TOO_MUCH = say("configs.hint_is_it_a_checkpoint")
_MAX_LETTERS = 40  # of a number


class Written(float):
    """A number that prints as it was written: `LR: 1e-4` or `PYTHON: 3.10` in a job's `env`."""

    text: str

    def __new__(cls, text: str | float) -> Written:  # a copy is made of the number
        number = super().__new__(cls, str(text).replace("_", ""))
        number.text = str(text)
        return number

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Page:
    """A file's settings, and where its top-level keys are, so that one can be changed in place."""

    settings: dict[str, Any] = field(default_factory=dict)
    # key -> where its value is: from behind the colon to its last character
    values: dict[str, tuple[int, int]] = field(default_factory=dict)
    end: int = 0  # where another key can be added
    indent: int = 0
    braces: bool = False  # {key: value}, as JSON has it


def parse_yaml(text: str, *, name: str) -> dict[str, Any]:
    """The mapping in the text; empty where the file is."""
    return read_page(text, name=name).settings


def read_page(text: str, *, name: str) -> Page:
    """The mapping in the text with the places of its keys, or BadInput with the line and what to do."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise WorldFailed(say("configs.needs_pyyaml", name=Quoted(name)), code="not_installed") from error
    if (size := len(text.encode("utf-8", "surrogatepass"))) > MAX_BYTES:
        raise BadInput(
            say(
                "configs.yaml_too_large",
                name=Quoted(name),
                bytes=Number(size),
                most=Number(MAX_BYTES),
            ),
            hint=_TOO_MUCH,
            code="too_large",
        )
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        return _Reader(iter(loader.get_event, None), text, name).page()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadInput(say("configs.line_control_character", name=Quoted(name), line=Plain(line))) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        hint = say("configs.quote_special_characters")
        if "'\\t'" in str(error.problem):
            hint = say("configs.tabs_refused")
        raise BadInput(
            say("configs.line_not_yaml", name=Quoted(name), line=Plain(line), problem=error.problem),
            hint=hint,
        ) from None
    except (ValueError, OverflowError):  # PyYAML's chr() of "\UFFFFFFFF"
        line = loader.line + 1 if loader else 1
        raise BadInput(
            say("configs.line_invalid_character_escape", name=Quoted(name), line=Plain(line))
        ) from None


class _Reader:
    """Events in, plain values out; every refusal says where."""

    def __init__(self, events: Iterator[Event], text: str, name: str) -> None:
        self.events = events
        self.text = text
        self.name = name
        self.count = 0
        self.end = 0  # of the last value read

    def refuse(self, event: Event, what: Sentence, *, hint: Sentence) -> NoReturn:
        raise BadInput(
            say(
                "configs.line_says",
                name=Quoted(self.name),
                line=Plain(_begin(event).line + 1),
                what=what,
            ),
            hint=hint,
        )

    def page(self) -> Page:
        from yaml import events as kinds

        page = Page(end=len(self.text))
        documents = 0
        for event in self.events:
            if isinstance(event, kinds.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self.refuse(
                        event,
                        say("configs.second_document"),
                        hint=say("configs.hint_one_document"),
                    )
            elif isinstance(event, kinds.MappingStartEvent):
                self._allow(event, 0)
                page.braces, page.indent = bool(event.flow_style), _begin(event).column
                page.settings = self._mapping(0, page)
            elif isinstance(event, kinds.NodeEvent):
                self._allow(event, 0)
                if not isinstance(event, kinds.ScalarEvent) or event.value:
                    self.refuse(
                        event,
                        say("configs.not_a_mapping"),
                        hint=say("configs.hint_key_value_lines"),
                    )
        return page

    def _allow(self, event: Any, depth: int) -> None:  # noqa: ANN401 - the event of a value
        """Refuse what could repeat, build or outgrow."""
        from yaml.events import AliasEvent

        self.count += 1
        if isinstance(event, AliasEvent) or event.anchor is not None:
            self.refuse(
                event,
                say("configs.aliases_refused"),
                hint=say("configs.hint_write_value_out"),
            )
        if event.tag is not None:
            self.refuse(event, say("configs.tags_refused"), hint=say("configs.hint_write_plain_value"))
        if depth > MAX_DEPTH:
            self.refuse(event, say("configs.yaml_nested_too_deeply", most=MAX_DEPTH), hint=_TOO_MUCH)
        if self.count > MAX_VALUES:
            self.refuse(event, say("configs.too_many_values", most=Number(MAX_VALUES)), hint=_TOO_MUCH)

    def _value(self, event: Event, depth: int) -> Any:  # noqa: ANN401 - what YAML can say
        from yaml import events as kinds

        self._allow(event, depth)
        if isinstance(event, kinds.MappingStartEvent):
            return self._mapping(depth)
        if isinstance(event, kinds.SequenceStartEvent):
            found = []
            while not isinstance(event := next(self.events), kinds.SequenceEndEvent):
                found.append(self._value(event, depth + 1))
            self._passed(event)
            return found
        assert isinstance(event, kinds.ScalarEvent)
        self._passed(event)
        return scalar(event.value) if event.implicit[0] else self._text(event)

    def _mapping(self, depth: int, page: Page | None = None) -> dict[str, Any]:
        from yaml import events as kinds

        found: dict[str, Any] = {}
        while not isinstance(key_event := next(self.events), kinds.MappingEndEvent):
            self._allow(key_event, depth + 1)
            if not isinstance(key_event, kinds.ScalarEvent):
                self.refuse(
                    key_event,
                    say("configs.key_not_plain_text"),
                    hint=say("configs.hint_write_key_value"),
                )
            key = self._text(key_event)
            if key in found:
                self.refuse(
                    key_event,
                    say("configs.duplicate_key", key=Quoted(key[:60])),
                    hint=say("configs.hint_keep_one"),
                )
            self._passed(key_event)
            begin, event = self.end, next(self.events)
            found[key] = self._value(event, depth + 1)
            colon = self.text.find(":", begin, _begin(event).at)
            if page is not None and colon >= 0:
                page.values[key] = (colon + 1, max(colon + 1, self.end))
        self._passed(key_event)
        if page is not None:
            page.end = _begin(key_event).at
        return found

    def _passed(self, event: Event) -> None:
        """A block's end is marked where the next one begins; a value's is its own, line ends aside."""
        from yaml.events import ScalarEvent

        assert event.end_mark is not None
        start, end = _begin(event).at, event.end_mark.index
        if end > start or isinstance(event, ScalarEvent):
            self.end = start + len(self.text[start:end].rstrip())

    def _text(self, event: ScalarEvent) -> str:
        text: str = event.value
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            self.refuse(event, say("configs.invalid_character_escape"), hint=say("configs.hint_fix_line"))
        return text


class _Place(NamedTuple):
    at: int  # characters before it
    line: int
    column: int


def _begin(event: Event) -> _Place:
    mark = event.start_mark
    assert mark is not None  # PyYAML's parser marks every event
    return _Place(mark.index, mark.line, mark.column)


def scalar(text: str) -> str | int | float | bool | None:
    """What an unquoted value is; text where it is not surely something else."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MAX_LETTERS:
        return text
    if _INT.fullmatch(text) and abs(whole := int(text.replace("_", ""), 0)) < 2**63:
        return whole
    if _FLOAT.fullmatch(text) and math.isfinite(number := Written(text)):
        return number
    return text
