"""Words that come from users, made safe to show. Light: the command line uses it too."""

from __future__ import annotations

from typing import Any

MARK = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """The text with a mark for every character that would not print.

    Names and commands come from users; line ends, control characters and changes of writing direction in
    them could make a line read as something else, or move the cursor of a terminal.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else MARK for c in text)


def all_printable(data: Any) -> Any:  # noqa: ANN401 - JSON
    """The same for every text in an answer of the API."""
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, list):
        return [all_printable(each) for each in data]
    if isinstance(data, dict):
        return {key: all_printable(value) for key, value in data.items()}
    return data
