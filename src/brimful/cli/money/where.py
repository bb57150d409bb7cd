"""`brimful market where`: the cheapest places for training, batch inference or distillation, itemised."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from brimful.adapters.providers.offers import UNKNOWN_GPU, LeftOut, read_offers
from brimful.cli.commands import Answer, integer
from brimful.cli.options import own_correction
from brimful.cli.render import table
from brimful.configs.read import read
from brimful.configs.reading import Reading
from brimful.errors import BadInput, Refused
from brimful.fit.inference import Serving
from brimful.fit.rates import Rates, serving_rates, training_rates
from brimful.language import Seconds, Sentence, Several, Usd, say, told, words
from brimful.language.printable import printable
from brimful.market.where import Need, Place, never_end, rank
from brimful.specs.gpu import find_gpu
from brimful.specs.presets import find_preset
from brimful.units import HOUR_S, MICROUSD

EXAMPLE = """brimful market where examples/nanogpt/train_fineweb.py --offers examples/offers.csv --tokens 1e9
brimful market where --model gpt2-xl --inference --offers examples/offers.csv --tokens 1e9
brimful market where --model gpt2 --teacher gpt2-xl --offers examples/offers.csv --tokens 1e9"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="JOB")
    parser.add_argument("--model")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--prompt-tokens", type=integer, default=1024, metavar="N")
    parser.add_argument("--output-tokens", type=integer, default=256, metavar="N")
    parser.add_argument("--weight-bits", type=int, choices=(16, 8, 4), default=16)
    parser.add_argument("--teacher", metavar="MODEL")
    parser.add_argument("--offers", required=True, metavar="PATH")
    parser.add_argument("--tokens", type=float, default=1e9, metavar="N")
    parser.add_argument("--from", dest="at", default="", metavar="PROVIDER/REGION")
    parser.add_argument("--data-gb", type=float, default=0.0, metavar="GB")
    parser.add_argument("--restart-minutes", type=float, default=12.0, metavar="M")
    parser.add_argument("--interruptions", type=float, default=0.1, metavar="X")
    parser.add_argument("--value-of-time", type=float, default=0.0, metavar="USD")
    parser.add_argument("--no-spot", action="store_true")
    parser.add_argument("--top", type=integer, default=10, metavar="N")


def run(args: argparse.Namespace) -> Answer:
    for name in ("tokens", "data_gb", "restart_minutes", "interruptions", "value_of_time"):
        if not 0 <= getattr(args, name) <= 1e18 or (name == "tokens" and not args.tokens):
            code = "money.not_positive" if name == "tokens" else "money.negative"
            value = f"{getattr(args, name):g}"
            raise BadInput(say(code, option=name.replace("_", "-"), value=value, most="1e18"))
    reading = read(args.job, model=args.model, overrides=args.set)
    offers, left_out = read_offers(Path(args.offers))
    offers = [o for o in offers if not (args.no_spot and o.is_spot)]
    rates, unfit = rates_of(_job(args, reading), {(offer.gpu, offer.gpus) for offer in offers})
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
    if never := never_end(offers, need, rates):
        left_out["never_ends"] = never
    if not places:
        closest = Several(("", *_first_three(unfit)), between="; ")
        raise Refused(say("money.fits_nowhere", types=len(unfit), closest=closest))
    data = {
        "places": [_as_dict(place) for place in places[: args.top]],
        "offers": len(offers),
        "does_not_fit": list(unfit),
        "why_not": {card: told(why) for card, why in unfit.items()},
        "why_not_codes": {card: why.as_dict() for card, why in unfit.items()},
        "unknown_gpus": left_out.get(UNKNOWN_GPU, {}),
        "left_out": left_out,
    }
    return Answer(data, _text(places, args.top, unfit, len(offers)) + _left_out_text(left_out))


def _job(args: argparse.Namespace, reading: Reading) -> Rates:
    model = reading.model
    if args.inference and args.teacher:
        raise BadInput(say("money.two_jobs"))
    if not args.inference:
        teacher = find_preset(args.teacher).model if args.teacher else None
        return training_rates(model, reading.training, teacher, correction=own_correction())
    if model.encoder or model.classes is not None:
        raise BadInput(say("money.writes_no_text", model=model.name))
    return serving_rates(
        model,
        Serving(
            prompt_tokens=args.prompt_tokens, output_tokens=args.output_tokens, weight_bits=args.weight_bits
        ),
    )


def rates_of(
    job: Rates, instances: Iterable[tuple[str, int]]
) -> tuple[dict[tuple[str, int], float], dict[str, Sentence]]:
    """Tokens per second of each instance type where the job fits; and cards where it never fits, with why."""

    rates: dict[tuple[str, int], float] = {}
    why_not: dict[str, Sentence] = {}
    for name, gpus in sorted(instances):
        answer = job(find_gpu(name), gpus)
        if answer.tokens_per_s > 0:
            rates[name, gpus] = answer.tokens_per_s
        elif answer.why_not is not None:
            why_not.setdefault(name, answer.why_not)
    fitting = {name for name, _ in rates}
    return rates, {name: why for name, why in why_not.items() if name not in fitting}


def _as_dict(place: Place) -> dict[str, Any]:
    offer = place.offer
    usd = {
        name: getattr(place, name) / MICROUSD
        for name in ("compute", "egress", "restarts", "waiting", "total")
    }
    names = ("provider", "region", "zone", "instance", "gpu", "gpus")
    return {
        **{name: getattr(offer, name) for name in names},
        "spot": offer.is_spot,
        "usd_per_hour": offer.microusd_per_hour / MICROUSD,
        "hours": round(place.hours, 3),
        "usd": usd,
        "usd_per_million_tokens": place.score,
    }


def _text(places: list[Place], top: int, unfit: dict[str, Sentence], offers: int) -> str:
    shown = _one_per_card_and_region(places)[:top]
    # An item that is zero everywhere needs no column.
    items = [name for name in ("egress", "restarts", "waiting") if any(getattr(p, name) for p in shown)]
    sums = ("compute", *items, "total")
    rows = [
        (
            (f"{p.offer.gpus} x " if p.offer.gpus > 1 else "") + p.offer.gpu,
            f"{p.offer.provider} {p.offer.region}"[:28],
            "spot" if p.offer.is_spot else "",
            told(Seconds(p.hours * HOUR_S)),
            *(told(Usd(getattr(p, name))) for name in sums),
        )
        for p in shown
    ]
    titles = {"restarts": "risk"}
    where, *header = (words(f"money.col_{titles.get(name, name)}") for name in ("where", "time", *sums))
    lines = [
        table(["GPU", where, "", *header], rows, right=tuple(range(3, 4 + len(sums)))),
        "",
        words("money.offers_fit", fit=len(places), offers=offers),
    ]
    if len(unfit) > 3:
        lines.append(
            words("money.not_on_more", cards=Several(_first_three(unfit), "; "), more=len(unfit) - 3)
        )
    elif unfit:
        lines.append(words("money.not_on", cards=Several(_first_three(unfit), "; ")))
    return "\n".join(lines)


def _left_out_text(left_out: LeftOut) -> str:
    """Rows of the file that offer nothing, with the reason: none is silently dropped."""
    lines = []
    for why, of in left_out.items():
        most = sorted(of, key=lambda label: (-of[label], label))
        named = ", ".join(printable(label[:24]) for label in most[:3]) + (" …" if len(most) > 3 else "")
        lines.append(words(f"money.left_out_{why}", rows=sum(of.values()), cards=named))
    return "".join(f"\n{line}" for line in lines)


def _first_three(unfit: dict[str, Sentence]) -> tuple[Several, ...]:
    return tuple(Several(each, between=": ") for each in list(unfit.items())[:3])


def _one_per_card_and_region(places: list[Place]) -> list[Place]:
    best: dict[tuple[str, int, str, str], Place] = {}
    for place in places:
        offer = place.offer
        best.setdefault((offer.gpu, offer.gpus, offer.provider, offer.region), place)
    return list(best.values())
