"""Fit without a server: the documentation's page runs this in the reader's browser (tools/try_page.py).

It imports nothing compiled, and gives the console's answer to the same question.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import chdir
from functools import cache
from tempfile import mkdtemp
from typing import Any

from brimful.errors import BadInput, BrimfulError
from brimful.language import choose, say, told
from brimful.server.console.fit_charts import fit_shapes
from brimful.server.console.fit_form import link_to, split_settings
from brimful.server.console.templating import templates_here
from brimful.server.fitting import MOST_CARDS
from brimful.server.fitting.answer import answered
from brimful.units import MIB

LARGEST = 1_000_000  # MiB held by other programs, as in the API


def result(asked: str) -> str:
    """The HTML answer to a form, given as JSON; with `language` beside its fields."""
    given: dict[str, Any] = json.loads(asked)
    choose(given["language"])
    answer, problem, hint = None, "", ""
    try:
        answer = _answer(given)
    except BrimfulError as error:
        problem, hint = told(error.said), told(error.way_out) if error.way_out else ""
    except (RecursionError, MemoryError):  # from a paste that is not a config
        problem = told(say("server.fit_too_deep"))
    values = {"problem": problem, "hint": hint, "fit": fit_shapes(answer) if answer else None}
    return templates_here().get_template("fit_result.html").render(**values, link=link_to(given, ""))


def _answer(given: Mapping[str, Any]) -> Mapping[str, Any]:
    other = given["other_mib"]
    if other and not (other.isdecimal() and int(other) <= LARGEST):
        raise BadInput(say("try.other_mib", most=LARGEST))
    if len(given["gpus"]) > MOST_CARDS:
        raise BadInput(say("try.too_many_cards", most=MOST_CARDS))
    with chdir(_folder()):
        return answered(
            config=given["config"],
            text=given["text"],
            model=given["model"],
            gpus=given["gpus"],
            settings=split_settings(given["settings"]),
            other_bytes=int(other) * MIB if other else None,
        )


@cache
def _folder() -> str:
    """Empty; in a browser it exists in memory only."""
    return mkdtemp(prefix="brimful-fit-")
