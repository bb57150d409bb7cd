"""Which claims a text makes: an idea that is changed, what it is said to do, and by how much.

Two kinds. An *effect* is a change (fp16, a smaller batch) and its direction in memory or time; the change may
stand in the clause or sentence before. A *fact* (`facts.toml`) is some ideas that are all in one sentence.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources

from brimful.diagnose.claims.reading import Statement
from brimful.diagnose.claims.settings import never_fails, settings_in
from brimful.diagnose.claims.words import (
    bytes_each,
    clauses,
    denies,
    mentions,
    parameters,
    percents,
    products,
    says,
    sizes,
    times,
)

LESS, SAME, MORE = -1, 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One thing a text says; `denied`: it says that it is not so."""

    code: str
    quotes: tuple[str, ...]
    text: str  # the folded statement
    denied: bool = False
    direction: int = LESS
    share: tuple[float, float] | None = None  # of the memory or time, lowest and highest
    settings: dict[str, str] = field(default_factory=dict)  # advised up to here


# A change, and whether memory or time -> the claim. The first is what a word of "more" makes of it.
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


@dataclass(frozen=True, slots=True)
class Fact:
    """Ideas that must all be there ('a|b' is either), those that must not, and the one a "not" belongs to."""

    code: str
    every: str
    none: str = ""
    about: str = ""
    figure: bool = False  # a share in per cent has to be there too


@cache
def _all_facts() -> tuple[Fact, ...]:
    text = resources.files("brimful.diagnose.claims").joinpath("facts.toml").read_text(encoding="utf-8")
    return tuple(Fact(**row) for row in tomllib.loads(text)["fact"])


# What such a sentence says of memory or time is this, and no effect of a change it happens to name.
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
    """One entry for each distinct claim, in the order of the text, with every sentence that makes it."""
    advised: dict[str, str] = {}
    about: tuple[int, str] | None = None  # the change last spoken of, and in which paragraph
    claims: dict[tuple[str, bool], Claim] = {}
    for statement in found:
        text = statement.folded
        advised |= settings_in(statement.text)
        if text.rstrip().endswith("?"):
            continue
        same = about is not None and about[0] == statement.paragraph
        carried = about[1] if about and same and not mentions(text, *_OTHER_THINGS) else None
        facts = tuple(_facts(text))
        alone = {fact.code for fact in facts} & _ALONE
        effects = () if alone else _effects(text, carried)
        figures = () if "mfu_peak_is_a100" in alone else _figures(text)
        for claim in (*effects, *facts, *figures, *_outcomes(text)):
            made = replace(claim, quotes=(statement.text,), settings=dict(advised))
            _add(claims, made)
        if named := mentions(text, *_CHANGES):
            about = (statement.paragraph, named[0][1])
    return tuple(claims.values())


def _add(claims: dict[tuple[str, bool], Claim], made: Claim) -> None:
    """Said again it is one claim: the figure counts that is given, and every sentence is kept."""
    key = (made.code, made.denied if made.code in ("fits_card",) else False)
    if (before := claims.get(key)) is None:
        claims[key] = made
        return
    better = made if made.share and not before.share else before
    quotes = tuple(dict.fromkeys((*before.quotes, *made.quotes)))
    claims[key] = replace(better, quotes=quotes)


def _claim(code: str, text: str, **more: object) -> Claim:
    return Claim(code=code, quotes=(), text=text, **more)  # type: ignore[arg-type]


# -- effects -----------------------------------------------------------------------------------------------


def _effects(text: str, carried: str | None) -> Iterator[Claim]:
    named = [idea for _, idea in mentions(text, *_CHANGES)]
    change = carried if not named else None
    for clause in clauses(text):
        here = [idea for _, idea in mentions(clause, *_CHANGES)]
        change = here[0] if here else change or (named[0] if named else None)
        if change is None:
            continue
        if "batch" in here and "accumulation" in here:
            change = "batch"
        memory, speed = _memory_is_said(clause), says("speed", clause)
        for dimension, is_said in (("memory", memory), ("speed", speed)):
            code = _EFFECTS.get((change, dimension))
            direction = _direction(clause, dimension)
            if code and is_said and direction is not None:
                yield from _effect(code, change, clause, text, direction)


def _memory_is_said(clause: str) -> bool:
    told = says("less", clause) or says("more", clause) or says("same", clause)
    return says("memory", clause) or (told and (says("consumes", clause) or bool(sizes(clause))))


_FROM_TO = re.compile(
    r"(\d+(?:[.,]\d+)?)\s?(?:g[i]?[bo])?\s?(?:->|→|\bto\b|\ba\b|\bauf\b)\s?~?(\d+(?:[.,]\d+)?)\s?g[i]?[bo]"
)


def _direction(clause: str, dimension: str) -> int | None:
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
    # "takes" and "needs" say more only where no amount follows
    weak = MORE if says("consumes", clause) and not sizes(clause) else None
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
    if code == "smaller_batch" and _is_more_than_memory(clause, text, direction):
        return
    share = None if code == "accumulation_memory" else share
    yield _claim(code, text, denied=denied, direction=direction, share=share)


def _share(clause: str) -> tuple[float, float] | None:
    """In per cent, as a half, or as so many times."""
    if told := percents(clause):
        return told[0]
    if says("half", clause):
        return (0.5, 0.5)
    factor = times(clause)
    return (factor - 1, factor - 1) if factor and factor > 1 else None


def _is_more_than_memory(clause: str, text: str, direction: int) -> bool:
    """Of a batch: that memory and compute rise together, or the effective batch, are separate claims."""
    both = says("compute", clause) and says("more", clause)
    return says("effective", clause) or both or (direction == MORE and says("compute", text))


def _compiled(clause: str, text: str, direction: int) -> tuple[int, bool]:
    """What is said of compiled code, where the text may speak of turning it off."""
    if says("later", text):
        return direction, denies(clause)  # in stages: first without, then with
    off_here = settings_in(clause).get("compile") == "False"
    off_before = settings_in(text).get("compile") == "False" and not says("compile", clause)
    if off_here:
        return -direction, False
    if off_before and direction == LESS:
        return MORE, denies(clause)
    return direction, denies(clause)


# -- facts -------------------------------------------------------------------------------------------------


_SAID_APART = ("memory_is_work", "gpu_util_is_busy")


def _facts(text: str) -> Iterator[Claim]:
    done: set[str] = set()
    for fact in _all_facts():
        ideas = [any(says(one, text) for one in each.split("|")) for each in fact.every.split()]
        if not all(ideas) or any(says(idea, text) for idea in fact.none.split()):
            continue
        if fact.figure and not percents(text) and "nvidia-smi" not in text:
            continue
        if fact.code in done or (
            fact.code == "states_fill_memory" and "small_batch_memory_is_states" in done
        ):
            continue
        if fact.code == "workers_gpu_memory" and "pinned_host_memory" in done:
            continue
        done.add(fact.code)
        where = next(
            (
                clause
                for idea in fact.about.split("|")
                for clause in clauses(text)
                if idea and says(idea, clause)
            ),
            "",
        )
        denied = denies(where) or (fact.code in _SAID_APART and says("apart", text))
        denied |= fact.code == "states_fill_memory" and says("rest", text)  # the rest being the larger part
        if fact.code == "logits_are_largest" and not any(
            says("logits", part) and says("most", part) for part in re.split(r"[;:]\s", text)
        ):
            continue
        denied |= fact.code == "gpu_util_is_busy" and says("kernel", text)  # what it really counts
        denied |= fact.code in ("workers_gpu_memory", "dropout_memory") and says("same", text)
        yield _claim(fact.code, text, denied=denied, share=next(iter(percents(text)), None))
    falls = _memory_is_said(text) and says("less", text) and not says("compile", text)
    if (
        says("later", text)
        and falls
        and re.search(r"steps?\b|\biter|\bpas(?:os)?\b|\betapes\b|schritt", text)
    ):
        yield _claim("waiting_lowers_memory", text, denied=denies(text))


# -- figures that can be worked out ------------------------------------------------------------------------


_RATE = re.compile(r"\d\s?tflop|peaks? (?:at|bei|a) \d|(?:pic|pico|spitze) .{0,12}\d{2,4}\b(?! ?[gm]i?[bo])")
_ABOVE = re.compile(r"\bover\b|above|exceed|depass|super|uber|mehr als")


def _figures(text: str) -> Iterator[Claim]:
    whole, text = text, ", ".join(part for part in clauses(text) if not says("fits", part))
    told = sizes(text)
    if told and (written := [each for each in products(text) if len(each) >= 3]):
        code = "kv_cache_bytes" if says("kv", text) else "logits_bytes"
        vocab = any(factor >= 30_000 for each in written for factor in each)
        yield _claim(code if vocab or code == "kv_cache_bytes" else "states_bytes", text)
    elif told and says("kv", text):
        yield _claim("kv_cache_bytes", whole)
    elif told and parameters(text) and (bytes_each(text) or "=" in text) and not says("most", text):
        yield _claim("states_bytes" if says("optimizer", text) else "weights_bytes", text)
    elif len({binary for _, binary in told}) == 2 and not says("asked", text):
        yield _claim("gpu_memory_unit", whole)
    text = whole
    if says("card", text) and _RATE.search(text):
        yield _claim("peak_tflops", text)
    above = 0.99 if says("more", text) or _ABOVE.search(text) else 1.0
    if says("mfu", text) and any(low > above for low, _ in percents(text)):
        yield _claim("mfu_above_peak", text, denied=denies(text))


# -- does it fit, and how much does it need ----------------------------------------------------------------


_ARROW = re.compile(r"(?:->|→|\b(?:to|a|auf)\b)[ ~a-z]{0,12}\d")


def _outcomes(text: str) -> Iterator[Claim]:
    told = sizes(text)
    clause = next((each for each in clauses(text) if says("fits", each)), "")
    from_to = len(told) == 2 and told[0][1] == told[1][1] and _ARROW.search(text)
    if says("asked", text) and says("free", text) and len(told) >= 2:
        yield _claim("does_not_fit_card", text)
    elif from_to and says("memory", text):
        yield _claim("peak_before_after", text)
    elif told and says("below", text) and not clause and not parameters(text) and not percents(text):
        yield _claim("peak_below_limit", text)
    elif clause and (told or says("card", text)) and not says("empty_cache", text):
        denied = denies(clause)
        yield _claim("does_not_fit_card" if denied else "fits_card", text, denied=denied)
    yield from _same_batch(text)
    if never_fails(text):
        yield _claim("never_fails", text)


def _same_batch(text: str) -> Iterator[Claim]:
    if says("effective", text) and (says("keep", text) or says("back", text)) and says("batch", text):
        yield _claim(
            "effective_batch_restored" if says("back", text) else "same_batch", text, denied=denies(text)
        )
        return
    pairs = [each for each in products(text) if len(each) == 2]
    of_batch = len(pairs) == 2 or (says("batch", text) and says("accumulation", text))
    if pairs and of_batch and says("keep", text):
        yield _claim("same_batch", text)
