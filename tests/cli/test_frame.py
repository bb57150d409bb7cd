"""The frame around every command: help, envelope, exit codes, and what start-up may import."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from brimful import __version__
from brimful.cli.commands import (
    BAD_INPUT,
    COMMANDS,
    DEFAULTS,
    GROUPS,
    HEADINGS,
    WORLD_FAILED,
    YES,
    about,
    find,
    load,
    verbs_of,
)
from brimful.cli.main import main
from brimful.errors import BadInput, BrimfulError, Refused, WorldFailed
from brimful.language import say, told

ROOT = Path(__file__).resolve().parent.parent.parent
HEAVY = {"torch", "numpy", "fastapi", "starlette", "uvicorn", "sqlalchemy", "jinja2", "pydantic", "asyncio"}
FIT = ["fit", "examples/nanogpt/train_fineweb.py", "--gpu", "rtx-4070"]


def modules_after(statement: str) -> set[str]:
    """Names in sys.modules of a new interpreter that ran the statement."""
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def modules_after_command(args: Sequence[str]) -> set[str]:
    return modules_after(f"from brimful.cli.main import main\nmain({list(args)!r})")


def test_importing_brimful_imports_only_the_standard_library() -> None:
    brought = {module.partition(".")[0] for module in modules_after("import brimful") - modules_after("pass")}
    assert brought <= {*sys.stdlib_module_names, "brimful"}


@pytest.mark.parametrize("line", ["--help", "job", "fleet --help"])
def test_an_overview_imports_no_command_and_nothing_heavy(line: str) -> None:
    modules = modules_after_command(line.split())
    assert not {name for name in modules if name.startswith("brimful.cli.") and name.count(".") > 2}
    assert not modules & {*HEAVY, "argparse"}


def test_a_fit_imports_neither_torch_nor_numpy_nor_the_server() -> None:
    modules = modules_after_command(FIT)
    assert "brimful.cli.gpu.fit" in modules
    assert not modules & HEAVY
    assert not {module for module in modules if module.startswith(("brimful.server", "brimful.adapters"))}


def did_you_mean(command: str) -> str:
    return told(say("cli.hint_did_you_mean_command", name=command))


def see_help(command: str) -> str:
    return told(say("cli.hint_see_help", program=f"brimful {command}"))


def test_the_overview_fits_one_screen_and_ends_with_where_to_begin(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == YES
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert " brimful fit " in lines[-1]


def test_every_command_is_found_from_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    main(["help"])
    text = capsys.readouterr().out
    listed = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert set(listed) == {name.partition(" ")[0] for name in COMMANDS}
    for group in GROUPS:
        assert ", ".join(verbs_of(group)) in listed[group]
    assert {home.partition(".")[0] for home in COMMANDS.values()} == set(HEADINGS)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_its_verbs(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([group, "--help"], [group, "-h"], [group, "help"], ["help", group]):
        assert main(words) == YES
        text = capsys.readouterr().out
        assert text.startswith(f"usage: brimful {group} VERB")
        assert max(map(len, text.splitlines())) <= 80
        for verb in verbs_of(group):
            assert f"  {verb} " in text
            assert about(f"{group} {verb}") in text
    assert len(verbs_of(group)) > 1


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_alone_reads_or_lists_its_verbs(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    if group in DEFAULTS:
        assert find([group, "--json"]) == (DEFAULTS[group], ["--json"])
        return
    assert main([group]) == YES
    assert f"usage: brimful {group} VERB" in capsys.readouterr().out
    assert main([group, "--json"]) == BAD_INPUT
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == see_help(group)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_an_example_and_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    examples = load(name).verb.example.strip()
    assert examples.startswith("brimful ")
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    assert stop.value.code == YES
    text = capsys.readouterr().out
    assert f"\n{'examples' if chr(10) in examples else 'example'}:\n  brimful " in text
    assert "--json" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_one_envelope_under_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--no-such-option", "--json"]) == BAD_INPUT
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["ok"] is False
    assert set(answer["error"]) == {"code", "problem", "hint", "reason"}
    assert f"brimful {name} --help" in answer["error"]["hint"]
    assert err == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_one_error_and_one_hint_for_people(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*name.split(), "--no-such-option"]) == BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\nhint: ") == 1


def test_a_misspelt_option_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    for typed in (["--batchsize", "4"], ["--batchsize=4"]):
        assert main(["fit", "--model", "gpt2", "--gpu", "4070", *typed, "--json"]) == BAD_INPUT
        hint = json.loads(capsys.readouterr().out)["error"]["hint"]
        assert hint == told(say("cli.hint_did_you_mean_option", option="--batch-size", name="fit"))


def test_an_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    for words, meant in (
        (["fti"], "fit"),
        (["shwo", "job-1"], "job show"),
        (["drain", "local-0"], "fleet drain"),
        (["clear"], "market clear"),  # spelled like `admin clean`, which is one keystroke away
        (["clean"], "admin clean"),
    ):
        assert main(words) == BAD_INPUT
        assert did_you_mean(meant) in capsys.readouterr().err
    for words in (["qqqq"], ["job", "qqqq"]):
        assert main([*words, "--json"]) == BAD_INPUT
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "unknown_command"


def test_an_unknown_verb_suggests_one_of_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    for words, meant in ((["job", "cancle", "job-1"], "job cancel"), (["job", "job-7"], "job show job-7")):
        assert main(words) == BAD_INPUT
        assert did_you_mean(meant) in capsys.readouterr().err
    assert main(["fleet", "cancle"]) == BAD_INPUT
    assert see_help("fleet") in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == YES
    said = capsys.readouterr().out
    assert re.fullmatch(rf"brimful {re.escape(__version__)}( \([0-9a-f]{{12}}(-dirty)?\))?\n", said), said


def test_every_error_has_one_of_three_exit_codes() -> None:
    assert (Refused.exit_code, BadInput.exit_code, WorldFailed.exit_code) == (1, BAD_INPUT, WORLD_FAILED)
    kinds = [BrimfulError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        assert kind.exit_code in (1, BAD_INPUT, WORLD_FAILED)


def test_output_into_a_closed_pipe_is_no_traceback() -> None:
    done = subprocess.run(
        f"{sys.executable} -m brimful.cli.main gpus | head -n 1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_a_script_that_does_not_exist_is_blamed_before_a_missing_pytorch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("brimful.tracing.program.find_spec", lambda _name: None)
    main(["trace", "nosuch.py", "--gpu", "rtx-4070", "--json"])
    assert json.loads(capsys.readouterr().out)["error"]["reason"]["code"] == "tracing.no_script"
