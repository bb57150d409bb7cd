"""The named policies, the same for `brimful up --policy` and `brimful simulate --policy`.

A policy is written NAME or NAME?option=value&option=value: a row of the table with some of its rules changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode

from brimful.errors import BadInput
from brimful.fleet.events import PolicyAdopted
from brimful.fleet.learned.lifetimes import FRESH_S
from brimful.language import Number, Quoted, Sentence, say
from brimful.language.near import similar
from brimful.scheduler.rules import Rules

# Least attained service, all GPU types in turn.
_LAS = Rules(
    order="index", known=False, types="rotate", backfill="greedy", preempt="index", move=True, rerank_s=360
)
POLICIES: dict[str, Rules] = {
    "fifo": Rules(order="fifo"),
    "priority": Rules(order="priority", deadlines=True),
    "backfill": Rules(order="priority", backfill="reserve", deadlines=True),
    "bid": Rules(order="bid", backfill="reserve"),
    "fair": Rules(order="fair", backfill="reserve", deadlines=True),
    "las": _LAS,
    "las-aware": replace(_LAS, types="advantage"),  # each job on the type that suits it
    "srpt": Rules(order="index", backfill="greedy", preempt="index", ageing=0.0, margin=1.0, min_run_s=0),
    "brim": Rules(
        order="index",
        types="advantage",
        backfill="reserve",
        preempt="index",
        move=True,
        moves=0.1,
        off_peak=True,
        deadlines=True,
        ageing=0.01,
        turns=0.75,
        stay=True,
        learn=True,
        fresh_s=FRESH_S,
    ),
}
# The best all-round policy; it considers money where jobs pay: docs/decisions/0029.
DEFAULT = "brim?types=cheap"

# The policies a server rehearses its own past with, unless it is given others (docs/decisions/0064).
CANDIDATES = (DEFAULT, f"{DEFAULT}&known=0", "backfill", "las-aware", "srpt")

OPTIONS = {each.name: each for each in fields(Rules) if each.metadata}
MOST = 1e9  # upper bound of any number
_READ: dict[type, Callable[[str], Any]] = {
    str: str,
    int: int,
    float: float,
    bool: lambda text: {"1": True, "true": True, "0": False, "false": False}[text],
}


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules, and their text form: reading `text` gives the same rules."""

    text: str
    rules: Rules


def about_policy(name: str) -> Sentence:
    return say(f"scheduler.policy_{name.replace('-', '_')}")


def about_option(name: str) -> Sentence:
    return say(f"scheduler.option_{name}")


def read_policy(text: str, changed: Mapping[str, int] | None = None) -> Policy:
    """'brim?move=0&preempt=none' -> brim without these parts. `changed` overrides the text."""
    name, _, query = text.partition("?")
    if name not in POLICIES:
        near, names = similar(name, POLICIES), ", ".join(sorted(POLICIES))
        hint = say("scheduler.hint_policy", name=near[0], names=names) if near else None
        raise BadInput(say("scheduler.policy_unknown", name=Quoted(name[:80]), names=names), hint=hint)
    options: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key in options:
            raise BadInput(say("scheduler.policy_option_twice", policy=Quoted(text[:80]), option=key))
        options[key] = _value(text, key, value)
    rules = replace(POLICIES[name], **(options | dict(changed or {})))
    return Policy(_written(name, rules), rules)


def in_force(rules: Rules, adopted: PolicyAdopted | None) -> Rules:
    """The rules of the adopted policy, if the server was started with the policy it replaces.

    Starting the server with another policy is a new decision. A policy that this release does not know has no
    effect: nothing in a log may stop the loop.
    """
    if adopted is None:
        return rules
    return _adopted(rules, adopted.policy, adopted.instead_of)


@lru_cache(maxsize=8)
def _adopted(rules: Rules, policy: str, instead_of: str) -> Rules:
    try:
        if read_policy(instead_of).rules != replace(rules, quotas=()):
            return rules
        return replace(read_policy(policy).rules, quotas=rules.quotas, grace_s=rules.grace_s)
    except BadInput:
        return rules


def _value(text: str, option: str, value: str) -> Any:  # noqa: ANN401 - the option's own type
    known = OPTIONS.get(option)
    try:
        if known is None:
            raise ValueError(option)
        found = _READ[type(known.default)](value)
        choices = known.metadata["choices"]
        if found not in choices if choices else not known.metadata["least"] <= found <= MOST:
            raise ValueError(value)
    except (KeyError, ValueError) as error:
        near = similar(option, OPTIONS)
        if known is not None:
            hint = say("scheduler.hint_option_values", option=option, values=values_of(option))
        elif near:
            hint = say("scheduler.hint_did_you_mean", name=near[0])
        else:
            hint = say("scheduler.hint_options", names=", ".join(OPTIONS))
        problem = say(
            "scheduler.policy_option_not_valid", policy=Quoted(text[:80]), option=option, value=value
        )
        raise BadInput(problem, hint=hint) from error
    return found


def values_of(option: str) -> Sentence | str:
    """What may be written after `option=`."""
    known = OPTIONS[option]
    if known.metadata["choices"]:
        return ", ".join(known.metadata["choices"])
    if isinstance(known.default, bool):
        return say("scheduler.flag_values")
    kind = say("scheduler.whole_number") if isinstance(known.default, int) else say("scheduler.number")
    return say("scheduler.from_least", kind=kind, least=known.metadata["least"], most=Number(MOST))


def _written(name: str, rules: Rules) -> str:
    """The name, and every option that differs from the table."""
    values = {option: getattr(rules, option) for option in OPTIONS}
    query = {
        option: int(value) if isinstance(value, bool) else value
        for option, value in values.items()
        if value != getattr(POLICIES[name], option)
    }
    return f"{name}?{urlencode(query)}" if query else name
