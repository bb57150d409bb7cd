"""`brimful admin tokens`: who may use this brimful."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from brimful.cli.commands import Answer
from brimful.cli.fleet.show import clock, day
from brimful.cli.render import table
from brimful.client.client import Client
from brimful.client.settings import LOOPBACK
from brimful.errors import BadInput
from brimful.language import Quoted, say, verbatim
from brimful.language.printable import all_printable, printable

if TYPE_CHECKING:
    from brimful.client.answers import DeedAnswer, NewTokenAnswer, TokenAnswer

EXAMPLE = """brimful admin tokens
brimful admin tokens add alice --tenant vision --role submitter --for 90d
brimful admin tokens revoke 4f1c0a9be2d37a55
brimful admin tokens audit"""

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", choices=("list", "add", "revoke", "audit"), default="list")
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("--tenant", default="default")
    parser.add_argument("--role", choices=("viewer", "submitter", "admin", "operator"), default="submitter")
    parser.add_argument("--for", dest="lasts", default="90d", metavar="TIME")


def run(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.verb == "list":
        found = client.tokens()
        return Answer(found, _list(all_printable(found["tokens"])))
    if args.verb == "audit":
        done = client.audit()
        return Answer(done, _audit(all_printable(done["deeds"])))
    if args.name is None:
        raise BadInput(
            say("operate.brimful_admin_tokens_needs_name", verb=args.verb),
            hint=verbatim(EXAMPLE.splitlines()[1]),
        )
    if args.verb == "revoke":
        token = client.revoke_token(_id(args.name))
        return Answer(token, f"{printable(token['name'])}'s token {token['token']} is revoked")
    made = client.add_token(args.name, tenant=args.tenant, role=args.role, ttl_s=_seconds(args.lasts))
    return Answer({**made, "url": client.url}, _to_hand_over(made, client.url))


def _to_hand_over(made: NewTokenAnswer, url: str) -> str:
    """Two lines for its owner's shell, and what there is to know of them."""
    token = all_printable(made["token"])
    until = "for ever" if token["expires_s"] is None else f"until {clock(token['expires_s'])}"
    lines = [
        f"export BRIMFUL_URL={url}",
        f"export BRIMFUL_TOKEN={made['secret']}",
        "",
        f"# for {token['name']}: {token['role']} of {token['tenant']} {until}",
        "# shown this once: hand both lines over now",
    ]
    address = urlsplit(url)
    if address.hostname in LOOPBACK:
        lines.append(f"# from another machine first: ssh -L {address.port}:127.0.0.1:{address.port} HOST")
    return "\n".join(lines)


def _id(text: str) -> str:
    """The id, also where somebody gives the whole token, which then goes no further."""
    match = re.match(r"(?:brim_)?([0-9a-f]{16})(?:_|$)", text)
    if match is None:
        raise BadInput(say("operate.not_id_token", text=Quoted(text[:10])))
    return match[1]


def _seconds(text: str) -> int | None:
    if text == "ever":
        return None
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and len(number) < 6 and unit in UNITS and int(number)):
        raise BadInput(say("operate.no_time", text=Quoted(text[:40])))
    return int(number) * UNITS[unit]


def _list(tokens: list[TokenAnswer]) -> str:
    def state(token: TokenAnswer) -> str:
        if token["revoked_s"] is not None:
            return f"revoked {day(token['revoked_s'])}"
        return "for ever" if token["expires_s"] is None else f"until {day(token['expires_s'])}"

    rows = [[t["token"], t["name"], t["tenant"], t["role"], day(t["created_s"]), state(t)] for t in tokens]
    return table(["token", "name", "tenant", "role", "made", "good"], rows)


def _audit(deeds: list[DeedAnswer]) -> str:
    rows = [[clock(d["at_s"]), d["name"], d["tenant"], d["verb"], d["target"], d["outcome"]] for d in deeds]
    return table(["when", "who", "tenant", "what", "of", "outcome"], rows) if rows else "nothing was done yet"
