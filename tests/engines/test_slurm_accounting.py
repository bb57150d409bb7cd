"""What `sacct` keeps in a real database (slurmdbd on MariaDB), of leases that the controller forgot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import code_of
from tests.conftest import missing
from tests.engines.labs import ALONE, GANG, NODES
from tests.engines.slurm_cluster import ACCOUNTING, LOSES_NODES, PLACES, Cluster, is_missing, wait_until
from tests.engines.slurm_lab import SlurmLab
from tests.engines.test_conformance import RUNS, STAYS, up

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    lacks = [is_missing(), *(name for name in ACCOUNTING if shutil.which(name, path=PLACES) is None)]
    if any(lacks):
        missing(", ".join(filter(None, lacks)), "run `apt-get install slurmdbd mariadb-server-core` as root")
    made = Cluster(accounting=True, more={"MinJobAge": 2})
    yield made
    made.close()


@pytest.fixture
def lab(cluster: Cluster, tmp_path: Path) -> Iterator[SlurmLab]:
    made = SlurmLab(tmp_path, cluster=cluster)
    yield made
    made.close()


def submitted(lab: SlurmLab, lease: str) -> Path:
    return lab.folder / "leases" / lease / "submitted.json"


def number_of(lab: SlurmLab, lease: str) -> str:
    return str(json.loads(submitted(lab, lease).read_text())["job"])


def test_what_happened_while_we_were_away_is_read_from_accounting(lab: SlurmLab) -> None:
    cluster = lab.cluster
    lab.start("import sys; sys.exit(3)", "failed.1")
    lab.start(STAYS, "lost.1", parts=((NODES[1], (0,)),))
    up(lab, "lost.1")
    lab.waits_for("running", "lost.1")
    lab.waits_for("ended", "failed.1")
    cluster.run("scontrol", "update", "partitionname=low", "state=DOWN")  # nothing begins
    for lease, parts in {"alone.1": ALONE, "gang.1": GANG, "again.1": ALONE}.items():
        lab.start(RUNS, lease, parts=parts)
    lab.restart()  # from here on we are away
    numbers = {lease: number_of(lab, lease) for lease in ("alone.1", "gang.1", "again.1")}
    cluster.run("scancel", *numbers.values())  # an administrator
    # One that lost its memory gave our number to somebody else's job, with another end.
    text = submitted(lab, "again.1").read_text()
    submitted(lab, "again.1").write_text(text.replace(f'"{numbers["again.1"]}"', f'"{cluster.stranger()}"'))
    cluster.run("scancel", "--name=stranger")
    cluster.kill(NODES[1], whole=True)  # the machine, with all that ran there
    cluster.reconfigure(**LOSES_NODES)
    wait_until(lambda: not cluster.run("squeue", "-h", "-t", "all"))  # the controller has forgotten all
    found = {lease: lab.waits_for("ended", lease) for lease in sorted(lab.begun)}
    cluster.run("scontrol", "update", "partitionname=low", "state=UP")
    causes = {lease: (seen.cause, seen.exit_code, code_of(seen.problem)) for lease, seen in found.items()}
    sent_away = ("preempted_by_engine", None, "slurm.sent_away")
    assert causes["alone.1"] == sent_away, "it burns no try"
    assert causes["gang.1"] == sent_away, "a job of several parts, each with a row of its own"
    assert causes["again.1"] == ("failed", None, "adapters.vanished"), "nobody knows its end"
    assert causes["lost.1"] == ("node_lost", None, "slurm.node_lost")
    assert causes["failed.1"][:2] == ("failed", 3), "by its runner, which knows more"
    assert not any(found[lease].started_s for lease in numbers)
    assert (lab.folder / "ran").read_text() == "x", "lost.1 alone"
