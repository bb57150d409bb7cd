"""Random small clusters: nodes, jobs, queues, outages and samples, with every second accounted for."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import strategies as st

from brimful.audit.records import Down, Paid, Part, Parts, Records, Run, Wait
from brimful.meter.idle import Level, Spans

END_S = 4000
GPUS = ("old", "new")
WALLS = ("a", "b")
LEVELS: tuple[Level, ...] = ("idle", "starved", "working")


@st.composite
def spans_of(draw: st.DrawFn) -> Spans:
    """What a card did, with holes where nobody looked."""
    edges = sorted(set(draw(st.lists(st.integers(0, END_S), min_size=2, max_size=8))))
    found: Spans = []
    for start, end in itertools.pairwise(edges):
        level = draw(st.sampled_from((*LEVELS, None)))
        if level is not None:
            found.append((start, end, level))
    return found


@st.composite
def times(draw: st.DrawFn) -> tuple[int, int]:
    start = draw(st.integers(-500, END_S + 200))
    return start, start + draw(st.integers(1, END_S))


@st.composite
def clusters(draw: st.DrawFn) -> Records:
    """More jobs than fit, jobs on nodes that do not exist, outages over jobs: books are seldom in order."""
    records = Records(knows_queue=True, types={"old": 16, "new": 80})
    for i in range(draw(st.integers(1, 4))):
        start, end = draw(times())
        walls = frozenset(draw(st.sets(st.sampled_from(WALLS))))
        price = draw(st.one_of(st.none(), st.integers(0, 10**7)))
        records.paid.append(
            Paid(
                place=f"n{i}",
                gpu=draw(st.sampled_from(GPUS)),
                gpus=draw(st.integers(1, 8)),
                start_s=start,
                end_s=end,
                microusd=price,
                walls=walls,
                is_node=draw(st.booleans()),
                unused=draw(st.integers(0, 9)) == 0,
            )
        )
    for i in range(draw(st.integers(0, 8))):
        start, end = draw(times())
        gpus = draw(st.integers(1, 8))
        place = f"n{draw(st.integers(0, 4))}"
        cards = tuple(range(gpus)) if draw(st.booleans()) else ()
        records.runs.append(
            Run(
                job=f"j{i}",
                start_s=start,
                end_s=end,
                parts=(Part(place=place, gpus=gpus, cards=cards),),
                outcome=draw(st.sampled_from(("kept", "lost", "unknown"))),
                team=draw(st.sampled_from(WALLS)),
                memory_bytes=draw(st.sampled_from((None, 10, 40))),
            )
        )
        if draw(st.booleans()):
            waited = draw(st.floats(0, 60))
            mfu = draw(st.sampled_from((0.0, 30.0)))
            records.parts[f"j{i}"] = Parts(100.0, waited, 40.0 - waited / 2, 100.0 * bool(mfu), mfu)
        for card in cards:
            if draw(st.booleans()):
                records.activity[f"j{i}", place, card] = draw(spans_of())
    for _ in range(draw(st.integers(0, 6))):
        start, end = draw(times())
        gpus = draw(st.integers(1, 16))
        records.waits.append(
            Wait(
                start_s=start,
                end_s=end,
                gpus=gpus,
                per_node=draw(st.one_of(st.none(), st.integers(1, gpus))),
                wall=draw(st.sampled_from(WALLS)),
                gpu=draw(st.sampled_from(("", *GPUS))),
                memory_bytes=draw(st.sampled_from((None, 10, 40))),
                blocked=draw(st.booleans()),
            )
        )
    for _ in range(draw(st.integers(0, 3))):
        start, end = draw(times())
        leaf = draw(
            st.sampled_from(("out_of_service.broken", "out_of_service.planned", "not_delivered.booting"))
        )
        some = draw(st.one_of(st.none(), st.integers(1, 8)))
        place = f"n{draw(st.integers(0, 4))}"
        records.downs.append(Down(place=place, start_s=start, end_s=end, leaf=leaf, gpus=some))
    return records


def without(records: Records, what: str) -> Records:
    """The same books with something missing."""
    if what == "samples":
        return replace(records, activity={})
    if what == "memory":
        return replace(records, runs=[replace(run, memory_bytes=None) for run in records.runs])
    if what == "steps":
        return replace(records, parts={})
    if what == "mfu":
        bare = {job: replace(parts, measured_s=0.0, peak_s=0.0) for job, parts in records.parts.items()}
        return replace(records, parts=bare)
    if what == "queue":
        return replace(records, waits=[], knows_queue=False)
    if what == "outcomes":
        return replace(records, runs=[replace(run, outcome="unknown") for run in records.runs])
    assert what == "prices"
    return replace(records, paid=[replace(paid, microusd=None) for paid in records.paid])
