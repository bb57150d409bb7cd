"""`brimful admin tokens` and `users`: who may use this brimful, and with which role in which team."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from urllib.parse import urlsplit

from brimful.cli.commands import Answer, Verb
from brimful.cli.options import arg
from brimful.cli.render import clock, cut, day, table
from brimful.client.answers import DeedAnswer, NewTokenAnswer, TokenAnswer, UserAnswer
from brimful.client.client import Client
from brimful.client.settings import LOOPBACK
from brimful.errors import BadInput
from brimful.language import Quoted, Sentence, say, told, verbatim, words
from brimful.language.printable import all_printable, printable
from brimful.units import integer_from_text

TOKENS_EXAMPLE = """brimful admin tokens
brimful admin tokens add alice --tenant vision --role submitter --for 90d
brimful admin tokens revoke 4f1c0a9be2d37a55
brimful admin tokens audit"""
USERS_EXAMPLE = """brimful admin users
brimful admin users set alice --tenant vision --role admin
brimful admin users remove alice --tenant vision"""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def tokens(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.verb == "list":
        found = client.tokens()
        return Answer(found, _tokens_table(all_printable(found["tokens"])))
    if args.verb == "audit":
        done = client.audit()
        return Answer(done, _audit(all_printable(done["deeds"])))
    if args.name is None:
        raise BadInput(
            say("operate.token_needs_name", verb=args.verb), hint=verbatim(TOKENS_EXAMPLE.splitlines()[1])
        )
    if args.verb == "revoke":
        token = client.revoke_token(_id(args.name))
        said = words("operate.token_revoked", name=printable(token["name"]), token=token["token"])
        return Answer(token, said)
    lasts = {} if args.lasts is None else {"ttl_s": _seconds(args.lasts)}
    made = client.add_token(args.name, tenant=args.tenant, role=args.role, **lasts)
    return Answer({**made, "url": client.url}, _handover_text(made, client.url))


def _handover_text(made: NewTokenAnswer, url: str) -> str:
    """Two lines for the new owner's shell, and what they should know."""
    token = all_printable(made["token"])
    facts = {name: token[name] for name in ("name", "role", "tenant")}
    lines = [
        *(f"export BRIMFUL_URL={url}", f"export BRIMFUL_TOKEN={made['secret']}", ""),
        f"# {words('operate.token_for', **facts, until=_validity(token, clock))}",
        f"# {words('operate.token_shown_once')}",
    ]
    address = urlsplit(url)
    if address.hostname in LOOPBACK:
        tunnel = f"ssh -L {address.port}:127.0.0.1:{address.port} HOST"
        lines.append(f"# {words('operate.token_from_elsewhere', tunnel=tunnel)}")
    return "\n".join(lines)


def _validity(token: TokenAnswer, when: Callable[[int], str]) -> Sentence:
    if token["revoked_s"] is not None:
        return say("operate.revoked_on", when=when(token["revoked_s"]))
    if token.get("has_left"):  # an older server does not say
        return say("operate.left_team", name=token["name"], tenant=token["tenant"])
    if token["expires_s"] is None:
        return say("operate.for_ever")
    return say("operate.until", when=when(token["expires_s"]))


def _id(text: str) -> str:
    """The id, even if the user gives the whole token, which then goes no further."""
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


def _tokens_table(tokens: list[TokenAnswer]) -> str:
    shown = ("token", "name", "tenant", "role")
    rows = [
        [t["token"], t["name"], t["tenant"], t["role"], day(t["created_s"]), told(_validity(t, day))]
        for t in tokens
    ]
    return table([words(f"operate.col_{name}") for name in (*shown, "made", "good")], rows)


TARGET = 40  # columns of what was acted on: a hash of 64 is known by its beginning


def _audit(deeds: list[DeedAnswer]) -> str:
    rows = [
        [clock(d["at_s"]), d["name"], d["tenant"], d["verb"], cut(d["target"], TARGET), d["outcome"]]
        for d in deeds
    ]
    head = [words(f"operate.col_{name}") for name in ("when", "who", "tenant", "what", "of", "outcome")]
    return table(head, rows) if rows else words("operate.no_deeds")


def users(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.verb == "list":
        found = client.users()
        return Answer(found, _users_table(all_printable(found["users"])))
    if args.name is None:
        hint = verbatim(USERS_EXAMPLE.splitlines()[1])
        raise BadInput(say("operate.user_needs_name", verb=args.verb), hint=hint)
    role = args.role if args.verb == "set" else None
    user = client.set_role(args.name, tenant=args.tenant, role=role)
    said = {"user": printable(user["user"]), "tenant": args.tenant}
    if role is None:
        return Answer(user, words("operate.user_removed", **said))
    return Answer(user, words("operate.user_set", **said, role=role))


def _users_table(users: list[UserAnswer]) -> str:
    rows = [
        [
            *(user["user"], tenant, role),
            words("operate.by_sign_in" if user["signs_in"] else "operate.by_token"),
            day(user["created_s"]),
        ]
        for user in users
        for tenant, role in user["roles"].items()
    ]
    head = ("name", "tenant", "role", "signs_in", "made")
    return table([words(f"operate.col_{name}") for name in head], rows)


def _do(*verbs: str) -> Callable[[argparse._ActionsContainer], object]:
    return arg("verb", nargs="?", choices=verbs, default=verbs[0])


ROLES = ("viewer", "submitter", "admin", "operator")
WHOSE = (
    arg("name", nargs="?", metavar="NAME"),
    arg("--tenant", default="default"),
    arg("--role", choices=ROLES, default="submitter"),
)
VERBS = {
    "tokens": Verb(
        TOKENS_EXAMPLE,
        (_do("list", "add", "revoke", "audit"), *WHOSE, arg("--for", dest="lasts", metavar="TIME")),
        tokens,
    ),
    "users": Verb(USERS_EXAMPLE, (_do("list", "set", "remove"), *WHOSE), users),
}
