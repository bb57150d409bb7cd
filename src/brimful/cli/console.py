"""`brimful console`: a link that opens the console in a browser."""

from __future__ import annotations

import argparse

from brimful.cli.commands import Answer
from brimful.client.client import Client
from brimful.units import show_seconds

EXAMPLE = "brimful console"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--open", action="store_true", help="open it in your browser")


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    ticket = client.post("/v1/tickets")
    url = f"{client.url}{ticket['path']}"
    if args.open:
        import webbrowser

        webbrowser.open(url)
    good = f"good once, within {show_seconds(ticket['expires_in_s'])}"
    return Answer({"url": url, "expires_in_s": ticket["expires_in_s"]}, f"{url}\n\n({good})")
