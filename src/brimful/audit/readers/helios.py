"""Helios' state of virtual clusters, one row per minute, as its artifact publishes it (parquet).

Columns used: vc, time, total_gpu_num, running_gpu_num, pending_gpu_num. Times have no zone. Counts only: it
does not say who ran or how it ended. Source: github.com/S-Lab-System-Group/HeliosArtifact; Hu et al., SC
2021.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from brimful.audit.records import Paid, Part, Records, Run, Wait
from brimful.errors import BadInput
from brimful.language import say
from brimful.language.failures import needs_package

COLUMNS = ("vc", "time", "total_gpu_num", "running_gpu_num", "pending_gpu_num")
MAGIC = b"PAR1"


def read(path: Path, records: Records) -> None:
    table = _table(path)
    by_vc: dict[str, list[tuple[int, int, int, int]]] = {}
    for vc, *row in zip(*(table[column] for column in COLUMNS), strict=True):
        by_vc.setdefault(vc, []).append((row[0], row[1], row[2], row[3]))
    for vc, rows in by_vc.items():
        rows.sort()
        step_s = min((b[0] - a[0] for a, b in itertools.pairwise(rows)), default=60)
        times = [row[0] for row in rows]
        for start, end, gpus in _constant(times, [row[1] for row in rows], step_s):
            walls = frozenset({vc})
            records.paid.append(
                Paid(place=vc, gpu="", gpus=gpus, start_s=start, end_s=end, walls=walls, is_node=False)
            )
        for start, end, gpus in _constant(times, [row[2] for row in rows], step_s):
            part = Part(place=vc, gpus=gpus)
            records.runs.append(Run(job="", start_s=start, end_s=end, parts=(part,), team=vc, wall=vc))
        for start, end, gpus in _constant(times, [row[3] for row in rows], step_s):
            records.waits.append(Wait(start_s=start, end_s=end, gpus=gpus, wall=vc))
    records.knows_queue = True


def _table(path: Path) -> dict[str, list[object]]:
    with needs_package("audit.needs_pyarrow", BadInput, code=None, name=path.name):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        missing = set(COLUMNS) - set(pq.read_schema(path).names)
        if missing:
            raise BadInput(say("audit.no_columns", name=path.name, missing=", ".join(sorted(missing))))
        table = pq.read_table(path, columns=list(COLUMNS))
        seconds = table["time"].cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    except pa.ArrowException as error:
        raise BadInput(say("audit.unreadable", name=path.name, error=error)) from error
    return {column: (seconds if column == "time" else table[column]).to_pylist() for column in COLUMNS}


def _constant(times: Sequence[int], values: Sequence[int], step_s: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, value) while it does not change, without zeros. A missing minute ends a stretch."""
    start = 0
    for i in range(1, len(times) + 1):
        last = i == len(times)
        if last or values[i] != values[start] or times[i] != times[i - 1] + step_s:
            if values[start] > 0:
                yield times[start], times[i - 1] + step_s, values[start]
            start = i
