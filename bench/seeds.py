"""Small random fleets, jobs and faults from a seed, run through the production tick, and what must hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.fleet.state import Fleet
from brimful.scheduler.policies import POLICIES
from brimful.sim.faults import Faults
from brimful.sim.world import Arrival, rehearse

NAMES = sorted(POLICIES)


def broken(seed: int) -> list[str]:
    """The promises that this seed breaks; should be empty."""
    dice = Random(seed)
    nodes = [
        Node(
            site="sim",
            node=f"n{i}",
            gpu=dice.choice(["new", "old"]),
            gpus=dice.choice([1, 2, 4, 8]),
            microusd_per_gpu_hour=dice.choice([10**6, 3 * 10**6]),
            declared=True,
            rack=f"r{i % 2}",
        )
        for i in range(dice.randint(2, 5))
    ]
    widest = max(node.gpus for node in nodes)
    arrivals = [
        Arrival(
            at_s=int(60 * i * dice.random()),
            job=Job(
                job=f"j{i}",
                gpus=dice.randint(1, widest),
                priority=dice.choice(["urgent", "normal", "background"]),
                tenant=dice.choice("ab"),
                retries=100_000,
                checkpoint_interval_s=dice.choice([None, 0, 60]),
                checkpoint_cost_s=dice.choice([0, 20]),
                predicted_work_s=dice.choice([None, 300.0]),
            ),
            work_s=dice.randint(10, 900),
        )
        for i in range(dice.randint(5, 25))
    ]
    arrivals = _in_order(sorted(arrivals, key=lambda each: each.at_s), Random(f"after {seed}"))
    faults = Faults(
        node_losses_per_day=dice.choice([0, 10, 40]),
        node_back_s=dice.choice([60, 900]),
        slow_share=dice.choice([0.0, 0.5]),
        failed_starts=dice.choice([0.0, 0.2]),
        lost_checkpoints=dice.choice([0.0, 0.3]),
        outages_per_day=dice.choice([0, 30]),
        outage_s=300,
    )
    found: list[str] = []

    def watch(fleet: Fleet) -> None:
        held: set[tuple[str, int]] = set()
        for lease in fleet.open_leases.values():
            mine = {(node, gpu) for node, gpus in lease.parts for gpu in gpus}
            if mine & held or len(mine) != fleet.jobs[lease.job].job.gpus:
                found.append(f"{lease.lease} shares a GPU or is not whole")
            held |= mine

    policy = dice.choice(NAMES)
    outcome = rehearse(arrivals, nodes, POLICIES[policy], faults=faults, seed=seed, watch=watch)
    for arrival in arrivals:
        state = outcome.fleet.jobs.get(arrival.job.job)
        if state is None:
            found.append(f"{arrival.job.job} is lost")
        elif state.phase != "finished":
            found.append(f"{arrival.job.job} is {state.phase} under {policy}")
        elif abs(state.kept_work_s - arrival.work_s) > 1e-3:
            found.append(f"{arrival.job.job} did {state.kept_work_s} of {arrival.work_s} s of work")
        found += _too_early(outcome.fleet, arrival.job)
        for before, after in zip(state.leases, state.leases[1:], strict=False) if state else ():
            if before.ended_s is None or after.granted_s < before.ended_s:
                found.append(f"{after.lease} was granted before {before.lease} ended")
    if sum(outcome.ledger.balances.values()):
        found.append("the accounts do not sum to zero")
    return [f"seed {seed}: {each}" for each in found]


def _in_order(arrivals: Sequence[Arrival], dice: Random) -> list[Arrival]:
    """A third of the jobs depend on one or two that were submitted before."""
    made: list[Arrival] = []
    for each in arrivals:
        before = dice.sample(made, min(len(made), dice.choice([0, 0, 0, 0, 1, 2])))
        after = tuple((one.job.job, dice.choice(["ok", "any"])) for one in before)
        made.append(replace(each, job=replace(each.job, after=after)))
    return made


def _too_early(fleet: Fleet, job: Job) -> list[str]:
    mine = fleet.jobs[job.job].leases if job.job in fleet.jobs else []
    ends = [(name, fleet.jobs[name].ended_s) for name, _ in job.after]
    return [
        f"{job.job} was given GPUs before {name} ended"
        for name, ended_s in ends
        if mine and (ended_s is None or mine[0].granted_s < ended_s)
    ]
