"""The simulator: the production tick on a virtual clock."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import BadInput
from brimful.fleet.metrics import measure
from brimful.scheduler.rules import Ordering, Rules
from brimful.sim.fleets import parse_fleet
from brimful.sim.kernel import Kernel
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival, Outcome, rehearse
from tests.builders import USD, a_job, code_of, refuses

HEADER = "job,submit_s,run_s,gpus,priority\n"


def parse(text: str) -> list[Arrival]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        path.write_text(text, encoding="utf-8")
        return read([str(path)])[0].arrivals


def run(rows: str, fleet: str = "1x2@2", order: Ordering = "priority") -> Outcome:
    return rehearse(parse(HEADER + rows), parse_fleet(fleet), Rules(order=order))


def test_with_room_for_all_the_trace_replays_exactly() -> None:
    outcome = run("a,0,100,1,\nb,50,100,1,\nc,70,10,4,\n", fleet="3x4")
    ends = {name: state.ended_s for name, state in outcome.fleet.jobs.items()}
    assert ends == {"a": 100, "b": 150, "c": 80}


def test_one_gpu_serves_in_order_and_bills_every_second() -> None:
    outcome = run("a,0,1800,1,\nb,0,1800,1,\nc,0,0,1,\n", fleet="1x1@2")
    assert [outcome.fleet.jobs[name].ended_s for name in "abc"] == [1800, 3600, 3600]
    assert outcome.ledger.balance("site:sim") == 2 * USD
    assert sum(outcome.ledger.balances.values()) == 0


def test_priority_lets_the_urgent_job_pass() -> None:
    rows = "a,0,100,2,\nb,10,100,2,background\nc,20,100,2,urgent\n"
    assert run(rows).fleet.jobs["c"].ended_s == 200
    assert run(rows, order="fifo").fleet.jobs["c"].ended_s == 300


def test_a_job_that_can_never_run_is_reported_with_its_reason() -> None:
    outcome = run("a,0,10,1,\nb,0,10,9,\n")
    assert list(outcome.waits) == ["b"]
    assert code_of(outcome.waits["b"]) == "scheduler.too_wide_node"


def test_the_same_trace_gives_the_same_log() -> None:
    trace = read([str(Path(__file__).parents[2] / "examples" / "small.csv")])[0].arrivals
    first, second = (rehearse(trace, parse_fleet("2x4"), Rules()) for _ in range(2))
    assert first.log == second.log


def test_equal_times_come_out_in_the_order_they_went_in() -> None:
    kernel: Kernel[str] = Kernel()
    for at_s, what in [(5, "b"), (3, "a"), (5, "c"), (5, "d")]:
        kernel.at(at_s, what)
    assert (kernel.next_s(), kernel.due(3)) == (3, ["a"])
    assert (kernel.next_s(), kernel.due(5)) == (5, ["b", "c", "d"])
    assert kernel.next_s() is None


def test_what_was_called_off_is_no_reason_to_look() -> None:
    kernel: Kernel[str] = Kernel()
    for at_s, what in ((3, "gone"), (3, "a"), (4, "gone too"), (5, "b")):
        kernel.at(at_s, what)
    kernel.forget("gone")
    kernel.forget("gone too")
    assert (kernel.next_s(), kernel.due(3)) == (3, ["a"])
    assert (kernel.next_s(), kernel.due(5)) == (5, ["b"])
    kernel.at(6, "gone")  # the same again, later
    assert kernel.due(6) == ["gone"]


def test_a_lease_that_was_stopped_does_not_wake_anybody_when_it_would_have_ended() -> None:
    """`urgent` sends `low` away; it would have ended at 1000, when nothing happens now."""
    arrivals = [
        Arrival(at_s=0, job=a_job("low", gpus=8, priority="background", checkpoint_interval_s=0), work_s=1e3),
        Arrival(at_s=600, job=a_job("urgent", gpus=8, priority="urgent"), work_s=2000),
    ]
    looked: list[float] = []
    rules = Rules(order="priority", preempt="priority", min_run_s=0, rerank_s=10_000)
    outcome = rehearse(arrivals, parse_fleet("1x8"), rules, watch=lambda fleet: looked.append(fleet.seq))
    assert [state.phase for state in outcome.fleet.jobs.values()] == ["finished", "finished"]
    assert len(looked) == 5  # low comes; urgent comes; low has left; urgent is done; low is done


def test_a_job_is_stopped_at_its_longest_run_though_nothing_else_happens() -> None:
    arrivals = [Arrival(at_s=5, job=a_job("long", max_run_s=50), work_s=1000)]
    state = rehearse(arrivals, parse_fleet("1x1"), Rules()).fleet.jobs["long"]
    assert (state.phase, state.ended_s) == ("stopped", 55)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 4)), min_size=1, max_size=30),
    st.sampled_from(["fifo", "priority"]),
)
def test_every_job_that_fits_finishes_and_runs_its_time_once(
    jobs: list[tuple[int, int, int]], order: Ordering
) -> None:
    arrivals = [
        Arrival(at_s=at_s, job=a_job(f"j{i}", gpus=gpus), work_s=run_s)
        for i, (at_s, run_s, gpus) in enumerate(sorted(jobs))
    ]
    outcome = rehearse(arrivals, parse_fleet("2x4@1"), Rules(order=order))
    for arrival in arrivals:
        state = outcome.fleet.jobs[arrival.job.job]
        assert state.phase == "finished"
        assert [lease.billed_s(outcome.end_s) for lease in state.leases] == [arrival.work_s]
    assert outcome.fleet.free("node-0") == outcome.fleet.free("node-1") == (0, 1, 2, 3)
    share = measure(outcome.fleet, now_s=outcome.end_s).allocation_rate
    assert share is None or 0 <= share <= 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ("sim.empty",)),
        ("job,submit_s,gpus\na,0,1\n", ("sim.no_column", "run_s")),
        (HEADER, ("sim.no_jobs",)),
        (HEADER + "a,0,10,0,\n", ("sim.bad_entry", "row 2", "gpus", "0")),
        (HEADER + "a,0,-5,1,\n", ("sim.bad_entry", "row 2", "run_s", "-5")),
        (HEADER + "a,0,nan,1,\n", ("sim.bad_entry", "row 2", "run_s", "nan")),
        (HEADER + f"a,{10**30},1,1,\n", ("sim.bad_entry", "row 2", "submit_s")),
        (HEADER + "a,5,1,1,\nb,4,1,1,\n", ("sim.not_in_order", "row 3", 4, 5)),
        (HEADER + "a,0,1,1,\na,0,1,1,\n", ("sim.duplicate_job", "row 3", "a")),
        (HEADER + ",0,1,1,\n", ("sim.bad_entry.empty", "row 2", "job")),
        (HEADER + "a,0,1\n", ("sim.bad_entry.empty", "row 2", "gpus")),
        (HEADER + "a,0,1,1,now\n", ("sim.priority_unknown", "row 2", "now")),
        ('job,submit_s,run_s,gpus\n"a,0,1,1', ("sim.quote_not_closed", "row 2")),
    ],
)
def test_a_bad_trace_names_the_row(text: str, reason: tuple[str, ...]) -> None:
    with refuses(BadInput, *reason) as caught:
        parse(text)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "8", "0x4", "2x0", "2x4@-1", "2x4@1e9", "999999999x1", "2x4:bad type"])
def test_a_bad_fleet_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--fleet"):
        parse_fleet(text)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "x.csv"
    binary.write_bytes(bytes(range(256)))
    for path in (tmp_path / "none.csv", tmp_path, binary):
        with pytest.raises(BadInput):
            read([str(path)])


def test_predicted_memory_of_the_own_format_goes_with_its_types() -> None:
    head = "job,submit_s,run_s,gpus,gpu,peak_mib"
    one, each = parse(f"{head}\na,0,1,1,t4|l4,1024\nb,0,1,1,t4|l4,1|2\n")
    assert one.job.peak_bytes == (("t4", 1 << 30), ("l4", 1 << 30))
    assert each.job.peak_bytes == (("t4", 1 << 20), ("l4", 2 << 20))
    with refuses(BadInput, "sim.numbers_per_type", "peak_mib", 2, 1):
        parse(f"{head}\na,0,1,1,t4,1|2\n")
