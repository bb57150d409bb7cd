"""`brimful events`: what has happened, as the log has it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from brimful.cli.commands import Answer, whole
from brimful.cli.render import paint, wrapped
from brimful.cli.show import clock, day
from brimful.client.client import Client
from brimful.language.printable import all_printable

if TYPE_CHECKING:
    from brimful.client.answers import EventAnswer

EXAMPLE = """brimful events --last 20
brimful events -f"""

# What a line says of an event, in this order, where the event has it.
SAID = ("job", "lease", "node", "site", "sites", "gpus", "exit_code", "reason", "why")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--last", type=whole, default=50, metavar="N", help="how many (default 50)")
    parser.add_argument(
        "--follow", "-f", action="store_true", help="keep showing them; with --json one object a line"
    )


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.follow:
        last = ""
        for _, event in client.event_stream(after=-args.last):
            lines = [_json_line(event)] if args.json else _lines(event, after=last)
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()
            last = day(event["at_s"])
        return Answer(None, "")
    data = client.events(after=-args.last, limit=min(args.last, 1000))
    events = data["events"]
    days = ["", *(day(event["at_s"]) for event in events)]
    lines = [line for last, event in zip(days, events, strict=False) for line in _lines(event, after=last)]
    return Answer(data, "\n".join(lines) or "nothing has happened yet")


def _json_line(event: EventAnswer) -> str:
    import json

    return json.dumps(event)


def _lines(event: EventAnswer, *, after: str) -> list[str]:
    """The event, below its day where that is not the last one's."""
    body = all_printable(event["body"])
    if isinstance(body.get("job"), dict):
        body = body["job"]
    # A lease's name begins with its job's.
    said = [name for name in SAID if name != "job" or "lease" not in body]
    parts = [f"{name} {_shown(body[name])}" for name in said if body.get(name) not in (None, "", [])]
    today, _, hour = clock(event["at_s"]).partition(" ")
    head = f"{hour}  {event['seq']:>6}  {event['kind']:<15}  "
    lines = [] if today == after else [paint(today, "bold")]
    return lines + (wrapped(head, ", ".join(parts)) or [head.rstrip()])


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
