"""Sweeps: memory only grows, the largest that fits is the one fit finds, and the knee has a reason."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from brimful.configs.read import read
from brimful.configs.reading import Reading
from brimful.errors import BadInput
from brimful.fit.advice.sweep import parse_range, sweep
from brimful.fit.fit import fit_reading
from brimful.language import language
from brimful.specs.gpu import find_gpu
from brimful.units import MIB
from tests.builders import refuses
from tests.fit.builders import a_model, a_training
from tests.fit.test_direction import FAMILIES

ROOT = Path(__file__).resolve().parent.parent.parent
FINEWEB = read(str(ROOT / "examples" / "nanogpt" / "train_fineweb.py"))
CARDS = ("rtx-4070", "h100-sxm-80gb", "v100-sxm-32gb", "k80", "mi300x")


def a_reading(family: str, **training: object) -> Reading:
    model = a_model(**FAMILIES[family])
    return Reading(model=model, training=a_training(**training), assumed=(), warnings=())


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_memory_never_falls_and_a_larger_batch_is_never_slower(family: str, card: str) -> None:
    for compiled in (True, False):
        done = sweep(
            a_reading(family, compiled=compiled), find_gpu(card), "batch_size", range(1, 65), correction=None
        )
        sizes = [point.device_bytes for point in done.points]
        rates = [point.tokens_per_s for point in done.points]

        assert sizes == sorted(sizes)
        assert all(later >= rate * (1 - 1e-9) for rate, later in itertools.pairwise(rates))


@pytest.mark.parametrize("family", FAMILIES)
def test_memory_never_falls_with_the_length(family: str) -> None:
    done = sweep(
        a_reading(family), find_gpu("h100-sxm-80gb"), "seq_len", range(64, 8193, 64), correction=None
    )
    sizes = [point.device_bytes for point in done.points]

    assert sizes == sorted(sizes)


@pytest.mark.parametrize("other_mib", [0, 2100, 9000])
def test_the_largest_that_fits_is_the_one_fit_finds(other_mib: int) -> None:
    gpu = find_gpu("rtx-4070")
    done = sweep(FINEWEB, gpu, "batch_size", range(1, 65), other_mib * MIB, correction=None)

    assert done.largest == fit_reading(FINEWEB, gpu, other_mib * MIB, correction=None).largest_batch


@pytest.mark.parametrize(("last", "code"), [(4, "fit.all_fit"), (64, "fit.largest_fits")])
def test_a_range_that_ends_before_the_memory_is_not_told_as_a_limit(last: int, code: str) -> None:
    done = sweep(FINEWEB, find_gpu("rtx-4070"), "batch_size", range(1, last + 1), correction=None)
    assert done.says()[0].code == code
    assert (done.largest == last) == (code == "fit.all_fit")


def test_parts_sum_to_the_whole_and_none_is_nameless() -> None:
    for card in CARDS:
        for point in sweep(FINEWEB, find_gpu(card), "batch_size", range(1, 33), correction=None).points:
            assert sum(point.groups().values()) == point.device_bytes
            assert point.groups()["rest"] == 0


def test_the_knee_is_near_the_best_and_the_value_before_it_is_not() -> None:
    for card in CARDS:
        done = sweep(FINEWEB, find_gpu(card), "batch_size", range(1, 65), correction=None)
        best = max(point.tokens_per_s for point in done.points)
        near = [point.value for point in done.points if point.tokens_per_s >= 0.95 * best]
        assert done.knee == (near[0] if near[0] > 1 else None)


def test_the_reason_of_the_knee_is_what_bounds_the_small_end() -> None:
    small = sweep(
        a_reading("gpt2", compiled=False, sequence_tokens=64),
        find_gpu("h100-sxm-80gb"),
        "batch_size",
        range(1, 257),
        correction=None,
    )
    told = " ".join(language("en").text(sentence) for sentence in small.says())

    assert small.points[0].estimate.speed.bound_by == "launch"
    assert "launch kernels" in told


@pytest.mark.parametrize(
    ("text", "values"),
    [("1:4", [1, 2, 3, 4]), ("2:9:3", [2, 5, 8]), ("8,2, 4", [2, 4, 8]), ("16", [16])],
)
def test_a_range_is_read(text: str, values: list[int]) -> None:
    assert parse_range(text, "batch_size") == values


@pytest.mark.parametrize(
    "text", ["", "0:4", "1:2:3:4", "a:b", "1:100000", "-1:3", "1;2", "1:4:0", "9999999999", "²"]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_range(text, "batch_size")


@pytest.mark.parametrize("text", ["4096:1", "4096:1:2"])
def test_a_range_that_runs_backwards_is_told_the_way_round(text: str) -> None:
    with refuses(BadInput, "fit.range_backwards", text) as caught:
        parse_range(text, "batch_size")
    assert "1:4096" in caught.value.hint, "to be copied: without a thousands separator"


def test_a_range_of_too_many_values_is_told_a_step_that_can_be_pasted() -> None:
    with refuses(BadInput, "fit.too_many_values") as caught:
        parse_range("256:1024", "seq_len")
    step = caught.value.hint.split()[-1]
    assert step == "256:1024:2"
    assert parse_range(step, "seq_len")[-1] == 1024
