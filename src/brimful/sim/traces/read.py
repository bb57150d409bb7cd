"""Any trace, recognised by its content: the single entry point for traces.

A source is a path, followed by `?option=value` if a format has options, or `synthetic:SHAPE?…`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qsl

from brimful.errors import BadInput
from brimful.language import Number, Quoted, say
from brimful.sim.traces import gavel, openb, own, philly, sacct, sia, synthetic
from brimful.sim.traces.reading import Skips, Source, Trace, columns_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One published format: how to recognise it by the beginning of a file, and how to read it."""

    recognises: Callable[[str], bool]
    read: Callable[[Source], Trace]
    options: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # identify the format even if a file lacks one of them


def _has(*columns: str) -> Callable[[str], bool]:
    return lambda head: set(columns) <= set(columns_of(head))


OWN = Format(recognises=_has("submit_s"), read=own.read, columns=own.NEEDED)
THROUGHPUTS = Format(
    recognises=lambda head: head.lstrip().startswith("{") and '"null"' in head, read=gavel.read_throughputs
)
NODES = Format(recognises=_has("sn", "cpu_milli", "gpu"), read=openb.read_nodes, columns=openb.NODE_COLUMNS)
FORMATS = (
    THROUGHPUTS,
    Format(
        recognises=lambda head: (
            head.lstrip()[:1] == "[" and '"submitted_time"' in head and '"attempts"' in head
        ),
        read=philly.read_json,
    ),
    Format(recognises=_has(*philly.COLUMNS), read=philly.read_csv, columns=philly.COLUMNS),
    NODES,
    Format(recognises=_has("name", "cpu_milli", "num_gpu"), read=openb.read_pods, columns=openb.POD_COLUMNS),
    Format(
        recognises=_has("application", "num_replicas", "time"),
        read=sia.read,
        options=("workload", "profiles", "gpus", "batch"),
        columns=sia.COLUMNS,
    ),
    Format(
        recognises=_has("JobID", "Submit"),
        read=sacct.read,
        options=("types",),
        columns=("JobID", "Submit", "ElapsedRaw", "AllocTRES", "ReqTRES", "State"),
    ),
    OWN,
    Format(recognises=gavel.recognises, read=gavel.read_trace),
)


def is_trace(head: str) -> bool:
    """Whether a file that begins like this has a known format."""
    return any(known.recognises(head) for known in FORMATS)


def resembles_trace(head: str) -> bool:
    """Whether a reader can say what is missing: it shares columns with one, or is sacct's without `-P`."""
    columns = set(columns_of(head))
    return head.split()[:1] == ["JobID"] or any(len(columns & set(known.columns)) > 1 for known in FORMATS)


def read(
    sources: Sequence[str],
    *,
    lenient: bool = False,
    gpu_types: Iterable[str] = (),
    otherwise: Iterable[str] = (),
) -> tuple[Trace, Skips]:
    """Everything in the sources, as one trace, and the rows that had to be left out.

    `gpu_types` are those of the fleet, if it is known: a job that wants another type is refused. If not, the
    trace's own nodes count, and if it has none either, `otherwise`.
    """
    skips = Skips(lenient=lenient, gpu_types=frozenset(gpu_types))
    made = [synthetic_trace(source) for source in sources if source.startswith(synthetic.PREFIX)]
    files = [_recognised(source, skips) for source in sources if not source.startswith(synthetic.PREFIX)]
    if not skips.gpu_types and all(known is not NODES for known, _ in files):
        skips.gpu_types = frozenset(otherwise)
    # Speeds and nodes first: a Gavel trace counts work in steps, and an openb job names its GPUs.
    files.sort(key=lambda known: known[0] not in (THROUGHPUTS, NODES))
    read_ = [replace(known.read(source), first_s=source.first_s) for known, source in files]
    return _joined([*made, *read_]), skips


def synthetic_trace(source: str) -> Trace:
    shape, _, query = source.removeprefix(synthetic.PREFIX).partition("?")
    return synthetic.generate(shape, _options(source, query, tuple(synthetic.DEFAULTS)))


def _recognised(text: str, skips: Skips) -> tuple[Format, Source]:
    name, _, query = text.partition("?")
    if query and Path(text).exists():
        name, query = text, ""
    source = Source(Path(name), skips)
    head = source.head()
    known = next((known for known in FORMATS if known.recognises(head)), None) or _nearest(head, name)
    source.options = _options(text, query, known.options)
    return known, source


def _nearest(head: str, name: str) -> Format:
    """For a file of unknown format, the reader that best says what is missing."""
    if head.lstrip()[:1] in ("[", "{"):
        raise BadInput(say("sim.json_unknown", name=name))
    if head.split()[:1] == ["JobID"]:
        raise BadInput(say("sim.sacct_in_columns", name=name), hint=sacct.ASK)
    columns = set(columns_of(head))
    shared = [len(columns & set(known.columns)) for known in FORMATS]
    best = max(shared)
    return FORMATS[shared.index(best)] if best > 1 else OWN


def _options(source: str, query: str, known: tuple[str, ...]) -> dict[str, str]:
    options: dict[str, str] = {}
    for option, value in parse_qsl(query, keep_blank_values=True):
        if option in options:
            raise BadInput(say("sim.option_twice", source=source, option=Quoted(option)))
        options[option] = value
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
    with_jobs = [part for part in parts if part.arrivals]
    return Trace(
        format=" + ".join(dict.fromkeys(part.format for part in parts)),
        first_s=with_jobs[0].first_s if len(with_jobs) == 1 else None,  # each file begins at its own zero
        arrivals=sorted(arrivals, key=lambda arrival: arrival.at_s),
        nodes=[node for part in parts for node in part.nodes],
        notes=[note for part in parts for note in part.notes],
        gangs_may_spread=any(part.gangs_may_spread for part in parts),
    )
