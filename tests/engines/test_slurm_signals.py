"""Somebody who is not brimful signals a Slurm job: all ranks hear it, those of a job of one node once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brimful.fleet.events import Parts
from tests.builders import eventually
from tests.engines.labs import ALONE, GANG, NODES
from tests.engines.slurm_lab import SlurmLab
from tests.engines.test_conformance import COUNTS

EQUAL: Parts = ((NODES[0], (0,)), (NODES[1], (0,)))  # one Slurm job; GANG is a heterogeneous one


def signalled(tmp_path: Path, parts: Parts, *flags: str) -> list[list[str]]:
    """What each rank printed."""
    lab, ranks = SlurmLab(tmp_path), range(len(parts))
    try:
        lab.start(COUNTS, parts=parts)
        eventually(lambda: all("up" in lab.log(rank=rank) for rank in ranks))
        lab.waits_for("running")
        job = json.loads((tmp_path / "leases" / "a.1" / "submitted.json").read_text())["job"]
        lab.cluster.run("scancel", *flags, job)
        ended = lab.waits_for("ended")
        assert (ended.cause, ended.exit_code) == ("preempted_by_engine", None), "it left with 0"
        return [[*lab.log(rank=rank)] for rank in ranks]
    finally:
        lab.close()


TERM = "--signal=TERM"
# Plainly, to a gang, Slurm's own may arrive twice: `srun` passes on what the ranks got already.
ONCE = [
    *((ALONE, flags) for flags in ((), ("--full", TERM), ("--batch", TERM))),
    *((parts, flags) for parts in (EQUAL, GANG) for flags in ((TERM,), ("--full", TERM), ("--batch", TERM))),
]


@pytest.mark.parametrize(("parts", "flags"), ONCE)
def test_a_job_that_others_signal_is_told_once_and_has_its_grace(
    tmp_path: Path, parts: Parts, flags: tuple[str, ...]
) -> None:
    assert signalled(tmp_path, parts, *flags) == [["up", "told"]] * len(parts)


@pytest.mark.parametrize("parts", [EQUAL, GANG])
def test_all_ranks_of_a_gang_that_others_cancel_are_told(tmp_path: Path, parts: Parts) -> None:
    said = signalled(tmp_path, parts)
    assert all("told" in rank for rank in said), said
