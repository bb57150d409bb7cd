"""`brimful claims`: is the advice I found any good, for this config on this card?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from brimful.cli.commands import Answer
from brimful.cli.gpu.explain import read_text
from brimful.cli.gpu.others import add_others, other_bytes
from brimful.cli.options import own_correction
from brimful.cli.render import paint, paragraph
from brimful.configs.read import read
from brimful.configs.reading import Reading
from brimful.diagnose.advice import assumed_notes
from brimful.diagnose.claims.judge import Case, Judgement, judge_all, verdict_words
from brimful.diagnose.claims.paste import Line, judge_paste
from brimful.diagnose.explain import clean
from brimful.language import told, tongue, words
from brimful.specs.gpu import find_gpu

EXAMPLE = """brimful claims examples/nanogpt/train_fineweb.py --gpu rtx-4070
brimful claims examples/nanogpt/train_fineweb.py --gpu rtx-4070 --text answer.txt
brimful claims examples/nanogpt/train_fineweb.py --gpu 4070 --other-mib 2100 --lang de"""

_COLOURS = {"true": "green", "partly": "yellow", "false": "red", "cannot tell": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config")
    parser.add_argument("--gpu", metavar="NAME", required=True)
    parser.add_argument("--text", metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    add_others(parser)


def run(args: argparse.Namespace) -> Answer:
    reading = read(args.config, overrides=args.set)
    case = Case(reading, find_gpu(args.gpu), other_bytes(args), correction=own_correction())
    head, others = f"{reading.model.name}, {case.gpu.title}", case.now().others
    titles = [paint(head, "bold"), *(paragraph(sentence) for sentence in assumed_notes(others))]
    if args.text is None:
        judged = judge_all(case)
        data = {"claims": [one.as_dict(tongue()) for one in judged]}
        text = "\n\n".join([*titles, *(_one(one) for one in judged)])
        return Answer({"language": tongue().code, "other_programs": others.as_dict(), **data}, text)

    def reread(words: Sequence[str]) -> Reading:
        return read(args.config, overrides=[*args.set, *words])

    lines = judge_paste(clean(read_text(args.text)), case, reread)
    data = {"lines": [line.as_dict(tongue()) for line in lines]}
    text = "\n\n".join([*titles, *(_line(line) for line in lines)])
    return Answer({"language": tongue().code, "other_programs": others.as_dict(), **data}, text)


def _line(line: Line) -> str:

    shown = paragraph(line.text, f"{line.number:>3} | ", "    | ")
    if not line.judged:
        nothing = words("gpu.no_claim")
        return f"{shown}\n      {paint(nothing, 'dim')}"
    return "\n".join([shown, *(_one(one, indent="      ") for one in line.judged)])


def _one(one: Judgement, indent: str = "") -> str:
    word = told(verdict_words(one.verdict)).upper()
    said = told(one.said)
    head = paragraph(f"{word}  {said}", indent, indent + "  ")
    lines = [head.replace(word, paint(word, _COLOURS[one.verdict]), 1)]
    lines += [paragraph(why, indent + "  ") for why in one.why]
    lines += [paint(paragraph(fact, indent + "  "), "dim") for fact in one.published]
    return "\n".join(lines)
