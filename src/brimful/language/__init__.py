"""Words: sentences are codes and numbers until somebody reads them."""

from brimful.language.sentence import (
    LANGUAGES,
    Factor,
    Language,
    Number,
    Percent,
    Seconds,
    Sentence,
    Several,
    Size,
    language,
    language_of_locale,
    say,
)

__all__ = [
    "LANGUAGES",
    "Factor",
    "Language",
    "Number",
    "Percent",
    "Seconds",
    "Sentence",
    "Several",
    "Size",
    "language",
    "language_of_locale",
    "say",
]
