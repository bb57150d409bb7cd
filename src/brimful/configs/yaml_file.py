"""YAML, for training configs and job files alike: PyYAML parses the text, no objects are constructed.

What two parsers could read differently is refused: anchors and aliases, tags, duplicate keys, several
documents. A plain value is null, a switch, a number, or else text as written, so dates, `12:30` and `010`
stay text, which YAML 1.1 turns into a date, 750 and 8. Keys are always text. Decision 20 says why PyYAML.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from brimful.errors import BadInput
from brimful.language import Number, Plain, Quoted, Sentence, say
from brimful.language.failures import needs_package

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

    def __new__(cls, text: str | float) -> Written:  # copying passes the number
        number = super().__new__(cls, str(text).replace("_", ""))
        number.text = str(text)
        return number

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Page:
    """A file's settings, and the positions of its top-level keys, so that one can be changed in place."""

    settings: dict[str, Any] = field(default_factory=dict)
    # key -> span of its value: from after the colon to its last character
    values: dict[str, tuple[int, int]] = field(default_factory=dict)
    end: int = 0  # where another key can be added
    indent: int = 0
    braces: bool = False  # {key: value}, as JSON has it
    found: bool = False  # there is a document, even if empty


def parse_yaml(text: str, *, name: str) -> dict[str, Any]:
    """The mapping in the text; empty if the file is."""
    return read_page(text, name=name).settings


def read_page(text: str, *, name: str) -> Page:
    """The mapping in the text with the positions of its keys, or BadInput with the line and what to do."""
    with needs_package("configs.needs_pyyaml", name=Quoted(name)):
        import yaml
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
        return _Reader(loader, text, name).page()
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
    """PyYAML's nodes in, plain values out; every refusal says where."""

    def __init__(self, loader: Any, text: str, name: str) -> None:  # noqa: ANN401 - PyYAML's is not typed
        self.loader = loader
        self.text = text
        self.name = name
        self.count = 0
        self.depth = -1
        self.compose = loader.compose_node
        loader.compose_node = self._allowed

    def refuse(self, at: Any, what: Sentence, *, hint: Sentence) -> NoReturn:  # noqa: ANN401 - event or node
        line = Plain(at.start_mark.line + 1)
        raise BadInput(say("configs.line_says", name=Quoted(self.name), line=line, what=what), hint=hint)

    def page(self) -> Page:
        page = Page(end=len(self.text))
        while self.loader.check_node():
            if page.found:
                what = say("configs.second_document")
                self.refuse(self.loader.peek_event(), what, hint=say("configs.hint_one_document"))
            page.found, node = True, self.loader.get_node()
            if node.id == "mapping":
                page.braces, page.indent = bool(node.flow_style), node.start_mark.column
                page.end = node.end_mark.index - page.braces
                page.settings = self._mapping(node, page)
        return page

    def _allowed(self, parent: Any, index: Any) -> Any:  # noqa: ANN401 - nodes
        """The next node, unless it repeats, constructs an object or is too large."""
        from yaml.events import ScalarEvent, SequenceStartEvent

        event = self.loader.peek_event()
        self.count += 1
        self.depth += 1
        if event.anchor is not None:  # an alias has one too
            what = say("configs.aliases_refused")
            self.refuse(event, what, hint=say("configs.hint_write_value_out"))
        if event.tag is not None:
            self.refuse(event, say("configs.tags_refused"), hint=say("configs.hint_write_plain_value"))
        if self.depth > MAX_DEPTH:
            self.refuse(event, say("configs.yaml_nested_too_deeply", most=MAX_DEPTH), hint=_TOO_MUCH)
        if self.count > MAX_VALUES:
            self.refuse(event, say("configs.too_many_values", most=Number(MAX_VALUES)), hint=_TOO_MUCH)
        if self.depth == 0 and (isinstance(event, SequenceStartEvent) or getattr(event, "value", False)):
            self.refuse(event, say("configs.not_a_mapping"), hint=say("configs.hint_key_value_lines"))
        # PyYAML asks for a key without an index
        if parent is not None and index is None and not isinstance(event, ScalarEvent):
            what = say("configs.key_not_plain_text")
            self.refuse(event, what, hint=say("configs.hint_write_key_value"))
        node = self.compose(parent, index)
        self.depth -= 1
        return node

    def _value(self, node: Any) -> Any:  # noqa: ANN401 - what YAML can say
        if node.id == "mapping":
            return self._mapping(node)
        if node.id == "sequence":
            return [self._value(each) for each in node.value]
        return scalar(node.value) if node.style is None else self._text(node)

    def _mapping(self, node: Any, page: Page | None = None) -> dict[str, Any]:  # noqa: ANN401 - a node
        found: dict[str, Any] = {}
        for key_node, value in node.value:
            key = self._text(key_node)
            if key in found:
                what = say("configs.duplicate_key", key=Quoted(key[:60]))
                self.refuse(key_node, what, hint=say("configs.hint_keep_one"))
            found[key] = self._value(value)
            colon = self.text.find(":", self._end(key_node), value.start_mark.index)
            if page is not None and colon >= 0:
                page.values[key] = (colon + 1, max(colon + 1, self._end(value)))
        return found

    def _end(self, node: Any) -> int:  # noqa: ANN401 - a node
        """The position after its last character. PyYAML ends a block where the next one begins."""
        start: int = node.start_mark.index
        end: int = node.end_mark.index
        if node.id == "scalar":
            return start + len(self.text[start:end].rstrip())
        last = node.value[-1] if node.value and not node.flow_style else None
        return end if last is None else self._end(last[1] if node.id == "mapping" else last)

    def _text(self, node: Any) -> str:  # noqa: ANN401 - a node
        text: str = node.value
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            self.refuse(node, say("configs.invalid_character_escape"), hint=say("configs.hint_fix_line"))
        return text


def scalar(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar; text unless it is clearly something else."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MAX_LETTERS:
        return text
    if _INT.fullmatch(text) and abs(whole := int(text.replace("_", ""), 0)) < 2**63:
        return whole
    if _FLOAT.fullmatch(text) and math.isfinite(number := Written(text)):
        return number
    return text


def write_yaml(data: dict[str, Any]) -> str:
    """The text that reads back as this: plain values in their order."""
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100))
