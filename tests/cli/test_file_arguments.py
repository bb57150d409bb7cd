"""Whatever file a command is given: one that never ends, or that nobody writes, is refused at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.cli.main import main

REGULAR_ONLY = [
    ["replay", "{}"],
    ["simulate", "{}", "--fleet", "1x8"],
    ["market", "clear", "{}"],
    ["market", "deadline", "{}", "--task-hours", "20", "--deadline-hours", "24"],
    ["market", "ledger", "{}"],
    ["invoice", "--log", "{}"],
    ["runs", "record", "{}"],
    ["why-slow", "{}"],
    ["fit", "--model", "gpt2", "--gpu", "all", "--prices", "{}"],
    ["audit", __file__, "--prices", "{}", "--fleet", "1x8", "--zone", "UTC"],
]
WITH_PIPES = [["explain", "{}"], ["claims", "--text", "{}"], ["submit", "{}"]]
# In a process of its own, so that a mistake costs 2 GiB and two minutes of processor time, and not the tests.
RUN = """
import json, resource, sys
from brimful.cli.main import main
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
for words in json.loads(sys.argv[1]):
    print(json.dumps({"words": words}), file=sys.stderr, flush=True)
    code = main([*words, "--json"])
    print(json.dumps({"code": code}), file=sys.stderr, flush=True)
"""


def codes(commands: list[list[str]], file: str) -> dict[str, int | None]:
    """The exit code of each command; none for the one that did not end."""
    given = [[word.format(file) for word in words] for words in commands]
    run = [sys.executable, "-c", RUN, json.dumps(given)]
    with subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        try:
            _, told = child.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            child.kill()
            _, told = child.communicate()
    ended = [json.loads(line)["code"] for line in told.splitlines() if line.startswith('{"code"')]
    names = [" ".join(words) for words in commands]
    return dict(zip(names, [*ended, *[None] * len(names)], strict=False))


def test_a_device_without_end_is_refused_by_every_command() -> None:
    commands = REGULAR_ONLY + WITH_PIPES

    assert codes(commands, "/dev/zero") == {" ".join(words): 2 for words in commands}


def test_a_pipe_without_a_writer_keeps_no_command_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    assert codes(REGULAR_ONLY, str(pipe)) == {" ".join(words): 2 for words in REGULAR_ONLY}
    ended = codes(WITH_PIPES, str(pipe))
    assert None not in ended.values(), ended


def test_a_sparse_file_of_many_gigabytes_is_refused_or_read_from_its_end(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(6 << 30)
        file.seek(-40, os.SEEK_END)
        file.write(b"\nRuntimeError: CUDA out of memory.\n")

    refused = REGULAR_ONLY + WITH_PIPES[1:]  # advice of more than 100,000 characters is refused too
    assert codes(refused, str(sparse)) == {" ".join(words): 2 for words in refused}
    assert codes(WITH_PIPES[:1], str(sparse)) == {"explain {}": 0}


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["explain", "{}"], "1.54 GiB"), (["claims", "--text", "{}"], "Gradient checkpointing saves memory.")],
)
def test_a_pipe_that_somebody_wrote_to_is_read(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write(
            "CUDA out of memory. Tried to allocate 1.54 GiB.\n\nGradient checkpointing saves memory.\n"
        )
    try:
        assert main([word.format(f"/dev/fd/{reading}") for word in words]) == 0
    finally:
        os.close(reading)
    assert expected in capsys.readouterr().out


def test_a_pipe_that_never_ends_is_not_read_for_ever() -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        run = [sys.executable, "-m", "brimful", "explain", "--json"]
        try:
            done = subprocess.run(run, stdin=endless.stdout, capture_output=True, timeout=600, check=False)
        finally:
            endless.stdout.close()
            endless.kill()
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["reason"]["code"] == "gpu.explain_text_too_long"


def test_a_record_of_capacity_nested_too_deeply_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text("[" * 200_000)

    words = ["market", "deadline", str(path), "--task-hours", "20", "--deadline-hours", "24", "--json"]
    assert main(words) == 2
    assert json.loads(capsys.readouterr().out)["error"]["reason"]["code"] == "sim.bad_capacity_record"
