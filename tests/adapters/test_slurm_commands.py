"""Slurm's commands, where they hang, never end to print, or are not there at all."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from brimful.adapters.engines.slurm import commands
from brimful.adapters.engines.slurm.commands import Commands
from brimful.errors import WorldFailed
from tests.builders import eventually, refuses

MARKED = 'for fields; do :; done; mark="#${fields##*#}"'  # what is asked to stand behind each field
NODE = "n-1|gpu:a100:8|gpu:a100:0(IDX:N/A)|idle|n-1|none|"


@pytest.fixture
def sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command of that name that does what its script says."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "sinfo").touch(mode=0o755)
    return tmp_path / "sinfo"


def test_one_that_hangs_is_ended_with_all_that_it_started(
    sinfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "TIMEOUT_S", 0.5)
    sinfo.write_text(f"#!/bin/sh\nsleep 613 & echo $! > {sinfo}.pid; wait\n")
    began = time.monotonic()
    with refuses(WorldFailed, "slurm.too_slow", "sinfo") as caught:
        Commands("low").nodes()
    assert caught.value.code == "slurm_silent"
    assert time.monotonic() - began < 600, "it did not wait for who holds the pipe"
    pid = Path(f"{sinfo}.pid").read_text().strip()
    eventually(
        lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def test_one_that_never_ends_to_print_is_not_read_to_the_end(
    sinfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "MOST_BYTES", 10_000)
    sinfo.write_text(f"#!/bin/sh\nyes '{NODE}'\n")
    with refuses(WorldFailed, "slurm.too_much", "sinfo"):
        Commands("low").nodes()


def test_what_one_complains_of_at_length_is_shown_by_its_end(sinfo: Path) -> None:
    sinfo.write_text("#!/bin/sh\nyes nonsense | head -100000 >&2\necho the reason >&2\nexit 3\n")
    with refuses(WorldFailed, "slurm.failed", 3) as caught:
        Commands("low").nodes()
    assert caught.value.problem.endswith("the reason")


def test_a_partition_that_is_not_there_is_an_error_that_names_those_that_are(sinfo: Path) -> None:
    sinfo.write_text('#!/bin/sh\ncase "$*" in *%R*) printf "low\\nhigh\\nlow\\n";; esac\n')
    with refuses(WorldFailed, "slurm.no_nodes", "high, low"):
        Commands("gpu").nodes()
    with refuses(WorldFailed, "slurm.no_gpus"):
        Commands("").nodes()
    sinfo.write_text(f"#!/bin/sh\n{MARKED}\necho '{NODE}' | tr -d '\\n' | sed \"s/|/$mark/g\"\n")
    assert [row.node for row in Commands("low").nodes()] == ["n-1"]


def test_one_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with refuses(WorldFailed, "slurm.no_command", "sinfo"):
        Commands("low").nodes()


def test_a_reason_of_several_lines_makes_up_no_node_and_hides_none(sinfo: Path) -> None:
    reason = "fan broken\\nn-9|gpu:a100:8|gpu:a100:0|idle|n-9|none|\\nsee | ticket"
    rows = f"{NODE.replace('none', 'REASON')}\\n{NODE.replace('n-1', 'n-2')}\\n"
    sinfo.write_text(f"#!/bin/sh\n{MARKED}\nprintf '{rows}' | sed \"s/|/$mark/g; s@REASON@{reason}@\"\n")
    first, second = Commands("low").nodes()
    assert (first.node, second.node, second.reason) == ("n-1", "n-2", "")
    assert first.reason == "fan broken"


@pytest.mark.parametrize("said", ["Welcome!\n17", "", "Submitted batch job 17", "17\nrm"])
def test_what_is_no_number_of_a_job_is_not_taken_for_one(said: str, sinfo: Path) -> None:
    (sinfo.parent / "sbatch").touch(mode=0o755)
    (sinfo.parent / "sbatch").write_text(f"#!/bin/sh\nprintf '{said}'\n")
    with refuses(WorldFailed, "slurm.strange_answer"):
        Commands("low").submit([], "script")
    (sinfo.parent / "sbatch").write_text("#!/bin/sh\nprintf '17;lab\\n'\n")
    assert Commands("low").submit([], "script") == "17"
