"""Every command that takes a config takes a mixture of experts and a vision transformer, or says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brimful.cli.main import main

MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 4096,
}  # fmt: skip
VIT: dict[str, Any] = {
    "model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "image_size": 224, "patch_size": 16, "num_labels": 1000,
    "architectures": ["ViTForImageClassification"],
}  # fmt: skip


def a_config(folder: Path, found: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    return str(path)


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("found", [MIXTRAL, VIT], ids=["experts", "images"])
def test_fit_sweep_claims_and_the_ranking_of_cards_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], found: dict[str, Any]
) -> None:
    config = a_config(tmp_path, found)
    _, fitted = asked(capsys, "fit", config, "--gpu", "rtx-4090", "--set", "bf16=True")
    _, swept = asked(capsys, "sweep", config, "--gpu", "rtx-4090", "--batch-size", "1,2,4,8")
    _, judged = asked(capsys, "claims", config, "--gpu", "rtx-4090")
    _, ranked = asked(capsys, "fit", config, "--gpu", "all")

    assert fitted["ok"]
    assert fitted["data"]["memory"]["device_bytes"]["likely"] > 1e9
    points = [point["device_bytes"]["likely"] for point in swept["data"]["points"]]
    assert points == sorted(points)
    assert {one["claim"] for one in judged["data"]["claims"]} >= {"fp16", "checkpointing", "smaller_model"}
    assert any(one["usd_per_million_tokens"] for one in ranked["data"]["ranked"])


def test_a_mixture_tells_the_parameters_a_token_meets_and_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = a_config(tmp_path, MIXTRAL)
    _, fitted = asked(capsys, "fit", config, "--gpu", "rtx-4090")
    rates = []
    for batch in ("1", "64"):
        words = ("--inference", "--batch-size", batch, "--output-tokens", "64")
        _, served = asked(capsys, "fit", config, "--gpu", "rtx-4090", *words)
        rates.append(served["data"]["decode_step_s"]["likely"])

    assert fitted["data"]["active_parameters"] < 0.4 * fitted["data"]["parameters"]
    assert rates[1] > 1.5 * rates[0]  # one sequence reads two experts of each layer, 64 read all


def test_images_are_told_in_images_and_not_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = a_config(tmp_path, VIT)
    _, fitted = asked(capsys, "fit", config, "--gpu", "rtx-4090")
    refused = [
        asked(capsys, "fit", config, "--gpu", "rtx-4090", "--inference"),
        asked(capsys, "sweep", config, "--gpu", "rtx-4090", "--seq-len", "64,128"),
    ]

    speed = fitted["data"]["speed"]
    assert speed["images_per_s"]["likely"] == pytest.approx(speed["tokens_per_s"]["likely"] / 197)
    assert [code for code, _ in refused] == [2, 2]
    assert all("reads images" in answer["error"]["problem"] for _, answer in refused)
