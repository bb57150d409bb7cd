"""`brimful admin users`: who is in which team, and with which role."""

from __future__ import annotations

import argparse

from brimful.cli.commands import Answer
from brimful.cli.fleet.show import day
from brimful.cli.render import table
from brimful.client.answers import UserAnswer
from brimful.client.client import Client
from brimful.errors import BadInput
from brimful.language import say, verbatim, words
from brimful.language.printable import all_printable, printable

EXAMPLE = """brimful admin users
brimful admin users set alice --tenant vision --role admin
brimful admin users remove alice --tenant vision"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", choices=("list", "set", "remove"), default="list")
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("--tenant", default="default")
    parser.add_argument("--role", choices=("viewer", "submitter", "admin", "operator"), default="submitter")


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.verb == "list":
        found = client.users()
        return Answer(found, _list(all_printable(found["users"])))
    if args.name is None:
        hint = verbatim(EXAMPLE.splitlines()[1])
        raise BadInput(say("operate.user_needs_name", verb=args.verb), hint=hint)
    role = args.role if args.verb == "set" else None
    user = client.set_role(args.name, tenant=args.tenant, role=role)
    said = {"user": printable(user["user"]), "tenant": args.tenant}
    if role is None:
        return Answer(user, words("operate.user_removed", **said))
    return Answer(user, words("operate.user_set", **said, role=role))


def _list(users: list[UserAnswer]) -> str:
    rows = [
        [user["user"], tenant, role, words(f"operate.by_{_way(user)}"), day(user["created_s"])]
        for user in users
        for tenant, role in user["roles"].items()
    ]
    head = ("name", "tenant", "role", "signs_in", "made")
    return table([words(f"operate.col_{name}") for name in head], rows)


def _way(user: UserAnswer) -> str:
    return "sign_in" if user["signs_in"] else "token"
