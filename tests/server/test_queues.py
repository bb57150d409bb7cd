"""Queues with quotas and limits, set while the server runs: in the log, obeyed, told with numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from brimful.adapters.stores.sql import SqlStore
from brimful.client.queues import read_queues
from brimful.client.shown import STUCK
from brimful.errors import BadInput, WorldFailed
from brimful.fleet.queues import Quota
from brimful.language import say, told, verbatim
from brimful.market.pools import market_of
from brimful.market.spot import Terms
from brimful.scheduler.policies import read_policy
from brimful.scheduler.ports import Failures, Observation, Start
from brimful.server.app import make_app
from brimful.server.run.queues_file import queues_of
from brimful.server.service.service import Service
from tests.builders import ScriptedEngine, a_node, refuses
from tests.server.builders import an_access, bearer
from tests.server.live import live


class Obedient(ScriptedEngine):
    """Whatever is started runs until it is stopped."""

    def start(self, starts: Sequence[Start]) -> Failures:
        for each in starts:
            seen = Observation(lease=each.lease, state="running", started_s=1_800_000_000)
            self.sees.setdefault(each.lease, seen)
        return {}

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        for lease in leases:
            self.sees[lease] = Observation(
                lease=lease, state="ended", started_s=1_800_000_000, exit_code=0, cause="stopped_by_us"
            )
        return {}


class Office:
    """A fleet of 8 GPUs whose jobs never end by themselves."""

    def __init__(self, folder: Path, policy: str, *, market: str = "") -> None:
        self.url = f"sqlite:///{folder / 'log.db'}"
        self.store = SqlStore(self.url)
        self.now_s = 1_800_000_000
        nodes = [a_node("new", gpus=4, gpu="h100"), a_node("old", gpus=4, gpu="a100")]
        self.engine = Obedient(*nodes)
        self.service = Service(
            self.store,
            [self.engine],
            read_policy(policy).rules,
            market=market_of(market, nodes, Terms(period_s=1)),
            clock=lambda: self.now_s,
        )
        self.access = an_access(self.store)
        self.http = TestClient(make_app(self.service, self.access), base_url="http://127.0.0.1")
        self.operator = bearer(self.access)
        self.service.driver.tick()

    def close(self) -> None:
        self.access.close()
        self.store.close()

    def put(self, *queues: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        return self.http.put("/v1/queues", json={"queues": queues}, headers=headers or self.operator)

    def submit(self, tenant: str, user: str = "ann", **more: Any) -> Any:
        text, _ = self.access.issue(name=user, tenant=tenant, role="submitter")
        body = {"command": ["true"], "folder": "/", **more}
        return self.http.post("/v1/jobs", json=body, headers={"authorization": f"Bearer {text}"})

    def job(self, tenant: str, user: str = "ann", **more: Any) -> str:
        made = self.submit(tenant, user, **more)
        assert made.status_code == 201, made.text
        name: str = made.json()["data"]["job"]
        return name

    def decide(self) -> None:
        for _ in range(4):
            self.now_s += 1
            self.service.driver.tick()

    def phase(self, job: str) -> str:
        return self.service.reader.job(job).phase

    def why(self, job: str) -> dict[str, Any]:
        found = self.http.get(f"/v1/jobs/{job}", headers=self.operator).json()["data"]["why_code"]
        assert found is not None
        return dict(found)


POLICIES = ["priority", "fair", "brim?types=cheap", "las", "srpt", "bid"]


@pytest.fixture(params=POLICIES)
def office(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Office]:
    office = Office(tmp_path, request.param)
    yield office
    office.close()


@pytest.fixture
def one_office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path, "priority")
    yield office
    office.close()


def test_one_user_holds_no_more_than_its_queue_allows_and_the_others_go_on(office: Office) -> None:
    assert office.put({"queue": "red", "gpus": 8, "user_gpus": 2}).status_code == 200
    mine = [office.job("red", "ann") for _ in range(4)]
    others = [office.job("red", "ben") for _ in range(2)]
    office.decide()
    assert [office.phase(job) for job in mine] == ["running"] * 2 + ["waiting"] * 2
    assert [office.phase(job) for job in others] == ["running"] * 2
    why = office.why(mine[2])
    assert why == {"code": "scheduler.user_limit"} | {
        "queue": "red", "user": "ann", "held": 2, "gpus": 1, "most": 2,
    }  # fmt: skip
    office.http.post(f"/v1/jobs/{mine[0]}/cancel", headers=office.operator)
    office.decide()
    assert office.phase(mine[2]) == "running"


def test_a_queue_holds_no_more_of_a_type_than_it_is_allowed(office: Office) -> None:
    office.put({"queue": "red", "gpus": 8, "type_gpus": {"h100": 1}})
    any_type = [office.job("red") for _ in range(5)]
    only_new = [office.job("red", gpu_types=["h100"]) for _ in range(2)]
    office.decide()
    leases = [office.service.reader.job(job).open_lease for job in (*any_type, *only_new)]
    held = [lease.gpu for lease in leases if lease is not None]
    assert held.count("h100") == 1
    assert held.count("a100") == 4
    waits = [job for job in only_new if office.phase(job) == "waiting"]
    why = office.why(waits[-1])
    assert why["code"] == "scheduler.type_limit"
    assert (why["queue"], why["gpu"], why["held"], why["gpus"], why["most"]) == ("red", "h100", 1, 1, 1)


def test_limits_hold_where_bids_decide(tmp_path: Path) -> None:
    office = Office(tmp_path, "priority", market="all")
    office.put({"queue": "red", "gpus": 8, "user_gpus": 2, "type_gpus": {"h100": 1}})
    mine = [office.job("red", "ann", gpu_types=["a100"]) for _ in range(4)]
    others = [office.job("red", "ben", gpu_types=["h100"]) for _ in range(2)]
    office.decide()
    assert sorted(office.phase(job) for job in mine) == ["running"] * 2 + ["waiting"] * 2
    assert sorted(office.phase(job) for job in others) == ["running", "waiting"]
    why = [office.why(job)["code"] for job in (*mine, *others) if office.phase(job) == "waiting"]
    assert why == ["scheduler.user_limit"] * 2 + ["scheduler.type_limit"]
    office.close()


def test_a_quota_that_is_raised_while_it_runs_lets_the_next_job_start(office: Office) -> None:
    both = {"queue": "red", "gpus": 2, "borrow_gpus": 0}, {"queue": "blue", "gpus": 6, "lend": False}
    office.put(*both)
    jobs = [office.job("red", gpus=2), office.job("red", gpus=2)]
    office.decide()
    assert [office.phase(job) for job in jobs] == ["running", "waiting"]
    assert office.why(jobs[1])["code"] == "scheduler.may_not_borrow"
    office.put(both[0] | {"gpus": 4}, both[1] | {"gpus": 4})
    office.decide()
    assert office.phase(jobs[1]) == "running"
    office.put()  # nobody has a quota any more
    assert office.service.reader.fleet.queues == ()


def test_what_was_set_is_in_the_log_and_the_next_start_knows_it(one_office: Office) -> None:
    queue = {"queue": "red", "gpus": 2, "weight": 2.5, "type_gpus": {"h100": 1}, "tenants": ["red", "pink"]}
    one_office.put(queue)
    one_office.put(queue)  # the same again is no news
    records = one_office.store.records(0, 100)
    (event,) = [each for each in records if each["kind"] == "QueuesSet"]
    assert event["body"]["by"] == "operator of *"
    one_office.store.close()
    again = Service(SqlStore(one_office.url), [], read_policy("fair").rules)
    again.driver.load()
    again.reader.refresh()
    (known,) = again.reader.fleet.queues
    assert known == Quota(queue="red", gpus=2, weight=2.5, type_gpus=(("h100", 1),), tenants=("red", "pink"))


def test_a_job_that_its_queue_never_takes_is_refused_with_numbers(one_office: Office) -> None:
    red = {"user_gpus": 2, "top_priority": "normal", "type_gpus": {"h100": 1}}
    common: dict[str, Any] = {"gpus": 1, "tenants": ["red", "blue"]}
    assert one_office.submit("red", queue="nobodys").status_code == 409  # also before anybody set one
    shut = {"queue": "shut", "gpus": 1, "borrow_gpus": 2, "tenants": ["pink"]}
    one_office.put({"queue": "red", **red}, {"queue": "blue", "gpus": 1}, {"queue": "common", **common}, shut)
    assert one_office.submit("pink", queue="shut", gpus=3).status_code == 201
    never = one_office.submit("pink", queue="shut", gpus=4).json()["error"]
    limits = {"queue": "shut", "gpus": 4, "most": 3, "own": 1, "borrows": 2}
    assert (never["code"], never["reason"]) == ("above_limit", {"code": "server.above_queue", **limits})
    for body, code, values in (
        ({"gpus": 3}, "server.above_user_gpus", {"gpus": 3, "most": 2}),
        ({"gpu_types": ["h100"], "gpus": 2}, "server.above_type_gpus", {"gpu": "h100", "gpus": 2, "most": 1}),
        ({"priority": "urgent"}, "server.above_top_priority", {"top": "normal", "priority": "urgent"}),
        ({"queue": "blue"}, "server.not_your_queue", {"tenant": "red", "yours": "red, common"}),
        ({"queue": "nobodys"}, "server.not_your_queue", {"tenant": "red", "yours": "red, common"}),
    ):
        answer = one_office.submit("red", **body)
        assert answer.status_code == 409, answer.text
        reason = answer.json()["error"]["reason"]
        assert reason["code"] == code
        assert values.items() <= reason.items()
    assert one_office.submit("red", priority="background").status_code == 201
    mays: tuple[dict[str, Any], ...] = ({"gpu_types": ["h100", "a100"]}, {})
    for may in mays:  # one of its types, or one that comes later, has room
        assert one_office.submit("red", gpus=2, **may).status_code == 201


def test_a_job_above_each_types_limit_is_said_to_wait_for_ever(one_office: Office) -> None:
    one_office.put({"queue": "red", "gpus": 4, "type_gpus": {"h100": 1, "a100": 2}})
    both, one_too_many = one_office.job("red", gpus=2), one_office.job("red", gpus=3)
    later = one_office.job("red", gpus=2)
    one_office.decide()
    assert one_office.phase(both) == "running"
    never, wait = one_office.why(one_too_many), one_office.why(later)
    limit = {"queue": "red", "gpu": "a100", "gpus": 3, "most": 2}
    assert never == {"code": "scheduler.above_queue_type", **limit}
    assert never["code"].startswith(STUCK)
    assert wait["code"] == "scheduler.type_limit", "room for it will be free when the first ends"


def test_an_operator_is_told_what_the_fleet_has_too_little_of(one_office: Office) -> None:
    red: dict[str, Any] = {"queue": "red", "gpus": 5, "type_gpus": {"h100": 1, "h200": 2}}
    shown = one_office.put(red, {"queue": "blue", "gpus": 4}).json()["data"]["queues"]
    too_many = told(say("server.quotas_above_fleet", promised=9, has=8))
    not_there = told(say("server.queue_type_not_there", queue="red", gpu="h200", has="a100, h100"))
    assert {each["queue"]: each["notes"] for each in shown} == {
        "red": [too_many, not_there],
        "blue": [too_many],
    }
    checked = one_office.http.post("/v1/queues/check", json={"queues": [red]}, headers=one_office.operator)
    assert checked.json()["data"]["queues"][0]["notes"] == [not_there]
    team = one_office.http.get("/v1/queues", headers=bearer(one_office.access, "admin", "red"))
    assert [each["notes"] for each in team.json()["data"]["queues"]] == [[]], "it would tell of other teams"


def test_a_type_that_nobody_knows_is_refused_with_those_of_the_fleet(one_office: Office) -> None:
    for asked, near in (("zz9", ""), ("h10", "h100"), ("rtx-4071", "rtx-4070")):
        answer = one_office.submit("red", gpu_types=["a100", asked])
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["reason"]["name"]) == (404, "unknown_gpu", asked)
        assert "a100, h100" in error["hint"]
        assert near in error["hint"]
    for real in ("rtx-4070", "v100"):  # one card that may be bought some day, and a name of several
        one_office.job("red", gpu_types=["a100", real])


def test_a_site_that_does_not_answer_may_have_a_type_that_nobody_knows(one_office: Office) -> None:
    one_office.engine.broken = WorldFailed(verbatim("away"))
    one_office.decide()
    one_office.job("red", gpu_types=["zz9"])
    assert one_office.submit("red", gpu_types=["h10"]).status_code == 404, "surely a slip, here too"


def test_a_team_sees_its_own_queue_and_only_the_operator_all(one_office: Office) -> None:
    one_office.put({"queue": "red", "gpus": 2}, {"queue": "common", "gpus": 3, "tenants": ["red", "blue"]})
    admin = bearer(one_office.access, "admin", "red")
    assert one_office.put(headers=admin).status_code == 403
    found = one_office.http.get("/v1/queues", headers=admin).json()["data"]["queues"]
    assert {row["queue"]: row["set"]["gpus"] for row in found} == {"red": 2, "common": 3}
    assert "blue" not in str(found)
    blue = bearer(one_office.access, "admin", "blue")
    for path in ("/v1/queues", "/v1/events"):
        assert '"red"' not in one_office.http.get(path, headers=blue).text
    assert "QueuesSet" in one_office.http.get("/v1/events", headers=one_office.operator).text


def test_under_fair_a_queue_of_twice_the_weight_goes_first_until_it_has_had_twice_as_much(
    tmp_path: Path,
) -> None:
    office = Office(tmp_path, "fair")
    office.put({"queue": "red", "weight": 2.0}, {"queue": "blue"})
    jobs = [office.job(tenant) for _ in range(8) for tenant in ("blue", "red")]
    office.decide()
    # Both have had nothing: the first come start. From here on one GPU at a time is given back.
    for _ in range(6):
        office.now_s += 3600
        first = next(job for job in jobs if office.phase(job) == "running")
        office.http.post(f"/v1/jobs/{first}/cancel", headers=office.operator)
        office.decide()
    usage = office.service.reader.fleet.usage
    assert usage["red"].held > usage["blue"].held
    office.close()


def test_a_queue_is_part_of_another_that_is_there(one_office: Office) -> None:
    answer = one_office.put({"queue": "red", "parent": "all"})
    assert answer.status_code == 400
    assert answer.json()["error"]["reason"]["code"] == "fleet.no_parent"
    one_office.put({"queue": "blue"}, {"queue": "red", "parent": "blue"})
    rows = one_office.http.get("/v1/queues", headers=one_office.operator).json()["data"]["queues"]
    assert {row["queue"]: row["set"]["parent"] for row in rows} == {"red": "blue", "blue": ""}
    red = one_office.http.get("/v1/queues", headers=bearer(one_office.access, "admin", "red"))
    assert "blue" not in red.text, "another team's name"


def test_a_file_of_queues_is_read_as_the_api_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "queues.toml"
    path.write_text('[red]\ngpus = 4\nuser_gpus = 2\ntype_gpus = { h100 = 1 }\n["a b"]\nlend = false\n')
    assert queues_of(str(path)) == (
        Quota(queue="red", gpus=4, user_gpus=2, type_gpus=(("h100", 1),)),
        Quota(queue="a b", gpus=0, lend=False),
    )
    for text, why in (
        ("[red\n", "line 1"),
        ("gpus = 4", "gpus"),
        ("[red]\ngpus = -1", "[red] gpus"),
        ("[red]\ngpu = 1", "[red] gpu"),
        ("[red]\nqueue = 'blue'", "red"),
        ("[red]\ntop_priority = 'asap'", "[red] top_priority"),
        ("[red]\nparent = 'blue'", "blue"),
    ):
        path.write_text(text)
        with refuses(BadInput, "client.bad_queues_file") as caught:
            queues_of(str(path))
        assert why in caught.value.problem
    path.unlink()
    with pytest.raises(Exception, match="cannot read"):
        read_queues(path)


def test_commands_and_the_file_at_the_start_set_them(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("[default]\ngpus = 1\nuser_gpus = 1\n")
    second.write_text("[default]\ngpus = 2\nborrow_gpus = 0\n")
    with live(tmp_path / "data", "--slots", "2", "--queues", str(first)) as server:
        (row,) = server.ask("fleet", "queues")["queues"]
        assert (row["quota_gpus"], row["set"]["user_gpus"]) == (1, 1)
        server.ask("fleet", "queues", "--set", str(second), "--dry-run")
        (row,) = server.ask("fleet", "queues", "--set", str(second))["queues"]
        assert (row["quota_gpus"], row["set"]["borrow_gpus"]) == (2, 0)
        assert "borrows nothing" in server.read("fleet", "queues")


def test_a_dry_run_is_refused_what_the_real_run_is_refused(one_office: Office) -> None:
    one_office.put({"queue": "red", "gpus": 2, "borrow_gpus": 0})
    text, _ = one_office.access.issue(name="ann", tenant="red", role="submitter")
    viewer, _ = one_office.access.issue(name="eve", tenant="red", role="viewer")
    job = {"command": ["true"], "folder": "/"}

    def refused(token: str = text, **more: Any) -> list[tuple[str, int]]:
        headers = {"authorization": f"Bearer {token}"}
        found = one_office.http.post("/v1/jobs/check", json={"job": job | more}, headers=headers).json()[
            "data"
        ]
        real = one_office.http.post("/v1/jobs", json=job | more, headers=headers)
        problems = [(each["code"], each["status"]) for each in found["problems"]]
        assert problems == ([] if real.is_success else [(real.json()["error"]["code"], real.status_code)])
        return problems

    assert refused() == []
    assert refused(gpus=3) == [("above_limit", 409)]
    assert refused(after=["job-999"]) == [("not_found", 404)]
    assert refused(sites=["nowhere"]) == [("not_found", 404)]
    assert refused(token=viewer) == [("forbidden", 403)]
    for path, body in (("jobs/check", {"job": job | {"tenant": "blue"}}), ("jobs", job | {"tenant": "blue"})):
        headers = {"authorization": f"Bearer {text}"}
        error = one_office.http.post(f"/v1/{path}", json=body, headers=headers).json()["error"]
        assert error["problem"] == "your token is for red, not for team 'blue'"


def test_a_site_nobody_configured_is_refused_and_the_likely_one_named(one_office: Office) -> None:
    site = one_office.engine.site
    answer = one_office.submit("red", sites=[f"{site}x"])
    error = answer.json()["error"]
    assert (answer.status_code, error["reason"]["code"]) == (404, "server.no_site")
    assert error["hint"] == told(say("server.hint_site", near=site, sites=site))
    assert one_office.submit("red", sites=[site]).status_code == 201


def test_a_queues_file_is_checked_by_a_dry_run_and_a_slip_named(one_office: Office) -> None:
    def check(*queues: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        body = {"queues": list(queues)}
        return one_office.http.post("/v1/queues/check", json=body, headers=headers or one_office.operator)

    red = {"queue": "red", "gpus": 2, "parent": "org", "weight": 2}
    assert check(red).json()["error"]["reason"]["code"] == "fleet.no_parent"
    assert check({"queue": "red", "user_gpu": 2}).json()["error"]["hint"] == told(
        say("server.hint_queue_slip", near="user_gpus")
    )
    assert "openapi" not in check({"queue": "red", "gpus": "two"}).json()["error"]["hint"]
    _, idle = check({"queue": "org"}, red).json()["data"]["queues"]
    assert idle == {"queue": "red", "without_effect": ["weight", "parent"], "notes": []}
    assert check(red, headers=bearer(one_office.access, "admin", "red")).status_code == 403
    assert one_office.service.reader.fleet.queues == (), "nothing was set"


@pytest.mark.parametrize(("policy", "idle"), [("fair", []), ("brim", ["weight", "parent"])])
def test_settings_that_the_policy_ignores_are_named(tmp_path: Path, policy: str, idle: list[str]) -> None:
    office = Office(tmp_path, policy)
    shown = office.put({"queue": "org"}, {"queue": "red", "parent": "org", "weight": 2}).json()["data"][
        "queues"
    ]
    assert {each["queue"]: each["without_effect"] for each in shown} == {"org": [], "red": idle}
    office.close()


def test_who_forgets_the_prefix_of_a_job_is_told_its_name(one_office: Office) -> None:
    one_office.job("red")
    hint = one_office.http.get("/v1/jobs/1", headers=one_office.operator).json()["error"]["hint"]
    assert hint == told(say("server.hint_job_number", name="job-1"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"weight": 0}, "weight: must be at least 0.001"),
        ({"gpus": "two"}, "gpus: must be a whole number"),
        ({"lend": "never"}, "lend: must be true or false"),
        ({"tenants": "red"}, "tenants: must be a list"),
        ({"type_gpus": 3}, "type_gpus: must be a table"),
        ({"parent": 3}, "parent: must be text in quotes"),
        ({"top_priority": "high"}, "top_priority: must be urgent, normal or background"),
    ],
)
def test_a_slip_in_a_queues_file_is_said_in_plain_words(
    one_office: Office, wrong: dict[str, Any], said: str
) -> None:
    body = {"queues": [{"queue": "red", "gpus": 1} | wrong]}
    answer = one_office.http.post("/v1/queues/check", json=body, headers=one_office.operator)
    assert answer.json()["error"]["problem"] == f"[red] {said}"
