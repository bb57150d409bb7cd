"""The tutorials of a lab and of a team, as their readers walk through them.

Jobs there end after seconds by the clock, and the pages show them while they run, so a walk needs a machine
about as fast as a reader's: it is no part of `make test` or `make test-engines`.

`python -m tests.engines.test_tutorials` writes what was printed into the pages.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, missing
from tests.engines.ports import reserve_ports
from tests.engines.slurm_cluster import REMEDY, Cluster, is_missing
from tests.walk import Step, Walk, is_as_shown
from tools.lab_slurm import NODES, PARTITIONS

TUTORIALS = ROOT / "docs" / "tutorial"


def in_a_lab(home: Path) -> Iterator[tuple[Step, str]]:
    if lacks := is_missing():
        missing(f"Slurm ({lacks})", REMEDY)
    with contextlib.closing(Cluster(NODES, partitions=PARTITIONS)) as cluster:
        env = {"SLURM_CONF": cluster.env["SLURM_CONF"]}
        with contextlib.closing(Walk(home, env, instead={"/shared": str(home)})) as walk:
            yield from walk.steps((TUTORIALS / "slurm-lab.md").read_text())


def in_a_team(home: Path) -> Iterator[tuple[Step, str]]:
    lock, (port,) = reserve_ports(1)
    instead = {":9000": f":{port}", "examples/hook.py": f"examples/hook.py {port}"}
    with lock, contextlib.closing(Walk(home, {}, instead=instead)) as walk:
        yield from walk.steps((TUTORIALS / "team-budgets.md").read_text())


PAGES = {"slurm-lab.md": in_a_lab, "team-budgets.md": in_a_team}


@pytest.mark.tutorials
@pytest.mark.parametrize("page", PAGES)
def test_a_reader_sees_what_the_page_shows(page: str, tmp_path: Path) -> None:
    for step, printed in PAGES[page](tmp_path):
        assert is_as_shown(printed, step.shown), f"$ {step.command}\n{printed}\nthe page shows\n{step.shown}"


def write(page: str) -> None:
    """What is shortened with … is left to whoever writes the page."""
    path = TUTORIALS / page
    with tempfile.TemporaryDirectory() as folder:
        for step, printed in PAGES[page](Path(folder)):
            print(f"{step.terminal}$ {step.command}\n{printed}", flush=True)
            now = printed.rstrip() + "\n"
            if step.shown.strip() and "…" not in step.shown:
                path.write_text(path.read_text().replace(step.shown, now, 1))


if __name__ == "__main__":
    for each in sys.argv[1:] or PAGES:
        write(each)
