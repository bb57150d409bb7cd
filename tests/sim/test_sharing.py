"""Two jobs on one GPU, in the simulator and by the log: how fast, within which memory, at what price."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brimful.fleet.job import Job
from brimful.scheduler.policies import read_policy
from brimful.sim.fleets import parse_fleet
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival, Outcome, rehearse

GPU = "rtx-4070"  # 11.7 GiB
GIB = 1 << 30


def beside(**shares: float) -> tuple[tuple[str, tuple[tuple[str, float], ...]], ...]:
    return ((GPU, tuple(sorted(shares.items()))),)


A = Job(job="a", gpus=1, name="a", pairs=beside(a=0.4, b=0.8), checkpoint_interval_s=0)
B = Job(job="b", gpus=1, name="b", pairs=beside(a=0.5, b=0.4), checkpoint_interval_s=0)


def run(*jobs: tuple[Job, float], fleet: str = f"1x1:{GPU}", policy: str = "brim?share=1") -> Outcome:
    arrivals = [Arrival(at_s=10 * i, job=job, work_s=work_s) for i, (job, work_s) in enumerate(jobs)]
    return rehearse(arrivals, parse_fleet(fleet), read_policy(policy).rules)


def ends(outcome: Outcome) -> dict[str, int | None]:
    return {name: state.ended_s for name, state in outcome.fleet.jobs.items()}


def test_two_measured_jobs_run_at_their_measured_speeds_and_alone_at_their_own() -> None:
    # a works 10 s alone, then 0.8 of the time; at 510 s it is done: b has had 250 s of work, and 100 to go.
    assert ends(run((A, 410), (B, 350))) == {"a": 510, "b": 610}


def test_nobody_shares_unless_the_policy_says_so() -> None:
    assert ends(run((A, 410), (B, 350), policy="brim")) == {"a": 410, "b": 760}


def test_two_jobs_that_do_less_together_than_in_turn_take_turns() -> None:
    second = Job(job="c", gpus=1, name="a", pairs=A.pairs, checkpoint_interval_s=0)
    assert ends(run((A, 100), (second, 100))) == {"a": 100, "c": 200}


def sized(name: str, *, gib: int, compute_milli: int) -> Job:
    return Job(
        job=name, gpus=1, gpu_memory_bytes=gib * GIB, compute_milli=compute_milli, checkpoint_interval_s=0
    )


def test_much_memory_and_little_compute_fits_beside_little_memory_and_much_compute() -> None:
    large, busy = sized("large", gib=10, compute_milli=200), sized("busy", gib=1, compute_milli=800)
    assert ends(run((large, 100), (busy, 100))) == {"large": 100, "busy": 110}


def test_beyond_one_gpu_of_compute_both_wait_for_each_other_alike() -> None:
    one, other = sized("one", gib=1, compute_milli=750), sized("other", gib=1, compute_milli=500)
    assert ends(run((one, 90), (other, 80))) == {"one": 110, "other": 110}  # 1 / 1.25 of their speed


@pytest.mark.parametrize("gib", [2, 11])
def test_memory_is_never_oversubscribed(gib: int) -> None:
    large, small = sized("large", gib=10, compute_milli=200), sized("small", gib=gib, compute_milli=200)
    assert ends(run((large, 100), (small, 100))) == {"large": 100, "small": 200}


def test_who_never_said_how_much_memory_it_needs_does_not_share() -> None:
    known, unknown = sized("known", gib=1, compute_milli=200), sized("unknown", gib=0, compute_milli=200)
    assert ends(run((known, 100), (unknown, 100))) == {"known": 100, "unknown": 200}


def test_each_of_two_pays_for_half_a_gpu() -> None:
    outcome = run((A, 410), (B, 350), fleet=f"1x1:{GPU}@3.6")
    leases = outcome.fleet.leases.values()
    assert [lease.cost_microusd(outcome.end_s) for lease in leases] == [510 * 500, 600 * 500]
    assert sum(outcome.ledger.balances.values()) == 0


def test_two_who_share_part_once_a_gpu_stays_free() -> None:
    first = Job(job="first", gpus=1, checkpoint_interval_s=0)
    outcome = run((first, 1000), (A, 4000), (B, 4000), fleet=f"1x2:{GPU}")
    state = outcome.fleet.jobs["b"]
    assert state.preemptions == 1
    assert state.leases[0].gpus == outcome.fleet.jobs["a"].leases[0].gpus
    assert state.leases[1].gpus == outcome.fleet.jobs["first"].leases[0].gpus


def test_gavels_table_of_pairs_is_read_and_a_pair_that_ran_out_of_memory_is_left_out(tmp_path: Path) -> None:
    x, y, wide = "('x', 1)", "('y', 1)", "('x', 2)"
    speeds = {
        x: {"null": 10.0, x: [0.0, 0.0], y: [8.0, 3.0]},
        y: {"null": 4.0, x: [3.0, 8.0]},
        wide: {"null": 18.0, wide: [9.0, 9.0]},
    }
    table, trace = tmp_path / "throughputs.json", tmp_path / "jobs.trace"
    table.write_text(json.dumps({"v100": speeds}))
    rows = [("x", 1), ("y", 1), ("x", 2)]
    trace.write_text("".join(f"{kind}\tc\td\ts\t1\t100\t{gpus}\t1\t-1\t0\n" for kind, gpus in rows))

    jobs = [arrival.job for arrival in read([str(trace), str(table)])[0].arrivals]

    assert [job.pairs for job in jobs] == [(("v100", (("y", 0.8),)),), (("v100", (("x", 0.75),)),), ()]
