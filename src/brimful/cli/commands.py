"""What a command is, and the list of them: decision 30 says where a new one belongs.

The list is data, so that `brimful --help` need not import any command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from brimful.errors import BadInput
from brimful.language.catalog import LANGUAGES, language_of_locale, template
from brimful.units import integer_from_text

if TYPE_CHECKING:
    import argparse

YES, NO, BAD_INPUT, WORLD_FAILED = 0, 1, 2, 3
HELP = {"-h", "--help", "help"}


def _verbs(group: str, verbs: str, home: str) -> dict[str, str]:
    return {f"{group} {verb}": home for verb in verbs.split()}


# Name -> its file below cli/. A name of two words is a verb of a group. The language room's `commands.json`
# says what each does.
COMMANDS: dict[str, str] = {
    "fit": "gpu.fit",
    "explain": "gpu.explain",
    "claims": "gpu.claims",
    "sweep": "gpu.sweep",
    "trace": "gpu.trace",
    "replay": "gpu.replay",
    "run": "gpu.run",
    "why-slow": "gpu.why_slow",
    "gpus": "gpu.gpus",
    "runs check": "gpu.check",
    "runs record": "gpu.record",
    "runs score": "gpu.score",
    "runs calibrate": "gpu.calibrate",
    "runs batch": "gpu.batch",
    "submit": "fleet.submit",
    "jobs": "fleet.jobs",
    **_verbs("job", "show why logs cancel hold release move bid notify", "fleet.job"),
    "top": "fleet.top",
    **_verbs("fleet", "show nodes drain resume queues events", "fleet.fleet"),
    "fleet rehearse": "fleet.rehearse",
    "market price": "money.price",
    "market where": "money.where",
    "market forecast": "money.forecast",
    **_verbs("market", "clear deadline", "money.market"),
    "market ledger": "money.accounts",
    **_verbs("reserve", "quote buy grant pause resume return extend list", "money.reserve"),
    **_verbs("cloud", "show offers plan check", "money.cloud"),
    "budget": "money.accounts",
    "invoice": "money.accounts",
    "up": "operate.server",
    "demo": "operate.demo",
    "console": "operate.server",
    "watch": "operate.watch",
    "simulate": "operate.simulate",
    "audit": "operate.audit",
    **_verbs("admin", "backup restore doctor clean", "operate.database"),
    **_verbs("admin", "tokens users", "operate.access"),
    "admin exporter": "operate.exporter",
    "admin observed": "operate.observed",
    "completion": "operate.completion",
}

GROUPS = ("runs", "job", "fleet", "market", "reserve", "cloud", "admin")
# What a group does without a verb. Read-only.
DEFAULTS = {"fleet": "fleet show", "market": "market price", "reserve": "reserve list", "cloud": "cloud show"}

HEADINGS = ("gpu", "fleet", "money", "operate")  # by folder, in the order of COMMANDS

# Names from before there were groups: they work until the next release, and no help shows them.
OLD: dict[str, str] = {
    **{name: f"runs {name}" for name in ("record", "score", "calibrate")},
    **{name: f"job {name}" for name in ("show", "why", "logs", "cancel", "hold", "release", "move", "bid")},
    **{name: f"fleet {name}" for name in ("nodes", "queues", "events")},
    **{name: f"market {name}" for name in ("price", "where")},
    "market replay": "market ledger",
    **{name: f"admin {name}" for name in ("backup", "restore", "doctor", "tokens", "exporter")},
}

SHORT = {
    "forecast": "market forecast",
    "batch": "runs batch",
    "check": "runs check",
    "rehearse": "fleet rehearse",
}  # permanent short forms without their group
# What other programs call a command, where no spelling leads to ours.
MEANT = {"models": "fit --models", "ps": "jobs", "serve": "up", "start": "up", "status": "fleet"}


def verbs_of(group: str) -> list[str]:
    return [name.partition(" ")[2] for name in COMMANDS if name.startswith(f"{group} ")]


def about(name: str, language: str = "en") -> str:
    """What a command does, in one line; or a group (`group_job`), or any other entry of that catalog."""
    return str(template(f"commands.{name.replace(' ', '_').replace('-', '_')}", language))


def asked_language(words: Sequence[str]) -> str:
    """From `--lang`, otherwise from the locale: also for a command line that cannot be parsed."""
    asked = [after for word, after in pairwise(words) if word == "--lang"]
    asked += [word.removeprefix("--lang=") for word in words if word.startswith("--lang=")]
    return next((code for code in asked if code in LANGUAGES), language_of_locale(os.environ))


def find(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command that a command line names, or only the group; and the rest of the line."""
    first, rest = words[0], list(words[1:])
    if first in OLD or first in SHORT or first in COMMANDS:
        return {**OLD, **SHORT}.get(first, first), rest
    if first not in GROUPS:
        raise _unknown(first)
    named = {name.partition(" ")[2] for name in (*COMMANDS, *OLD) if name.startswith(f"{first} ")}
    if rest and not rest[0].startswith("-") and rest[0] not in named | HELP:
        raise _unknown(rest[0], group=first)
    # Options may come before the verb: `brimful job --json show job-1`.
    at = next((i for i, word in enumerate(rest) if word in named), None)
    if at is not None:
        name = f"{first} {rest.pop(at)}"
        return OLD.get(name, name), rest
    return (DEFAULTS.get(first, first) if HELP.isdisjoint(rest) else first), rest


def _unknown(word: str, *, group: str = "") -> BadInput:
    from brimful.language import Quoted, say
    from brimful.language.near import similar

    # By the exact name, and by a verb without its group: the first group that has it.
    all_names = (name for name in reversed(COMMANDS) if name.startswith(group and f"{group} "))
    names = {name.rpartition(" ")[2]: name for name in all_names}
    names |= {} if group else dict(zip(GROUPS, GROUPS, strict=True))
    near = [word] if word in names else similar(word, names)
    is_id = group == "job" and word[-1:].isdigit()
    meant = names[near[0]] if near else f"job show {word[:60]}" if is_id else ""
    meant = meant if group else MEANT.get(word, meant)
    about = f"brimful {group}".strip()
    problem = (
        say("cli.no_verb", about=about, word=Quoted(word))
        if group
        else say("cli.no_command", word=Quoted(word))
    )
    hint = say("cli.hint_see_commands", about=about)
    if meant:
        hint = say("cli.hint_did_you_mean_command", name=meant)
    return BadInput(problem, hint=hint, code="unknown_command")


def overview(language: str = "en") -> str:
    """Every command on a line, every group on a line with its verbs: one screen, checked by a test."""
    lines = [about("overview_promise", language), about("overview_usage", language)]
    shown: set[str] = set()
    for name, home in COMMANDS.items():
        heading = home.partition(".")[0]
        if heading not in shown:
            lines += [*([""] if shown else ()), about(f"heading_{heading}", language)]
        first = name.partition(" ")[0]
        if first not in GROUPS:
            lines.append(f"  {first:<10} {about(name, language)}")
        elif f"{first} …" not in shown:
            lines.append(f"  {first + ' …':<10} {', '.join(verbs_of(first))}")
        shown |= {heading, f"{first} …"}
    lines += [about("overview_options", language), about("overview_exit_codes", language)]
    begin, fleet = about("overview_begin", language), about("overview_fleet", language)
    lines.append(f"{begin} brimful fit --model gpt2 --gpu rtx-4070   {fleet} brimful demo")
    return "\n".join(lines)


def group_overview(group: str, language: str = "en") -> str:
    verbs = verbs_of(group)
    width = max(map(len, verbs))
    does = about(f"group_{group}", language)
    lines = [about("group_usage", language).format(group=group), "", f"{does[0].upper()}{does[1:]}.", ""]
    lines += [f"  {verb:<{width}}  {about(f'{group} {verb}', language)}" for verb in verbs]
    lines += ["", about("group_options", language).format(group=group)]
    if group in DEFAULTS:
        lines.append(about("group_alone", language).format(group=group, default=DEFAULTS[group]))
    return "\n".join(lines)


MOST = 9_999_999


def integer(text: str, *, least: int = 1) -> int:
    """A count for argparse, with a sane limit."""
    value = integer_from_text(text, low=least, high=MOST)
    if value is None:
        from argparse import ArgumentTypeError

        from brimful.language import Number, Quoted, words

        said = {"text": Quoted(text[:40]), "least": least, "most": Number(MOST)}
        raise ArgumentTypeError(words("cli.not_a_count", **said))
    return value


def called() -> str:
    """How the user called us, so that a hint can be pasted."""
    import shutil
    import sys

    said = sys.argv[0] if sys.argv else ""
    # A program on the PATH still gets its full path; nobody typed that.
    return said if said.endswith("bin/brimful") and shutil.which("brimful") != said else "brimful"


class Answer(NamedTuple):
    """A command's result. `data` goes into the JSON envelope, `text` to people."""

    data: Any
    text: str
    exit_code: int = YES
    raw: bool = False  # another program's output, shown unchanged


class Verb(NamedTuple):
    """How a command is called and run. A file with several commands lists them in `VERBS`."""

    example: str
    arguments: Sequence[Callable[[argparse.ArgumentParser], object]]
    run: Callable[[argparse.Namespace], Answer]


class Command(NamedTuple):
    name: str
    verb: Verb
    takes_command: bool  # whether words after `--` are the user's own command


def load(name: str) -> Command:
    """Import only this one command: fast start-up is a promise."""
    from importlib import import_module

    module = import_module(f"brimful.cli.{COMMANDS[name]}")
    if hasattr(module, "VERBS"):
        verb = module.VERBS[name.rpartition(" ")[2]]
    else:
        verb = Verb(module.EXAMPLE, (module.add_arguments,), module.run)
    return Command(name, verb, getattr(module, "TAKES_COMMAND", False))
