"""Pages of fleet, market, teams, audit and operation: the API's numbers, for who may see them."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from brimful.fleet.events import (
    BudgetSet,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseIdle,
    LoadSeen,
    NoticeGiven,
    NoticeWithdrawn,
    SiteLost,
)
from brimful.fleet.job import Job
from brimful.fleet.queues import Quota
from brimful.language import Percent, Usd, language, say, told, verbatim
from brimful.market.invoice import day_of
from brimful.market.periods import period_at
from brimful.scheduler.policies import read_policy
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.auth import EVERYBODY, Principal, form_key
from brimful.server.console.market_charts import size_shape
from brimful.server.rehearsing.rehearser import RehearsalTerms, Rehearser
from brimful.server.service.service import Service
from brimful.server.views.attention import attention_view
from tests.server.builders import OPERATOR, MemoryHistory, bearer
from tests.server.test_actions import signed_in
from tests.server.test_auth import SECRET, House, house  # noqa: F401 - a fixture
from tests.server.test_console import HOSTILE, Desk, a_lease_of, desk, words  # noqa: F401 - a fixture

PAGES = (
    *("/", "/jobs", "/jobs/{job}", "/submit", "/submit?job={job}", "/fit"),
    *("/fleet", "/market", "/teams", "/audit", "/operate"),
)
HOUR_S = 3600
CODES = ("job", "priority", "within", "code", "array", "key")  # of a job: the server's own, or one of a few


def data(desk: Desk, path: str) -> Any:  # noqa: F811
    answer = desk.client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def usd(microusd: int) -> str:
    return language("en").text(Usd(microusd))


def busy(desk: Desk) -> None:  # noqa: F811
    """A job that is over, one that runs idle, one that waits; a budget; two hours of record."""
    desk.service.driver.tick()
    for team in ("red", "blue", "red"):
        desk.submit(tenant=team, user="ann", gpus=1, name="train")
    then = desk.now_s
    desk.write(*a_lease_of("job-1", at_s=then), *a_lease_of("job-2", at_s=then, gpu=1))
    desk.write(
        BudgetSet(at_s=then, tenant="red", microusd=370_000),
        LeaseEnded(at_s=then + HOUR_S, lease="job-1.1", exit_code=1, reason=verbatim("exit code 1")),
        LeaseIdle(at_s=then + HOUR_S, lease="job-2.1", since_s=then + 60),
    )
    pool: dict[str, Any] = {"site": "local", "gpu": "rtx-4070", "tier": "owned", "wanted": 0, "gpus": 2}
    desk.write(*(LoadSeen(at_s=then + h * HOUR_S, held=held, **pool) for h, held in enumerate((2, 1))))
    desk.now_s += 2 * HOUR_S


def test_every_number_of_a_page_is_the_apis(desk: Desk) -> None:  # noqa: F811
    busy(desk)
    home, fleet = words(desk.html()), data(desk, "/v1/fleet")
    looks = data(desk, "/v1/attention")["attention"]
    assert [each["kind"] for each in looks] == ["budget", "idle", "failed"]
    assert all(each["said"] in home for each in looks)
    (pool,) = data(desk, "/v1/forecast")["pools"]
    assert [hour["held"] for hour in pool["past"]] == [2, 1]
    mean = sum(hour["held"] for hour in pool["past"]) / len(pool["past"]) / pool["gpus"]
    assert f"{language('en').text(Percent(mean))} of GPUs held on average over 2 hours" in home

    page = words(desk.html("/fleet"))
    (site,) = fleet["sites"]
    assert f"{site['held']} / {site['gpus']}" in page
    assert fleet["policy"] in page

    (price,) = data(desk, "/v1/prices")["pools"]
    assert usd(price["microusd_per_gpu_hour"]) in words(desk.html("/market"))
    assert usd(price["microusd_per_gpu_hour"]) in home

    page, months = words(desk.html("/teams")), data(desk, "/v1/spend")["month"]
    for budget in data(desk, "/v1/budgets")["budgets"]:
        left = budget["left_microusd"]
        shown = [usd(budget[f"{name}_microusd"]) for name in ("spent", "accruing", "held")]
        month = months[budget["tenant"]]
        shown += [usd(month["expected_microusd"]), "so far", usd(month["spent_microusd"])]
        assert " ".join([budget["tenant"], *shown, "no limit" if left is None else usd(left)]) in page
    for by in ("team", "user", "job", "site", "gpu", "day"):
        bills = data(desk, f"/v1/invoice?by={by}")
        page = words(desk.html(f"/teams?by={by}"))
        assert usd(bills["total_microusd"]) in page
        assert all(f"{bill['of']} {usd(bill['microusd'])}" in page for bill in bills["bills"])
        table = desk.client.get(f"/v1/invoice.csv?by={by}").text.splitlines()
        assert len(table) == 1 + len(bills["bills"])

    for by in ("team", "user", "gpu"):
        spent, html = data(desk, f"/v1/spend/days?by={by}"), desk.html(f"/teams?by={by}")
        assert (spent["days"][-1]["day"], len(spent["days"])) == (day_of(desk.now_s), 28)
        assert sum(spent["total"].values()) == sum(day["microusd"] for day in spent["days"]) > 0
        for day in spent["days"]:
            assert all(f"<title>{day['day']} · {of}: {usd(n)}</title>" in html for of, n in day["of"].items())

    page = words(desk.html("/audit?days=1"))
    end_s = desk.now_s // 60 * 60  # the page reads whole minutes
    audit = data(desk, f"/v1/audit/usage?from_s={end_s - 86400}&to_s={end_s}")
    assert f"{audit['paid_gpu_h']:.1f} GPU-hours" in page
    assert all(f"{100 * leaf['share']:.0f} % {leaf['gpu_h']:.2f}" in page for leaf in audit["leaves"])
    assert {job["name"] for job in audit["jobs"]} == {"train"}
    assert all(f"{job['job']} {job['name']} {job['team']}" in page for job in audit["jobs"])

    page = words(desk.html("/operate"))
    assert all(event["kind"] in page for event in data(desk, "/v1/events?after=-40")["events"])
    assert all(token["token"] in page for token in data(desk, "/v1/tokens")["tokens"])


def test_operate_notes_quotas_beyond_the_fleet_and_tokens_of_people_who_left(desk: Desk) -> None:  # noqa: F811
    desk.service.submissions.set_queues((Quota(queue="red", gpus=999),), by="op")
    bearer(desk.access, "viewer", "red", name="ann")
    op = Principal(token="", name="op", roles={EVERYBODY: "operator"})
    desk.access.set_role(op, "ann", "red", None)
    (note,) = {note for queue in data(desk, "/v1/queues")["queues"] for note in queue["notes"]}
    page = words(desk.html("/operate"))
    assert "999" in note
    assert note in page
    assert told(say("operate.left_team", name="ann", tenant="red")) in page


def test_a_silent_site_and_a_bad_day_stand_on_the_first_page(desk: Desk) -> None:  # noqa: F811
    desk.service.driver.tick()
    assert "Nothing needs attention" in words(desk.html())
    desk.write(SiteLost(at_s=desk.now_s, site="local", reason=verbatim("no route")))
    desk.now_s += 90
    (look,) = data(desk, "/v1/attention")["attention"]
    assert (look["kind"], look["said_code"]["silent"]) == ("silent", 90)


@pytest.mark.parametrize("path", PAGES)
def test_what_another_team_has_is_on_no_page(house: House, path: str) -> None:  # noqa: F811
    job = house.service.reader.job(house.job).job
    ann, bob = signed_in(house, "admin", "red", "ann"), signed_in(house, "admin", "blue", "bob")
    body = {"command": ["python", "own.py"], "folder": "/", "gpus": 2}
    own = house.http.post("/v1/jobs", json=body, headers=house.blue).json()["data"]["job"]
    house.service.driver.tick()
    there = path.format(job=own)
    assert bob.get(there).status_code == 200
    html = bob.get(there).text
    assert not re.search(rf"\b{house.job}\b", html)
    assert SECRET not in html
    assert ">red<" not in html
    if "{job}" in path:
        assert "own.py" in html
        theirs, nobodys = bob.get(path.format(job=house.job)), bob.get(path.format(job="job-99"))
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace(house.job, "job-99") == nobodys.text
    if path in ("/", "/jobs", "/jobs/{job}", "/submit?job={job}"):
        assert job.name == SECRET in ann.get(path.format(job=house.job)).text
    assert "<form" in html or path == "/market"
    part = f"{there}/live" if path == "/jobs/{job}" else there.partition("?")[0] + "?live=1"
    assert bob.get(part).status_code == 200
    assert SECRET not in bob.get(part).text


def send(client: TestClient, path: str, **fields: str) -> int:
    key = form_key(next(iter(client.cookies.values())))
    return client.post(path, data={"form_key": key, **fields}, follow_redirects=False).status_code


def test_a_queue_changed_on_the_page_keeps_what_the_form_does_not_show(house: House) -> None:  # noqa: F811
    op, fleet = signed_in(house, "operator", "*", "op"), house.service.reader.fleet
    whole = Quota(queue="red", gpus=1, type_gpus=(("h100", 1),))
    house.service.submissions.set_queues((whole, Quota(queue="all", gpus=0)), by="op")
    form = {"verb": "queue", "queue": "red", "gpus": "2", "lend": "yes", "sure": "yes"}
    assert send(op, "/operate/act", **form, parent="all") == 303
    assert replace(whole, gpus=2, parent="all") in fleet.queues
    assert send(op, "/operate/act", verb="unqueue", queue="all", sure="yes") == 400, "red is part of it"
    assert send(op, "/operate/act", **form) == 303
    assert replace(whole, gpus=2) in fleet.queues


def test_operators_drain_set_budgets_and_queues_and_nobody_else(house: House) -> None:  # noqa: F811
    fleet = house.service.reader.fleet
    house.service.driver.tick()
    node = next(iter(fleet.nodes))
    op, ann = signed_in(house, "operator", "*", "op"), signed_in(house, "admin", "red", "ann")
    acts: list[tuple[str, dict[str, str]]] = [
        ("/fleet/act", {"verb": "drain", "node": node, "reason": "fans"}),
        ("/teams/act", {"verb": "budget", "team": "red", "usd": "25"}),
        ("/teams/act", {"verb": "credit", "team": "red", "usd": "5", "reason": "gift"}),
        ("/operate/act", {"verb": "queue", "queue": "red", "gpus": "1", "tenants": "red", "lend": "yes"}),
    ]
    for path, form in acts:
        before = house.service.reader.fleet.seq
        assert send(op, path, **form) == 400, "nobody confirmed it"
        assert send(ann, path, **form, sure="yes") == 403
        assert house.service.reader.fleet.seq == before
        assert send(op, path, **form, sure="yes") == 303
    assert node in fleet.drained
    budgets = house.http.get("/v1/budgets", headers=house.operator).json()["data"]["budgets"]
    assert {each["tenant"]: each["left_microusd"] for each in budgets}["red"] == 30_000_000
    assert [(each.gpus, each.lend) for each in fleet.queues if each.queue == "red"] == [(1, True)]
    assert send(op, "/fleet/act", verb="resume", node=node) == 303
    assert send(op, "/operate/act", verb="unqueue", queue="red", sure="yes") == 303
    assert node not in fleet.drained
    assert "red" not in [each.queue for each in fleet.queues]
    for path, form in (("/fleet/act", {}), ("/teams/act", {"team": "red"}), ("/operate/act", {})):
        assert send(op, path, **form, verb="explode", sure="yes") == 400
    for usd_ in ("a lot", "-1", "1e99"):
        assert send(op, "/teams/act", verb="budget", team="red", usd=usd_, sure="yes") in (400, 422)
    assert send(op, "/teams/act", verb="budget", team=HOSTILE[:50], usd="1", sure="yes") == 400


def test_an_operator_adopts_a_policy_with_its_options_and_nobody_else(house: House) -> None:  # noqa: F811
    reader, terms = house.service.reader, RehearsalTerms(database="", cpu_percent=0)
    house.service.rehearser = Rehearser(reader, house.service.submissions, terms)
    reader.configured, reader.configured_rules = "brim", read_policy("brim").rules
    house.app = make_app(house.service, house.access, secure=True)
    op, ann = signed_in(house, "operator", "*", "op"), signed_in(house, "admin", "red", "ann")
    form, before = {"verb": "adopt", "policy": "brim?move=0"}, reader.policy
    assert send(op, "/operate/act", **form) == 400, "nobody confirmed it"
    assert send(op, "/operate/act", verb="adopt", policy="brym", sure="yes") == 400
    assert send(ann, "/operate/act", **form, sure="yes") == 403
    assert reader.policy == before
    assert 'value="adopt"' not in ann.get("/operate").text
    assert send(op, "/operate/act", **form, sure="yes") == 303
    assert reader.policy == "brim?move=0"
    page = op.get("/operate").text
    assert 'value="adopt"' in page
    assert "Adopted by op" in page


def test_an_admin_revokes_tokens_of_its_team_only(house: House) -> None:  # noqa: F811
    ann = signed_in(house, "admin", "red", "ann")
    _, red = house.access.issue(name="sam", tenant="red", role="submitter")
    _, blue = house.access.issue(name="sue", tenant="blue", role="submitter")
    page = ann.get("/operate").text
    assert f'value="{red.token}"' in page
    assert blue.token not in page
    assert send(ann, "/operate/act", verb="revoke", token=red.token) == 400
    assert send(ann, "/operate/act", verb="revoke", token=blue.token, sure="yes") == 404
    assert send(ann, "/operate/act", verb="revoke", token=red.token, sure="yes") == 303
    # The audit log names it once its line is written; the list of tokens does not.
    assert f'value="{red.token}"' not in ann.get("/operate").text
    vic = signed_in(house, "viewer", "red", "vic")
    assert vic.get("/operate").status_code == 403
    assert send(vic, "/operate/act", verb="revoke", token=blue.token, sure="yes") in (403, 404)


@pytest.mark.parametrize("path", [*PAGES, "/jobs?view=all&text={}", "/fleet?text={}&site={}", "/teams?by={}"])
def test_hostile_words_are_text_on_every_page(desk: Desk, path: str) -> None:  # noqa: F811
    texts: dict[str, Any] = {
        each.name: HOSTILE for each in fields(Job) if each.type == "str" and each.name not in CODES
    }
    texts |= {each.name: (HOSTILE,) for each in fields(Job) if each.type == "tuple[str, ...]"}
    assert len(texts) > 8
    # Before there is a node: a fleet that is known refuses a type that nobody has.
    desk.write(
        JobSubmitted(at_s=desk.now_s, job=Job(job="job-1", gpus=1, env=((HOSTILE, HOSTILE),), **texts))
    )
    desk.write(BudgetSet(at_s=desk.now_s, tenant=HOSTILE, microusd=370_000))
    desk.access.issue(name=HOSTILE, tenant=HOSTILE, role="viewer")
    desk.service.submissions.set_queues((Quota(queue=HOSTILE, gpus=1, tenants=(HOSTILE,)),), by=HOSTILE)
    desk.service.driver.tick()
    desk.service.submissions.hold("job-1", reason=verbatim(HOSTILE))
    desk.service.submissions.drain("local-0", reason=verbatim(HOSTILE))
    desk.service.submissions.grant_credit(HOSTILE, 5, HOSTILE)
    desk.access.note(None, HOSTILE, HOSTILE, HOSTILE)
    html = desk.html(path.format(*[HOSTILE] * 2, job="job-1").replace('"', "%22").replace("#", "%23"))
    assert "<script>document" not in html
    assert "<img" not in html


@pytest.mark.parametrize("path", PAGES)
def test_every_page_speaks_four_languages_and_remembers_a_choice(desk: Desk, path: str) -> None:  # noqa: F811
    titles, path = set(), path.format(job="job-1")
    desk.submit(name="train")
    for code in ("en", "fr", "es", "de"):
        html = desk.client.get(path, headers={"accept-language": code}).text
        assert f'<html lang="{code}">' in html
        titles.add(words(html.partition("<main")[2])[:200])
    assert len(titles) == 4
    chosen = desk.client.get(f"/console/language/de?to={path}", follow_redirects=False)
    assert (chosen.status_code, chosen.headers["location"]) == (303, path)
    assert '<html lang="de">' in desk.client.get(path, headers={"accept-language": "fr"}).text
    for there in ("//evil.example", "https://evil.example", "/\\evil.example"):
        away = desk.client.get("/console/language/fr", params={"to": there}, follow_redirects=False)
        assert away.headers["location"] == "/"


def test_a_fleet_of_many_nodes_is_shown_page_by_page(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("brimful.server.console.overview.NODES_SHOWN", 1)
    desk.service.driver.tick()
    html = desk.html("/fleet")
    assert html.count('<article class="node"') == 1
    assert desk.html("/fleet?text=nothing").count('<article class="node"') == 0
    assert desk.html("/fleet?from=5").count('<article class="node"') == 0


@pytest.mark.parametrize(("left_usd", "warned"), [(60, False), (9, True)])
def test_a_budget_of_this_month_is_not_nearly_used_up_because_of_what_all_years_cost(
    left_usd: int, *, warned: bool
) -> None:
    reader = Service(MemoryHistory(), [], Rules()).reader
    terms = {"allowed_microusd": 100_000_000, "period": "monthly"}
    spent = {"left_microusd": left_usd * 1_000_000, "spent_microusd": 900_000_000}
    budgets: Any = [{"tenant": "red", "budget": terms, **spent}]
    looks = attention_view(reader, OPERATOR, sites=[], budgets=budgets)
    assert [each["kind"] for each in looks] == ["budget"] * warned


def test_the_audit_log_says_in_the_readers_language_what_was_done(house: House) -> None:  # noqa: F811
    op = signed_in(house, "operator", "*", "op")
    assert send(op, "/operate/act", verb="queue", queue="red", gpus="2", sure="yes") == 303
    assert send(op, "/teams/act", verb="budget", team="red", usd="5", sure="yes") == 303
    assert send(op, "/teams/act", verb="budget", team="blue", sure="yes") == 303
    red = signed_in(house, "admin", "red", "ann")
    send(red, "/operate/act", verb="queue", queue="red", gpus="9", sure="yes")
    house.access.close()  # what is queued is written
    for code, done, budgets, outcome in (
        ("en", "queues changed", ("red: $5.00", "blue: no limit"), ("done", "not allowed")),
        (
            "de",
            "Warteschlangen geändert",
            ("red: 5,00\N{NO-BREAK SPACE}$", "blue: ohne Grenze"),
            ("erledigt", "nicht erlaubt"),
        ),
    ):
        html = op.get("/operate", headers={"accept-language": code}).text
        assert f'<span title="queues.set">{done}</span>' in html
        assert all(f">{each}</td>" in html for each in outcome)
        assert all(f"<bdi>{each}</bdi>" in html for each in budgets)


def test_whatever_the_audit_log_may_hold_has_words() -> None:
    sources = "\n".join(path.read_text() for path in Path("src/brimful/server").rglob("*.py"))
    called = re.findall(r'(?:audited|note|_operating)\(\s*who, "([a-z_.]+)"', sources)
    changed = [f"job.{verb}" for verb in re.findall(r'_changed\(\s*who, "([a-z]+)"', sources)]
    assert len(called) > 10 < len(called) + len(changed)
    for verb in (*called, *changed):
        code = f"console.deed_{verb.replace('.', '_')}"
        assert language("en").text(say(code)) != code


def test_a_sizing_curve_leaves_out_what_was_rehearsed_over_other_days() -> None:
    def table(nodes: int, since_s: int, delay_s: int | None) -> dict[str, Any]:
        found = {"policy": "brim", "mean_delay_s": delay_s}
        return {"nodes": nodes, "since_s": since_s, "until_s": 9, "candidates": [found]}

    shape = size_shape([table(-2, 0, 400), table(0, 5, 1), table(2, 0, 100)])
    assert shape is not None
    assert (shape["ends"], shape["top_s"]) == ((-2, 2), 400)
    assert [each["line"] for each in shape["curves"]] == ["0.0,4.0 1000.0,76.0"]
    assert size_shape([table(0, 5, 1), table(2, 0, 100)]) is None
    assert size_shape([table(-2, 0, None), table(2, 0, 100)]) is None


def test_a_teams_spend_by_the_end_of_the_month_needs_no_budget(desk: Desk) -> None:  # noqa: F811
    busy(desk)
    spend = data(desk, "/v1/spend")
    until_s = spend["month_until_s"]
    since_s = period_at(desk.now_s, "monthly", "UTC")[0]
    assert since_s < desk.now_s < until_s == period_at(desk.now_s, "monthly", "UTC")[1]
    for team, each in spend["month"].items():
        running = sum(
            job["cost_microusd"] - job["posted_microusd"]
            for job in data(desk, "/v1/jobs")["jobs"]
            if job["tenant"] == team and job["ended_s"] is None
        )
        assert each["spent_microusd"] == spend["by_tenant"].get(team, 0) + running > 0
        frac = (until_s - since_s) / (desk.now_s - since_s)
        assert each["expected_microusd"] == pytest.approx(each["spent_microusd"] * frac, rel=1e-3)
    assert set(spend["month"]) == {"red", "blue"}
    page = words(desk.html("/teams"))
    for each in spend["month"].values():
        assert usd(each["expected_microusd"]) in page
    assert "Share owed" not in page, "this policy owes no shares"


def test_under_fair_each_queue_has_its_weight_and_shares(desk: Desk) -> None:  # noqa: F811
    busy(desk)
    desk.service.submissions.set_queues((Quota(queue="red", gpus=0, weight=3.0),), by="op")
    assert {each["share_owed"] for each in data(desk, "/v1/queues")["queues"]} == {None}
    desk.service.reader.configured_rules = Rules(order="fair")
    queues = {each["queue"]: each for each in data(desk, "/v1/queues")["queues"]}
    assert {name: each["share_owed"] for name, each in queues.items()} == {"red": 0.75, "blue": 0.25}
    assert sum(each["share_used"] for each in queues.values()) == pytest.approx(1.0)
    page = words(desk.html("/teams"))
    for each in queues.values():
        assert language("en").text(Percent(each["share_owed"])) in page
        assert language("en").text(Percent(each["share_used"])) in page


def test_the_timeline_of_a_job_has_its_notices_from_the_events(desk: Desk) -> None:  # noqa: F811
    busy(desk)
    at_s = desk.now_s - 600
    desk.write(
        NoticeGiven(at_s=at_s, lease="job-2.1", until_s=at_s + 120, reason=verbatim("outbid")),
        NoticeWithdrawn(at_s=at_s + 60, lease="job-2.1"),
        LeaseEnding(at_s=at_s + 300, lease="job-2.1", reason=verbatim("moved"), requeue=True),
    )
    (lease,) = data(desk, "/v1/jobs/job-2")["leases"]
    assert lease["notices"] == [
        {"at_s": at_s, "told": "leave", "until_s": at_s + 120},
        {"at_s": at_s + 60, "told": "stay", "until_s": None},
        {"at_s": at_s + 300, "told": "stop", "until_s": None},
    ]
    page = desk.html("/jobs/job-2")
    steps = re.findall(r'<li class="notice">(.*?)</li>', page)
    assert len(steps) == 3
    assert f"{datetime.fromtimestamp(at_s + 120, UTC):%H:%M:%S} UTC" in steps[0]
    assert "stop requested" in steps[2]


def test_a_job_has_its_predicted_mfu_beside_the_measured_one_or_says_that_there_is_none(
    desk: Desk,  # noqa: F811
) -> None:
    for mfu in (0.37, None):
        body: dict[str, Any] = {"command": ["true"], "folder": "/"}
        given = {"peak_bytes": 1 << 30, "step_s": 0.5} | ({} if mfu is None else {"mfu": mfu})
        made = desk.client.post("/v1/jobs", json=body | {"predicted": {"rtx-4070": given}}).json()["data"]
        assert made["predicted"]["rtx-4070"]["mfu"] == mfu
        page = words(desk.html(f"/jobs/{made['job']}"))
        assert ("37 %" in page) == (mfu is not None)
        assert ("not predicted" in page) == (mfu is None)
