"""What a job with a training config needs on each GPU type: computed by the client, sent with the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from brimful.cli.options import own_correction
from brimful.configs.read import read
from brimful.configs.reading import Reading, change_text
from brimful.errors import BadInput, BrimfulError, NotFound, Refused
from brimful.fit.fit import fit_reading, predictor
from brimful.fleet.elastic.written import range_from
from brimful.language import Number, Sentence, Several, Size, say
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import find_gpu, is_in_catalog


class Estimates(NamedTuple):
    predicted: dict[str, dict[str, Any]]  # GPU type -> peak_bytes, step_s, mfu
    notes: list[Sentence]


def estimates_for(
    config: str, types: list[str], *, gpus: int | str, other_bytes: int | None = None
) -> Estimates:
    """An estimate for each type in the catalog that can hold the job; an error if there is none.

    For a range of GPUs: the smallest size, with the accumulation steps that give the effective batch of the
    largest, and the speed-up of the other sizes.
    """
    least, most = (gpus, gpus) if isinstance(gpus, int) else range_from(gpus)
    widest = read(config, overrides=[f"gpus={most}"] if most > 1 else [])
    reading = _on_fewer(widest, least)
    larger = [n for n in range(least + 1, most + 1) if most % n == 0]
    correction = own_correction()
    predicted: dict[str, dict[str, Any]] = {}
    notes: list[Sentence] = []
    tight: list[tuple[int, Sentence]] = []
    for name in types:
        try:
            card = find_gpu(name)
        except NotFound:
            if is_in_catalog(name):
                continue  # 'a100': the cards it may mean are in the list too
            notes.append(say("fleet.no_such_card", gpu=name))
            continue
        answer = fit_reading(reading, card, other_bytes, correction=correction)
        likely = round(answer.memory.device_bytes.likely)
        if answer.fits:
            # Only the job's own part: a desktop's memory counts once, however many jobs share the GPU.
            own = likely - answer.others.bytes
            step_s = answer.speed.step_s.likely
            predicted[name] = {"peak_bytes": own, "step_s": step_s, "mfu": answer.speed.mfu.likely}
            if larger:
                ask = predictor(reading, card, other_bytes, correction)
                steps = [(n, ask(_on_fewer(widest, n).training).speed.step_s.likely) for n in larger]
                predicted[name]["scaling"] = _non_decreasing({n: step_s / each for n, each in steps})
            if answer.verdict == "at_risk":
                high, usable = Size(answer.memory.device_bytes.high), Size(answer.usable_bytes)
                notes.append(say("fleet.at_risk_on", gpu=name, high=high, usable=usable))
            continue
        tight.append((answer.short_bytes, _too_small(name, answer)))
    short = [said for _, said in sorted(tight, key=lambda each: (each[0], each[1].values["gpu"]))]
    if not predicted:
        raise _refusal(config, short, notes)
    return Estimates(predicted, notes + [say("fleet.left_out", gpu=said) for said in short])


def _on_fewer(widest: Reading, gpus: int) -> Reading:
    """The same training with the same effective batch on fewer GPUs."""
    training = widest.training
    if gpus == training.gpus:
        return widest
    split = training.tensor * training.pipeline * training.context
    if split > gpus:
        raise BadInput(say("fleet.range_below_split", split=split, least=gpus))
    accumulation = training.accumulation * training.gpus // gpus
    shards = min(training.shards, gpus // (training.tensor * training.pipeline))
    return replace(widest, training=replace(training, gpus=gpus, accumulation=accumulation, shards=shards))


def _non_decreasing(scaling: dict[int, float]) -> dict[int, float]:
    """A size that is slower than a smaller one counts as fast as that one."""
    best = 1.0
    return {gpus: (best := max(best, factor)) for gpus, factor in scaling.items()}


def _too_small(name: str, answer: Estimate) -> Sentence:
    needs: object = Size(round(answer.memory.device_bytes.likely))
    if answer.others.basis == "assumed":
        needs = say("fleet.with_desktop", needs=needs, desktop=Size(answer.others.bytes))
    usable, short = Size(answer.usable_bytes), Size(answer.short_bytes)
    first = next((fix for fix in answer.fixes if fix.fits), None)
    if first is None:
        return say("fleet.too_small", gpu=name, needs=needs, usable=usable, short=short)
    change, slower = change_text(first.change), Number(first.step_time_factor, 2)
    return say(
        "fleet.too_small.fix", gpu=name, needs=needs, usable=usable, short=short, change=change, factor=slower
    )


def _refusal(config: str, short: list[Sentence], notes: list[Sentence]) -> BrimfulError:
    problem = say("gpu.fits_nowhere", config=config, why=Several(tuple(short), "; "))
    if not short:
        why = Several(tuple(notes or [say("fleet.no_gpus")]), "; ")
        problem = say("gpu.nothing_predicted", config=config, why=why)
    return Refused(problem, code="will_not_fit")
