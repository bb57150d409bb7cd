"""Operating system errors and missing packages, raised as our own errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from brimful.errors import BrimfulError, WorldFailed, unreadable
from brimful.language.sentence import Sentence, os_words


@contextmanager
def os_errors_as(
    said: str, /, kind: type[BrimfulError] | None = WorldFailed, *, code: str | None = None, **values: object
) -> Iterator[None]:
    """Raise an OSError of this block as the sentence `said`, with the reason in its `error`.

    With `kind` None the error decides who is to blame: the given path, or the environment.
    """
    try:
        yield
    except OSError as error:
        sentence = Sentence(said, {**values, "error": os_words(error)})
        raise (unreadable(sentence, error) if kind is None else kind(sentence, code=code)) from error


@contextmanager
def needs_package(
    said: str,
    /,
    kind: type[BrimfulError] = WorldFailed,
    *,
    code: str | None = "not_installed",
    **values: object,
) -> Iterator[None]:
    """Around the import of an optional package: `said` tells what to install."""
    try:
        yield
    except ImportError as error:
        raise kind(Sentence(said, {"name": error.name, **values}), code=code) from error
