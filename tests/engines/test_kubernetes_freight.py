"""What travels to a Pod and back: packed code in Secrets, samples in the log."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful.adapters.code import CodeStore
from brimful.adapters.engines.kubernetes import manifests
from brimful.adapters.engines.kubernetes.engine import CODE_BYTES, KubernetesEngine
from brimful.fleet.job import Job
from brimful.language import Size, say
from brimful.scheduler.ports import CannotStart, Start
from tests.builders import eventually
from tests.engines.kubernetes_lab import SPACE, KubernetesLab
from tests.engines.labs import ALONE


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[KubernetesLab]:
    made = KubernetesLab(tmp_path)
    yield made
    made.close()


def engine_of(lab: KubernetesLab) -> KubernetesEngine:
    assert isinstance(lab.engine, KubernetesEngine)
    return lab.engine


def test_what_a_meter_measures_comes_with_the_log_and_is_not_in_it(
    lab: KubernetesLab,
) -> None:
    code = """
import os, pathlib, sys, time
sys.stdout.write("half a ")
sys.stdout.flush()
pathlib.Path(os.environ["BRIMFUL_SAMPLES"]).write_text('{"step": 7}')
while not os.path.exists("go"):
    time.sleep(0.05)
print("line", flush=True)
"""
    lab.start(code)
    engine = engine_of(lab)
    lab.waits_for("running")

    def brought() -> bool:
        lab.log()
        return engine.sample("a.1") is not None

    eventually(brought)
    assert json.loads(engine.sample("a.1") or b"") == {"step": 7}
    (lab.folder / "go").touch()
    lab.waits_for("ended")
    assert lab.log() == ["half a line"]


def test_packed_code_travels_in_secrets_and_too_much_of_it_is_refused(lab: KubernetesLab) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        body = b"print('from the archive')"
        for name, held in (("main.py", body), ("data", os.urandom(2 * manifests.PIECE_BYTES))):
            entry = tarfile.TarInfo(name)
            entry.size = len(held)
            tar.addfile(entry, io.BytesIO(held))
    code = hashlib.sha256(out.getvalue()).hexdigest()
    store = CodeStore(lab.folder / "code")
    with store.receiving("t", code) as receiving:
        receiving.write(out.getvalue())
        receiving.check(code)
    engine = engine_of(lab)
    engine._code = store
    job = Job(job="a", gpus=1, tenant="t", command=("python", "main.py"), folder="/not/here", code=code)
    lab.begun.add("a.1")
    assert engine.start([Start("a.1", job, ALONE)]) == {}
    assert len(list(lab.world.all("secrets", SPACE))) == 3
    lab.waits_for("ended")
    assert lab.log() == ["from the archive"]
    assert list(lab.world.all("secrets", SPACE)) == []
    store.path("t", code).write_bytes(b"x" * (CODE_BYTES + 1))
    failed = engine.start([Start("a.2", job, ALONE)])
    assert isinstance(failed["a.2"], CannotStart)
    sizes = {"size": Size(CODE_BYTES + 1), "most": Size(CODE_BYTES)}
    assert failed["a.2"].said == say("kubernetes.code_too_large", **sizes)


# -- the server ------------------------------------------------------------------------------------------
