"""A pasted text, judged: one verdict for each distinct claim, worst first, and its settings together."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.diagnose.advice import verdict_words
from brimful.diagnose.claims.find import find_claims
from brimful.diagnose.claims.judge import Case, Judgement, Verdict
from brimful.diagnose.claims.reading import repaired, statements
from brimful.diagnose.claims.settings import settings_in
from brimful.diagnose.claims.verdicts import Known, Reread, judge_claim
from brimful.errors import BadInput, BrimfulError
from brimful.language import Number, Sentence, Size, say

_MAX_LINES = 2000
_MAX_CHARACTERS = 100_000
_WORST_FIRST: tuple[Verdict, ...] = ("false", "partly", "cannot_tell", "true")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    summary: tuple[Sentence, ...]
    claims: tuple[Judgement, ...]
    settings: dict[str, str]  # all that the text advises


def is_too_long(text: str) -> bool:
    return text.count("\n") >= _MAX_LINES or len(text) > _MAX_CHARACTERS


def refuse_too_long(text: str) -> None:
    if (lines := text.count("\n") + 1) > _MAX_LINES:
        raise BadInput(say("diagnose.too_many_lines", lines=Number(lines), max_lines=Number(_MAX_LINES)))
    if len(text) > _MAX_CHARACTERS:
        raise BadInput(say("claims.too_many_characters", most=Number(_MAX_CHARACTERS)))


def judge_paste(text: str, case: Case | None, reread: Reread | None) -> Judged:
    refuse_too_long(text)
    text = repaired(text)
    found = statements(text)
    advised = {key: value for one in found for key, value in settings_in(one.text).items()}
    known = Known(text=text, case=case, reread=reread)
    judged = [judge_claim(claim, known) for claim in find_claims(found)]
    judged.sort(key=lambda one: _WORST_FIRST.index(one.verdict))
    return Judged(summary=tuple(_summary(judged, advised, known)), claims=tuple(judged), settings=advised)


def _summary(judged: list[Judgement], advised: dict[str, str], known: Known) -> list[Sentence]:
    counts: dict[str, int] = {name: sum(one.verdict == name for one in judged) for name in _WORST_FIRST}
    counts["unknown"] = counts.pop("cannot_tell")
    says = [say("claims.summary_counts", n=len(judged), **counts) if judged else say("claims.summary_none")]
    case = known.case
    if case is None:
        return [*says, say("claims.summary_no_case")]
    says.append(say("claims.summary_case", model=case.reading.model.name, gpu=case.gpu.title))
    if advised and known.reread is not None and (settings := _settings(advised, case, known.reread)):
        says.append(settings)
    return says


def _settings(advised: dict[str, str], case: Case, reread: Reread) -> Sentence | None:
    """Everything the text sets, taken together; None if it cannot be read as a config."""
    words = [f"{key}={value}" for key, value in advised.items()]
    try:
        now = Case(reread(words), case.gpu, case.other_bytes, correction=case.correction).now()
    except BrimfulError:
        return None
    return say(
        "claims.summary_settings",
        settings=", ".join(words),
        verdict=verdict_words(now.verdict),
        likely=Size(now.memory.device_bytes.likely),
        usable=Size(now.usable_bytes),
    )
