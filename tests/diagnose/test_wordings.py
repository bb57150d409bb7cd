"""Claims and causes in many wordings of four languages: each is found and judged, and nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from brimful.configs.read import read
from brimful.diagnose.claims.judge import Case
from brimful.diagnose.claims.paste import judge_paste
from brimful.diagnose.explain import answer
from brimful.specs.gpu import find_gpu

HERE = Path(__file__).parent
CONFIG = """n_layer = 12
n_head = 12
n_embd = 768
block_size = 1024
vocab_size = 50304
batch_size = 12
gradient_accumulation_steps = 40
dtype = 'bfloat16'
compile = False
"""


def _rows(name: str, key: str) -> list[dict[str, Any]]:
    held: dict[str, list[dict[str, Any]]] = tomllib.loads((HERE / name).read_text(encoding="utf-8"))
    return held[key]


def test_each_text_gets_its_verdicts_and_no_others(tmp_path: Path) -> None:
    config = tmp_path / "train_config.py"
    config.write_text(CONFIG)
    case = Case(read(str(config)), find_gpu("rtx-4070"), 0, correction=None)
    apart = []
    for row in _rows("claims/texts.toml", "text"):
        judged = judge_paste(row["says"], case, lambda words: read(str(config), overrides=words))
        found = sorted(f"{one.claim} {one.verdict}" for one in judged.claims)
        if found != sorted(row["claims"]):
            apart.append((row["says"], row["claims"], found))

    assert not apart


def test_no_claim_is_invented_or_wrongly_judged_in_texts_that_mostly_claim_nothing(
    tmp_path: Path,
) -> None:
    """Before what is not understood whole was left alone, three were invented and three wrong."""
    config = tmp_path / "train_config.py"
    config.write_text(CONFIG)
    case = Case(read(str(config)), find_gpu("rtx-4070"), 0, correction=None)
    apart, right = [], 0
    for row in _rows("claims/modest.toml", "text"):
        for one in judge_paste(row["says"], case, lambda words: read(str(config), overrides=words)).claims:
            if f"{one.claim} {one.verdict}" in row["claims"]:
                right += 1
            elif one.verdict != "cannot_tell" or not any(one.claim in each for each in row["claims"]):
                apart.append((one.claim, one.verdict, row["says"]))

    assert not apart
    assert right >= 20  # of 36: modest, not mute


@pytest.mark.parametrize("row", _rows("wordings.toml", "message"), ids=lambda row: row["says"][:40])
def test_each_message_or_question_gets_its_cause_and_a_fix(row: dict[str, Any]) -> None:
    found = answer(row["says"])
    if not row["cause"]:
        assert found is None
        return
    assert found is not None

    assert found.cause in row["cause"].split("|")
    assert found.fixes
    # Words do not prove a cause; the numbers of an out-of-memory message may.
    assert not found.certain or re.search(r"\d\s?[KMGT](?:i?B)?\b", row["says"])
