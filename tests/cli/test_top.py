from __future__ import annotations

from typing import Any

import pytest

from brimful.cli.fleet.top import screen
from brimful.cli.operate.demo import _summary
from brimful.language import Percent, Usd, count, words


def look(*, held: bool) -> dict[str, Any]:
    node = {
        "node": "local-0",
        "gpu": "slot",
        "drained": None,
        "microusd_per_gpu_hour": 100_000,
        "gpus": [{"held": held}, {"held": False}],
    }
    return {
        "fleet": {"nodes": [node], "gpus": 2, "allocation_rate": 0.5, "trouble": None, "problems": {}},
        "spend": {"posted_microusd": 194, "accruing_microusd": 27},
        "jobs": [],
    }


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    text = screen(look(held=True), columns, 30)
    assert max(map(len, text.splitlines())) <= columns
    assert "1 of 2 GPUs" in text
    assert "$0.00019 + $0.000027 " in text


def test_a_wide_terminal_keeps_the_head_on_one_line() -> None:
    first = screen(look(held=False), 160, 30).splitlines()[0]
    assert "0 of 2 GPUs" in first
    assert "50 %" in first
    assert words("fleet.top_spent", allocated=Percent(0.5), posted=Usd(194), accruing=Usd(27)) in first


def test_the_demo_says_what_it_cancelled_at_its_end() -> None:
    over = {"phase": "finished", "preemptions": 1, "cost_microusd": 80_000, "ended_s": 9}
    going = {**over, "phase": "running", "preemptions": 0, "ended_s": None}
    facts = {"jobs": count("job", 1), "preempted": count("preemption", 1), "cost": Usd(80_000)}
    assert _summary([over]) == words("operate.demo_summary", phases="1 finished", **facts)
    assert _summary([over, going]).splitlines()[1] == words("operate.demo_left", left=1)
