"""What a job with a training config needs on each GPU type: found where the config is, sent with the job."""

from __future__ import annotations

from typing import Any, NamedTuple

from brimful.errors import BrimfulError, NotFound, Refused
from brimful.units import show_bytes


class Estimates(NamedTuple):
    predicted: dict[str, dict[str, Any]]  # GPU type -> peak_bytes, step_s
    notes: list[str]


def estimates_for(config: str, types: list[str], *, gpus: int) -> Estimates:
    """An estimate for each type that the catalog knows and that holds the job; refused where none does."""
    from brimful.configs.read import read
    from brimful.fit.correction import calibration_path, load_correction
    from brimful.fit.fit import fit_reading
    from brimful.specs.gpu import find_gpu

    reading = read(config, overrides=[f"gpus={gpus}"] if gpus > 1 else [])
    correction = load_correction(calibration_path())
    predicted: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    tight: list[tuple[int, str]] = []
    for name in types:
        try:
            card = find_gpu(name)
        except NotFound:
            notes.append(f"{name} names no card of the catalog, so nothing is predicted there")
            continue
        answer = fit_reading(reading, card, 0, correction)
        likely = round(answer.memory.device_bytes.likely)
        if answer.fits:
            predicted[name] = {"peak_bytes": likely, "step_s": answer.speed.step_s.likely}
            continue
        first = next((fix for fix in answer.fixes if fix.fits), None)
        how = ""
        if first is not None:
            change = ", ".join(f"{key} {now} -> {then}" for key, (now, then) in first.change.items())
            how = f"; {change} would make it fit, {first.step_time_factor:.2f} times the step time"
        need = f"{name}: needs {show_bytes(likely)}, has {show_bytes(answer.usable_bytes)} usable"
        tight.append((answer.short_bytes, f"{need} ({show_bytes(answer.short_bytes)} short){how}"))
    if not predicted:
        raise _refusal(config, tight, notes)
    notes += [f"left out {words}" for _, words in sorted(tight)]
    return Estimates(predicted, notes)


def _refusal(config: str, tight: list[tuple[int, str]], notes: list[str]) -> BrimfulError:
    if not tight:
        return Refused(
            f"nothing can be predicted for {config}: {'; '.join(notes) or 'the fleet has no GPUs'}",
            hint=f"`brimful fit {config} --gpu rtx-4070` predicts without a fleet; for slots that are a "
            "card the server is started as `brimful up --slots 2 --gpu rtx-4070`; or submit without fit",
            code="will_not_fit",
        )
    said = "; ".join(words for _, words in sorted(tight))
    return Refused(
        f"{config} fits no GPU it may run on: {said}",
        hint=f"`brimful fit {config} --gpu …` shows all fixes; --patch writes one",
        code="will_not_fit",
    )
