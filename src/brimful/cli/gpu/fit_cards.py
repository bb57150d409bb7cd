"""`brimful fit --gpu all` and `--inference`: which card is cheapest, and what serving a model takes."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.cli.commands import NO, YES, Answer
from brimful.cli.gpu.fit_text import spread
from brimful.cli.gpu.others import other_bytes
from brimful.cli.render import bar, page_columns, paint, paragraph, table
from brimful.configs.reading import Reading
from brimful.diagnose.advice import assumed_notes, verdict_words
from brimful.errors import BadInput
from brimful.language import Number, Percent, Sentence, Size, say, told, tongue, words
from brimful.specs.estimate import Interval, batch_risk
from brimful.specs.gpu import Gpu, find_gpu

if TYPE_CHECKING:
    from brimful.fit.advice.cards import Ranked, Served
    from brimful.fit.inference import InferenceEstimate, Serving
    from brimful.specs.prices import Prices

_MOST_TOKENS = 10_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prices", metavar="FILE")
    serving = parser.add_argument_group("serving")
    serving.add_argument("--inference", action="store_true")
    serving.add_argument("--prompt-tokens", type=int, default=1024, metavar="N")
    serving.add_argument("--output-tokens", type=int, default=256, metavar="N")
    serving.add_argument("--weight-bits", type=int, choices=(16, 8, 4), default=16)
    serving.add_argument("--cache-bits", type=int, choices=(16, 8), default=16)


def wanted(args: argparse.Namespace) -> bool:
    """Whether this module handles it: anything but training on one card."""
    every = args.gpu is not None and args.gpu.strip().lower() == "all"
    if not every and args.prices is not None and not args.inference:
        raise BadInput(say("gpu.prices_need_all"))
    others = ("compare", "ladder", "patch", "write", "dry_run", "fix")
    given = ["--" + name.replace("_", "-") for name in others if getattr(args, name)]
    if (every or args.inference) and given:
        mode = "--inference" if args.inference else "--gpu all"
        raise BadInput(say("gpu.all_goes_alone", mode=mode, given=", ".join(given)))
    return every or bool(args.inference)


def run(args: argparse.Namespace, reading: Reading) -> Answer:
    from brimful.specs.prices import known_prices, read_prices

    if args.gpu is None:
        raise BadInput(say("gpu.no_card"), hint=say("gpu.hint_name_card_or_all"))
    prices = known_prices() if args.prices is None else read_prices(Path(args.prices))
    every = args.gpu.strip().lower() == "all"
    if not args.inference:
        return _rank(args, reading, prices)
    serving = _serving(args, reading)
    if every:
        return _rank_serving(args, reading, serving, prices)
    return _serve(args, reading, serving, prices)


def _serving(args: argparse.Namespace, reading: Reading) -> Serving:
    from brimful.fit.inference import Serving

    for name in ("prompt_tokens", "output_tokens"):
        if not 1 <= getattr(args, name) <= _MOST_TOKENS:
            flag = "--" + name.replace("_", "-")
            raise BadInput(say("gpu.out_of_range", flag=flag, value=getattr(args, name)))
    if reading.model.images is not None:
        raise BadInput(say("gpu.images_write_no_text", name=reading.model.name))
    if reading.model.encoder or reading.model.classes is not None:
        raise BadInput(say("gpu.writes_no_text", name=reading.model.name))
    batch = reading.training.batch_size if args.batch_size is not None else 1
    return Serving(
        batch_size=batch,
        prompt_tokens=args.prompt_tokens,
        output_tokens=args.output_tokens,
        weight_bits=args.weight_bits,
        cache_bits=args.cache_bits,
    )


def _rank(args: argparse.Namespace, reading: Reading, prices: Prices) -> Answer:
    from brimful.fit.advice.cards import rank

    ranked = rank(reading, prices, other_bytes(args), correction=args.correction)
    t = reading.training
    head = say(
        "gpu.training_head",
        model=reading.model.name,
        sequences=t.effective_batch,
        tokens=t.sequence_tokens,
    )
    mfus = [Percent(one.estimate.speed.mfu.likely) for one in ranked]
    return _ranking(head, "MFU", list(zip(ranked, mfus, strict=True)), prices)


def _rank_serving(args: argparse.Namespace, reading: Reading, serving: Serving, prices: Prices) -> Answer:
    from brimful.fit.advice.cards import rank_serving

    fill = args.batch_size is None
    ranked = rank_serving(reading, serving, prices, other_bytes(args), fill=fill)
    head = say(
        "gpu.serving_head",
        model=reading.model.name,
        bits=serving.weight_bits,
        prompt=serving.prompt_tokens,
        output=serving.output_tokens,
    )
    sizes = [one.serving.batch_size for one in ranked]
    return _ranking(head, say("gpu.batch"), list(zip(ranked, sizes, strict=True)), prices)


def _row(one: Ranked | Served, fifth: object) -> list[str]:
    cost, price = one.usd_per_million, one.microusd_per_gpu_hour
    assert cost is not None
    assert price is not None
    digits = min(6, max(2, 2 - math.floor(math.log10(cost))))  # three significant digits
    return [
        one.gpu.name,
        tongue().number(cost, digits),
        told(Number(one.tokens_per_s.likely)),
        told(fifth),
        tongue().number(price / 1e6, 2),
        told(one.why),
    ]


def _ranking(
    head: Sentence,
    fifth: object,
    listed: Sequence[tuple[Ranked | Served, object]],
    prices: Prices,
) -> Answer:
    """The table, and below it what is in none of its rows. `fifth` is the title of its fifth column."""

    ranked = [one for one, _ in listed]
    rows = [_row(one, value) for one, value in listed if one.usd_per_million is not None]
    blocks = [paint(paragraph(head), "bold")]
    if rows:
        first = (say("gpu.card"), say("gpu.usd_per_million"), say("gpu.tokens_s"))
        titles = (*first, fifth, "$/h", say("gpu.why"))
        numbered = [[str(number), *row] for number, row in enumerate(rows, start=1)]
        blocks.append(_fitted(["", *map(told, titles)], numbered))
    unpriced = [_name(one) for one in ranked if one.estimate.fits and one.usd_per_million is None]
    if unpriced:
        blocks.append(paragraph(words("gpu.fits_unpriced", cards=", ".join(unpriced))))
    if short := [one for one in ranked if not one.estimate.fits]:
        missing = [told(Size(one.estimate.short_bytes)) for one in short]
        wide, high = max(len(one.gpu.name) for one in short), max(map(len, missing))
        rows_of = zip(short, missing, strict=True)
        lines = [f"  {one.gpu.name:<{wide}}  {size:>{high}}" for one, size in rows_of]
        blocks.append("\n".join([paragraph(words("gpu.fits_no_batch")), *lines]))
    said = say("gpu.prices", source=prices.source)
    if prices.as_of:
        said = say("gpu.prices_of", date=prices.as_of)
    blocks.append(paragraph(said))
    assumed = {one.estimate.others for one in ranked if one.estimate.others.basis == "assumed"}
    blocks += [paragraph(note) for others in assumed for note in assumed_notes(others, of_many=True)]
    data = {
        "prices": {"as_of": prices.as_of, "source": prices.source},
        "ranked": [one.as_dict(tongue()) for one in ranked],
    }
    return Answer(data, "\n\n".join(blocks), YES if rows else NO)


def _name(one: Ranked | Served) -> str:
    """A card that fits, with what limits that."""
    return f"{one.gpu.name} ({', '.join(map(told, one.caveats))})" if one.caveats else one.gpu.name


def _fitted(header: list[str], rows: list[list[str]]) -> str:
    """The table with its last column wrapped to fit the terminal."""
    others = sum(max(len(row[i]) for row in (header, *rows)) + 2 for i in range(len(header) - 1))
    room = max(12, page_columns() - others)
    broken: list[list[str]] = []
    for row in rows:
        first, *rest = textwrap.wrap(row[-1], room) or [""]
        broken.append([*row[:-1], first])
        broken += [[*[""] * (len(header) - 1), line] for line in rest]
    return table(header, broken, right=(0, 2, 3, 4, 5))


def _serve(args: argparse.Namespace, reading: Reading, serving: Serving, prices: Prices) -> Answer:
    from brimful.fit.inference import infer, usd_per_million

    gpu = find_gpu(args.gpu)
    answer = infer(reading.model, serving, gpu, other_bytes(args))
    price = prices.microusd_per_gpu_hour.get(gpu.name)
    rate = answer.tokens_per_s
    rates = (rate.high, rate.likely, rate.low)  # the fastest costs the least
    dollars = Interval(*(usd_per_million(each, price) for each in rates)) if price else None
    data = {**answer.as_dict(), "usd_per_million_tokens": dollars and dollars.as_dict()}
    blocks = [
        _serve_head(answer, reading, gpu),
        _serve_items(answer),
        _serve_speed(answer, serving, dollars, prices),
        *([] if answer.fits else [paragraph(say("gpu.hint_serve_smaller"))]),
        *(paragraph(note, "", "  ") for note in assumed_notes(answer.others)),
    ]
    return Answer(data, "\n\n".join(blocks), YES if answer.fits else NO)


def _serve_head(answer: InferenceEstimate, reading: Reading, gpu: Gpu) -> str:
    word = told(verdict_words(answer.verdict)).upper()
    device = answer.device_bytes
    needs = say("gpu.serving_needs_usable", usable=Size(answer.usable_bytes), **spread(device, Size))
    largest = say("gpu.not_even_one_sequence")
    if answer.largest_batch:
        risk = batch_risk(answer.sure_batch, answer.largest_batch)
        values = {"n": answer.largest_batch, "sure": answer.sure_batch}
        largest = Sentence(f"gpu.largest_batch_as_configured{risk}", values)
    style = {"fits": "green", "does_not_fit": "red"}.get(answer.verdict, "yellow")
    what = words("gpu.on", model=reading.model.name, gpu=gpu.title)
    title = f"{paint(word, style)}  {what}"
    return "\n".join([title, *(paragraph(one, "  ") for one in (needs, largest))])


def _serve_items(answer: InferenceEstimate) -> str:
    total = answer.device_bytes.likely
    names = [told(item.name) for item in answer.items]
    width = max(map(len, names))
    high = max(10, *(len(told(Size(item.bytes))) for item in answer.items))
    lines = [paint(words("gpu.memory"), "bold")]
    for name, item in zip(names, answer.items, strict=True):
        share = told(Percent(item.bytes / total))
        size = told(Size(item.bytes))
        lines.append(f"  {name:<{width}}  {size:>{high}} {share:>5}  {bar(item.bytes / total, 20)}".rstrip())
    return "\n".join(lines)


def _serve_speed(
    answer: InferenceEstimate, serving: Serving, dollars: Interval | None, prices: Prices
) -> str:
    lines = [
        say(
            "gpu.prefill",
            prompts=serving.batch_size,
            tokens=serving.prompt_tokens,
            **spread(answer.prefill_s, lambda s: Number(1000 * s, 1)),
        ),
        say("gpu.decode", **spread(answer.decode_step_s.rate(1), lambda rate: Number(rate, 1))),
        say("gpu.decode_together", **spread(answer.tokens_per_s, Number)),
    ]
    if dollars is not None:
        cost = spread(dollars, lambda usd: Number(usd, 3))
        lines.append(say("gpu.cost_per_million", date=prices.as_of or prices.source, **cost))
    title = paint(told(say("gpu.speed") if answer.fits else say("gpu.speed_if_it_fit")), "bold")
    return "\n".join([title, *(paragraph(line, "  ", "    ") for line in lines)])
