"""The page of features promises only commands and options that there are."""

from __future__ import annotations

import re

from tests.tidy.repository import DOCS, text

FEATURES = 44  # that sixteen systems were compared by


def rows() -> list[tuple[str, str, str]]:
    page = text(DOCS / "explanation" / "market.md").partition("## What others offer")[2]
    found = re.findall(r"^\| (.+?) \| (yes|partly|no) \| (.*?) ?\|$", page, re.MULTILINE)
    return [(feature, here, by) for feature, here, by in found]


def options() -> dict[str, set[str]]:
    """By command: what the reference, which is generated from the parsers, lists."""
    sections = re.split(r"^### brimful ", text(DOCS / "reference" / "cli.md"), flags=re.MULTILINE)[1:]
    return {section.splitlines()[0]: set(re.findall(r"--[a-z][a-z-]*", section)) for section in sections}


def test_each_of_the_features_says_whether_it_is_here_and_by_what() -> None:
    found = rows()
    assert len(found) == len({feature for feature, _, _ in found}) == FEATURES
    for feature, here, by in found:
        assert by or here == "no", f"{feature}: by which command?"


def test_every_command_and_option_named_there_exists() -> None:
    known = options()
    everywhere = set.union(*known.values())
    for feature, _, by in rows():
        for span in re.findall(r"`([^`]+)`", by):
            flags = set(re.findall(r"(?:^|\s)(--[a-z][a-z-]*)", span)) - {"--help"}
            if span.startswith("brimful "):
                command = " ".join(re.findall(r"^brimful ((?:[a-z]+ ?)*)", span)[0].split())
                while command and command not in known:  # `admin tokens audit`: a word that it takes
                    command = command.rpartition(" ")[0]
                assert command or span == "brimful --help", f"{feature}: {span}"
                assert flags <= known.get(command, set()), f"{feature}: {span}"
            else:
                assert flags <= everywhere, f"{feature}: {span}"
