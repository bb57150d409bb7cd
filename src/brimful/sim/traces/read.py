"""Any trace, recognised by what stands in it: the one door through which traces come in.

A source is a path, with `?option=value` behind it where a format has options, or `synthetic:SHAPE?…`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl

from brimful.errors import BadInput
from brimful.language import Number, Quoted, say
from brimful.sim.traces import gavel, openb, own, philly, sacct, sia, synthetic
from brimful.sim.traces.reading import Skips, Source, Trace


@dataclass(slots=True, kw_only=True)
class Reading:
    """What a reader may use besides its own file."""

    skips: Skips
    options: dict[str, str] = field(default_factory=dict)
    throughputs: gavel.Throughputs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One published format: how to tell it by the beginning of a file, and how to read it."""

    name: str
    recognises: Callable[[str], bool]
    read: Callable[[Source, Reading], Trace]
    options: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # by which a file that lacks one of them is still known


def _own(source: Source, reading: Reading) -> Trace:
    arrivals = own.parse(source.lines(), name=source.name, skips=reading.skips)
    unknown = [column for column in _columns(source.head()) if column and column not in own.COLUMNS]
    notes = [say("sim.columns_not_used", columns=", ".join(unknown)[:200])] if unknown else []
    return Trace(format="brimful", arrivals=arrivals, notes=notes)


def _openb_nodes(source: Source, reading: Reading) -> Trace:
    nodes = openb.read_nodes(source.lines(), name=source.name, skips=reading.skips)
    reading.skips.gpu_types = reading.skips.gpu_types or frozenset(node.gpu for node in nodes if node.gpus)
    return Trace(format="openb", nodes=nodes)


def _openb_pods(source: Source, reading: Reading) -> Trace:
    arrivals = openb.read_pods(source.lines(), name=source.name, skips=reading.skips)
    return Trace(format="openb", arrivals=arrivals, gangs_may_spread=True)


def _throughputs(source: Source, reading: Reading) -> Trace:
    reading.throughputs = gavel.read_throughputs(source)
    return Trace(format="Gavel")


OWN = Format(name="brimful", recognises=own.recognises, read=_own, columns=own.NEEDED)
THROUGHPUTS = Format(name="throughputs", recognises=gavel.recognises_throughputs, read=_throughputs)
NODES = Format(
    name="openb nodes", recognises=openb.recognises_nodes, read=_openb_nodes, columns=openb.NODE_COLUMNS
)
FORMATS = (
    THROUGHPUTS,
    Format(
        name="Philly job log",
        recognises=philly.recognises_json,
        read=lambda source, reading: philly.read_json(source, reading.skips),
    ),
    Format(
        name="Philly",
        recognises=philly.recognises_csv,
        read=lambda source, reading: philly.read_csv(source, reading.skips),
        columns=philly.COLUMNS,
    ),
    NODES,
    Format(name="openb pods", recognises=openb.recognises_pods, read=_openb_pods, columns=openb.POD_COLUMNS),
    Format(
        name="Sia",
        recognises=sia.recognises,
        read=lambda source, reading: sia.read(
            source, workload=reading.options.get("workload"), skips=reading.skips
        ),
        options=("workload",),
        columns=sia.COLUMNS,
    ),
    Format(
        name="sacct",
        recognises=sacct.recognises,
        read=lambda source, reading: sacct.read(
            source, any_type=reading.options.get("types") == "any", skips=reading.skips
        ),
        options=("types",),
        columns=("JobID", "Submit", "ElapsedRaw", "AllocTRES", "ReqTRES", "State"),
    ),
    OWN,
    Format(
        name="Gavel",
        recognises=gavel.recognises_trace,
        read=lambda source, reading: gavel.read_trace(source, reading.throughputs, reading.skips),
    ),
)


def read(
    sources: Sequence[str],
    *,
    lenient: bool = False,
    gpu_types: Iterable[str] = (),
    otherwise: Iterable[str] = (),
) -> tuple[Trace, Skips]:
    """Everything the sources hold, as one trace, and the rows that had to be left out.

    `gpu_types` are those of the fleet, where it is known: a job that wants another one is refused. If it is
    not, the trace's own nodes count, and where there are none either, `otherwise`.
    """
    reading = Reading(skips=Skips(lenient=lenient, gpu_types=frozenset(gpu_types)))
    made = [synthetic_trace(source) for source in sources if source.startswith(synthetic.PREFIX)]
    files = [_recognised(source) for source in sources if not source.startswith(synthetic.PREFIX)]
    if not reading.skips.gpu_types and all(known is not NODES for known, _, _ in files):
        reading.skips.gpu_types = frozenset(otherwise)
    # Speeds and nodes first: a Gavel trace tells its jobs in steps, and an openb job names its GPUs.
    files.sort(key=lambda known: known[0] not in (THROUGHPUTS, NODES))
    parts = []
    for known, source, options in files:
        reading.options = options
        parts.append(known.read(source, reading))
    return _joined([*made, *parts]), reading.skips


def synthetic_trace(source: str) -> Trace:
    shape, _, query = source.removeprefix(synthetic.PREFIX).partition("?")
    return synthetic.generate(shape, _options(source, query, tuple(synthetic.DEFAULTS)))


def _recognised(text: str) -> tuple[Format, Source, dict[str, str]]:
    name, _, query = text.partition("?")
    if query and Path(text).exists():
        name, query = text, ""
    source = Source(Path(name))
    head = source.head()
    known = next((known for known in FORMATS if known.recognises(head)), None) or _nearest(head, name)
    return known, source, _options(text, query, known.options)


def _nearest(head: str, name: str) -> Format:
    """Of a file that is of no known form the reader that says best what is missing."""
    if head.lstrip()[:1] in ("[", "{"):
        raise BadInput(say("sim.json_unknown", name=name))
    if head.split()[:1] == ["JobID"]:
        raise BadInput(say("sim.sacct_in_columns", name=name), hint=sacct.ASK)
    columns = set(_columns(head))
    shared = [len(columns & set(known.columns)) for known in FORMATS]
    best = max(shared)
    return FORMATS[shared.index(best)] if best > 1 else OWN


def _columns(head: str) -> list[str]:
    first = head.partition("\n")[0]
    return [column.strip(' \r"') for column in first.split("|" if "|" in first else ",")]


def _options(source: str, query: str, known: tuple[str, ...]) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for option in options:
        if option not in known:
            raise BadInput(
                say("sim.option_unknown", source=source, option=Quoted(option)),
                hint=say("sim.hint_known", known=", ".join(known)) if known else say("sim.hint_no_options"),
            )
    return options


def _joined(parts: Sequence[Trace]) -> Trace:
    arrivals = [arrival for part in parts for arrival in part.arrivals]
    ids = {arrival.job.job for arrival in arrivals}
    if len(ids) < len(arrivals):
        raise BadInput(say("sim.jobs_in_several_files", jobs=Number(len(arrivals) - len(ids))))
    return Trace(
        format=" + ".join(dict.fromkeys(part.format for part in parts)),
        arrivals=sorted(arrivals, key=lambda arrival: arrival.at_s),
        nodes=[node for part in parts for node in part.nodes],
        notes=[note for part in parts for note in part.notes],
        gangs_may_spread=any(part.gangs_may_spread for part in parts),
    )
