"""Frameworks as data: found by name or address, each fact with the file it was read in."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from brimful.errors import NotFound
from brimful.specs import framework as room
from brimful.specs.framework import (
    PLAIN,
    Framework,
    all_frameworks,
    find_framework,
    framework_at,
)
from tests.builders import refuses

TABLES = tomllib.loads(Path(room.__file__).with_name("frameworks.toml").read_text())


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("Lightning-AI/litgpt", "litgpt"),
        ("https://github.com/Lightning-AI/lit-gpt/issues/7", "litgpt"),
        ("https://github.com/hiyouga/LLaMA-Factory/wiki/Performance-comparison", "transformers"),
        ("huggingface/peft", "transformers"),
        ("https://github.com/pytorch/torchtitan/pull/1884", "torchtitan"),
        ("pytorch/torchtune", "torchtune"),
        ("somebody/my-litgpt-notes", "pytorch"),  # a word inside another is no name
        ("", "pytorch"),
        ("x" * 10_000, "pytorch"),
    ],
)
def test_a_repository_that_names_a_framework_means_it(address: str, name: str) -> None:
    assert framework_at(address).name == name


def test_a_framework_is_found_however_it_is_written() -> None:
    assert find_framework("LitGPT") is find_framework("lit-gpt")
    assert find_framework("pytorch") is PLAIN


def test_an_unknown_framework_is_refused_with_the_names_there_are() -> None:
    with refuses(NotFound, "specs.framework_unknown") as caught:
        find_framework("tensorflow")
    assert "litgpt" in caught.value.hint
    assert caught.value.code == "unknown_framework"


@pytest.mark.parametrize("framework", [each for each in all_frameworks() if each is not PLAIN])
def test_every_fact_differs_from_plain_pytorch_or_says_so_and_has_a_source(framework: Framework) -> None:
    facts = TABLES[framework.name]["facts"]

    assert facts
    for fact, told in facts.items():
        assert hasattr(framework, fact)
        assert ".py" in told["source"] or ".yaml" in told["source"], fact


def test_a_recipe_overrules_the_default_for_its_models_alone() -> None:
    litgpt = find_framework("litgpt")

    assert litgpt.recipe("gemma2-9b qlora") == (8, 16)
    assert litgpt.recipe("tiny-llama lora") == (8, 32)
    assert litgpt.recipe("llama-3.1-8b") == (2, 8)
    assert PLAIN.recipe("gemma-7b") == (None, None)
