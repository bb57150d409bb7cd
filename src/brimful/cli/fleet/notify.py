"""`brimful job notify`: be told what becomes of jobs, by webhook or mail."""

from __future__ import annotations

import argparse

from brimful.cli.commands import Answer
from brimful.cli.render import table
from brimful.client.answers import NotificationAnswer
from brimful.client.client import Client
from brimful.errors import BadInput
from brimful.language import say, verbatim, words
from brimful.language.printable import all_printable

EXAMPLE = """brimful job notify
brimful job notify add mailto:alice@example.org --on failed --on over_budget
brimful job notify add https://hooks.example.org/brimful --team
brimful job notify remove 4f1c0a9be2d37a55"""
KINDS = ("finished", "failed", "preempted", "over_budget", "idle", "budget", "audit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", choices=("list", "add", "remove"), default="list")
    parser.add_argument("target", nargs="?", metavar="TARGET")
    parser.add_argument("--on", action="append", default=[], choices=KINDS)
    parser.add_argument("--team", action="store_true")


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.verb == "list":
        found = client.notifications()
        return Answer(found, _list(all_printable(found["notifications"])))
    if args.target is None:
        hint = verbatim(EXAMPLE.splitlines()[1 if args.verb == "add" else 3])
        raise BadInput(say("fleet.notify_needs_target", verb=args.verb), hint=hint)
    if args.verb == "remove":
        gone = client.remove_notification(args.target)
        return Answer(gone, words("fleet.notify_removed", rule=gone["notification"]))
    made = client.add_notification(args.target, on=args.on, team=args.team)
    rule = all_printable(made["notification"])
    text = words("fleet.notify_added", rule=rule["notification"], on=", ".join(rule["on"]))
    if not rule["target"].startswith("mailto:"):
        text += f"\n{words('fleet.notify_secret', secret=made['secret'])}"
    return Answer(made, text)


def _list(rules: list[NotificationAnswer]) -> str:
    if not rules:
        return words("fleet.notify_none")
    rows = [
        [
            *(rule["notification"], rule["tenant"] if rule["team"] else words("fleet.notify_mine")),
            *(", ".join(rule["on"]), str(rule["waiting"]), str(rule["dead"]), rule["target"]),
        ]
        for rule in rules
    ]
    columns = ("rule", "whose", "on", "waiting", "dead", "target")
    return table([words(f"fleet.notify_col_{name}") for name in columns], rows, right=(3, 4))
