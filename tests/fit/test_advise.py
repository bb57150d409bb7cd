from dataclasses import replace
from itertools import pairwise

import pytest

from brimful.configs.arguments import ARGUMENTS
from brimful.configs.nanogpt import NANOGPT
from brimful.configs.read import read
from brimful.configs.reading import FLAGS
from brimful.diagnose.sanity import check_mfu, check_peak, check_rate, nominal_bytes
from brimful.fit.advice.advise import largest_that, savers, smaller_batches
from brimful.fit.advice.ladder import ladder
from brimful.fit.fit import estimate, fit, fit_reading, widening
from brimful.language import say
from brimful.specs.estimate import Estimate
from brimful.specs.gpu import Gpu, all_gpus, find_gpu
from brimful.specs.presets import find_preset
from brimful.specs.training import Casts, Dtype, Training
from brimful.units import GIB, MIB
from tests.fit.builders import a_model, a_training

FORUM_MODEL = a_model(width=576)
FORUM_TRAINING = a_training(batch_size=16, accumulation=32)
CARD = find_gpu("rtx-4070")
DESKTOP_BYTES = 2100 * MIB


def forum(training: Training = FORUM_TRAINING) -> Estimate:
    return estimate(FORUM_MODEL, training, CARD, DESKTOP_BYTES, correction=None)


def needs(training: Training) -> float:
    return forum(training).memory.device_bytes.likely


def test_a_fix_can_be_made_and_does_what_it_says() -> None:
    for fix in fit(FORUM_MODEL, FORUM_TRAINING, CARD, DESKTOP_BYTES, dialect=NANOGPT).fixes:
        again = forum(fix.training)
        assert again.fits == fix.fits
        assert needs(FORUM_TRAINING) - needs(fix.training) == pytest.approx(fix.saves_bytes, abs=1)
        assert fix.training.effective_batch == 512
        assert fix.note


def test_of_a_smaller_batch_the_largest_that_fits_is_taken() -> None:
    first = fit(FORUM_MODEL, FORUM_TRAINING, CARD, DESKTOP_BYTES).fixes[0]

    assert first.training.batch_size == 8
    assert not forum(replace(FORUM_TRAINING, batch_size=16)).fits


def test_the_forums_four_changes_stand_side_by_side_from_formulas() -> None:
    smaller = replace(FORUM_TRAINING, batch_size=12, accumulation=40)
    eager = replace(FORUM_TRAINING, compiled=False)
    half = replace(FORUM_TRAINING, dtype="float16")

    assert smaller.effective_batch == 480  # another run: 32 sequences fewer a step
    # A quarter less batch saves a quarter of what scales with it, far less than a quarter of the whole.
    assert 0.10 < 1 - needs(smaller) / needs(FORUM_TRAINING) < 0.25
    assert needs(eager) > needs(FORUM_TRAINING)
    assert forum(eager).speed.step_s.likely > forum().speed.step_s.likely
    assert needs(half) == needs(FORUM_TRAINING)


def test_when_no_single_change_is_enough_two_or_three_together_are_found() -> None:
    answer = fit("llama-3.1-8b", a_training(batch_size=4, sequence_tokens=4096, accumulation=1), "h100")

    assert answer.fixes[0].fits
    alone = [fix for fix in answer.fixes if not fix.fits]
    assert alone, "what single changes save is shown too"
    assert all(fix.saves_bytes > 0 for fix in alone)


def test_what_keeps_the_numbers_comes_before_what_does_not() -> None:
    fixes = fit("gpt2-xl", a_training(batch_size=8, accumulation=4), "rtx-3090").fixes
    kept = [fix.keeps_numerics for fix in fixes if fix.fits]

    assert kept == sorted(kept, reverse=True)


def test_one_change_more_is_tried_where_it_spares_the_numbers() -> None:
    training = a_training(batch_size=16, sequence_tokens=2048, accumulation=2, compiled=False)
    fixes = fit("llama-3.2-1b", training, "rtx-4090").fixes

    assert fixes[0].fits
    assert fixes[0].keeps_numerics


def test_an_adapter_is_offered_only_where_nothing_else_helps() -> None:
    fixes = fit(
        "llama-3.1-8b", a_training(batch_size=1, sequence_tokens=1024, accumulation=16), "rtx-4090"
    ).fixes
    fitting = [fix for fix in fixes if fix.fits]

    assert fitting
    assert all(fix.training.tuning == "lora" or fix.training.offload_states for fix in fitting)
    assert not any(fix.keeps_numerics and fix.training.tuning == "lora" for fix in fitting)


def test_what_no_change_fits_is_told_how_many_cards_would_hold_it() -> None:
    training = a_training(batch_size=1, sequence_tokens=2048, accumulation=1)
    answer = fit("llama-3.1-70b", training, "rtx-4090", 0)

    assert not any(fix.fits for fix in answer.fixes)
    [said] = [warning for warning in answer.warnings if warning.code == "fit.nothing_fits_one_enough"]
    many = said.as_dict()["enough"]
    # The states alone are 16 bytes a parameter, which so many cards must hold together.
    assert many * 24 > 16 * 70.6 > many * 24 / 4


def test_several_gpus_are_told_to_share_the_states() -> None:
    training = a_training(batch_size=1, sequence_tokens=2048, accumulation=8, gpus=8, sharding="ddp")
    fixes = fit("llama-3.1-8b", training, "a100-80gb").fixes

    assert any(fix.training.sharding == "zero3" and fix.fits for fix in fixes)


def test_a_run_that_idles_is_told_what_would_be_faster_and_by_how_much() -> None:
    slow = a_training(batch_size=2, accumulation=240, compiled=False, checkpointing="full", attention="math")
    answer = fit(a_model(), slow, "a100-80gb")

    factors = [fix.step_time_factor for fix in answer.faster]
    assert factors
    assert max(factors) < 1
    for fix in answer.faster:
        assert fix.fits
        assert fix.mfu > answer.speed.mfu.likely
        assert fix.training.effective_batch == slow.effective_batch


def test_a_run_that_does_not_fit_is_not_told_to_go_faster() -> None:
    answer = fit(FORUM_MODEL, FORUM_TRAINING, CARD, DESKTOP_BYTES)

    assert answer.faster == ()
    assert answer.fixes


def test_a_fix_is_spelled_as_each_kind_of_config_spells_it() -> None:
    after = replace(FORUM_TRAINING, batch_size=8, accumulation=64, checkpointing="full")

    for dialect, batch, again, alone in (
        (NANOGPT, "batch_size", ("checkpointing", "full"), False),
        (ARGUMENTS, "per_device_train_batch_size", ("gradient_checkpointing", True), True),
        (FLAGS, "batch_size", ("checkpointing", "full"), True),
    ):
        change, lines_alone = dialect.spell(FORUM_TRAINING, after)
        assert change[batch] == (16, 8)
        assert change["gradient_accumulation_steps"] == (32, 64)
        assert change[again[0]][1] == again[1]
        assert lines_alone == alone


def test_the_ladder_starts_where_it_surely_fits_and_ends_at_the_largest_batch_that_does() -> None:
    rungs = ladder(FORUM_TRAINING, forum, CARD, NANOGPT)
    last = rungs[-1].training
    larger = [size for size in range(last.batch_size + 1, 513) if 512 % size == 0]

    assert rungs[0].estimate.verdict == "fits"
    assert all(rung.estimate.fits for rung in rungs)
    assert last.batch_size == FORUM_TRAINING.batch_size or not forum(last.in_batches_of(larger[0])).fits
    for below, here in pairwise(rungs):
        added = here.estimate.memory.device_bytes.likely - below.estimate.memory.device_bytes.likely
        assert here.adds_bytes == pytest.approx(added, abs=1)
        assert here.training.effective_batch == 512


@pytest.mark.parametrize(("architecture", "compiles"), [("Ada", True), ("Pascal", False)])
def test_a_ladder_compiles_where_the_card_can(architecture: str, compiles: bool) -> None:
    card = replace(find_gpu("rtx-4070"), architecture=architecture)
    training = a_training(batch_size=2, accumulation=4, compiled=False, dtype="float32", casts="none")
    rungs = ladder(training, lambda t: estimate(a_model(), t, card, correction=None), card, NANOGPT)

    assert rungs[-1].training.compiled is compiles


def test_a_ladder_for_a_run_that_surely_fits_ends_at_that_run() -> None:
    training = a_training(batch_size=8, accumulation=8)
    rungs = ladder(
        training,
        lambda t: estimate(a_model(), t, find_gpu("b200"), correction=None),
        find_gpu("b200"),
        NANOGPT,
    )

    assert rungs[-1].training == training


def test_words_that_were_guessed_widen_every_interval() -> None:
    sure = estimate(FORUM_MODEL, FORUM_TRAINING, CARD, correction=None)
    unsure = estimate(FORUM_MODEL, FORUM_TRAINING, CARD, unsure=2, correction=None)

    for a, b in (
        (sure.memory.device_bytes, unsure.memory.device_bytes),
        (sure.memory.allocated_bytes, unsure.memory.allocated_bytes),
        (sure.speed.step_s, unsure.speed.step_s),
        (sure.speed.mfu, unsure.speed.mfu),
    ):
        assert b.low < a.low
        assert b.high >= a.high
        assert a.likely == b.likely
    assert widening(0) == 0 < widening(1) < widening(2) <= widening(100) < 1


def test_a_guessed_word_of_a_config_reaches_the_interval() -> None:
    known = fit_reading(read(None, model="gpt2", overrides=["optimizer=adamw"]), CARD, correction=None)
    guessed = fit_reading(read(None, model="gpt2", overrides=["optimizer=sophia"]), CARD, correction=None)

    assert guessed.memory.device_bytes.high > known.memory.device_bytes.high
    assert guessed.warnings[0].as_dict()["word"] == "sophia"


@pytest.mark.parametrize(
    ("mfu", "possible", "unusual"), [(0.3, True, False), (0.8, True, True), (1.4, False, False)]
)
def test_an_mfu_is_held_against_what_the_card_can_do(mfu: float, possible: bool, unusual: bool) -> None:
    check = check_mfu(mfu, forum(), CARD)

    assert (check.possible, check.unusual) == (possible, unusual)
    assert ("58.3 TFLOPS" in check.as_dict()["why"]) == (mfu > 0.75)


@pytest.mark.parametrize("card", all_gpus(), ids=lambda card: card.name)
def test_what_brimful_predicts_it_does_not_call_impossible(card: Gpu) -> None:
    training = a_training(batch_size=64, sequence_tokens=4096)
    model = find_preset("llama-3.1-8b").model
    answer = estimate(model, training, card, correction=None)

    for part in ("low", "likely", "high"):
        assert check_mfu(getattr(answer.speed.mfu, part), answer, card).possible
    assert check_rate(answer.speed.tokens_per_s.likely, answer, model, training, card).possible


def test_what_nanogpt_prints_above_one_is_possible_on_a_card_faster_than_an_a100() -> None:
    card = find_gpu("h100-sxm-80gb")
    answer = estimate(FORUM_MODEL, FORUM_TRAINING, card, correction=None)

    assert check_mfu(1.2, answer, card, nanogpt=True).possible
    assert not check_mfu(1.2, answer, card).possible
    assert not check_mfu(4.0, answer, card, nanogpt=True).possible


def test_an_mfu_that_nanogpt_printed_is_told_as_a_share_of_this_card() -> None:
    # 10 % of an A100's 312 TFLOPS are 54 % of an RTX 4070's 58.3.
    told = check_mfu(0.10, forum(), CARD, nanogpt=True).why.as_dict()["other"]
    assert told == {"code": "diagnose.mfu_of_a100", "own": pytest.approx(0.1 * 312 / 58.3)}
    assert check_mfu(0.10, forum(), CARD).why.code == "diagnose.mfu_below"


def test_a_peak_below_the_states_or_above_the_card_is_impossible() -> None:
    answer = estimate(
        a_model(layers=48, width=1600, heads=25), a_training(), find_gpu("a100-80gb"), correction=None
    )
    card = find_gpu("a100-80gb")

    too_small = check_peak(3 * GIB, answer, card)
    assert not too_small.possible
    why = too_small.why.as_dict()
    assert (why["code"], why["size"]) == ("diagnose.peak_below_states", 3 * GIB)
    assert {"code": "specs.part_optimizer_state"} in [part for part, _ in why["parts"]]
    assert not check_peak(81 * GIB, answer, card).possible
    likely = round(answer.memory.allocated_bytes.likely)
    assert check_peak(likely, answer, card).possible


def test_a_peak_that_only_nvidia_smi_can_show_is_possible() -> None:
    # A framework sees 11.69 GiB of an RTX 4070; nvidia-smi shows 12282 MiB.
    assert check_peak(round(11.8 * GIB), forum(), CARD).possible
    assert check_peak(12282 * MIB, forum(), CARD).possible
    assert not check_peak(round(12.1 * GIB), forum(), CARD).possible

    small = forum(replace(FORUM_TRAINING, batch_size=1))
    assert check_peak(round(11.8 * GIB), small, CARD).why.code == "diagnose.peak_above_usable"


def test_a_card_whose_name_says_no_size_may_show_three_hundredths_more() -> None:
    card = find_gpu("l4")
    assert not any("gb" in name for name in (card.name, *card.aliases))

    assert nominal_bytes(card) == pytest.approx(1.03 * card.memory_bytes)
    assert nominal_bytes(find_gpu("a100-sxm-80gb")) == 80 * GIB
    assert all(nominal_bytes(each) >= each.memory_bytes for each in all_gpus())


def test_a_rate_is_held_against_the_peak_it_implies() -> None:
    answer = forum()

    assert check_rate(60_000, answer, FORUM_MODEL, FORUM_TRAINING, CARD).possible
    assert not check_rate(600_000, answer, FORUM_MODEL, FORUM_TRAINING, CARD).possible


@pytest.mark.parametrize(
    ("dtype", "casts", "kept"),
    [("bfloat16", "autocast", False), ("bfloat16", "gather", True), ("float32", "autocast", True)],
)
def test_sharding_that_casts_what_autocast_left_alone_is_told_as_other_numbers(
    dtype: Dtype, casts: Casts, kept: bool
) -> None:
    copied = a_training(gpus=8, sharding="ddp", dtype=dtype, casts=casts)
    moves = [move for move in savers(copied, CARD, FLAGS) if "sharding" in move.fields]

    assert [move.fields["sharding"] for move in moves] == ["zero2", "zero3"]
    assert {move.keeps_numerics for move in moves} == {kept}
    whole = say("fit.note_whole_layers_in", dtype="bfloat16")
    assert all((whole in move.note) != kept for move in moves)


def test_a_fix_that_keeps_the_numbers_changes_no_number_format() -> None:
    training = a_training(batch_size=8, accumulation=4, gpus=8, sharding="ddp")
    fixes = fit("llama-3.1-8b", training, "h100").fixes
    formats = [(fix.training.dtype, fix.training.casts) for fix in fixes if fix.keeps_numerics]

    assert any(fix.training.casts == "gather" for fix in fixes)
    assert all(each == (training.dtype, training.casts) for each in formats)


def test_smaller_batches_divide_what_one_gpu_reads_in_a_step() -> None:
    assert smaller_batches(a_training(batch_size=16, accumulation=32)) == [1, 2, 4, 8]
    assert smaller_batches(a_training(batch_size=12, accumulation=40)) == [1, 2, 3, 4, 5, 6, 8, 10]
    assert smaller_batches(a_training(batch_size=1)) == []


@pytest.mark.parametrize(("limit", "found"), [(0, 1), (1, 1), (5, 4), (8, 8), (99, 8)])
def test_bisection_finds_the_largest_that_fits_or_the_smallest(limit: int, found: int) -> None:
    assert largest_that([1, 2, 4, 8], lambda size: size <= limit) == found


def test_a_ladder_never_lets_an_update_in_the_backward_pass_wait_for_more_micro_steps() -> None:
    training = a_training(batch_size=16, accumulation=1, compiled=False, in_backward=True)
    rungs = ladder(training, lambda t: estimate(a_model(), t, CARD, correction=None), CARD, NANOGPT)

    assert all(not rung.training.in_backward or rung.training.accumulation == 1 for rung in rungs)
