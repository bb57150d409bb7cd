"""What a log line's speed is worth: which peak its MFU was divided by, and the right figure for the card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from brimful.configs.reading import Reading
from brimful.fit.count import model_flops_per_token
from brimful.fit.roofline import achievable_flops_per_s, peak_format
from brimful.language import Number, Percent, Seconds, Sentence, Size, say
from brimful.meter.logs import A100_FLOPS_PER_S, LogLine
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu, all_gpus

Says = tuple[str, Sentence]

# Nine in ten of 140 published MFUs of language models, by their cards' own peaks, lie within.
# Source: the measured runs that `brimful runs score` reads (docs/explanation/accuracy.md).
USUAL_MFU = (0.28, 0.59)


@dataclass(frozen=True, slots=True)
class Rebased:
    """An MFU as printed, and as a share of the card's own peak."""

    flops_per_s: float
    mfu: float
    peak_flops_per_s: float
    number_format: str
    judged: str  # impossible, above_matmul, high, usual, low


def rebase(
    printed: float, gpu: Gpu, *, divided_by_flops_per_s: float = A100_FLOPS_PER_S, number: str = "bf16"
) -> Rebased:
    """A printed MFU, times the peak it was divided by, over the peak of this card in this number format."""
    own = number if number in gpu.dense_flops_per_s else "fp16"
    own = own if own in gpu.dense_flops_per_s else "fp32"
    flops = printed * divided_by_flops_per_s
    peak = gpu.dense_flops_per_s[own]
    return Rebased(flops, flops / peak, peak, own, _judge(flops, gpu, own))


def _judge(flops: float, gpu: Gpu, number: str) -> str:
    mfu = flops / gpu.dense_flops_per_s[number]
    if mfu > 1:
        return "impossible"
    if flops > achievable_flops_per_s(gpu, number):
        return "above_matmul"
    low, high = USUAL_MFU
    return "high" if mfu > high else "low" if mfu < low else "usual"


def log_says(
    line: LogLine, reading: Reading | None, gpu: Gpu | None, estimate: Estimate | None
) -> tuple[tuple[Says, ...], tuple[Says, ...]]:
    """Sentences, and what is missing to say more."""
    if line.framework == "tqdm":
        return tuple(_bar(line, reading, estimate)), tuple(_bar_missing(estimate))
    says = [*_pace(line), *_peak(line)]
    flops = _flops_per_s(line, reading)
    number = peak_format(reading.training, gpu) if reading and gpu else "bf16"
    if gpu is not None and flops is not None:
        if line.samples_per_s is not None and reading is not None:
            says.append(("at_most", say("diagnose.if_every_sample_long_config")))
        by_line = line.divided_by_flops_per_s and not _counted(line, reading)
        says += _own(flops, gpu, number, line if by_line else None)
    if gpu is not None and flops is not None and estimate is not None:
        says += _beside(flops, estimate)
    says += _memory(line)
    return tuple(says), tuple(_missing(line, reading, gpu, flops))


def _bar(line: LogLine, reading: Reading | None, estimate: Estimate | None) -> Iterator[Says]:
    """A bar counts what its loop counts: no MFU follows from it, only what to hold it against."""
    assert line.step_s is not None
    yield "iteration", say("diagnose.iteration_takes_s", seconds=Number(line.step_s, 3))
    yield (
        "bar",
        say("diagnose.bar_counts_iterations_loop_may"),
    )
    if reading is not None and estimate is not None:
        step_s = estimate.speed.step_s.likely
        yield (
            "beside_bar",
            say(
                "diagnose.config_brimful_predicts_step_each",
                step=Seconds(step_s),
                micro=Seconds(step_s / reading.training.accumulation),
                n=reading.training.accumulation,
            ),
        )


def _bar_missing(estimate: Estimate | None) -> Iterator[Says]:
    if estimate is None:
        yield (
            "needs_config",
            say("diagnose.how_long_should_take_give"),
        )


def _flops_per_s(line: LogLine, reading: Reading | None) -> float | None:
    """FLOPs a second on one GPU: counted from the config where the line has a rate, else as the loop says."""
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


def _pace(line: LogLine) -> Iterator[Says]:
    if line.step_s is not None:
        step = say("diagnose.step_took_s", step=line.step or 0, seconds=Number(line.step_s, 3))
        plain = say("diagnose.step_takes_s", seconds=Number(line.step_s, 3))
        yield "step", plain if line.step is None else step
    if line.tokens_per_s is not None:
        yield "tokens", say("diagnose.tokens_second", tokens=Number(line.tokens_per_s))
    if line.framework == "Hugging Face Trainer":
        yield (
            "no_mfu",
            say("diagnose.trainer_prints_no_mfu_knows"),
        )


def _peak(line: LogLine) -> Iterator[Says]:
    if line.mfu is None:
        if line.divides:
            yield "mfu_unknown", say("diagnose.n_100_stands_not_known_yet")
        return
    printed = Percent(line.mfu, 1)
    peak = line.divided_by_flops_per_s
    if line.divides == "always" and peak is not None:
        card = "A100" if peak == A100_FLOPS_PER_S else "H100"
        yield (
            "divided_by",
            say(
                "diagnose.printed_mfu_share_s_tflops",
                printed=printed,
                card=card,
                tflops=Number(peak / 1e12),
                framework=line.framework,
            ),
        )
    elif line.divides == "line" and peak is not None:
        near = _card_with_peak(peak, line.mfu)
        yield (
            "divided_by",
            say(
                "diagnose.divided_tflops_lines_own_numbers",
                printed=printed,
                tflops=Number(peak / 1e12),
                card=near,
            )
            if near
            else say(
                "diagnose.divided_about_tflops_lines_own",
                printed=printed,
                tflops=Number(peak / 1e12),
            ),
        )
    else:
        yield (
            "divided_by",
            say(
                "diagnose.looks_cards_peak_up_table",
                framework=line.framework,
            ),
        )


def _card_with_peak(peak: float, mfu: float) -> str:
    """The well-known card whose bf16 peak it is, within what the printed digits allow."""
    slack = max(0.004, 0.00006 / mfu)
    for name in ("a100-sxm-80gb", "h100-sxm-80gb", "b200", "mi300x"):
        card = next((card for card in all_gpus() if card.name == name), None)
        own = card.dense_flops_per_s.get("bf16") if card else None
        if card is not None and own and abs(peak / own - 1) <= slack:
            return card.title
    return ""


def _own(flops: float, gpu: Gpu, number: str, line: LogLine | None) -> Iterator[Says]:
    """The share of this card's own peak, and what to think of it."""
    r = rebase(flops, gpu, divided_by_flops_per_s=1.0, number=number)
    if r.judged == "impossible":
        yield (
            "impossible",
            say(
                "diagnose.would_tflops_dense_tflops_physically",
                gpu=gpu.title,
                tflops=Number(r.flops_per_s / 1e12, 1),
                mfu=Percent(r.mfu),
                peak=Number(r.peak_flops_per_s / 1e12, 1),
                format=r.number_format,
            ),
        )
        if line is not None and line.divides == "always":
            yield (
                "impossible_why",
                say(
                    "diagnose.card_another_one_copy_changed",
                    framework=line.framework,
                ),
            )
        return
    yield (
        "own_mfu",
        say(
            "diagnose.tflops_s_own_dense_tflops",
            tflops=Number(r.flops_per_s / 1e12, 1),
            mfu=Percent(r.mfu, 1),
            gpu=gpu.title,
            peak=Number(r.peak_flops_per_s / 1e12, 1),
            format=r.number_format,
        ),
    )
    low, high = (Percent(frac) for frac in USUAL_MFU)
    if r.judged == "above_matmul":
        yield (
            "above_matmul",
            say("diagnose.more_than_best_matrix_multiply"),
        )
    elif r.judged == "low":
        yield (
            "low",
            say("diagnose.low_nine_ten_140_published", low=low, high=high),
        )
    elif r.judged == "high":
        yield (
            "high",
            say(
                "diagnose.very_good_nine_ten_140",
                low=low,
                high=high,
            ),
        )
    else:
        yield (
            "usual",
            say("diagnose.good_nine_ten_140_published", low=low, high=high),
        )


def _beside(flops: float, estimate: Estimate) -> Iterator[Says]:
    """The same share beside what is predicted for this very config."""
    speed = estimate.speed
    mfu = flops / speed.peak_flops_per_s
    values = {
        "low": Percent(speed.mfu.low),
        "likely": Percent(speed.mfu.likely),
        "high": Percent(speed.mfu.high),
    }
    if mfu > 1:
        return
    if mfu < speed.mfu.low:
        yield (
            "below_predicted",
            say(
                "diagnose.config_brimful_predicts_something_holds",
                **values,
            ),
        )
    elif mfu > speed.mfu.high:
        yield (
            "above_predicted",
            say(
                "diagnose.config_brimful_predicts_card_config",
                **values,
            ),
        )
    else:
        yield (
            "as_predicted",
            say(
                "diagnose.config_brimful_predicts_should",
                **values,
            ),
        )


def _memory(line: LogLine) -> Iterator[Says]:
    if line.reserved_bytes is not None:
        yield (
            "memory",
            say(
                "diagnose.pytorch_reserved_peak_cache_included",
                size=Size(line.reserved_bytes),
            ),
        )
    elif line.mfu is not None:
        yield (
            "memory_is_not_compute",
            say("diagnose.memory_use_would_not_tell"),
        )


def _missing(line: LogLine, reading: Reading | None, gpu: Gpu | None, flops: float | None) -> Iterator[Says]:
    if gpu is None and (line.mfu is not None or line.tokens_per_s is not None or line.step_s is not None):
        yield "needs_gpu", say("diagnose.card_gpu_mfu_share_peak")
    if flops is None and reading is None:
        yield "needs_config", say("diagnose.model_batch_config_then_work")
    elif flops is None and line.step_s is None and line.tokens_per_s is None:
        yield "needs_time", say("diagnose.line_says_how_long_step")
