"""Records of spot capacity: one JSON object per line: how many of `nodes` instances were available, by look.

Fields: zone, accelerator, count, start, nodes, gap_seconds, runs = [[value, looks], ...]; see the public sets
of the Can't Be Late and SkyServe authors.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from brimful.errors import BadInput, NotFound
from brimful.language import Number, os_words, say
from brimful.sim.deadlines import Capacity
from brimful.sim.traces.reading import numbered_lines, open_unpacked

MOST_LOOKS = 20_000_000
MOST_LINE_BYTES = 16 << 20  # a year of looks every five minutes, none like the one before, has 1 MB

Record = dict[str, Any]


def read_capacity(
    path: Path, *, zones: Sequence[str] = (), accelerator: str | None = None, count: str | None = None
) -> tuple[Capacity, str]:
    """The records of these zones that were made together, and what they are records of.

    A file may hold several sets. The set that covers most of the requested zones is taken, the first in the
    file on a tie; `accelerator` and `count` choose another.
    """
    groups: dict[tuple[str, ...], dict[str, Record]] = {}
    for record in _records(path):
        if zones and record["zone"] not in zones:
            continue
        if accelerator not in (None, record["accelerator"]) or count not in (None, record["count"]):
            continue
        key = tuple(str(record[k]) for k in ("kind", "accelerator", "count", "nodes", "start", "gap_seconds"))
        groups.setdefault(key, {}).setdefault(record["zone"], record)
    if not groups:
        wanted = ", ".join(zones) or "any zone"
        raise NotFound(say("sim.no_capacity_record", name=path.name, wanted=wanted))
    preferred = [key for key in groups if key[0] == "availability"] or list(groups)
    key = max(preferred, key=lambda key: len(groups[key]))
    chosen = groups[key]
    if missing := [zone for zone in zones if zone not in chosen]:
        raise NotFound(say("sim.no_common_record", missing=", ".join(missing)))
    names = tuple(zones) or tuple(chosen)
    ups = [
        b"".join(bytes([value >= chosen[name]["nodes"]]) * ticks for value, ticks in chosen[name]["runs"])
        for name in names
    ]
    length = min(map(len, ups))
    tick_s = int(float(chosen[names[0]]["gap_seconds"]))
    used = f"{key[3]} x {key[2]} {key[1]}, {key[4]}".strip(" ,")
    return Capacity(tick_s, names, tuple(up[:length] for up in ups)), used


def _records(path: Path) -> Iterator[Record]:
    try:
        with open_unpacked(path) as stream:
            for n, line in numbered_lines(stream, path.name, most=MOST_LINE_BYTES):
                if line.strip():
                    yield _record(line.decode("utf-8"), f"{path.name} line {n}")
    except FileNotFoundError as error:
        raise NotFound(say("sim.no_file", path=path), hint=say("sim.hint_name_file")) from error
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        why = os_words(error) if isinstance(error, OSError) else error
        raise BadInput(say("sim.capacity_unreadable", name=path.name, error=why)) from error


def _record(line: str, where: str) -> Record:
    try:
        body = json.loads(line)
        gap, nodes, runs = float(body["gap_seconds"]), int(body.get("nodes", 1)), body["runs"]
        looks = [(float(value), int(ticks)) for value, ticks in runs]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(say("sim.bad_capacity_record", where=where, error=repr(error)[:160])) from error
    if not 1 <= gap <= 86_400 or nodes < 1 or any(ticks < 0 for _, ticks in looks):
        raise BadInput(say("sim.capacity_out_of_range", where=where))
    if sum(ticks for _, ticks in looks) > MOST_LOOKS:
        raise BadInput(say("sim.too_many_looks", where=where, most=Number(MOST_LOOKS)))
    return {
        "zone": str(body.get("zone", "zone")),
        "accelerator": str(body.get("accelerator", "")),
        "count": str(body.get("count", "")),
        "start": str(body.get("start", "")),
        "kind": str(body.get("kind", "availability")),
        "gap_seconds": gap,
        "nodes": nodes,
        "runs": looks,
    }
