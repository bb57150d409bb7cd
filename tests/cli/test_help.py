"""What --help says comes from the catalogs, in the language of the command line."""

from __future__ import annotations

import argparse
import contextlib
import json

import pytest

from brimful.cli.commands import COMMANDS, GROUPS, HEADINGS, group_overview, load, overview
from brimful.cli.main import main
from brimful.cli.options import help_key, parser_for
from brimful.client.settings import Settings
from brimful.language import LANGUAGES
from brimful.language.catalog import catalog

ASKED_FOR = {"example", "examples", "with_default"}  # by their whole names, in the source


def test_every_option_has_a_help_and_none_is_left_over() -> None:
    held, used = set(catalog("help")), set(ASKED_FOR)
    for name in COMMANDS:
        own = name.replace(" ", "_").replace("-", "_")
        parser = parser_for(load(name))
        used |= {f"title_{group.title}" for group in parser._action_groups[2:] if group.title}
        for action in parser._actions:
            if action.dest != "help" and action.help != argparse.SUPPRESS:
                key = help_key(own, action)
                assert key in held, f"brimful {name}: {action.dest}"
                used.add(key)
    assert {f"up_{name}" for name in Settings.__dataclass_fields__} <= used
    assert used == held


def test_every_command_says_what_it_does_and_nothing_else_is_held() -> None:
    wanted = {name.replace(" ", "_").replace("-", "_") for name in COMMANDS}
    wanted |= {f"group_{name}" for name in (*GROUPS, "usage", "options", "alone")}
    wanted |= {f"heading_{name}" for name in HEADINGS}
    wanted |= {f"overview_{part}" for part in ("promise", "usage", "options", "exit_codes", "begin", "fleet")}
    assert set(catalog("commands")) == wanted


@pytest.mark.parametrize("code", LANGUAGES)
def test_an_overview_fits_one_screen_in_every_language(code: str) -> None:
    lines = overview(code).splitlines()
    assert len(lines) <= 40
    for line in [*lines, *(each for group in GROUPS for each in group_overview(group, code).splitlines())]:
        assert len(line) <= 80, line


@pytest.mark.parametrize("line", ["--help", "job --help", "help fleet"])
def test_an_overview_speaks_the_language_it_is_asked_in(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = line.split()
    assert main([*words, "--lang", "fr"]) == 0
    asked = capsys.readouterr().out
    monkeypatch.setenv("LC_ALL", "fr_FR.UTF-8")
    main(words)
    assert asked == capsys.readouterr().out
    assert "usage\u00a0: brimful" in asked


@pytest.mark.parametrize("code", LANGUAGES)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_is_in_its_language(
    name: str, code: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # no text is broken
    with pytest.raises(SystemExit):
        main([*name.split(), "--help", "--lang", code])
    shown = capsys.readouterr().out
    for key in ("json", "lang"):
        assert str(catalog("help")[key][code]) in shown
    does = str(catalog("commands")[name.replace(" ", "_").replace("-", "_")][code])
    assert does[1:] in shown
    assert "%(" not in shown


@pytest.mark.parametrize("line", ["", "--help", "help", "fit --help", "help fit", "job"])
def test_the_language_may_be_asked_for_before_the_command(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, shown = line.split(), []
    for each in (["--lang", "fr", *words], ["--lang=fr", *words], [*words, "--lang", "fr"]):
        with contextlib.suppress(SystemExit):
            main(each)
        shown.append(capsys.readouterr().out)

    assert shown[0] == shown[1]
    assert shown[0] == (shown[2] if words else overview("fr") + "\n")


def test_options_before_the_command_reach_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--lang", "de", "gpus", "rtx-4070"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["name"] == "rtx-4070"
