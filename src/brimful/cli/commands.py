"""What a command is, and the list of them.

The list is data, so that `brimful --help` need not import a single command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import argparse

YES, NO, BAD_INPUT, WORLD_FAILED = 0, 1, 2, 3

# Name -> what it does. A command `x-y` lives in cli/x_y.py and offers EXAMPLE, add_arguments and run.
COMMANDS: dict[str, str] = {
    "fit": "will this training config fit this GPU, how fast is it, and what should change?",
    "explain": "what does this error, log line or nvidia-smi table mean?",
    "claims": "is the advice I found any good, for this config on this card?",
    "sweep": "memory and speed over a range of batch sizes or lengths",
    "replay": "replay recorded GPU memory: who held it, and which setting would save some?",
    "trace": "run your own script without a GPU: what would it hold, and where would it run out?",
    "run": "start a training command and keep it alive when GPU memory runs out",
    "watch": "this machine's GPUs, live: memory beside useful work, and who is on them",
    "exporter": "this machine's GPUs and runs, for Prometheus",
    "why-slow": "why does this run not use its GPU, and what would help?",
    "record": "write a measured run down for `score` and `calibrate`",
    "gpus": "list the GPUs brimful knows, or show one",
    "score": "predict a table of measured runs and print how far off we are",
    "calibrate": "correct the estimates by runs you measured yourself",
    "up": "start brimful here: API, console and scheduler, on loopback",
    "submit": "hand a command to brimful to run when GPUs are free",
    "jobs": "list jobs and why they wait",
    "show": "one job: what it is doing, its leases and its bill",
    "why": "why a job waits, why it is where it is, and why at this price",
    "logs": "what a job printed",
    "cancel": "stop a job, or take it out of the queue",
    "hold": "keep a job from starting, or stop it until it is released",
    "release": "let a job that is on hold go on",
    "move": "run a job at another site",
    "fleet": "the nodes and GPUs brimful may use, and who holds them",
    "backup": "the whole database in one file, while brimful runs",
    "restore": "fill an empty database from a backup",
    "doctor": "check every promise brimful makes on its own data",
    "nodes": "list nodes, drain one before maintenance, give it work again",
    "queues": "who holds GPUs, who waits, and how much each has had lately",
    "events": "what has happened, as the log has it",
    "top": "the fleet, live in the terminal",
    "console": "a link that opens the console in a browser",
    "tokens": "who may use this brimful, and what they did",
    "demo": "a fleet of your own for a few minutes, with real short jobs",
    "price": "what an hour of each pool costs now, and how it came there",
    "bid": "what a job offers for an hour of a GPU; raise or lower it",
    "budget": "what each tenant may still spend; set a hard limit",
    "invoice": "what each team, job or GPU type cost, and what of it was waste",
    "where": "the cheapest places for a training job, per useful work",
    "market": "clear a book of bids, or try a deadline on recorded spot capacity",
    "simulate": "replay a trace of jobs through the real scheduler on a virtual clock",
}

SPOKEN = ("fit", "explain", "claims", "sweep", "trace")  # told in four languages, errors included

# Shown by `brimful --help`, so that a newcomer sees where to begin.
GROUPS: dict[str, tuple[str, ...]] = {
    "One job, one GPU": (
        "fit",
        "explain",
        "claims",
        "sweep",
        "trace",
        "replay",
        "run",
        "watch",
        "exporter",
        "why-slow",
        "record",
        "gpus",
        "score",
        "calibrate",
    ),
    "A fleet": ("up", "demo", "console", "top", "fleet", "nodes", "queues", "events", "tokens"),
    "Its jobs": ("submit", "jobs", "show", "why", "logs", "cancel", "hold", "release", "move"),
    "Keep it": ("backup", "restore", "doctor"),
    "Money": ("price", "bid", "budget", "invoice", "where", "market"),
    "Rehearse": ("simulate",),
}


def whole(text: str) -> int:
    """A count for argparse: 1 or more, and not absurd."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if value < 1:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"{text[:40]!r} is not a whole number above zero")
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


class Command(NamedTuple):
    name: str
    help: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Answer]
    takes_command: bool  # whether words after `--` are the user's own command


def load(name: str) -> Command:
    """Import one command, and only that one: start-up time is a promise."""
    from importlib import import_module

    module = import_module(f"brimful.cli.{name.replace('-', '_')}")
    takes_command = getattr(module, "TAKES_COMMAND", False)
    return Command(name, COMMANDS[name], module.EXAMPLE, module.add_arguments, module.run, takes_command)
