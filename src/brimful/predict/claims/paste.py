"""Claims in a pasted answer: found by what is the same in every language, and by a few words that are not.

Settings (`batch_size = 12`), names (fp16, torch.compile, expandable_segments) and numbers are not translated
by anybody, so most of a forum answer reads alike in four languages. Where a word decides (off, never), the
words of all four stand side by side, and all are looked for whatever the language is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from brimful.errors import BadInput
from brimful.language import Language, Percent, Sentence, Size, say
from brimful.predict.claims.judge import CLAIMS, Case, Judgement, Verdict, effect, saves
from brimful.predict.readers.reading import Reading

MAX_LINES = 2000
Reread = Callable[[Sequence[str]], Reading]  # the same config, with `key=value` words on top

_OFF = (
    r"\boff\b|disabl|without|\bno\b|\bnot\b|don'?t|false|remov|drop"
    r"|d[ée]sactiv|\bsans\b|coupe[rz]?\b|[ée]tein|\bpas\b|enl[eè]v|retire"
    r"|desactiv|\bsin\b|apag|quita"
    r"|deaktivier|abschalt|ausschalt|abgeschaltet|ausgeschaltet|\bohne\b|\baus\b|\bnicht\b|\bkein"
)
_MORE = r"\bmore\b|\bplus\b|davantage|\bm[áa]s\b|\bmehr\b"
_MEMORY = r"memor|m[ée]moire|speicher|vram"
_NEVER = r"\bnever\b|no more|won'?t|jamais|\bplus d|nunca|jam[áa]s|\bnie\b|niemals|nie wieder|nicht mehr"
_FAIL = (
    r"fail|crash|\boom\b|out of memory|run out|plant|[ée]chou|[ée]chec|erreur|\bfall[aeo]|\bcae\b|error"
    r"|st[üu]rz|fehl|scheiter|abbrech"
)
_ALWAYS = (
    r"always (?:work|fit|run)|toujours (?:march|fonctionn|tien|pass)"
    r"|(?:marche|fonctionne|tient|passe) toujours"
    r"|siempre (?:funciona|cabe|va)|(?:funktioniert|l[äa]uft|passt|klappt) immer"
)
_SURE = r"guarantee|bulletproof|fool-?proof|garanti|infaillible|garantiz|infalible|garantier|todsicher"
_FULL = r"\b9\d ?%|\b100 ?%|\bfull|plein|rempli|satur|llen|voll"
_WORK = (
    r"\bbusy|working|hard at work|fully used|well used|bien occup|travaille|bien exploit|[àa] fond"
    r"|trabaja|a tope|aprovechad|a pleno|besch[äa]ftigt|arbeitet|gut ausgelastet|voll ausgelastet"
)
_SMALL = r"small|petit|r[ée]dui|peque|menor|klein"
_MODEL = r"mod[eè]l|modell|modelo"
_BIG = r"big|larg|gr(?:os|and)|m[áa]s grande|mayor|gr[oö](?:ß|ss)"
_BATCH = r"\bbatch|\blote\b|stapel"


@dataclass(frozen=True, slots=True)
class Sign:
    """A claim is there where every one of its patterns is found in the line."""

    claim: str
    patterns: tuple[re.Pattern[str], ...]


def _sign(claim: str, *patterns: str) -> Sign:
    return Sign(claim, tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns))


_SIGNS = (
    _sign(
        "fp16",
        r"\b(?:fp16|float16)\b|half[- ]precision|demi-pr[ée]cision|media precisi[óo]n"
        r"|halbe[rn]? (?:Genau|Pr[äa]z)",
    ),
    _sign("compile_off", r"\b[ck]ompil", _OFF),
    _sign("compile_off", r"\b[ck]ompil", _MORE, _MEMORY),
    _sign("expandable_segments", r"expandable_segments"),
    _sign("checkpointing", r"checkpointing|points? de contr[ôo]le|puntos? de control"),
    _sign("adam8bit", r"8[- ]?bits?\b.{0,30}(?:adam|optim)|(?:adam|optim)\w*.{0,30}8[- ]?bit|adamw?8bit"),
    _sign(
        "pad_vocabulary",
        r"vo[ck]ab|50304|50257",
        r"\bpad|50304|multipl|vielfach|m[úu]ltipl|compl[ée]t|rellen|auff[üu]ll",
    ),
    _sign("smaller_model", _SMALL, _MODEL, _BIG, _BATCH),
    _sign("memory_is_work", _MEMORY, _FULL, _WORK),
    _sign("never_fails", _NEVER, _FAIL),
    _sign("never_fails", _ALWAYS),
    _sign("never_fails", _SURE),
)
_SETTING = re.compile(
    r"(?:^|[\s`(,;])(?:--)?([a-z_]{3,40})\s*[=:]\s*['\"]?([A-Za-z0-9_.]{1,24})['\"]?", re.IGNORECASE
)
_TIMES = re.compile(r"\b(?:batch\w*\D{0,20})?(\d{1,4})\s?[x×*]\s?(\d{1,5})\b", re.IGNORECASE)
# 'batch size to 12', 'réduisez le batch à 12': a number said of the batch, no share and no other size.
_SAID_BATCH = re.compile(
    r"\bbatch\w*(?:[ -](?:size|gr[öo](?:ß|ss)e))?[^\d\n]{0,30}?(?:\d{1,4}\s?(?:to|auf|[àa]|->|→)\s?)?"
    r"(\d{1,4})\b(?!\s?(?:%|[x×*]|gb|gib|go\b|mb|bit|token))",
    re.IGNORECASE,
)
# What configs call the settings that matter here -> our own word.
_KEYS = {
    "batch_size": "batch_size", "per_device_train_batch_size": "batch_size", "micro_batch_size": "batch_size",
    "device_batch_size": "batch_size", "gradient_accumulation_steps": "gradient_accumulation_steps",
    "grad_accum": "gradient_accumulation_steps", "compile": "compile", "torch_compile": "compile",
    "dtype": "dtype", "block_size": "block_size",
}  # fmt: skip
_PERCENT = re.compile(
    r"(\d{1,3}(?:[.,]\d{1,2})?)\s?(?:[-–]|to|à|a|bis)\s?(\d{1,3}(?:[.,]\d{1,2})?)\s?%|(\d{1,3}(?:[.,]\d{1,2})?)\s?%"
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
        raise BadInput(
            f"the text has {len(lines):,} lines", hint=f"give at most {MAX_LINES:,} lines around the advice"
        )
    said = [_settings(line) for line in lines]
    together = {key: value for one in said for key, value in one.items()}
    judged = []
    for number, (line, settings) in enumerate(zip(lines, said, strict=True), start=1):
        if line.strip():
            found = tuple(_judge_line(line, settings, together, case, reread))
            judged.append(Line(number=number, text=line.strip()[:300], judged=found))
    return tuple(judged)


def _settings(line: str) -> dict[str, str]:
    """Settings a line makes, in our own words."""
    found = {}
    if (times := _TIMES.search(line)) and re.search(r"batch|lot\b|lote|stapel|accum", line, re.IGNORECASE):
        found = {"batch_size": times[1], "gradient_accumulation_steps": times[2]}
    for match in _SETTING.finditer(line):
        if (key := _KEYS.get(match[1].lower())) is not None:
            found[key] = {"true": "True", "false": "False"}.get(match[2].lower(), match[2])
    if "batch_size" not in found and (said := _SAID_BATCH.search(line)):
        found["batch_size"] = said[1]
    return found


def _judge_line(
    line: str, settings: dict[str, str], together: dict[str, str], case: Case, reread: Reread
) -> Iterator[Judgement]:
    claimed = _claimed(line)
    names = dict.fromkeys(sign.claim for sign in _SIGNS if all(p.search(line) for p in sign.patterns))
    if "batch_size" in settings:
        yield _batch(settings, together, case, claimed)
    elif "gradient_accumulation_steps" in settings:
        yield _product(together, case)
    for name in names:
        if name == "never_fails":
            yield _never(together, case, reread)
        else:
            yield CLAIMS[name](case, claimed)


def _claimed(line: str) -> float | None:
    """The share the line promises: the middle of '10-15 %'."""
    match = _PERCENT.search(line)
    if match is None:
        return None
    numbers = [float(text.replace(",", ".")) for text in match.groups() if text]
    return sum(numbers) / len(numbers) / 100


def _batch(
    settings: dict[str, str], together: dict[str, str], case: Case, claimed: float | None
) -> Judgement:
    batch = _whole(settings["batch_size"])
    accumulation = _whole(together.get("gradient_accumulation_steps", ""))
    if batch is None:
        why = (say("That is no number of sequences."),)
        return Judgement(
            claim="smaller_batch", said=say("another batch_size"), verdict="cannot tell", why=why
        )
    return CLAIMS["smaller_batch"](case, claimed, batch_size=batch, accumulation=accumulation)


def _product(together: dict[str, str], case: Case) -> Judgement:
    """gradient_accumulation_steps costs no memory; with batch_size it says which run it is."""
    t = case.training
    batch = _whole(together.get("batch_size", "")) or t.batch_size
    accumulation = _whole(together["gradient_accumulation_steps"])
    said = say("gradient_accumulation_steps makes up for the smaller batch")
    if accumulation is None:
        why: tuple[Sentence, ...] = (say("That is no number of micro-steps."),)
        return Judgement(claim="same_batch", said=said, verdict="cannot tell", why=why)
    whole, others = t.effective_batch, batch * accumulation * t.data_parallel
    why = (
        say(
            "{batch} x {accumulation} is {others} sequences a step; the config has {whole}.",
            batch=batch,
            accumulation=accumulation,
            others=others,
            whole=whole,
        ),
    )
    return Judgement(claim="same_batch", said=said, verdict="true" if whole == others else "false", why=why)


def _never(together: dict[str, str], case: Case, reread: Reread) -> Judgement:
    """'Never fails', of everything the paste sets together."""
    said = say("with these settings it never fails")
    words = [f"{key}={value}" for key, value in together.items()]
    try:
        advised = reread(words)
    except BadInput as error:
        why = (say("These settings cannot be read: {problem}", problem=error.problem),)
        return Judgement(claim="never_fails", said=said, verdict="cannot tell", why=why)
    answer = Case(advised, case.gpu, case.other_bytes).now()
    factor = advised.training.step_tokens / case.training.step_tokens
    e = effect(case.now(), answer, tokens_factor=factor)
    device = answer.memory.device_bytes
    needs = say(
        "All of it together needs {likely} ({low} to {high}) of {usable} usable.",
        likely=Size(device.likely),
        low=Size(device.low),
        high=Size(device.high),
        usable=Size(answer.usable_bytes),
    )
    verdicts: dict[str, Verdict] = {"fits": "partly", "does not fit": "false"}
    verdict = verdicts.get(answer.verdict, "false" if not answer.fits else "partly")
    why2 = [needs, saves(e)]
    if verdict == "partly":
        why2.append(
            say(
                "It is predicted to fit, but never is a promise nobody can make: other programs take 0.3 to "
                "2.1 GiB of a "
                "card that drives a screen."
            )
        )
    else:
        why2.append(say("It is predicted to fail by {short}.", short=Size(max(0, answer.short_bytes))))
    if e.mfu_after < e.mfu_before:
        why2.append(
            say(
                "And the card would do less work: MFU {before} to {after}.",
                before=Percent(e.mfu_before),
                after=Percent(e.mfu_after),
            )
        )
    return Judgement(claim="never_fails", said=said, verdict=verdict, why=tuple(why2), effect=e)


def _whole(text: str) -> int | None:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0
    return value or None
