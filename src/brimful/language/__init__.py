"""Words: codes and numbers become sentences here, in one place, at the very end."""

from brimful.language.catalog import LANGUAGES as LANGUAGES
from brimful.language.catalog import language_of_locale as language_of_locale

TYPE_CHECKING = False  # the rest is loaded on first use: `brimful --help` does not need it
if TYPE_CHECKING:
    from brimful.language.sentence import Factor as Factor
    from brimful.language.sentence import Number as Number
    from brimful.language.sentence import Percent as Percent
    from brimful.language.sentence import Plain as Plain
    from brimful.language.sentence import Quoted as Quoted
    from brimful.language.sentence import Seconds as Seconds
    from brimful.language.sentence import Sentence as Sentence
    from brimful.language.sentence import Several as Several
    from brimful.language.sentence import Size as Size
    from brimful.language.sentence import Usd as Usd
    from brimful.language.sentence import Value as Value
    from brimful.language.sentence import count as count
    from brimful.language.sentence import either as either
    from brimful.language.sentence import figures as figures
    from brimful.language.sentence import os_words as os_words
    from brimful.language.sentence import plain_value as plain_value
    from brimful.language.sentence import say as say
    from brimful.language.sentence import verbatim as verbatim
    from brimful.language.spoken import Language as Language
    from brimful.language.spoken import as_asked as as_asked
    from brimful.language.spoken import choose as choose
    from brimful.language.spoken import language as language
    from brimful.language.spoken import told as told
    from brimful.language.spoken import tongue as tongue
    from brimful.language.spoken import words as words


def __getattr__(name: str) -> object:
    from importlib import import_module

    spoken = ("Language", "as_asked", "choose", "language", "told", "tongue", "words")
    home = "spoken" if name in spoken else "sentence"
    return getattr(import_module(f"{__name__}.{home}"), name)
