"""Answers one question: what a config needs on each card, what a message means, whether advice is right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brimful.client.answers import FitAnswer, FitCardAnswer
from brimful.configs.pasted import suffix_of
from brimful.configs.read import read
from brimful.configs.reading import Reading
from brimful.diagnose.advice import advised
from brimful.diagnose.claims.judge import Case
from brimful.diagnose.claims.paste import is_too_long, judge_paste
from brimful.diagnose.explain import About, answer, explain, other_bytes_told, printable
from brimful.errors import BadInput
from brimful.fit.advice.ladder import ladder
from brimful.fit.advice.sweep import sweep
from brimful.fit.fit import fit_reading, predictor
from brimful.language import say, told, tongue
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu, find_gpu

MOST_BATCH = 4096
POINTS = 24


def answered(
    *,
    config: str,
    text: str,
    model: str,
    gpus: Sequence[str],
    settings: Sequence[str],
    other_bytes: int | None,
) -> FitAnswer:
    """`config` may turn out to be a message or advice, and is then treated as such.

    Writes the config into the current folder, which must be the caller's own and empty: the config readers
    read files, and must find nothing there that the config could name.
    """
    kind = suffix_of(config) if config.strip() else None
    if config.strip() and kind is None:
        config, text = "", f"{config}\n{text}".strip()
    if not (config.strip() or text.strip() or model):
        raise BadInput(say("server.fit_nothing"))
    cards = [find_gpu(name) for name in dict.fromkeys(gpus)]
    if (config.strip() or model) and not cards:
        raise BadInput(say("server.fit_no_card"))
    if other_bytes is None and text:
        other_bytes = other_bytes_told(text)
    file = Path(f"config{kind}") if kind else None
    if file is not None:
        file.write_text(config, encoding="utf-8", newline="")
    try:
        return _answered(file, text, model, cards, settings=settings, other_bytes=other_bytes)
    finally:
        if file is not None:
            file.unlink()


def _answered(
    file: Path | None,
    text: str,
    model: str,
    cards: Sequence[Gpu],
    *,
    settings: Sequence[str],
    other_bytes: int | None,
) -> FitAnswer:
    def reread(words: Sequence[str]) -> Reading:
        sets = [*settings, *words]
        if file is not None and model:
            return read(None, model=model, arguments=str(file), overrides=sets)
        return read(str(file) if file else None, model=model or None, overrides=sets)

    reading = reread([]) if file is not None or model else None
    first = None
    found: list[FitCardAnswer] = []
    for gpu in cards if reading else ():
        assert reading is not None
        estimate = fit_reading(reading, gpu, other_bytes, correction=None)
        first = first or estimate
        found.append(_card(reading, gpu, estimate, other_bytes))
    about = About(reading=reading, gpu=cards[0] if cards else None, estimate=first)
    return {
        "language": tongue().code,
        "model": reading.model.name if reading else None,
        "config": None if file is None else file.suffix.removeprefix("."),
        "cards": found,
        "explanation": _explanation(text, about) if text else None,
        "claims": _claims(text, about, other_bytes, reread) if text else None,
    }


def _card(reading: Reading, gpu: Gpu, estimate: Estimate, other_bytes: int | None) -> FitCardAnswer:
    predict = predictor(reading, gpu, other_bytes, None)
    swept = sweep(reading, gpu, "batch_size", _batches(reading, estimate), other_bytes, correction=None)
    rungs = ladder(reading.training, predict, gpu, reading.dialect) if estimate.verdict != "fits" else ()
    return {
        "gpu": gpu.name,
        "title": gpu.title,
        "batch_size": reading.training.batch_size,
        "estimate": estimate.as_dict(),
        "ladder": [rung.as_dict() for rung in rungs],
        "sweep": {
            "swept": swept.swept,
            "largest": swept.largest,
            "sure": swept.sure,
            "knee": swept.knee,
            "points": [point.as_dict() for point in swept.points],
            "says": [told(sentence) for sentence in swept.says()],
        },
    }


def _batches(reading: Reading, estimate: Estimate) -> list[int]:
    """From 1 to 1.5 times what fits or is configured, evenly spaced, including both of these."""
    marks = {reading.training.batch_size, estimate.largest_batch or 1, estimate.sure_batch or 1}
    top = min(MOST_BATCH, max(8, -(-max(marks) * 3 // 2)))
    even = {1 + round(i * (top - 1) / (POINTS - 1)) for i in range(POINTS)}
    return sorted(even | {mark for mark in marks if mark <= top})


def _explanation(text: str, about: About) -> dict[str, Any]:
    found, cause = explain(text, about), answer(text, about)
    found = (*found, *advised(about)) if found or cause else ()
    return {
        "answer": cause.as_dict(tongue()) if cause else None,
        "recognised": [one.as_dict(tongue()) for one in found],
        "cannot_tell": cause is None and not any(one.says for one in found),
    }


def _claims(text: str, about: About, other_bytes: int | None, reread: Any) -> dict[str, Any] | None:  # noqa: ANN401
    """None for a log, which makes no claims."""
    if is_too_long(text := printable(text)):
        return None
    case = None
    if about.reading is not None and about.gpu is not None:
        case = Case(about.reading, about.gpu, other_bytes, correction=None)
    judged = judge_paste(text, case, reread if case else None)
    return {
        "summary": [told(line) for line in judged.summary],
        "summary_codes": [line.as_dict() for line in judged.summary],
        "settings": judged.settings,
        "claims": [one.as_dict(tongue()) for one in judged.claims],
    }
