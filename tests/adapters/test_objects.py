"""A job's checkpoints in a store: sent once, fetched whole, never an orphan's. A folder and S3 alike."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.adapters.engines.checkpoints import make_ready
from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.objects import shelf as shelves
from brimful.adapters.objects.shelf import Damaged, Overtaken, Shelf
from brimful.adapters.objects.store import Objects, below, open_store, store_uri
from brimful.errors import BadInput
from brimful.fleet.job import Job
from brimful.job import Checkpoint, newest, read_seal, seal
from brimful.language import say
from tests.adapters.test_checkpoints import COUNTS
from tests.builders import a_node, eventually, start_one, stop_one
from tests.engines.seaweed import S3Lab, s3_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Lab]:
    with s3_lab(tmp_path_factory.mktemp("s3") / "lab") as made:
        yield made


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.engines)])
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        (tmp_path / "store").mkdir()
        return store_uri(str(tmp_path / "store"))
    made: S3Lab = request.getfixturevalue("lab")
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    return made.uri(tmp_path.name)


@pytest.fixture
def objects(uri: str) -> Objects:
    return open_store(uri)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "BLOCK_BYTES", 1000)


BASE = bytes(range(256)) * 16  # a shard that does not change


def saved(folder: Path, step: int, *, lease: str = "") -> Checkpoint:
    made = folder / f"step-{step}"
    (made / "shards").mkdir(parents=True)
    (made / "shards" / "base.pt").write_bytes(BASE)
    (made / "head.pt").write_bytes(f"head {step} ".encode() * 300)
    (made / "empty").touch()
    before, os.environ["BRIMFUL_LEASE"] = os.environ.get("BRIMFUL_LEASE"), lease
    try:
        seal(made, step=step)
    finally:
        os.environ.pop("BRIMFUL_LEASE")
        if before is not None:
            os.environ["BRIMFUL_LEASE"] = before
    found = read_seal(made)
    assert found is not None
    return found


def test_the_first_to_write_a_key_wins(objects: Objects) -> None:
    assert objects.put("job-1/manifest", b"first")
    assert not objects.put("job-1/manifest", b"second")
    assert objects.get("job-1/manifest") == b"first"


def damage_one(objects: Objects) -> None:
    """Change one byte of a block that only the newest checkpoint has."""
    key = max(objects.keys("blocks/"), key=lambda each: b"head 9" in (objects.get(each) or b""))
    data = objects.get(key)
    assert data is not None
    objects.remove([key])
    objects.put(key, bytes([data[0] ^ 1]) + data[1:])


def test_what_is_fetched_is_what_was_sent_to_the_byte(objects: Objects, tmp_path: Path) -> None:
    first = Shelf(objects, "a.1")
    assert first.take_over() == []
    sent = saved(tmp_path / "there", 5)
    told: list[int] = []
    assert first.send(sent, tell=told.append) == sum(told)
    (found,) = Shelf(objects, "a.2").take_over()
    fetched = shelves.fetch(found, tmp_path / "here")
    assert fetched == sum(size for size, _ in sent.files.values())
    here = newest(tmp_path / "here")
    assert here is not None
    assert (here.step, here.files, here.at_s) == (sent.step, sent.files, sent.at_s)
    assert (here.folder / "shards" / "base.pt").read_bytes() == BASE


def test_an_unchanged_shard_is_not_sent_again_by_this_lease_or_the_next(
    objects: Objects, tmp_path: Path
) -> None:
    first = Shelf(objects, "a.1")
    first.take_over()
    whole = first.send(saved(tmp_path, 5))
    assert whole > len(BASE)
    blocks = objects.keys("blocks/")
    first.send(saved(tmp_path, 6))
    again = sum(size for key, size in objects.keys("blocks/").items() if key not in blocks)
    assert again == len(b"head 6 ") * 300
    following = Shelf(objects, "a.2")
    following.take_over()
    before = objects.keys("blocks/")
    following.send(saved(tmp_path, 7))
    assert sum(size for key, size in objects.keys("blocks/").items() if key not in before) == again


def test_a_byte_that_changed_is_refused_and_the_checkpoint_before_it_used(
    objects: Objects, tmp_path: Path
) -> None:
    first = Shelf(objects, "a.1")
    first.take_over()
    first.send(saved(tmp_path / "there", 5))
    newer = saved(tmp_path / "there", 9)
    first.send(newer)
    damage_one(objects)
    following = Shelf(objects, "a.2")
    said = list(make_ready(tmp_path / "here", following.take_over()))
    assert [each.code for each in said] == ["adapters.not_used", "adapters.goes_on_fetched"]
    assert "SHA-256 differs" in str(said[0])
    assert (tmp_path / "here" / "step-5").is_dir()
    assert not (tmp_path / "here" / "step-9").exists()
    assert len(objects.keys("damaged/")) == 1
    following.send(newer)
    assert shelves.fetch(max(Shelf(objects, "a.3").take_over(), key=lambda one: one.step), tmp_path / "third")


def test_half_of_a_checkpoint_is_never_found(objects: Objects, tmp_path: Path) -> None:
    first = Shelf(objects, "a.1")
    first.take_over()
    sent = saved(tmp_path, 5)
    (sent.folder / "head.pt").write_bytes(b"changed while it was sent" * 100)
    with pytest.raises(Damaged):
        first.send(sent)
    assert objects.keys("blocks/")
    assert Shelf(objects, "a.2").take_over() == []


def test_an_orphan_cannot_keep_a_checkpoint_that_anybody_would_use(objects: Objects, tmp_path: Path) -> None:
    orphan, heir = Shelf(objects, "a.1"), Shelf(objects, "a.2")
    orphan.take_over()
    orphan.send(saved(tmp_path / "one", 5))
    assert [each.step for each in heir.take_over()] == [5]
    late = saved(tmp_path / "one", 50)
    with pytest.raises(Overtaken, match="lease 2 has taken"):
        orphan.send(late)
    orphan.guard = lambda: None  # type: ignore[method-assign] # it had looked just before the other took over
    orphan.send(late)
    assert objects.keys("saved/000001/"), "it has written"
    assert [each.step for each in Shelf(objects, "a.3").take_over()] == [5], "and nobody goes on from it"
    with pytest.raises(Overtaken):
        Shelf(objects, "a.2").take_over()


def test_what_an_orphan_sealed_on_this_machine_is_not_gone_on_from(objects: Objects, tmp_path: Path) -> None:
    here = tmp_path / "here"
    saved(here, 50, lease="a.1")
    for lease in ("a.1", "a.2"):
        shelf = Shelf(objects, lease)
        shelf.take_over()
    shelf.send(saved(tmp_path / "two", 20, lease="a.2"))
    third = Shelf(objects, "a.3")
    found = third.take_over()
    said = list(make_ready(here, found, since=third.before))
    assert said == [say("adapters.goes_on_fetched", name="step-20", source=objects.uri)]


def test_the_newest_stay_and_what_only_older_ones_had_goes(objects: Objects, tmp_path: Path) -> None:
    shelf = Shelf(objects, "a.1")
    shelf.take_over()
    for step in (1, 2, 3):
        shelf.send(saved(tmp_path, step))
        shelf.retain(2)
    assert len(objects.keys("saved/")) == 2
    kept = b"".join(objects.get(key) or b"" for key in objects.keys("blocks/"))
    assert b"head 1" not in kept
    following = Shelf(objects, "a.2")
    found = following.take_over()
    assert [each.step for each in found] == [3, 2]
    following.send(saved(tmp_path, 4))
    following.retain(2)
    assert [each.step for each in Shelf(objects, "a.3").take_over()] == [4, 3]
    for each in found[:1]:
        shelves.fetch(each, tmp_path / "still")


@pytest.mark.parametrize("text", ["", "folder", "s3://", "s3://b?key=secret", "gs://b/p", "file://host/x"])
def test_what_is_no_store_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a checkpoint store"):
        store_uri(text)


def test_a_store_has_a_folder_for_each_job() -> None:
    assert below("s3://b/p?endpoint=http://x:1", "job-1") == "s3://b/p/job-1?endpoint=http://x:1"


def an_engine(folder: Path, site: str, uri: str) -> LocalEngine:
    nodes = [replace(a_node(f"{site}-0"), site=site)]
    return LocalEngine(folder / site, nodes, site=site, store=uri)


def test_a_job_goes_on_at_another_site_from_what_its_runner_sent(uri: str, tmp_path: Path) -> None:
    east, west = an_engine(tmp_path, "east", uri), an_engine(tmp_path, "west", uri)
    job = Job(job="a", gpus=1, command=(sys.executable, "-c", COUNTS), folder=str(tmp_path))
    start_one(east, "a.1", job, node="east-0", gpus=(0,))
    eventually(lambda: b"did 20" in east.log("a.1").data)
    stop_one(east, "a.1", grace_s=600)
    eventually(lambda: [each.state for each in east.observe(["a.1"])] == ["ended"])
    (ended,) = east.observe(["a.1"])
    assert ended.moved_bytes > 0
    assert ended.kept_work_s is not None
    assert b"brimful: sent step-" in east.log("a.1").data
    start_one(west, "a.2", job, node="west-0", gpus=(0,), source=east.checkpoints("a"))
    eventually(lambda: west.log("a.2").data.count(b"did") > 20)
    stop_one(west, "a.2", grace_s=600)
    eventually(lambda: [each.state for each in west.observe(["a.2"])] == ["ended"])
    logs = [engine.log(lease).data.decode() for engine, lease in ((east, "a.1"), (west, "a.2"))]
    steps = [int(line.split()[1]) for log in logs for line in log.splitlines() if line.startswith("did")]
    assert steps == list(range(len(steps)))
    assert f"fetched from {uri.partition('?')[0]}" in logs[1]
    eventually(lambda: not east._has_runner("a.1") and not west._has_runner("a.2"))


def test_a_store_that_is_away_is_waited_for_and_nothing_starts_anew(tmp_path: Path) -> None:
    uri = store_uri(str(tmp_path / "mount" / "store"))
    engine = an_engine(tmp_path, "east", uri)
    job = Job(job="a", gpus=1, command=(sys.executable, "-c", "print('begun')"), folder=str(tmp_path))
    start_one(engine, "a.1", job, node="east-0", gpus=(0,))

    def waits() -> bool:
        seen = engine.observe(["a.1"])
        return bool(seen) and seen[0].state == "waiting" and "checkpoint store" in str(seen[0].problem)

    eventually(waits)
    (tmp_path / "mount" / "store").mkdir(parents=True)
    eventually(lambda: [each.state for each in engine.observe(["a.1"])] == ["ended"])
    assert engine.log("a.1").data == b"begun\n"
    eventually(lambda: not engine._has_runner("a.1"))
