"""One table of named policies: read, written, and the same for a server and a rehearsal."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import BadInput
from brimful.language.catalog import is_held
from brimful.scheduler.ordering import ORDERS, weight
from brimful.scheduler.policies import DEFAULT, OPTIONS, POLICIES, about_option, about_policy, read_policy
from brimful.scheduler.rules import Rules
from tests.builders import refuses


def a_value(option: str) -> st.SearchStrategy[object]:
    default, choices = OPTIONS[option].default, OPTIONS[option].metadata["choices"]
    if choices:
        return st.sampled_from(choices)
    if isinstance(default, bool):
        return st.sampled_from(["0", "1", "true", "false"])
    return st.integers(1, 10**9) if isinstance(default, int) else st.floats(0, 1e9)


@given(st.sampled_from(sorted(POLICIES)), st.data())
def test_what_a_policy_is_called_is_read_as_that_policy(name: str, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(OPTIONS)), unique=True))
    query = "&".join(f"{option}={data.draw(a_value(option))}" for option in chosen)
    policy = read_policy(f"{name}?{query}")
    assert read_policy(policy.text) == policy


def test_only_what_differs_from_the_table_is_written() -> None:
    assert read_policy("brim?move=1&margin=2.0").text == "brim"
    assert read_policy("brim?preempt=none&move=false").text == "brim?preempt=none&move=0"


def test_what_is_set_beside_a_policy_wins_and_is_written() -> None:
    policy = read_policy("brim?min_run_s=30", {"min_run_s": 5, "grace_s": 2})
    assert (policy.rules.min_run_s, policy.rules.grace_s) == (5, 2)
    assert policy.text == "brim?grace_s=2&min_run_s=5"


def test_the_default_has_backfill_classes_and_prices() -> None:
    rules = read_policy(DEFAULT).rules
    assert (rules.backfill, rules.preempt, rules.types) == ("reserve", "index", "cheap")


def test_every_policy_and_option_is_described_and_every_order_can_be_chosen() -> None:
    assert all(is_held(about_policy(name).code) for name in POLICIES)
    assert all(is_held(about_option(name).code) for name in OPTIONS)
    assert {each.name for each in fields(Rules)} - {*OPTIONS} == {"quotas"}, "quotas are not one word"
    assert OPTIONS["order"].metadata["choices"] == tuple(ORDERS)


@pytest.mark.parametrize(
    "text",
    ["", "best", "brim?mvoe=0", "brim?preempt=all", "brim?margin=nan", "brim?move=2", "brim?rerank_s=0",
     "brim?quotas=1", "brim?tries=-1", "brim?min_run_s=1.5"],
)  # fmt: skip
def test_what_is_no_policy_is_one_clear_error(text: str) -> None:
    with pytest.raises(BadInput) as error:
        read_policy(text)
    assert error.value.hint


def test_an_option_close_to_a_known_one_is_asked_about() -> None:
    with refuses(BadInput, "scheduler.policy_option_not_valid", "mvoe") as near:
        read_policy("brim?mvoe=0")
    with refuses(BadInput, "scheduler.policy_option_not_valid", "quux") as far:
        read_policy("brim?quux=0")
    hints = [each.value.way_out.as_dict()["code"] for each in (near, far) if each.value.way_out]
    assert hints == ["scheduler.hint_did_you_mean", "scheduler.hint_options"]
    assert "move" in near.value.hint


def test_a_width_beyond_all_measure_ends_no_decision() -> None:
    assert weight(10**6, 1_000.0) == weight(10**6, 10.0) > weight(10**6 - 1, 1_000.0)
