"""Sums over unfinished jobs are kept as jobs come and go; they are always those of a plain count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from random import Random
from typing import Any

import pytest

from brimful.fleet.events import (
    Event,
    JobHeld,
    JobReleased,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
    NodeJoined,
    PoolPriced,
    QueuesSet,
    TermsChanged,
)
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.fleet.queues import Quota
from brimful.fleet.state import Fleet
from brimful.scheduler.rules import Rules
from brimful.server.auth import Principal
from brimful.server.service.reader import Reader
from brimful.server.service.service import Service
from brimful.server.views.tally import Tally, tallies
from tests.server.builders import OPERATOR, MemoryHistory

GPUS = 64


def counted(reader: Reader) -> dict[tuple[str, str], dict[str, Any]]:
    """Job by job, from nothing."""
    fleet, now_s, spent = reader.fleet, reader.now_s(), reader.ledger.spent_microusd
    found = defaultdict[tuple[str, str], dict[str, Any]](lambda: asdict(Tally()))
    for name, state in fleet.jobs.items():
        lease = state.open_lease
        if state.phase not in ("waiting", "held") and lease is None:
            continue
        row = found[state.job.tenant, state.job.queue or state.job.tenant]
        if lease is not None:
            row["running"] += 1
            row["held_gpus"] += lease.size
            row["accruing_microusd"] += state.billed_microusd(now_s) - spent.get(name, 0)
            row["microusd_per_hour"] += lease.hourly_microusd
        elif state.phase == "waiting":
            row["waiting"] += 1
            row["waiting_gpus"] += state.job.gpus
            row["waits_since_s"] = min(row["waits_since_s"] or state.waiting_since_s, state.waiting_since_s)
        else:
            row["on_hold"] += 1
    return dict(found)


def changes(random: Random, fleet: Fleet, at_s: int) -> Iterator[Event]:
    """Whatever may happen next to one job."""
    names = [name for name, state in fleet.jobs.items() if state.ended_s is None]
    if len(names) < 12:
        tenant, budget = random.choice("ab"), random.choice([None, 1000, 40_000_000])
        given: dict[str, Any] = {
            "tenant": tenant,
            "queue": random.choice(["", "q"]),
            "budget_microusd": budget,
        }
        job = Job(job=f"job-{fleet.submitted + 1}", gpus=random.choice([1, 2]), command=("run",), **given)
        yield JobSubmitted(at_s=at_s, job=job)
        return
    state = fleet.jobs[random.choice(names)]
    name, lease = state.job.job, state.open_lease
    if random.random() < 0.1:
        priority = random.choice(["urgent", "normal"])
        yield TermsChanged(at_s=at_s, job=name, priority=priority, deadline_s=None)
    elif state.phase == "held":
        yield JobReleased(at_s=at_s, job=name)
    elif state.phase == "waiting" and random.random() < 0.2:
        yield JobHeld(at_s=at_s, job=name)
    elif lease is None:
        gpus = fleet.free("node")[: state.job.gpus]
        price, number = random.choice([1_999_999, 3_000_001]), len(state.leases) + 1
        where: dict[str, Any] = {"node": "node", "gpus": gpus, "microusd_per_gpu_hour": price}
        yield LeaseGranted(at_s=at_s, lease=f"{name}.{number}", job=name, **where)
    elif lease.phase == "granted":
        yield LeaseStarted(at_s=at_s, lease=lease.lease)
    elif lease.phase == "running" and random.random() < 0.6:
        yield LeaseEnding(at_s=at_s, lease=lease.lease, reason=None, requeue=random.random() < 0.7)
    else:
        yield LeaseEnded(at_s=at_s, lease=lease.lease, exit_code=0, requeue=lease.requeue)


@pytest.mark.parametrize("seed", range(4))
def test_after_every_event_and_second_the_sums_are_those_of_a_plain_count(seed: int) -> None:
    random, now = Random(seed), [1_000]
    reader = Service(MemoryHistory(), [], Rules(), clock=lambda: now[0]).reader
    node = Node(site="here", node="node", gpu="h100", gpus=GPUS, microusd_per_gpu_hour=1, declared=True)
    reader.fold([NodeJoined.of(node, at_s=now[0])], after=0)
    mine = Principal(token="", name="v", roles={"a": "viewer"})
    twice_leased = capped = 0
    for step in range(600):
        events = [*changes(random, reader.fleet, now[0])]
        if step == 300:
            events = [QueuesSet(at_s=now[0], queues=(Quota(queue="q", gpus=4),))]
        if step >= 500 and step % 20 == 0:  # a market from here on: what runs is billed at its price
            terms: dict[str, Any] = {"held": 1, "wanted": 1, "gpus": GPUS, "tier": "owned"}
            price = random.randrange(1, 9_000_000)
            terms |= {"microusd_per_gpu_hour": price, "cleared_microusd_per_gpu_hour": price}
            events = [PoolPriced(at_s=now[0], site="here", gpu="h100", **terms)]
        reader.fold(events, after=reader.fleet.seq)
        now[0] += random.choice([0, 1, 700])
        found, whole = {key: asdict(row) for key, row in tallies(reader, OPERATOR).items()}, counted(reader)
        assert found == whole, f"after {events}"
        own = {key: asdict(row) for key, row in tallies(reader, mine).items()}
        assert own == {key: row for key, row in whole.items() if key[0] == "a"}
        running = [state for state in reader.fleet.running.values() if step < 500]
        twice_leased += sum(len(state.leases) > 1 for state in running)
        capped += sum(state.billed_microusd(now[0]) < state.cost_microusd(now[0]) for state in running)
    assert twice_leased > 100 < capped, "both happened while something ran"
