from dataclasses import replace

import pytest

import brimful
from brimful.fit.fit import estimate, fit
from brimful.fit.roofline import achievable_flops_per_s, peak_format
from brimful.specs.estimate import Interval, chance_of_running_out, verdict_of
from brimful.specs.gpu import all_gpus, find_gpu
from brimful.units import MIB
from tests.fit.builders import a_model, a_training

FORUM_MODEL = a_model(width=576)
FORUM_TRAINING = a_training(batch_size=16, accumulation=32)
DESKTOP_BYTES = 2100 * MIB


def test_the_run_of_the_forum_post_is_called_what_it_was() -> None:
    answer = fit(FORUM_MODEL, FORUM_TRAINING, find_gpu("rtx-4070"), DESKTOP_BYTES)

    assert not answer.fits
    assert answer.short_bytes > 0
    assert max(answer.memory.items, key=lambda item: item.bytes).code == "logits_loss"
    assert answer.memory.peak_at.moment == "backward_start"


def test_the_published_runs_that_fitted_beside_that_desktop_fit() -> None:
    fitted = [
        (a_model(width=384), a_training(batch_size=16, accumulation=32)),
        (a_model(), a_training(batch_size=4, accumulation=128, compiled=False)),
        (a_model(layers=18, heads=16, width=896), a_training(batch_size=2, accumulation=4, compiled=False)),
    ]

    assert all(estimate(*run, find_gpu("rtx-4070"), DESKTOP_BYTES, correction=None).fits for run in fitted)


def test_every_fix_keeps_the_effective_batch_and_is_worth_its_bytes() -> None:
    answer = fit(FORUM_MODEL, FORUM_TRAINING, find_gpu("rtx-4070"), DESKTOP_BYTES)

    first = answer.fixes[0]
    assert first.change == {"batch_size": (16, 8), "gradient_accumulation_steps": (32, 64)}
    assert all(fix.keeps_effective_batch and fix.saves_bytes > 0 for fix in answer.fixes)
    order = [(fix.verdict != "fits", fix.step_time_factor) for fix in answer.fixes if fix.fits]
    assert order == sorted(order)


def test_a_fix_that_is_said_to_fit_fits_when_asked_again() -> None:
    gpu = find_gpu("rtx-4070")
    fixed = replace(FORUM_TRAINING, batch_size=8, accumulation=64)

    assert fit(FORUM_MODEL, FORUM_TRAINING, gpu, DESKTOP_BYTES).fixes[0].fits
    assert estimate(FORUM_MODEL, fixed, gpu, DESKTOP_BYTES, correction=None).fits


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    gpu = find_gpu("rtx-4070")
    largest = fit(FORUM_MODEL, FORUM_TRAINING, gpu, DESKTOP_BYTES).largest_batch

    assert largest is not None
    assert estimate(
        FORUM_MODEL, replace(FORUM_TRAINING, batch_size=largest), gpu, DESKTOP_BYTES, correction=None
    ).fits
    assert not estimate(
        FORUM_MODEL, replace(FORUM_TRAINING, batch_size=largest + 1), gpu, DESKTOP_BYTES, correction=None
    ).fits


def test_the_largest_batch_that_surely_fits_is_told_from_those_at_risk() -> None:
    gpu = find_gpu("rtx-4070")
    answer = fit(FORUM_MODEL, FORUM_TRAINING, gpu, 0)

    def verdict(batch_size: int) -> str:
        training = replace(FORUM_TRAINING, batch_size=batch_size)
        return estimate(FORUM_MODEL, training, gpu, 0, correction=None).verdict

    assert (answer.sure_batch, answer.largest_batch) == (15, 17)
    assert [verdict(15), verdict(16), verdict(17)] == ["fits", "at_risk", "at_risk"]
    assert verdict(18) == "likely_does_not_fit"
    risks = [replace(answer, sure_batch=sure).batch_risk for sure in (17, 13, None)]
    assert risks == ["", ".at_risk", ".none_sure"]


def test_a_model_far_too_large_has_no_batch_that_fits_and_says_so() -> None:
    answer = fit(a_model(layers=500, width=8192, heads=64), a_training(), find_gpu("t4"))

    assert answer.verdict == "does_not_fit"
    assert answer.largest_batch is None
    assert not any(fix.fits for fix in answer.fixes)


def test_a_run_whose_interval_reaches_beyond_the_card_is_at_risk_and_its_fixes_surely_fit() -> None:
    answer = fit(FORUM_MODEL, FORUM_TRAINING, find_gpu("rtx-4070"), 0)
    device = answer.memory.device_bytes

    assert device.likely <= answer.usable_bytes < device.high
    assert (answer.verdict, answer.fits) == ("at_risk", True)
    assert answer.fixes
    assert {fix.verdict for fix in answer.fixes} == {"fits"}
    assert not answer.faster


@pytest.mark.parametrize(
    ("usable", "verdict"),
    [(30, "fits"), (26, "fits"), (25, "at_risk"), (20, "at_risk"), (19, "likely_does_not_fit"),
     (10, "likely_does_not_fit"), (9, "does_not_fit")],
)  # fmt: skip
def test_the_verdict_says_how_likely_the_run_is_to_run_out(usable: int, verdict: str) -> None:
    assert verdict_of(Interval(10, 20, 30), usable) == verdict


def test_the_chance_of_running_out_falls_with_the_room_and_with_a_narrower_interval() -> None:
    chances = [chance_of_running_out(Interval(10, 20, 30), usable) for usable in range(5, 60)]

    assert chances == sorted(chances, reverse=True)
    assert chance_of_running_out(Interval(10, 20, 30), 20) == 0.5
    assert chance_of_running_out(Interval(10, 20, 30), 10) == pytest.approx(0.95)
    assert chance_of_running_out(Interval(18, 20, 22), 23) < chance_of_running_out(Interval(10, 20, 30), 23)
    assert chance_of_running_out(Interval(18, 20, 22), 17) > chance_of_running_out(Interval(10, 20, 30), 17)
    assert chance_of_running_out(Interval(20, 20, 20), 21) < 1e-9


def test_where_the_smallest_change_leaves_a_risk_one_that_surely_fits_comes_first() -> None:
    training = a_training(batch_size=32, accumulation=32)
    sure, likely = fit(FORUM_MODEL, training, find_gpu("rtx-4070"), 0).fixes[:2]

    assert (sure.verdict, sure.change["batch_size"]) == ("fits", (32, 8))
    assert (likely.verdict, likely.change["batch_size"]) == ("at_risk", (32, 16))


def test_on_a_geforce_a_desktop_is_assumed_unless_told_and_on_other_cards_nothing() -> None:
    card = find_gpu("rtx-4070")
    assumed, told = fit(FORUM_MODEL, FORUM_TRAINING, card), fit(FORUM_MODEL, FORUM_TRAINING, card, 0)
    held = assumed.memory.device_bytes.likely - told.memory.device_bytes.likely

    assert held == assumed.others.bytes > 0
    assert (assumed.others.basis, told.others.basis) == ("assumed", "given")
    assert assumed.memory.reserved_bytes == told.memory.reserved_bytes
    assert assumed.speed == told.speed
    assert fit(FORUM_MODEL, FORUM_TRAINING, "a100-40gb").others.basis == "none"


def test_the_first_run_of_the_readme_is_not_called_fitting() -> None:
    answer = fit(FORUM_MODEL, FORUM_TRAINING, "rtx-4070")

    assert (answer.verdict, answer.fits) == ("likely_does_not_fit", False)


def test_mfu_names_the_peak_of_this_card() -> None:
    speed = estimate(a_model(), a_training(), find_gpu("rtx-4070"), correction=None).speed

    assert speed.peak_flops_per_s == 58.3e12
    assert 0 < speed.mfu.low < speed.mfu.likely < speed.mfu.high <= 1


@pytest.mark.parametrize(
    ("layers", "width", "tokens", "batch", "compiled", "measured_tokens_per_s"),
    [
        (6, 384, 512, 16, True, 193_893),
        (12, 384, 1024, 16, True, 136_569),
        (12, 768, 1024, 4, False, 47_212),
    ],
)
def test_published_nanogpt_rates_on_an_rtx_4070_lie_within_the_interval(
    layers: int, width: int, tokens: int, batch: int, compiled: bool, measured_tokens_per_s: int
) -> None:
    model = a_model(layers=layers, width=width, heads=width // 64, positions=tokens)
    training = a_training(batch_size=batch, sequence_tokens=tokens, compiled=compiled)
    rate = estimate(model, training, find_gpu("rtx-4070"), correction=None).speed.tokens_per_s

    assert rate.low < measured_tokens_per_s < rate.high


def test_a_card_without_bf16_is_judged_by_what_it_has_and_told_of_float16() -> None:
    answer = fit(a_model(), a_training(), find_gpu("t4"))

    assert answer.speed.peak_format == "fp32"
    assert "fit.no_bf16_float16_faster" in {warning.code for warning in answer.warnings}


def test_no_card_multiplies_much_faster_than_its_peak() -> None:
    for gpu in all_gpus():
        number = peak_format(a_training(), gpu)
        assert 0.4 < achievable_flops_per_s(gpu, number) / gpu.dense_flops_per_s[number] <= 1.02, gpu.name


def test_checkpointing_costs_hardware_work_that_mfu_does_not_credit() -> None:
    plain, again = (
        estimate(a_model(), a_training(checkpointing=c), find_gpu("a100-80gb"), correction=None).speed
        for c in ("none", "full")
    )

    assert again.step_s.likely > plain.step_s.likely
    assert again.mfu.likely < plain.mfu.likely
    assert again.hfu.likely > again.mfu.likely


def test_python_users_name_the_card_as_they_like() -> None:
    assert brimful.fit(a_model(), a_training(), "4090").gpu == "rtx-4090"


def test_the_estimate_is_the_documented_json() -> None:
    data = fit(FORUM_MODEL, FORUM_TRAINING, find_gpu("rtx-4070"), DESKTOP_BYTES).as_dict()

    assert {"fits", "gpu", "usable_bytes", "memory", "speed", "assumed", "fixes"} <= set(data)
    assert {"allocated_bytes", "reserved_bytes", "device_bytes", "first_step", "items", "peak_at"} <= set(
        data["memory"]
    )
    assert {"step_s", "tokens_per_s", "mfu", "hfu", "peak_tflops", "bound_by"} <= set(data["speed"])
    assert data["fixes"][0]["change"]["batch_size"] == [16, 8]
    assert set(data["memory"]["device_bytes"]) == {"low", "likely", "high"}
