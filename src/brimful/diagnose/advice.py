"""What that run's config needs on that card, and what to change: Fit's answer, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brimful.configs.reading import change_text
from brimful.language import Factor, Percent, Sentence, Size, say
from brimful.specs.desktop import Others
from brimful.specs.estimate import Fix, Verdict

if TYPE_CHECKING:
    from brimful.diagnose.explain import About, Explanation

_SHOWN = 3


def advised(about: About) -> tuple[Explanation, ...]:
    """Empty unless both config and card are known."""
    from brimful.diagnose.explain import (
        Explanation,  # its patterns take time to compile, and `fit` needs none
    )

    estimate, reading = about.estimate, about.reading
    if estimate is None or reading is None or about.gpu is None:
        return ()
    device = estimate.memory.device_bytes
    span = {end: Size(nbytes) for end, nbytes in device.as_dict().items()}
    largest = max(estimate.memory.items, key=lambda item: item.bytes)
    frac = Percent(largest.bytes / device.likely)
    says = [
        say(
            "diagnose.needs",
            verdict=verdict_words(estimate.verdict),
            usable=Size(estimate.usable_bytes),
            **span,
        ),
        say("diagnose.largest_part", name=largest.name, size=Size(largest.bytes), frac=frac),
        *(say("diagnose.fix", **_effect(fix)) for fix in estimate.fixes[:_SHOWN]),
    ]
    if not estimate.fixes:
        says += [say("diagnose.faster", **_effect(fix)) for fix in estimate.faster[:_SHOWN]]
    if estimate.largest_batch is not None:
        code = f"diagnose.largest_batch{estimate.batch_risk}"
        says.append(Sentence(code, {"n": estimate.largest_batch, "sure": estimate.sure_batch}))
    title = say("diagnose.title_config", model=reading.model.name, gpu=about.gpu.title)
    facts = {
        "fits": estimate.fits,
        "verdict": estimate.verdict,
        "device_bytes": device.as_dict(),
        "other_programs": estimate.others.as_dict(),
    }
    says += assumed_notes(estimate.others)
    return (Explanation(kind="config", title=title, facts=facts, says=tuple(says)),)


def verdict_words(verdict: Verdict) -> Sentence:
    return Sentence(f"diagnose.verdict_{verdict}", {})


def assumed_notes(others: Others, *, of_many: bool = False) -> tuple[Sentence, ...]:
    """What is assumed about other programs on the card, or on some `of_many`; empty if nothing is."""
    if others.basis != "assumed":
        return ()
    said = say("diagnose.desktop_assumed", size=Size(others.bytes), n=others.readings)
    if of_many:
        return (say("diagnose.other_programs.geforce", text=said),)
    return (say("diagnose.other_programs.here", text=said),)


def _effect(fix: Fix) -> dict[str, object]:
    """'batch_size 16 -> 8', 'fits, saves 4.53 GiB, step time x1.01'."""
    time = Factor(fix.step_time_factor)
    if fix.saves_bytes < 0:
        effect = say("diagnose.effect_takes", size=Size(-fix.saves_bytes), time=time)
    else:
        outcome = verdict_words(fix.verdict) if fix.fits else say("diagnose.still_does_not_fit")
        effect = say("diagnose.effect_saves", verdict=outcome, size=Size(fix.saves_bytes), time=time)
    return {"change": change_text(fix.change), "effect": effect}
