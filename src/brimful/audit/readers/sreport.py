"""`sreport cluster utilization --tres=gres/gpu`: sums over a window, and nothing else.

Two headers: Planned, and Reserved before Slurm 21.08. Planned is 0 for gres/gpu whatever waited, so sreport's
idle GPUs may or may not have had demand: unknown. Without the line that names the unit, minutes and hours
cannot be distinguished, and the block is counted as left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from brimful.audit.records import Records
from brimful.units import integer_from_text

UNITS = {"seconds": 1, "minutes": 60, "hours": 3600}
MOST = 10**15  # in any unit
UNIT = re.compile(r"Usage reported in (?:TRES|CPU) (\w+)")
LEAVES = {
    "Allocated": "allocated.unknown.unknown",
    "Down": "out_of_service.broken",
    "PLND Down": "out_of_service.planned",
    "Idle": "unallocated.unknown",
    "Planned": "unallocated.unknown",
    "Reserved": "unallocated.unknown",
}


def is_report(head: str) -> bool:
    return "PLND Down" in head and ("Planned" in head or "Reserved" in head)


def read(lines: Iterator[str], records: Records) -> None:
    unit: int | None = None
    columns: list[str] = []
    for line in lines:
        text = line.strip()
        if found := UNIT.search(text):
            unit = UNITS.get(found[1].lower())
        elif "PLND Down" in text:
            columns = _cells(text)
        elif text.startswith(("#", "$", "-", "Cluster Utilization")) or not text:
            if text.startswith("#"):
                unit, columns = None, []  # another report starts
        elif columns:
            _row(dict(zip(columns, _cells(text), strict=False)), unit, records)
        else:
            records.left_out["sreport_row"] += 1


def _cells(text: str) -> list[str]:
    return [cell.strip() for cell in (text.split("|") if "|" in text else re.split(r"\s{2,}", text))]


def _row(cells: dict[str, str], unit: int | None, records: Records) -> None:
    if not cells.get("TRES Name", "cpu").startswith("gres/gpu") or unit is None:
        records.left_out["sreport_row"] += 1
        return
    for column, leaf in LEAVES.items():
        amount = integer_from_text(cells.get(column, "").partition("(")[0], low=1, high=MOST)
        if amount is not None:
            records.totals.append((leaf, cells.get("Cluster", ""), amount * unit))
