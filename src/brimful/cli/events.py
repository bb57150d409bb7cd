"""`brimful events`: what has happened, as the log has it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from brimful.cli.client import Client
from brimful.cli.commands import Answer, whole
from brimful.cli.show import clock
from brimful.server.words import all_printable

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
        for _, event in client.event_stream(after=-args.last):
            sys.stdout.write(_json_line(event) if args.json else _line(event) + "\n")
            sys.stdout.flush()
        return Answer(None, "")
    data = client.events(after=-args.last, limit=min(args.last, 1000))
    return Answer(data, "\n".join(map(_line, data["events"])) or "nothing has happened yet")


def _json_line(event: dict[str, Any]) -> str:
    import json

    return json.dumps(event) + "\n"


def _line(event: dict[str, Any]) -> str:
    body = all_printable(event["body"])
    if isinstance(body.get("job"), dict):
        body = body["job"]
    parts = [f"{name} {_shown(body[name])}" for name in SAID if body.get(name) not in (None, "", [])]
    return f"{clock(event['at_s'])}  {event['seq']:>6}  {event['kind']:<15}  {'  '.join(parts)}"


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
