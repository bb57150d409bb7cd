"""kill -9 at random points of a busy run: no job lost, none run twice at once, money adds up, all finish."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.chaos import Chaos

KILLS = 15  # on each database; `make bench ARGS=plane` does 300


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_whatever_is_killed_every_promise_is_kept(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sqlite = f"sqlite:///{tmp_path / 'log.db'}"
    url = sqlite if kind == "sqlite" else request.getfixturevalue("postgres_url")
    uids = kind == "sqlite" and os.geteuid() == 0  # jobs of two tenants, each with a user of its own
    outcome = Chaos(tmp_path / "chaos", url, seed=6, uids=uids).run(KILLS)
    assert outcome.broken == []
    assert outcome.jobs >= 8
    assert outcome.kills.total() == KILLS
    assert {"array", "after", "packed"} <= outcome.mix.keys()
    print(dict(outcome.kills), dict(outcome.mix), f"{outcome.jobs} jobs in {outcome.seconds:.0f} s")
