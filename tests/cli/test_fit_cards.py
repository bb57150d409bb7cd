"""`brimful fit --gpu all` and `--inference` as people call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brimful.cli.commands import BAD_INPUT, NO, YES
from brimful.cli.main import main
from brimful.language import words

ROOT = Path(__file__).resolve().parent.parent.parent
FINEWEB = str(ROOT / "examples" / "nanogpt" / "train_fineweb.py")


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize(
    "words",
    [
        [FINEWEB, "--gpu", "all"],
        ["--model", "llama-3.1-8b", "--gpu", "all", "--inference"],
        ["--model", "llama-3.1-8b", "--gpu", "4090", "--inference"],
    ],
)
def test_the_answer_fits_the_terminal(
    words: list[str], columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    assert main(["fit", *words]) == YES
    assert max(map(len, capsys.readouterr().out.splitlines())) <= int(columns)


def test_ones_own_prices_change_the_ranking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("k80 = 0.001\nrtx-4090 = 0.5\n")

    assert main(["fit", FINEWEB, "--gpu", "all", "--prices", str(path), "--json"]) == YES
    ranked = json.loads(capsys.readouterr().out)["data"]["ranked"]
    assert [one["gpu"] for one in ranked if one["usd_per_million_tokens"] is not None] == ["k80", "rtx-4090"]


def test_a_card_without_a_price_shows_the_batch_size_it_fits_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", FINEWEB, "--gpu", "all"]) == YES
    said = " ".join(capsys.readouterr().out.split())
    assert f"rtx-4070 ({words('fit.batch_size', size=8)})," in said
    assert "gb300, " in said, "at the batch_size of the config"


def test_a_model_that_does_not_fit_is_a_clear_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--model", "llama-3.1-70b", "--gpu", "4090", "--inference", "--json"]) == NO
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["fits"] is False
    assert data["largest_batch"] is None
    assert main(["fit", "--model", "llama-3.1-70b", "--gpu", "4090", "--inference", "--lang", "en"]) == NO
    assert words("gpu.speed_if_it_fit") in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        [FINEWEB, "--gpu", "rtx-4070", "--prices", "p.toml"],
        [FINEWEB, "--gpu", "all", "--ladder"],
        [FINEWEB, "--inference"],
        [FINEWEB, "--gpu", "4070", "--inference", "--prompt-tokens", "0"],
        ["--model", "bert-base-uncased", "--gpu", "4070", "--inference"],
    ],
)
def test_what_does_not_go_together_is_refused(words: list[str]) -> None:
    assert main(["fit", *words]) == BAD_INPUT
