"""A site whose folder is full, or holds what is in the way: what runs there can be stopped all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful.adapters.engines.slurm.look import first_failed
from tests.builders import code_of
from tests.disk import fill, small_disk
from tests.engines.labs import GANG, Lab, LocalLab
from tests.engines.slurm_lab import SlurmLab
from tests.engines.test_conformance import RUNS, STAYS, up


@pytest.fixture(params=[LocalLab, SlurmLab])
def small_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    with small_disk(tmp_path / "disk") as folder:
        made = request.param(folder)
        yield made
        (folder / "fills").unlink(missing_ok=True)
        made.close()


def test_a_full_disk_keeps_no_job_from_its_stop(small_site: Lab) -> None:
    small_site.start(STAYS)
    up(small_site)
    small_site.waits_for("running")
    fill(small_site.folder / "fills")
    failed = small_site.stop("a.1", grace_s=600)
    assert code_of(failed["a.1"].said) == "adapters.cannot_ask_stop"
    ended = small_site.waits_for("ended")
    assert (ended.cause, ended.exit_code) == ("preempted_by_engine", 128 + 15), "nobody could write it down"


def test_a_mark_of_failure_that_found_no_room_is_no_rank(tmp_path: Path) -> None:
    (tmp_path / "failed").touch()
    assert first_failed(tmp_path, []) is None


def test_a_gang_whose_first_rank_cannot_begin_does_not_wait_for_it(tmp_path: Path) -> None:
    lab = SlurmLab(tmp_path)
    try:
        (tmp_path / "leases" / "a.1" / "ranks" / "0" / "log").mkdir(parents=True)  # in the way of its log
        lab.start(RUNS, parts=GANG)
        ended = lab.waits_for("ended")
        assert ended.cause == "failed"
        assert "rank 0: cannot start" in str(ended.problem)
        assert not (tmp_path / "ran").exists()
    finally:
        lab.close()
