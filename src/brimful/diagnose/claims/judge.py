"""Each claim, judged from formulas on one config: predict as it is and as advised, and compare.

The words of a verdict: *true* it does what is said; *partly* it helps, but less than said or at a price that
is not; *false* it does not; *cannot tell* the config gives nothing to compare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from brimful.configs.reading import Reading
from brimful.fit.fit import estimate, widening
from brimful.language import Factor, Language, Percent, Sentence, Size, say
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu
from brimful.specs.model import Model
from brimful.specs.training import Training

Verdict = Literal["true", "partly", "false", "cannot tell"]

_SAME_FRAC = 0.005  # of the memory: less than any counter shows
_CLEAR_FRAC = 0.03  # of the memory: worth the trouble


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One config on one card, and how it would be with a change."""

    reading: Reading
    gpu: Gpu
    other_bytes: int | None = None  # None: as is assumed for the card

    @property
    def training(self) -> Training:
        return self.reading.training

    def now(self) -> Estimate:
        return self.then()

    def then(self, model: Model | None = None, **changes: Any) -> Estimate:  # noqa: ANN401 - fields of Training
        return self.of(replace(self.training, **changes), model)

    def of(self, training: Training, model: Model | None = None) -> Estimate:
        wide = widening(self.reading.unsure)
        return _estimate(model or self.reading.model, training, self.gpu.name, self.other_bytes, wide)


@cache
def _estimate(model: Model, training: Training, gpu: str, other_bytes: int | None, widen: float) -> Estimate:
    from brimful.specs.gpu import find_gpu

    return estimate(model, training, find_gpu(gpu), other_bytes, widen=widen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a change is predicted to do."""

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
        return {
            "before_bytes": self.before_bytes,
            "after_bytes": self.after_bytes,
            "saves_bytes": self.saves_bytes,
            "step_time_factor": round(self.step_time_factor, 3),
            "mfu_before": round(self.mfu_before, 4),
            "mfu_after": round(self.mfu_after, 4),
        }


def effect(before: Estimate, after: Estimate, *, tokens_factor: float = 1.0) -> Effect:
    """`tokens_factor`: how many times the tokens of a step; time is compared for the same tokens."""
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

    def as_dict(self, spoken: Language) -> dict[str, Any]:
        return {
            "claim": self.claim,
            "said": spoken.text(self.said),
            "verdict": self.verdict,
            "why": [spoken.text(one) for one in self.why],
            "effect": self.effect.as_dict() if self.effect else None,
            "published": [spoken.text(one) for one in self.published],
        }


_VERDICTS: dict[Verdict, Sentence] = {
    "true": say("true"),
    "partly": say("partly"),
    "false": say("false"),
    "cannot tell": say("cannot tell"),
}


def verdict_words(verdict: Verdict) -> Sentence:
    return _VERDICTS[verdict]


def saves(e: Effect) -> Sentence:
    """What it does to memory and time, in one sentence."""
    values = {"frac": Percent(abs(e.saves_frac), 1), "time": Factor(e.step_time_factor)}
    if abs(e.saves_frac) < _SAME_FRAC:
        return say("Predicted here: the same memory, step time {time}.", time=values["time"])
    if e.saves_bytes > 0:
        return say(
            "Predicted here: {size} less ({frac}), step time {time}.", size=Size(e.saves_bytes), **values
        )
    return say("Predicted here: {size} more ({frac}), step time {time}.", size=Size(-e.saves_bytes), **values)


# -- the claims --------------------------------------------------------------------------------------------


def fp16(case: Case, claimed_frac: float | None = None) -> Judgement:
    """fp16 for bf16. Both are two bytes; only a card without bf16 hardware gains, and it gains time."""
    said = say("float16 needs less memory than bfloat16")
    casts = case.training.casts if case.training.half else "autocast"
    e = effect(case.then(dtype="bfloat16", casts=casts), case.then(dtype="float16", casts=casts))
    why = [saves(e), say("Both formats are 2 bytes a number; float16 also needs a GradScaler.")]
    if casts == "autocast":
        why.append(say("Under autocast weights, gradients and AdamW stay in float32 with either."))
    verdict: Verdict = "false"
    if e.saves_frac >= max(_SAME_FRAC, (claimed_frac or 0) / 2):
        verdict = "true"
    elif e.step_time_factor < 0.97:
        verdict = "partly"
        why.append(
            say("{gpu} has no bf16 hardware: float16 saves time there, not memory.", gpu=case.gpu.title)
        )
    published = (say("No published pair shows a difference: it follows from the formats."),)
    return Judgement(claim="fp16", said=said, verdict=verdict, why=tuple(why), effect=e, published=published)


def compile_off(case: Case, claimed_frac: float | None = None) -> Judgement:
    del claimed_frac  # whatever is claimed, the direction decides
    e = effect(case.then(compiled=True), case.then(compiled=False))
    # Every published pair shows the opposite: a few per cent of a prediction do not outweigh them.
    verdict: Verdict = "true" if e.saves_frac >= _CLEAR_FRAC else "partly"
    verdict = "false" if e.saves_frac <= _SAME_FRAC else verdict
    why = [saves(e)]
    if e.saves_frac <= _SAME_FRAC:
        why.append(
            say("Compiled code never writes many tensors that eager code keeps: off costs memory and time.")
        )
    why.append(say("Exceptions: mode='reduce-overhead' (CUDA graphs), and autotuning while it warms up."))
    return Judgement(
        claim="compile_off",
        said=say("turning torch.compile off saves memory"),
        verdict=verdict,
        why=tuple(why),
        effect=e,
        published=(
            say(
                "Measured, off to on: torchtune 60.0 to 51.0 GiB, torchtitan 82.4 to 77.0, torchao 11.07 to "
                "10.25; "
                "16 to 27 % more tokens a second."
            ),
        ),
    )


def smaller_batch(
    case: Case,
    claimed_frac: float | None = None,
    *,
    batch_size: int | None = None,
    accumulation: int | None = None,
) -> Judgement:
    """A smaller batch saves its share of activations and logits, not of the whole; and may be another run."""
    t = case.training
    batch = batch_size if batch_size is not None else max(1, 3 * t.batch_size // 4)
    said = say("batch_size {now} to {then} saves memory in proportion", now=t.batch_size, then=batch)
    if batch == t.batch_size:
        same = say("The config already has this batch_size.")
        return Judgement(claim="smaller_batch", said=said, verdict="cannot tell", why=(same,))
    then = replace(t, batch_size=batch, accumulation=accumulation or t.accumulation)
    e = effect(case.now(), case.of(then), tokens_factor=then.step_tokens / t.step_tokens)
    share = 1 - batch / t.batch_size
    claimed = claimed_frac if claimed_frac is not None else share
    why = [saves(e)]
    if share > 0 and e.saves_frac < 0.97 * share:
        why.append(
            say(
                "{share} fewer sequences are not {share} less memory: weights, gradients, optimizer, "
                "context and "
                "desktop stay as they are.",
                share=Percent(share),
            )
        )
    whole, others = t.effective_batch, then.effective_batch
    if whole != others:
        why.append(
            say(
                "It is another run: {others} sequences a step, not {whole}. Keep their product.",
                others=others,
                whole=whole,
            )
        )
    verdict: Verdict = "partly"
    if e.saves_frac <= _SAME_FRAC:
        verdict = "false"
    elif e.saves_frac >= 0.9 * claimed and whole == others:
        verdict = "true"
    published = (say("Measured: in 18 published pairs memory fell by 3 to 95 % of what the batch did."),)
    return Judgement(
        claim="smaller_batch", said=said, verdict=verdict, why=tuple(why), effect=e, published=published
    )


def memory_is_work(case: Case, claimed_frac: float | None = None) -> Judgement:
    """Memory in use as a measure of work: the same run in smaller micro-steps, by both measures."""
    del claimed_frac
    said = say("a full card is a busy card")
    t = case.training
    half = max(1, t.batch_size // 2)
    small = replace(t, batch_size=half, accumulation=max(1, t.accumulation * t.batch_size // half))
    if half == t.batch_size:
        small = replace(t, batch_size=2)
    e = effect(case.now(), case.of(small), tokens_factor=small.step_tokens / t.step_tokens)
    memory, work = e.after_bytes / e.before_bytes - 1, e.mfu_after / e.mfu_before - 1
    together = memory * work > 0 and abs(work) > 0.5 * abs(memory)
    why = (
        say(
            "Predicted here: batch_size {now} to {then} changes memory by {memory} and MFU by {work}.",
            now=t.batch_size,
            then=small.batch_size,
            memory=Percent(memory),
            work=Percent(work),
        ),
        say("PyTorch keeps what it once took, so memory in use shows the largest step so far, not work."),
    )
    published = (
        say(
            "In 90 published logs PyTorch held 1.04 to 1.73 times what its tensors needed, at the same work."
        ),
    )
    return Judgement(
        claim="memory_is_work",
        said=said,
        verdict="partly" if together else "false",
        why=why,
        effect=e,
        published=published,
    )


def smaller_model(case: Case, claimed_frac: float | None = None) -> Judgement:
    """A model of half the width with twice the batch."""
    del claimed_frac
    m, t = case.reading.model, case.training
    said = say("a smaller model with a bigger batch uses the card better")
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
    gain = e.mfu_after / e.mfu_before - 1
    verdict: Verdict = "true" if gain > 0.02 else "false"
    why = [
        say(
            "Predicted here: width {wide} to {narrow} with batch_size {now} to {then}: MFU {before} to "
            "{after}, "
            "memory {memory}.",
            wide=m.width,
            narrow=small.width,
            now=t.batch_size,
            then=2 * t.batch_size,
            before=Percent(e.mfu_before),
            after=Percent(e.mfu_after),
            memory=Size(e.after_bytes),
        ),
        say("More tokens a second come from less work for each token; narrow matrices fill a GPU worse."),
        say("And it is another model."),
    ]
    published = (
        say("Measured by llm-foundry on 8 A100s: MFU 49 % at width 1024, 53 % at 1536, 56 % at 2048."),
    )
    return Judgement(
        claim="smaller_model", said=said, verdict=verdict, why=tuple(why), effect=e, published=published
    )


def expandable_segments(case: Case, claimed_frac: float | None = None) -> Judgement:
    """It can give back what fragmentation holds: at most the allocator's cache, and no tensor."""
    del claimed_frac
    now = case.now()
    cache_bytes = sum(item.bytes for item in now.memory.items if item.name == "allocator cache")
    needs = round(now.memory.device_bytes.likely)
    why = [
        say(
            "It saves no tensor, at most the allocator's cache: {cache} of {needs} here.",
            cache=Size(cache_bytes),
            needs=Size(needs),
        )
    ]
    verdict: Verdict = "partly"
    if not now.fits and now.short_bytes > cache_bytes:
        verdict = "false"
        why.append(say("This config is short by {short}: more than that.", short=Size(now.short_bytes)))
    elif not now.fits:
        why.append(
            say("This config is short by {short}: it may just be enough.", short=Size(now.short_bytes))
        )
    else:
        why.append(say("A loop whose steps are all alike fragments little."))
    published = (
        say("Reserved over allocated memory in 90 published logs: 1.04 to 1.73; steady loops are near 1.1."),
    )
    return Judgement(
        claim="expandable_segments",
        said=say("expandable_segments makes it fit"),
        verdict=verdict,
        why=tuple(why),
        published=published,
    )


def checkpointing(case: Case, claimed_frac: float | None = None) -> Judgement:
    del claimed_frac
    said = say("gradient checkpointing saves memory and costs time")
    e = effect(case.then(checkpointing="none"), case.then(checkpointing="full"))
    why = [saves(e)]
    verdict: Verdict = "true" if e.saves_frac >= _CLEAR_FRAC else "false"
    if verdict == "false":
        why.append(say("Activations are not what fills the memory of this config."))
    if case.training.checkpointing != "none":
        why.append(say("The config already uses it."))
    published = (
        say(
            "Measured: the Hugging Face guide gives about 20 % more time; a layer run again is a third of "
            "its work."
        ),
    )
    return Judgement(
        claim="checkpointing", said=said, verdict=verdict, why=tuple(why), effect=e, published=published
    )


def adam8bit(case: Case, claimed_frac: float | None = None) -> Judgement:
    said = say("8-bit Adam saves memory")
    t = case.training
    if t.optimizer not in ("adam", "adamw", "adam8bit"):
        other = say("The config trains with {optimizer}, not with Adam.", optimizer=t.optimizer)
        return Judgement(claim="adam8bit", said=said, verdict="cannot tell", why=(other,))
    e = effect(
        case.then(optimizer="adamw", in_backward=False), case.then(optimizer="adam8bit", in_backward=False)
    )
    verdict: Verdict = "partly" if e.saves_frac < (claimed_frac or _CLEAR_FRAC) else "true"
    verdict = "false" if e.saves_frac < _SAME_FRAC else verdict
    why = (
        saves(e),
        say("It cuts AdamW's state from 8 bytes a parameter to 2; nothing else, and the numbers change."),
    )
    published = (say("Measured: BERT-large on a V100, 7.10 to 5.24 GiB."),)
    return Judgement(claim="adam8bit", said=said, verdict=verdict, why=why, effect=e, published=published)


def pad_vocabulary(case: Case, claimed_frac: float | None = None) -> Judgement:
    """Padding to a multiple of 64: a little memory; the gain in time is measured, not in our formulas."""
    del claimed_frac
    said = say("padding the vocabulary makes it faster")
    why: tuple[Sentence, ...]
    m = case.reading.model
    if m.classes is not None:
        why = (say("The model has a classifier instead of a vocabulary."),)
        return Judgement(claim="pad_vocabulary", said=said, verdict="cannot tell", why=why)
    published = (
        say("Measured: about 25 % faster for nanoGPT on an A100, 50257 to 50304 (Karpathy, February 2023)."),
    )
    if m.vocab % 64 == 0:
        why = (say("{vocab} is already a multiple of 64: there is nothing to gain.", vocab=m.vocab),)
        return Judgement(claim="pad_vocabulary", said=said, verdict="false", why=why, published=published)
    padded = -(-m.vocab // 64) * 64
    e = effect(case.now(), case.then(replace(m, vocab=padded)))
    why = (
        saves(e),
        say(
            "{vocab} to {padded} fills tensor cores better; how much that gains is not in brimful's "
            "formulas.",
            vocab=m.vocab,
            padded=padded,
        ),
    )
    return Judgement(
        claim="pad_vocabulary", said=said, verdict="partly", why=why, effect=e, published=published
    )


Judge = Callable[..., Judgement]
CLAIMS: dict[str, Judge] = {
    "fp16": fp16,
    "compile_off": compile_off,
    "smaller_batch": smaller_batch,
    "memory_is_work": memory_is_work,
    "smaller_model": smaller_model,
    "expandable_segments": expandable_segments,
    "checkpointing": checkpointing,
    "adam8bit": adam8bit,
    "pad_vocabulary": pad_vocabulary,
}


def judge_all(case: Case) -> tuple[Judgement, ...]:
    """Every claim brimful knows, on this config."""
    return tuple(judge(case) for judge in CLAIMS.values())
