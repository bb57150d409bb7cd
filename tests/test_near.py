"""A mistyped word is refused with the one that was meant; a word we merely do not know is not."""

from __future__ import annotations

import json

import pytest

from brimful.cli.main import main
from brimful.client.settings import read_settings
from brimful.configs.read import read
from brimful.errors import BadInput, NotFound
from brimful.language.near import similar, slips_of
from brimful.specs.gpu import refuse_slip


def test_a_slip_is_one_keystroke() -> None:
    known = ("adamw", "full", "fp8")
    for word, meant in (
        ("adamm", "adamw"),
        ("adam", "adamw"),
        ("fulll", "full"),
        ("flul", "full"),
        ("fp7", "fp8"),
    ):
        assert slips_of(word, known) == [meant]
    for word in ("adamw", "nadam", "sophia", "", "fp16"):
        assert slips_of(word, known) == []


def test_the_nearest_word_comes_first() -> None:
    assert similar("fifoo", ("fair", "fifo", "las")) == ["fifo"]
    assert similar("bogus", ("logs", "jobs")) == []


@pytest.mark.parametrize(
    "said", ["optimizer=adamm", "precision=fp7", "checkpointing=fulll", "attention=flesh", "sharding=zero4"]
)
def test_a_mistyped_setting_is_refused(said: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(None, model="gpt2", overrides=[said])
    assert refused.value.code == "unknown_word"
    assert refused.value.way_out is not None


@pytest.mark.parametrize(
    "said", ["optimizer=sophia", "optimizer=nadam", "optimizer=adam4bit", "attention=fa4"]
)
def test_a_setting_we_do_not_know_is_guessed(said: str) -> None:
    assert read(None, model="gpt2", overrides=[said]).unsure == 1


@pytest.mark.parametrize("name", ["rtx-4071", "RTX 4071", "h101", "l41s"])
def test_a_mistyped_card_is_refused(name: str) -> None:
    with pytest.raises(NotFound) as refused:
        refuse_slip(name)
    assert refused.value.code == "unknown_gpu"


@pytest.mark.parametrize(
    "name", ["h100", "a100", "slot", "p40", "rtx-2070", "NVIDIA H20", "my-rtx-4071", "tpu-v4"]
)
def test_a_card_of_the_fleet_needs_no_row(name: str) -> None:
    refuse_slip(name)


def test_up_and_submit_refuse_a_mistyped_card(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotFound):
        read_settings({"gpu": "rtx-4071"}, {})
    assert read_settings({"gpu": "p40"}, {}).gpu == "p40"


@pytest.mark.parametrize(
    "words", [["jobs", "--phase", "waitng"], ["completion", "basch"], ["jobs", "--phase", "no"]]
)
def test_a_word_outside_the_choices_is_bad_input(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["reason"]["code"] == "cli.not_a_choice"
