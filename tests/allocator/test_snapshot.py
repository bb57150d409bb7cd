"""Real snapshots are read whatever version wrote them; hostile and broken ones are refused and do nothing."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from brimful.allocator import Settings
from brimful.allocator import snapshot as module
from brimful.allocator.snapshot import Snapshot, read_snapshot
from brimful.errors import BadInput, BrimfulError, NotFound
from brimful.language import Quoted
from brimful.units import MIB
from tests.allocator.recording import Recording, a_run


def written(tmp_path: Path, raw: object, *, protocol: int = 4) -> Path:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(raw, protocol=protocol))
    return path


def as_torch_writes(raw: dict[str, Any]) -> dict[str, Any]:
    """The JSON form, which names its fields by position, as the dict that PyTorch pickles."""
    labels = raw["labels"]

    def frames(label: int) -> list[dict[str, Any]]:
        return [{"filename": "/src/me/model.py", "line": 1, "name": labels[label]}]

    keys = ("action", "addr", "size", "stream", "time_us")
    traces = [
        [dict(zip(keys, event[:5], strict=True)) | {"frames": frames(event[5])} for event in trace]
        for trace in raw["device_traces"]
    ]
    segments = [
        segment
        | {
            "frames": [],
            "blocks": [
                {"address": b[0], "size": b[1], "requested_size": b[2], "state": b[3], "frames": frames(b[4])}
                for b in segment["blocks"]
            ],
        }
        for segment in raw["segments"]
    ]
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": raw["allocator_settings"],
        "external_annotations": [],
    }


def without_labels(snapshot: Snapshot) -> tuple[object, ...]:
    return (
        [[event._replace(label="") for event in trace] for trace in snapshot.traces],
        [(s.address, s.nbytes, s.small, [b._replace(label="") for b in s.blocks]) for s in snapshot.segments],
        snapshot.settings,
    )


def a(code: str, **values: object) -> dict[str, Any]:
    return {"code": f"allocator.{code}", **values}


def refused(what: str, **values: object) -> dict[str, Any]:
    return a("pickle_refused", what=a(what, **values))


def code(caught: pytest.ExceptionInfo[BrimfulError]) -> str:
    return str(caught.value.said.as_dict()["code"])


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_of_any_protocol_says_the_same_as_the_json(
    shared_data: Path, tmp_path: Path, protocol: int
) -> None:
    path = shared_data / "snapshots" / "silmont__mem_snapshot.json.gz"
    raw = json.loads(gzip.decompress(path.read_bytes()))
    pickled = written(tmp_path, as_torch_writes(raw), protocol=protocol)
    assert without_labels(read_snapshot(pickled)) == without_labels(read_snapshot(path))


def test_a_gzipped_pickle_is_read_too(tmp_path: Path) -> None:
    raw = a_run(Recording(), 50, seed=1).snapshot()
    path = tmp_path / "snapshot.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(raw)))
    assert len(read_snapshot(path).traces[0]) == len(raw["device_traces"][0])


def test_several_devices_keep_their_own_traces(tmp_path: Path) -> None:
    one, other = a_run(Recording(), 40, seed=1).snapshot(), a_run(Recording(), 60, seed=2).snapshot()
    for segment in other["segments"]:
        segment["device"] = 2
    raw = one | {
        "segments": one["segments"] + other["segments"],
        "device_traces": [one["device_traces"][0], [], other["device_traces"][0]],
    }
    snapshot = read_snapshot(written(tmp_path, raw))
    assert snapshot.devices == (0, 2)
    assert [len(trace) for trace in snapshot.traces] == [len(t) for t in raw["device_traces"]]


def test_a_first_version_without_addresses_pools_and_times_is_read(tmp_path: Path) -> None:
    """PyTorch 1.13 and 2.0 kept a block's request in its history."""
    blocks = [
        {
            "size": 4 * MIB,
            "state": "active_allocated",
            "history": [{"addr": 0, "real_size": 4000000, "frames": []}],
        },
        {"size": 16 * MIB, "state": "inactive"},
    ]
    segment = {
        "address": 1 << 40,
        "total_size": 20 * MIB,
        "stream": 0,
        "segment_type": "large",
        "blocks": blocks,
    }
    event = {"action": "alloc", "addr": 1 << 40, "size": 4000000, "stream": 0}
    for raw in ({"segments": [segment], "device_traces": [[event]]}, [segment]):
        snapshot = read_snapshot(written(tmp_path, raw))
        assert [(b.address - (1 << 40), b.nbytes, b.requested) for b in snapshot.segments[0].blocks] == [
            (0, 4 * MIB, 4000000),
            (4 * MIB, 16 * MIB, 16 * MIB),
        ]
        assert snapshot.notes[0].code == "allocator.note_default_settings"


def test_the_settings_in_force_are_read_from_what_pytorch_says(tmp_path: Path) -> None:
    conf = "expandable_segments:True,max_split_size_mb:128,roundup_power2_divisions:[1:2,2:4]"
    snapshot = read_snapshot(written(tmp_path, Recording(conf).snapshot()))
    assert snapshot.settings == Settings.parse(conf)


def test_settings_of_a_later_version_are_noted_and_not_fatal(tmp_path: Path) -> None:
    raw = Recording().snapshot()
    raw["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "some_new_option:3"
    snapshot = read_snapshot(written(tmp_path, raw))
    assert snapshot.notes[0].values["conf"] == Quoted("some_new_option:3")
    assert snapshot.settings == Settings()


def test_who_asked_is_the_operator_and_the_users_own_line(tmp_path: Path) -> None:
    raw = Recording().snapshot()
    raw["device_traces"] = [
        [
            {
                "action": "alloc",
                "addr": 1,
                "size": 2,
                "stream": 0,
                "frames": [
                    {"filename": "??", "line": 0, "name": "at::_ops::bmm::call(at::Tensor const&)"},
                    {"filename": "/venv/site-packages/torch/nn/functional.py", "line": 9, "name": "linear"},
                    {"filename": "/src/me/model.py", "line": 41, "name": "forward"},
                ],
            }
        ]
    ]
    assert read_snapshot(written(tmp_path, raw)).traces[0][0].label == "bmm model.py:41 forward"


# Hostile files.


class Runs:
    """What an attacker pickles: unpickling it runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (self.command,))


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_does_nothing(tmp_path: Path, protocol: int) -> None:
    touched = tmp_path / "touched"
    raw = Recording().snapshot() | {"external_annotations": [Runs(f"touch {touched}")]}
    path = written(tmp_path, raw, protocol=protocol)
    with pytest.raises(BadInput) as caught:
        read_snapshot(path)
    assert code(caught) == "allocator.pickle_refused"
    assert not touched.exists()
    pickle.loads(path.read_bytes())
    assert touched.exists(), "the file is no attack, so the test shows nothing"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", refused("pickle_names_object")),
        (b"(S'true'\nios\nsystem\n.", refused("pickle_names_object")),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", refused("pickle_names_object")),
        (b"\x80\x02]q\x00)\x81.", refused("pickle_calls")),
        (b"Pid\n.", refused("pickle_refers_outside")),
        (b"\x80\x02K\x01Q.", refused("pickle_refers_outside")),
        (b"\x80\x02\x82\x01.", refused("pickle_refers_outside")),
        (b"\x80\x05\x97.", refused("pickle_refers_outside")),
        (b"\x80\x02]r\xff\xff\xff\x7f.", a("pickle_memo", index=2_147_483_647)),
        (b"]p99999999999\n.", a("pickle_memo", index=99_999_999_999)),
        (b"\x80\x04\x8b\xff\xff\xff\x7f.", a("pickle_number", length=2_147_483_647)),
        (b"\x80\x04" + b"(" * 1000 + b".", a("pickle_nests", deep=64)),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x00.", a("cut_off")),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x00.", a("pickle_unreadable")),
        (b"\x80\x04a.", a("pickle_unreadable")),
        (b"\x80\x04]]s.", a("pickle_unreadable")),
        (b"\x80\x04h\x07.", a("pickle_unreadable")),
        (b"\x80\x04.", a("pickle_unreadable")),
        (b"\x80\x63N.", a("pickle_unreadable")),
        (b"\x80\x04K\x07.", a("no_segments")),
        (b"\x80\x04]\x94.", a("empty_snapshot")),
        (b"", a("cut_off")),
        (b"\xff\xfe\x00", refused("pickle_opcode", opcode="0xff")),
        (b'{"segments": 7}', a("not_a_list", at="segments", kind="int")),
        (b'{"segments": [', a("json_unreadable")),
        (b'{"a": ' + b"[" * 100_000, a("json_unreadable")),
        (
            b'{"segments": [{"address": 1e400, "total_size": 5}]}',
            a("not_a_number", at="segments[0].address"),
        ),
        (
            b'{"segments": [], "device_traces": [[["alloc", "x", 1, 0]]]}',
            a("not_a_number", at="device_traces[0][0]", value="x"),
        ),
        (b'{"segments": [], "device_traces": [[7]]}', a("is", at="device_traces[0][0]", value=7)),
        (b'{"segments": [7]}', a("is", at="segments[0]", value=7)),
        (
            b'{"segments": [{"address": 0, "total_size": 5, "blocks": [[0, 4, 4, "inactive"]]}]}',
            a("blocks_do_not_fill", at="segments[0]"),
        ),
    ],
)
def test_what_is_not_a_plain_snapshot_is_refused_with_a_reason(
    tmp_path: Path, program: bytes, said: dict[str, Any]
) -> None:
    from brimful.allocator.replay import replay

    path = tmp_path / "bad.pickle"
    path.write_bytes(program)
    with pytest.raises(BrimfulError) as caught:
        replay(path)
    assert caught.value.said.as_dict().items() >= said.items()


def test_a_file_cut_off_anywhere_says_so(tmp_path: Path) -> None:
    whole = pickle.dumps(a_run(Recording(), 30, seed=3).snapshot())
    path = tmp_path / "cut.pickle"
    for length in range(1, len(whole) - 1, len(whole) // 40):
        path.write_bytes(whole[:length])
        with pytest.raises(BadInput) as caught:
            read_snapshot(path)
        assert code(caught) in ("allocator.cut_off", "allocator.pickle_unreadable")
    packed = gzip.compress(whole)
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(BadInput) as caught:
        read_snapshot(path)
    assert code(caught) == "allocator.gzip_damaged"


def test_a_damaged_file_never_gives_anything_but_our_own_error(tmp_path: Path) -> None:
    """Random bytes in a real pickle: read or refused, within bounds, and nothing else."""
    from brimful.allocator.replay import replay

    whole = pickle.dumps(a_run(Recording(), 25, seed=4).snapshot())
    path = tmp_path / "damaged.pickle"
    choose = random.Random(5)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(choose.choice((1, 1, 3))):
            data[choose.randrange(len(data))] = choose.randrange(256)
        path.write_bytes(data)
        try:
            replay(path, sweep=False)
        except BrimfulError:
            refused += 1
    assert 50 < refused < 300


def test_size_limits_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, Recording().snapshot())
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 100)
    with pytest.raises(BadInput) as caught:
        read_snapshot(path)
    assert code(caught) == "allocator.file_too_large"
    path.write_bytes(gzip.compress(bytes(1000)))  # a small file that unpacks to a large one
    with pytest.raises(BadInput) as caught:
        read_snapshot(path)
    assert code(caught) == "allocator.unpacks_too_large"
    monkeypatch.undo()
    monkeypatch.setattr(module, "MAX_EVENTS", 10)
    with pytest.raises(BadInput) as caught:
        read_snapshot(written(tmp_path, a_run(Recording(), 50, seed=1).snapshot()))
    assert code(caught) == "allocator.too_many_events"


def test_a_small_file_that_unpacks_to_very_much_is_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ALWAYS_UNPACKED_BYTES", 10_000)
    path = tmp_path / "snapshot.json.gz"
    path.write_bytes(gzip.compress(b'{"segments": [' + b"0," * 1_000_000 + b"0]}"))
    with pytest.raises(BadInput) as caught:
        read_snapshot(path)
    assert code(caught) == "allocator.unpacks_too_large"


@pytest.mark.parametrize("size", [-1, 1 << 50, 1 << 62])
def test_sizes_that_no_gpu_has_are_refused(size: int, tmp_path: Path) -> None:
    raw = Recording().snapshot()
    raw["device_traces"] = [[{"action": "alloc", "addr": 1 << 40, "size": size, "stream": 0}]]
    with pytest.raises(BadInput) as caught:
        read_snapshot(written(tmp_path, raw))
    assert code(caught) in ("allocator.too_many_bytes", "allocator.not_a_number")


def test_a_request_that_failed_may_have_been_for_any_size(tmp_path: Path) -> None:
    raw = Recording().snapshot()
    raw["device_traces"] = [[{"action": "oom", "device_free": 5, "size": 1 << 60, "stream": 0}]]
    assert read_snapshot(written(tmp_path, raw)).traces[0][0].nbytes == 1 << 60


def test_settings_that_pytorch_cannot_have_had_are_left_out(tmp_path: Path) -> None:
    raw = Recording().snapshot()
    raw["allocator_settings"] |= {
        "max_split_size": True,
        "garbage_collection_threshold": float("nan"),
        "roundup_power2_divisions": {str(1 << i) if i else "²": 3 for i in range(16)},
    }
    snapshot = read_snapshot(written(tmp_path, raw))
    assert snapshot.settings == Settings()
    assert "allocator.note_divisions" in {note.code for note in snapshot.notes}


@pytest.mark.parametrize(("name", "said"), [("none.pickle", "no_file"), ("", "folder")])
def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(NotFound if said == "no_file" else BadInput) as caught:
        read_snapshot(tmp_path / name)
    assert code(caught) == f"allocator.{said}"
