"""`brimful budget`: what each tenant may still spend, and setting it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from brimful.cli.bid import agree, usd
from brimful.cli.commands import Answer
from brimful.cli.render import table
from brimful.client.client import Client
from brimful.errors import BadInput, NotFound
from brimful.language.printable import all_printable
from brimful.units import show_usd

if TYPE_CHECKING:
    from brimful.client.answers import BudgetAnswer

EXAMPLE = """brimful budget
brimful budget research --set 500 --yes
brimful budget research --credit 20 --reason "the outage of Tuesday" --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT", nargs="?", help="only this one")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--set", dest="amount", metavar="USD", help="what it may still spend, hard")
    which.add_argument("--unlimited", action="store_true", help="take the budget away")
    which.add_argument("--credit", metavar="USD", help="give it this much from the operator's account")
    parser.add_argument("--reason", default="", help="of a credit, for the books")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, and change nothing")


def run(args: argparse.Namespace) -> Answer:
    changes = args.amount is not None or args.unlimited or args.credit is not None
    if changes and not args.tenant:
        raise BadInput("whose budget is not said", hint="brimful budget TENANT --set 500")
    if not changes:
        budgets = Client().budgets()
        if args.tenant:
            budgets = [each for each in budgets if each["tenant"] == args.tenant]
            if not budgets:
                raise NotFound(
                    f"{args.tenant[:60]!r} has no budget and has spent nothing", hint="brimful budget"
                )
        return Answer({"budgets": budgets}, _shown(budgets))
    return _change(args)


def _change(args: argparse.Namespace) -> Answer:
    tenant = args.tenant
    if args.credit is not None:
        microusd: int | None = usd(args.credit, "--credit")
        sentence = f"{tenant} is given {show_usd(microusd or 0)} from the operator's account"
    else:
        microusd = None if args.unlimited else usd(args.amount, "--set", zero=True)
        may = "spend without limit" if microusd is None else f"spend {show_usd(microusd)} more, and no more"
        sentence = f"{tenant} may {may}"
    if args.dry_run:
        return Answer({"tenant": tenant, "microusd": microusd}, f"{sentence} (nothing was changed)")
    agree(sentence, yes=args.yes)
    client = Client()
    if args.credit is not None:
        done = client.credit(tenant, microusd or 0, args.reason)
    else:
        done = client.set_budget(tenant, microusd)
    return Answer(done, f"{sentence}\n\n{_shown([done])}")


def _shown(budgets: list[BudgetAnswer]) -> str:
    if not budgets:
        return "nobody has a budget, and nobody has spent anything"
    rows = [
        (
            each["tenant"],
            "no limit" if each["left_microusd"] is None else show_usd(each["left_microusd"]),
            show_usd(each["accruing_microusd"]),
            show_usd(each["held_microusd"]),
            show_usd(each["spent_microusd"]),
        )
        for each in all_printable(budgets)
    ]
    header = ("tenant", "may still spend", "running", "set aside", "spent")
    return table(header, rows, right=(1, 2, 3, 4))
