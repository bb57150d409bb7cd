"""What a job with a training config needs on each GPU type: found where the config is, sent with the job."""

from __future__ import annotations

from typing import Any, NamedTuple

from brimful.errors import BrimfulError, NotFound, Refused
from brimful.language import say
from brimful.units import show_bytes


class Estimates(NamedTuple):
    predicted: dict[str, dict[str, Any]]  # GPU type -> peak_bytes, step_s
    notes: list[str]


def estimates_for(config: str, types: list[str], *, gpus: int, other_bytes: int | None = None) -> Estimates:
    """An estimate for each type that the catalog knows and that holds the job; refused where none does."""
    from brimful.configs.read import read
    from brimful.configs.reading import change_text
    from brimful.fit.correction import load_correction
    from brimful.fit.fit import fit_reading
    from brimful.specs.gpu import find_gpu

    reading = read(config, overrides=[f"gpus={gpus}"] if gpus > 1 else [])
    correction = load_correction()
    predicted: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    tight: list[tuple[int, str]] = []
    for name in types:
        try:
            card = find_gpu(name)
        except NotFound:
            notes.append(f"{name} names no card of the catalog, so nothing is predicted there")
            continue
        answer = fit_reading(reading, card, other_bytes, correction)
        likely = round(answer.memory.device_bytes.likely)
        if answer.fits:
            # The job's own share: a desktop's counts once, however many jobs share the GPU.
            own = likely - answer.others.bytes
            predicted[name] = {"peak_bytes": own, "step_s": answer.speed.step_s.likely}
            if answer.verdict == "at_risk":
                high, usable = show_bytes(answer.memory.device_bytes.high), show_bytes(answer.usable_bytes)
                notes.append(f"at risk on {name}: it may need up to {high}, and {usable} are usable")
            continue
        first = next((fix for fix in answer.fixes if fix.fits), None)
        how = ""
        if first is not None:
            change, times = change_text(first.change), first.step_time_factor
            how = f"; {change} would make it fit, {times:.2f} times the step time"
        desktop = ""
        if answer.others.basis == "assumed":
            desktop = f", {show_bytes(answer.others.bytes)} of it assumed for a desktop (--headless if none)"
        need = f"{name}: needs {show_bytes(likely)}{desktop}, has {show_bytes(answer.usable_bytes)} usable"
        tight.append((answer.short_bytes, f"{need} ({show_bytes(answer.short_bytes)} short){how}"))
    if not predicted:
        raise _refusal(config, tight, notes)
    notes += [f"left out {words}" for _, words in sorted(tight)]
    return Estimates(predicted, notes)


def _refusal(config: str, tight: list[tuple[int, str]], notes: list[str]) -> BrimfulError:
    if not tight:
        return Refused(
            say("gpu.nothing_predicted", config=config, why="; ".join(notes) or "the fleet has no GPUs"),
            code="will_not_fit",
        )
    said = "; ".join(words for _, words in sorted(tight))
    return Refused(say("gpu.fits_nowhere", config=config, why=said), code="will_not_fit")
