"""A server in virtual time that rehearses its own past and changes its policy based on the result.

The production `tick` in the simulator's ports, the production rehearsal of the log, the production rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import cos, log, pi
from random import Random
from time import process_time

from brimful.fleet.events import PolicyAdopted
from brimful.fleet.node import Node
from brimful.scheduler.choosing import WINDOW_S, Evidence, choose
from brimful.scheduler.loop import catch_up, tick
from brimful.scheduler.policies import in_force, read_policy
from brimful.sim.past import PastReader, rehearse_all
from brimful.sim.traces.reading import saving_job
from brimful.sim.world import Arrival, _Rehearsal, gc_paused
from brimful.units import DAY_S, HOUR_S

LOOK_S = 3 * HOUR_S  # as on a server


@dataclass(frozen=True, slots=True)
class Switch:
    at_s: int
    before: str
    after: str
    why: Evidence


@dataclass(slots=True)
class Life:
    switches: list[Switch] = field(default_factory=list)
    looks: int = 0
    cpu_s: float = 0.0  # of the rehearsals


def live(
    arrivals: Sequence[Arrival],
    nodes: Sequence[Node],
    policies: Sequence[str],
    *,
    until_s: int,
    look_s: int = LOOK_S,
) -> Life:
    """The first of `policies` is the configured one; it may adopt any of them."""
    run, life = _Rehearsal(arrivals, nodes, None, seed=0), Life()
    rules = read_policy(policies[0]).rules
    reader, read, policy, next_s = PastReader(), 0, policies[0], WINDOW_S
    for start_s in range(0, until_s, look_s):
        reader.expect(start_s)
    with gc_paused():
        while (now_s := run.next_s()) is not None and now_s < until_s:
            while now_s >= next_s:
                began_s = process_time()
                reader.read(run.store.log[read:])
                read = len(run.store.log)
                found = rehearse_all(reader.past(next_s - WINDOW_S, next_s), policies)
                run.store.log.append(found)
                life.looks += 1
                life.cpu_s += process_time() - began_s
                if (better := choose(found, policy)) is not None:
                    life.switches.append(Switch(next_s, policy, better.policy, better))
                    policy = better.policy
                    run.store.log.append(PolicyAdopted(at_s=next_s, policy=policy, instead_of=policies[0]))
                next_s += look_s
            catch_up(run.fleet, run.ports)
            run.happen(now_s, in_force(rules, run.fleet.adoption.last), lambda _done, _all: None)
            if run.is_over(tick(run.fleet, run.ports, rules, now_s=now_s).plan):
                break
    return life


def a_load(
    days: Sequence[tuple[float, str]],
    *,
    seed: int,
    gpus: int,
    load: float = 0.9,
    swing: float = 0.6,
    mean_s: float = 1800.0,
    spread: float = 0.0,
) -> list[Arrival]:
    """Jobs of one GPU: this many days of each kind of prediction, busy by day and quiet by night.

    `spread` of the logarithm of lengths; 0: they have no memory, so all orders that do not know them are
    equally good.

    good: within 20 % of the true value; bad: long jobs are called short and short ones long; none.
    """
    rng, arrivals, at_s = Random(seed), list[Arrival](), 0.0
    until_s = sum(each for each, _ in days) * DAY_S
    busiest = load * gpus / mean_s * (1 + swing)
    while (at_s := at_s + rng.expovariate(busiest)) < until_s:
        if rng.random() * (1 + swing) > 1 - swing * cos(2 * pi * at_s / DAY_S):
            continue
        drawn_s = (
            rng.lognormvariate(log(mean_s) - spread**2 / 2, spread) if spread else rng.expovariate(1 / mean_s)
        )
        work_s = max(1.0, drawn_s)
        said = {"good": work_s * rng.lognormvariate(0, 0.2), "bad": mean_s * mean_s / work_s, "none": None}
        job = saving_job(
            job=f"job-{len(arrivals)}",
            gpus=1,
            within="any",
            checkpoint_cost_s=60,
            predicted_work_s=said[_kind_at(days, at_s)],
        )
        arrivals.append(Arrival(at_s=int(at_s), job=job, work_s=float(int(work_s))))
    return arrivals


def _kind_at(days: Sequence[tuple[float, str]], at_s: float) -> str:
    for long, kind in days:
        if at_s < long * DAY_S:
            return kind
        at_s -= long * DAY_S
    return days[-1][1]
