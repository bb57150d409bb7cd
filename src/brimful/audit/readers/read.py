"""Reads any usage records and detects their kind by content: the single entry point for usage.

A source is a file, a folder (every file in it) or the address of a Prometheus server. Capacity without a time
(sinfo, a plain CSV) is valid for the whole window, so sources with times are read first.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from errno import ENOMEM
from pathlib import Path
from typing import Any

from brimful.adapters.observed import FACTS, FLEET, TRACE
from brimful.audit.readers import dcgm, duty, focus, helios, jobstats, own, plain, slurm, sreport, summaries
from brimful.audit.records import Paid, Part, Records, Run
from brimful.errors import BadInput, NotFound, unreadable
from brimful.fleet.node import Node
from brimful.language import Number, os_words, say
from brimful.sim.traces.read import is_trace, resembles_trace
from brimful.sim.traces.reading import numbered_lines, open_unpacked
from brimful.specs.gpu import all_gpus
from brimful.units import HOUR_S

HEAD_BYTES = 2**16
MOST_JSON_BYTES = 2**30  # JSON is held in memory; a day's range answer for 600 cards has 20 MB
MOST_JSON_PARTS = 2**24  # objects and lists, about 2 GiB of memory; that day has 4 million
URLS = ("http://", "https://")
BESIDE_FACTS = (TRACE, FLEET)  # of a site in observe mode: the same data again, for `brimful simulate`
ALWAYS = (-(2**60), 2**60)
_IGNORED = re.compile(r"^\.|-(wal|shm)$")  # hidden, or SQLite's files beside a database


# A file with capacity but no time, and how to read it once the window is known.
Later = tuple[Path, Callable[[tuple[int, int]], None]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the records are read for. An end of the window that is None is where the sources end."""

    zone: tzinfo = UTC
    window: tuple[int | None, int | None] = (None, None)

    def over(self, records: Records) -> tuple[int, int]:
        """From when to when; empty if neither the question nor a source has times."""
        (start_s, end_s), (first_s, last_s) = self.window, records.window()
        start_s = first_s if start_s is None else start_s
        return start_s, max(start_s, last_s if end_s is None else end_s)


@dataclass(frozen=True, slots=True)
class Books:
    """State of the reading: several files may describe one job."""

    records: Records
    asked: Asked
    jobs: slurm.Jobs
    later: list[Later] = field(default_factory=list)


def read(sources: Sequence[str], asked: Asked, fleet: Sequence[Node] = ()) -> Records:
    """Everything in the sources, joined."""
    records = Records()
    books = Books(records, asked, slurm.Jobs())
    files = list(_files(source for source in sources if not source.startswith(URLS)))
    for path, is_named in {path.resolve(): (path, is_named) for path, is_named in files}.values():
        with _reading(path):
            _read_file(path, books, is_named=is_named)
    books.jobs.settle(records)
    window, timed = asked.over(records), len(records.nodes)
    for path, read_with in books.later:
        with _reading(path):
            read_with(window)
    for url in (source for source in sources if source.startswith(URLS)):
        if window[0] >= window[1]:
            raise BadInput(say("audit.needs_window", url=url))
        dcgm.fetch(url, records, start_s=window[0], end_s=window[1])
    _add_fleet(fleet, records, window)
    _add_nodes(records, timed)
    _finish(records)
    return records


def _files(sources: Iterable[str]) -> Iterator[tuple[Path, bool]]:
    """Every file, and whether it was named or only found in a folder."""
    for source in sources:
        path = Path(source)
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file() and not _IGNORED.search(p.name))
            if not found:
                raise BadInput(say("audit.empty_folder", path=path))
            watched = {p.parent for p in found if p.name == FACTS}
            yield from ((p, False) for p in found if p.name not in BESIDE_FACTS or p.parent not in watched)
        elif path.is_file():
            yield path, True
        elif path.exists():
            raise BadInput(say("audit.not_a_file", path=path))
        else:
            raise NotFound(say("audit.no_file", path=path))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors in someone else's file always name the file."""
    try:
        yield
    except OSError as error:
        said = say("audit.unreadable", name=path.name, error=os_words(error))
        raise unreadable(said, error) from error
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        EOFError,
        ArithmeticError,
        AssertionError,
        MemoryError,
        csv.Error,
        sqlite3.Error,
        zlib.error,
    ) as error:
        raise BadInput(say("audit.unreadable", name=path.name, error=error)) from error


def _read_file(path: Path, books: Books, *, is_named: bool) -> None:
    records, before = books.records, len(books.records.traces)
    with open_unpacked(path) as stream:
        head = stream.read(HEAD_BYTES)
    if head.startswith(helios.MAGIC):
        helios.read(path, records)
    elif head.startswith(own.SQLITE):
        if not own.read_database(path, records):
            records.traces.append(str(path))
    elif head.lstrip()[:1] == b"{" and b'"kind"' in head.partition(b"\n")[0]:
        own.read_meter(path, records)
    elif head.lstrip()[:1] == b"{":
        with open_unpacked(path) as stream:
            text = stream.read(MOST_JSON_BYTES + 1)
        if len(text) > MOST_JSON_BYTES:
            raise BadInput(say("sim.unpacks_too_large", name=path.name, most=Number(MOST_JSON_BYTES)))
        if text.count(b"{") + text.count(b"[") > MOST_JSON_PARTS:
            raise MemoryError(os.strerror(ENOMEM))
        found = json.loads(text)
        _read_json(path, found, books)
    else:
        _read_text(path, head.decode("utf-8-sig", "replace"), books)
    if len(records.traces) == before or is_trace(shown := head.decode("utf-8-sig", "replace")):
        return
    # A folder may contain notes beside the records. For a named file that is nearly a trace, the trace reader
    # says what is missing.
    if not is_named:
        records.not_known.append(Path(records.traces.pop()).name)
    elif not shown.strip():
        raise BadInput(say("audit.empty_file", path=path))
    elif not resembles_trace(shown):
        raise BadInput(say("audit.format_not_known", path=path))


def _read_json(
    path: Path,
    found: Any,  # noqa: ANN401 - JSON
    books: Books,
) -> None:
    records = books.records
    if isinstance(found, dict) and dcgm.is_matrix(found):
        dcgm.read_matrix(found, records)
    elif isinstance(found, dict) and "observed" in found:
        own.read_observed(found, records)
    elif isinstance(found, dict) and isinstance(found.get("jobs"), list):
        books.jobs.add_all(slurm.json_jobs(found["jobs"], books.jobs.left_out), is_json=True)
    elif isinstance(found, dict) and isinstance(found.get("nodes"), list):
        books.later.append((path, lambda window: slurm.read_nodes(found, records, window)))
    else:
        records.traces.append(str(path))  # its own reader reports what is wrong with it


def _read_text(path: Path, head: str, books: Books) -> None:
    records, asked, later, jobs = books.records, books.asked, books.later, books.jobs
    if focus.is_contract(head):
        records.left_out["bill_contract"] += 1
        return
    if slurm.is_sinfo(head):
        later.append(
            (path, lambda window: _with_lines(path, lambda lines: slurm.read_sinfo(lines, records, *window)))
        )
        return
    if plain.is_paid(head):
        later.append(
            (
                path,
                lambda window: _with_lines(
                    path, lambda lines: plain.read(path, lines, records, asked.zone, window)
                ),
            )
        )
        return
    readers: tuple[tuple[Callable[[str], bool], Callable[[Iterator[str]], None]], ...] = (
        (
            slurm.is_sacct,
            lambda lines: jobs.add_all(slurm.sacct_rows(lines, jobs.left_out, asked.zone)),
        ),
        (slurm.is_database, lambda lines: jobs.add_all(slurm.database_rows(lines, asked.zone))),
        (focus.is_bill, lambda lines: focus.read(lines, records)),
        (jobstats.is_table, lambda lines: jobstats.read_table(lines, records)),
        (jobstats.is_usage, lambda lines: jobstats.read_usage(lines, records)),
        (sreport.is_report, lambda lines: sreport.read(lines, records)),
        (dcgm.is_text, lambda lines: dcgm.read_text(lines, records, at_s=int(path.stat().st_mtime))),
        (summaries.is_summary, lambda lines: summaries.read(lines, records)),
        (summaries.is_cdf, lambda lines: summaries.read_cdf(lines, records)),
        (duty.is_duty, lambda lines: duty.read(lines, records)),
        (_is_bare, lambda lines: records.left_out.update({"no_header": sum(1 for _ in lines)})),
    )
    for recognises, reads in readers:
        if recognises(head):
            _with_lines(path, reads)
            return
    records.traces.append(str(path))


def _is_bare(head: str) -> bool:
    """Rows of sacct or squeue without a header (-n, -h): nobody can tell which column is which."""
    first = head.partition("\n")[0].split("|")
    return len(first) > 3 and first[0].partition(".")[0].isdigit()


def _with_lines(path: Path, reads: Callable[[Iterator[str]], None]) -> None:
    with open_unpacked(path) as stream:
        lines = numbered_lines(stream, path.name)
        reads(line.decode("utf-8-sig" if number == 1 else "utf-8", "replace") for number, line in lines)


def _add_fleet(fleet: Sequence[Node], records: Records, window: tuple[int, int]) -> None:
    """A fleet given on the command line: this many GPUs of each type, all the time."""
    for kind in dict.fromkeys((node.gpu, node.microusd_per_gpu_hour) for node in fleet):
        gpus = sum(n.gpus for n in fleet if (n.gpu, n.microusd_per_gpu_hour) == kind)
        gpu = "" if kind[0] == "gpu" else kind[0]
        cost = (kind[1] * gpus * (window[1] - window[0]) + HOUR_S // 2) // HOUR_S if kind[1] else None
        records.paid.append(
            Paid(
                place=f"fleet {kind[0]}",
                gpu=gpu,
                gpus=gpus,
                start_s=window[0],
                end_s=window[1],
                microusd=cost,
                is_node=False,
            )
        )


def _add_nodes(records: Records, timed: int) -> None:
    """Nodes that were only observed, the first `timed` of them by a source with times.

    A bill or a CSV knows better what was paid, and takes only their queues.
    """
    billed = {paid.place for paid in records.paid}
    walls = {node.place: node.walls for node in records.nodes}
    records.paid = [
        paid if paid.walls else replace(paid, walls=walls.get(paid.place, frozenset()))
        for paid in records.paid
    ]
    records.paid += [node for node in records.nodes if node.place not in billed]
    records.snapshot_gpus = sum(node.gpus for node in records.nodes[timed:] if node.place not in billed)
    there = {paid.place for paid in records.paid}
    records.downs = [down for down in records.downs if down.place in there]
    types = {paid.gpu for paid in records.paid}
    records.runs = [replace(run, gpu=_type_called(run.gpu, types)) for run in records.runs]
    records.waits = [replace(wait, gpu=_type_called(wait.gpu, types)) for wait in records.waits]


def _type_called(name: str, types: set[str]) -> str:
    """Slurm's a100 is the bill's a100-sxm-80gb, if no other type starts like it."""
    near = [gpu for gpu in types if gpu.startswith(f"{name}-")]
    return near[0] if name and name not in types and len(near) == 1 else name


def _finish(records: Records) -> None:
    """Join what several sources say about one job, and turn samples into spans."""
    for gpu in all_gpus():
        records.types.setdefault(gpu.name, gpu.memory_bytes)
    for key, series in records.series.items():
        if spans := series.spans():
            records.activity.setdefault(key, spans)
        if key[0] and (most := series.most("memory")) is not None:
            records.saw_memory(key[0], most)
    cards: dict[tuple[str, str], list[int]] = {}
    for job, node, card in records.activity:
        cards.setdefault((job, node), []).append(card)
    for job, means in records.means.items():
        for mean in means:
            cards.setdefault((job, mean.node), []).append(mean.card)
            if mean.busy_frac == 0:
                records.activity.setdefault((job, mean.node, mean.card), [(*ALWAYS, "idle")])
            if mean.used_bytes is not None:
                records.saw_memory(job, mean.used_bytes, mean.card_bytes)
    whole = {paid.place: paid.gpus for paid in records.paid if paid.is_node}
    records.runs = [_with_memory(records, _with_cards(run, cards, whole)) for run in records.runs]
    records.series.clear()
    memory = records.memory
    records.waits = [
        replace(wait, memory_bytes=memory[wait.job][0]) if wait.job in memory else wait
        for wait in records.waits
    ]


def _with_cards(run: Run, cards: dict[tuple[str, str], list[int]], whole: dict[str, int]) -> Run:
    """Which cards a run had: by name, by a source that names its job, or because it had the whole node."""
    parts: list[Part] = []
    for part in run.parts:
        named = tuple(sorted(set(cards.get((run.job, part.place), ()))))
        if not part.cards and part.gpus == whole.get(part.place):
            named = named or tuple(range(part.gpus))
        parts.append(part if part.cards else replace(part, cards=named[: part.gpus]))
    return replace(run, parts=tuple(parts))


def _with_memory(records: Records, run: Run) -> Run:
    """The most that one of its cards held: by a source that names its job, or by samples of its cards."""
    if run.job in records.memory:
        used_bytes, card_bytes = records.memory[run.job]
        return replace(run, memory_bytes=used_bytes, card_bytes=card_bytes)
    seen = [
        series.most_between("memory", run.start_s, run.end_s)
        for part in run.parts
        for card in part.cards
        if (series := records.series.get(("", part.place, card)))
    ]
    known = [most for most in seen if most is not None]
    return replace(run, memory_bytes=int(max(known))) if known else run
