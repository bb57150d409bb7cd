"""Completion in the shells themselves: real ones, with nothing of ours running while they complete."""

from __future__ import annotations

import argparse
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from brimful.cli.commands import COMMANDS, GROUPS, load, verbs_of
from brimful.cli.main import main
from brimful.cli.options import parser_for
from brimful.specs.gpu import all_gpus
from tests.conftest import missing

NOTHING = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "TERM": "vt100"}


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    found = shutil.which(shell)
    if found is None:
        missing(shell, "tools/setup.sh system")
    capsys.readouterr()
    assert main(["completion", shell]) == 0
    path = folder / f"brimful.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.fixture
def bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bash:
    return Bash(script("bash", tmp_path, capsys))


class Bash:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, line: str) -> set[str]:
        """What bash offers at the end of the line, where the last word is being written."""
        words = " ".join(f"'{word}'" for word in line.split(" "))
        asked = f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _brimful"
        asked = f'. "{self.path}"; {asked}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        command = ["bash", "--norc", "--noprofile", "-uc", asked]
        done = subprocess.run(command, env=NOTHING, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("brimful fi", {"fit"}),
        ("brimful ", {name.partition(" ")[0] for name in COMMANDS}),
        ("brimful job ", set(verbs_of("job"))),
        ("brimful --lang de job w", {"why"}),
        ("brimful job logs --fo", {"--follow"}),
        ("brimful fit --gpu rtx-4070-ti", {"rtx-4070-ti", "rtx-4070-ti-super"}),
        ("brimful fit train.py --gpu l40", {"l40s"} | ({"l40"} & {gpu.name for gpu in all_gpus()})),
        ("brimful fit --lang ", {"en", "fr", "es", "de"}),
        ("brimful gpus h100-p", {"h100-pcie-80gb"}),
        ("brimful completion ", {"bash", "zsh", "fish"}),
        ("brimful no-such-command --", set()),
        ("brimful submit -- python --", set()),  # the user's own command
        ("brimful --v", {"--version"}),
    ],
)
def test_bash_offers_what_may_follow(bash: Bash, line: str, offered: set[str]) -> None:
    assert bash(line) == offered


def test_bash_offers_every_option_of_every_command(bash: Bash) -> None:
    for name in COMMANDS:
        actions = [one for one in parser_for(load(name))._actions if one.help != argparse.SUPPRESS]
        assert bash(f"brimful {name} -") == {word for one in actions for word in one.option_strings}, name


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("brimful fi", {"fit"}),
        ("brimful job w", {"why"}),
        ("brimful fit --gpu rtx-4070-ti", {"rtx-4070-ti", "rtx-4070-ti-super"}),
        ("brimful fit --che", {"--checkpointing"}),
        ("brimful completion ", {"bash", "zsh", "fish"}),
        ("brimful --lang de fleet q", {"queues"}),
    ],
)
def test_fish_offers_what_may_follow(
    line: str, offered: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script("fish", tmp_path, capsys)
    env = NOTHING | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    command = ["fish", "-c", f"source {path}; complete -C '{line}'"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {line.partition("\t")[0] for line in done.stdout.splitlines()} == offered
    assert done.stderr == ""


def test_zsh_completes_at_its_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("zsh", tmp_path, capsys)
    lines = {
        "brimful why-s": "brimful why-slow",
        "brimful job not": "brimful job notify",
        "brimful fit --checkp": "brimful fit --checkpointing",
        "brimful gpus h100-p": "brimful gpus h100-pcie-80gb",
        "brimful completion f": "brimful completion fish",
        "brimful audit us": "brimful audit usage.csv",  # a file
    }
    (tmp_path / "usage.csv").touch()
    # Tab, then to the start of the line, to print it instead of running it.
    typed = "".join(f"{line}\t\x01print -r -- DONE \n" for line in lines)
    said = at_a_terminal(
        ["zsh", "-f", "-i"],
        f"autoload -U compinit; compinit -D -u; source {path}\n{typed}exit\n",
        env=NOTHING | {"HOME": str(tmp_path), "PS1": "> "},
        folder=tmp_path,
    )
    shown = re.findall(r"^DONE (.*?)\s*$", said, re.MULTILINE)
    assert shown == list(lines.values()), said


def at_a_terminal(command: list[str], typed: str, *, env: dict[str, str], folder: Path) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=folder) as shell:
        os.close(theirs)
        os.write(ours, typed.encode())
        said = b""
        try:
            while some := os.read(ours, 65536):
                said += some
        except OSError:  # how a terminal says that nobody is left
            pass
        os.close(ours)
        shell.wait()
    return said.decode(errors="replace").replace("\r", "")


def test_every_group_is_completed_by_its_verbs(bash: Bash) -> None:
    assert all(bash(f"brimful {group} ") >= set(verbs_of(group)) for group in GROUPS)
