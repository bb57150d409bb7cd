"""`submit --gpus 2..8`: a range on the command line, and its scaling curve out of a training config."""

from __future__ import annotations

import json

import pytest

from brimful.cli.fleet.estimates import estimates_for
from brimful.cli.main import main
from tests.conftest import ROOT

CONFIG = str(ROOT / "examples" / "nanogpt" / "train_gpt2.py")
H100 = "h100-sxm-80gb"


def test_a_config_says_how_a_gang_scales_at_the_same_effective_batch() -> None:
    predicted = estimates_for(CONFIG, [H100], gpus="2..8").predicted[H100]
    alone = estimates_for(CONFIG, [H100], gpus=8).predicted[H100]
    assert list(predicted["scaling"]) == [4, 8]
    assert 1.0 < predicted["scaling"][4] < predicted["scaling"][8] <= 4.0
    assert predicted["step_s"] / predicted["scaling"][8] == pytest.approx(alone["step_s"])


def test_a_range_and_a_curve_go_along_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["submit", "--gpus", "2..8", "--scaling", "4:1.9,8:3.5", "--dry-run", "--no-pack", "--json"]
    assert main([*words, "--", "true"]) == 0
    job = json.loads(capsys.readouterr().out)["data"]["job"]
    assert (job["gpus"], job["scaling"]) == ("2..8", {"4": 1.9, "8": 3.5})


@pytest.mark.parametrize("given", ["8..2", "2..", "3..8", "1..4096"])
def test_a_range_that_cannot_be_is_one_clear_error(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--gpus", given, "--dry-run", "--json", "--", "true"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"]


@pytest.mark.parametrize("retries", [0, 3])
def test_no_retries_may_be_asked_for_too(retries: int, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["submit", "--retries", str(retries), "--dry-run", "--no-pack", "--json", "--", "true"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["data"]["job"]["retries"] == retries
