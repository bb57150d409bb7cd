"""Command lines written before there were groups work as they did, for one release."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from brimful.cli.commands import COMMANDS, GROUPS, OLD, find, group_overview, load, overview
from brimful.cli.main import main
from brimful.cli.options import parser_for

ROOT = Path(__file__).resolve().parents[2]

# What each took: positional arguments with how many, options with = where they take a value, ! where they
# are required, … where they may be repeated, choices in brackets, and what each is otherwise.
TOOK = {
    "record": "samples --to=[PosixPath('my_runs.csv')] --config= --model= --set=… --gpu= --source= --dry-run",
    "score": "runs --quality= --rows=",
    "calibrate": "runs? --write --dry-run --forget",
    "show": "job",
    "why": "job",
    "logs": "job --follow/-f",
    "cancel": "jobs+ --dry-run",
    "hold": "job --reason=[''] --dry-run",
    "release": "job",
    "move": "job --to=! --dry-run",
    "bid": "job --limit= --class --yes --dry-run",
    "nodes": "verb?(list|drain|resume)['list'] node? --reason=[''] --dry-run",
    "queues": "",
    "events": "--last=[50] --follow/-f",
    "price": "pool? --history --hours=[24.0] --log=",
    "where": "job? --model= --set=… --inference --prompt-tokens=[1024] --output-tokens=[256] "
    "--weight-bits=(16|8|4)[16] --teacher= --offers=! --tokens=[1000000000.0] --from=[''] --data-gb=[0.0] "
    "--restart-minutes=[12.0] --interruptions=[0.1] --value-of-time=[0.0] --no-spot --top=[10]",
    "market replay": "file",
    "backup": "file --force --data= --database= --engines=",
    "restore": "file --revoke-tokens --dry-run --data= --database= --engines=",
    "doctor": "--data= --database= --engines=",
    "tokens": "verb?(list|add|revoke|audit)['list'] name? --tenant=['default'] "
    "--role=(viewer|submitter|admin|operator)['submitter'] --for=",  # 90 d, or the rest of the maker's own
    "exporter": "--host=['127.0.0.1'] --port=[9642] --dashboard --once",
}


def described(action: argparse.Action) -> str:
    """One argument in the words of TOOK."""
    text = "/".join(action.option_strings) or action.dest
    if action.nargs != 0:
        text += ("=" if action.option_strings else "") + str(action.nargs or "")
    text += "!" if action.required and action.option_strings else ""
    text += f"({'|'.join(map(str, action.choices))})" if action.choices else ""
    text += "…" if isinstance(action, argparse._AppendAction) else ""
    return text + ("" if repr(action.default) in ("None", "False", "[]") else f"[{action.default!r}]")


def arguments(name: str) -> list[str]:
    return [described(action) for action in parser_for(load(name))._actions if action.dest != "help"]


def test_every_old_name_is_held_here() -> None:
    assert set(OLD) == set(TOOK)
    assert set(OLD.values()) <= set(COMMANDS)
    assert not {name for name in OLD if name in COMMANDS or name in GROUPS}


@pytest.mark.parametrize("old", OLD)
def test_an_old_name_takes_what_it_took(old: str) -> None:
    name, rest = find([*old.split(), "--json"])
    took = arguments(name)

    assert (name, rest) == (OLD[old], ["--json"])
    assert set(TOOK[old].split()) <= set(took)
    # Positional arguments keep their order, and no new one is in the way.
    assert [each for each in TOOK[old].split() if each[0] != "-"] == [each for each in took if each[0] != "-"]


@pytest.mark.parametrize("old", OLD)
def test_the_help_of_an_old_name_teaches_the_new_one(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*old.split(), "--help"])

    assert f"usage: brimful {OLD[old]}" in capsys.readouterr().out


def test_no_help_shows_an_old_name() -> None:
    examples = [load(name).verb.example for name in COMMANDS]
    shown = "\n".join([overview(), *map(group_overview, GROUPS), *examples])

    assert not re.findall(rf"brimful (?:{'|'.join(OLD)})\b(?!-)", shown)


def test_verbs_of_the_old_nodes_still_go_first_or_after_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRIMFUL_DATA", str(tmp_path))
    monkeypatch.setenv("BRIMFUL_URL", "http://127.0.0.1:9")  # a server may run at the usual address
    for words in (["drain", "a", "--reason", "fans"], ["--dry-run", "resume", "a", "--reason", "x"], []):
        assert main(["nodes", *words, "--json"]) == 3  # all is understood; no server is there
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "no_server"
    assert main(["nodes", "drain", "--json"]) == 2  # which?


def test_options_may_stand_before_the_verb_of_a_group() -> None:
    assert find(["market", "--zone", "a", "deadline", "f"]) == ("market deadline", ["--zone", "a", "f"])
    assert find(["job", "--json", "show", "job-1"]) == ("job show", ["--json", "job-1"])
    assert find(["job", "logs", "show"]) == ("job logs", ["show"])  # a job may be called as a verb


def test_help_of_an_old_name_says_where_its_verbs_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nodes", "--help"])
    assert "`brimful fleet --help`" in capsys.readouterr().err


def test_a_person_is_told_the_new_name_and_a_script_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text("")
    assert main(["price", "--log", str(log)]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["price", "--log", str(log)]) == 0
    assert "`brimful market price`" in capsys.readouterr().err
