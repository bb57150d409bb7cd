"""How blocks travel: several at once, and to a bucket with credentials that expire."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.objects import shelf as shelves
from brimful.adapters.objects.shelf import AT_ONCE, Shelf
from brimful.adapters.objects.store import Objects, open_store, store_uri
from brimful.fleet.job import Job
from brimful.job import Checkpoint, newest, read_seal, seal
from tests.builders import a_node, eventually, start_one, stop_one
from tests.engines.s3_gate import a_gate
from tests.engines.seaweed import S3Lab, s3_lab
from tests.patience import PATIENCE_S

BLOCK = 1000
BLOCKS = 4 * AT_ONCE


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Lab]:
    with s3_lab(tmp_path_factory.mktemp("s3") / "lab") as made:
        yield made


def blocks_of_its_own(folder: Path) -> Checkpoint:
    """All of them different, so that each is sent."""
    made = folder / "step-1"
    made.mkdir(parents=True)
    (made / "weights").write_bytes(b"".join(bytes([i]) * BLOCK for i in range(BLOCKS)))
    seal(made, step=1)
    found = read_seal(made)
    assert found is not None
    return found


def send_and_fetch(objects: Objects, tmp_path: Path) -> None:
    first = Shelf(objects, "a.1")
    first.take_over()
    sent = blocks_of_its_own(tmp_path / "there")
    first.send(sent)
    (found,) = Shelf(objects, "a.2").take_over()
    shelves.fetch(found, tmp_path / "here")
    here = newest(tmp_path / "here")
    assert here is not None
    assert here.files == sent.files


class Together:
    """A store in which a block goes through only beside others."""

    def __init__(self, objects: Objects, count: int) -> None:
        self.uri, self._objects, self._barrier = objects.uri, objects, threading.Barrier(count)
        self.passed: list[str] = []

    def _meet(self, key: str, what: str) -> None:
        if key.startswith("blocks/"):
            self._barrier.wait(PATIENCE_S)
            self.passed.append(what)

    def put(self, key: str, data: bytes) -> bool:
        self._meet(key, "put")
        return self._objects.put(key, data)

    def get(self, key: str) -> bytes | None:
        self._meet(key, "get")
        return self._objects.get(key)

    def keys(self, under: str) -> dict[str, int]:
        return self._objects.keys(under)

    def remove(self, keys: Iterable[str]) -> None:
        self._objects.remove(keys)


def test_blocks_are_sent_and_fetched_several_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "BLOCK_BYTES", BLOCK)
    (tmp_path / "store").mkdir()
    store = Together(open_store(store_uri(str(tmp_path / "store"))), AT_ONCE)
    send_and_fetch(store, tmp_path)
    assert store.passed == ["put"] * BLOCKS + ["get"] * BLOCKS


@pytest.mark.engines
def test_a_bucket_has_several_requests_at_once_and_one_for_each_block(
    lab: S3Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelves, "BLOCK_BYTES", BLOCK)
    for name, value in lab.env.items():
        monkeypatch.setenv(name, value)
    with a_gate(lab.port, together=AT_ONCE) as gate:
        send_and_fetch(open_store(replace(lab, port=gate.server_port).uri(tmp_path.name)), tmp_path)
        assert gate.passed == ["PUT"] * BLOCKS + ["GET"] * BLOCKS


SAVES = """
import os, signal
from brimful.job import Run
run = Run()
print("from", run.latest.name if run.latest else None, "with", [n for n in os.environ if n[:4] == "AWS_"])
with run.saving(7) as folder:
    (folder / "n").write_text("7")
print("saved", flush=True)
signal.pause() if not run.told else None
"""


@pytest.mark.engines
def test_credentials_that_expire_reach_the_bucket_with_their_token_and_never_the_job(
    lab: S3Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*lab.env, "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    uri = lab.uri(tmp_path.name)

    def engine(site: str, store_env: dict[str, str]) -> LocalEngine:
        nodes = [replace(a_node("n"), site=site)]
        return LocalEngine(tmp_path / site, nodes, site=site, store=uri, store_env=store_env)

    job = Job(job="a", gpus=1, command=(sys.executable, "-c", SAVES), folder=str(tmp_path))
    east, west = engine("east", lab.short_lived()), engine("west", lab.short_lived())
    for lease, at in (("a.1", east), ("a.2", west)):
        start_one(at, lease, job, node="n", gpus=(0,), source="" if at is east else east.checkpoints("a"))
        eventually(lambda at=at, lease=lease: b"saved" in at.log(lease).data)  # type: ignore[misc]
        stop_one(at, lease, grace_s=600)
        eventually(lambda at=at, lease=lease: [x.state for x in at.observe([lease])] == ["ended"])  # type: ignore[misc]
    assert b"from None with []" in east.log("a.1").data
    assert b"from step-000000007 with []" in west.log("a.2").data

    lacks = {**lab.short_lived()}
    del lacks["AWS_SESSION_TOKEN"]
    north = engine("north", lacks)
    start_one(north, "a.3", job, node="n", gpus=(0,), source=west.checkpoints("a"))

    def is_refused() -> bool:
        seen = north.observe(["a.3"])
        return bool(seen) and seen[0].state == "waiting" and "access key" in str(seen[0].problem)

    eventually(is_refused)
    stop_one(north, "a.3", grace_s=1)
    eventually(lambda: [each.state for each in north.observe(["a.3"])] == ["ended"])
    assert b"saved" not in north.log("a.3").data
    eventually(lambda: not any(at._has_runner(f"a.{i}") for i, at in enumerate((east, west, north), 1)))
