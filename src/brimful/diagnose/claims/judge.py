"""Each claim, judged by formulas on one config: predict it as it is and as advised, and compare.

The verdicts: *true* it does what is claimed; *partly* it helps, but less than claimed or at an unstated
price; *false* it does not; *cannot_tell* the config gives nothing to compare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, Literal

from brimful.configs.reading import Reading
from brimful.fit.correction import Correction
from brimful.fit.fit import estimate
from brimful.language import Factor, Language, Percent, Sentence, Size, say
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.training import Training

Verdict = Literal["true", "partly", "false", "cannot_tell"]

_SAME_FRAC = 0.005  # of the memory: less than any counter shows
_CLEAR_FRAC = 0.03  # of the memory: worth the effort


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One config on one card, and how it would be with a change."""

    reading: Reading
    gpu: Gpu
    other_bytes: int | None = None  # None: the default assumption for the card
    correction: Correction | None = field(kw_only=True)
    claimed_frac: float | None = None  # the promised share

    @property
    def training(self) -> Training:
        return self.reading.training

    def now(self) -> Estimate:
        return self.then()

    def then(self, model: Model | None = None, **changes: Any) -> Estimate:  # noqa: ANN401 - fields of Training
        return self.of(replace(self.training, **changes), model)

    def of(self, training: Training, model: Model | None = None) -> Estimate:
        return _estimate(self, model or self.reading.model, training)


@cache
def _estimate(case: Case, model: Model, training: Training) -> Estimate:
    unsure = case.reading.unsure
    return estimate(model, training, case.gpu, case.other_bytes, correction=case.correction, unsure=unsure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The predicted effect of a change."""

    before_bytes: int
    after_bytes: int
    step_time_factor: float
    mfu_before: float
    mfu_after: float

    @property
    def saves_bytes(self) -> int:
        return self.before_bytes - self.after_bytes

    @property
    def saves_frac(self) -> float:
        return self.saves_bytes / self.before_bytes

    def as_dict(self) -> dict[str, Any]:
        shares = {"mfu_before": round(self.mfu_before, 4), "mfu_after": round(self.mfu_after, 4)}
        factor = round(self.step_time_factor, 3)
        return {**asdict(self), "saves_bytes": self.saves_bytes, "step_time_factor": factor, **shares}


def effect(before: Estimate, after: Estimate, *, tokens_factor: float = 1.0) -> Effect:
    """`tokens_factor`: the factor on the tokens of a step; time is compared for the same tokens."""
    return Effect(
        before_bytes=round(before.memory.device_bytes.likely),
        after_bytes=round(after.memory.device_bytes.likely),
        step_time_factor=after.speed.step_s.likely / before.speed.step_s.likely / tokens_factor,
        mfu_before=before.speed.mfu.likely,
        mfu_after=after.speed.mfu.likely,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    claim: str  # its code
    said: Sentence
    verdict: Verdict
    why: tuple[Sentence, ...]
    effect: Effect | None = None
    published: tuple[Sentence, ...] = ()
    quotes: tuple[str, ...] = ()  # every sentence of a text that makes the claim
    denied: bool = False  # the text says that it is not so

    def as_dict(self, spoken: Language) -> dict[str, Any]:
        return {
            "claim": self.claim,
            "said": spoken.text(self.said),
            "said_code": self.said.as_dict(),
            # Kept as it always was; programs should match the next one.
            "verdict": self.verdict.replace("_", " "),
            "verdict_code": self.verdict,
            "quotes": list(self.quotes),
            "denied": self.denied,
            "why": [spoken.text(one) for one in self.why],
            "why_codes": [one.as_dict() for one in self.why],
            "effect": self.effect.as_dict() if self.effect else None,
            "published": [spoken.text(one) for one in self.published],
            "published_codes": [one.as_dict() for one in self.published],
        }


def verdict_words(verdict: Verdict) -> Sentence:
    return Sentence(f"diagnose.judged_{verdict}", {})


def judged(
    claim: str, verdict: Verdict, *why: Sentence, effect: Effect | None = None, **said: object
) -> Judgement:
    """Published evidence about a claim is shown with every verdict except *cannot_tell*."""
    known = claim in CLAIMS and verdict != "cannot_tell"
    return Judgement(
        claim=claim,
        said=Sentence(f"diagnose.claim_{claim}", said),
        verdict=verdict,
        why=why,
        effect=effect,
        published=(Sentence(f"diagnose.measured_{claim}", {}),) if known else (),
    )


def saves(e: Effect) -> Sentence:
    """The effect on memory and time, in one sentence."""
    values = {"frac": Percent(abs(e.saves_frac), 1), "time": Factor(e.step_time_factor)}
    if abs(e.saves_frac) < _SAME_FRAC:
        return say("diagnose.saves_nothing", time=values["time"])
    if e.saves_bytes > 0:
        return say("diagnose.saves", size=Size(e.saves_bytes), **values)
    return say("diagnose.takes_more", size=Size(-e.saves_bytes), **values)


# -- the claims --------------------------------------------------------------------------------------------


def fp16(case: Case) -> Judgement:
    """fp16 instead of bf16. Both are two bytes; only a card without bf16 hardware gains, in time."""
    casts = case.training.casts if case.training.half else "autocast"
    e = effect(case.then(dtype="bfloat16", casts=casts), case.then(dtype="float16", casts=casts))
    why = [saves(e), say("diagnose.fp16_same_bytes")]
    if casts == "autocast":
        why.append(say("diagnose.fp16_under_autocast"))
    verdict: Verdict = "false"
    if e.saves_frac >= max(_SAME_FRAC, (case.claimed_frac or 0) / 2):
        verdict = "true"
    elif e.step_time_factor < 0.97:
        verdict = "partly"
        why.append(say("diagnose.fp16_saves_time", gpu=case.gpu.title))
    return judged("fp16", verdict, *why, effect=e)


def compile_off(case: Case) -> Judgement:
    e = effect(case.then(compiled=True), case.then(compiled=False))
    # Every published pair shows the opposite: a few per cent of a prediction do not outweigh them.
    verdict: Verdict = "true" if e.saves_frac >= _CLEAR_FRAC else "partly"
    why = [saves(e), say("diagnose.compile_exceptions")]
    if e.saves_frac <= _SAME_FRAC:
        verdict = "false"
        why.insert(1, say("diagnose.compile_writes_less"))
    return judged("compile_off", verdict, *why, effect=e)


def smaller_batch(case: Case, *, batch_size: int | None = None, accumulation: int | None = None) -> Judgement:
    """A smaller batch saves its share of activations and logits, not of the whole; it may change the run."""
    t = case.training
    batch = batch_size if batch_size is not None else max(1, 3 * t.batch_size // 4)
    if batch == t.batch_size:
        return judged(
            "smaller_batch", "cannot_tell", say("diagnose.batch_already_set"), now=batch, then=batch
        )
    then = replace(t, batch_size=batch, accumulation=accumulation or t.accumulation)
    e = effect(case.now(), case.of(then), tokens_factor=then.step_tokens / t.step_tokens)
    share = 1 - batch / t.batch_size
    claimed = case.claimed_frac if case.claimed_frac is not None else share
    why = [saves(e)]
    if share > 0 and e.saves_frac < 0.97 * share:
        why.append(say("diagnose.batch_is_not_all", share=Percent(share)))
    whole, others = t.effective_batch, then.effective_batch
    if whole != others:
        why.append(say("diagnose.batch_is_another_run", others=others, whole=whole))
    verdict: Verdict = "partly"
    if e.saves_frac <= _SAME_FRAC:
        verdict = "false"
    elif e.saves_frac >= 0.9 * claimed and whole == others:
        verdict = "true"
    return judged("smaller_batch", verdict, *why, effect=e, now=t.batch_size, then=batch)


def memory_is_work(case: Case) -> Judgement:
    """Memory in use as a measure of work: the same run in smaller micro-steps, by both measures."""
    t = case.training
    half = max(1, t.batch_size // 2)
    small = replace(t, batch_size=half, accumulation=max(1, t.accumulation * t.batch_size // half))
    if half == t.batch_size:
        small = replace(t, batch_size=2)
    e = effect(case.now(), case.of(small), tokens_factor=small.step_tokens / t.step_tokens)
    memory, work = e.after_bytes / e.before_bytes - 1, e.mfu_after / e.mfu_before - 1
    changes = {"memory": Percent(memory), "work": Percent(work)}
    predicted = say("diagnose.memory_and_work", now=t.batch_size, then=small.batch_size, **changes)
    together = memory * work > 0 and abs(work) > 0.5 * abs(memory)
    kept = say("diagnose.memory_is_kept")
    return judged("memory_is_work", "partly" if together else "false", predicted, kept, effect=e)


def smaller_model(case: Case) -> Judgement:
    """A model of half the width with twice the batch."""
    m, t = case.reading.model, case.training
    if m.heads % 2 or m.kv_heads % 2 or m.width % (2 * m.heads):
        small = replace(m, layers=max(1, m.layers // 2))
    else:
        small = replace(
            m, width=m.width // 2, mlp_width=m.mlp_width // 2, heads=m.heads // 2, kv_heads=m.kv_heads // 2
        )
        if (experts := m.experts) is not None:
            narrow = replace(experts, width=-(-experts.width // 2), shared_width=experts.shared_width // 2)
            small = replace(small, experts=narrow)
    e = effect(case.now(), case.then(small, batch_size=2 * t.batch_size), tokens_factor=2.0)
    predicted = say(
        "diagnose.smaller_model_predicted",
        wide=m.width,
        narrow=small.width,
        now=t.batch_size,
        then=2 * t.batch_size,
        before=Percent(e.mfu_before),
        after=Percent(e.mfu_after),
        memory=Size(e.after_bytes),
    )
    less, another = say("diagnose.smaller_model_less_work"), say("diagnose.smaller_model_is_another")
    gains = e.mfu_after / e.mfu_before - 1 > 0.02
    return judged("smaller_model", "true" if gains else "false", predicted, less, another, effect=e)


def expandable_segments(case: Case) -> Judgement:
    """It can give back what fragmentation holds: at most the allocator's cache, and no tensor."""
    now = case.now()
    cache_bytes = sum(item.bytes for item in now.memory.items if item.code == "allocator_cache")
    needs = round(now.memory.device_bytes.likely)
    at_most = say("diagnose.segments_save_cache", cache=Size(cache_bytes), needs=Size(needs))
    verdict: Verdict = "partly"
    if now.fits:
        outcome = say("diagnose.segments_steady_loop")
    elif now.short_bytes > cache_bytes:
        verdict = "false"
        outcome = say("diagnose.segments_not_enough", short=Size(now.short_bytes))
    else:
        outcome = say("diagnose.segments_may_be_enough", short=Size(now.short_bytes))
    return judged("expandable_segments", verdict, at_most, outcome)


def checkpointing(case: Case) -> Judgement:
    e = effect(case.then(checkpointing="none"), case.then(checkpointing="full"))
    why = [saves(e)]
    verdict: Verdict = "true" if e.saves_frac >= _CLEAR_FRAC else "false"
    if verdict == "false":
        why.append(say("diagnose.checkpointing_few_activations"))
    if case.training.checkpointing != "none":
        why.append(say("diagnose.checkpointing_already_on"))
    return judged("checkpointing", verdict, *why, effect=e)


def adam8bit(case: Case) -> Judgement:
    t = case.training
    if t.optimizer not in ("adam", "adamw", "adam8bit"):
        return judged("adam8bit", "cannot_tell", say("diagnose.adam8bit_not_adam", optimizer=t.optimizer))
    e = effect(
        case.then(optimizer="adamw", in_backward=False), case.then(optimizer="adam8bit", in_backward=False)
    )
    verdict: Verdict = "partly" if e.saves_frac < (case.claimed_frac or _CLEAR_FRAC) else "true"
    verdict = "false" if e.saves_frac < _SAME_FRAC else verdict
    return judged("adam8bit", verdict, saves(e), say("diagnose.adam8bit_cuts_state"), effect=e)


def pad_vocabulary(case: Case) -> Judgement:
    """Padding to a multiple of 64: a little memory; the gain in time is measured, not in our formulas."""
    m = case.reading.model
    if m.classes is not None:
        return judged("pad_vocabulary", "cannot_tell", say("diagnose.vocabulary_none"))
    if m.vocab % 64 == 0:
        return judged("pad_vocabulary", "false", say("diagnose.vocabulary_already_padded", vocab=m.vocab))
    padded = -(-m.vocab // 64) * 64
    e = effect(case.now(), case.then(replace(m, vocab=padded)))
    better = say("diagnose.vocabulary_padded", vocab=m.vocab, padded=padded)
    return judged("pad_vocabulary", "partly", saves(e), better, effect=e)


CLAIMS: dict[str, Callable[..., Judgement]] = {
    judge.__name__: judge
    for judge in (
        *(fp16, compile_off, smaller_batch, memory_is_work, smaller_model),
        *(expandable_segments, checkpointing, adam8bit, pad_vocabulary),
    )
}


def judge_all(case: Case) -> tuple[Judgement, ...]:
    """Every claim brimful knows, on this config."""
    return tuple(judge(case) for judge in CLAIMS.values())
