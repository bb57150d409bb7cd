"""`brimful market where`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brimful.cli.commands import YES
from brimful.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ARGS = [
    "market",
    "where",
    str(EXAMPLES / "nanogpt" / "train_fineweb.py"),
    "--offers",
    str(EXAMPLES / "offers.csv"),
]


def test_places_are_ranked_with_the_sum_itemised(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGS, "--from", "aws/us-east-1", "--data-gb", "100", "--json"]) == YES
    places = json.loads(capsys.readouterr().out)["data"]["places"]
    totals = [place["usd"]["total"] for place in places]
    assert totals == sorted(totals)
    for place in places:
        usd = place["usd"]
        assert usd["egress"] == 9
        assert usd["total"] == pytest.approx(sum(value for name, value in usd.items() if name != "total"))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--tokens", "0"], "money.not_positive"),
        (["--data-gb", "-1"], "money.negative"),
        (["--inference", "--teacher", "gpt2"], "money.two_jobs"),
        (["--set", "n_layer=960"], "money.fits_nowhere"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    words: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ARGS, *words, "--json"]) != YES
    assert json.loads(capsys.readouterr().out)["error"]["reason"]["code"] == code


def test_the_table_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ARGS) == YES
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
