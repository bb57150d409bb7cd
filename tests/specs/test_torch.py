"""Releases of PyTorch as an input: written as people write them, each change with where it was made."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from brimful.errors import BadInput
from brimful.specs import torch
from brimful.specs.torch import CURRENT, Torch, find_torch
from tests.builders import refuses


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("1.10", "1.10"),
        ("1.10.2+cu113", "1.10"),
        ("v2.6", "2.6"),
        ("torch==2.1.0", "2.1"),
        ("2.9.0a0+git123abc", "2.9"),
        ("2.0.0rc3", "2.0"),
        ("", "current"),
        ("latest", "current"),
    ],
)
def test_a_release_is_read_however_it_is_written(text: str, release: str) -> None:
    assert find_torch(text).release == release


@pytest.mark.parametrize(
    "text", ["two", "2", "2.x", "-1.4", "0.4", "1.1e9", "nan", "٢.١", "9" * 5000, "1.10\n;"]
)
def test_what_is_no_release_is_refused_and_says_where_to_look(text: str) -> None:
    with refuses(BadInput, "specs.torch_unknown") as caught:
        find_torch(text)
    assert "torch.__version__" in caught.value.hint


def test_each_change_holds_from_its_release_on() -> None:
    old, between, new = find_torch("1.10"), find_torch("1.13"), find_torch("2.0")

    assert (old.softmax_keeps_input, between.softmax_keeps_input) == (True, False)
    assert (find_torch("1.12").lazy_loading, between.lazy_loading) == (False, True)
    assert (between.keeps_gradients, new.keeps_gradients) == (True, False)
    assert (between.foreach, new.foreach) == (False, True)
    assert {f.name: getattr(new, f.name) for f in fields(Torch) if f.name != "release"} == {
        f.name: getattr(CURRENT, f.name) for f in fields(Torch) if f.name != "release"
    }


def test_every_change_names_the_release_and_the_place() -> None:
    changes = tomllib.loads(Path(torch.__file__).with_name("torch_changes.toml").read_text())
    for fact, change in changes.items():
        since, source = change["since"], change["source"]
        assert find_torch(since).release == since, fact
        assert "pytorch/pytorch " in source or ".py of PyTorch" in source, fact
