"""What a command is, and the list of them: decision 30 says where a new one belongs.

The list is data, so that `brimful --help` need not import a single command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brimful.errors import BadInput

if TYPE_CHECKING:
    import argparse

YES, NO, BAD_INPUT, WORLD_FAILED = 0, 1, 2, 3
HELP = {"-h", "--help", "help"}

# Name -> the file below cli/ that has it, and what it does. A name of two words is a verb of a group.
COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("gpu.fit", "will this config fit this GPU, how fast is it, what should change?"),
    "explain": ("gpu.explain", "what does this error, log line or nvidia-smi table mean?"),
    "claims": ("gpu.claims", "is the advice I found any good, for this config on this card?"),
    "sweep": ("gpu.sweep", "memory and speed over a range of batch sizes or lengths"),
    "trace": ("gpu.trace", "run your script without a GPU: what would it hold, where run out?"),
    "replay": ("gpu.replay", "recorded GPU memory: who held it, and which setting would save some?"),
    "run": ("gpu.run", "start a training command and keep it alive when memory runs out"),
    "why-slow": ("gpu.why_slow", "why does this run not use its GPU, and what would help?"),
    "gpus": ("gpu.gpus", "list the GPUs brimful knows, or show one"),
    "runs record": ("gpu.record", "add a measured run to a table for `score` and `calibrate`"),
    "runs score": ("gpu.score", "predict a table of measured runs and print how far off we are"),
    "runs calibrate": ("gpu.calibrate", "correct the estimates by runs you measured yourself"),
    "submit": ("fleet.submit", "hand brimful a command to run when GPUs are free"),
    "jobs": ("fleet.jobs", "list jobs and why they wait"),
    "job show": ("fleet.show", "what a job is doing, its leases and its bill"),
    "job why": ("fleet.job", "why a job waits, why it is where it is, and why at this price"),
    "job logs": ("fleet.job", "what a job printed"),
    "job cancel": ("fleet.job", "stop jobs, or take them out of the queue"),
    "job hold": ("fleet.job", "keep a job from starting, or stop it until it is released"),
    "job release": ("fleet.job", "let a job that is on hold go on"),
    "job move": ("fleet.job", "run a job at another site"),
    "job bid": ("fleet.job", "what a job offers for a GPU-hour; raise or lower it"),
    "top": ("fleet.top", "the fleet, live in the terminal"),
    "fleet show": ("fleet.fleet", "every GPU brimful may use, and who holds it"),
    "fleet nodes": ("fleet.fleet", "list nodes"),
    "fleet drain": ("fleet.fleet", "start nothing more on a node, before maintenance"),
    "fleet resume": ("fleet.fleet", "give a drained node work again"),
    "fleet queues": ("fleet.fleet", "who holds GPUs, who waits, and how much each has had lately"),
    "fleet events": ("fleet.fleet", "what has happened, as the log has it"),
    "market price": ("money.price", "what an hour of each pool costs now, and how it came there"),
    "market where": ("money.where", "the cheapest places for a training job, per useful work"),
    "market clear": ("money.market", "who wins a book of bids, and at what price"),
    "market deadline": ("money.market", "what meeting a deadline costs on recorded spot capacity"),
    "market ledger": ("money.accounts", "every account, rebuilt from a log of events"),
    "budget": ("money.accounts", "what each tenant may still spend; set a hard limit"),
    "invoice": ("money.accounts", "what each team, job or GPU type cost, and how much was waste"),
    "up": ("operate.server", "start brimful here: API, console and scheduler, on loopback"),
    "demo": ("operate.demo", "a fleet of your own for a few minutes, with real short jobs"),
    "console": ("operate.server", "a link that opens the console in a browser"),
    "watch": ("operate.watch", "this machine's GPUs, live: memory, useful work, who is on them"),
    "simulate": ("operate.simulate", "replay a trace of jobs through the real scheduler, in virtual time"),
    "admin backup": ("operate.database", "the whole database in one file, while brimful runs"),
    "admin restore": ("operate.database", "fill an empty database from a backup"),
    "admin doctor": ("operate.database", "check every promise brimful makes on its own data"),
    "admin tokens": ("operate.tokens", "who may use this brimful, and what they did"),
    "admin exporter": ("operate.exporter", "this machine's GPUs and runs, for Prometheus"),
}

GROUPS: dict[str, str] = {
    "runs": "runs you measured, beside what was predicted",
    "job": "one job: look at it, stop it, move it, bid for it",
    "fleet": "nodes and GPUs: what they do, and taking them out of work",
    "market": "what GPU time costs, here and elsewhere",
    "admin": "brimful's own data, its users, its metrics",
}
# What a group does without a verb. It only reads.
DEFAULTS = {"fleet": "fleet show", "market": "market price"}

# By folder; the order is that of COMMANDS.
HEADINGS = {"gpu": "One GPU", "fleet": "A fleet and its jobs", "money": "Money", "operate": "Operate"}

# Names before there were groups: they work until the next release, and no help shows them.
OLD: dict[str, str] = {
    **{name: f"runs {name}" for name in ("record", "score", "calibrate")},
    **{name: f"job {name}" for name in ("show", "why", "logs", "cancel", "hold", "release", "move", "bid")},
    **{name: f"fleet {name}" for name in ("nodes", "queues", "events")},
    **{name: f"market {name}" for name in ("price", "where")},
    "market replay": "market ledger",
    **{name: f"admin {name}" for name in ("backup", "restore", "doctor", "tokens", "exporter")},
}


def verbs_of(group: str) -> dict[str, str]:
    """Verb -> what it does."""
    return {
        name.removeprefix(f"{group} "): help
        for name, (_, help) in COMMANDS.items()
        if name.startswith(f"{group} ")
    }


def find(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command that a command line names, or the group alone; and the rest of the line."""
    first, rest = words[0], list(words[1:])
    if first in OLD or first in COMMANDS:
        return OLD.get(first, first), rest
    if first not in GROUPS:
        raise _unknown(first)
    named = {name.partition(" ")[2] for name in (*COMMANDS, *OLD) if name.startswith(f"{first} ")}
    if rest and not rest[0].startswith("-") and rest[0] not in named | HELP:
        raise _unknown(rest[0], group=first)
    # Options may stand before the verb: `brimful job --json show job-1`.
    at = next((i for i, word in enumerate(rest) if word in named), None)
    if at is not None:
        name = f"{first} {rest.pop(at)}"
        return OLD.get(name, name), rest
    return (DEFAULTS.get(first, first) if HELP.isdisjoint(rest) else first), rest


def _unknown(word: str, *, group: str = "") -> BadInput:
    from difflib import get_close_matches

    from brimful.language import Quoted, say

    # By the name as it stands, and by a verb whose group was left out.
    names = {name.rpartition(" ")[2]: name for name in COMMANDS if name.startswith(group and f"{group} ")}
    names |= {} if group else {name: name for name in GROUPS}
    near = get_close_matches(word, names, n=1)
    is_id = group == "job" and word[-1:].isdigit()
    meant = names[near[0]] if near else f"job show {word[:60]}" if is_id else ""
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


def overview() -> str:
    """Every command in a line, every group in a line with its verbs: one screen, held by a test."""
    lines = ["brimful fills the GPUs you already pay for.", "usage: brimful COMMAND [options]"]
    shown: set[str] = set()
    for name, (home, help) in COMMANDS.items():
        heading = HEADINGS[home.partition(".")[0]]
        if heading not in shown:
            lines += ["", f"{heading}:"]
        first = name.partition(" ")[0]
        if first not in GROUPS:
            lines.append(f"  {first:<8}  {help}")
        elif first not in shown:
            lines.append(f"  {first + ' …':<8}  {', '.join(verbs_of(first))}")
        shown |= {heading, first}
    lines += [
        "",
        "Every command takes --json and --help (with an example); … stands for a verb.",
        "Exit codes: 0 yes, 1 no, 2 bad input, 3 environment error (disk, network).",
        "",
        "begin with:  brimful fit examples/nanogpt/train_fineweb.py --gpu rtx-4070",
        "a fleet:     brimful demo",
    ]
    return "\n".join(lines)


def group_overview(group: str) -> str:
    verbs = verbs_of(group)
    width = max(map(len, verbs))
    about = GROUPS[group]
    lines = [f"usage: brimful {group} VERB [options]", "", f"{about[0].upper()}{about[1:]}.", ""]
    lines += [f"  {verb:<{width}}  {help}" for verb, help in verbs.items()]
    lines += ["", f"`brimful {group} VERB --help` has the options and an example."]
    if group in DEFAULTS:
        lines.append(f"`brimful {group}` alone is `brimful {DEFAULTS[group]}`.")
    return "\n".join(lines)


def whole(text: str) -> int:
    """A count for argparse: 1 or more, and not absurd."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if value < 1:
        from argparse import ArgumentTypeError

        from brimful.cli.spoken import words
        from brimful.language import Quoted

        raise ArgumentTypeError(words("cli.not_whole_number_above_zero", text=Quoted(text[:40])))
    return value


def called() -> str:
    """How the user called us, so that a hint can be pasted as it stands."""
    import shutil
    import sys

    said = sys.argv[0] if sys.argv else ""
    # On the path, a program is told its whole name all the same; nobody typed that.
    return said if said.endswith("bin/brimful") and shutil.which("brimful") != said else "brimful"


class Answer(NamedTuple):
    """What a command found out. `data` goes into the JSON envelope, `text` to people."""

    data: Any
    text: str
    exit_code: int = YES


class Verb(NamedTuple):
    """How a command is called and run. A file with several commands has them in `VERBS`."""

    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Answer]


class Command(NamedTuple):
    name: str
    help: str
    verb: Verb
    takes_command: bool  # whether words after `--` are the user's own command


def load(name: str) -> Command:
    """Import one command, and only that one: start-up time is a promise."""
    from importlib import import_module

    home, help = COMMANDS[name]
    module = import_module(f"brimful.cli.{home}")
    if hasattr(module, "VERBS"):
        verb = module.VERBS[name.rpartition(" ")[2]]
    else:
        verb = Verb(module.EXAMPLE, module.add_arguments, module.run)
    return Command(name, help, verb, getattr(module, "TAKES_COMMAND", False))
