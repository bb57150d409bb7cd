"""Opening a trace: plain or compressed, row by row, within limits, every refusal with its row number."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from brimful.errors import BadInput, NotFound, Said, unreadable
from brimful.files import open_given
from brimful.fleet.job import Job, Pairs
from brimful.fleet.node import Node
from brimful.language import Number, Plain, Quoted, Sentence, os_words, say
from brimful.sim.world import Arrival

# The largest public trace (Philly's raw job log) is 1.1 GB. A compressed file that grows past this is a trap.
MAX_UNPACKED_BYTES = 4 * 2**30
MAX_ROW_BYTES = 2**20
HEAD_BYTES = 2**16
# Ten years and a million GPUs: anything larger is a typing error.
MAX_S = 10 * 366 * 86400
MAX_GPUS = 1_000_000
SHOWN = 72  # characters shown of a first row that has no column names
# For a job of a trace that does not state the cost of a stop: it saves when told to, and is back after a
# minute. Sia's measured checkpoint-restore takes 25 to 250 s.
saving_job = partial(Job, checkpoint_interval_s=0, checkpoint_cost_s=60)

WHOLE = re.compile(r"([+-]?[0-9]{1,20})(?:\.0{1,10})?")

# GPU type -> (job type, GPUs) -> steps per second.
Throughputs = Mapping[str, Mapping[tuple[str, int], float]]
Made = TypeVar("Made")


@dataclass(slots=True)
class Skips:
    """Rows that could not be used. Strict: the first one ends the reading; lenient: they are counted."""

    lenient: bool = False
    gpu_types: frozenset[str] = frozenset()  # the fleet's, if known beforehand
    throughputs: Throughputs | None = None  # for a Gavel trace's jobs, from the file beside it
    # And for two jobs on one GPU, by kind.
    pairs: Mapping[str, tuple[Pairs, ...]] = field(default_factory=dict)
    count: int = 0
    first: list[Said] = field(default_factory=list)
    reordered: int = 0  # rows that came too late in the file: kept, and sorted by time

    def note(self, error: BadInput) -> None:
        if not self.lenient:
            raise error
        self.count += 1
        if len(self.first) < 10:
            self.first.append(error.said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a file held: jobs in order of arrival, nodes, or both."""

    format: str
    arrivals: list[Arrival] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    notes: list[Sentence] = field(default_factory=list)  # what the reader had to assume
    first_s: int | None = None  # second 0, if the format has calendar times; as UTC, without a zone
    # True: the format does not say how close together a gang must be, so one larger than a node may spread.
    gangs_may_spread: bool = False


class Row:
    """A row's entries by column, and its position, which every refusal states."""

    def __init__(self, where: str, cells: Mapping[str, Any]) -> None:
        self.where, self.cells = where, cells

    def __getitem__(self, column: str) -> str:
        """Empty if there is no such entry."""
        value = self.cells.get(column)
        return "" if value is None else str(value).strip()

    def refused(self, code: str, **values: object) -> BadInput:
        return BadInput(say(code, where=self.where, **values))

    def bad(self, column: str, hint: Sentence) -> BadInput:
        """The entry cannot be used as it is."""
        problem = say("sim.bad_entry.empty", where=self.where, column=column)
        if text := self[column]:
            problem = say("sim.bad_entry", where=self.where, column=column, entry=Quoted(text[:40]))
        return BadInput(problem, hint=hint)

    def name(self, column: str) -> str:
        if not self[column]:
            raise self.refused("sim.no_id", column=column)
        return self[column]

    def integer(self, column: str, *, low: int, high: int) -> int:
        # Plain digits only: int() would accept 1_000 and the digits of every script. Tables often write 8 as
        # 8.0.
        value = int(found[1]) if (found := WHOLE.fullmatch(self[column])) else None
        if value is None or not low <= value <= high:
            raise self.bad(column, say("sim.hint_whole_number", low=Number(low), high=Number(high)))
        return value

    def number(self, column: str, *, low: float, high: float) -> float:
        text = self[column]
        try:
            value = float(text) if len(text) <= 40 and text.isascii() and "_" not in text else None
        except ValueError:
            value = None
        if value is None or not low <= value <= high:  # NaN fails this too
            raise self.bad(column, say("sim.hint_number", low=Number(low), high=Number(high)))
        return value

    def second(self, column: str, *, like: str) -> int:
        """A calendar time; without a zone, as if it were UTC: only differences count."""
        try:
            moment = datetime.fromisoformat(self[column])
            return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
        except (ValueError, OverflowError) as error:
            raise self.bad(column, say("sim.hint_example", like=like)) from error


class Source:
    """One file, plain or gzip, as text, as rows, as arrivals."""

    def __init__(self, path: Path, skips: Skips) -> None:
        self.path = path
        self.name = str(path)
        self.skips = skips
        self.options: dict[str, str] = {}  # FILE?option=value
        self.first_s: int | None = None  # of calendar times, once they have been read

    def head(self) -> str:
        """The beginning, enough to recognise the format."""
        with self._open() as stream:
            try:
                # A cut inside a character is fine; a file that is not text is caught when it is read.
                return stream.read(HEAD_BYTES).decode("utf-8-sig", errors="ignore")
            except (OSError, EOFError, zlib.error) as error:
                raise self._broken(error) from error

    def lines(self) -> Iterator[str]:
        number = 0
        try:
            with self._open() as stream:
                for number, line in numbered_lines(stream, self.name):
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(say("sim.not_text", name=self.name, number=Plain(number))) from error
        except (OSError, EOFError, zlib.error) as error:
            raise self._broken(error) from error

    def text(self) -> str:
        return "".join(self.lines())

    def table(self, needed: Sequence[str], *, delimiter: str = ",", quoted: bool = True) -> Iterator[Row]:
        """Each row below the column names."""
        name, lines, skips = self.name, self.lines(), self.skips
        rows = csv.reader(
            lines, strict=True, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
        )
        try:
            columns = [column.strip() for column in next(rows, [])]
        except csv.Error as error:
            raise _not_csv(f"{name} row 1", error) from error
        _check_columns(columns, needed, name=name, delimiter=delimiter)
        while True:
            before = rows.line_num
            try:
                row = next(rows, None)
            except csv.Error as error:
                skips.note(_not_csv(f"{name} row {before + 1}", error))
                continue
            if row is None:
                return
            if not "".join(row).strip():
                continue
            where = f"{name} row {rows.line_num}"
            if len(row) > len(columns):
                skips.note(
                    BadInput(
                        say("sim.too_many_fields", where=where, fields=Plain(len(row)), columns=len(columns)),
                        hint=say("sim.hint_quote_entry", delimiter=Quoted(delimiter))
                        if quoted
                        else say("sim.hint_leave_out"),
                    )
                )
                continue
            yield Row(where, dict(zip_longest(columns, row, fillvalue="")))

    def usable(self, rows: Iterable[Row], make: Callable[[Row], Made | None]) -> Iterator[tuple[Row, Made]]:
        """Each usable row from which something is made, and what."""
        for row in rows:
            try:
                made = make(row)
            except BadInput as error:
                self.skips.note(error)
                continue
            if made is not None:
                yield row, made

    def in_order(
        self, found: Iterable[tuple[Row, Arrival]], *, sort: bool = False, calendar: bool = False
    ) -> list[Arrival]:
        """The arrivals by time, each id once.

        A format that is published unsorted is sorted; in the others a step back in time is an error.
        """
        skips, sort = self.skips, sort or calendar
        arrivals: list[Arrival] = []
        seen: set[str] = set()
        unsorted = False
        for row, arrival in self._from_zero(found) if calendar else found:
            if arrival.job.job in seen:
                skips.note(row.refused("sim.duplicate_job", job=Quoted(arrival.job.job)))
                continue
            if not sort and arrivals and arrival.at_s < arrivals[-1].at_s:
                if not skips.lenient:
                    raise row.refused("sim.not_in_order", at_s=arrival.at_s, before_s=arrivals[-1].at_s)
                unsorted = True
                skips.reordered += 1
            if not _can_run(arrival.job, skips.gpu_types):
                wants = arrival.job.gpu_types or tuple(gpu for gpu, _ in arrival.job.rates)
                values = {"wants": " or ".join(wants), "has": ", ".join(sorted(skips.gpu_types))}
                skips.note(row.refused("sim.gpu_type_not_in_fleet", **values, example=wants[0]))
                continue
            seen.add(arrival.job.job)
            arrivals.append(arrival)
        if not arrivals and skips.count:
            raise BadInput(
                say("sim.no_usable_row", name=self.name, left_out=Number(skips.count), first=skips.first[0])
            )
        if not arrivals:
            raise BadInput(say("sim.no_jobs", name=self.name))
        return sorted(arrivals, key=lambda arrival: arrival.at_s) if sort or unsorted else arrivals

    def _from_zero(self, found: Iterable[tuple[Row, Arrival]]) -> Iterator[tuple[Row, Arrival]]:
        """Calendar times as seconds since the first of them; all others must follow within ten years."""
        kept = list(found)
        first_s, first = min(((arrival.at_s, row.where) for row, arrival in kept), default=(0, ""))
        self.first_s = first_s if kept else None
        for row, arrival in kept:
            at_s = arrival.at_s - first_s
            if at_s > MAX_S:
                days = {"days": Number(at_s // 86400), "most": Number(MAX_S // 86400)}
                self.skips.note(row.refused("sim.too_late", **days, first=" ".join(first.split()[-2:])))
                continue
            yield row, replace(arrival, at_s=at_s)

    def _open(self) -> IO[bytes]:
        try:
            return open_unpacked(self.path)
        except FileNotFoundError as error:
            raise NotFound(say("sim.no_file", path=self.path), hint=say("sim.hint_trace_path")) from error
        except IsADirectoryError as error:
            raise BadInput(say("sim.is_folder", path=self.path)) from error
        except OSError as error:
            raise unreadable(say("sim.cannot_read", path=self.path, error=os_words(error)), error) from error

    def _broken(self, error: Exception) -> BadInput:
        return BadInput(say("sim.cannot_unpack", name=self.name, error=error))


def open_unpacked(path: Path) -> IO[bytes]:
    """A file's bytes, decompressed if necessary."""
    with open_given(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb")) if packed else open_given(path)


def numbered_lines(stream: IO[bytes], name: str, *, most: int = MAX_ROW_BYTES) -> Iterator[tuple[int, bytes]]:
    """Line by line, so that a file that decompresses without end is stopped early."""
    total = 0
    for number, line in enumerate(iter(lambda: stream.readline(most + 1), b""), 1):
        total += len(line)
        if len(line) > most:
            raise BadInput(say("sim.row_too_long", name=name, number=Plain(number), most=Number(most)))
        if total > MAX_UNPACKED_BYTES:
            raise BadInput(say("sim.unpacks_too_large", name=name, most=Number(MAX_UNPACKED_BYTES)))
        yield number, line


def columns_of(head: str) -> list[str]:
    """The names in a file's first row."""
    first = head.partition("\n")[0]
    return [column.strip(' \r"') for column in first.split("|" if "|" in first else ",")]


def _check_columns(columns: Sequence[str], needed: Sequence[str], *, name: str, delimiter: str) -> None:
    if not any(columns):
        raise BadInput(say("sim.empty", name=name, needed=", ".join(needed)))
    twice = [column for column in dict.fromkeys(columns) if column and columns.count(column) > 1]
    if twice:
        raise BadInput(say("sim.duplicate_column", name=name, twice=", ".join(twice)))
    missing = [column for column in needed if column not in columns]
    if not missing:
        return
    other = next((sign for sign in (",", ";", "\t", "|") if sign != delimiter and sign in columns[0]), None)
    raise BadInput(
        say("sim.no_column", name=name, missing=", ".join(missing), shown=_shown(columns)),
        hint=say("sim.hint_delimiter", delimiter=Quoted(delimiter), other=Quoted(other))
        if other
        else say("sim.hint_columns_needed", needed=", ".join(needed)),
    )


def _shown(columns: Sequence[str]) -> str:
    """'job, gpus, …': enough of them to see what kind of file this is."""
    text = ", ".join(" ".join(column.split()) for column in columns)
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")


def _not_csv(where: str, error: csv.Error) -> BadInput:
    """The csv module's message, or ours where it gives better advice."""
    text = str(error)
    if "unexpected end of data" in text:
        return BadInput(say("sim.quote_not_closed", where=where))
    if "new-line character" in text:
        return BadInput(say("sim.lone_carriage_return", where=where))
    return BadInput(say("sim.not_csv", where=where, text=text))


def _can_run(job: Job, gpu_types: frozenset[str]) -> bool:
    return not gpu_types or job.gpus == 0 or any(job.rate(gpu) > 0 for gpu in gpu_types)
