"""`brimful up`, the server on this machine; `brimful console`, a link to its console."""

from __future__ import annotations

import argparse
from dataclasses import fields

from brimful.cli.commands import Answer, Verb
from brimful.cli.options import arg
from brimful.client.client import Client
from brimful.client.settings import Settings, read_settings
from brimful.language import Plain, Seconds, say, told, words
from brimful.language.failures import needs_package


def _add_up(parser: argparse.ArgumentParser) -> None:
    for each in fields(Settings):
        does = say(f"help.up_{each.name}")
        if each.default not in ("", None) and each.default is not False:
            does = say("help.with_default", does=does, default=Plain(each.default))
        flag = f"--{each.name.replace('_', '-')}"
        if isinstance(each.default, bool):
            parser.add_argument(flag, action="store_true", default=None, help=told(does))
        else:
            parser.add_argument(flag, metavar=each.name.upper(), help=told(does).replace("%", "%%"))


def up(args: argparse.Namespace) -> Answer:
    settings = read_settings({each.name: getattr(args, each.name) for each in fields(Settings)})
    with needs_package("operate.server_not_installed"):
        from brimful.server.run.main import serve
    serve(settings, as_json=args.json)
    return Answer(None, "")


def console(args: argparse.Namespace) -> Answer:
    client = Client()
    ticket = client.ticket()
    url = f"{client.url}{ticket['path']}"
    if args.open:
        import webbrowser

        webbrowser.open(url)
    good = words("operate.link_good", within=Seconds(ticket["expires_in_s"]))
    return Answer({"url": url, "expires_in_s": ticket["expires_in_s"]}, f"{url}\n\n({good})")


VERBS = {
    "up": Verb(
        "brimful up\nbrimful up --port 9000 --slots 4 --usd-per-hour 0.25\n"
        "brimful up --policy 'brim?preempt=none'",
        (_add_up,),
        up,
    ),
    "console": Verb("brimful console", (arg("--open", action="store_true"),), console),
}
