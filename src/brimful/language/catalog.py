"""The catalogs on disk, and which language to use. Light: `brimful --help` needs nothing else."""

from __future__ import annotations

import json
import os.path
from collections.abc import Mapping
from functools import cache

LANGUAGES = ("en", "fr", "es", "de")
CATALOGS = os.path.join(os.path.dirname(__file__), "catalogs")  # noqa: PTH118, PTH120 - pathlib is slow to import

Template = str | Mapping[str, str]  # one text, or one per plural form


@cache
def catalog(room: str) -> Mapping[str, Mapping[str, Template]]:
    """The sentences of one room: code -> language -> text. A room's file is read on first use.

    A room of another brimful version, or a made-up one, has none here.
    """
    path = f"{CATALOGS}/{room}.json"
    if not room.isidentifier() or not os.path.exists(path):  # noqa: PTH110
        return {}
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        held: dict[str, dict[str, Template]] = json.load(file)
    return held


def is_held(code: str) -> bool:
    room, _, name = code.partition(".")
    return name in catalog(room)


def template(code: str, language: str) -> Template:
    room, _, name = code.partition(".")
    texts = catalog(room)[name]
    return texts.get(language) or texts["en"]


def language_of_locale(environment: Mapping[str, str]) -> str:
    """The language a shell asks for (POSIX: LC_ALL, then LC_MESSAGES, then LANG); English for any other."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if value := environment.get(name):
            code = value[:2].lower()
            return code if code in LANGUAGES and not value[2:3].isalnum() else "en"
    return "en"
