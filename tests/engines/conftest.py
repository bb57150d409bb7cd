"""The engines under test. A new engine is a `Lab` and a line in LABS: the scenarios stay the same for all.

A scenario marked `@pytest.mark.fault("node_lost")` runs on the engines whose lab can make that fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines.labs import Lab, LocalLab
from tests.engines.slurm_lab import SlurmLab, close_clusters

LABS: dict[str, Callable[[Path], Lab]] = {"local": LocalLab, "slurm": SlurmLab}
FAULTS: dict[str, frozenset[str]] = {"local": LocalLab.faults, "slurm": SlurmLab.faults}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "site" in metafunc.fixturenames:
        wanted = {str(mark.args[0]) for mark in metafunc.definition.iter_markers("fault")}
        metafunc.parametrize("site", [name for name in LABS if wanted <= FAULTS[name]], indirect=True)


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    made = LABS[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session", autouse=True)
def _clusters_end_with_the_tests() -> Iterator[None]:
    yield
    close_clusters()
