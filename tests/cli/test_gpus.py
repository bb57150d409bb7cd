import json

import pytest

from brimful.cli.main import main


def test_the_list_names_every_card_and_where_to_read_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus"]) == 0

    text = capsys.readouterr().out
    assert "rtx-4070 " in text
    assert "b200-sxm-180gb" in text
    assert "`brimful gpus NAME`" in text


def test_one_card_shows_its_numbers_and_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "4070"]) == 0

    text = capsys.readouterr().out
    assert "NVIDIA GeForce RTX 4070" in text
    assert "11.69 GiB" in text
    assert "source" in text


def test_json_carries_bytes_and_flops_not_gib(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "h100", "--json"]) == 0

    card = json.loads(capsys.readouterr().out)["data"]
    assert card["name"] == "h100-sxm-80gb"
    assert card["dense_flops_per_s"]["bf16"] == 989e12


def test_a_wrong_name_is_bad_input_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "rtx 4071"]) == 2

    assert "rtx-4070" in capsys.readouterr().err
