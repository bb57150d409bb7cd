"""`brimful where`: the cheapest places for a training job, per useful work, with the sum itemised."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.cli.commands import Answer, whole
from brimful.cli.render import table
from brimful.errors import BadInput, Refused
from brimful.units import MICROUSD, show_seconds, show_usd

if TYPE_CHECKING:
    import argparse

    from brimful.market.where import Place

EXAMPLE = """brimful where examples/nanogpt/train_fineweb.py --offers examples/offers.csv --tokens 1e9"""
HOUR_S = 3600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB", help="a training config, as for `brimful fit`")
    parser.add_argument("--model", help="a known model instead of a config: gpt2, llama-3.1-8b …")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument(
        "--offers",
        required=True,
        metavar="PATH",
        help="a CSV or TOML of offers, or a SkyPilot catalog folder",
    )
    parser.add_argument(
        "--tokens", type=float, default=1e9, metavar="N", help="useful work left (default 1e9)"
    )
    parser.add_argument(
        "--from", dest="at", default="", metavar="PROVIDER/REGION", help="where its data lies"
    )
    parser.add_argument(
        "--data-gb", type=float, default=0.0, metavar="GB", help="data and checkpoint to bring"
    )
    parser.add_argument(
        "--restart-minutes", type=float, default=12.0, metavar="M", help="of a start (default 12)"
    )
    parser.add_argument(
        "--interruptions",
        type=float,
        default=0.1,
        metavar="X",
        help="of spot, per hour (default 0.1: assumed)",
    )
    parser.add_argument(
        "--value-of-time",
        type=float,
        default=0.0,
        metavar="USD",
        help="what an hour sooner is worth (default 0)",
    )
    parser.add_argument("--no-spot", action="store_true", help="only offers that are not taken away")
    parser.add_argument("--top", type=whole, default=10, metavar="N", help="places to show (default 10)")


def run(args: argparse.Namespace) -> Answer:
    from brimful.adapters.providers.offers import read_offers
    from brimful.market.where import Need, rank
    from brimful.predict.readers.read import read

    for name in ("tokens", "data_gb", "restart_minutes", "interruptions", "value_of_time"):
        if not 0 <= getattr(args, name) <= 1e18 or (name == "tokens" and not args.tokens):
            raise BadInput(
                f"--{name.replace('_', '-')} is {getattr(args, name):g}", hint="a number, not negative"
            )
    reading = read(args.job, model=args.model, overrides=args.set)
    offers, unknown = read_offers(Path(args.offers))
    offers = [o for o in offers if o.gpus == 1 and not (args.no_spot and o.is_spot)]
    rates, unfit = _rates(reading, sorted({offer.gpu for offer in offers}))
    provider, _, region = args.at.partition("/")
    need = Need(
        work=args.tokens,
        state_bytes=round(args.data_gb * 1e9),
        at_provider=provider,
        at_region=region,
        restart_s=args.restart_minutes * 60,
        interruptions_per_hour=args.interruptions,
        microusd_per_wait_hour=round(args.value_of_time * MICROUSD),
    )
    places = rank(offers, need, rates)
    if not places:
        raise Refused(
            f"it fits on none of the {len(unfit)} types of GPU on offer",
            hint="see `brimful fit` for what to change",
        )
    data = {
        "places": [_as_dict(place) for place in places[: args.top]],
        "offers": len(offers),
        "does_not_fit": unfit,
        "unknown_gpus": unknown,
    }
    return Answer(data, _text(places, args.top, unfit, len(offers)))


def _rates(reading: Any, gpus: list[str]) -> tuple[dict[str, float], list[str]]:  # noqa: ANN401 - Reading
    """Tokens per second on each card where it fits, and the cards where it does not."""
    from brimful.errors import BrimfulError
    from brimful.predict.fit import estimate
    from brimful.specs.gpu import find_gpu

    rates, unfit = {}, []
    for name in gpus:
        try:
            answer = estimate(reading.model, reading.training, find_gpu(name))
        except BrimfulError:
            unfit.append(name)  # a number format this card does not have, for one
            continue
        if answer.fits:
            rates[name] = answer.speed.tokens_per_s.likely
        else:
            unfit.append(name)
    return rates, unfit


def _as_dict(place: Place) -> dict[str, Any]:
    offer = place.offer
    usd = {
        name: getattr(place, name) / MICROUSD
        for name in ("compute", "egress", "restarts", "waiting", "total")
    }
    return {
        "provider": offer.provider,
        "region": offer.region,
        "zone": offer.zone,
        "instance": offer.instance,
        "gpu": offer.gpu,
        "spot": offer.is_spot,
        "usd_per_hour": offer.microusd_per_hour / MICROUSD,
        "hours": round(place.hours, 3),
        "usd": usd,
        "usd_per_million_tokens": place.score,
    }


def _text(places: list[Place], top: int, unfit: list[str], offers: int) -> str:
    rows = [
        (
            p.offer.gpu,
            f"{p.offer.provider} {p.offer.region}"[:28],
            "spot" if p.offer.is_spot else "",
            show_seconds(p.hours * HOUR_S),
            show_usd(p.compute),
            show_usd(p.egress),
            show_usd(p.restarts + p.waiting),
            show_usd(p.total),
        )
        for p in _one_per_card_and_region(places)[:top]
    ]
    header = ("GPU", "where", "", "time", "compute", "egress", "risk", "total")
    lines = [
        table(header, rows, right=(3, 4, 5, 6, 7)),
        "",
        f"{len(places):,} of {offers:,} offers of one GPU fit.",
    ]
    if unfit:
        lines.append(f"Does not fit on {', '.join(unfit[:6])}{' …' if len(unfit) > 6 else ''}.")
    return "\n".join(lines)


def _one_per_card_and_region(places: list[Place]) -> list[Place]:
    best: dict[tuple[str, str, str], Place] = {}
    for place in places:
        best.setdefault((place.offer.gpu, place.offer.provider, place.offer.region), place)
    return list(best.values())
