"""A plain CSV of what is paid for: reservations, machines and their prices.

    place,gpu,gpus,start,end,usd_per_gpu_hour,kind,queues
    node-1,h100-sxm-80gb,8,2026-05-01,2026-06-01,2.50,paid,research|prod

`place` is a node, or a pool of indistinguishable GPUs (`kind` pool). Required: place, gpus. Without start and
end it is paid for all the time; without a price there is no money. `kind` list: a list price, not what was
paid. `kind` unused: a commitment that nothing used.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import tzinfo
from pathlib import Path

from brimful.audit.readers.slurm import moment
from brimful.audit.records import Paid, Records
from brimful.errors import BadInput
from brimful.language import Plain, Quoted, say
from brimful.sim.traces.reading import columns_of
from brimful.units import HOUR_S, integer_from_text, microusd_from_usd

NEEDED = {"place", "gpus"}
COLUMNS = ("place", "gpu", "gpus", "start", "end", "usd_per_gpu_hour", "kind", "queues")
KINDS = ("", "paid", "list", "pool", "unused")


def is_paid(head: str) -> bool:
    return set(columns_of(head)) >= NEEDED


def read(path: Path, lines: Iterator[str], records: Records, zone: tzinfo, window: tuple[int, int]) -> None:
    table = csv.DictReader(lines)
    strange = [name for name in table.fieldnames or () if (name or "").strip() not in COLUMNS]
    if strange:  # otherwise a price in euros, or a typo, would be silently ignored
        names, known = ", ".join(strange), ", ".join(COLUMNS)
        raise BadInput(say("audit.paid_columns", name=path.name, columns=Quoted(names[:60]), known=known))
    for n, row in enumerate(table, start=2):
        gpus = integer_from_text((row["gpus"] or "").strip(), low=0, high=1_000_000)
        kinds = (row.get("kind") or "").split()
        price = (row.get("usd_per_gpu_hour") or "").strip()
        rate = microusd_from_usd(price) if price else None
        try:
            start, end = (moment((row.get(name) or "").strip(), zone) for name in ("start", "end"))
        except (ValueError, OverflowError):
            start, end = 0, 0
        start_s = start if start is not None else window[0]
        end_s = end if end is not None else window[1]
        wrong = {
            "gpus": gpus is None,
            "start,end": start_s >= end_s and (start, end) != (None, None),
            "kind": bool(set(kinds) - set(KINDS)),
            "usd_per_gpu_hour": bool(price) and rate is None,
        }
        if gpus is None or any(wrong.values()):
            column = next(name for name, is_wrong in wrong.items() if is_wrong)
            entry = ",".join(row.get(name) or "" for name in column.split(","))
            values = {"row": Plain(n), "column": column, "entry": Quoted(entry[:40])}
            raise BadInput(say("audit.bad_paid_row", name=path.name, kinds=", ".join(KINDS[1:]), **values))
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
