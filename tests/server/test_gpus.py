"""The machine's GPUs, asked of a driver that was made for the test: whatever it says, the server starts."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from brimful.adapters.capabilities import Complains
from brimful.client.settings import read_settings
from brimful.errors import WorldFailed
from brimful.language import verbatim, words
from brimful.server.run import gpus
from brimful.server.run.engines import engines_of
from tests.fake_nvml import ERRORS, LOST, FakeNvml, a_card
from tests.patience import PATIENCE_S

A100 = "NVIDIA A100-SXM4-80GB"


def offered(folder: Path) -> list[tuple[str, int, bool]]:
    (engine,) = engines_of(read_settings({"data": str(folder)}))
    return [(node.gpu, node.good_gpus, node.declared) for node in engine.nodes()]


def test_cards_and_slices_are_offered_by_what_cuda_calls_them(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    slices = [a_card(f"{A100} MIG 3g.40gb", uuid=f"MIG-{i}") for i in range(2)]
    fake_nvml.show(a_card(uuid="GPU-0"), a_card(A100, uuid="GPU-1", mig_mode=1, slices=slices))
    assert [each.device for each in gpus.detect().devices] == ["0", "MIG-0", "MIG-1"]
    slot = "nvidia-a100-sxm4-80gb-mig-3g.40gb"
    assert offered(tmp_path) == [("rtx-4070", 1, False), (slot, 1, False), (slot, 1, False)]


def test_a_lost_card_is_named_and_the_others_work_on(
    fake_nvml: FakeNvml, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake_nvml.show(a_card(uuid="GPU-0"), a_card(uuid="GPU-1", fails=LOST), a_card(uuid="GPU-2"))
    with caplog.at_level(logging.WARNING, logger="brimful"):
        assert offered(tmp_path) == [("rtx-4070", 2, False)]
    assert "GPU 1" in caplog.text
    assert words("meter.nvml_gpu_is_lost") in caplog.text


@pytest.mark.parametrize(
    ("code", "words", "nodes"),
    [
        ("LIBRARY_NOT_FOUND", "", [("slot", 2, True)]),
        ("GPU_NOT_FOUND", "no GPU was found", [("slot", 2, True)]),
        ("DRIVER_NOT_LOADED", "kernel module is not loaded", []),
        ("LIB_RM_VERSION_MISMATCH", "reboot", []),
        ("UNKNOWN", "does not answer", []),
    ],
)
def test_a_driver_that_does_not_answer_is_told_in_words_and_no_slot_stands_in_for_its_gpus(
    fake_nvml: FakeNvml,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    code: str,
    words: str,
    nodes: list[tuple[str, int, bool]],
) -> None:
    fake_nvml.show(a_card(), fails={"nvmlInit_v2": ERRORS[code], "nvmlInitWithFlags": ERRORS[code]})
    with caplog.at_level(logging.WARNING, logger="brimful"):
        assert offered(tmp_path) == nodes
    assert words in caplog.text
    (engine,) = engines_of(read_settings({"data": str(tmp_path)}))
    assert isinstance(engine, Complains)
    assert bool(engine.complaints()) == (not nodes)


def test_slots_that_are_declared_ask_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "detect", None)
    (engine,) = engines_of(read_settings({"data": str(tmp_path), "slots": 3, "gpu": "t4"}))
    assert [(node.gpu, node.gpus) for node in engine.nodes()] == [("t4", 3)]


def test_a_driver_that_hangs_does_not_hang_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(gpus, "read_gpus", lambda _now_s: hangs.wait(PATIENCE_S))
    monkeypatch.setattr(gpus, "TIMEOUT_S", 0.05)
    found = gpus.detect()
    hangs.set()
    assert found.is_broken
    assert found.problems["driver"].as_dict() == {"code": "server.driver_silent", "timeout_s": 0.05}


def test_a_package_that_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(_now_s: float) -> None:
        raise WorldFailed(
            verbatim("needs nvidia-ml-py"), hint=verbatim("pip install it"), code="no_nvml_package"
        )

    monkeypatch.setattr(gpus, "read_gpus", missing)
    with caplog.at_level(logging.WARNING, logger="brimful"):
        assert gpus.detect() == ([], {}, False)
    assert "needs nvidia-ml-py; pip install it" in caplog.text


def test_a_gpu_that_a_stranger_computes_on_is_taken_until_it_leaves(
    fake_nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "USERS_S", 0.0)
    stranger, screen, idler = (1, 4 << 30, "c"), (1, 4 << 30, "g"), (1, 1 << 20, "c")

    def show(*processes: tuple[int, int, str]) -> None:
        fake_nvml.show(a_card(uuid="GPU-0"), a_card(uuid="GPU-1", processes=processes))

    show()
    (engine,) = engines_of(read_settings({"data": str(tmp_path)}))
    for those, taken in (((stranger,), (1,)), ((screen,), ()), ((idler,), ()), ((), ())):
        show(*those)
        assert [node.taken for node in engine.nodes()] == [taken]
