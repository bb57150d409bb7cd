"""The month of `make bench ARGS=audit`, small: every leaf that was planted is found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.planted import __file__ as planted_source
from bench.planted import plant, write
from brimful.audit.readers.read import Asked, read
from brimful.audit.sweep import sweep

PARTS = {"input_wait", "communication", "mfu", "below_peak", "unknown"}


def test_every_planted_leaf_is_found_within_a_percent(tmp_path: Path) -> None:
    month = plant(nodes=8, days=2, seed=3)
    assert write(month, tmp_path) > 0
    records = read([str(tmp_path)], Asked())
    start_s, end_s = records.window()
    tree = sweep(records, start_s=start_s, end_s=end_s).tree

    planted = {leaf: gpu_s for leaf, gpu_s in month.truth.items() if gpu_s}
    assert sum(planted.values()) == tree.amount().gpu_s
    for leaf, gpu_s in planted.items():
        assert tree.amount(leaf).gpu_s == pytest.approx(gpu_s, rel=0.01), leaf
    assert {leaf.rpartition(".")[2] for leaf in planted if "larger_card" in leaf} == PARTS
    assert len(planted) > 60


def test_the_truth_of_the_month_knows_nothing_of_the_audit() -> None:
    assert "brimful.audit" not in Path(planted_source).read_text().partition('"""\n\nfrom')[2]
