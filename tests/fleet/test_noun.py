"""Nouns made in a hurry are the nouns."""

from __future__ import annotations

from dataclasses import field

import pytest

from brimful.fleet.noun import maker, noun


@noun
class Parcel:
    name: str
    stamps: list[str] = field(default_factory=list)
    grams: int = 100


def test_what_a_maker_makes_equals_what_the_class_makes() -> None:
    make = maker(Parcel)

    assert make(name="a") == Parcel(name="a")
    assert make(name="b", stamps=["x"], grams=5) == Parcel(name="b", stamps=["x"], grams=5)
    assert type(make(name="a")) is Parcel


def test_two_made_nouns_share_no_list() -> None:
    make = maker(Parcel)

    make(name="a").stamps.append("x")

    assert make(name="b").stamps == []


def test_a_maker_wants_what_the_class_wants() -> None:
    make = maker(Parcel)

    with pytest.raises(TypeError, match="name"):
        make()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="colour"):
        make(name="a", colour="red")  # type: ignore[call-arg]
