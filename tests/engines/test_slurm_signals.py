"""Somebody who is not brimful signals a Slurm job: all ranks hear it, those of a job of one node once.

And nobody signals the ranks because another rank of theirs is done.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import brimful
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


# In place of Python, for `-P -m MODULE FOLDER`: the first rank's runner takes seconds to exit, as it may on a
# busy machine.
SLOW_TO_EXIT = """#!{python}
import os, sys, time
from pathlib import Path
sys.path.insert(0, {source!r})
from brimful.adapters.engines.slurm import rank
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(2.5)
slow = Slow() if os.environ["SLURMD_NODENAME"] == {node!r} else None
sys.exit(rank.main(Path(sys.argv[4])))
"""
ONE_AFTER_THE_OTHER = """
import os, time
time.sleep(6 if os.environ["BRIMFUL_RANK"] == "1" else 0)
print("done", flush=True)
"""


@pytest.mark.parametrize("parts", [EQUAL, GANG])
def test_a_rank_that_is_done_and_slow_to_exit_does_not_end_the_others(tmp_path: Path, parts: Parts) -> None:
    python = tmp_path / "python"
    source = str(Path(brimful.__file__).parents[1])
    python.write_text(SLOW_TO_EXIT.format(python=sys.executable, source=source, node=NODES[0]))
    python.chmod(0o755)
    lab = SlurmLab(tmp_path, python=str(python))
    try:
        lab.start(ONE_AFTER_THE_OTHER, parts=parts)
        ended = lab.waits_for("ended")
        assert (ended.cause, ended.exit_codes) == ("finished", (0, 0)), str(ended.problem)
        assert [*lab.log(rank=1)] == ["done"]
    finally:
        lab.close()
