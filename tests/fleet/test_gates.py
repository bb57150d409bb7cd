"""Arrays and dependencies, as the fleet folds them: a pending job is no demand until its gate opens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import BadInput
from brimful.fleet.arrays import MAX_TASKS, Tasks, after_from, task_env, tasks_from
from brimful.fleet.events import (
    ArraySubmitted,
    BudgetSet,
    CancelRequested,
    Event,
    JobHeld,
    JobReleased,
    JobSkipped,
    JobSubmitted,
    LeaseEnded,
    LeaseGranted,
    from_record,
    to_record,
)
from brimful.fleet.metrics import measure
from brimful.fleet.state import OVER, Fleet
from brimful.language import say
from brimful.market.ledger import Ledger
from brimful.scheduler.loop import tick
from brimful.scheduler.ports import Observation, Ports
from brimful.scheduler.rules import Rules
from brimful.sim.world import MemoryStore
from tests.builders import AFleet, ScriptedEngine, a_fleet, a_job, a_node, code_of, joined, refuses


def an_array(indices: str, name: str = "a", at_s: int = 0, **more: object) -> ArraySubmitted:
    tasks = tasks_from(indices)
    job = a_job(name, **more)  # type: ignore[arg-type]
    return ArraySubmitted(at_s=at_s, job=job, indices=tasks.indices, at_most=tasks.at_most)


def phases(fleet: AFleet) -> dict[str, str]:
    return {name: state.phase for name, state in fleet.fleet.jobs.items()}


def end(fleet: AFleet, job: str, at_s: int, exit_code: int = 0) -> None:
    node = fleet.fleet.nodes["node-0"]
    gpu = fleet.fleet.free(node.node)[0]
    lease = LeaseGranted(
        at_s=at_s, lease=f"{job}.1", job=job, node=node.node, gpus=(gpu,), microusd_per_gpu_hour=1
    )
    fleet.then(lease, LeaseEnded(at_s=at_s, lease=f"{job}.1", exit_code=exit_code))


@pytest.mark.parametrize(
    ("text", "indices", "at_most"),
    [
        ("7", (7,), None),
        ("0-3", (0, 1, 2, 3), None),
        ("0-9:4", (0, 4, 8), None),
        ("5,1,1-2", (1, 2, 5), None),
        ("0-99%4", tuple(range(100)), 4),
        (f"0-{MAX_TASKS - 1}", tuple(range(MAX_TASKS)), None),
    ],
)
def test_an_array_is_written_as_slurm_writes_it(text: str, indices: tuple[int, ...], at_most: int) -> None:
    assert tasks_from(text) == Tasks(indices, at_most)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "fleet.bad_array"),
        ("a", "fleet.bad_array"),
        ("1-", "fleet.bad_array"),
        ("-1", "fleet.bad_array"),
        ("0-3%0", "fleet.bad_array"),
        ("0-3%", "fleet.bad_array"),
        ("0-3%x", "fleet.bad_array"),
        ("٣", "fleet.bad_array"),
        ("3-1", "fleet.bad_array_range"),
        ("0-9:0", "fleet.bad_array_range"),
        ("9999999", "fleet.bad_array_range"),
        (f"0-{MAX_TASKS}", "fleet.array_too_large"),
        ("0-600,700-1300", "fleet.array_too_large"),
        ("0-999999", "fleet.array_too_large"),
    ],
)
def test_an_array_that_cannot_be_is_refused(text: str, code: str) -> None:
    with refuses(BadInput, code):
        tasks_from(text)


def test_a_dependency_is_ok_unless_it_says_any() -> None:
    assert [after_from(text) for text in ("job-7", "job-7_3:ok", "job-7:any")] == [
        ("job-7", "ok"),
        ("job-7_3", "ok"),
        ("job-7", "any"),
    ]
    for text in ("", "job-7:never", ":ok", "job 7", "a:b:ok"):
        with refuses(BadInput, "fleet.bad_after"):
            after_from(text)


def test_a_job_after_another_is_no_demand_until_that_has_finished() -> None:
    fleet = a_fleet().waiting(a_job("a"), a_job("b", after=(("a", "ok"),), deadline_s=900))
    assert phases(fleet) == {"a": "waiting", "b": "pending"}
    assert [start.job for start in fleet.plan().starts] == ["a"]
    assert (len(fleet.fleet.waiting), list(fleet.fleet.due)) == (1, [])
    assert code_of(fleet.fleet.gates.why(fleet.fleet.jobs["b"].job)) == "fleet.starts_after"

    end(fleet, "a", at_s=100)
    assert phases(fleet) == {"a": "finished", "b": "waiting"}
    assert (fleet.fleet.jobs["b"].waiting_since_s, list(fleet.fleet.due)) == (100, ["b"])
    assert [start.job for start in fleet.plan(now_s=100).starts] == ["b"]


def test_the_wait_for_another_job_is_in_no_report() -> None:
    fleet = a_fleet().waiting(a_job("a"), a_job("b", after=(("a", "ok"),)))
    end(fleet, "a", at_s=100)
    end(fleet, "b", at_s=130)
    found = measure(fleet.fleet, now_s=130)
    assert fleet.fleet.jobs["b"].delay_s(130) == 30.0
    assert (found.mean_jct_s, found.mean_delay_s) == (65.0, 65.0)  # (100 + 30) / 2, and none of it is work


@pytest.mark.parametrize(("rule", "exit_code", "phase"), [("any", 1, "waiting"), ("ok", 0, "waiting")])
def test_an_end_that_will_do_opens_the_gate(rule: str, exit_code: int, phase: str) -> None:
    fleet = a_fleet().waiting(a_job("a"), a_job("b", after=(("a", rule),)))
    end(fleet, "a", at_s=5, exit_code=exit_code)
    assert phases(fleet)["b"] == phase


def test_a_job_after_two_waits_for_both() -> None:
    fleet = a_fleet().waiting(a_job("a"), a_job("b"), a_job("c", after=(("a", "ok"), ("b", "any"))))
    end(fleet, "a", at_s=1)
    assert phases(fleet)["c"] == "pending"
    end(fleet, "b", at_s=2, exit_code=3)
    assert phases(fleet)["c"] == "waiting"


def test_who_comes_after_a_job_that_is_long_over_starts_at_once() -> None:
    fleet = a_fleet().waiting(a_job("a"))
    end(fleet, "a", at_s=1)
    fleet.waiting(a_job("b", after=(("a", "ok"), ("left-memory", "ok"))))
    assert phases(fleet)["b"] == "waiting"


def test_a_job_on_hold_whose_gate_opens_is_held_and_not_lost() -> None:
    fleet = a_fleet().waiting(a_job("a"), a_job("b", after=(("a", "ok"),)))
    fleet.then(JobHeld(at_s=1, job="b"))
    assert phases(fleet)["b"] == "pending"
    end(fleet, "a", at_s=2)
    assert phases(fleet)["b"] == "held"
    fleet.then(JobReleased(at_s=3, job="b"))
    assert phases(fleet)["b"] == "waiting"


def test_a_chain_of_thousands_behind_a_failed_job_is_skipped_whole_in_one_tick() -> None:
    store, engine, fleet = MemoryStore(), ScriptedEngine(a_node(gpus=1)), Fleet()
    chain = [a_job(f"j{i}", after=((f"j{i - 1}", "ok"),)) for i in range(1, 3000)]
    events: list[Event] = [JobSubmitted(at_s=0, job=job) for job in (a_job("j0"), *chain)]
    store.append([*events, JobSubmitted(at_s=0, job=a_job("last", after=(("j2999", "any"),)))], after=0)
    ports = Ports(store=store, engines={"here": engine})
    tick(fleet, ports, Rules(), now_s=1)
    engine.sees["j0.1"] = Observation(lease="j0.1", state="ended", started_s=1, ended_s=2, exit_code=1)
    tick(fleet, ports, Rules(), now_s=3)
    assert {state.phase for state in fleet.jobs.values()} == {"failed", "skipped", "starting"}
    assert code_of(fleet.jobs["j1"].reason) == "scheduler.never_starts"
    assert fleet.jobs["last"].phase == "starting"  # whose rule is any
    assert not fleet.gates.doomed
    assert not fleet.gates.pending


def test_what_was_set_aside_for_a_skipped_job_is_given_back() -> None:
    ledger, fleet = Ledger(), Fleet()
    events: list[Event] = [
        joined(a_node()),
        BudgetSet(at_s=0, tenant="default", microusd=100),
        JobSubmitted(at_s=0, job=a_job("a")),
        an_array("0-1", "b", after=(("a", "ok"),), budget_microusd=30),
        CancelRequested(at_s=1, job="a"),
        *(JobSkipped(at_s=2, job=f"b_{i}", reason=None) for i in range(2)),
    ]
    for event in events:
        ledger.apply(event)
        fleet.apply(event)
    assert ledger.balance("budget:default") == fleet.purses.budgets["default"].left_microusd == 100
    assert sum(ledger.balances.values()) == 0


def test_an_array_is_its_tasks_and_one_record() -> None:
    fleet = a_fleet().then(an_array("0-3%2", name="a"))
    assert phases(fleet) == {"a_0": "waiting", "a_1": "waiting", "a_2": "pending", "a_3": "pending"}
    assert fleet.fleet.gates.arrays["a"].phases() == {"waiting": 2, "pending": 2}
    assert code_of(fleet.fleet.gates.why(fleet.fleet.jobs["a_3"].job)) == "fleet.array_at_limit"
    end(fleet, "a_1", at_s=9, exit_code=1)
    assert phases(fleet) == {"a_0": "waiting", "a_1": "failed", "a_2": "waiting", "a_3": "pending"}
    assert fleet.fleet.jobs["a_2"].ready_s == 9


def test_a_task_that_is_cancelled_while_it_waits_for_a_slot_frees_none() -> None:
    fleet = a_fleet().then(an_array("0-3%1"), CancelRequested(at_s=1, job="a_1"))
    assert phases(fleet) == {"a_0": "waiting", "a_1": "cancelled", "a_2": "pending", "a_3": "pending"}
    fleet.then(CancelRequested(at_s=2, job="a_0"))
    assert phases(fleet)["a_2"] == "waiting"
    assert phases(fleet)["a_3"] == "pending"


@pytest.mark.parametrize(("exit_code", "phase"), [(0, "waiting"), (1, "pending")])
def test_a_job_after_an_array_waits_for_all_its_tasks(exit_code: int, phase: str) -> None:
    fleet = a_fleet().then(an_array("0-1")).waiting(a_job("b", after=(("a", "ok"),)))
    end(fleet, "a_0", at_s=1, exit_code=exit_code)
    assert phases(fleet)["b"] == "pending"
    end(fleet, "a_1", at_s=2)
    assert phases(fleet)["b"] == phase
    assert ("b" in fleet.fleet.gates.doomed) == bool(exit_code)
    if exit_code:  # asked for before the tick that skips it
        assert fleet.fleet.gates.why(fleet.fleet.jobs["b"].job) == say("fleet.starts_after", jobs="a")


def test_an_array_leaves_memory_with_its_last_task() -> None:
    fleet = AFleet([a_node()])
    fleet.fleet = Fleet(keep=1)
    fleet.then(joined(a_node()), an_array("0-1", key="k"))
    end(fleet, "a_0", at_s=1)
    end(fleet, "a_1", at_s=2)
    assert "a" in fleet.fleet.gates.arrays
    fleet.waiting(a_job("b"))
    end(fleet, "b", at_s=3)
    assert fleet.fleet.gates.arrays == {}
    assert set(fleet.fleet.leaving) == {"a_0", "a_1"}


def test_arrays_and_skips_are_written_and_read_back() -> None:
    events: list[Event] = [
        an_array("0-4:2%1", after=(("x", "any"),), tiers=("spot",)),
        JobSkipped(at_s=3, job="b", reason=None),
    ]
    for event in events:
        kind, version, body = to_record(event)
        assert from_record(kind, version, json.loads(json.dumps(body))) == event


def test_a_task_is_told_its_index_in_our_words_and_in_slurms() -> None:
    job = an_array("3-5").tasks()[1]
    assert task_env(job) == {
        "BRIMFUL_ARRAY": "a",
        "BRIMFUL_ARRAY_INDEX": "4",
        "SLURM_ARRAY_JOB_ID": "a",
        "SLURM_ARRAY_TASK_ID": "4",
    }
    assert task_env(a_job("a")) == {}


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["ok", "any"])), max_size=3),
            st.integers(0, 3),
            st.none() | st.integers(1, 2),
        ),
        min_size=1,
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_no_job_starts_before_its_gate_opens_and_every_job_comes_to_an_end(wanted, dice) -> None:  # type: ignore[no-untyped-def]
    fleet, names = Fleet(), list[str]()
    fleet.apply(joined(a_node(gpus=64)))
    for number, (after, tasks, at_most) in enumerate(wanted):
        name = f"j{number}"
        needs = tuple({names[of % len(names)]: rule for of, rule in after}.items()) if names else ()
        job = a_job(name, after=needs)
        if tasks:
            fleet.apply(ArraySubmitted(at_s=0, job=job, indices=tuple(range(tasks)), at_most=at_most))
        else:
            fleet.apply(JobSubmitted(at_s=0, job=job))
        names.append(name)
    for now_s in range(1, 500):
        for name in fleet.gates.all_doomed():
            fleet.apply(JobSkipped(at_s=now_s, job=name, reason=None))
        waiting = [state.job.job for state in fleet.waiting.values()]
        if not waiting:
            break
        for array in fleet.gates.arrays.values():
            asking = sum(state.phase == "waiting" for state in array.unfinished.values())
            assert array.at_most is None or asking <= array.at_most
        name = dice.choice(waiting)
        for of, rule in fleet.jobs[name].job.after:
            ends = {state.phase for state in fleet.jobs.values() if of in (state.job.job, state.job.array)}
            assert ends <= (OVER if rule == "any" else {"finished"})
        lease = f"{name}.1"
        fleet.apply(
            LeaseGranted(at_s=now_s, lease=lease, job=name, node="node-0", gpus=(0,), microusd_per_gpu_hour=1)
        )
        fleet.apply(LeaseEnded(at_s=now_s, lease=lease, exit_code=dice.choice([0, 0, 1])))
    assert {state.phase for state in fleet.jobs.values()} <= OVER
