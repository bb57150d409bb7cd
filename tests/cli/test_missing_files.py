"""A file that is not there is bad input, whatever the command: exit code 2, named in the message."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.cli.main import main

GONE = "nothing-of-that-name"


@pytest.mark.parametrize(
    "words",
    [
        ["fit", f"{GONE}.py", "--gpu", "rtx-4070"],
        ["sweep", f"{GONE}.py", "--gpu", "rtx-4070"],
        ["explain", f"{GONE}.log"],
        ["claims", f"{GONE}.md", "--gpu", "rtx-4070"],
        ["trace", f"{GONE}.py", "--gpu", "rtx-4070"],
        ["replay", f"{GONE}.json"],
        ["why-slow", f"{GONE}.jsonl"],
        ["runs", "record", f"{GONE}.jsonl"],
        ["runs", "score", f"{GONE}.csv"],
        ["runs", "calibrate", f"{GONE}.csv"],
        ["simulate", f"{GONE}.csv", "--fleet", f"{GONE}.toml"],
        ["audit", GONE],
        ["submit", f"{GONE}.toml"],
        ["market", "clear", f"{GONE}.json"],
        ["admin", "restore", GONE],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_missing_file_gives_exit_code_2(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(words) == 2
    told = capsys.readouterr()
    assert GONE in told.err + told.out
