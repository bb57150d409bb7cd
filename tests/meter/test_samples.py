"""Samples survive a file, and a file that is no such thing is told by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.errors import BadInput, NotFound
from brimful.meter.samples import (
    EndSample,
    GpuSample,
    ProcessSample,
    RunSample,
    Sample,
    StepSample,
    as_line,
    read_samples,
)

SAMPLES: list[Sample] = [
    RunSample(at_s=1.5, pid=7, host="here", command=("train.py", "--x=1"), more={"batch_size": 12}),
    StepSample(
        at_s=2.0, step=1, step_s=0.25, warmup=True, forward_s=0.1, pauses_s={"evaluation": 2.0}, mfu=0.4
    ),
    GpuSample(at_s=2.1, index=0, processes=(ProcessSample(pid=7, used_bytes=None),), throttle=("power_cap",)),
    EndSample(at_s=3.0, steps=1, steady_steps=0, wall_s=1.0, error="KeyboardInterrupt"),
]


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    path = _file(tmp_path, "".join(as_line(sample) + "\n" for sample in SAMPLES))
    assert list(read_samples(path)) == SAMPLES


def test_a_line_cut_short_by_a_crash_ends_the_file(tmp_path: Path) -> None:
    lines = [as_line(sample) for sample in SAMPLES]
    path = _file(tmp_path, lines[0] + "\n" + lines[1][:40])
    assert list(read_samples(path)) == SAMPLES[:1]


def test_kinds_and_fields_of_a_newer_brimful_are_passed_over(tmp_path: Path) -> None:
    path = _file(tmp_path, '{"kind": "weather"}\n{"kind": "end", "at_s": 1, "steps": 2, "steady_steps": 0,'
                 ' "wall_s": 3, "sunshine": true}\n')  # fmt: skip
    assert list(read_samples(path)) == [EndSample(at_s=1.0, steps=2, steady_steps=0, wall_s=3.0)]


@pytest.mark.parametrize(
    "line",
    ["not json", '{"kind": "step"}', '{"kind": "step", "at_s": "now", "step": 1, "step_s": 1}',
     '{"kind": "step", "at_s": 1, "step": true, "step_s": 1}', "[" * 100_000,
     '{"kind": "gpu", "at_s": 1, "index": 0, "processes": [{"pid": "3"}]}'],
)  # fmt: skip
def test_a_line_that_is_no_sample_is_told_by_its_number(tmp_path: Path, line: str) -> None:
    path = _file(tmp_path, as_line(SAMPLES[0]) + "\n" + line + "\n" + as_line(SAMPLES[1]) + "\n")
    with pytest.raises(BadInput) as caught:
        list(read_samples(path))
    said = caught.value.said.as_dict()
    assert (said["code"], said["line"], said["name"]) == ("meter.bad_sample_line", 2, "run.jsonl")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        list(read_samples(tmp_path / "none.jsonl"))
