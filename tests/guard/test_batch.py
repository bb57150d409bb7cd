"""Batch inference: every line once, in order, whoever is killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.errors import BadInput, WorldFailed
from brimful.guard.batch import Answer, Batch, load_model
from tests.patience import PATIENCE_S


def a_file(path: Path, lines: int) -> Path:
    path.write_text(
        "".join(json.dumps({"custom_id": f"c{i}", "prompt": f"line {i}"}) + "\n" for i in range(lines))
    )
    return path


def worker(source: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "brimful.cli.main", "batch", str(source), "--out", str(out), "--worker"]
    command += ["--model", "tiny", "--output-tokens", "200", "--shard-lines", "100"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_ten_thousand_lines_over_four_workers_killed_at_random_come_out_once(
    tmp_path: Path,
) -> None:
    source, out, rng = a_file(tmp_path / "in.jsonl", 10_000), tmp_path / "out.jsonl", random.Random(1)
    batch = Batch(source, out, 100)
    kills = 0
    for _ in range(200):
        workers = [worker(source, out) for _ in range(4)]
        before = _written(batch)
        while kills < 8 and _written(batch) < before + rng.randint(100, 900):
            if all(each.poll() is not None for each in workers):
                break
        for each in workers:
            if kills < 8 and each.poll() is None:
                each.send_signal(signal.SIGKILL)
                kills += 1
            each.wait(timeout=PATIENCE_S)
        if batch.is_done():
            break
    report = batch.join()
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["custom_id"] for record in records] == [f"c{i}" for i in range(10_000)]
    assert report.lines == 10_000
    assert report.output_tokens == 2_000_000
    assert kills >= 4
    written = [
        json.loads(x)["line"] for path in batch.folder.glob("*.jsonl") for x in path.read_text().splitlines()
    ]
    assert len(written) == len(set(written)) == 10_000


def _written(batch: Batch) -> int:
    return sum(path.read_bytes().count(b"\n") for path in batch.folder.glob("*.jsonl"))


def test_half_a_record_is_done_again_and_a_whole_one_is_not(tmp_path: Path) -> None:
    batch = Batch(a_file(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl", 10)
    asked: list[str] = []

    def generate(prompt: str) -> Answer:
        asked.append(prompt)
        return Answer(prompt.upper(), 1, 1)

    shard = batch.folder / "shard-000000.jsonl"
    shard.write_text('{"line": 1, "output": "kept"}\n{"line": 2, "outp')
    assert batch.work(generate) == 2
    assert asked == ["line 0", "line 2"]
    batch.join()
    assert [json.loads(x)["output"] for x in batch.target.read_text().splitlines()] == [
        "LINE 0",
        "kept",
        "LINE 2",
    ]


def test_a_line_that_cannot_be_read_is_an_error_in_its_place(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(
        '{"prompt": "a"}\nnonsense\n{"body": {"messages": [{"role": "user", "content": "b"}]}}\n[]\n'
    )
    batch = Batch(source, tmp_path / "out.jsonl")
    batch.work(load_model("tiny", output_tokens=4))
    report = batch.join()
    assert (report.lines, report.failed) == (4, 2)
    kinds = ["error" in json.loads(line) for line in batch.target.read_text().splitlines()]
    assert kinds == [False, True, False, True]


def test_another_input_under_the_same_output_is_refused(tmp_path: Path) -> None:
    Batch(a_file(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl")
    with pytest.raises(BadInput):
        Batch(a_file(tmp_path / "in.jsonl", 4), tmp_path / "out.jsonl")


def test_nothing_is_joined_while_lines_are_missing(tmp_path: Path) -> None:
    with pytest.raises(WorldFailed):
        Batch(a_file(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl").join()
