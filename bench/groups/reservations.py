"""Reservations: random histories, and the value of idle reserved hours on a public record of load.

    make bench ARGS=reservations     12,500 histories: a quarter of an hour of CPU

Each pool's owner reserves what covers 95 of 100 hours, for the whole record. What its load leaves idle is
lent by the rule (unused for 15 minutes). Borrowers are patient: a tenth of each hour's load comes again as
spot work that waits up to a day for a lent GPU, and otherwise pays the reserved price. They pay the pool's
floor. The data is beside the checkout (`BRIMFUL_SHARED_DATA`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.document import judged, markdown
from bench.groups.forecast import LOADS
from bench.histories import LATE_S, try_histories
from bench.measure import CALIBRATION, Benchmark, body, calibration
from brimful.adapters.providers.records import read_loads
from brimful.fleet.reservations.reservation import Stretches
from brimful.market.pools import ReserveTerms
from brimful.units import HOUR_S

TITLE = "Reservations"
TABLES = ("reservation-histories", "reservation-pools")
HISTORIES = 10_000
TOKENS = 2_500  # more of them, with quotas inside an organisation
KINDS = ("with windows", "with quotas and tokens")
IN_TIME = 0.999  # least share of owners
USD = 1_000_000
COVERED = 0.95
PATIENT = 0.1  # of each hour's load, as spot work
WAITS_H = 24


def benchmarks() -> Iterator[Benchmark]:
    yield Benchmark(
        name="a random history of a reservation, watched",
        subject=body(lambda: try_histories(range(1), actions=10)),
        peer_name=CALIBRATION,
        peer=calibration,
    )


def tables() -> dict[str, str]:
    found = {"reservation-histories": _histories()}
    if LOADS.is_file():
        found["reservation-pools"] = _pools()
    return found


def _histories() -> str:
    found = try_histories(range(HISTORIES)), try_histories(range(TOKENS), tokens=True)
    late = [[wait_s for wait_s in each.waits_s if wait_s > LATE_S] for each in found]
    rows: list[tuple[str, ...]] = [
        ("events", *(f"{each.events:,}" for each in found)),
        ("reservations and quotas", *(f"{each.reservations:,}" for each in found)),
        ("crashes", *(f"{each.crashes:,}" for each in found)),
        ("owners' jobs that waited or not for GPUs of theirs", *(f"{len(each.waits_s):,}" for each in found)),
        late_row([(len(each.waits_s), len(lates)) for each, lates in zip(found, late, strict=True)]),
        ("latest start after the notice", *(f"{max(each.waits_s, default=0):,} s" for each in found)),
        ("earned by lending, in dollars or tokens", *(f"{each.lent_microusd // USD:,}" for each in found)),
        # The watcher refuses the history otherwise.
        ("hours credited or sold twice, credits above what was paid", "0", "0"),
        ("lenders that earned more or less than their part of every second", "0", "0"),
        ("events after which accounts do not sum to zero", "0", "0"),
        ("logs whose replay differs by a byte", "0", "0"),
    ]
    return markdown(
        ("random histories", *(f"{each.histories:,} {of}" for each, of in zip(found, KINDS, strict=True))),
        rows,
    )


def late_row(found: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """Of each kind: owners' jobs, and how many were late."""
    cells = (
        judged(f"{late:,} (≤ {1 - IN_TIME:.1%})", is_met=jobs > 0 and late <= (1 - IN_TIME) * jobs)
        for jobs, late in found
    )
    return "of these, started later than notice + 2 min", *cells


@dataclass(frozen=True, slots=True)
class Lent:
    """GPU-hours of one reservation."""

    gpus: int
    bought: float
    idle: float
    lent: float
    borrowed: float
    wanted: float  # by borrowers, over all hours


def lend(loads: Sequence[float], terms: ReserveTerms) -> Lent:
    """Hour by hour, with the fold's own rule for how long GPUs have been idle."""
    gpus = int(sorted(loads)[int(COVERED * (len(loads) - 1))])
    unused = Stretches()
    idle = lent = borrowed = wanted = 0.0
    waiting: list[tuple[int, float]] = []  # (hour it came, GPU-hours)
    for hour, load in enumerate(loads):
        now_s, now_idle = hour * HOUR_S, gpus - min(gpus, int(load))
        more = now_idle - unused.gpus
        if more > 0:
            unused.add(more, at_s=now_s)
        else:
            list(unused.take(-more))
        # Lent once they have been idle for long enough; the load is assumed constant within an hour.
        young = now_idle - unused.older(now_s - terms.idle_s)
        here = now_idle - young * min(1.0, terms.idle_s / HOUR_S)
        waiting = [(came, work) for came, work in waiting if hour - came < WAITS_H and work > 0]
        waiting.append((hour, PATIENT * load))
        wanted += PATIENT * load
        idle, lent = idle + now_idle, lent + here
        for i, (came, work) in enumerate(waiting):
            used = min(work, here)
            here -= used
            borrowed += used
            waiting[i] = (came, work - used)
    return Lent(gpus, gpus * len(loads), idle, lent, borrowed, wanted)


def _pools() -> str:
    terms = ReserveTerms()
    unit = 1 + terms.premium_permille / 1000  # relative to the floor, which borrowers pay
    share = terms.share_permille / 1000
    rows = []
    for pool, loads in read_loads(LOADS).items():
        found = lend(loads, terms)
        back = found.borrowed * share / (found.bought * unit)
        saved = found.borrowed * (unit - 1) / (found.wanted * unit)
        paused = found.idle * terms.pause_permille / 1000 / found.bought
        rows.append(
            (
                pool,
                f"{found.gpus:,}",
                f"{found.idle / found.bought:.1%}",
                f"{found.lent / found.idle:.1%}",
                f"{found.borrowed / found.lent:.1%}",
                f"{back:.1%}",
                f"{paused:.1%}",
                f"{found.borrowed / found.wanted:.1%}",
                f"{saved:.1%}",
            )
        )
    header = (
        "pool",
        "reserved",
        "idle",
        "lent of it",
        "borrowed",
        "back to owners",
        "if paused",
        "spot work served",
        "saved by it",
    )
    return markdown(header, rows)
