"""`brimful budget`, `brimful invoice`, `brimful market ledger`: who may spend, who spent, every account."""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from brimful.cli.commands import Answer, Verb
from brimful.cli.operate.database import add_database_arguments, open_store
from brimful.cli.options import CONSENT, DRY_RUN, FILE, LOG, REASON, agree, arg, usd
from brimful.cli.render import bar, table
from brimful.client.answers import BudgetAnswer
from brimful.client.client import Client
from brimful.errors import BadInput, NotFound, WorldFailed
from brimful.files import read_given
from brimful.fleet.events import KINDS, MALFORMED, Event, from_record
from brimful.language import Number, Plain, Quoted, Sentence, Size, Usd, count, say, told, words
from brimful.language.failures import os_errors_as
from brimful.language.printable import all_printable, for_spreadsheet, printable
from brimful.language.sentence import ExactUsd
from brimful.market.invoice import MONTH, Bill, Invoices, Sums
from brimful.market.ledger import Ledger
from brimful.market.periods import zone_of
from brimful.scheduler.ports import Store
from brimful.units import CENT, HOUR_S, cents_that_add_up

MOST_LOG_BYTES = 1 << 30


def _add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT", nargs="?")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--set", dest="amount", metavar="USD")
    which.add_argument("--unlimited", action="store_true")
    which.add_argument("--credit", metavar="USD")
    period = parser.add_mutually_exclusive_group()
    for name in ("monthly", "quarterly", "fixed"):
        period.add_argument(f"--{name}", dest="period", action="store_const", const=name)
    parser.add_argument("--zone")
    parser.add_argument("--within", metavar="BUDGET")
    parser.add_argument("--warn", dest="hard", action="store_const", const=False)
    parser.add_argument("--hard", dest="hard", action="store_const", const=True)


def budget(args: argparse.Namespace) -> Answer:
    changes = args.amount is not None or args.unlimited or args.credit is not None
    if changes and not args.tenant:
        raise BadInput(say("money.whose_budget"))
    if args.amount is None and _terms(args):
        raise BadInput(say("money.terms_need_set"))
    if not changes:
        budgets = Client().budgets()
        if args.tenant:
            budgets = [each for each in budgets if each["tenant"] == args.tenant]
            if not budgets:
                raise NotFound(say("money.no_such_budget", tenant=Quoted(args.tenant[:60])))
        return Answer({"budgets": budgets}, _budgets_text(budgets))
    return _change_budget(args)


def _terms(args: argparse.Namespace) -> dict[str, Any]:
    """The budget's terms besides its sum; unset terms stay unchanged."""
    asked = {name: getattr(args, name) for name in ("within", "period", "zone", "hard")}
    return {name: value for name, value in asked.items() if value is not None}


def _limited(args: argparse.Namespace, total: Usd) -> Sentence:
    if args.period is None:
        return say("money.budget_becomes", tenant=args.tenant, sum=total)
    if args.period == "fixed":
        return say("money.limited", tenant=args.tenant, sum=total)
    return say("money.limited_each", tenant=args.tenant, sum=total, period=say(f"money.period_{args.period}"))


def _change_budget(args: argparse.Namespace) -> Answer:
    tenant = args.tenant
    if args.credit is not None:
        microusd: int | None = usd(args.credit, "--credit")
        sentence = say("money.credited", tenant=tenant, sum=Usd(microusd or 0))
    else:
        microusd = None if args.unlimited else usd(args.amount, "--set", zero=True)
        sentence = say("money.unlimited", tenant=tenant)
        if microusd is not None:
            sentence = _limited(args, Usd(microusd))
    if args.dry_run:
        would = {"tenant": tenant, "microusd": microusd, **_terms(args)}
        return Answer(would, words("money.dry_run", would=sentence))
    agree(sentence, yes=args.yes)
    client = Client()
    if args.credit is not None:
        done = client.credit(tenant, microusd or 0, args.reason)
    else:
        team, _, project = tenant.partition("/")
        done = client.set_budget(team, microusd, project=project, **_terms(args))
    note = (
        "" if _is_known(client, tenant.partition("/")[0], done) else f"\n\n{words('money.budget_of_nobody')}"
    )
    return Answer(done, f"{told(sentence)}\n\n{_budgets_text([done])}{note}")


def _is_known(client: Client, team: str, budget: BudgetAnswer) -> bool:
    """Someone is in the team, or its jobs have cost something. `default` is where an operator submits."""
    if team == "default" or any(
        budget[name] for name in ("accruing_microusd", "held_microusd", "spent_microusd")
    ):
        return True
    return any(team in user["roles"] for user in client.users()["users"])


def _budgets_text(budgets: list[BudgetAnswer]) -> str:
    if not budgets:
        return words("money.no_budgets")
    rows = [
        (
            "  " * (len(_path(each, budgets)) - 1) + printable(each["tenant"]),
            _left(each),
            *(_usd(each[name]) for name in ("accruing_microusd", "held_microusd", "spent_microusd")),
        )
        for each in sorted(budgets, key=lambda each: _path(each, budgets))
    ]
    header = [words(f"money.col_{name}") for name in ("tenant", "left", "running", "aside", "spent")]
    periods = [line for each in budgets for line in _period_text(each)]
    return "\n\n".join([table(header, rows, right=(1, 2, 3, 4)), *(["\n".join(periods)] if periods else [])])


def _left(each: BudgetAnswer) -> str:
    """A budget that only warns goes on when it is used up: its zero would look like an end."""
    terms = each["budget"]
    if terms is not None and not terms["hard"] and not each["left_microusd"]:
        return words("money.used_up")
    return _usd(each["left_microusd"], "money.no_limit")


def _path(budget: BudgetAnswer, budgets: list[BudgetAnswer]) -> list[str]:
    """Its name after its parents', so that each is listed under its parent."""
    terms = budget["budget"]
    parent = next((each for each in budgets if terms and each["tenant"] == terms["within"]), None)
    return [*(_path(parent, budgets) if parent else []), budget["tenant"]]


def _period_text(each: BudgetAnswer) -> Iterator[str]:
    """What renews or only warns, with the projection."""
    terms = each["budget"]
    if terms is None or (terms["until_s"] is None and terms["hard"]):
        return
    values: dict[str, object] = {
        "tenant": printable(each["tenant"]),
        "used": Usd(terms["used_microusd"]),
        "allowed": Usd(terms["allowed_microusd"]),
        "kind": say("money.kind_hard" if terms["hard"] else "money.kind_warn"),
    }
    if terms["until_s"] is None:
        yield words("money.budget_used", **values)
        return
    zone = zone_of(terms["zone"])
    values["period"] = say(f"money.period_{terms['period']}")
    values["until"] = datetime.fromtimestamp(terms["until_s"], tz=zone).isoformat(" ", "minutes")
    yield words("money.budget_period", **values, expected=Usd(terms["expected_microusd"] or 0))
    if terms["runs_out_s"] is not None and terms["used_microusd"] < terms["allowed_microusd"]:
        at = datetime.fromtimestamp(terms["runs_out_s"], tz=zone).isoformat(" ", "minutes")
        yield words("money.budget_runs_out", tenant=values["tenant"], at=at)


def _usd(microusd: int | None, none: str = "") -> str:
    return words(none) if microusd is None else told(Usd(microusd))


def invoice(args: argparse.Namespace) -> Answer:
    from_log = args.log or args.data or args.database
    data: Mapping[str, Any] = _of_log(args) if from_log else _of_server(args)
    made, total = data["bills"], data["total_microusd"]
    if args.csv:
        out = io.StringIO()
        writer = csv.DictWriter(out, [each.name for each in fields(Bill)], lineterminator="\n")
        writer.writeheader()
        for bill in made:
            quoted = {key: for_spreadsheet(bill.get(key, "")) for key in ("of", "name")}
            writer.writerow({**bill, **quoted})
        return Answer(data, out.getvalue().rstrip("\n"))
    if not made:
        none = (
            say("money.nothing_billed_to", tenant=args.tenant) if args.tenant else say("money.nothing_billed")
        )
        return Answer(data, told(none))
    amounts = [bill["microusd"] for bill in made]
    # Equal bills look equal: if one is below a cent, all are shown to the micro-dollar.
    exact = any(0 < amount < CENT for amount in amounts)
    money = ExactUsd if exact else Usd
    billed_said = [money(n) for n in (amounts if exact else cents_that_add_up(amounts))]
    rows: list[tuple[str, ...]] = [
        (
            (f"{bill['of']} {bill['name']}" if bill.get("name") else bill["of"])[:32],
            str(bill["leases"]),
            told(Number(bill["gpu_s"] / HOUR_S, 2)),
            _usd(bill["failed_microusd"]),
            _usd(bill["lost_microusd"]),
            _usd(bill["idle_microusd"], "money.not_measured"),
            told(billed),
            bar(bill["microusd"] / total, 12).rstrip() if total else "",
        )
        for bill, billed in zip(all_printable(made), billed_said, strict=True)
    ]
    names = [args.by, "leases", "gpu_hours", "failed", "redone", "idle", "billed"]
    if any(bill["moved_bytes"] for bill in made):
        names.insert(6, "egress")
        rows = [
            (*row[:6], _usd(bill["egress_microusd"]), *row[6:]) for row, bill in zip(rows, made, strict=True)
        ]
    right = tuple(range(1, len(names)))
    shown = table([*(words(f"money.col_{name}") for name in names), ""], rows, right=right)
    said = say("money.billed", total=money(total))
    if "sum_of_balances" in data:
        said = say("money.billed_of_accounts", total=money(total), accounts=data["sum_of_balances"])
    return Answer(data, f"{shown}\n\n{told(said)}")


def _of_server(args: argparse.Namespace) -> Mapping[str, Any]:
    return Client().invoice(by=args.by, tenant=args.tenant, month=args.month)


def _of_log(args: argparse.Namespace) -> dict[str, Any]:
    """From a file or the database, without a running server."""
    fold, sums = Invoices(), Sums(args.by)
    if args.log:
        fold_log(Path(args.log), lambda event: sums.add(fold.apply(event)))
    else:
        with open_store(args) as (store, _):
            for seq, event in enumerate(all_events(store), 1):
                try:
                    sums.add(fold.apply(event))
                except MALFORMED as error:
                    kind, why = type(event).__name__, repr(error)[:160]
                    strange = say("doctor.event_strange", seq=seq, kind=kind, error=why)
                    raise WorldFailed(strange, code="log_damaged") from error
    made = sums.bills(args.by, lambda team: args.tenant in (None, team), month=args.month)
    ledger = fold.ledger
    return {
        "by": args.by,
        "month": args.month,
        "bills": [asdict(bill) for bill in made],
        "total_microusd": sum(bill.microusd for bill in made),
        "balances": dict(sorted(ledger.balances.items())),
        "sum_of_balances": sum(ledger.balances.values()),
    }


def ledger(args: argparse.Namespace) -> Answer:
    """Fold the log into a ledger: the same log gives the same balances everywhere."""
    book = Ledger()
    events = fold_log(Path(args.file), book.apply)
    balances = dict(sorted(book.balances.items()))
    data = {
        "events": events,
        "transfers": len(book.transfers),
        "balances": balances,
        "sum": sum(balances.values()),
        "rounding_3600ths": book.rounding,
    }
    rows = [(printable(account), _usd(microusd)) for account, microusd in balances.items()]
    header = (words("money.col_account"), words("money.col_balance"))
    shown = table(header, rows, right=(1,)) if rows else words("money.no_account_used")
    transfers = count("transfer", len(book.transfers))
    folded = words("money.folded", events=count("event", events), transfers=transfers, sum=data["sum"])
    return Answer(data, f"{shown}\n\n{folded}")


def all_events(store: Store) -> Iterator[Event]:
    """The whole log, which a store returns in pieces."""
    seq = 0
    while events := store.since(seq):
        yield from events
        seq += len(events)


def fold_log(path: Path, apply: Callable[[Event], None], *, whole: bool = True) -> int:
    """Apply every event of an untrusted file, and return how many there were.

    One JSON object per line (kind, version, body), or the output of `fleet events`. Accounts folded from a
    later event on would look right and be wrong, so with `whole` a log that numbers its events must begin
    with the first. It may have gaps: a tenant sees only events of its own jobs.
    """

    def too_large(size: int) -> BadInput:
        return BadInput(say("money.too_large", file=path, size=Size(size), most=Size(MOST_LOG_BYTES)))

    try:
        with os_errors_as("money.unreadable", None, file=path):
            text = read_given(path, most=MOST_LOG_BYTES, too_large=too_large).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(say("money.not_text", file=path)) from error
    last = events = 0
    for where, found in _records(text):
        kind, event = None, None
        try:
            record = json.loads(found) if isinstance(found, str) else found
            kind, seq = record["kind"], record.get("seq", last + 1)
            event = from_record(kind, record.get("version", KINDS[kind].version), record["body"])
            if whole and (seq <= last or (not last and seq != 1)):
                before = say("money.after_event", seq=Plain(last)) if last else say("money.after_none")
                raise BadInput(
                    say("money.out_of_order", file=path.name, where=where, seq=Plain(seq), before=before)
                )
            apply(event)
        except MALFORMED as error:
            at = {"file": path.name, "where": where, "error": repr(error)[:160]}
            problem = say("money.not_an_event", **at)
            if event and type(error) is KeyError and isinstance(error.args[0], str):
                problem = say("money.begun_before", file=path.name, what=Quoted(error.args[0]))
            elif isinstance(kind, str) and kind in KINDS:
                problem = say("money.event_strange", kind=kind, **at)
            raise BadInput(problem) from error
        last, events = seq, events + 1
    return events


def _records(text: str) -> Iterator[tuple[Sentence, Any]]:
    """(where it is, the record or the line it is in)."""
    try:
        events = json.loads(text)["data"]["events"]
    except (ValueError, KeyError, TypeError, RecursionError):
        events = None
    if isinstance(events, list):
        yield from ((say("money.entry", n=Plain(n)), each) for n, each in enumerate(events, 1))
        return
    for n, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield say("money.line", n=Plain(n)), line


def month(text: str) -> str:
    if re.match(MONTH, text) is None:
        raise argparse.ArgumentTypeError(words("money.not_a_month", text=Quoted(text[:40])))
    return text


BY = arg("--by", choices=("team", "user", "job", "site", "gpu", "day"), default="team")
VERBS = {
    "budget": Verb(
        "brimful budget\nbrimful budget research --set 500 --yes\n"
        "brimful budget acme --set 20000 --quarterly --zone Europe/Paris --yes\n"
        "brimful budget research --set 5000 --monthly --within acme --yes\n"
        "brimful budget research/vision --set 1000 --warn --yes\n"
        'brimful budget research --credit 20 --reason "the outage of Tuesday" --yes',
        (_add_budget, REASON, CONSENT, DRY_RUN),
        budget,
    ),
    "invoice": Verb(
        "brimful invoice\nbrimful invoice --month 2026-03 --tenant vision --by job\n"
        "brimful invoice --log events.jsonl --by gpu --csv\nbrimful invoice --data ~/.local/state/brimful",
        (
            BY,
            arg("--month", type=month, metavar="YYYY-MM"),
            arg("--tenant"),
            LOG,
            arg("--csv", action="store_true"),
            add_database_arguments,
        ),
        invoice,
    ),
    "ledger": Verb("brimful market ledger events.jsonl", (FILE,), ledger),
}
