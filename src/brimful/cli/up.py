"""`brimful up`: the server, on this machine."""

from __future__ import annotations

import argparse
from dataclasses import fields

from brimful.cli.commands import Answer
from brimful.client.settings import Settings, read_settings
from brimful.errors import WorldFailed

EXAMPLE = """brimful up
brimful up --port 9000 --slots 4 --usd-per-hour 0.25"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for each in fields(Settings):
        default = f" (default {each.default})" if each.default != "" else ""
        flag = f"--{each.name.replace('_', '-')}"
        parser.add_argument(flag, metavar=each.name.upper(), help=f"{each.metadata['help']}{default}")


def run(args: argparse.Namespace) -> Answer:
    settings = read_settings({each.name: getattr(args, each.name) for each in fields(Settings)})
    try:
        from brimful.server.run.main import serve
    except ModuleNotFoundError as error:
        raise WorldFailed(
            f"the server's parts are not installed ({error.name} is missing)",
            hint="pip install 'brimful[server]', or `make run` in a clone",
            code="not_installed",
        ) from error
    serve(settings, as_json=args.json)
    return Answer(None, "")
