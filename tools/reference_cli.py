"""docs/reference/cli.md, from the parsers."""

from __future__ import annotations

import argparse

from brimful.cli.commands import COMMANDS, DEFAULTS, GROUPS, HEADINGS, OLD, about, load, verbs_of
from brimful.cli.options import parser_for
from tools.markdown import NOTE, row

OLD_NODES = {f"nodes {verb}": f"fleet {verb}" for verb in ("drain", "resume")}  # hidden in `fleet nodes`


def cli_page() -> str:
    parts = [NOTE, "# Command line\n", "Every command takes `--json` and `--help`.\n"]
    for folder in HEADINGS:
        parts.append(f"## {about(f'heading_{folder}').rstrip(':')}\n")
        told: set[str] = set()
        for name, home in COMMANDS.items():
            if home.partition(".")[0] == folder:
                group = name.partition(" ")[0]
                if group in GROUPS and group not in told:
                    parts.append(group_section(group))
                parts.append(command_section(name))
                told.add(group)
    parts.append(
        "## Exit codes\n\n| Code | Meaning |\n|---|---|\n| 0 | yes, done |\n"
        "| 1 | a clear no, such as “does not fit” |\n| 2 | bad input |\n"
        "| 3 | environment error: disk, network, port, database, process |\n"
        "| 130 | stopped by Ctrl-C |\n"
    )
    return "\n".join([*parts, old_names()])


def group_section(group: str) -> str:
    does = about(f"group_{group}")
    lines = [f"### brimful {group}\n", f"{does[0].upper()}{does[1:]}.", ""]
    lines.append("| Verb | Meaning |\n|---|---|")
    lines += [row(f"`{verb}`", about(f"{group} {verb}")) for verb in verbs_of(group)]
    if group in DEFAULTS:
        lines.append(f"\n`brimful {group}` alone is `brimful {DEFAULTS[group]}`.")
    return "\n".join([*lines, ""])


def old_names() -> str:
    lines = [
        "## Old names\n",
        "They work for one more release; no help shows them.\n",
        "| Old | New |\n|---|---|",
        *[row(f"`brimful {old}`", f"`brimful {new}`") for old, new in {**OLD, **OLD_NODES}.items()],
    ]
    return "\n".join([*lines, ""])


def command_section(name: str) -> str:
    command = load(name)
    parser = parser_for(command)
    parser.describe()
    # Written from the actions, because argparse's own layout differs between Python versions.
    hidden = argparse.SUPPRESS
    actions = [action for action in parser._actions if action.dest != "help" and action.help != hidden]
    words = [usage_word(action) for action in actions]
    if len(words) > 5:
        words = [*[word for word in words if not word.startswith("[-")], "[options]"]
    usage = parser.usage or " ".join([f"brimful {name}", *words])
    level = "####" if " " in name else "###"
    lines = [f"{level} brimful {name}\n", f"{parser.description}\n"]
    lines += [f"```text\n{usage}\n```\n", "| Argument | Meaning |\n|---|---|"]
    formatter = parser._get_formatter()
    for action in actions:
        meaning = formatter._expand_help(action) if action.help else ""
        named = "%(choices)s" in (action.help or "")
        choices = f" ({', '.join(map(str, action.choices))})" if action.choices and not named else ""
        lines.append(row(spelling(action), " ".join(meaning.split()) + choices))
    lines.append(f"\n```console\n{prompt(command.verb.example)}\n```\n")
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
