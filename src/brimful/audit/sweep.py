"""From records to the tree: first along each place, then over all places at once.

Along a place: what was paid, minus what jobs held, minus what was out of service, leaves what was free. Jobs
that claim more than was paid for are cut, the latest first, and the cut is counted. Over all places: the free
GPUs at each time are matched with the jobs that waited (demand.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from typing import Any

from brimful.audit.cards import card_leaves
from brimful.audit.demand import Pool, Queue, match, never_needed, shown_walls
from brimful.audit.records import Down, Paid, Part, Records, Run
from brimful.audit.tree import Calendar, Cell, Lot, Tally, Tree, spread
from brimful.units import HOUR_S

LARGEST = 2**63  # bytes: fits no card
Interval = tuple[int, int, int]  # start, end, GPUs
Step = tuple[int, Pool, int, int, int, int]  # at, pool, lot, free before, free after, change of total GPUs


@dataclass(slots=True)
class Place:
    """One GPU type on one node or in one pool, over the window, while the same queues may use it."""

    name: str
    gpu: str
    walls: frozenset[str]
    is_node: bool
    lot: int = 0
    paid: list[Interval] = field(default_factory=list)
    # start, end, GPUs, whose; and other places for what does not fit here
    held: list[tuple[int, int, int, Run, Part, list[Place]]] = field(default_factory=list)
    downs: list[tuple[int, int, Down]] = field(default_factory=list)

    def distance(self, run: Run) -> int:
        """Its own queue's GPUs, those of every queue, those of others."""
        return 0 if run.wall in self.walls else 2 if self.walls else 1


@dataclass(frozen=True, slots=True)
class Swept:
    """The tree, and what the page shows beside it."""

    tree: Tree
    start_s: int
    end_s: int
    calendar: Calendar
    demand: Mapping[str, list[tuple[int, int, int, int]]]  # GPU type -> (start, end, GPUs, GPUs wanted)
    left_out: Counter[str]


def sweep(records: Records, *, start_s: int, end_s: int, zone: tzinfo = UTC) -> Swept:
    """Every GPU-second that was paid for between two times, in its leaf."""
    records = _in_order(records)
    tally = Tally(Calendar(zone, start_s=start_s, end_s=end_s))
    left_out = Counter(records.left_out)
    places, lots = _places(records, start_s, end_s, tally)
    _join(records, places, start_s, end_s, left_out)
    steps: list[Step] = []
    for place in places:
        pool = Pool(place.gpu, place.walls, place.is_node)
        for at_s, before, after, change in _along(place, records, tally, left_out):
            steps.append((at_s, pool, place.lot, before, after, change))
    demand = _over_all(records, steps, tally, start_s, end_s)
    if not places:
        lots[0] = Lot("", None)
        for leaf, cluster, gpu_s in records.totals:
            tally.cells[Cell(leaf, cluster, "", tally.calendar.days[0], 0)] += gpu_s
    return Swept(Tree.of(tally.cells, lots), start_s, end_s, tally.calendar, demand, left_out)


def _in_order(records: Records) -> Records:
    """The same records in a fixed order: which runs are cut must not depend on the order of a file."""
    return replace(
        records,
        runs=sorted(records.runs, key=_run_order),
        paid=sorted(records.paid, key=_paid_order),
        downs=sorted(records.downs, key=lambda d: (d.start_s, d.end_s, d.place, d.gpu, d.leaf, d.gpus or 0)),
    )


def _run_order(run: Run) -> tuple[Any, ...]:
    parts = [(part.place, part.gpus, part.cards) for part in run.parts]
    return run.start_s, run.end_s, run.job, parts, run.outcome, run.team, run.wall, run.gpu, run.user


def _paid_order(paid: Paid) -> tuple[Any, ...]:
    cost = -1 if paid.microusd is None else paid.microusd
    return paid.place, paid.gpu, sorted(paid.walls), paid.start_s, paid.end_s, paid.gpus, cost, paid.unused


def _clipped(paid: Paid, start_s: int, end_s: int) -> Paid | None:
    """The part in the window, with its share of the price."""
    start, end, whole = max(paid.start_s, start_s), min(paid.end_s, end_s), paid.end_s - paid.start_s
    if start >= end or paid.gpus <= 0:
        return None
    cost = None if paid.microusd is None else (2 * paid.microusd * (end - start) + whole) // (2 * whole)
    return replace(paid, start_s=start, end_s=end, microusd=cost)


def _places(records: Records, start_s: int, end_s: int, tally: Tally) -> tuple[list[Place], dict[int, Lot]]:
    """What was paid, by place; and the prices. A place's cost is spread evenly over its GPU-seconds."""
    mine = [p for paid in records.paid if (p := _clipped(paid, start_s, end_s))]
    by_place: dict[tuple[str, str, frozenset[str], bool], list[Paid]] = defaultdict(list)
    for paid in mine:
        by_place[paid.place, paid.gpu, paid.walls, paid.unused].append(paid)
    lots: dict[int, Lot] = {}
    known: dict[tuple[str, int | None, bool, bool], int] = {}
    places: list[Place] = []
    for (name, gpu, walls, unused), some in by_place.items():
        priced = all(paid.microusd is not None for paid in some)
        gpu_s = sum(paid.gpus * (paid.end_s - paid.start_s) for paid in some)
        cost = sum(paid.microusd or 0 for paid in some)
        is_list = any(paid.list_price for paid in some)
        rate = cost * HOUR_S // gpu_s if priced else None
        lot = known.setdefault((gpu, rate, is_list, unused), len(known))
        before = lots.get(lot, Lot(gpu, 0 if priced else None, is_list))
        lots[lot] = Lot(gpu, (before.microusd or 0) + cost if priced else None, is_list)
        if unused:
            for p in some:
                tally.add("not_delivered.unused", "", gpu, lot, start_s=p.start_s, end_s=p.end_s, gpus=p.gpus)
            continue
        place = Place(name, gpu, walls, all(paid.is_node for paid in some), lot)
        place.paid = [(paid.start_s, paid.end_s, paid.gpus) for paid in some]
        places.append(place)
    return places, lots


def _join(
    records: Records,
    places: Sequence[Place],
    start_s: int,
    end_s: int,
    left_out: Counter[str],
) -> None:
    """Assigns runs and outages to the places they name; those that name none are counted."""
    named: defaultdict[str, list[Place]] = defaultdict(list)
    for place in places:
        named[place.name].append(place)
    pools = [place for place in places if not place.is_node]
    for run in records.runs:
        start, end = max(run.start_s, start_s), min(run.end_s, end_s)
        for part in run.parts if start < end else ():
            there = named.get(part.place, pools)
            fitting = [p for p in there if run.gpu in ("", p.gpu) or not p.gpu] or (
                there if len({p.gpu for p in there}) == 1 and all(p.is_node for p in there) else []
            )
            if fitting:
                if part.place not in named:
                    closest = min(place.distance(run) for place in fitting)
                    fitting = [place for place in fitting if place.distance(run) == closest]
                first, *others = fitting
                first.held.append((start, end, part.gpus, run, part, others))
            else:
                left_out["run_gpu_s"] += part.gpus * (end - start)
    for down in records.downs:
        start, end = max(down.start_s, start_s), min(down.end_s, end_s)
        mine = [p for p in named.get(down.place, ()) if down.gpu in ("", p.gpu)]
        if start < end and mine:
            for place in mine:
                place.downs.append((start, end, down))
        elif start < end:
            left_out["outage"] += 1


def _along(
    place: Place, records: Records, tally: Tally, left_out: Counter[str]
) -> Iterator[tuple[int, int, int, int]]:
    """One place through the window: counts what was held or down, yields (at, free before, after, GPUs)."""
    changes: list[tuple[int, int, int, int]] = []  # at, what (0 paid, 1 held, 2 down), which, by
    for start, end, gpus in place.paid:
        changes += [(start, 0, 0, gpus), (end, 0, 0, -gpus)]
    place.held.sort(key=lambda each: each[:2])
    for i, (start, end, gpus, *_) in enumerate(place.held):
        changes += [(start, 1, i, gpus), (end, 1, i, -gpus)]
    for i, (start, end, _) in enumerate(place.downs):
        changes += [(start, 2, i, 1), (end, 2, i, -1)]
    changes.sort()
    there = held = free_before = there_before = 0
    running: dict[int, int] = {}
    down: dict[int, int] = {}
    cuts: defaultdict[int, list[Interval]] = defaultdict(list)
    for k, (at, what, i, by) in enumerate(changes):
        if what == 0:
            there += by
        else:
            held += by if what == 1 else 0
            now = running if what == 1 else down
            now[i] = by
            if by < 0:
                del now[i]
        if k + 1 == len(changes) or changes[k + 1][0] > at:
            until = changes[k + 1][0] if k + 1 < len(changes) else at
            _cut(held - there, running, (at, until), cuts)
            free = _out_of_service(place, max(0, there - held), down, (at, until), tally)
            if free != free_before or there != there_before:
                yield at, free_before, free, there - there_before
                free_before, there_before = free, there
    _count_held(place, cuts, records, tally, left_out)


def _count_held(
    place: Place,
    cuts: Mapping[int, list[Interval]],
    records: Records,
    tally: Tally,
    left_out: Counter[str],
) -> None:
    """What each run held here. What does not fit goes to the next possible place."""
    for i, (start, end, gpus, run, part, others) in enumerate(place.held):
        for a, b, n in cuts.get(i, []):
            if others:  # they come later in the order of places
                cards = part.cards if n == gpus else ()  # for only some of them, the indices are unknown
                others[0].held.append((a, b, n, run, replace(part, gpus=n, cards=cards), others[1:]))
            else:
                left_out["excess_gpu_s"] += (b - a) * n
        for leaf, a, b, n in card_leaves(
            records, run, part, (start, end, gpus), cuts.get(i, []), gpu=place.gpu
        ):
            tally.add(leaf, run.team, place.gpu, place.lot, start_s=a, end_s=b, gpus=n)


def _cut(
    too_many: int, running: dict[int, int], span: tuple[int, int], cuts: defaultdict[int, list[Interval]]
) -> None:
    """More is held than exists: the latest runs lose it first. They came into `running` in order."""
    for i in reversed(running):
        if too_many <= 0:
            break
        cut, mine = min(running[i], too_many), cuts[i]
        if mine and mine[-1][1:] == (span[0], cut):
            mine[-1] = (mine[-1][0], span[1], cut)
        else:
            mine.append((*span, cut))
        too_many -= cut


def _out_of_service(
    place: Place, free: int, down: Mapping[int, int], span: tuple[int, int], tally: Tally
) -> int:
    """Counts which free GPUs could not be used; returns how many are left."""
    for i in sorted(down):
        record = place.downs[i][2]
        gpus = free if record.gpus is None else min(free, record.gpus)
        tally.add(record.leaf, "", place.gpu, place.lot, start_s=span[0], end_s=span[1], gpus=gpus)
        free -= gpus
    return free


def _over_all(
    records: Records,
    steps: list[Step],
    tally: Tally,
    start_s: int,
    end_s: int,
) -> dict[str, list[tuple[int, int, int, int]]]:
    """All places at once: counts what was free, and returns GPUs and demand of each type over time."""
    events: list[tuple[int, int]] = [(step[0], i) for i, step in enumerate(steps)]
    sizes = sorted({*records.types.values(), LARGEST})
    waits = [
        # Only whether it fits a card matters, so jobs that fit the same cards are alike.
        replace(w, memory_bytes=w.memory_bytes and sizes[bisect_left(sizes, min(w.memory_bytes, LARGEST))])
        for w in records.waits
        if max(w.start_s, start_s) < min(w.end_s, end_s)
    ]
    for j, wait in enumerate(waits):
        events.append((max(wait.start_s, start_s), len(steps) + 2 * j))
        events.append((min(wait.end_s, end_s), len(steps) + 2 * j + 1))
    events.sort()
    now = _Now(records, tally)
    for k, (at, i) in enumerate(events):
        if i < len(steps):
            now.step(*steps[i][1:])
        else:
            j, is_end = divmod(i - len(steps), 2)
            now.queue.change(waits[j], -1 if is_end else 1)
        if k + 1 == len(events) or events[k + 1][0] > at:
            now.settle(at)
    now.settle(end_s, last=True)
    _divide_no_demand(now.curves, tally)
    return {
        gpu: [(a, b, there, there - idle + beyond) for a, b, there, idle, beyond in curve]
        for gpu, curve in now.curves.items()
    }


class _Now:
    """The free GPUs of every pool and who waits, at the sweep's current time."""

    def __init__(self, records: Records, tally: Tally) -> None:
        self.queue = Queue.empty()
        # GPU type -> (start, end, GPUs, GPUs without demand, GPUs wanted beyond the free ones)
        self.curves: defaultdict[str, list[tuple[int, int, int, int, int]]] = defaultdict(list)
        self._records, self._tally = records, tally
        self._free: Counter[Pool] = Counter()
        self._lots: defaultdict[Pool, Counter[int]] = defaultdict(Counter)
        self._there: Counter[str] = Counter()
        self._nodes: defaultdict[Pool, Counter[int]] = defaultdict(Counter)
        self._since: dict[tuple[Pool, int], tuple[int, dict[str, int]]] = {}
        self._level: dict[str, tuple[int, int, int, int]] = {}

    def step(self, pool: Pool, lot: int, before: int, after: int, change: int) -> None:
        self._free[pool] += after - before
        self._lots[pool][lot] += after - before
        self._there[pool.gpu] += change
        self._nodes[pool][before] -= 1
        self._nodes[pool][after] += 1

    def settle(self, at_s: int, *, last: bool = False) -> None:
        """Counts the time up to now; the new values apply from here on."""
        found = self._leaves()
        for pool, leaves in found.items():
            for lot, mine in _by_lot(leaves, self._lots[pool]).items():
                since_s, before = self._since.get((pool, lot), (at_s, {}))
                if mine != before or last:
                    self._count(pool, lot, before, since_s, at_s)
                    self._since[pool, lot] = (at_s, mine)
        self._draw(at_s, found, last=last)

    def _leaves(self) -> dict[Pool, Counter[str]]:
        if not self._records.knows_queue:
            return {pool: Counter({"unknown": gpus}) for pool, gpus in self._free.items()}
        if not self.queue.gpus:
            return {pool: Counter({"no_demand": gpus}) for pool, gpus in self._free.items()}
        nodes = {
            p: Counter({n: c for n, c in self._nodes[p].items() if n and c}) for p in self._free if p.by_node
        }
        return match(self._free, nodes, self.queue, self._records.types)

    def _count(self, pool: Pool, lot: int, leaves: Mapping[str, int], start_s: int, end_s: int) -> None:
        team = shown_walls(pool.walls)
        for leaf, gpus in leaves.items():
            path = f"unallocated.{'no_demand.peaks' if leaf == 'no_demand' else leaf}"
            self._tally.add(path, team, pool.gpu, lot, start_s=start_s, end_s=end_s, gpus=gpus)

    def _draw(self, at_s: int, found: Mapping[Pool, Counter[str]], *, last: bool) -> None:
        idle: Counter[str] = Counter()
        met: Counter[str] = Counter()
        for pool, leaves in found.items():
            idle[pool.gpu] += leaves.get("no_demand", 0) + leaves.get("unknown", 0)
            met[""] += sum(gpus for leaf, gpus in leaves.items() if leaf not in ("no_demand", "unknown"))
        beyond = sum(self.queue.gpus.values()) - met[""]
        for gpu, there in self._there.items():
            level = (there, idle[gpu], beyond if len(self._there) == 1 else 0)
            since_s, *before = self._level.setdefault(gpu, (at_s, *level))
            if tuple(before) != level or last:
                if since_s < at_s:
                    self.curves[gpu].append((since_s, at_s, before[0], before[1], before[2]))
                self._level[gpu] = (at_s, *level)


def _by_lot(leaves: Mapping[str, int], lots: Mapping[int, int]) -> dict[int, dict[str, int]]:
    """GPUs that differ only in price: which one is idle must not depend on the price."""
    found: dict[int, dict[str, int]] = {lot: {} for lot in lots}
    rest = {leaf: gpus for leaf, gpus in leaves.items() if gpus}
    for lot, room in lots.items():
        free = room
        for leaf in list(rest):
            if gpus := min(rest[leaf], free):
                found[lot][leaf] = gpus
                rest[leaf] -= gpus
                free -= gpus
    return found


def _divide_no_demand(curves: Mapping[str, list[tuple[int, int, int, int, int]]], tally: Tally) -> None:
    """No demand is divided once the window's peak is known: what is above it was never needed."""
    free: defaultdict[tuple[str, str], dict[Cell, int]] = defaultdict(dict)
    for cell, n in tally.cells.items():
        if cell.leaf == "unallocated.no_demand.peaks":
            free[cell.gpu, cell.day][cell] = n
    for gpu, curve in curves.items():
        above = never_needed([step[:4] for step in curve])
        by_day: Counter[str] = Counter()
        for start, end, *_ in curve:
            for day, seconds in tally.calendar.split(start, end):
                by_day[day] += above[start] * seconds
        for day, gpu_s in by_day.items():
            mine = free.get((gpu, day))
            for cell, part in spread(gpu_s, mine).items() if mine else ():
                tally.cells[cell] -= part
                tally.cells[Cell("unallocated.no_demand.never_needed", *cell[1:])] += part
