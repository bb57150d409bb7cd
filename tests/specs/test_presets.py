import re

import pytest

from brimful.errors import NotFound
from brimful.language import Sentence
from brimful.specs.presets import FAMILIES, all_presets, find_preset
from tests.builders import refuses


@pytest.mark.parametrize(
    ("spoken", "name"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("llama3.1-8b", "llama-3.1-8b"),
        ("GPT-2 XL", "gpt2-xl"),
        ("gpt2", "gpt2"),
        ("qwen2.5 7b", "qwen2.5-7b"),
        ("Qwen/Qwen3-4B", "qwen3-4b"),
        ("tinyllama", "tinyllama-1.1b"),
        ("gemma 2b", "gemma-2b"),
        ("gemma-2-2b-it", "gemma-2-2b"),
        ("microsoft/phi-1_5", "phi-1.5"),
        ("bert-large-uncased", "bert-large"),
        ("EleutherAI/pythia-1b-deduped", "pythia-1b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
    ],
)
def test_a_model_is_known_by_every_name_people_write(spoken: str, name: str) -> None:
    assert find_preset(spoken).model.name == name


def test_a_version_is_not_a_size() -> None:
    assert find_preset("llama 3 8b").model.name == "llama-3-8b"
    assert find_preset("gemma-2b").model.layers != find_preset("gemma-2-2b").model.layers


def test_a_name_that_leaves_the_size_open_lists_the_choices() -> None:
    with refuses(NotFound, "specs.name_ambiguous") as refused:
        find_preset("llama 3.1")

    assert refused.value.code == "ambiguous_model"
    assert "llama-3.1-8b" in refused.value.problem


def test_a_wrong_name_suggests_the_nearest() -> None:
    with refuses(NotFound, "specs.name_unknown") as refused:
        find_preset("lama-3.1-8b")

    assert isinstance(refused.value.way_out, Sentence)
    assert refused.value.way_out.code == "specs.hint_did_you_mean"
    assert str(refused.value.way_out.values["names"]).startswith("llama-3.1-8b")


@pytest.mark.parametrize("nonsense", ["", "   ", "🙂", "x" * 100_000, "\x00", "../../etc/passwd"])
def test_nonsense_is_refused_in_one_short_sentence(nonsense: str) -> None:
    with pytest.raises(NotFound) as refused:
        find_preset(nonsense)

    assert len(refused.value.problem) < 400


def test_every_model_is_found_by_its_own_name_and_title() -> None:
    for preset in all_presets():
        assert find_preset(preset.model.name) is preset
        if "/" in preset.title and " " not in preset.title:
            assert find_preset(preset.title) is preset, preset.title


def test_every_model_has_a_family_a_source_and_the_size_its_name_says() -> None:
    for preset in all_presets():
        assert preset.family in FAMILIES
        assert len(preset.source) > 20, preset.model.name
        said = re.search(r"-(\d+(?:\.\d+)?)(m|b)(?:-|$)", preset.model.name)
        if said and preset.parameters:
            size = float(said[1]) * (1e6 if said[2] == "m" else 1e9)
            assert 0.8 < preset.parameters / size < 1.4, preset.model.name


def test_the_models_our_users_ask_for_are_there() -> None:
    names = {preset.model.name for preset in all_presets()}
    asked = [
        "gpt2",
        "gpt2-medium",
        "gpt2-large",
        "gpt2-xl",
        "pythia-70m",
        "pythia-12b",
        "tinyllama-1.1b",
        "llama-2-7b",
        "llama-2-13b",
        "llama-2-70b",
        "llama-3-8b",
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.2-1b",
        "llama-3.2-3b",
        "llama-3.3-70b",
        "mistral-7b",
        "qwen2-7b",
        "qwen2.5-0.5b",
        "qwen2.5-72b",
        "qwen3-0.6b",
        "qwen3-32b",
        "gemma-2b",
        "gemma-7b",
        "gemma-2-9b",
        "gemma-3-1b",
        "phi-1.5",
        "phi-2",
        "phi-3-mini",
        "phi-4",
        "opt-125m",
        "opt-66b",
        "mpt-7b",
        "falcon-7b",
        "bert-base",
        "bert-large",
        "gpt-neo-125m",
        "cerebras-gpt-111m",
        "stablelm-alpha-3b",
        "yi-34b",
    ]

    assert set(asked) <= names
