"""docs/reference/cli.md, from the parsers."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from brimful.cli.commands import COMMANDS, GROUPS, load
from brimful.cli.main import parser_for
from tools.markdown import NOTE, row


def cli_page() -> str:
    parts = [NOTE, "# Command line\n", "Every command takes `--json` and `--help`.\n"]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [command_section(name) for name in names if find_spec(f"brimful.cli.{name}")]
    parts.append(
        "## Exit codes\n\n| Code | Meaning |\n|---|---|\n| 0 | yes, done |\n"
        "| 1 | a clear no, such as “does not fit” |\n| 2 | bad input |\n"
        "| 3 | the world failed: disk, network, port, database, process |\n"
        "| 130 | stopped by Ctrl-C |\n"
    )
    return "\n".join(parts)


def command_section(name: str) -> str:
    command = load(name)
    parser = parser_for(command)
    # Written from the actions, since argparse's own layout differs between Python versions.
    actions = [action for action in parser._actions if action.dest != "help"]
    words = [usage_word(action) for action in actions]
    if len(words) > 5:
        words = [*[word for word in words if not word.startswith("[-")], "[options]"]
    usage = parser.usage or " ".join([f"brimful {name}", *words])
    lines = [f"### brimful {name}\n", f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}\n"]
    lines += [f"```text\n{usage}\n```\n", "| Argument | Meaning |\n|---|---|"]
    formatter = parser._get_formatter()
    for action in actions:
        meaning = formatter._expand_help(action) if action.help else ""
        choices = f" ({', '.join(map(str, action.choices))})" if action.choices else ""
        lines.append(row(spelling(action), " ".join(meaning.split()) + choices))
    lines.append(f"\n```console\n{prompt(command.example)}\n```\n")
    return "\n".join(lines)


def usage_word(action: argparse.Action) -> str:
    if not action.option_strings:
        return placeholder(action)
    word = max(action.option_strings, key=len) + value(action)
    return word if action.required else f"[{word}]"


def spelling(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{placeholder(action)}`"
    return ", ".join(f"`{option}{value(action)}`" for option in action.option_strings)


def value(action: argparse.Action) -> str:
    return "" if action.nargs == 0 else f" {placeholder(action)}"


def placeholder(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    forms = {
        "?": f"[{name}]",
        "*": f"[{name} ...]",
        "+": f"{name} [{name} ...]",
        argparse.REMAINDER: f"{name} ...",
    }
    return forms.get(str(action.nargs), name)


def prompt(example: str) -> str:
    return "\n".join(
        f"$ {line}" if line.startswith("brimful") else line for line in example.strip().splitlines()
    )
