"""A plain CSV of what is paid for: reservations, machines and their prices.

    place,gpu,gpus,start,end,usd_per_gpu_hour,kind,queues
    node-1,h100-sxm-80gb,8,2026-05-01,2026-06-01,2.50,paid,research|prod

`place` is a node, or a pool where its GPUs are not told apart (`kind` pool). Needed: place, gpus. Without
start and end it is paid for all the time; without a price there is no money. `kind` list: the price is a
list's, not what was paid. `kind` unused: a commitment that nothing drew on.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import tzinfo
from pathlib import Path

from brimful.audit.readers.slurm import moment
from brimful.audit.records import Paid, Records
from brimful.errors import BadInput
from brimful.language import Plain, say
from brimful.units import HOUR_S, integer_from_text, microusd_from_usd

NEEDED = {"place", "gpus"}
KINDS = ("", "paid", "list", "pool", "unused")


def is_paid(head: str) -> bool:
    return {name.strip('"\r ') for name in head.partition("\n")[0].split(",")} >= NEEDED


def read(
    path: Path, lines: Iterator[str], records: Records, zone: tzinfo, window: tuple[int, int] | None
) -> None:
    for n, row in enumerate(csv.DictReader(lines), start=2):
        gpus = integer_from_text((row["gpus"] or "").strip(), low=0, high=1_000_000)
        kinds = (row.get("kind") or "").split()
        price = (row.get("usd_per_gpu_hour") or "").strip()
        rate = microusd_from_usd(price) if price else None
        try:
            start, end = (moment((row.get(name) or "").strip(), zone) for name in ("start", "end"))
        except (ValueError, OverflowError):
            start, end = 0, 0
        start_s, end_s = (
            start if start is not None else (window or (0, 0))[0],
            end if end is not None else (window or (0, 0))[1],
        )
        if gpus is None or start_s >= end_s or set(kinds) - set(KINDS) or (price and rate is None):
            raise BadInput(
                say("audit.bad_paid_row", name=path.name, row=Plain(n), kinds=", ".join(KINDS[1:]))
            )
        cost = None if rate is None else (rate * gpus * (end_s - start_s) + HOUR_S // 2) // HOUR_S
        records.paid.append(
            Paid(
                place=row["place"],
                gpu=row.get("gpu") or "",
                gpus=gpus,
                start_s=start_s,
                end_s=end_s,
                microusd=cost,
                list_price="list" in kinds,
                walls=frozenset(filter(None, (row.get("queues") or "").split("|"))),
                is_node="pool" not in kinds,
                unused="unused" in kinds,
            )
        )
