"""The page: everything on it, nothing fetched, small."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from brimful.audit.actions import actions
from brimful.audit.page import page
from brimful.audit.records import Outcome, Paid, Part, Records, Run, Wait
from brimful.audit.rehearsals import sized, work_of
from brimful.audit.report import as_csv, report
from brimful.audit.said import told_leaves, waste_causes
from brimful.audit.sweep import sweep
from brimful.scheduler.policies import read_policy
from brimful.units import HOUR_S, MICROUSD

FIFO = read_policy("fifo")
END_S = 14 * 24 * HOUR_S


def books(teams: int = 2) -> Records:
    """Each team has two nodes behind a wall; the first waits now and then while others have GPUs free."""
    records = Records(knows_queue=True)
    for i in range(2 * teams):
        walls, price = frozenset({f"team-{i // 2}"}), 8 * 336 * MICROUSD
        records.paid.append(
            Paid(place=f"n{i}", gpu="a100", gpus=8, start_s=0, end_s=END_S, microusd=price, walls=walls)
        )
    for hour in range(0, 300, 4):
        for i in range(teams):
            part, at = Part(place=f"n{2 * i}", gpus=8), hour * HOUR_S
            run = Run(
                job=f"{i}-{hour}", start_s=at, end_s=at + 3 * HOUR_S, parts=(part,), gpu="a100", submit_s=at
            )
            outcome: Outcome = "lost" if hour % 12 == 0 else "kept"
            records.runs.append(
                replace(run, outcome=outcome, user=f"u{i}", team=f"team-{i}", wall=f"team-{i}")
            )
    records.waits.append(Wait(start_s=0, end_s=HOUR_S, gpus=16, per_node=8, wall="team-0"))
    return records


class Reader(HTMLParser):
    """Tags that are opened must be closed, and nothing is fetched."""

    VOID = ("meta", "br", "line", "circle", "polyline", "polygon")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {name for name, _ in attrs} & {"src", "href", "onclick", "onload"}
        self.seen.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def the_page(records: Records) -> str:
    data = report(records, sweep(records, start_s=0, end_s=END_S))
    work = work_of(records, [], start_s=0, end_s=END_S)
    data["size"] = [sized(work, FIFO, alone=False)]
    data["actions"] = actions(
        lambda which: work_of(records, [], start_s=0, end_s=END_S, changes=which), FIFO, 1.0
    )
    return page(data)


def test_the_page_holds_all_of_it_and_needs_nothing_else() -> None:
    html = the_page(books())
    reader = Reader()
    reader.feed(html)

    assert reader.open == []
    assert "script" not in reader.seen
    assert {"svg", "polygon", "table", "ol"} <= reader.seen  # the curve has its band
    assert html.count("rgba(") == 168
    assert re.search(r"today 32", html)
    assert "u1" in html
    assert len(html) < 1_500_000


def test_a_team_has_its_quota_its_peak_and_what_its_wall_kept_from_others() -> None:
    records = books()
    teams = {t["team"]: t for t in report(records, sweep(records, start_s=0, end_s=END_S))["teams"]}

    assert {(t["quota_gpus"], t["peak_gpus"]) for t in teams.values()} == {(16, 8)}
    assert teams["team-1"]["walled_gpu_h"] == 8  # two nodes wanted, one of its own free
    assert teams["team-0"]["walled_gpu_h"] == 0


def test_the_causes_of_waste_are_what_the_headline_calls_wasted() -> None:
    records = books()
    data = report(records, sweep(records, start_s=0, end_s=END_S))

    assert abs(sum(share for _, share in waste_causes(data)) - data["headline"]["wasted"]["share"]) < 1e-9


def test_what_has_no_price_has_no_money_beside_what_has_one() -> None:
    records = books()
    records.paid[0] = replace(records.paid[0], microusd=None)
    found = sweep(records, start_s=0, end_s=END_S)
    data = report(records, found)
    rows = [row.split(",") for row in as_csv(found.tree).splitlines()[1:]]
    bare = {team for _, team, *_, microusd in rows if not microusd}

    assert bare
    assert bare == {team["team"] for team in data["teams"] if team["usd"] is None}
    assert "$0.00" not in page(data)


def test_hundreds_of_teams_stay_a_small_page() -> None:
    records = books(teams=400)
    html = page(report(records, sweep(records, start_s=0, end_s=END_S)))

    assert len(html) < 1_500_000


def test_an_unknown_outcome_is_shown_where_it_is_divided_and_left_out_where_it_is_not() -> None:
    def paths(*found: tuple[str, int]) -> list[str]:
        return [leaf["path"] for leaf in told_leaves({"leaves": [{"path": p, "gpu_s": n} for p, n in found]})]

    whole = ("allocated", 9), ("allocated.unknown", 9)
    assert paths(*whole, ("allocated.unknown.unknown", 9)) == ["allocated"]
    divided = ("allocated.unknown.idle", 9), ("allocated.unknown.idle.gap", 9)
    assert paths(*whole, *divided)[:2] == ["allocated", "allocated.unknown"]
