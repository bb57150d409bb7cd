"""`brimful admin tokens`: who may use this brimful."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from urllib.parse import urlsplit

from brimful.cli.commands import Answer
from brimful.cli.fleet.show import clock, day
from brimful.cli.render import table
from brimful.client.answers import DeedAnswer, NewTokenAnswer, TokenAnswer
from brimful.client.client import Client
from brimful.client.settings import LOOPBACK
from brimful.errors import BadInput
from brimful.language import Quoted, Sentence, say, told, verbatim, words
from brimful.language.printable import all_printable, printable
from brimful.units import integer_from_text

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
    parser.add_argument("--for", dest="lasts", metavar="TIME")


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
            say("operate.token_needs_name", verb=args.verb), hint=verbatim(EXAMPLE.splitlines()[1])
        )
    if args.verb == "revoke":
        token = client.revoke_token(_id(args.name))
        said = words("operate.token_revoked", name=printable(token["name"]), token=token["token"])
        return Answer(token, said)
    lasts = {} if args.lasts is None else {"ttl_s": _seconds(args.lasts)}
    made = client.add_token(args.name, tenant=args.tenant, role=args.role, **lasts)
    return Answer({**made, "url": client.url}, _to_hand_over(made, client.url))


def _to_hand_over(made: NewTokenAnswer, url: str) -> str:
    """Two lines for its owner's shell, and what there is to know of them."""
    token = all_printable(made["token"])
    facts = {name: token[name] for name in ("name", "role", "tenant")}
    lines = [
        *(f"export BRIMFUL_URL={url}", f"export BRIMFUL_TOKEN={made['secret']}", ""),
        f"# {words('operate.token_for', **facts, until=_good(token, clock))}",
        f"# {words('operate.token_shown_once')}",
    ]
    address = urlsplit(url)
    if address.hostname in LOOPBACK:
        tunnel = f"ssh -L {address.port}:127.0.0.1:{address.port} HOST"
        lines.append(f"# {words('operate.token_from_elsewhere', tunnel=tunnel)}")
    return "\n".join(lines)


def _good(token: TokenAnswer, when: Callable[[int], str]) -> Sentence:
    if token["revoked_s"] is not None:
        return say("operate.revoked_on", when=when(token["revoked_s"]))
    if token["expires_s"] is None:
        return say("operate.for_ever")
    return say("operate.until", when=when(token["expires_s"]))


def _id(text: str) -> str:
    """The id, also where somebody gives the whole token, which then goes no further."""
    match = re.match(r"(?:brim_)?([0-9a-f]{16})(?:_|$)", text)
    if match is None:
        raise BadInput(say("operate.bad_token_id", text=Quoted(text[:10])))
    return match[1]


def _seconds(text: str) -> int | None:
    if text == "ever":
        return None
    number, unit = integer_from_text(text[:-1], low=1, high=99_999), text[-1:]
    if number is None or unit not in UNITS:
        raise BadInput(say("operate.bad_lifetime", text=Quoted(text[:40])))
    return number * UNITS[unit]


def _list(tokens: list[TokenAnswer]) -> str:
    shown = ("token", "name", "tenant", "role")
    rows = [
        [t["token"], t["name"], t["tenant"], t["role"], day(t["created_s"]), told(_good(t, day))]
        for t in tokens
    ]
    return table([words(f"operate.col_{name}") for name in (*shown, "made", "good")], rows)


def _audit(deeds: list[DeedAnswer]) -> str:
    rows = [[clock(d["at_s"]), d["name"], d["tenant"], d["verb"], d["target"], d["outcome"]] for d in deeds]
    head = [words(f"operate.col_{name}") for name in ("when", "who", "tenant", "what", "of", "outcome")]
    return table(head, rows) if rows else words("operate.no_deeds")
