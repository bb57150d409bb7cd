"""`brimful claims`: is the advice I found any good, for this config on this card?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from brimful.cli.commands import Answer
from brimful.cli.gpu.explain import read_text
from brimful.cli.gpu.others import add_others, other_bytes
from brimful.cli.options import own_correction
from brimful.cli.render import paint, paragraph
from brimful.configs.read import read
from brimful.configs.reading import Reading
from brimful.diagnose.advice import assumed_notes
from brimful.diagnose.claims.judge import Case, Judgement, judge_all, verdict_words
from brimful.diagnose.claims.paste import judge_paste, refuse_too_long
from brimful.diagnose.claims.reading import language_of, repaired
from brimful.diagnose.explain import printable
from brimful.errors import BadInput
from brimful.language import choose, say, told, tongue
from brimful.language.printable import one_line
from brimful.specs.gpu import find_gpu

EXAMPLE = """brimful claims examples/nanogpt/train_fineweb.py --gpu rtx-4070
brimful claims examples/nanogpt/train_fineweb.py --gpu rtx-4070 --text answer.txt
brimful claims examples/nanogpt/train_fineweb.py --gpu 4070 --other-mib 2100 --lang de"""

_COLOURS = {"true": "green", "partly": "yellow", "false": "red", "cannot_tell": "dim"}
_QUOTED = 160  # characters of a quote to show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?")
    parser.add_argument("--gpu", metavar="NAME")
    parser.add_argument("--text", metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    add_others(parser)


def run(args: argparse.Namespace) -> Answer:
    case = _case(args)
    if args.text is None:
        assert case is not None
        return _all(case)

    def reread(words: Sequence[str]) -> Reading:
        return read(args.config, overrides=[*args.set, *words])

    text = read_text(args.text)
    refuse_too_long(text)
    text = printable(text)
    if args.lang is None and (spoken := language_of(repaired(text))):
        choose(spoken)  # answer in the language of the text
    found = judge_paste(text, case, reread)
    data = {
        "language": tongue().code,
        "other_programs": case.now().others.as_dict() if case else None,
        "summary": [told(line) for line in found.summary],
        "summary_codes": [line.as_dict() for line in found.summary],
        "settings": found.settings,
        "claims": [one.as_dict(tongue()) for one in found.claims],
    }
    blocks = [*map(paragraph, found.summary), "", *map(_quoted, found.claims)]
    return Answer(data, "\n".join(blocks).rstrip())


def _case(args: argparse.Namespace) -> Case | None:
    """None if neither config nor card is given; only a text works without them."""
    if args.config is None and args.gpu is None and args.text is not None:
        return None
    if args.config is None or args.gpu is None:
        raise BadInput(say("gpu.claims_needs_config" if args.config is None else "gpu.claims_needs_gpu"))
    return Case(
        read(args.config, overrides=args.set),
        find_gpu(args.gpu),
        other_bytes(args),
        correction=own_correction(),
    )


def _all(case: Case) -> Answer:
    """Every claim brimful knows, checked on this config."""
    head, others = one_line(f"{case.reading.model.name}, {case.gpu.title}"), case.now().others
    titles = [paint(head, "bold"), *(paragraph(sentence) for sentence in assumed_notes(others))]
    judged = judge_all(case)
    data = {"claims": [one.as_dict(tongue()) for one in judged]}
    text = "\n\n".join([*titles, *(_one(one) for one in judged)])
    return Answer({"language": tongue().code, "other_programs": others.as_dict(), **data}, text)


def _quoted(one: Judgement) -> str:
    """The verdict and the sentence it is about, then the evidence."""
    text = " ".join(one.quotes[0].split())
    shown = text if len(text) <= _QUOTED else text[:_QUOTED].rsplit(" ", 1)[0] + " …"
    return _one(replace(one, said=say("claims.quote", text=shown)))


def _one(one: Judgement) -> str:
    word = told(verdict_words(one.verdict)).upper()
    said = told(one.said)
    head = paragraph(f"{word}  {said}", "", "  ")
    lines = [head.replace(word, paint(word, _COLOURS[one.verdict]), 1)]
    lines += [paragraph(why, "  ") for why in one.why]
    lines += [paint(paragraph(fact, "  "), "dim") for fact in one.published]
    return "\n".join(lines)
