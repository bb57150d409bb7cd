"""jobstats' summary in Slurm's AdminComment: `JS1:` and gzipped JSON in base64.

For each node of a job: memory and mean utilization of each card over the whole run. A card without an entry
in gpu_utilization is unknown, not 0. A mean of 0 means that the card was never used; any other mean does not
say when. Source: github.com/PrincetonUniversity/jobstats.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from brimful.audit.records import Mean, Records

PREFIX = "JS1:"
MOST_BYTES = 2**20
MOST = 2**50  # limit for any number


def decode(comment: str) -> Mapping[str, Any] | None:
    """The contents of the string; None for `JS1:Short`, `JS1:None` and anything unreadable."""
    try:
        packed = base64.b64decode(comment.removeprefix(PREFIX), validate=True)
        text = zlib.decompressobj(wbits=31).decompress(packed, MOST_BYTES)
        found = json.loads(text)
    except (binascii.Error, zlib.error, gzip.BadGzipFile, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("nodes"), dict) else None


def add(job: str, comment: str, records: Records) -> None:
    found = decode(comment)
    if found is None:
        records.left_out["jobstats"] += 1
        return
    for node, on_node in found["nodes"].items():
        used, total = (_by_card(on_node, f"gpu_{which}_memory") for which in ("used", "total"))
        busy = {card: percent / 100 for card, percent in _by_card(on_node, "gpu_utilization").items()}
        for card in sorted({*used, *busy, *total}):
            mean = Mean(node, card, busy.get(card), used.get(card), total.get(card))
            records.means.setdefault(job, []).append(mean)


def _by_card(on_node: object, kind: str) -> dict[int, float]:
    """Skips what is not a number."""
    found = on_node.get(kind) if isinstance(on_node, dict) else None
    return {
        int(card): value
        for card, value in (found.items() if isinstance(found, dict) else ())
        if card.isdecimal() and len(card) <= 4 and isinstance(value, (int, float)) and 0 <= value < MOST
    }


def is_table(head: str) -> bool:
    return PREFIX in head and "\t" in head


def is_usage(head: str) -> bool:
    """`sacct -P -o JobID,TRESUsageInAve`, without its header."""
    return "gres/gpuutil=" in head and "Submit" not in head


def read_table(lines: Iterator[str], records: Records) -> None:
    """Summaries stored separately from sacct, one per row: job or source, and the string."""
    for line in lines:
        cells = line.rstrip("\n").split("\t")
        comment = next((cell for cell in cells if cell.startswith(PREFIX)), None)
        if comment is not None:
            add(cells[0], comment, records)


def read_usage(lines: Iterator[str], records: Records) -> None:
    """Slurm's own means of whole jobs. Both zero: the card or its driver does not support them."""
    for line in lines:
        name, _, usage = line.partition("|")
        found = dict(part.partition("=")[::2] for part in usage.strip("|\n").split(","))
        busy, used = found.get("gres/gpuutil", ""), found.get("gres/gpumem", "")
        if not busy.isdigit() or not name.endswith(".batch"):
            continue
        if busy == used == "0":
            records.left_out["usage_not_supported"] += 1
            continue
        job = name.partition(".")[0]
        used_bytes = int(used) if used.isdigit() else None
        records.means.setdefault(job, []).append(
            Mean("", 0, busy_frac=int(busy) / 100, used_bytes=used_bytes)
        )
