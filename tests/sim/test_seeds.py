"""A hundred small worlds with mishaps lose nothing. `make bench ARGS=plane` looks at two thousand."""

from __future__ import annotations

from bench.seeds import broken


def test_no_seed_breaks_a_promise() -> None:
    assert [each for seed in range(100) for each in broken(seed)] == []
