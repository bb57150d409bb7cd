"""`brimful admin clean` beside a server at work: what a job needs stays, whatever the rules say."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.code import CodeStore
from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores.sql import SqlStore
from brimful.cli.main import main
from brimful.client.pack import packed
from brimful.language import verbatim
from brimful.scheduler.rules import Rules
from brimful.server.service.service import Service
from tests.builders import a_job, a_node, eventually
from tests.server.builders import wind_down

NOTHING = "leases=0s checkpoints=0s code=0s"  # keep as little as may be
HALF = re.compile(r"\..+\.[0-9a-f]{12}")  # a file that is being written, see brimful.files
# Each rank says from which step it goes on; the first one keeps a checkpoint at once.
TRAIN = """
import os, pathlib, time
from brimful.job import Run
run, here, rank = Run(every_s=0), pathlib.Path(os.environ["BRIMFUL_SUBMIT_DIR"]), os.environ["BRIMFUL_RANK"]
step = int((run.latest / "state.pt").read_text()) if run.latest else 0
if rank == "0":
    with run.saving(step + 1) as folder:
        (folder / "state.pt").write_text(str(step + 1))
(here / f"{os.environ['BRIMFUL_LEASE']}-rank-{rank}-from-{step}").touch()
while not (here / "go").exists():
    if run.told:
        raise SystemExit(143)
    time.sleep(0.02)
"""


def held(*places: Path) -> set[Path]:
    found = {path for place in places for path in place.rglob("*")}
    return {path for path in found if not HALF.fullmatch(path.name)}


def test_clean_beside_a_running_gang_leaves_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """A gang over two nodes with packed code, whose checkpoints are sent to a store: while it runs, while it
    waits after a stop, and while it runs again."""
    data, project, kept = tmp_path / "data", tmp_path / "project", tmp_path / "store"
    for each in (data, project, kept):
        each.mkdir()
    (project / "train.py").write_text(TRAIN)
    request.addfinalizer((project / "go").touch)  # whatever failed, no job runs on
    store, code = SqlStore(f"sqlite:///{data / 'brimful.db'}"), CodeStore(data / "code")
    nodes = [a_node("n-0", gpus=1), a_node("n-1", gpus=1)]
    engine = LocalEngine(data / "leases", nodes, site="here", code=code, store=str(kept))
    service = Service(store, [engine], Rules(grace_s=30), code=code)

    def phase(job: str) -> str:
        service.driver.tick()
        return service.reader.fleet.jobs[job].phase

    def cleaned() -> list[str]:
        for path in code.root.glob("*/*.tar"):
            os.utime(path, (5, 5))  # nobody has asked for it lately
        assert main(["admin", "clean", "--data", str(data), "--keep", NOTHING]) == 0
        return capsys.readouterr().out.split()

    old = service.submissions.submit(a_job("")).job.job
    eventually(lambda: phase(old) == "finished")
    with packed(project) as pack, code.receiving("default", pack.code) as upload:
        upload.write(pack.file.read())
    wanted: dict[str, Any] = {
        "within": "site",
        "code": pack.code,
        "command": (sys.executable, "train.py"),
        "folder": str(project),
    }
    gang = service.submissions.submit(replace(a_job("", gpus=2), **wanted)).job.job
    checkpoints = data / "leases" / ".checkpoints" / gang

    def all_of(lease: str) -> set[Path]:
        return held(data / "leases" / lease, checkpoints, code.root, kept)

    eventually(
        lambda: phase(gang) == "running" and list(project.glob(f"{gang}.1-rank-1-*")),
    )
    eventually(lambda: list(checkpoints.glob("step-*")) and list(kept.glob("*/saved/*/*.json")))
    before = all_of(f"{gang}.1")
    assert {f"{old}.1", old} <= set(cleaned()), "what nobody needs does go"
    assert not (data / "leases" / f"{old}.1").exists()
    assert before <= all_of(f"{gang}.1")

    service.submissions.hold(gang, reason=verbatim("look first"))
    eventually(lambda: phase(gang) == "held")
    before = all_of(f"{gang}.1")
    assert gang not in " ".join(cleaned())
    assert before <= all_of(f"{gang}.1")

    service.submissions.release(gang)
    eventually(lambda: phase(gang) == "running" and (project / f"{gang}.2-rank-0-from-1").exists())
    before = all_of(f"{gang}.2")
    assert gang not in " ".join(cleaned())
    assert before <= all_of(f"{gang}.2")
    (project / "go").touch()
    eventually(lambda: phase(gang) == "finished")
    assert gang in cleaned()
    assert not checkpoints.exists()
    wind_down(service)
    store.close()
