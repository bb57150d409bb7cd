"""`brimful invoice`: what each team, job or GPU type cost, and what of it was waste."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.cli.commands import Answer
from brimful.cli.data import add_database_arguments, open_store
from brimful.cli.render import bar, table
from brimful.client.client import Client
from brimful.errors import BadInput, BrimfulError, NotFound
from brimful.fleet.events import KINDS, Event, from_record
from brimful.language.printable import all_printable
from brimful.units import HOUR_S, show_usd

if TYPE_CHECKING:
    from brimful.scheduler.ports import Store

EXAMPLE = """brimful invoice
brimful invoice --by job
brimful invoice --log events.jsonl --by gpu --csv
brimful invoice --data ~/.local/state/brimful"""

_WANTED = "all events from the first on, as `brimful events -f --json --last 1000000 > FILE` writes them"

COLUMNS = (
    "of",
    "leases",
    "gpu_s",
    "microusd",
    "failed_microusd",
    "lost_microusd",
    "idle_microusd",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--by", choices=("team", "job", "gpu"), default="team", help="one line each (default team)"
    )
    parser.add_argument(
        "--log", metavar="FILE", help="a log as `brimful events -f --json` writes it, instead of the database"
    )
    parser.add_argument("--csv", action="store_true", help="comma-separated, in micro-dollars")
    add_database_arguments(parser)


def run(args: argparse.Namespace) -> Answer:
    from_log = args.log or args.data or args.database
    data: Mapping[str, Any] = _of_log(args) if from_log else Client().invoice(by=args.by)
    made, total = data["bills"], data["total_microusd"]
    if args.csv:
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(made)
        return Answer(data, out.getvalue().rstrip("\n"))
    if not made:
        return Answer(data, "nothing has been billed yet")
    rows = [
        (
            bill["of"][:24],
            str(bill["leases"]),
            f"{bill['gpu_s'] / HOUR_S:,.2f}",
            show_usd(bill["failed_microusd"]),
            show_usd(bill["lost_microusd"]),
            "not measured" if bill["idle_microusd"] is None else show_usd(bill["idle_microusd"]),
            show_usd(bill["microusd"]),
            bar(bill["microusd"] / total, 12).rstrip() if total else "",
        )
        for bill in all_printable(made)
    ]
    header = (args.by, "leases", "GPU-hours", "failed", "done again", "idle", "billed", "")
    balance = f"; every account together: {data['sum_of_balances']}" if "sum_of_balances" in data else ""
    return Answer(
        data, f"{table(header, rows, right=(1, 2, 3, 4, 5, 6))}\n\n{show_usd(total)} in all{balance}"
    )


def _of_log(args: argparse.Namespace) -> dict[str, Any]:
    """From a file or the database, where no server need be up."""
    from brimful.market.invoice import Invoices, bills

    fold = Invoices()
    if args.log:
        fold_log(Path(args.log), fold.apply)
    else:
        with open_store(args) as (store, _):
            for event in all_events(store):
                fold.apply(event)
    made, ledger = bills(fold.lines, by=args.by), fold.ledger
    return {
        "by": args.by,
        "bills": [asdict(bill) for bill in made],
        "total_microusd": sum(bill.microusd for bill in made),
        "balances": dict(sorted(ledger.balances.items())),
        "sum_of_balances": sum(ledger.balances.values()),
    }


def all_events(store: Store) -> Iterator[Event]:
    """The whole log, which a store hands out in pieces."""
    seq = 0
    while events := store.since(seq):
        yield from events
        seq += len(events)


def read_log(path: Path, *, whole: bool = True) -> Iterator[Event]:
    """The events of a file: one JSON object a line (kind, version, body), or an answer of `brimful events`.

    Accounts that are not folded from the first event on would look right and be wrong, so unless it need not
    be `whole`, a log that numbers its events begins with the first. It may have gaps: a tenant is told only
    of its own jobs.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="name a log") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", hint="JSON lines in UTF-8") from error
    last = 0
    for where, found in _records(text):
        try:
            record = json.loads(found) if isinstance(found, str) else found
            kind, seq = record["kind"], record.get("seq", last + 1)
            event = from_record(kind, record.get("version", KINDS[kind].version), record["body"])
        except BrimfulError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{path.name} {where} is no event: {error!r}"[:200], hint=_WANTED) from error
        if whole and (seq <= last or (not last and seq != 1)):
            before = f"after event {last}" if last else "with none before it"
            raise BadInput(f"{path.name} {where} is event {seq}, {before}", hint=_WANTED)
        last = seq
        yield event


def fold_log(path: Path, apply: Callable[[Event], None]) -> int:
    """Apply every event of a whole log, and say how many there were."""
    count = 0
    for count, event in enumerate(read_log(path), 1):  # noqa: B007 - the last one is the answer
        try:
            apply(event)
        except KeyError as error:
            raise BadInput(f"{path.name} tells of {error} and not how it began", hint=_WANTED) from error
    return count


def _records(text: str) -> Iterator[tuple[str, Any]]:
    """(where it stands, the record or the line it is in)."""
    try:
        events = json.loads(text)["data"]["events"]
    except (ValueError, KeyError, TypeError):
        yield from ((f"line {n}", line) for n, line in enumerate(text.splitlines(), 1) if line.strip())
    else:
        yield from ((f"entry {n}", each) for n, each in enumerate(events, 1))
