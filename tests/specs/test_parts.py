"""Codes of parts and moments: each has a name in every language."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from brimful.language import LANGUAGES, language
from brimful.specs.estimate import Peak
from brimful.specs.parts import PARTS, Moment, moment, part


@pytest.mark.parametrize("code", LANGUAGES)
def test_every_part_and_moment_has_a_name_of_its_own(code: str) -> None:
    tongue = language(code)
    names = [tongue.text(part(each)) for each in PARTS]
    moments = [tongue.text(moment(each)) for each in get_args(Moment)]

    assert len(set(names)) == len(PARTS)
    assert len(set(moments)) == len(moments) == 6


def test_a_peak_says_its_stage_only_in_a_pipeline() -> None:
    assert Peak("optimizer_step").says().plain()[0] == {"code": "specs.moment_optimizer_step"}
    assert not re.search(r"\d", str(Peak("optimizer_step").says()))
    assert re.findall(r"\d+", str(Peak("forward_end", 2, 8).says())) == ["2", "8"]
    assert Peak("forward_end", 2, 8).as_dict()["peak_at_stage"] == {"stage": 2, "of": 8}
    assert Peak("forward_end").as_dict()["peak_at_stage"] is None
