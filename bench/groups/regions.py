"""Choosing a zone by price alone: the spot prices of 2022 to 2026, seven instance types.

    make bench ARGS=regions     about 40 CPU seconds

The record has prices but no capacity, so every zone always has room and nobody is ever evicted: what is left
is the cost of a move, as the scheduler computes it (`brimful.market.where`). 200 jobs per instance type (4-96
h, checkpoints of 1-100 GB, restart 0.2 h) start at random hours of its record and look every hour. Each job
starts from scratch, so that the first zone costs no egress.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean

from bench.document import markdown
from bench.groups.cloud import PRICES, RESTART_S
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.adapters.providers.records import read_prices
from brimful.market.forecast import PriceSeries
from brimful.market.where import Need, egress_microusd, is_worth_moving, weigh
from brimful.specs.offer import Offer
from brimful.units import HOUR_S, MICROUSD

TITLE = "Choice of region by price"
TABLES = ("cloud-regions",)
JOBS = 200
HOME = "use1-"  # the zone of a user who does not choose
# The smallest instance of each card with at least two years of records: K80, V100, A100, H100, T4, A10G, L4.
INSTANCES = (
    "p2.xlarge",
    "p3.2xlarge",
    "p4d.24xlarge",
    "p5.48xlarge",
    "g4dn.xlarge",
    "g5.xlarge",
    "g6.xlarge",
)

Zones = Mapping[str, PriceSeries]
# Its current cost where the job is, and where it could be: whether it moves.
Moves = Callable[[Offer, Offer, Need], bool]


@dataclass(frozen=True, slots=True)
class Run:
    begin_h: int
    hours: float
    bytes: int


def benchmarks() -> Iterator[Benchmark]:
    zones = {f"a{i}-az1": PriceSeries([0.0, 10.0 + i, 40.0], [1.0, 1.0 - i / 20, 1.1]) for i in range(10)}
    runs = [Run(i % 30, 48.0, 10**10) for i in range(20)]
    yield Benchmark(
        name="20 jobs over ten zones, moved for money",
        subject=body(lambda: [cost(zones, run, _for_money) for run in runs]),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def tables() -> dict[str, str]:
    if not PRICES.is_file():
        return {}
    series = read_prices(PRICES)
    rows = []
    for instance in INSTANCES:
        zones = {
            name.partition(" ")[2]: each for name, each in series.items() if name.startswith(f"{instance} ")
        }
        rows.append([instance, *_row(zones)])
    header = ["instance", "record", "zones", "us-east-1", "best at start", "always cheapest", "brim"]
    return {"cloud-regions": markdown([*header, "lower bound", "brim / us-east-1", "moves"], rows)}


def _row(zones: Zones) -> list[str]:
    """Dollars per hour of work, the mean over jobs; and how often brim moves one."""
    first_h = min(int(each.at_h[0]) for each in zones.values()) + 1
    last_h = max(int(each.at_h[-1]) for each in zones.values()) - 100
    rng, found = random.Random(0), list[tuple[float, ...]]()
    while len(found) < JOBS:
        run = Run(rng.randint(first_h, last_h), rng.uniform(4, 96), int(rng.uniform(1, 100) * 1e9))
        at_home = {name: each for name, each in zones.items() if name.startswith(HOME)}
        if not _offers(at_home, run.begin_h):
            continue  # it was not on sale there at that time
        ours, moves = cost(zones, run, _for_money)
        others = (
            cost(at_home, run, _never)[0],
            cost(zones, run, _never)[0],
            cost(zones, run, _whenever_cheaper)[0],
        )
        found.append((*(each / run.hours for each in (*others, ours, _bound(zones, run))), moves))
    *usd, moved = (fmean(each) for each in zip(*found, strict=True))
    record = f"{_month(first_h)} to {_month(last_h + 100)}"
    return [
        record,
        str(len(zones)),
        *(f"{each:.3f}" for each in usd),
        f"{usd[3] / usd[0]:.3f}",
        f"{moved:.2f}",
    ]


def _month(hour: int) -> str:
    return f"{datetime.fromtimestamp(hour * HOUR_S, UTC):%Y-%m}"


def _never(_here: Offer, _there: Offer, _need: Need) -> bool:
    return False


def _whenever_cheaper(here: Offer, there: Offer, _need: Need) -> bool:
    return there.microusd_per_hour < here.microusd_per_hour


def _for_money(here: Offer, there: Offer, need: Need) -> bool:
    stays = Need(work=need.work, restart_s=0, lost_s=0)
    return is_worth_moving(weigh(here, stays, work_per_s=1), weigh(there, need, work_per_s=1))


def cost(zones: Zones, run: Run, moves: Moves) -> tuple[float, int]:
    """Dollars from its first start to its end, including egress, and how often it moved.

    If a zone no longer lists the instance, the job moves to the cheapest zone.
    """
    at_h, left_s, setup_s = run.begin_h, run.hours * HOUR_S, float(RESTART_S)
    here = min(_offers(zones, at_h).values(), key=_price)
    owed, moved = 0.0, 0
    while left_s > 0:
        offers = _offers(zones, at_h)
        if not offers:
            at_h += 1  # nothing is for sale anywhere: it waits
            continue
        need = Need(
            work=left_s,
            state_bytes=run.bytes,
            at_provider=here.provider,
            at_region=here.region,
            restart_s=RESTART_S,
            lost_s=0,
        )
        staying = offers.get(here.zone)
        best = min(offers.values(), key=_price if moves is _whenever_cheaper else _total(need))
        if staying is None or (best.zone != here.zone and moves(staying, best, need)):
            owed += egress_microusd(run.bytes, provider=here.provider, region=here.region, to=best)
            setup_s, moved, here = float(RESTART_S), moved + 1, best
        else:
            here = staying
        ran_s = min(float(HOUR_S), setup_s + left_s)
        owed += here.microusd_per_hour * ran_s / HOUR_S
        worked_s = max(0.0, ran_s - setup_s)
        setup_s, left_s, at_h = max(0.0, setup_s - ran_s), left_s - worked_s, at_h + 1
    return owed / MICROUSD, moved


def _offers(zones: Zones, hour: int) -> dict[str, Offer]:
    found = {}
    for zone, series in zones.items():
        usd = series.at(hour)
        if usd:
            found[zone] = Offer(
                provider="aws",
                region=zone.partition("-")[0],
                zone=zone,
                instance="",
                gpu="",
                gpus=1,
                microusd_per_hour=round(usd * MICROUSD),
                is_spot=False,  # nobody is evicted here, whatever the tier
            )
    return found


def _price(offer: Offer) -> tuple[int, str]:
    return offer.microusd_per_hour, offer.zone


def _total(need: Need) -> Callable[[Offer], tuple[int, str]]:
    return lambda offer: (weigh(offer, need, work_per_s=1).total, offer.zone)


def _bound(zones: Zones, run: Run) -> float:
    """The lowest price of every hour, with free moves."""
    owed, at_h, left_h = 0.0, run.begin_h, run.hours + RESTART_S / HOUR_S
    while left_h > 0:
        offers = _offers(zones, at_h)
        if offers:
            owed += min(_price(each)[0] for each in offers.values()) * min(1.0, left_h)
            left_h -= 1
        at_h += 1
    return owed / MICROUSD
