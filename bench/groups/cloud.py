"""The cost of buying on recorded spot capacity and prices, through the production `tick`.

    make bench ARGS=cloud                      three seeds: some six CPU minutes
    BRIMFUL_SEEDS=20 make bench ARGS=cloud     as many as the bar asks for

200 jobs (4-96 h, 1-8 GPUs, slack 1.1, 1.4 or 1.9, checkpoints of 1-100 GB, restart 0.2 h) on the four V100
zones of 2023-02, at the prices of those weeks. The record only says whether one instance was available; we
assume that for all sizes. The capacity record names zones by account, the price record by id; the first ids
of each region stand for them. The data is beside the checkout (`BRIMFUL_SHARED_DATA`, else ../shared/data).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from bench.document import markdown
from bench.groups.traces import DATA
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.adapters.providers.records import read_prices
from brimful.fleet.job import Job
from brimful.scheduler.cloud.buying import Buying
from brimful.scheduler.deadlines.programme import Task
from brimful.scheduler.policies import DEFAULT, read_policy
from brimful.sim.deadlines import Capacity, clairvoyant
from brimful.sim.provider import CloudOutcome, Zone, rehearse_buying
from brimful.sim.traces.capacity import read_capacity
from brimful.sim.world import Arrival
from brimful.units import HOUR_S, MICROUSD

TITLE = "Buying on spot records"
TABLES = ("cloud-policies",)
RECORDS = DATA / "spot" / "spot_availability.jsonl.gz"
PRICES = DATA.parent / "prices" / "aws_gpu_spot_history.csv.gz"
ZONES = {
    "us-east-1a": "use1-az1",
    "us-east-2a": "use2-az1",
    "us-west-2a": "usw2-az1",
    "us-west-2b": "usw2-az2",
}
START_S = int(datetime(2023, 2, 15, tzinfo=UTC).timestamp())
ON_DEMAND = 3_060_000  # micro-dollars per GPU-hour, list price
RESTART_S, SAVED_EVERY_S = 720, 600
SEEDS = int(os.environ.get("BRIMFUL_SEEDS", "3"))
PRICE_ONLY = Buying(by="price", moves=False)
ANY_PRICE = 100 * MICROUSD
DAY = 24 * HOUR_S

# Name -> how it buys, and whether jobs state their deadline or the tiers they accept.
POLICIES: dict[str, tuple[Buying, dict[str, Any]]] = {
    "on-demand only": (PRICE_ONLY, {"tiers": ("on_demand",)}),
    "cheapest now, recover elsewhere": (PRICE_ONLY, {}),
    "the same, spot only": (PRICE_ONLY, {"tiers": ("spot",)}),
    "uniform progress": (Buying(by="price", moves=False, programmes=False), {"deadline": True}),
    "brim": (Buying(), {"deadline": True}),
    "brim without moves": (Buying(moves=False), {"deadline": True}),
    "brim by price alone": (Buying(by="price"), {"deadline": True}),
    "brim keeping pace": (Buying(programmes=False), {"deadline": True}),
}


def benchmarks() -> Iterator[Benchmark]:
    looks = bytes(i % 37 > 9 for i in range(100 * 6))
    zone = _zone("a", looks, tick_s=600, spot=((0, MICROUSD),))
    yield Benchmark(
        name="20 jobs on one zone for four days, keeping pace",
        subject=body(lambda: _run("uniform progress", 0, [zone], jobs=20)),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def tables() -> dict[str, str]:
    if not (RECORDS.is_file() and PRICES.is_file()):
        return {}
    capacity, zones = recorded()
    cost: dict[str, list[float]] = {name: [] for name in [*POLICIES, "foresight"]}
    late = dict.fromkeys(cost, 0)
    bought = dict.fromkeys(cost, 0)
    for seed in range(SEEDS):
        for name in POLICIES:
            outcome = _run(name, seed, zones, jobs=200)
            cost[name].append(outcome.cost_microusd / MICROUSD)
            late[name] += outcome.late(_deadlines(arrivals(seed, 200, {"deadline": True})))
            bought[name] += len(outcome.machines)
        cost["foresight"].append(_foresight(capacity, zones, arrivals(seed, 200, {"deadline": True})))
    ours = fmean(cost["brim"])
    rows = [
        [
            name,
            f"{fmean(each):,.0f}",
            f"{ours / fmean(each):.3f}",
            str(late[name]),
            f"{bought[name] / SEEDS:,.0f}",
        ]
        for name, each in cost.items()
    ]
    return {"cloud-policies": markdown(["policy", "USD", "brim / it", "late", "nodes"], rows)}


def recorded() -> tuple[Capacity, list[Zone]]:
    capacity, _ = read_capacity(RECORDS, zones=list(ZONES), accelerator="v100", count="1")
    series = read_prices(PRICES)
    zones = []
    for name, up in zip(capacity.zones, capacity.up, strict=True):
        spot: list[tuple[int, int]] = []
        told = series[f"p3.2xlarge {ZONES[name]}"]
        for hours, usd in zip(told.at_h, told.prices, strict=True):
            at_s = int(hours * HOUR_S) - START_S
            if usd is not None:
                spot = [(0, round(usd * MICROUSD))] if at_s <= 0 else [*spot, (at_s, round(usd * MICROUSD))]
        zones.append(_zone(name, up, tick_s=capacity.tick_s, spot=tuple(spot)))
    return capacity, zones


def _zone(name: str, up: bytes, *, tick_s: int, spot: tuple[tuple[int, int], ...]) -> Zone:
    return Zone(
        provider="aws",
        region=name[:-1],
        zone=name,
        gpu="v100-sxm-16gb",
        on_demand_microusd=ON_DEMAND,
        spot=spot,
        tick_s=tick_s,
        up=up,
    )


def arrivals(seed: int, jobs: int, told: dict[str, Any]) -> list[Arrival]:
    """The same work for every policy; `told` is what a job states about itself."""
    rng = random.Random(seed)
    found = []
    for i in range(jobs):
        work_s, gpus = rng.uniform(4, 96) * HOUR_S, rng.randint(1, 8)
        slack, size = rng.choice((1.1, 1.4, 1.9)), int(rng.uniform(1, 100) * 1e9)
        at_s = int(rng.uniform(3, 20) * DAY)
        says: dict[str, Any] = {"limit_microusd_per_gpu_hour": ANY_PRICE, "tiers": told.get("tiers", ())}
        if told.get("deadline"):
            says = {"deadline_s": at_s + int(work_s * slack)}
        job = Job(
            job=f"job-{i}",
            gpus=gpus,
            predicted_work_s=work_s,
            checkpoint_interval_s=SAVED_EVERY_S,
            checkpoint_cost_s=RESTART_S,
            checkpoint_bytes=size,
            **says,
        )
        found.append(Arrival(at_s=at_s, job=job, work_s=work_s))
    return found


def _deadlines(jobs: list[Arrival]) -> dict[str, int]:
    return {each.job.job: each.job.deadline_s for each in jobs if each.job.deadline_s is not None}


def _run(name: str, seed: int, zones: list[Zone], *, jobs: int) -> CloudOutcome:
    buying, told = POLICIES[name]
    rules = read_policy(DEFAULT).rules
    return rehearse_buying(arrivals(seed, jobs, told), zones, rules, buying, until_s=45 * DAY)


def _foresight(capacity: Capacity, zones: list[Zone], jobs: list[Arrival]) -> float:
    """A lower bound: spot at the lowest price of any zone and time, with free egress and no lost work."""
    least = min(price for zone in zones for at_s, price in zone.spot if at_s < 45 * DAY) / MICROUSD
    total = 0.0
    for each in jobs:
        assert each.job.deadline_s is not None
        task = Task(
            work_s=each.work_s,
            deadline_s=each.job.deadline_s - each.at_s,
            restart_s=RESTART_S,
            spot_usd_per_hour=least,
            on_demand_usd_per_hour=ON_DEMAND / MICROUSD,
        )
        total += each.job.gpus * clairvoyant(capacity, task, each.at_s // capacity.tick_s)
    return total
