"""A server above a real Slurm is killed at each moment around `sbatch` and `scancel`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from bench.slurm_kills import AIMED, aimed
from tests.engines.slurm_cluster import Cluster
from tests.engines.slurm_lab import the_cluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = the_cluster()
    monkeypatch.setenv("SLURM_CONF", found.env["SLURM_CONF"])
    yield found
    found.run("scontrol", "update", "partitionname=low", "state=UP")
    found.run("scancel", "--full", "--user=root")
    found.wait_until_empty()


def test_a_kill_at_any_moment_around_sbatch_and_scancel_runs_nothing_twice_and_loses_nothing(
    cluster: Cluster,
) -> None:
    outcome = aimed(cluster, each=1)
    assert outcome.broken == []
    assert outcome.hits == Counter(AIMED), "each kill fell at the moment it was meant for"
