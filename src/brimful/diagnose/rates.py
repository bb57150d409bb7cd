"""What a log line's speed means: which peak its MFU was divided by, and the right figure for the card."""

from __future__ import annotations

from collections.abc import Iterator

from brimful.configs.reading import Reading
from brimful.fit.count import A100_FLOPS_PER_S, model_flops_per_token
from brimful.fit.roofline import achievable_flops_per_s, peak_format
from brimful.language import Number, Percent, Seconds, Sentence, Size, say
from brimful.meter.logs import LogLine
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu, find_gpu

# Nine in ten of 140 published MFUs of language models, by their cards' own peaks, are within this.
# Source: the measured runs that `brimful runs score` reads (docs/explanation/accuracy.md).
USUAL_MFU = (0.28, 0.59)


def own_mfu(flops_per_s: float, gpu: Gpu, number: str = "bf16") -> tuple[float, str]:
    """The share of this card's own peak, and the number format of that peak."""
    own = next((each for each in (number, "fp16") if each in gpu.dense_flops_per_s), "fp32")
    return flops_per_s / gpu.dense_flops_per_s[own], own


def log_says(
    line: LogLine, reading: Reading | None, gpu: Gpu | None, estimate: Estimate | None
) -> Iterator[Sentence]:
    if line.framework == "tqdm":
        yield from _bar(line, reading, estimate)
        return
    yield from _pace(line)
    yield from _peak(line)
    flops = _flops_per_s(line, reading)
    if gpu is not None and flops is not None:
        if line.samples_per_s is not None and reading is not None:
            yield say("diagnose.at_most")
        number = peak_format(reading.training, gpu) if reading else "bf16"
        by_line = line.divided_by_flops_per_s and not _counted(line, reading)
        yield from _own(flops, gpu, number, line if by_line else None)
        if estimate is not None:
            yield from _beside(flops, estimate)
    if line.reserved_bytes is not None:
        yield say("diagnose.memory", size=Size(line.reserved_bytes))
    elif line.mfu is not None:
        yield say("diagnose.memory_is_not_compute.log")


def log_needs(
    line: LogLine, reading: Reading | None, gpu: Gpu | None, estimate: Estimate | None
) -> Iterator[Sentence]:
    """What is missing to say more."""
    if line.framework == "tqdm":
        if estimate is None:
            yield say("diagnose.needs_config.time")
        return
    paced = line.tokens_per_s is not None or line.step_s is not None
    if gpu is None and (line.mfu is not None or paced):
        yield say("diagnose.needs_gpu.mfu")
    if _flops_per_s(line, reading) is None:
        if reading is None:
            yield say("diagnose.needs_config.work")
        elif not paced:
            yield say("diagnose.needs_time")


def _bar(line: LogLine, reading: Reading | None, estimate: Estimate | None) -> Iterator[Sentence]:
    """A progress bar counts what its loop counts: no MFU follows from it, only a value to compare it with."""
    assert line.step_s is not None
    yield say("diagnose.iteration", seconds=Number(line.step_s, 3))
    yield say("diagnose.bar")
    if reading is not None and estimate is not None:
        step_s = estimate.speed.step_s.likely
        yield say(
            "diagnose.beside_bar",
            step=Seconds(step_s),
            micro=Seconds(step_s / reading.training.accumulation),
            n=reading.training.accumulation,
        )


def _flops_per_s(line: LogLine, reading: Reading | None) -> float | None:
    """FLOPs per second on one GPU: counted from the config if the line has a rate, else as the loop says."""
    if _counted(line, reading) and reading is not None:
        training = reading.training
        each = model_flops_per_token(reading.model, sequence_tokens=training.sequence_tokens)
        tokens = line.tokens_per_s or (line.samples_per_s or 0) * training.sequence_tokens
        if line.framework == "nanoGPT" and line.step_s:
            tokens = training.step_tokens / line.step_s
        return tokens * each / (1 if line.framework == "torchtitan" else training.gpus)
    if line.flops_per_s is not None:
        return line.flops_per_s
    if line.mfu is not None and line.divided_by_flops_per_s is not None:
        return line.mfu * line.divided_by_flops_per_s
    return None


def _counted(line: LogLine, reading: Reading | None) -> bool:
    """Whether the config turns the line's own rate into FLOPs; nanoGPT's MFU already is that count."""
    if reading is None or reading.training.tuning != "full":
        return False
    if line.framework == "nanoGPT":
        return line.mfu is None and line.step_s is not None
    return line.tokens_per_s is not None or line.samples_per_s is not None


def _pace(line: LogLine) -> Iterator[Sentence]:
    if line.step_s is not None:
        seconds = Number(line.step_s, 3)
        if line.step is None:
            yield say("diagnose.step.any", seconds=seconds)
        else:
            yield say("diagnose.step.numbered", step=line.step, seconds=seconds)
    if line.tokens_per_s is not None:
        yield say("diagnose.tokens.rate", tokens=Number(line.tokens_per_s))
    if line.framework == "Hugging Face Trainer":
        yield say("diagnose.no_mfu")


def _peak(line: LogLine) -> Iterator[Sentence]:
    if line.mfu is None:
        if line.divides:
            yield say("diagnose.mfu_unknown")
        return
    peak = line.divided_by_flops_per_s
    divided = {"printed": Percent(line.mfu, 1), "tflops": Number((peak or 0) / 1e12)}
    if line.divides == "always" and peak is not None:
        card = "A100" if peak == A100_FLOPS_PER_S else "H100"
        yield say("diagnose.divided_by.framework", card=card, framework=line.framework, **divided)
    elif line.divides == "line" and peak is not None:
        if near := _card_with_peak(peak, line.mfu):
            yield say("diagnose.divided_by.card", card=near, **divided)
        else:
            yield say("diagnose.divided_by.about", **divided)
    else:
        yield say("diagnose.divided_by.table", framework=line.framework)


def _card_with_peak(peak: float, mfu: float) -> str:
    """The well-known card whose bf16 peak it is, within the printed precision."""
    slack = max(0.004, 0.00006 / mfu)
    for name in ("a100-sxm-80gb", "h100-sxm-80gb", "b200", "mi300x"):
        card = find_gpu(name)
        if abs(peak / card.dense_flops_per_s["bf16"] - 1) <= slack:
            return card.title
    return ""


def _own(flops: float, gpu: Gpu, number: str, line: LogLine | None) -> Iterator[Sentence]:
    """The share of this card's own peak, and how good that is."""
    mfu, own = own_mfu(flops, gpu, number)
    values: dict[str, object] = {"gpu": gpu.title, "format": own}
    values |= {"tflops": Number(flops / 1e12, 1), "peak": Number(gpu.dense_flops_per_s[own] / 1e12, 1)}
    if mfu > 1:
        yield say("diagnose.impossible", mfu=Percent(mfu), **values)
        if line is not None and line.divides == "always":
            yield say("diagnose.impossible_why", framework=line.framework)
        return
    yield say("diagnose.own_mfu", mfu=Percent(mfu, 1), **values)
    low, high = USUAL_MFU
    span = {"low": Percent(low), "high": Percent(high)}
    if flops > achievable_flops_per_s(gpu, own):
        yield say("diagnose.above_matmul")
    elif mfu < low:
        yield say("diagnose.low", **span)
    else:
        yield say("diagnose.high", **span) if mfu > high else say("diagnose.usual", **span)


def _beside(flops: float, estimate: Estimate) -> Iterator[Sentence]:
    """The same share beside the prediction for this config."""
    mfu, predicted = flops / estimate.speed.peak_flops_per_s, estimate.speed.mfu
    span = {end: Percent(frac) for end, frac in predicted.as_dict().items()}
    if mfu < predicted.low:
        yield say("diagnose.below_predicted", **span)
    elif predicted.high < mfu <= 1:
        yield say("diagnose.above_predicted", **span)
    elif mfu <= 1:
        yield say("diagnose.as_predicted", **span)
