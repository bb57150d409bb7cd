"""Any trace, recognised by what stands in it: the one door through which traces come in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from brimful.errors import BadInput
from brimful.sim.traces import openb, own
from brimful.sim.traces.reading import Skips, Source, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One published format: how to tell it by the beginning of a file, and how to read it."""

    name: str
    recognises: Callable[[str], bool]
    read: Callable[[Source, Skips], Trace]


def _own(source: Source, skips: Skips) -> Trace:
    return Trace(format="brimful", arrivals=own.parse(source.lines(), name=source.name, skips=skips))


def _openb_nodes(source: Source, skips: Skips) -> Trace:
    nodes = openb.read_nodes(source.lines(), name=source.name, skips=skips)
    return Trace(format="openb nodes", nodes=nodes)


def _openb_pods(source: Source, skips: Skips) -> Trace:
    arrivals = openb.read_pods(source.lines(), name=source.name, skips=skips)
    return Trace(format="openb", arrivals=arrivals, gangs_may_spread=True)


FORMATS = (
    Format(name="brimful", recognises=own.recognises, read=_own),
    Format(name="openb nodes", recognises=openb.recognises_nodes, read=_openb_nodes),
    Format(name="openb pods", recognises=openb.recognises_pods, read=_openb_pods),
)


def read(sources: Sequence[str], *, lenient: bool = False) -> tuple[Trace, Skips]:
    """Everything the sources hold, as one trace, and the rows that had to be left out."""
    skips = Skips(lenient=lenient)
    parts = [_read_file(Source(Path(source)), skips) for source in sources]
    arrivals = [arrival for part in parts for arrival in part.arrivals]
    ids = {arrival.job.job for arrival in arrivals}
    if len(ids) < len(arrivals):
        raise BadInput(
            f"{len(arrivals) - len(ids):,} jobs stand in more than one of the files",
            hint="give each trace once",
        )
    trace = Trace(
        format=" + ".join(dict.fromkeys(part.format for part in parts)),
        arrivals=sorted(arrivals, key=lambda arrival: arrival.at_s),
        nodes=[node for part in parts for node in part.nodes],
        notes=[note for part in parts for note in part.notes],
        gangs_may_spread=any(part.gangs_may_spread for part in parts),
    )
    return trace, skips


def _read_file(source: Source, skips: Skips) -> Trace:
    head = source.head()
    for known in FORMATS:
        if known.recognises(head):
            return known.read(source, skips)
    # Not known: the own reader says best what is missing.
    return _own(source, skips)
