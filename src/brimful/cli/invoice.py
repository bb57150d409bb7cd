"""`brimful invoice`: what each team, job or GPU type cost, and what of it was waste."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.cli.client import Client
from brimful.cli.commands import Answer
from brimful.cli.data import add_database_arguments, open_store
from brimful.cli.render import bar, table
from brimful.errors import BadInput, BrimfulError, NotFound
from brimful.fleet.events import KINDS, Event, from_record
from brimful.server.words import all_printable
from brimful.units import HOUR_S, show_usd

if TYPE_CHECKING:
    from brimful.scheduler.ports import Store

EXAMPLE = """brimful invoice
brimful invoice --by job
brimful invoice --log events.jsonl --by gpu --csv
brimful invoice --data ~/.local/state/brimful"""


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
    data = _of_log(args) if args.log or args.data or args.database else Client().invoice(by=args.by)
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
    from brimful.market.invoice import bills, lines
    from brimful.market.ledger import Ledger

    ledger = Ledger()
    if args.log:
        found = lines(read_log(Path(args.log)), ledger)
    else:
        with open_store(args) as (store, _):
            found = lines(all_events(store), ledger)
    made = bills(found, by=args.by)
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


def read_log(path: Path) -> Iterator[Event]:
    """The events of a file with one JSON object a line: kind, version, body."""
    import json

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="name a log") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", hint="JSON lines in UTF-8") from error
    for n, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            kind = record["kind"]
            version = record.get("version", KINDS[kind].version)
            yield from_record(kind, version, record["body"])
        except BrimfulError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f"{path.name} line {n} is no event: {error!r}"[:200], hint="kind, version, body"
            ) from error
