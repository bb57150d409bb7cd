"""The operator's caps hold in random histories: prices move, zones come and go, jobs of all kinds ask."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

import pytest

from brimful.fleet.state import Fleet
from brimful.market.ledger import Ledger
from brimful.scheduler.cloud.buying import Buying
from brimful.scheduler.policies import read_policy
from brimful.sim.provider import Zone, rehearse_buying
from brimful.sim.world import Arrival
from brimful.units import HOUR_S
from tests.builders import USD, a_job

RULES = read_policy("brim?types=cheap").rules
DAY = 24 * HOUR_S
HISTORIES = int(os.environ.get("BRIMFUL_HISTORIES", "12"))  # 1,000 take some CPU minutes
LOOK_S = 600


def zones(rng: random.Random) -> list[Zone]:
    found = []
    for i in range(rng.randint(1, 3)):
        looks, up = bytearray(), rng.random() < 0.7
        while len(looks) < 3 * DAY // LOOK_S:
            looks += bytes([up]) * rng.randint(1, 60)
            up = not up
        price, prices = rng.uniform(0.2, 2), []
        for at_s in range(0, 3 * DAY, 6 * HOUR_S):
            prices.append((at_s, round(price * USD)))
            price *= rng.choice((0.6, 1.0, 1.0, 1.7))
        quantum_s = rng.choice((1, 60, HOUR_S))
        found.append(
            Zone(
                provider="cloud",
                region=f"r{i}",
                zone=f"z{i}",
                gpu="v100",
                on_demand_microusd=3 * USD,
                spot=tuple(prices),
                tick_s=LOOK_S,
                up=bytes(looks),
                lead_s=rng.choice((0, 90, 400)),
                least_s=rng.choice((0, 60, HOUR_S)),
                quantum_s=quantum_s,
            )
        )
    return found


def arrivals(rng: random.Random) -> list[Arrival]:
    found = []
    for i in range(rng.randint(2, 12)):
        work_s, at_s = rng.uniform(0.5, 12) * HOUR_S, rng.randrange(DAY)
        pays: dict[str, Any] = {"limit_microusd_per_gpu_hour": round(rng.uniform(0.5, 4) * USD)}
        if rng.random() < 0.5:
            pays = {"deadline_s": at_s + int(work_s * rng.uniform(1.05, 3))}
        if rng.random() < 0.3:
            pays["budget_microusd"] = round(rng.uniform(1, 60) * USD)
        job = a_job(
            f"job-{i}",
            gpus=rng.choice((1, 2, 4, 8)),
            predicted_work_s=work_s * rng.uniform(0.7, 1.3),
            checkpoint_interval_s=rng.choice((None, 0, 600)),
            checkpoint_cost_s=rng.choice((0, 300)),
            checkpoint_bytes=rng.randrange(10**11),
            **pays,
        )
        found.append(Arrival(at_s=at_s, job=job, work_s=work_s))
    return found


@dataclass(slots=True)
class Watch:
    """Holds the hourly cap at every tick, and notes what a quantum of the dearest node costs."""

    buying: Buying
    quantum: int = 0

    def __call__(self, fleet: Fleet, now_s: int) -> None:
        hourly = 0
        for each in fleet.cloud.machines.values():
            leases = fleet.leases_on.get(each.node, {}).values()
            if each.returned_s is None and not any(lease.phase == "ending" for lease in leases):
                hourly += each.microusd_per_hour
            least_s = max(each.offer.quantum_s, each.offer.least_s, 60)
            self.quantum = max(self.quantum, each.microusd_per_hour * least_s // HOUR_S)
        assert self.buying.hourly_microusd is not None
        assert hourly <= self.buying.hourly_microusd, now_s
        assert hourly <= self.buying.hourly_of.get("cloud", hourly), now_s


@pytest.mark.parametrize("part", range(4))
def test_no_history_crosses_a_cap_by_more_than_one_billing_quantum(part: int) -> None:
    for seed in range(part, HISTORIES, 4):
        rng = random.Random(seed)
        there, jobs = zones(rng), arrivals(rng)
        monthly = round(rng.uniform(1, 150) * USD)
        hourly = round(rng.uniform(1, 30) * USD)
        # Who keeps pace asks for as much and takes less time to say so.
        own = {"cloud": round(rng.uniform(1, 30) * USD)} if rng.random() < 0.5 else {}
        caps = Buying(hourly_microusd=hourly, monthly_microusd=monthly, hourly_of=own, programmes=False)
        watch = Watch(caps)
        outcome = rehearse_buying(jobs, there, RULES, watch.buying, until_s=4 * DAY, watch=watch)
        assert outcome.bought_microusd <= monthly + watch.quantum, seed
        ledger = Ledger()
        for event in outcome.log:
            ledger.apply(event)
        assert sum(ledger.balances.values()) == 0
        assert -ledger.balance("operator:bought") == outcome.bought_microusd or outcome.fleet.cloud.machines
