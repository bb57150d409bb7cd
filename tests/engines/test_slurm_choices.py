"""What a sites file asks of Slurm, on a real one: racks, constraints, time limits, accounts and QOS."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brimful.scheduler.ports import CannotStart
from tests.builders import code_of
from tests.conftest import missing
from tests.engines.slurm_cluster import ACCOUNTING, PLACES, Cluster, is_missing
from tests.engines.slurm_lab import SlurmLab
from tests.engines.test_conformance import STAYS, up

Make = Callable[..., SlurmLab]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[SlurmLab] = []

    def a_lab(cluster: Cluster | None = None, **options: object) -> SlurmLab:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(SlurmLab(folder, cluster=cluster, **options))  # type: ignore[arg-type]
        return made[-1]

    yield a_lab
    for lab in reversed(made):
        lab.close()


def asked(lab: SlurmLab, fields: str, lease: str = "a.1") -> str:
    """What Slurm itself says about a lease's job."""
    job = json.loads((lab.folder / "leases" / lease / "submitted.json").read_text())["job"]
    return lab.cluster.run("squeue", "-h", "-j", job, "-o", fields).strip()


def test_racks_are_the_switches_that_slurm_knows(make: Make) -> None:
    racks = {node.node: node.rack for node in make().engine.nodes()}
    assert racks == {"n-0": "rack-a100", "n-1": "rack-a100", "v-0": "rack-v100", "v-1": "rack-v100"}


def test_constraints_and_time_limits_reach_slurm_which_holds_them(make: Make) -> None:
    lab = make(constraint="a100", time_limit="2:30:00")
    assert lab.start(STAYS) == {}
    up(lab)
    assert asked(lab, "%f %l %N") == "a100 2:30:00 n-0"
    failed = lab.start(STAYS, "b.1", parts=(("v-0", (0,)),))
    assert isinstance(failed["b.1"], CannotStart), "no node there has that feature"
    assert "not available" in failed["b.1"].problem


@pytest.fixture(scope="module")
def accounts() -> Iterator[Cluster]:
    """Whose QOS `night` may hold one GPU in all, and which takes no job outside of accounts."""
    lacks = [is_missing(), *(name for name in ACCOUNTING if shutil.which(name, path=PLACES) is None)]
    if any(lacks):
        missing(", ".join(filter(None, lacks)), "run `apt-get install slurmdbd mariadb-server-core` as root")
    more = {"AccountingStorageEnforce": "associations,limits,qos", "AccountingStorageTRES": "gres/gpu"}
    made = Cluster(accounting=True, more=more)
    for what in (
        ("account", "research", "Description=of the lab"),
        ("qos", "night", "GrpTRES=gres/gpu=1"),
        ("user", "root", "Account=research", "QOS=normal,night"),
    ):
        made.run("sacctmgr", "-i", "add", *what)
    yield made
    made.close()


@pytest.mark.engines
def test_leases_run_under_the_account_and_qos_of_their_site(make: Make, accounts: Cluster) -> None:
    lab = make(accounts, account="research", qos="night", pending_s=1)
    assert lab.start(STAYS) == {}
    up(lab)
    assert asked(lab, "%a %q") == "research night"
    assert lab.start(STAYS, "b.1", parts=(("n-0", (1,)),)) == {}
    handed_back = lab.waits_for("ended", "b.1")
    assert (code_of(handed_back.problem), handed_back.started_s) == ("slurm.handed_back", None)
    assert "QOSGrp" in str(handed_back.problem), "Slurm held it to the one GPU of that QOS"


@pytest.mark.engines
@pytest.mark.parametrize("options", [{"account": "nobody"}, {"account": "research", "qos": "day"}])
def test_an_account_or_qos_that_is_not_there_is_refused_for_good(
    make: Make, accounts: Cluster, options: dict[str, str]
) -> None:
    lab = make(accounts, **options)
    failed = lab.start(STAYS)
    assert isinstance(failed["a.1"], CannotStart)
    assert "Invalid" in failed["a.1"].problem
