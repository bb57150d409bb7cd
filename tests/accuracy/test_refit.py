"""The search that fits the constants of speed, and the split that keeps it honest."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.accuracy.runs import Run
from brimful.fit.roofline import RATES, Rates, predict_speed
from brimful.specs.gpu import find_gpu
from tests.fit.builders import a_model, a_training
from tools.refit import (
    COUNTED,
    LIMITS,
    Timed,
    at_limit,
    cross_validated,
    folds,
    loss,
    ratio,
    search,
    timed_runs,
)


def a_timed(id: str, rates: Rates, *, batch: int = 8, width: int = 768, family: str = "") -> Timed:
    """A run exactly as fast as these constants say."""
    run = Run(
        model=a_model(width=width, heads=width // 64),
        training=a_training(batch_size=batch, compiled=False),
        gpu=find_gpu("a100-sxm-80gb"),
    )
    rate = predict_speed(run.model, run.training, run.gpu, rates).tokens_per_s.likely
    return Timed(id=id, family=family or id, run=run, tokens_per_s_per_gpu=rate)


def runs_of(rates: Rates) -> list[Timed]:
    return [a_timed(f"s{w}-{b}", rates, batch=b, width=w) for b in (4, 16) for w in (512, 1024, 2048)]


def test_every_constant_has_limits_and_lies_within() -> None:
    assert set(LIMITS) == {field.name for field in fields(Rates)}
    for name, value in asdict(RATES).items():
        low, high = LIMITS[name]
        assert low <= value <= high, name


def test_a_perfect_prediction_has_no_loss() -> None:
    assert loss(runs_of(RATES), RATES) == 0
    assert ratio(a_timed("a-1", RATES), RATES) == pytest.approx(1)


def test_the_search_finds_what_the_runs_were_made_with() -> None:
    runs = runs_of(replace(COUNTED, matmul_frac=0.65, eager_bytes=350))

    found = search(runs, random.Random(1), evaluations=300)
    assert loss(runs, COUNTED) > 0.1
    assert loss(runs, found) < 0.05
    assert all(LIMITS[name][0] <= value <= LIMITS[name][1] for name, value in asdict(found).items())


def test_the_same_seed_finds_the_same_constants() -> None:
    runs = runs_of(RATES)

    assert search(runs, random.Random(7), evaluations=30) == search(runs, random.Random(7), evaluations=30)


def test_a_constant_at_its_limit_is_named() -> None:
    assert at_limit(COUNTED) == []
    assert at_limit(replace(COUNTED, matmul_frac=1.0)) == ["matmul_frac"]


@given(st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=80), st.integers(1, 7))
def test_a_group_lies_in_one_fold_and_folds_differ_by_at_most_a_group(groups: list[str], count: int) -> None:
    placed = folds(groups, count)
    filled = [sum(placed[group] == fold for group in groups) for fold in range(count)]

    assert set(placed) == set(groups)
    assert max(filled) - min(filled) <= max(groups.count(group) for group in groups)


def test_constants_never_see_the_family_they_are_tested_on() -> None:
    runs = [a_timed(f"s-{i}", RATES, family=f"f{i % 7}") for i in range(21)]
    tested: list[str] = []

    def fit(seen: Sequence[Timed]) -> Rates:
        hidden = {each.family for each in runs} - {each.family for each in seen}
        assert hidden
        tested.extend(hidden)
        return RATES

    found = cross_validated(runs, lambda each: each.family, fit)
    assert set(found) == {each.id for each in runs}
    assert sorted(tested) == sorted({each.family for each in runs})


def test_only_rows_marked_as_a_test_of_throughput_are_fitted() -> None:
    row = {
        "id": "me-1", "model": "gpt2", "n_layer": "2", "n_head": "2", "d_model": "128", "seq_len": "64",
        "micro_batch_per_gpu": "2", "gpu": "A100-SXM-80GB", "tokens_per_s_per_gpu": "1000",
    }  # fmt: skip
    quality = {"me-1": {"throughput_test": "yes", "family": "me|gpt2|A100"}}

    assert [each.family for each in timed_runs([row], quality)] == ["me|gpt2|A100"]
    assert timed_runs([row], {}) == []
    assert timed_runs([{**row, "tokens_per_s_per_gpu": ""}], quality) == []
    assert timed_runs([{**row, "gpu": "abacus"}], quality) == []
