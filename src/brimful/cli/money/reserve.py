"""`brimful reserve`: GPUs of a market pool for a window, lent while they are idle."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Final, Literal

from brimful.cli.commands import Answer, Verb, integer
from brimful.cli.options import CONSENT, DRY_RUN, agree, arg, usd
from brimful.cli.render import clock, table
from brimful.client.client import Client
from brimful.client.reserve_answers import ReservationAnswer, ReserveQuoteAnswer
from brimful.errors import BadInput, BrimfulError
from brimful.fleet.node import TIERS
from brimful.language import Number, Sentence, Usd, count, say, told, words
from brimful.language.printable import all_printable
from brimful.units import HOUR_S


def _add_window(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", required=True, metavar="TYPE")
    parser.add_argument("--gpus", required=True, type=integer, metavar="N")
    parser.add_argument("--hours", required=True, type=integer, metavar="N")
    parser.add_argument("--start", metavar="TIME")
    parser.add_argument("--site")
    parser.add_argument("--tier", choices=TIERS)


def _window(args: argparse.Namespace) -> dict[str, object]:
    asked: dict[str, object] = {"gpu": args.gpu, "gpus": args.gpus, "hours": args.hours}
    if args.start is not None:
        from brimful.server.jobfiles.own import deadline  # start times have the syntax of deadlines

        asked["start_s"] = deadline(args.start, "--start")
    return asked | {name: getattr(args, name) for name in ("site", "tier") if getattr(args, name)}


def quote(args: argparse.Namespace) -> Answer:
    offered = Client().quote_reservation(**_window(args))
    return Answer(offered, _quote_text(offered))


def buy(args: argparse.Namespace) -> Answer:
    client, window = Client(), _window(args)

    def price(offered: ReserveQuoteAnswer) -> Sentence:
        return say(
            "money.reserve_buys",
            gpus=count("gpu", offered["gpus"]),
            gpu=offered["gpu"],
            site=offered["site"],
            start=clock(offered["start_s"]),
            end=clock(offered["end_s"]),
            total=Usd(offered["total_microusd"]),
        )

    def send(limit: int) -> ReservationAnswer:
        whose = {"tenant": args.tenant} if args.tenant else {}
        return client.buy_reservation(**window, **whose, at_most_microusd_per_gpu_hour=limit, key=args.key)

    return _pay(args, lambda: client.quote_reservation(**window), price, send, "money.reserve_bought")


def grant(args: argparse.Namespace) -> Answer:
    done = Client().buy_reservation(**_window(args), tenant=args.tenant, granted=True, key=args.key)
    said = words("money.reserve_granted", reservation=done["reservation"], tenant=done["tenant"])
    return Answer(done, f"{said}\n\n{table_of([done])}")


def extend(args: argparse.Namespace) -> Answer:
    client = Client()

    def price(offered: ReserveQuoteAnswer) -> Sentence:
        facts = {"reservation": args.reservation, "end": clock(offered["end_s"])}
        return say("money.reserve_extends", **facts, total=Usd(offered["total_microusd"]))

    def send(limit: int) -> ReservationAnswer:
        return client.extend_reservation(args.reservation, args.hours, limit, key=args.key)

    def ask() -> ReserveQuoteAnswer:
        return client.quote_extension(args.reservation, args.hours)

    return _pay(args, ask, price, send, "money.reserve_extended")


def _pay(
    args: argparse.Namespace,
    ask: Callable[[], ReserveQuoteAnswer],
    price: Callable[[ReserveQuoteAnswer], Sentence],
    send: Callable[[int], ReservationAnswer],
    code: str,
) -> Answer:
    """Quote, ask for consent, and send with the agreed price as the limit."""
    try:
        offered = ask()
        limit = _limit(args, offered)
    except BrimfulError as refused:
        if not args.key or args.dry_run:
            raise
        # The same command may have bought the last GPUs there were: then the key finds them. Otherwise a
        # limit of a micro-dollar buys nothing.
        try:
            done = send(1)
        except BrimfulError:
            raise refused from None
        return Answer(done, _done_text(code, done))
    if args.dry_run:
        would = words("money.dry_run", would=price(offered))
        return Answer(offered, f"{_quote_text(offered)}\n\n{would}")
    agree(price(offered), yes=args.yes)
    done = send(limit)
    return Answer(done, _done_text(code, done))


def _limit(args: argparse.Namespace, offered: ReserveQuoteAnswer) -> int:
    """The agreed price: the one that was shown, or the given limit."""
    price = offered["microusd_per_gpu_hour"]
    limit = price if args.at_most is None else usd(args.at_most, "--at-most")
    if price > limit:
        raise BadInput(say("market.reserve_moved", price=Usd(price), limit=Usd(limit)))
    return limit


def _change(verb: Literal["pause", "resume"]) -> Callable[[argparse.Namespace], Answer]:
    def change(args: argparse.Namespace) -> Answer:
        done = Client().change_reservation(args.reservation, verb, args.gpus)
        return Answer(done, _done_text(f"money.reserve_{verb}d", done))

    return change


def give_back(args: argparse.Namespace) -> Answer:
    """Permanent, so it asks for confirmation."""
    gpus = words("money.reserve_all") if args.gpus is None else told(count("gpu", args.gpus))
    sentence = say("money.reserve_returns", gpus=gpus, reservation=args.reservation)
    if args.dry_run:
        asked = {"reservation": args.reservation, "gpus": args.gpus}
        return Answer(asked, words("money.dry_run", would=sentence))
    agree(sentence, yes=args.yes)
    done = Client().change_reservation(args.reservation, "return", args.gpus)
    return Answer(done, _done_text("money.reserve_returned", done))


def show(args: argparse.Namespace) -> Answer:
    data = Client().reservations()
    found = data["reservations"]
    if not args.all:
        found = [each for each in found if each["state"] != "ended"]
    lines = [table_of(found)] if found else [words("money.no_reservations")]
    lines += [
        words(
            "money.reserve_credit",
            tenant=each["tenant"],
            sum=Usd(each["microusd"]),
            until=clock(each["expires_s"]),
        )
        for each in all_printable(data["credits"])
    ]
    return Answer({**data, "reservations": found}, "\n\n".join(lines))


COLUMNS = ("reservation", "tenant", "pool", "window", "gpus", "used", "idle", "paused", "lent")
CREDITS: Final = ("pause_credit_microusd", "return_credit_microusd", "refund_microusd")
GPU_SECONDS: Final = ("bought_gpu_s", "used_gpu_s", "idle_gpu_s", "paused_gpu_s", "lent_gpu_s")
SUMS = ("reservation", "gpu_hours", "active", "idle", "paused", "lent", "paid", "credits", "earned", "net")


def table_of(found: Sequence[ReservationAnswer]) -> str:
    """Its state, and below it the hours and the money: committed, active, idle, lent, net."""
    shown = all_printable(list(found))
    now = [
        (
            each["reservation"],
            each["tenant"],
            f"{each['gpu']} {each['site']}",
            f"{clock(each['start_s'])} - {clock(each['end_s'])}",
            *(str(n) for n in (each["gpus"], each["used"], each["idle"], each["paused"], each["lent"])),
        )
        for each in shown
    ]
    hours = [
        (
            each["reservation"],
            *(told(Number(each[name] / HOUR_S, 1)) for name in GPU_SECONDS),
            told(Usd(each["paid_microusd"])),
            told(Usd(sum(each[name] for name in CREDITS))),
            told(Usd(each["earned_microusd"])),
            told(Usd(each["net_microusd"])),
        )
        for each in shown
    ]
    heads = [words(f"money.col_{name}") for name in COLUMNS]
    sums = [words(f"money.col_{name}") for name in SUMS]
    first = table(heads, now, right=(4, 5, 6, 7, 8))
    return f"{first}\n\n{table(sums, hours, right=tuple(range(1, len(SUMS))))}"


def _quote_text(offered: ReserveQuoteAnswer) -> str:
    facts = {
        "gpus": count("gpu", offered["gpus"]),
        "gpu": offered["gpu"],
        "site": offered["site"],
        "start": clock(offered["start_s"]),
        "end": clock(offered["end_s"]),
    }
    rows = [
        (words("money.reserve_row_unit"), told(Usd(offered["microusd_per_gpu_hour"]))),
        (words("money.reserve_row_total"), told(Usd(offered["total_microusd"]))),
        (words("money.reserve_row_pause"), told(Usd(offered["pause_microusd_per_gpu_hour"]))),
        (words("money.reserve_row_return"), told(Usd(offered["return_microusd_per_gpu_hour"]))),
        (words("money.reserve_row_share"), f"{offered['share_permille'] / 10:g} %"),
        (words("money.reserve_row_free"), str(offered["free_gpus"])),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {value}" for name, value in rows]
    return "\n".join([words("money.reserve_window", **facts), "", *lines])


def _done_text(code: str, done: ReservationAnswer) -> str:
    sentence: Sentence = say(code, reservation=done["reservation"])
    return f"{told(sentence)}\n\n{table_of([done])}"


NAME = arg("reservation", metavar="RESERVATION")
GPUS = arg("--gpus", type=integer, metavar="N")
HOURS = arg("--hours", type=integer, metavar="N", required=True)
AT_MOST = arg("--at-most", metavar="USD")
KEY = arg("--key", default="")
TENANT = arg("--tenant", required=True)
VERBS = {
    "quote": Verb("brimful reserve quote --gpu h100 --gpus 8 --hours 24", (_add_window,), quote),
    "buy": Verb(
        'brimful reserve buy --gpu h100 --gpus 8 --hours 24 --start "Fri 09:00"\n'
        "brimful reserve buy --gpu h100 --gpus 8 --hours 24 --at-most 2.50 --yes",
        (_add_window, AT_MOST, KEY, arg("--tenant"), CONSENT, DRY_RUN),
        buy,
    ),
    "grant": Verb(
        "brimful reserve grant --tenant vision --gpu h100 --gpus 8 --hours 2160",
        (_add_window, KEY, TENANT),
        grant,
    ),
    "pause": Verb(
        "brimful reserve pause r1\nbrimful reserve pause r1 --gpus 4", (NAME, GPUS), _change("pause")
    ),
    "resume": Verb("brimful reserve resume r1", (NAME, GPUS), _change("resume")),
    "return": Verb("brimful reserve return r1 --gpus 4 --yes", (NAME, GPUS, CONSENT, DRY_RUN), give_back),
    "extend": Verb(
        "brimful reserve extend r1 --hours 12 --yes", (NAME, HOURS, AT_MOST, KEY, CONSENT, DRY_RUN), extend
    ),
    "list": Verb(
        "brimful reserve list\nbrimful reserve list --all --json", (arg("--all", action="store_true"),), show
    ),
}
