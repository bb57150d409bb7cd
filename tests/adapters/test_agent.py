"""An agent's jobs have its own user on Ray and ssh machines: each may write into any lease's folder there."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.adapters.engines.agent import NodeAgent, Part
from brimful.fleet.job import Job
from brimful.scheduler.ports import Start
from tests.builders import a_node, eventually

WHOLE = '{"rank": 0, "ranks": 1, "devices": [0], "skew_s": 0.0}'
STRANGE = [
    "{}",
    '{"rank": "x", "ranks": 1}',
    WHOLE.replace("0.0", "Infinity"),
    WHOLE.replace("0.0", "NaN"),
    WHOLE.replace("0.0", "[]"),
    WHOLE.replace('"rank": 0', '"rank": 7'),
    WHOLE.replace('"ranks": 1', f'"ranks": 1{"0" * 400}'),
    WHOLE.replace("[0]", '["GPU"]'),
    WHOLE.replace("[0]", f"{[0] * 5000}"),
    "[" * 100_000,
    f"[{'0, ' * (4 << 20)}0]",  # longer than anybody should have to parse at each look
]


@pytest.mark.parametrize("part", STRANGE, ids=lambda each: each[:40])
def test_a_lease_whose_part_is_nonsense_hides_no_other(tmp_path: Path, part: str) -> None:
    node = a_node("n", gpus=2)
    agent = NodeAgent(str(tmp_path), node, {"log_bytes": 1 << 20})
    for gpu, name in enumerate("ab"):
        job = Job(job=name, gpus=1, command=("true",), folder=str(tmp_path))
        start = Start(f"{name}.1", job, ((node.node, (gpu,)),))
        assert agent.start(Part(start, 0, 1, (gpu,), ("127.0.0.1", 1), {})) is None
    file = tmp_path / node.node / "a.1" / "part.json"
    eventually(lambda: all(each.observation.state == "ended" for each in agent.observe(["a.1", "b.1"])[0]))
    file.write_text(part)
    seen, _, _ = agent.observe(["a.1", "b.1"])
    assert [(each.observation.lease, each.observation.cause) for each in seen] == [("b.1", "finished")]
    assert agent.rank_of("a.1") is None
    assert agent.rank_of("b.1") == 0
