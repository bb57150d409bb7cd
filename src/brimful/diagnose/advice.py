"""What the config of that run needs on that card, and what to change: Fit's answer, in sentences."""

from __future__ import annotations

from brimful.diagnose.explain import About, Explanation, Says
from brimful.language import Factor, Percent, Sentence, Size, say
from brimful.specs.desktop import Others
from brimful.specs.estimate import Fix, Verdict

_SHOWN = 3


def advised(about: About) -> tuple[Explanation, ...]:
    """Empty unless both config and card are known."""
    estimate, reading = about.estimate, about.reading
    if estimate is None or reading is None or about.gpu is None:
        return ()
    device = estimate.memory.device_bytes
    says: list[Says] = [
        (
            "needs",
            say(
                "{verdict}: it needs {likely} ({low} to {high}) of {usable} usable.",
                verdict=verdict_words(estimate.verdict),
                likely=Size(device.likely),
                low=Size(device.low),
                high=Size(device.high),
                usable=Size(estimate.usable_bytes),
            ),
        )
    ]
    largest = max(estimate.memory.items, key=lambda item: item.bytes)
    says.append(
        (
            "largest_part",
            say(
                "Its largest part is {name}: {size}, {frac} of all.",
                name=part(largest.name),
                size=Size(largest.bytes),
                frac=Percent(largest.bytes / device.likely),
            ),
        )
    )
    code = "fix" if estimate.fixes else "faster"
    says += [(code, fix_says(fix)) for fix in (estimate.fixes or estimate.faster)[:_SHOWN]]
    if estimate.largest_batch is not None:
        says.append(
            (
                "largest_batch",
                say("The largest batch that fits as configured is {n}.", n=estimate.largest_batch),
            )
        )
    title = say("{model} on {gpu}", model=reading.model.name, gpu=about.gpu.title)
    facts = {
        "fits": estimate.fits,
        "verdict": estimate.verdict,
        "device_bytes": device.as_dict(),
        "other_programs": estimate.others.as_dict(),
    }
    says += [("other_programs", sentence) for sentence in assumed_notes(estimate.others)]
    return (Explanation(kind="config", title=title, facts=facts, says=tuple(says)),)


def verdict_words(verdict: Verdict) -> Sentence:
    """The four verdicts as words."""
    return {
        "fits": say("fits"),
        "at_risk": say("at risk"),
        "likely_does_not_fit": say("likely does not fit"),
        "does_not_fit": say("does not fit"),
    }[verdict]


def assumed_notes(others: Others, *, of_many: bool = False) -> tuple[Sentence, ...]:
    """What is assumed of other programs on the card, or on some `of_many`; nothing where nothing is."""
    if others.basis != "assumed":
        return ()
    said = say(
        "desktop and other programs: {size} assumed, median of {n} published readings; --headless if none, "
        "--other-mib if you know",
        size=Size(others.bytes),
        n=others.readings,
    )
    return (say("note: on GeForce cards: {text}", text=said) if of_many else say("note: {text}", text=said),)


_PARTS = {
    "weights": say("weights"),
    "gradients": say("gradients"),
    "optimizer state": say("optimizer state"),
    "master weights": say("master weights"),
    "weight casts": say("weight casts"),
    "workspaces": say("workspaces"),
    "activations: norms": say("activations: norms"),
    "activations: attention": say("activations: attention"),
    "activations: MLP": say("activations: MLP"),
    "activations: experts": say("activations: experts"),
    "activations: ends": say("activations: ends"),
    "logits and loss": say("logits and loss"),
    "allocator cache": say("allocator cache"),
    "CUDA context": say("CUDA context"),
    "other programs": say("other programs"),
    "temporaries": say("temporaries"),
    "adapter": say("adapter"),
    "DDP buckets": say("DDP buckets"),
    "gathered weights": say("gathered weights"),
    "weights, whole": say("weights, whole"),
    "activations: kept": say("activations: kept"),
    "activations: last step": say("activations: last step"),
    "activations: layer inputs": say("activations: layer inputs"),
    "activations: dropout masks": say("activations: dropout masks"),
    "activations: adapter": say("activations: adapter"),
    "your calibration": say("your calibration"),
    "KV cache": say("KV cache"),
    "activations": say("activations"),
}


def part(name: str) -> Sentence | str:
    """The name of a part of the memory; one nobody has translated yet stays as it is."""
    return _PARTS.get(name, name)


def fix_says(fix: Fix) -> Sentence:
    """'batch_size 16 -> 8: saves 4.53 GiB, step time x1.01'."""
    change = ", ".join(
        f"{key} {then}" if now is None else f"{key} {now} -> {then}"
        for key, (now, then) in fix.change.items()
    )
    values = {"change": change, "time": Factor(fix.step_time_factor)}
    if fix.saves_bytes < 0:
        return say("{change}: takes {size} more, step time {time}", size=Size(-fix.saves_bytes), **values)
    outcome = verdict_words(fix.verdict) if fix.fits else say("still does not fit")
    return say(
        "{change}: {verdict}, saves {size}, step time {time}",
        verdict=outcome,
        size=Size(fix.saves_bytes),
        **values,
    )
