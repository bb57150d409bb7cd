"""`brimful audit`: where every paid GPU-hour went, and how few GPUs would have been enough."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from math import inf
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from brimful.adapters.engines.devices import catalog_name
from brimful.audit.actions import actions
from brimful.audit.readers.read import Asked, read
from brimful.audit.readers.slurm import moment
from brimful.audit.records import Paid, Records
from brimful.audit.rehearsals import Work, sized, with_room, work_of
from brimful.audit.report import as_csv, report
from brimful.audit.said import (
    action_said,
    coverage_said,
    hours_digits,
    leaf_words,
    page_title,
    paid_said,
    size_said,
    told_leaves,
    unused_said,
)
from brimful.audit.sweep import Swept, sweep
from brimful.cli.commands import Answer
from brimful.cli.render import bar, table, wrapped
from brimful.errors import BadInput
from brimful.files import write_whole
from brimful.fleet.node import Node
from brimful.language import (
    Number,
    Percent,
    Quoted,
    Several,
    Usd,
    count,
    say,
    told,
    words,
)
from brimful.language.failures import os_errors_as
from brimful.language.printable import all_printable
from brimful.scheduler.policies import DEFAULT, Policy, read_policy
from brimful.sim.fleets import parse_fleet
from brimful.sim.traces.read import read as read_traces
from brimful.sim.traces.reading import Trace
from brimful.specs.prices import known_prices, read_prices
from brimful.units import HOUR_S, MICROUSD

EXAMPLE = """brimful audit usage/ --fleet 64x8:a100-sxm-80gb@1.80
brimful audit sacct.txt sinfo.json prom/ --prices paid.csv --html audit.html
brimful audit philly_jobs.csv --size --policy fifo --policy brim"""

LIST = "list"
OF_SAMPLES = {"bad_sample", "metric_not_known", "sample_without_card"}  # left out of samples, not of jobs
TOP = 5  # teams and jobs in the terminal; --json has all of them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="PATH", nargs="+")
    parser.add_argument("--fleet", metavar="FLEET")
    parser.add_argument("--prices", metavar="FILE")
    parser.add_argument("--from", dest="from_", metavar="TIME")
    parser.add_argument("--to", metavar="TIME")
    parser.add_argument("--zone", metavar="ZONE", default="UTC")
    parser.add_argument("--size", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--policy", action="append", metavar="POLICY")
    parser.add_argument("--deferrable", action="append", metavar="NAME", default=[])
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--html", metavar="FILE")


def run(args: argparse.Namespace) -> Answer:
    zone = _zone(args.zone)
    fleet = parse_fleet(args.fleet) if args.fleet else []
    policies = [read_policy(text) for text in args.policy or [DEFAULT]]
    _needs_size(args)
    start, end = _moment("--from", args.from_), _moment("--to", args.to)
    asked = Asked(zone, (_seconds(start, zone), _seconds(end, zone)))
    records = read(args.source, asked, fleet)
    names = {paid.gpu for paid in records.paid} | {node.gpu for node in fleet}
    rates = _rates(args.prices, names)
    if rates:
        _price(records, rates, is_list=args.prices == LIST)
        fleet = [node if node.microusd_per_gpu_hour else _priced(node, rates) for node in fleet]
    _defer(records, set(args.deferrable))
    trace = read_traces(records.traces, gpu_types={node.gpu for node in fleet})[0] if records.traces else None
    if trace is not None and (start or end):
        trace = _cut(trace, records.traces, start, end, zone)
    records.left_out["trace"] += len(records.traces) * (not args.size)
    start_s, end_s = asked.over(records)
    if args.to and start_s == end_s:
        raise BadInput(say("audit.bad_window"))
    found = None
    if records.totals or (records.paid and start_s < end_s):
        found = sweep(records, start_s=start_s, end_s=end_s, zone=zone)
    if found is None and (args.csv or not args.size):
        raise _nothing_to_count(records)
    data: dict[str, Any] = {} if found is None else report(records, found)
    if rates and found is not None:
        data["coverage"]["unpriced"] = sorted({paid.gpu for paid in records.paid if paid.microusd is None})
    if args.size:
        data["size"], data["actions"] = _sizes(
            records, fleet, policies, trace=trace, window=(start_s, end_s), found=found, alone=args.alone
        )
        at_list = args.prices == LIST or data.get("money_is") == LIST
        data["actions"] = [{**action, "at_list_price": at_list} for action in data["actions"]]
    if found is not None and args.csv:
        _write(Path(args.csv), as_csv(found.tree))
    if args.html:
        from brimful.audit.page import page

        _write(Path(args.html), page(data))
    return Answer(data, "\n".join(_text(all_printable(data))))


def _zone(name: str) -> tzinfo:
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadInput(say("audit.bad_zone", zone=Quoted(name[:60]))) from error


def _needs_size(args: argparse.Namespace) -> None:
    """An option that would have no effect is refused, not ignored."""
    given = {"--alone": args.alone, "--policy": args.policy, "--deferrable": args.deferrable}
    if not args.size and (option := next((name for name, value in given.items() if value), "")):
        raise BadInput(say("audit.needs_size", option=option))


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        moment(text, UTC)  # rejects impossible years
    except (ValueError, OverflowError) as error:
        raise BadInput(say("audit.bad_time", option=option, text=Quoted(text[:40]))) from error
    return found


def _seconds(when: datetime | None, zone: tzinfo) -> int | None:
    if when is None:
        return None
    return int((when if when.tzinfo else when.replace(tzinfo=zone)).timestamp())


def _cut(
    trace: Trace, paths: Sequence[str], start: datetime | None, end: datetime | None, zone: tzinfo
) -> Trace:
    """The jobs submitted in the window. Times of a trace have no zone: they are read as times in `zone`."""
    first_s = trace.first_s
    if first_s is None:
        names = ", ".join(Path(each).name for each in paths)
        raise BadInput(say("audit.trace_no_window", names=Quoted(names[:80])))

    def at_s(when: datetime | None, otherwise: float) -> float:
        if when is None:
            return otherwise
        local = when.astimezone(zone) if when.tzinfo else when
        return local.replace(tzinfo=UTC).timestamp() - first_s

    low, high = at_s(start, -inf), at_s(end, inf)
    kept = [arrival for arrival in trace.arrivals if low <= arrival.at_s < high]
    if not kept:
        raise BadInput(say("audit.trace_outside", n=len(trace.arrivals)))
    zero = kept[0].at_s
    return replace(trace, arrivals=[replace(each, at_s=each.at_s - zero) for each in kept])


def _nothing_to_count(records: Records) -> BadInput:
    """Why there is no tree: what the sources contain instead, so that users see what to add."""
    if records.traces:
        return BadInput(say("audit.only_a_trace"))
    if records.runs:
        return BadInput(say("audit.nothing_paid"))
    if records.paid:
        return BadInput(say("audit.no_times", gpus=count("gpu", sum(paid.gpus for paid in records.paid))))
    left_out = {name: n for name, n in records.left_out.items() if n}
    why = unused_said(records.not_known, left_out)
    if not records.not_known and left_out.keys() <= OF_SAMPLES:
        return BadInput(say("audit.only_samples"))
    return BadInput(say("audit.nothing_counted", why=Several(tuple(why), "; ")))


def _rates(asked: str | None, names: Collection[str]) -> dict[str, int]:
    """Micro-dollars per GPU-hour by the catalog's names, or as the sources spell the type."""
    if not asked:
        return {}
    return (known_prices() if asked == LIST else read_prices(Path(asked), names)).microusd_per_gpu_hour


def _rate(gpu: str, rates: Mapping[str, int]) -> int | None:
    """A source or --fleet may spell the type differently."""
    return rates.get(gpu) or rates.get(catalog_name(gpu))


def _priced(node: Node, rates: Mapping[str, int]) -> Node:
    return replace(node, microusd_per_gpu_hour=_rate(node.gpu, rates) or 0)


def _price(records: Records, rates: Mapping[str, int], *, is_list: bool) -> None:
    """A price for what has none yet. The built-in table holds list prices and is labelled as such."""

    def priced(paid: Paid) -> Paid:
        rate = _rate(paid.gpu, rates)
        if paid.microusd is not None or rate is None:
            return paid
        cost = (rate * paid.gpus * (paid.end_s - paid.start_s) + HOUR_S // 2) // HOUR_S
        return replace(paid, microusd=cost, list_price=is_list)

    records.paid = [priced(paid) for paid in records.paid]


def _defer(records: Records, names: set[str]) -> None:
    """Work of these queues, teams or users may wait for a quiet hour."""
    unknown = names - {name for run in records.runs for name in (run.wall, run.team, run.user)}
    if unknown:
        raise BadInput(say("audit.nobody_defers", name=Quoted(min(unknown)[:60])))
    if names:
        records.runs = [
            replace(run, deferrable=run.deferrable or bool({run.wall, run.team, run.user} & names))
            for run in records.runs
        ]


def _sizes(
    records: Records,
    fleet: Sequence[Node],
    policies: Sequence[Policy],
    *,
    trace: Trace | None,
    window: tuple[int, int],
    found: Swept | None,
    alone: bool,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if trace is not None:
        kinds: dict[Node, int] = {}
        for node in fleet or trace.nodes:
            kind = replace(node, node="", rack="", holes=())
            kinds[kind] = kinds.get(kind, 0) + 1
        work = Work(trace.arrivals, kinds, {})
    else:
        work = work_of(records, fleet, start_s=window[0], end_s=window[1])
    if not work.arrivals:
        raise BadInput(say("audit.no_jobs_to_size"))
    work = with_room(work)
    sizes = [sized(work, policy, alone=alone) for policy in policies]
    if work.assumed_node or (found is None and trace is None):
        return sizes, []

    def changed(which: Collection[str]) -> Work:
        if trace is not None:
            return work  # it contains nothing that could be changed
        return work_of(records, fleet, start_s=window[0], end_s=window[1], changes=which)

    return sizes, actions(changed, policies[0], sizes[0]["explained"])


def _write(path: Path, text: str) -> None:
    with os_errors_as("language.cannot_write", path=path):
        write_whole(path, text)


# -- for people --------------------------------------------------------------------------------------------


def _text(data: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    if "headline" in data:
        lines += [*_headline(data), "", _leaves(data), "", *_beside(data)]
    said = [*map(size_said, data.get("size", ())), *map(action_said, data.get("actions", ()))]
    for first, *rest in said:
        lines += ["", *wrapped("", first), *(line for each in rest for line in wrapped("  ", each))]
    return lines if "headline" in data else lines[1:]


def _headline(data: dict[str, Any]) -> list[str]:
    lines = [page_title(data)]
    lines += wrapped("", paid_said(data))
    wide = max(len(words(f"audit.is_{name}")) for name in data["headline"])
    for name, part in data["headline"].items():
        if part["share"] is not None:
            sum_ = told(Usd(round(part["usd"] * MICROUSD))) if part["usd"] is not None else ""
            share = told(Percent(part["share"], 1))
            word = f"{words(f'audit.is_{name}'):<{wide}}"
            lines.append(f"  {word} {share:>8}  {bar(part['share'])} {sum_}".rstrip())
    return lines


def _leaves(data: dict[str, Any]) -> str:
    rows = []
    for leaf in told_leaves(data):
        name = "  " * leaf["path"].count(".") + leaf_words(leaf["path"])
        usd = told(Usd(leaf["microusd"])) if leaf["microusd"] is not None else ""
        rows.append(
            [name, told(Number(leaf["gpu_h"], hours_digits(data))), told(Percent(leaf["share"], 2)), usd]
        )
    header = [words(f"audit.col_{name}") for name in ("leaf", "gpu_h", "share", "usd")]
    if all(not row[3] for row in rows):
        rows, header = [row[:3] for row in rows], header[:3]
    return table(header, rows, right=range(1, len(header)))


def _beside(data: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    rows = [
        [
            job["job"],
            job["user"] or job["team"],
            told(Number(job["wasted_gpu_h"], hours_digits(data))),
            leaf_words(job["mostly"]),
        ]
        for job in data["jobs"][:TOP]
    ]
    if rows:
        header = [words(f"audit.col_{name}") for name in ("job", "owner", "wasted", "mostly")]
        lines += [words("audit.page_jobs"), table(header, rows, right=(2,)), ""]
    for said in coverage_said(data["coverage"]):
        lines += wrapped("", said)
    return lines
