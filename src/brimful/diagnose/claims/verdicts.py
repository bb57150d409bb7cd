"""Each claim of a text, judged: predicted if config and card are known, else computed or known.

A verdict judges what the author says: for a denied claim, the opposite.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from brimful.configs.reading import Reading
from brimful.diagnose.claims.find import LESS, MORE, SAME, Claim
from brimful.diagnose.claims.judge import CLAIMS, Case, Effect, Judgement, Verdict, effect, saves
from brimful.diagnose.claims.words import (
    bytes_each,
    clauses,
    denies,
    parameters,
    products,
    says,
    says_bytes,
    sizes,
)
from brimful.diagnose.oom import find_out_of_memory
from brimful.diagnose.rates import USUAL_MFU
from brimful.errors import BrimfulError
from brimful.fit.count import A100_FLOPS_PER_S
from brimful.fit.count import parameters as model_parameters
from brimful.language import Number, Percent, Sentence, Size, figures, say, verbatim
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu, find_gpu
from brimful.units import GIB

Reread = Callable[[list[str]], Reading]  # the same config with `key=value` settings on top
_FLIPPED: dict[Verdict, Verdict] = {"true": "false", "false": "true"}
_STATES = ("weights", "gradients", "optimizer_state", "weight_casts")
# What holds on every card.
_TRUE = (
    *("cached_memory_looks_full", "optimizer_first_step", "bigger_batch_raises_both", "mfu_peak_is_a100"),
    *("pinned_host_memory", "dropout_memory"),
)
_FALSE = (
    *("memory_is_work", "gpu_util_is_busy", "waiting_lowers_memory", "steps_until_compile", "mfu_above_peak"),
    "workers_gpu_memory",
)
_TAKEN_AT_START = {"jax": 0.75, "xla": 0.75, "vllm": 0.9, "tensorflow": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The basis for judging a claim: the text itself, and config and card if they were given."""

    text: str
    case: Case | None
    reread: Reread | None

    def advised(self, claim: Claim) -> Case | None:
        """The case with every setting the text has advised up to this claim."""
        if self.case is None or self.reread is None or not claim.settings:
            return self.case
        try:
            return replace(self.case, reading=self.reread([f"{k}={v}" for k, v in claim.settings.items()]))
        except BrimfulError:
            return self.case


Answer = tuple[Verdict, tuple[Sentence, ...], Effect | None]


def judge_claim(claim: Claim, known: Known) -> Judgement:
    if claim.code in _TRUE or claim.code in _FALSE:
        answer: Answer = ("true" if claim.code in _TRUE else "false", (), None)
    else:
        answer = _JUDGES.get(claim.code, _effect)(claim, known)
    verdict, why, done = answer
    if claim.denied and claim.code not in _WITHOUT_FLIP:
        # if a figure is not quite right, an author who denies it is right
        verdict = "true" if verdict == "partly" and claim.share else _FLIPPED.get(verdict, verdict)
    general = Sentence(f"claims.why_{claim.code}", {})
    return Judgement(
        claim=claim.code,
        said=verbatim(claim.quotes[0]),
        verdict=verdict,
        why=(*why, general) if verdict != "cannot_tell" or not why else why,
        effect=done,
        quotes=claim.quotes,
        denied=claim.denied,
    )


# -- effects -----------------------------------------------------------------------------------------------


def _effect(claim: Claim, known: Known) -> Answer:
    """The stated direction and share, beside the prediction, or beside what is known without one."""
    change, done = _change(claim, known.case)
    if change is None:
        return "cannot_tell", (say("claims.needs_config"),), None
    enough = 0.03 if claim.code in ("bf16_slower_than_fp16", "checkpointing_slower") else 0.005
    sign = SAME if abs(change) < enough else LESS if change < 0 else MORE
    verdict: Verdict = "true" if sign == claim.direction else "false"
    if verdict == "true" and claim.share and sign != SAME:
        low, high = claim.share
        timed = claim.code == "checkpointing_slower"  # a step time is predicted less precisely
        least = 0.6 * low if timed else min(0.95 * low, low - 0.01)
        verdict = "true" if least <= abs(change) <= max(1.5 * high, high + 0.1) else "partly"
        verdict = "false" if not 0.5 * low <= abs(change) <= max(3 * high, high + 0.5) else verdict
        states_too = claim.code == "bf16_halves_memory" and says("states", claim.text)  # these stay in fp32
        if (high > 2 * abs(change) and timed) or states_too:
            verdict = "false"
    return verdict, (saves(done),) if done else (), done


def _change(claim: Claim, case: Case | None) -> tuple[float | None, Effect | None]:
    """The share by which memory or time changes with the feature on; without a config, the typical one."""
    typical = {
        "fp16": 0.0, "bf16_slower_than_fp16": 0.0, "compile_off": -0.1, "compile_saves_memory": -0.1,
        "checkpointing": -0.4, "checkpointing_slower": 0.25, "adam8bit": -0.1, "flash_saves_memory": -0.2,
        "accumulation_memory": 0.0, "bf16_halves_memory": -0.3,
        "smaller_batch": -0.9 * claim.share[0] if claim.share else -0.2,
    }  # fmt: skip
    if claim.code == "accumulation_memory" or case is None:
        if (
            claim.share and claim.code == "adam8bit"
        ):  # moments are half of the states: never more than 3/8 of everything
            return (-0.1 if claim.share[0] > 0.4 else None), None
        unknown = claim.share and claim.code in ("flash_saves_memory", "checkpointing")
        return (None if unknown else typical.get(claim.code)), None
    t = case.training
    batch = _batch_then(claim, t.batch_size)
    pairs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "fp16": ({"dtype": "bfloat16"}, {"dtype": "float16"}),
        "bf16_slower_than_fp16": ({"dtype": "float16"}, {"dtype": "bfloat16"}),
        "bf16_halves_memory": ({"dtype": "float32"}, {"dtype": "bfloat16", "casts": "autocast"}),
        "compile_off": ({"compiled": False}, {"compiled": True}),
        "compile_saves_memory": ({"compiled": False}, {"compiled": True}),
        "checkpointing": ({"checkpointing": "none"}, {"checkpointing": "full"}),
        "checkpointing_slower": ({"checkpointing": "none"}, {"checkpointing": "full"}),
        "adam8bit": ({"optimizer": "adamw"}, {"optimizer": "adam8bit"}),
        "flash_saves_memory": ({"attention": "math"}, {"attention": "flash"}),
        "smaller_batch": ({}, {"batch_size": batch}),
        "lora_saves": ({}, {"tuning": "lora"}),
    }
    off, on = pairs[claim.code]
    factor = batch / t.batch_size if claim.code == "smaller_batch" else 1.0
    before, after = case.then(**off), case.then(**on)
    done = effect(before, after, tokens_factor=factor)
    change = after.memory.allocated_bytes.likely / before.memory.allocated_bytes.likely - 1
    if claim.code in ("bf16_slower_than_fp16", "checkpointing_slower"):
        return done.step_time_factor - 1, done
    if claim.code == "smaller_batch" and claim.direction == MORE:
        return abs(change), done
    return change, done


def _batch_then(claim: Claim, now: int) -> int:
    said = claim.settings.get("batch_size", "")
    if said.isdigit() and 0 < int(said) != now:
        return int(said)
    return max(1, now // 2)


# -- facts that depend on the case -------------------------------------------------------------------------


def _parts(estimate: Estimate, *codes: str) -> int:
    return sum(item.bytes for item in estimate.memory.items if item.code in codes)


def _states_share(claim: Claim, known: Known) -> Answer:
    if known.case is None:
        return "cannot_tell", (say("claims.needs_config"),), None
    small = claim.code == "small_batch_memory_is_states"
    now = known.case.then(batch_size=1) if small else known.case.now()
    states, total = _parts(now, *_STATES), now.memory.allocated_bytes.likely
    share = states / total
    why = say("claims.share_of_states", states=Size(states), total=Size(total), share=Percent(share))
    least = 0.4 if small else 0.3
    verdict: Verdict = "true" if share > 0.5 and not small else "partly" if share > least else "false"
    return verdict, (why,), None


def _logits_share(claim: Claim, known: Known) -> Answer:
    if known.case is None:
        return "cannot_tell", (say("claims.needs_config"),), None
    now = known.case.now()
    logits, total = _parts(now, "logits_loss"), now.memory.allocated_bytes.likely
    why = say("claims.share_of_logits", logits=Size(logits), total=Size(total), share=Percent(logits / total))
    most = max(now.memory.items, key=lambda item: item.bytes).code == "logits_loss"
    half = says("half", claim.text)
    enough = logits / total >= 0.48 if half else most
    return "true" if enough else "partly" if most else "false", (why,), None


def _low_mfu(claim: Claim, known: Known) -> Answer:
    if known.case is None or claim.share is None:
        return "cannot_tell", (say("claims.needs_card"),), None
    own = _own_peak(known.case.gpu)
    printed, low = claim.share[0], USUAL_MFU[0]
    as_nanogpt = printed * A100_FLOPS_PER_S / own
    why = say(
        "claims.mfu_both_ways", printed=Percent(printed), own=Percent(as_nanogpt), gpu=known.case.gpu.title
    )
    verdict: Verdict = "true" if printed >= low else "partly" if as_nanogpt >= low else "false"
    return verdict, (why,), None


def _own_peak(gpu: Gpu) -> float:
    peaks = gpu.dense_flops_per_s
    return peaks.get("bf16") or peaks.get("fp16") or peaks["fp32"]


def _accumulation(claim: Claim, known: Known) -> Answer:
    """More micro-steps cost nothing; going from one to two keeps one copy of the gradients between them."""
    answer = _effect(claim, known)
    if answer[0] == "true" and says("costless", claim.text):
        held = [] if known.case is None else [known.case.then(accumulation=n).memory for n in (1, 2)]
        if not held or held[1].allocated_bytes.likely > 1.005 * held[0].allocated_bytes.likely:
            return "partly", answer[1], None
    return answer


def _small_model(claim: Claim, known: Known) -> Answer:  # noqa: ARG001 - the signature of every judge
    if known.case is None:
        return "partly", (), None
    mfu = known.case.now().speed.mfu.likely
    why = say("claims.predicted_mfu", mfu=Percent(mfu), gpu=known.case.gpu.title)
    return "true" if mfu < 0.2 else "partly", (why,), None


def _preallocation(claim: Claim, known: Known) -> Answer:  # noqa: ARG001
    share = next(share for name, share in _TAKEN_AT_START.items() if name in claim.text)
    told = claim.share or (share, share)
    return "true" if told[0] - 0.05 <= share <= told[1] + 0.05 else "false", (), None


def _context(claim: Claim, known: Known) -> Answer:
    """Linear if attention keeps no full score matrix, as with flash attention."""
    flash = not re.search(
        r"naive|eager|without flash|sans flash|sin flash|ohne flash|classi|math", claim.text
    )
    if known.case is not None and not says("flash", claim.text):
        flash = known.case.training.attention != "math"
    if says("quadratic", claim.text) and says("linear", claim.text):
        return "true", (), None  # without and with it
    if says("quadratic", claim.text):
        return "false" if flash else "true", (), None
    if says("linear", claim.text) or says("activations", claim.text) or known.case is None:
        return "true" if flash else "false", (), None
    t = known.case.training
    done = effect(known.case.now(), known.case.then(sequence_tokens=2 * t.sequence_tokens), tokens_factor=2.0)
    growth = done.after_bytes / done.before_bytes
    return "true" if 1.9 <= growth <= 2.1 else "partly" if growth > 1.4 else "false", (saves(done),), done


def _lora(claim: Claim, known: Known) -> Answer:
    """It saves states and no activations."""
    of_activations = [
        denies(clause) or says("same", clause) or "still" in clause
        for clause in clauses(claim.text)
        if says("activations", clause)
    ]
    if of_activations:
        return "true" if all(of_activations) else "false", (), None
    if claim.share and known.case is not None and says("memory", claim.text):
        return _effect(replace(claim, direction=LESS, denied=False), known)
    return "false" if claim.denied and not says("states", claim.text) else "true", (), None


_SHARDED = {"1": ("optimizer",), "2": ("optimizer", "gradients"), "3": ("optimizer", "gradients", "weights")}


def _zero(claim: Claim, known: Known) -> Answer:  # noqa: ARG001
    if says("single_gpu", claim.text):  # a shard of one is the whole
        return "true" if claim.denied or denies(claim.text) else "false", (), None
    stage = re.search(r"(?:zero|stage|stufe|etape|etapa|fase)[- ]?([123])\b", claim.text)
    held = _SHARDED[stage[1] if stage else "3"]
    kinds = {
        "optimizer": r"optimi[sz]|moment|adam",
        "gradients": r"gradien",
        "weights": r"weights|\bpoids\b|\bpesos\b|gewichte|paramet",
        "activations": r"activa[ct]i|aktivierung",
    }
    right, sharded = [], True
    for clause in clauses(re.sub(r"(?:per|par|por|pro|each|cada) param\w*", "", claim.text)):
        if denies(clause) or says("replicated", clause):
            sharded = False
        elif says("shards", clause) or says("less", clause):
            sharded = True  # and applies to what is listed after it
        right += [(kind in held) == sharded for kind, pattern in kinds.items() if re.search(pattern, clause)]
    if not right and says("memory", claim.text):  # of all memory: activations are never divided
        return "partly" if not stage or stage[1] == "3" else "false", (), None
    return "true" if all(right) else "false", (), None


def _empty_cache(claim: Claim, known: Known) -> Answer:  # noqa: ARG001
    """It returns cached memory to other programs; no tensor, and nothing the same run could not use."""
    only_cached = says("unused", claim.text) and not says("fits", claim.text)
    return "true" if only_cached or claim.denied else "false", (), None


def _segments(claim: Claim, known: Known) -> Answer:
    if says("fragmentation", claim.text):
        return "true", (), None
    if known.case is None:
        return "partly", (), None
    done = CLAIMS["expandable_segments"](known.case)
    return done.verdict, done.why, None


def _fragmentation(claim: Claim, known: Known) -> Answer:  # noqa: ARG001 - the signature of every judge
    """By the message the text quotes, if it says what was cached."""
    message = next((one for one in find_out_of_memory(known.text) if one.tried_bytes is not None), None)
    if (
        message is None
        or message.cached_bytes is None
        or message.free_bytes is None
        or not message.tried_bytes
    ):
        return "cannot_tell", (say("claims.needs_reserved"),), None
    have = message.cached_bytes + message.free_bytes
    why = say("claims.free_and_cached", have=Size(have), tried=Size(message.tried_bytes))
    return "true" if have >= message.tried_bytes else "false", (why,), None


def _padding(claim: Claim, known: Known) -> Answer:  # noqa: ARG001
    """False only if the text says it costs much."""
    costs = any(says("lots", clause) and not denies(clause) for clause in clauses(claim.text))
    return "false" if costs else "true", (), None


# -- arithmetic --------------------------------------------------------------------------------------------


def _near(told: tuple[float, bool], worked_out: float, tolerance: float) -> bool:
    """People also write GB for GiB: both readings count."""
    value, binary = told
    readings = (value,) if binary else (value, value * (GIB / 1e9))
    return any(abs(each / worked_out - 1) <= tolerance for each in readings)


def _bytes(claim: Claim, known: Known) -> Answer:
    told = sizes(claim.text)
    each = bytes_each(claim.text)
    candidates: list[float] = []
    for factors in products(claim.text):
        product = 1.0
        for factor in factors:
            product *= factor
        told_bytes = each is not None and each in factors
        candidates += [product] if told_bytes else [product, product * (each or 2)]
    count = parameters(claim.text)
    if claim.code == "kv_cache_bytes":  # this much per token, for this many tokens
        tokens = [float(n) for n in re.findall(r"\b(\d{3,7})\b", claim.text)]
        candidates += [size * n for size, _ in told for n in tokens]
    elif count is not None:
        per = [each] if each else [8.0, 12.0, 16.0] if says("optimizer", claim.text) else [2.0]
        candidates += [count * one for one in per]
    elif not candidates and known.case is not None:
        candidates += [model_parameters(known.case.reading.model) * (each or 2)]
    if not candidates or not told:
        return "cannot_tell", (say("claims.needs_config"),), None
    best = min(candidates, key=lambda value: min(abs(size / value - 1) for size, _ in told))
    right = any(_near(size, value, 0.06 if count else 0.03) for size in told for value in candidates)
    why = say("claims.works_out", size=Size(best), gb=Number(best / 1e9, 2))
    if right:
        return "true", (why,), None
    # A product that misses the figure proves it wrong only if the text itself states every factor.
    known_bytes = says_bytes(claim.text) or (each is not None and claim.code == "weights_bytes")
    written_out = any(len(factors) >= 3 for factors in products(claim.text)) or (count and known_bytes)
    return "false" if written_out else "cannot_tell", (why,), None


def _units(claim: Claim, known: Known) -> Answer:  # noqa: ARG001
    told = sizes(claim.text)
    pairs = [one / other for one, binary in told if binary for other, also in told if not also]
    return "true" if any(abs(pair - 1) <= 0.01 for pair in pairs) else "false", (), None


def _cards(text: str) -> list[Gpu]:
    found = []
    for name in re.findall(r"\b(?:rtx ?)?(?:[a-z]{1,2}\d{2,4}|\d{4})(?: ?(?:ti|super|xt))*\b", text):
        for full in (name, f"rtx {name}", f"{name} sxm 80gb", f"{name} sxm"):
            try:
                found.append(find_gpu(full))
                break
            except BrimfulError:
                continue
    return found


def _tflops(claim: Claim, known: Known) -> Answer:
    cards = _cards(claim.text) or ([known.case.gpu] if known.case else [])
    rates = [
        float(n.replace(",", ".")) for n in re.findall(r"(\d{2,4}(?:[.,]\d)?)(?!\d|\s?%|[.,]\d)", claim.text)
    ]
    if not cards or not rates:
        return "cannot_tell", (say("claims.needs_card"),), None
    half = says("bf16", claim.text) or says("fp16", claim.text)
    formats = [name for name in ("fp32", "fp8", "tf32") if name in claim.text and not half] or [
        "bf16",
        "fp16",
    ]
    dense = [
        card.dense_flops_per_s[name] / 1e12
        for card in cards
        for name in formats
        if name in card.dense_flops_per_s
    ]
    names = {re.sub(r"\D", "", card.name) for card in cards}
    figures_told = [rate for rate in rates if f"{rate:g}" not in names]
    why = say("claims.card_peak", gpu=cards[-1].title, tflops=figures(_own_peak(cards[-1]) / 1e12))
    if any(abs(rate / peak - 1) <= 0.03 for rate in figures_told for peak in dense):
        return "true", (why,), None
    if any(abs(rate / (2 * peak) - 1) <= 0.03 for rate in figures_told for peak in dense):
        told_so: Verdict = "true" if says("sparsity", claim.text) else "partly"
        return told_so, (why, say("claims.sparse_peak")), None
    return "false", (why,), None


# -- outcomes ----------------------------------------------------------------------------------------------


def _fits(claim: Claim, known: Known) -> Answer:
    """Whether it fits; `does_not_fit_card` is the same question, asked the other way round."""
    told = sizes(claim.text)
    other_side = claim.code == "does_not_fit_card"
    if says("asked", claim.text) and says("free", claim.text) and len(told) >= 2:
        asked, free = told[0][0], told[1][0]
        why = say("claims.asked_and_free", asked=Size(asked), free=Size(free))
        return "true" if asked > free else "false", (why,), None
    cards = _cards(claim.text)
    if (count := parameters(claim.text)) is not None:
        trains = says("optimizer", claim.text) or re.search(r"train|entra[iî]n|entren|tun", claim.text)
        need = count * (bytes_each(claim.text) or 2 if not trains else 16)
        rooms = [size for size in told if not _near(size, need, 0.06)]  # the other one is the need itself
        need = (
            max(need, told[0][0]) if len(rooms) > 1 else need
        )  # "it needs 112 GB, so it does not fit in 80"
        room = cards[0].memory_bytes if cards else rooms[-1][0] if rooms else 0
        if room:
            why = say("claims.needs_at_least", need=Size(need), room=Size(room))
            return "true" if (need > room) == other_side else "false", (why,), None
    case = known.advised(claim)
    if case is None:
        return "cannot_tell", (say("claims.needs_config"),), None
    case = replace(case, gpu=_card_told(cards, told, case.gpu))
    now = case.now()
    span = {end: Size(nbytes) for end, nbytes in now.memory.device_bytes.as_dict().items()}
    why = say("diagnose.settings_need", usable=Size(now.usable_bytes), **span)
    verdict: Verdict = {"fits": "true", "at_risk": "partly"}.get(now.verdict, "false")  # type: ignore[assignment]
    return _FLIPPED.get(verdict, verdict) if other_side else verdict, (why,), None


def _card_told(cards: list[Gpu], told: list[tuple[float, bool]], own: Gpu) -> Gpu:
    """The card a text names, or the user's own with the memory it names."""
    if cards:
        return cards[-1]
    room = round(told[-1][0] * (1 if told[-1][1] else GIB / 1e9)) if told else own.memory_bytes
    return own if abs(room / own.memory_bytes - 1) < 0.1 else replace(own, memory_bytes=room)


def _below(claim: Claim, known: Known) -> Answer:
    case = known.advised(claim)
    if case is None:
        return "cannot_tell", (say("claims.needs_config"),), None
    limit, binary = sizes(claim.text)[-1]
    limit = limit if binary else limit * GIB / 1e9
    memory = case.now().memory
    why = say(
        "claims.peak_predicted",
        allocated=Size(memory.allocated_bytes.likely),
        reserved=Size(memory.reserved_bytes.likely),
    )
    return "true" if memory.reserved_bytes.likely <= limit else "false", (why,), None


def _before_after(claim: Claim, known: Known) -> Answer:
    case = known.advised(claim)
    if case is None or known.case is None:
        return "cannot_tell", (say("claims.needs_config"),), None
    before, after = known.case.now().memory, case.now().memory
    why = say(
        "claims.peaks_predicted",
        before=Size(before.allocated_bytes.likely),
        after=Size(after.allocated_bytes.likely),
    )
    right = [
        0.97 * memory.allocated_bytes.likely
        <= size * (1 if binary else GIB / 1e9)
        <= memory.device_bytes.high
        for (size, binary), memory in zip(sizes(claim.text), (before, after), strict=False)
    ]
    return "true" if all(right) else "false", (why,), None


def _effective_batch(claim: Claim, known: Known) -> Answer:
    pairs = [int(a * b) for a, b in (each for each in products(claim.text) if len(each) == 2)]
    if len(pairs) >= 2:
        why = say("claims.two_products", one=pairs[0], other=pairs[1])
        return "true" if pairs[0] == pairs[1] else "false", (why,), None
    if known.case is None:
        return "cannot_tell", (say("claims.needs_config"),), None
    t = known.case.training
    batch, steps = (
        int(value) if (value := claim.settings.get(key, "")).isdigit() else now
        for key, now in (("batch_size", t.batch_size), ("gradient_accumulation_steps", t.accumulation))
    )
    others = pairs[0] if pairs else batch * steps * t.data_parallel
    sizes_of = {"batch": batch, "accumulation": steps, "others": others, "whole": t.effective_batch}
    same = others == t.effective_batch
    return "true" if same else "false", (say("diagnose.batch_product", **sizes_of),), None


def _never(claim: Claim, known: Known) -> Answer:
    case = known.advised(claim)
    if case is None:
        return "cannot_tell", (say("claims.needs_config"),), None
    now = case.now()
    span = {end: Size(nbytes) for end, nbytes in now.memory.device_bytes.as_dict().items()}
    why = say("diagnose.settings_need", usable=Size(now.usable_bytes), **span)
    return "partly" if now.verdict == "fits" else "false", (why,), None


_JUDGES: dict[str, Callable[[Claim, Known], Answer]] = {
    "accumulation_memory": _accumulation,
    "states_fill_memory": _states_share,
    "small_batch_memory_is_states": _states_share,
    "logits_are_largest": _logits_share,
    "low_mfu_is_normal": _low_mfu,
    "small_model_low_utilization": _small_model,
    "preallocation": _preallocation,
    "context_memory_growth": _context,
    "lora_saves": _lora,
    "zero_shards": _zero,
    "empty_cache_frees": _empty_cache,
    "expandable_segments": _segments,
    "not_fragmentation": _fragmentation,
    "pad_vocabulary": _padding,
    "logits_bytes": _bytes,
    "states_bytes": _bytes,
    "weights_bytes": _bytes,
    "kv_cache_bytes": _bytes,
    "gpu_memory_unit": _units,
    "peak_tflops": _tflops,
    "fits_card": _fits,
    "does_not_fit_card": _fits,
    "peak_below_limit": _below,
    "peak_before_after": _before_after,
    "same_batch": _effective_batch,
    "effective_batch_restored": _effective_batch,
    "never_fails": _never,
}
# Judged together with the words that negate them.
_WITHOUT_FLIP = ("does_not_fit_card", "lora_saves", "zero_shards", "pad_vocabulary", "empty_cache_frees")
