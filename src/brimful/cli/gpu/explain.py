"""`brimful explain`: what an out-of-memory message, a log line or an nvidia-smi table means."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from brimful.cli.commands import NO, YES, Answer
from brimful.cli.gpu.others import add_others, other_bytes
from brimful.cli.options import own_correction
from brimful.cli.render import paint, paragraph
from brimful.configs.read import read
from brimful.diagnose.advice import advised
from brimful.diagnose.causes import Answer as Cause
from brimful.diagnose.claims.reading import language_of
from brimful.diagnose.explain import About, Explanation, answer, explain, other_bytes_told
from brimful.errors import BadInput
from brimful.files import open_given
from brimful.fit.fit import fit_reading
from brimful.language import Size, choose, say, tongue, words
from brimful.language.failures import os_errors_as
from brimful.specs.gpu import find_gpu

EXAMPLE = """brimful explain crash.log
nvidia-smi | brimful explain
brimful explain train.log --gpu rtx-4070 --config examples/nanogpt/train_fineweb.py
brimful explain crash.log --lang fr"""

_MOST_LINES = 10  # in the answer to a plain question
_KEPT_BYTES = _CHUNK_BYTES = 16_000_000  # a run dies at the end of its log
_MOST_BYTES = 1 << 30  # `yes | brimful explain` never ends


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="-")
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--gpu", metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    add_others(parser)


def run(args: argparse.Namespace) -> Answer:
    text = args.file if _is_question(args.file) else read_text(args.file)
    if args.lang is None and _is_question(text) and (spoken := language_of(text)):
        choose(spoken)  # answer a question in its own language
    about = _about(args, text)
    found, cause = explain(text, about), answer(text, about)
    asked = not found and _is_question(text)
    found = (*found, *advised(about)) if found or cause else ()
    data: dict[str, Any] = {
        "language": tongue().code,
        "answer": cause.as_dict(tongue()) if cause else None,
        "recognised": [one.as_dict(tongue()) for one in found],
        "cannot_tell": cause is None and not any(one.says for one in found),
    }
    if not found and not cause:
        missing = (say("gpu.explain_nothing_known"), say("gpu.explain_give_all"))
        data["missing"] = [tongue().text(each) for each in missing]
        data["missing_codes"] = [each.as_dict() for each in missing]
        return Answer(data, "\n".join(map(paragraph, missing)), NO)
    shown = [*([_answered(cause)] if cause else []), *([_shown(found)] if found else [])]
    answered = _in_ten_lines(_answered(cause), found) if asked and cause else "\n\n".join(shown)
    return Answer(data, answered, NO if data["cannot_tell"] else YES)


def _in_ten_lines(answered: str, found: tuple[Explanation, ...]) -> str:
    """The answer to a plain question, and as many sentences about config and card as fit."""
    told = [paragraph(each, "  ") for one in found for each in one.says]
    told = [*(paint(paragraph(one.title), "bold") for one in found), *told]
    while told and "\n".join([answered, *told]).count("\n") >= _MOST_LINES:
        told.pop()
    return "\n".join([answered, *told])


def _answered(cause: Cause) -> str:
    """The cause, its evidence and what to change, before any detail."""
    head, *rest = cause.says
    lines = [paint(paragraph(head), "bold"), *(paragraph(sentence, "  ") for sentence in rest)]
    return "\n".join(
        [*lines, words("causes.what_to_change"), *(paragraph(fix, "  - ") for fix in cause.changes)]
    )


def _is_question(text: str) -> bool:
    """A sentence and not a file name: three words or more on one line."""
    return len(text.split()) >= 3 and "\n" not in text.strip() and not Path(text[:255]).exists()


def read_text(file: str) -> str:
    """The end of the text to explain. Bytes that are not UTF-8 are shown as such and do no harm."""
    if file == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise BadInput(say("gpu.explain_no_text"))
        return _end_of(sys.stdin.buffer).decode("utf-8", errors="replace")
    with os_errors_as("gpu.cannot_read", None, file=file), open_given(Path(file), or_pipe=True) as source:
        return _end_of(source).decode("utf-8", errors="replace")


def _end_of(source: BinaryIO) -> bytes:
    """The last bytes of a file of any length, or of a pipe that ends."""
    kept, read_bytes = b"", 0
    with suppress(OSError):  # tests and notebooks have an input without a file
        if (size := os.fstat(source.fileno()).st_size) > _KEPT_BYTES:
            source.seek(max(source.tell(), size - _KEPT_BYTES))
    while chunk := source.read(_CHUNK_BYTES):
        kept = (kept + chunk)[-_KEPT_BYTES:]
        read_bytes += len(chunk)
        if read_bytes > _MOST_BYTES:
            raise BadInput(say("gpu.explain_text_too_long", most=Size(_MOST_BYTES)))
    return kept


def _about(args: argparse.Namespace, text: str) -> About:
    """What the user gave; for other programs' memory, otherwise what the message itself says."""
    reading = gpu = estimate = None
    given_bytes = other_bytes(args)
    if given_bytes is None:
        given_bytes = other_bytes_told(text)
    if args.config is not None:
        reading = read(args.config, overrides=args.set)
    elif args.set:
        raise BadInput(say("gpu.set_needs_config"))
    if args.gpu is not None:
        gpu = find_gpu(args.gpu)
    if reading is not None and gpu is not None:
        estimate = fit_reading(reading, gpu, given_bytes, correction=own_correction())
    return About(reading=reading, gpu=gpu, estimate=estimate)


def _shown(found: tuple[Explanation, ...]) -> str:
    blocks = []
    for one in found:
        lines = [paint(paragraph(one.title), "bold")]
        lines += [paragraph(sentence, "  ") for sentence in one.says]
        if not one.says:
            lines.append("  " + words("gpu.explain_no_more"))
        if one.missing:
            lines.append("  " + paint(words("gpu.tell_more"), "dim"))
            lines += [paragraph(sentence, "  - ") for sentence in one.missing]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
