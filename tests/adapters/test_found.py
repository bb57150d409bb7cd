"""GPUs as the driver lists them. Few test machines have one, so the driver is a script with its output."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.adapters.engines.found import Found, found_gpus


def a_driver(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_one_card_is_found_by_its_catalog_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_driver(tmp_path, "echo '0, NVIDIA GeForce RTX 4070'", monkeypatch)
    assert found_gpus() == [Found(gpu="rtx-4070", indices=(0,))]


def test_cards_of_two_kinds_keep_the_drivers_indices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_driver(
        tmp_path,
        "printf '0, NVIDIA A100-SXM4-80GB\\n1, Tesla T4\\n2, NVIDIA A100-SXM4-80GB\\n'",
        monkeypatch,
    )
    assert found_gpus() == [
        Found(gpu="a100-sxm-80gb", indices=(0, 2)),
        Found(gpu="t4", indices=(1,)),
    ]


def test_a_card_nobody_knows_keeps_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_driver(tmp_path, "echo '0, NVIDIA Quux 9000 Ultra'", monkeypatch)
    assert found_gpus() == [Found(gpu="nvidia-quux-9000-ultra", indices=(0,))]


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'", "true", "echo '[N/A], x'"])
def test_a_driver_that_has_nothing_to_say_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    a_driver(tmp_path, script, monkeypatch)
    assert found_gpus() == []


def test_without_a_driver_nothing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found_gpus() == []
