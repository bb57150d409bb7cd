"""`fit --lengths`: the data decide how long the longest step is, and whether steps differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brimful.cli.main import main
from brimful.configs.lengths import Lengths, read_lengths
from brimful.errors import BadInput, NotFound

LORA = [
    "fit", "--model", "qwen2.5-1.5b", "--gpu", "a100-80gb", "--lora", "--batch-size", "2",
    "--seq-len", "2048", "--no-compile", "--json",
]  # fmt: skip


def a_file(folder: Path, text: str) -> Path:
    path = folder / "lengths.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text", ["512\n100\n512\n", "length,count\n512,2\n100,1\n", "512: 2\n100: 1\n", "100\t1\n512\t2"]
)
def test_one_length_a_line_or_a_histogram(tmp_path: Path, text: str) -> None:
    found = read_lengths(a_file(tmp_path, text))

    assert found.counts == ((100, 1), (512, 2))
    assert (found.longest, found.sequences) == (512, 3)


@pytest.mark.parametrize(
    "text", ["", "length\n", "512\nmany\n", "0\n", "512 0\n", "-3\n", "1e9999\n", "5" * 40]
)
def test_what_is_not_a_length_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput):
        read_lengths(a_file(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_lengths(tmp_path / "gone.txt")


def test_padding_is_the_longest_of_the_batch() -> None:
    """Two of 100 or 300: the longest is 300 in three of four, so 250 on average; the mean is 200."""
    even = Lengths(counts=((100, 5), (300, 5)))

    assert even.fill(1) == pytest.approx(1)
    assert even.fill(2) == pytest.approx(200 / 250)
    assert even.cut(200).longest == 200


def test_fit_takes_the_longest_and_the_cache_of_varying_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(text: str | None) -> dict[str, dict[str, dict[str, float]]]:
        lengths = [] if text is None else ["--lengths", str(a_file(tmp_path, text))]
        main([*LORA, *lengths])
        found: dict[str, dict[str, dict[str, float]]] = json.loads(capsys.readouterr().out)["data"]
        return found

    plain, varying = asked(None), asked("2048\n700\n64\n")
    shorter, even = asked("1024\n1000\n"), asked("2048\n4000\n")

    def likely(data: dict[str, dict[str, dict[str, float]]], counter: str) -> float:
        return data["memory"][counter]["likely"]

    assert likely(varying, "allocated_bytes") == likely(plain, "allocated_bytes")
    assert likely(varying, "reserved_bytes") > 1.3 * likely(plain, "reserved_bytes")
    assert varying["chance_of_running_out"] == plain["chance_of_running_out"]
    assert likely(shorter, "allocated_bytes") < 0.7 * likely(plain, "allocated_bytes")
    assert likely(even, "reserved_bytes") == likely(plain, "reserved_bytes")
