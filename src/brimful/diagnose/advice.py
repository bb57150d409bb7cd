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
                "diagnose.needs_usable",
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
                "diagnose.largest_part_all",
                name=largest.name,
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
                say("diagnose.largest_batch_fits_configured", n=estimate.largest_batch),
            )
        )
    title = say("diagnose.on", model=reading.model.name, gpu=about.gpu.title)
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
        "fits": say("diagnose.fits"),
        "at_risk": say("diagnose.risk"),
        "likely_does_not_fit": say("diagnose.likely_not_fit"),
        "does_not_fit": say("diagnose.not_fit"),
    }[verdict]


def assumed_notes(others: Others, *, of_many: bool = False) -> tuple[Sentence, ...]:
    """What is assumed of other programs on the card, or on some `of_many`; nothing where nothing is."""
    if others.basis != "assumed":
        return ()
    said = say(
        "diagnose.desktop_other_programs_assumed_median",
        size=Size(others.bytes),
        n=others.readings,
    )
    return (say("diagnose.note_geforce_cards", text=said) if of_many else say("diagnose.note", text=said),)


def fix_says(fix: Fix) -> Sentence:
    """'batch_size 16 -> 8: saves 4.53 GiB, step time x1.01'."""
    change = ", ".join(
        f"{key} {then}" if now is None else f"{key} {now} -> {then}"
        for key, (now, then) in fix.change.items()
    )
    values = {"change": change, "time": Factor(fix.step_time_factor)}
    if fix.saves_bytes < 0:
        return say("diagnose.takes_more_step_time", size=Size(-fix.saves_bytes), **values)
    outcome = verdict_words(fix.verdict) if fix.fits else say("diagnose.still_not_fit")
    return say(
        "diagnose.saves_step_time",
        verdict=outcome,
        size=Size(fix.saves_bytes),
        **values,
    )
