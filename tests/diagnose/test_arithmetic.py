"""What a text's own figures decide, without its words."""

from __future__ import annotations

import re
import tomllib
from importlib import resources

import pytest

from brimful.diagnose import causes
from brimful.diagnose.arithmetic import batch_change, part_of, strangers_on_first
from brimful.diagnose.causes import find_answer, plain_part
from brimful.diagnose.explain import answer
from brimful.diagnose.tables import Process
from brimful.units import GIB, MIB


def test_two_batches_and_two_memories_give_the_part_that_stays() -> None:
    change = batch_change("von 8 auf 4, der speicher sank von 21,3 auf 18,9 gib", halved=False)

    assert change is not None
    assert change.less_than_in_proportion
    assert change.fixed_bytes == pytest.approx(16.5 * GIB, rel=1e-3)


def test_a_halved_batch_needs_no_pair_of_batches() -> None:
    change = batch_change("memory fell from 30 gb to 26 gb", halved=True)

    assert change is not None
    assert change.fixed_bytes == pytest.approx(22 * GIB)


def test_memory_in_proportion_to_the_batch_has_no_part_that_stays() -> None:
    change = batch_change("batch 8 -> 4, memory 20 gb -> 10 gb", halved=False)

    assert change is not None
    assert not change.less_than_in_proportion


def test_other_ranks_on_the_first_card_are_told_from_helpers_on_every_card() -> None:
    astray = tuple(Process(0, "python", size * MIB) for size in (18_000, 870, 871, 871))
    same_elsewhere = tuple(Process(1, each.program, each.bytes) for each in astray)

    said = strangers_on_first(astray)

    assert said is not None
    assert said.values["count"] == 3
    assert strangers_on_first((*astray, *same_elsewhere)) is None
    assert strangers_on_first(astray[:1]) is None


def test_two_sizes_may_share_one_unit() -> None:
    assert part_of("Free memory on device cuda:0 (1.53/22.05 GiB) on startup") is not None
    assert part_of("step 3/10 took 2 s") is None


def test_one_request_above_the_card_that_the_text_names_is_not_certain() -> None:
    found = answer("allocating 98304.00 MiB on device 0: cudaMalloc failed: out of memory, on an H100 80GB")

    assert found is not None
    assert (found.cause, found.certain) == ("request_larger_than_card", False)


def test_a_request_above_the_total_that_the_program_itself_prints_is_certain() -> None:
    found = answer("alloc size : 100555779072 is more than total mem size : 61079552000.")

    assert found is not None
    assert (found.cause, found.certain) == ("request_larger_than_card", True)


@pytest.mark.parametrize(
    ("sign", "part"),
    [
        (r"\bXid\b[^\n]{0,40}: ?(?:48|62)\b", "Xid"),
        (r"[Nn]o space left (?:on|in) device", "o space left "),
        (r"colou?r of it", "r of it"),
        (r"\(pid \d+\) died", ") died"),
        (r"one|other", ""),
    ],
)
def test_the_plain_part_of_a_sign_is_in_whatever_it_matches(sign: str, part: str) -> None:
    assert plain_part(sign) == part


def test_looking_for_plain_parts_first_loses_no_message() -> None:
    """Every text of the wordings finds the sign that the search without plain parts would find."""
    held = tomllib.loads(
        resources.files("brimful.diagnose").joinpath("causes.toml").read_text(encoding="utf-8")
    )
    texts = [sign.replace("\\b", "").replace("\\n", "\n") for row in held["printed"] for sign in row["any"]]
    lost = [
        (sign, text)
        for row in held["printed"]
        for sign in row["any"]
        for text in texts
        if re.search(sign, text, re.MULTILINE) and plain_part(sign) not in text
    ]

    assert not lost


def test_a_log_without_signs_is_searched_for_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def compiled(sign: str) -> re.Pattern[str]:
        looked.append(sign)
        return re.compile(sign, re.MULTILINE)

    monkeypatch.setattr(causes, "_compiled", compiled)
    answer("\n".join(f"12:00:{n % 60:02d} train.py:{n}] step {n} loss 2.{n} lr 1e-4" for n in range(500)))

    assert len(looked) < 20


def test_a_log_that_is_one_long_word_is_read_in_one_pass() -> None:
    """A sign that looks again from each letter would take hours, and hold up every other answer."""
    assert find_answer("alloc" * 800_000, [], None) is None
