"""Claims in a pasted answer: found by what is the same in every language, and by a few words that are not.

Settings (`batch_size = 12`), names (fp16, torch.compile, expandable_segments) and numbers are not translated
by anybody, so most of a forum answer reads alike in four languages. Where words decide, `words.py` has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from brimful.configs.reading import Reading
from brimful.diagnose.claims.judge import CLAIMS, Case, Judgement, Verdict, effect, judged, saves
from brimful.diagnose.claims.words import claims_in, folded, settings_in
from brimful.errors import BadInput
from brimful.language import Language, Number, Percent, Size, say
from brimful.specs.desktop import desktop_bytes
from brimful.units import integer_from_text

MAX_LINES = 2000
Reread = Callable[[Sequence[str]], Reading]  # the same config, with `key=value` words on top

_SETTING = re.compile(
    r"(?:^|[\s`(,;])(?:--)?([a-z_]{2,40})\s*[=:]\s*['\"]?([A-Za-z0-9_.]{1,24})['\"]?", re.IGNORECASE
)
_TIMES = re.compile(r"\b(?:batch\w*\D{0,20})?(\d{1,4})\s?[x×*]\s?(\d{1,5})\b", re.IGNORECASE)
# 'batch size to 12', 'réduisez le batch à 12': a number said of the batch, no share and no other size.
_SAID_BATCH = re.compile(
    r"(?:\b(?:batch|lots?\b|lotes?\b|stapel)\w*(?:[ -](?:size|gro(?:ss|e)e?))?[^\d\n]{0,30}?"
    r"|\bbsz?\s?[=:]?\s?)"
    r"(?:\d{1,4}\s?(?:to|auf|a|->|→)\s?)?(\d{1,4})\b(?!\s?(?:%|[x×*]|gb|gib|go\b|mb|bit|token))"
)
# What configs call the settings that matter here -> our own word.
_KEYS = {
    "batch_size": "batch_size", "per_device_train_batch_size": "batch_size", "micro_batch_size": "batch_size",
    "device_batch_size": "batch_size", "gradient_accumulation_steps": "gradient_accumulation_steps",
    "grad_accum": "gradient_accumulation_steps", "compile": "compile", "torch_compile": "compile",
    "dtype": "dtype", "block_size": "block_size", "bs": "batch_size", "bsz": "batch_size",
    "grad_accumulation": "gradient_accumulation_steps",
    "gradient_accumulation": "gradient_accumulation_steps",
}  # fmt: skip
_PERCENT = re.compile(
    r"(\d{1,3}(?:[.,]\d{1,2})?)\s?(?:[-–]|to|à|a|bis)\s?(\d{1,3}(?:[.,]\d{1,2})?)\s?%|(\d{1,3}(?:[.,]\d{1,2})?)\s?%"
)
_HALF_OF_IT = (
    r"\bhalf (?:the|of|as much|your|its)\b|\b(?:by|in) half\b|\bhalves?\b|moitie|(?:deux|2) fois moins"
    r"|\bmitad\b|\bhalfte|\bhaelfte|halbier"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the paste and what was made of it; no judgements: it claims nothing we know."""

    number: int
    text: str
    judged: tuple[Judgement, ...]

    def as_dict(self, spoken: Language) -> dict[str, Any]:
        return {
            "line": self.number,
            "text": self.text,
            "judged": [one.as_dict(spoken) for one in self.judged],
        }


def judge_paste(text: str, case: Case, reread: Reread) -> tuple[Line, ...]:
    """Line by line. What a line changes is judged with what the lines before it set."""
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        raise BadInput(say("diagnose.too_many_lines", lines=Number(len(lines)), max_lines=Number(MAX_LINES)))
    said = [_settings(line) for line in lines]
    together = {key: value for one in said for key, value in one.items()}
    judged = []
    for number, (line, settings) in enumerate(zip(lines, said, strict=True), start=1):
        if line.strip():
            found = tuple(_judge_line(line, settings, together, case, reread))
            judged.append(Line(number=number, text=line.strip()[:300], judged=found))
    return tuple(judged)


def _settings(line: str) -> dict[str, str]:
    """Settings a line makes, in our own words, whether as code or in prose."""
    found = settings_in(line)
    if (times := _TIMES.search(line)) and re.search(
        r"batch|lots?\b|lote|stapel|ac{1,2}um|akkum", line, re.IGNORECASE
    ):
        found |= {"batch_size": times[1], "gradient_accumulation_steps": times[2]}
    for match in _SETTING.finditer(line):
        if (key := _KEYS.get(match[1].lower())) is not None:
            said_value = match[2].rstrip(".")  # a full stop ends the sentence, not the number
            word = said_value.lower()
            switch = {"0": "False", "off": "False", "no": "False", "1": "True", "on": "True", "yes": "True"}
            value = switch.get(word, said_value) if key == "compile" else said_value
            found[key] = {"true": "True", "false": "False"}.get(word, value)
    if "batch_size" not in found and (said := _SAID_BATCH.search(folded(line))):
        found["batch_size"] = said[1]
    return found


def _judge_line(
    line: str, settings: dict[str, str], together: dict[str, str], case: Case, reread: Reread
) -> Iterator[Judgement]:
    case = replace(case, claimed_frac=_claimed(line))
    if "batch_size" in settings:
        yield _batch(settings, together, case)
    elif "gradient_accumulation_steps" in settings:
        yield _product(together, case)
    for name in claims_in(line):
        if name == "never_fails":
            yield _never(together, case, reread)
        else:
            yield CLAIMS[name](case)


def _claimed(line: str) -> float | None:
    """The share the line promises: the middle of '10-15 %', or a half said in words."""
    match = _PERCENT.search(line)
    if match is None:
        return 0.5 if re.search(_HALF_OF_IT, folded(line)) else None
    numbers = [float(text.replace(",", ".")) for text in match.groups() if text]
    return sum(numbers) / len(numbers) / 100


_integer = partial(integer_from_text, low=1, high=999_999)


def _batch(settings: dict[str, str], together: dict[str, str], case: Case) -> Judgement:
    batch = _integer(settings["batch_size"])
    accumulation = _integer(together.get("gradient_accumulation_steps", ""))
    if batch is None:
        unknown = judged("another_batch", "cannot tell", say("diagnose.batch_not_a_number"))
        return replace(unknown, claim="smaller_batch")
    return CLAIMS["smaller_batch"](case, batch_size=batch, accumulation=accumulation)


def _product(together: dict[str, str], case: Case) -> Judgement:
    """gradient_accumulation_steps costs no memory; with batch_size it says which run it is."""
    t = case.training
    batch = _integer(together.get("batch_size", "")) or t.batch_size
    accumulation = _integer(together["gradient_accumulation_steps"])
    if accumulation is None:
        return judged("same_batch", "cannot tell", say("diagnose.accumulation_not_a_number"))
    total, others = t.effective_batch, batch * accumulation * t.data_parallel
    sizes = {"batch": batch, "accumulation": accumulation, "others": others, "whole": total}
    same: Verdict = "true" if total == others else "false"
    return judged("same_batch", same, say("diagnose.batch_product", **sizes))


def _never(together: dict[str, str], case: Case, reread: Reread) -> Judgement:
    """'Never fails', of everything the paste sets together."""
    words = [f"{key}={value}" for key, value in together.items()]
    try:
        advised = reread(words)
    except BadInput as error:
        return judged("never_fails", "cannot tell", say("diagnose.settings_unreadable", problem=error.said))
    answer = replace(case, reading=advised).now()
    factor = advised.training.step_tokens / case.training.step_tokens
    e = effect(case.now(), answer, tokens_factor=factor)
    span = {end: Size(nbytes) for end, nbytes in answer.memory.device_bytes.as_dict().items()}
    why = [say("diagnose.settings_need", usable=Size(answer.usable_bytes), **span), saves(e)]
    if answer.fits:
        low, *_, high = map(Size, desktop_bytes())
        why.append(say("diagnose.predicted_to_fit", low=low, high=high))
    else:
        why.append(say("diagnose.predicted_to_fail", short=Size(max(0, answer.short_bytes))))
    if e.mfu_after < e.mfu_before:
        change = {"before": Percent(e.mfu_before), "after": Percent(e.mfu_after)}
        why.append(say("diagnose.less_work", **change))
    return judged("never_fails", "partly" if answer.fits else "false", *why, effect=e)
