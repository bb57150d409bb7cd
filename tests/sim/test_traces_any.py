"""Whatever stands in a file, reading it ends in jobs or in a refusal: never in a crash."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brimful.errors import BrimfulError
from brimful.sim.traces.read import read

HEADS = (
    "job,submit_s,run_s,gpus,priority,gpu_milli,gpu,peak_mib",
    "timestamp,duration,num_gpus,cluster",
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time",
    "sn,cpu_milli,memory_mib,gpu,model",
    "name,time,application,num_replicas,batch_size",
    "JobID|Submit|Elapsed|ElapsedRaw|AllocTRES",
)
WORDS = st.sampled_from(
    (
        "",
        "0",
        "1",
        "-1",
        "8",
        "1e9",
        "nan",
        "inf",
        "1e400",
        "9" * 30,
        "a",
        '"',
        "2017-10-09 07:01:55",
        "bert",
        "2026-01-01T00:00:00+99:00",
        "gres/gpu=8",
        "gres/gpu:a100=2,mem=1.5T",
        "cpu=x",
        "1-02:03:04",
        "\x00",
        "ü",
    )
)
TABLES = st.builds(
    lambda head, rows: "\n".join([head, *[("|" if "|" in head else ",").join(row) for row in rows]]),
    st.sampled_from(HEADS),
    st.lists(st.lists(WORDS, min_size=1, max_size=9), max_size=6),
)
GAVEL = st.builds(
    lambda rows: "\n".join("\t".join(row) for row in rows),
    st.lists(st.lists(WORDS, min_size=9, max_size=11), min_size=1, max_size=4),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["None", "2017-10-09 07:01:55", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["jobid", "attempts", "submitted_time", "start_time", "end_time", "detail", "gpus", "null"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


def read_or_refuse(path: Path) -> None:
    for lenient in (False, True):
        try:
            trace, skips = read([str(path)], lenient=lenient)
        except BrimfulError:
            continue
        assert lenient or skips.count == 0
        assert all(a.work_s >= 0 and a.at_s >= 0 and a.job.gpus >= 0 for a in trace.arrivals)
        assert [a.at_s for a in trace.arrivals] == sorted(a.at_s for a in trace.arrivals)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any") / "trace"


@given(st.one_of(TABLES, GAVEL, st.text(max_size=300)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=100)
def test_any_text_is_read_or_refused(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    read_or_refuse(path)


@given(JSON)
@settings(max_examples=60, deadline=None)
def test_any_json_is_read_or_refused(path: Path, value: object) -> None:
    path.write_text(json.dumps([{"submitted_time": 1, "attempts": []}, value]), encoding="utf-8")
    read_or_refuse(path)
    path.write_text(json.dumps({"null": value, "v100": value}), encoding="utf-8")
    read_or_refuse(path)


@given(st.binary(max_size=300))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_read_or_refused(path: Path, raw: bytes) -> None:
    for content in (raw, b"\x1f\x8b" + raw, gzip.compress(raw)):
        path.write_bytes(content)
        read_or_refuse(path)
