"""Which claims a text makes: an idea that is changed, its stated effect, and how large that is.

Two kinds. An *effect* is a change (fp16, a smaller batch) and its direction in memory or time; the change may
be in the previous clause or sentence. A *fact* (`facts.toml`) is a set of ideas that are all in one sentence.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources

from brimful.diagnose.claims.reading import Statement, folded
from brimful.diagnose.claims.settings import never_fails, settings_in
from brimful.diagnose.claims.words import (
    FIGURES,
    bytes_each,
    clauses,
    denies,
    directions,
    fits_whole,
    mentions,
    parameters,
    percents,
    products,
    says,
    says_all,
    sizes,
    times,
)

LESS, SAME, MORE = -1, 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim of a text; `denied`: the text says that it is not so."""

    code: str
    quotes: tuple[str, ...]
    text: str  # the statement, case-folded
    denied: bool = False
    direction: int = LESS
    share: tuple[float, float] | None = None  # of the memory or time, lowest and highest
    settings: dict[str, str] = field(default_factory=dict)  # advised up to here


# A change, and whether memory or time -> the claim. The first is for a word meaning "more".
_EFFECTS: dict[tuple[str, str], str] = {
    ("fp16", "memory"): "fp16",
    ("bf16", "memory"): "fp16",
    ("fp16", "speed"): "bf16_slower_than_fp16",
    ("bf16", "speed"): "bf16_slower_than_fp16",
    ("mixed", "memory"): "bf16_halves_memory",
    ("compile", "memory"): "compile_saves_memory",
    ("checkpointing", "memory"): "checkpointing",
    ("checkpointing", "speed"): "checkpointing_slower",
    ("adam8bit", "memory"): "adam8bit",
    ("flash", "memory"): "flash_saves_memory",
    ("accumulation", "memory"): "accumulation_memory",
    ("batch", "memory"): "smaller_batch",
}
_OTHER_THINGS = (
    "logits",
    "states",
    "activations",
    "kv",
    "model",
    "lora",
    "zero",
    "jax",
    "dropout",
    "workers",
)
_CHANGES = tuple(dict.fromkeys(change for change, _ in _EFFECTS))
_SUBJECTS = (*_CHANGES, *_OTHER_THINGS, "empty_cache", "segments", "pinned", "optimizer", "tflops", "mfu")


@dataclass(frozen=True, slots=True)
class Fact:
    """Ideas that must all be there ('a|b' is either), those that must not, and the one a "not" belongs to."""

    code: str
    every: str
    none: str = ""
    about: str = ""
    figure: bool = False  # a percentage must be there too
    denied_by: str = ""  # ideas that negate it by themselves
    unless: str = ""  # facts of the same sentence that are more specific
    together: str = ""  # ideas that must be in the same part of it
    inherits: bool = False  # the previous sentence may name its subject


@cache
def _all_facts() -> tuple[Fact, ...]:
    text = resources.files("brimful.diagnose.claims").joinpath("facts.toml").read_text(encoding="utf-8")
    return tuple(Fact(**row) for row in tomllib.loads(text)["fact"])


# Computable figures, and a promise, whose words are not ideas: these need no other words.
_BY_THEIR_OWN_RULES = {
    *("logits_bytes", "states_bytes", "weights_bytes", "kv_cache_bytes", "gpu_memory_unit"),
    *("peak_tflops", "mfu_above_peak", "same_batch", "never_fails"),
}
# Such a sentence about memory or time makes this claim, not the effect of a change it happens to mention.
_ALONE = {
    *("context_memory_growth", "lora_saves", "zero_shards", "waiting_lowers_memory", "mfu_peak_is_a100"),
    *(
        "empty_cache_frees",
        "expandable_segments",
        "logits_are_largest",
        "states_fill_memory",
        "preallocation",
    ),
    *("workers_gpu_memory", "pinned_host_memory", "pad_vocabulary", "dropout_memory", "optimizer_first_step"),
}


def find_claims(found: tuple[Statement, ...]) -> tuple[Claim, ...]:
    """One entry for each distinct claim, in the order of the text, with every sentence that makes it.

    A sentence without a subject ("That saves half.") refers to the one before; the quote is then both.
    """
    advised: dict[str, str] = {}
    before: Statement | None = None  # the last sentence of this paragraph with a subject
    claims: dict[tuple[str, bool], Claim] = {}
    for statement in found:
        text = statement.folded
        advised |= settings_in(statement.text)
        if text.rstrip().endswith("?"):
            continue
        if before is not None and before.paragraph != statement.paragraph:
            before = None
        own = {claim.code for claim in _claims(text, "")}
        both = f"{before.text} {statement.text}" if before is not None else ""
        for claim in _claims(text, before.folded if before is not None else ""):
            quote = statement.text if claim.code in own else both
            if claim.code not in _BY_THEIR_OWN_RULES and not fits_whole(folded(quote)):
                continue  # known ideas in a sentence about something else
            _add(claims, replace(claim, quotes=(quote,), settings=dict(advised)))
        if before is None or mentions(text, *_SUBJECTS):
            before = statement
    return tuple(claims.values())


def _claims(text: str, before: str) -> Iterator[Claim]:
    """What a sentence says, about its own subject or that of the sentence before."""
    facts = tuple(_facts(text, before))
    alone = {fact.code for fact in facts} & _ALONE
    if not alone:
        yield from _effects(text, before)
    yield from facts
    if "mfu_peak_is_a100" not in alone:
        yield from _figures(text, before)
    if not alone & {"empty_cache_frees", "waiting_lowers_memory"}:
        yield from _outcomes(text, before)


def _add(claims: dict[tuple[str, bool], Claim], made: Claim) -> None:
    """A repeated claim is one claim: the stated figure counts, and every sentence is kept."""
    code = made.code
    if code == "workers_gpu_memory" and made.denied:
        code = "pinned_host_memory"  # the same, from the other side
    key = (code, made.denied if code == "fits_card" else False)
    if (before := claims.get(key)) is None:
        claims[key] = made
        return
    better = made if made.share and not before.share else before
    quotes = tuple(dict.fromkeys((*before.quotes, *made.quotes)))
    claims[key] = replace(better, quotes=quotes)


def _claim(code: str, text: str, **more: object) -> Claim:
    return Claim(code=code, quotes=(), text=text, **more)  # type: ignore[arg-type]


# -- effects -----------------------------------------------------------------------------------------------


def _effects(text: str, before: str) -> Iterator[Claim]:
    named = [idea for _, idea in mentions(text, *_CHANGES)]
    other = mentions(text, *_OTHER_THINGS) and not _GOES_ON.match(text)
    carried = [] if named or other else mentions(before, *_CHANGES)
    change = carried[0][1] if carried else None
    spoken_of = ""  # memory or speed, for a clause that names neither: "memory, however, falls by half"
    for clause in clauses(text):
        here = [idea for _, idea in mentions(clause, *_CHANGES)]
        change = here[0] if here else change or (named[0] if named else None)
        if change is None or says("asks", clause):
            continue
        said = [
            name
            for name, is_said in (("memory", _memory_is_said(clause)), ("speed", says("speed", clause)))
            if is_said
        ]
        for dimension in said or [spoken_of]:
            code = _EFFECTS.get((change, dimension))
            direction = _direction(clause, dimension, of_its_own=bool(said))
            if code and direction is not None:
                yield from _effect(code, change, clause, text, direction)
        if said:
            has_effect = any(_direction(clause, one, of_its_own=True) is not None for one in said)
            spoken_of = "" if has_effect else said[0]


def _memory_is_said(clause: str) -> bool:
    if says("memory", clause) or (says("saves", clause) and not says("speed", clause)):
        return True
    told = says("less", clause) or says("more", clause) or says("same", clause)
    if says("activations", clause) and (told or says("consumes", clause)):
        return True
    return told and (says("consumes", clause) or bool(sizes(clause)))


_COMPARED = re.compile(
    r"\b(?:more|less|plus|moins|mas|menos|mehr|weniger) (?:than|que|d[e']|als)\b(?: lo que)? ?"
    r"(?:that|this|the card|cela|ca|eso|das|\d[^,;]*)"
)
_MORE_STEPS = re.compile(r"\b(?:more|plus d[e']|mas|mehr) ?(?:steps|etapes|pas|pasos|schritte)\b")
_FROM_TO = re.compile(
    rf"{FIGURES}\s?(?:g[i]?[bo])?\s?(?:->|→|\bto\b|\ba\b|\bauf\b)\s?~?{FIGURES}\s?g[i]?[bo]"
)


def _direction(clause: str, dimension: str, *, of_its_own: bool) -> int | None:
    clause = _MORE_STEPS.sub(" ", clause)  # what is changed, not its effect
    clause = _COMPARED.sub(" ", clause)  # a comparison with a limit: not an effect
    # "more time for less memory": can be read both ways
    return None if len(directions(clause)) > 1 else _one_direction(clause, dimension, of_its_own=of_its_own)


def _one_direction(clause: str, dimension: str, *, of_its_own: bool) -> int | None:
    if says("saves", clause) and dimension == "memory":
        return LESS  # "saved for free" is still saved
    if says("same", clause):
        return SAME
    if dimension == "speed" and (says("slower", clause) or says("faster", clause)):
        return MORE if says("slower", clause) else LESS
    if (ends := _FROM_TO.search(clause)) and dimension == "memory":
        before, after = (float(each.replace(",", ".")) for each in ends.groups())
        return LESS if after < before else MORE
    for idea, direction in (("less", LESS), ("half", LESS), ("more", MORE)):
        if says(idea, clause):
            return direction
    # "takes" and "needs" mean more only if no amount follows
    weak = MORE if of_its_own and says("consumes", clause) and not sizes(clause) else None
    return LESS if weak is None and percents(clause) and dimension == "memory" else weak


def _effect(code: str, change: str, clause: str, text: str, direction: int) -> Iterator[Claim]:
    share = _share(clause)
    if change == "compile":
        direction, denied = _compiled(clause, text, direction)
    else:
        denied = denies(clause)
        if says("off", clause) and change in ("checkpointing", "flash"):
            direction, denied = -direction, denies(re.sub(r"without|sans\b|\bsin\b|\bohne\b", "", clause))
    mirrored = (code, change) in (("fp16", "bf16"), ("bf16_slower_than_fp16", "fp16"))
    if code == "fp16" and (says("fp32", text) or share == (0.5, 0.5)):
        code, direction = "bf16_halves_memory", LESS
    elif mirrored:
        direction = -direction
    elif code == "compile_saves_memory" and says("later", text) and direction == LESS and not denied:
        code = "steps_until_compile"
    elif code == "compile_saves_memory" and direction == MORE:
        code = "compile_off"
    if code == "smaller_batch" and (
        not (says("memory", text) or share) or _is_more_than_memory(clause, text, direction)
    ):
        return
    share = None if code == "accumulation_memory" else share
    yield _claim(code, text, denied=denied, direction=direction, share=share)


def _share(clause: str) -> tuple[float, float] | None:
    """In per cent, as a half, or as a factor; for activations alone it is not a share of the whole."""
    if says("activations", clause):
        return None
    if told := percents(clause):
        return told[0]
    if says("half", clause):
        return (0.5, 0.5)
    factor = times(clause)
    return (factor - 1, factor - 1) if factor and factor > 1 else None


def _is_more_than_memory(clause: str, text: str, direction: int) -> bool:
    """Of a batch: that memory and compute rise together, or the effective batch, are separate claims."""
    both = says("compute", clause) and says("more", clause)
    rises = direction == MORE and (says("compute", text) or says("busy", text))
    return says("effective", clause) or both or rises


def _compiled(clause: str, text: str, direction: int) -> tuple[int, bool]:
    """What is said about compiled code; the text may speak of turning it off."""
    if says("later", text):
        return direction, denies(clause)  # in stages: first without, then with
    off_here = settings_in(clause).get("compile") == "False"
    elsewhere = [part for part in clauses(text) if not says("compile", part)]
    off_before = not says("compile", clause) and (
        settings_in(text).get("compile") == "False" or any(says("off", part) for part in elsewhere)
    )
    if off_here:
        return -direction, False
    if off_before and direction == LESS:
        return MORE, denies(clause)
    return direction, denies(clause)


# -- facts -------------------------------------------------------------------------------------------------


def _facts(text: str, before: str) -> Iterator[Claim]:
    done: set[str] = set()
    for fact in _all_facts():
        if fact.code in done or not _holds(fact, text, before):
            continue
        done.add(fact.code)
        if done & set(fact.unless.split()):
            continue
        about = fact.about.split("|") if fact.about else []
        parts = clauses(text)
        idea, where = next(((idea, part) for idea in about for part in parts if says(idea, part)), (None, ""))
        denied = denies(where, of=idea) or any(says(idea, text) for idea in fact.denied_by.split())
        yield _claim(fact.code, text, denied=denied, share=next(iter(percents(text)), None))


_GOES_ON = re.compile(
    r"\W*(?:that|this|it|they|these|which|by then|cela|ca|ceci|il|elle|ainsi|eso|esto|asi|ello|das|dies|es"
    r"|damit|dadurch"
    r"|so|er|sie|danach|dann|then|after|puis|ensuite|apres|despues|luego|entonces)\b"
)


def _holds(fact: Fact, text: str, before: str) -> bool:
    """Its ideas are in the sentence; the first, its subject, may be in the one before."""
    subject, _, rest = fact.every.partition(" ")
    if (
        fact.inherits
        and _GOES_ON.match(text)
        and says_all(subject, before)
        and says_all(rest, text, none=fact.none)
    ):
        return True
    if not says_all(fact.every, text, none=fact.none):
        return False
    if fact.together and not any(says_all(fact.together, part) for part in re.split(r"[;:]\s", text)):
        return False
    return not fact.figure or bool(percents(text)) or "nvidia-smi" in text


# -- figures that can be worked out ------------------------------------------------------------------------


_RATE = re.compile(r"\d\s?tflop|peaks? (?:at|bei|a) \d|(?:pic|pico|spitze) .{0,12}\d{2,4}\b(?! ?[gm]i?[bo])")
_ABOVE = re.compile(r"\bover\b|above|exceed|depass|super|uber|mehr als")


def _figures(text: str, before: str) -> Iterator[Claim]:
    whole, text = text, ", ".join(part for part in clauses(text) if not says("fits", part))
    told = sizes(text)
    known = f"{before} {text}"  # the number of parameters, and their bytes, are often stated first
    if told and (written := [each for each in products(text) if len(each) >= 3]):
        code = "kv_cache_bytes" if says("kv", known) else "logits_bytes"
        vocab = any(factor >= 30_000 for each in written for factor in each)
        yield _claim(code if vocab or code == "kv_cache_bytes" else "states_bytes", text)
    elif told and (says("kv", text) or (says("kv", before) and says("context", text))):
        yield _claim("kv_cache_bytes", f"{before} {whole}")
    elif told and parameters(known) and (bytes_each(known) or "=" in text) and _weighs(text, before):
        yield _claim("states_bytes" if says("optimizer", known) else "weights_bytes", known)
    elif len({binary for _, binary in told}) == 2 and not says("asked", text):
        yield _claim("gpu_memory_unit", whole, denied=denies(whole))
    text = whole
    if says("card", known) and (_RATE.search(text) or (_RATE.search(before) and says("sparsity", text))):
        yield _claim("peak_tflops", known if says("sparsity", text) else text)
    above = 0.99 if says("more", text) or _ABOVE.search(text) else 1.0
    if says("mfu", text) and any(low > above for low, _ in percents(text)):
        yield _claim("mfu_above_peak", text, denied=denies(text) or says("a100", text))


def _weighs(text: str, before: str) -> bool:
    """A size of weights or states: in the sentence itself, or in one that continues about them."""
    if says("most", text) or (says("activations", text) and not parameters(text)):
        return False
    return not before or bool(parameters(text)) or says("states", text)


# -- does it fit, and how much does it need ----------------------------------------------------------------


_ARROW = re.compile(r"(?:->|→|\b(?:to|a|auf)\b)[ ~a-z]{0,12}\d")


def _outcomes(text: str, before: str) -> Iterator[Claim]:
    told = sizes(text)
    clause = next((each for each in clauses(text) if says("fits", each)), "")
    from_to = len(told) == 2 and told[0][1] == told[1][1] and _ARROW.search(text)
    if says("asked", text) and says("free", text) and len(told) >= 2:
        yield _claim("does_not_fit_card", text)
    elif from_to and says("memory", text):
        yield _claim("peak_before_after", text)
    elif told and says("below", text) and not clause and not parameters(text) and not percents(text):
        yield _claim("peak_below_limit", text)
    elif clause and (told or says("card", text) or sizes(before)) and not says("empty_cache", text):
        denied = denies(clause)
        yield _claim("does_not_fit_card" if denied else "fits_card", text, denied=denied)
    yield from _same_batch(text)
    if never_fails(text):
        yield _claim("never_fails", text)


def _same_batch(text: str) -> Iterator[Claim]:
    if says("effective", text) and (says("keep", text) or says("back", text)) and says("batch", text):
        yield _claim(
            "effective_batch_restored" if says("back", text) else "same_batch",
            text,
            denied=denies(text, of="keep"),
        )
        return
    pairs = [each for each in products(text) if len(each) == 2]
    of_batch = len(pairs) == 2 or says("batch", text)
    if pairs and of_batch and says("keep", text):
        yield _claim("same_batch", text)
