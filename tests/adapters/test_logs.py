"""A log that grows without end does not fill the disk, and what is kept is whole."""

from __future__ import annotations

import sys
from pathlib import Path

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.engines.logs import begins, read, shorten
from brimful.fleet.job import Job
from tests.builders import a_node, eventually, start_one


def lines(first: int, count: int) -> bytes:
    return b"".join(b"line %07d\n" % i for i in range(first, first + count))


def test_the_front_of_a_long_log_is_given_back_and_its_offsets_stay(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(lines(0, 100_000))
    size = log.stat().st_size
    shorten(log, keep_bytes=100_000)
    start = begins(log)
    assert log.stat().st_size == size
    assert log.stat().st_blocks * 512 < 2 * 100_000, "the disk has it back"
    piece = read(log, offset=0, limit=1 << 20)
    assert piece.start == start
    assert piece.data.startswith(b"line 00")
    assert piece.data == lines(start // 13, (size - start) // 13)
    assert read(log, offset=-13, limit=100).data == lines(99_999, 1)
    assert read(log, offset=size - 26, limit=13).data == lines(99_998, 1)
    with log.open("ab") as file:
        file.write(lines(100_000, 1))
    assert read(log, offset=size, limit=100).data == lines(100_000, 1)


def test_a_short_log_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(lines(0, 100))
    shorten(log, keep_bytes=1000)
    assert begins(log) == 0
    assert read(log, offset=0, limit=1 << 20).data == lines(0, 100)


def test_a_log_that_grows_as_fast_as_the_disk_takes_it_is_held_down_meanwhile(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path, [a_node()], log_bytes=1 << 20)
    # It writes 300 MB, and waits wherever the disk holds a third of that: until the log is shortened.
    code = (
        "import os, time\nfor i in range(3000):\n os.write(1, b'x' * 99_999 + b'\\n')\n"
        " while os.fstat(1).st_blocks * 512 > 100_000_000: time.sleep(0.01)"
    )
    job = Job(job="a", gpus=1, command=(sys.executable, "-c", code), folder="/")
    start_one(engine, "a.1", job, node="node-0", gpus=(0,))
    log = tmp_path / "a.1" / "log"
    eventually(log.exists)
    eventually(lambda: any(seen.state == "ended" for seen in engine.observe(["a.1"])))
    eventually(lambda: not engine._has_runner("a.1"))
    assert log.stat().st_size == 300_000_000
    assert log.stat().st_blocks * 512 < 101_000_000, "the disk never held them all"


def test_a_burst_of_a_hundred_thousand_lines_arrives_whole(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path, [a_node()])
    code = "import sys\nfor i in range(100_000): sys.stdout.write(f'line {i:07d}\\n')"
    job = Job(job="a", gpus=1, command=(sys.executable, "-c", code), folder="/")
    start_one(engine, "a.1", job, node="node-0", gpus=(0,))
    eventually(lambda: any(seen.state == "ended" for seen in engine.observe(["a.1"])))
    eventually(lambda: not engine._has_runner("a.1"))
    assert engine.log("a.1", limit=2 << 20).data == lines(0, 100_000)
