"""What Slurm's commands print, of several versions, becomes data or an error, never a guess."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.adapters.engines.slurm.batch import Component, components, flags, script
from brimful.adapters.engines.slurm.options import SlurmOptions
from brimful.adapters.engines.slurm.text import (
    EndRow,
    Span,
    ends_from,
    gpus_in,
    holders_from,
    hosts,
    jobs_from,
    marked,
    nodes_from,
    racks_from,
)
from brimful.errors import WorldFailed
from tests.builders import refuses


@pytest.mark.parametrize(
    ("text", "kind", "total"),
    [
        ("gpu:a100:8", "a100", 8),
        ("gpu:a100:8(S:0-1)", "a100", 8),
        ("gpu:4(IDX:0-3)", "", 4),
        ("gres:gpu:a100:2", "a100", 2),  # 22.05's squeue
        ("gres/gpu:h100:2", "h100", 2),  # a newer one's
        ("gpu:model_a:2,gpu:model_b:2", "model_a", 2),
        ("gpu:a100:0(IDX:N/A)", "a100", 0),
        ("tmp:1,gpu:v100:4", "v100", 4),
        ("(null)", "", 0),
        ("mygpu:3", "", 0),
        ("", "", 0),
    ],
)
def test_the_gpus_of_a_list_of_resources(text: str, kind: str, total: int) -> None:
    assert gpus_in(text) == (kind, total)


def test_what_is_used_of_a_node_with_two_types_is_that_of_the_type_it_is_offered_as() -> None:
    line = "g2|gpu:model_a:2,gpu:model_b:2|gpu:model_a:0(IDX:N/A),gpu:model_b:1(IDX:2)|mixed|10.0.0.2|none|"
    (node,) = nodes_from(line)
    assert (node.gpus, node.used) == (("model_a", 2), 0)


def test_nodes_are_listed_once_with_their_states_and_without_those_that_have_no_gpu() -> None:
    row = "a002|gpu:a:4(S:0-3)|gpu:a:0(IDX:N/A)|idle+drain*|a002|Kill task failed, see | 5|"
    first, *rest = nodes_from(f"{row}\n{row}\nna1|(null)|(null)|mixed|na1|none|\n")
    assert not rest
    assert first.states == {"idle", "drain", "*"}
    assert first.reason.startswith("Kill task failed")


def test_a_line_that_is_not_understood_is_an_error_and_not_an_empty_site() -> None:
    for read in (nodes_from, lambda text: jobs_from(text, prefix="")):
        with refuses(WorldFailed, "slurm.strange_answer"):
            list(read("slurm_load_jobs error"))


def test_only_jobs_of_this_deployment_are_ours_whatever_others_call_theirs() -> None:
    times = "2023-11-14T22:13:20|2023-11-15T22:13:20"
    ours = f"7+1|8|RUNNING|a[1-2]|gres:gpu:a100:8|0|{times}|None|brimful:x:a.1"
    others = f"9|9|RUNNING|a3||0|{times}|None|brimful:y:a.1\n10|10|PENDING|||0|N/A|N/A|(a|b)|odd|name"
    text = f"{ours}\n{others}\n"
    (row,) = jobs_from(text, prefix="brimful:x:")
    assert (row.job, row.number, row.nodes, row.gpus_per_node) == ("7+1", "8", ("a1", "a2"), 8)
    assert row.span == (1_700_000_000, None), "the end of one that runs is its time limit"


@pytest.mark.parametrize(
    ("state", "began", "span"),
    [
        ("PENDING", "2023-11-14T22:13:20", (None, None)),  # an estimate
        ("RUNNING", "2023-11-14T22:13:20", (1_700_000_000, None)),
        ("COMPLETING", "2023-11-14T22:13:20", (1_700_000_000, 1_700_000_060)),
        ("TIMEOUT", "2023-11-14T22:13:20", (1_700_000_000, 1_700_000_060)),
        ("CANCELLED", "2023-11-14T22:14:20", (None, 1_700_000_060)),  # while it waited
        ("COMPLETED", "2023-11-14T22:14:20", (1_700_000_060, 1_700_000_060)),  # within one second
        ("FAILED", "Unknown", (None, 1_700_000_060)),
    ],
)
def test_only_what_has_happened_is_the_span_of_a_job(
    state: str, began: str, span: tuple[int | None, int | None]
) -> None:
    line = f"7|7|{state}|a1|gres:gpu:1|0|{began}|2023-11-14T22:14:20|None|brimful:x:a.1"
    (row,) = jobs_from(line, prefix="brimful:x:")
    assert row.span == span


def test_a_name_that_looks_like_another_line_is_none() -> None:
    """A name may hold ends of lines; what begins each real one nobody can know beforehand."""
    forged = "7|7|COMPLETED|a1|gres:gpu:8|0|N/A|N/A|None|brimful:x:a.1"
    ours = "mark|8|8|RUNNING|a1|gres:gpu:1|0|N/A|N/A|None|brimful:x:b.1\x0bc"
    text = f"mark|6|6|RUNNING|a1||0|N/A|N/A|None|evil\n{forged}\n{ours}\n"
    (row,) = jobs_from(marked(text, "mark|"), prefix="brimful:x:")
    assert (row.job, row.name) == ("8", "brimful:x:b.1\x0bc")


def test_whose_jobs_hold_gpus_is_told_by_node_without_our_own() -> None:
    text = "7|ann|gres:gpu:a100:2|n-[0-1]\n8|bob|gres:gpu:1|n-1\n9|ann|gpu:1|n-1\n"
    text += "10|eve|N/A|n-1\n11|us|gpu:1|n-0\n"
    assert holders_from(text, but={"11"}) == {"n-0": ["ann"], "n-1": ["ann", "bob"]}
    with refuses(WorldFailed, "slurm.strange_answer"):
        holders_from("slurm_load_jobs error", but=())


def test_accounting_tells_states_whatever_jobs_are_called() -> None:
    times = "2023-11-14T22:13:20#2023-11-14T22:14:20"
    text = f"7+0#FAILED#{times}#brimful:x:a|1\n8#CANCELLED by 0#{times}#b\n9|COMPLETED|brimful:x:a.1\n"
    first, second = ends_from(text, mark="#")
    assert first == EndRow("7+0", "FAILED", Span(1_700_000_000, 1_700_000_060), "brimful:x:a|1")
    assert second.state == "CANCELLED", "and the rest is the end of its name"


def test_racks_are_leaf_switches() -> None:
    leaf = "SwitchName=r1 Level=0 LinkSpeed=1 Nodes=a[1-2],b"
    text = f"{leaf}\nSwitchName=top Level=1 LinkSpeed=1 Nodes=a[1-2],b Switches=r1\n"
    assert racks_from(text) == {"a1": "r1", "a2": "r1", "b": "r1"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("a", ["a"]),
        ("n-[0-1]", ["n-0", "n-1"]),
        ("a[08-10,12],b", ["a08", "a09", "a10", "a12", "b"]),
        ("r[1-2]c[3-4]x", ["r1c3x", "r1c4x", "r2c3x", "r2c4x"]),
    ],
)
def test_a_list_of_nodes_is_spelled_out(text: str, names: list[str]) -> None:
    assert list(hosts(text)) == names


@given(st.text(alphabet="ab[]-,019", max_size=20))
def test_no_list_of_nodes_hangs_or_breaks_it(text: str) -> None:
    with contextlib.suppress(WorldFailed):
        assert len(list(hosts(text))) < 200_000


def test_uneven_gangs_are_one_job_of_several_components() -> None:
    parts = (("a", (0, 1)), ("b", (0,)), ("c", (4, 5)))
    assert components(parts) == [Component(("a", "c"), 2), Component(("b",), 1)]
    options = SlurmOptions(
        partition="gpu", account="physics", time_limit="4:00:00", sbatch=("--nice=5",), whole_nodes=True
    )
    said = flags("brimful:x:a.1", Path("/shared/a.1"), components(parts), options, kind="a100")
    first, second = said[: said.index(":")], said[said.index(":") + 1 :]
    assert {"--nodelist=a,c", "--gres=gpu:a100:2", "--nodes=2"} <= set(first)
    assert {"--nodelist=b", "--gres=gpu:a100:1", "--nodes=1"} <= set(second)
    for each in (first, second):
        passed_on = {"--partition=gpu", "--account=physics", "--time=4:00:00", "--nice=5", "--exclusive"}
        assert passed_on | {"--no-requeue", "--job-name=brimful:x:a.1"} <= set(each)
    assert "srun --het-group=0-1" in script(Path("/shared/a 1"), nodes=3, count=2, python="python3")
    assert "'/shared/a 1'/won" in script(Path("/shared/a 1"), nodes=1, count=1, python="python3")
