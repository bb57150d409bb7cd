"""A server rehearses its own past beside the loop, proposes or adopts what is better, and says why."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from bench.rehearsing import a_load
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import Refused, WorldFailed
from brimful.fleet.events import PolicyAdopted, PolicyRehearsed
from brimful.language import Seconds, language
from brimful.scheduler.policies import read_policy
from brimful.server.app import make_app
from brimful.server.auth import form_key
from brimful.server.rehearsing.rehearser import LOOK_S, RehearsalTerms, Rehearser
from brimful.server.rehearsing.worker import Question, answered
from brimful.server.service.service import Service
from brimful.sim.fleets import parse_fleet
from brimful.sim.world import SITE, rehearse
from brimful.units import DAY_S
from tests.builders import ScriptedEngine, a_job, eventually
from tests.server.builders import an_access, bearer
from tests.server.live import wait_for

NOW_S = DAY_S + 1800
BEFORE, POLICIES = "brim?known=0", ("brim", "srpt")


@pytest.fixture(scope="module")
def history() -> list[Any]:
    """A day on which it was a bad choice not to go by what users predict, and they predict well."""
    arrivals = a_load([(1.0, "good")], seed=3, gpus=8)
    log = rehearse(arrivals, parse_fleet("1x8"), read_policy(BEFORE).rules).log
    return [event for event in log if event.at_s < NOW_S]


class House:
    """A server with a day behind it. Nothing ticks but by hand."""

    def __init__(self, url: str, *, policy: str = BEFORE, adopts: bool = False, percent: int = 5) -> None:
        self.now_s = NOW_S
        self.store = SqlStore(url)
        engine = ScriptedEngine(*(replace(node, site=SITE) for node in parse_fleet("1x8")))
        terms = RehearsalTerms(database=url, policies=POLICIES, cpu_percent=percent, adopts=adopts)
        chosen = read_policy(policy)
        self.service = Service(
            self.store,
            [engine],
            chosen.rules,
            policy=chosen.text,
            rehearsal=terms,
            clock=lambda: self.now_s,
        )
        self.service.driver.load()
        self.service.reader.refresh()

    @property
    def rehearser(self) -> Rehearser:
        assert self.service.rehearser is not None
        return self.service.rehearser

    @property
    def policy(self) -> str:
        return self.service.reader.policy

    def last(self, kind: type) -> Any:
        return next((e for e in reversed(self.store.since(0)) if isinstance(e, kind)), None)

    def close(self) -> None:
        self.rehearser.close()
        self.store.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path, history: list[Any]) -> str:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'log.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    store = SqlStore(url)
    assert store.append(history, after=0)
    store.close()
    return url


@pytest.fixture
def house(tmp_path: Path, history: list[Any]) -> Iterator[House]:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    store = SqlStore(url)
    store.append(history, after=0)
    store.close()
    house = House(url)
    yield house
    house.close()


def test_it_adopts_what_is_better_and_a_restart_changes_nothing(url: str) -> None:
    house = House(url, adopts=True)
    house.rehearser.look()
    found: PolicyRehearsed = house.last(PolicyRehearsed)
    assert [each.policy for each in found.results] == [BEFORE, *POLICIES]
    assert found.jobs > 300
    assert found.cpu_ms > 0
    adopted: PolicyAdopted = house.last(PolicyAdopted)
    assert (adopted.policy, adopted.instead_of, adopted.by) == ("brim", BEFORE, "")
    assert house.policy == "brim"
    assert house.service.reader.rules.preempt == "index"
    house.service.driver.tick()  # the loop goes by it, and stops who is in the way
    assert any(event.at_s == NOW_S for event in house.store.since(found.jobs))
    house.close()

    again = House(url)
    assert again.policy == "brim"
    assert not again.rehearser.is_due(NOW_S)
    again.close()
    other = House(url, policy="fair")  # whoever starts it with another policy has decided again
    assert other.policy == "fair"
    other.close()


def test_it_only_proposes_unless_it_is_told_otherwise(house: House) -> None:
    house.rehearser.look()
    assert house.last(PolicyAdopted) is None
    assert house.policy == BEFORE
    access = an_access(house.store)
    client = TestClient(make_app(house.service, access), base_url="http://127.0.0.1")
    operator = bearer(access)
    found = client.get("/v1/policy", headers=operator).json()["data"]
    assert (found["policy"], found["proposal"], found["adopts"]) == (BEFORE, "brim", False)
    ours, brim, srpt = found["rehearsed"]["candidates"]
    assert (ours["policy"], ours["gain"]) == (BEFORE, None)
    assert brim["is_better"]
    assert brim["mean_jct_s"] < ours["mean_jct_s"]
    assert 0.1 < brim["least_gain"] < brim["gain"] < 1
    assert srpt["policy"] == "srpt"

    assert client.post("/v1/policy/adopt", headers=operator, json={"policy": "nonsense"}).status_code == 400
    done = client.post("/v1/policy/adopt", headers=operator, json={"policy": "brim"}).json()["data"]
    assert (done["policy"], done["configured"], done["since_s"]) == ("brim", BEFORE, NOW_S)
    assert done["by"] == house.last(PolicyAdopted).by != ""
    assert "fewer job-hours than brim?known=0" in done["reason"]
    submitted = house.service.submissions.submit(a_job("job-new"))
    why = client.get(f"/v1/jobs/{submitted.job.job}/why", headers=operator).json()["data"]
    assert why["policy"].startswith("brim for 0 s, adopted by")
    assert "instead of brim?known=0: over 24 h 00 min of the server's own past" in why["policy"]
    back = client.post("/v1/policy/adopt", headers=operator, json={"policy": BEFORE}).json()["data"]
    assert (back["policy"], back["since_s"]) == (BEFORE, None)
    assert house.service.reader.rules is not None

    viewer = bearer(access, role="viewer", tenant="default")
    assert client.get("/v1/policy", headers=viewer).status_code == 403
    assert client.post("/v1/policy/adopt", headers=viewer, json={"policy": "brim"}).status_code == 403


def test_anybody_who_may_can_ask_for_other_days_and_policies(house: House) -> None:
    rehearser = house.rehearser
    rehearser.ask(days=1, policies=["las"])
    with pytest.raises(Refused):
        rehearser.ask(days=1, policies=[])
    eventually(lambda: rehearser.asked is not None and not rehearser.asked.is_running)
    assert rehearser.asked is not None
    assert [each.policy for each in rehearser.asked.by_size()[0].results] == [BEFORE, "las"]
    assert house.last(PolicyRehearsed) is None  # that is for the server's own looks
    rehearser.adopt("las", by="olga")
    assert house.last(PolicyAdopted).reason.code == "server.evidence_against"


def test_a_share_of_a_core_is_all_it_takes(house: House) -> None:
    """Each rehearsal pays for the rest after it: 100 s at 5 % of a core are 2,000 s, and never below 3 h."""
    rehearser = house.rehearser
    assert rehearser.is_due(NOW_S)
    rehearser.look()
    found: PolicyRehearsed = house.last(PolicyRehearsed)
    rehearser._rest_until_s = 0  # as after a restart: the log says it all
    assert not rehearser.is_due(NOW_S + LOOK_S - 1)
    assert rehearser.is_due(NOW_S + LOOK_S)
    house.service.submissions.note(lambda: [replace(found, cpu_ms=1_000_000)])
    assert not rehearser.is_due(NOW_S + 20_000 - 1)
    assert rehearser.is_due(NOW_S + 20_000)


def test_the_kernel_ends_one_that_uses_more_than_it_may(url: str) -> None:
    policies = tuple(f"las?fresh_s={n}" for n in range(40))
    asked = Question(database=url, start_s=0, end_s=NOW_S, policies=policies, market=None, cpu_s=1)
    house = House(url)
    assert house.rehearser._answer(pickle.dumps(asked)) == b""
    house.close()


def test_nothing_comes_of_one_that_fails(house: House) -> None:
    """The server rests, and its log is as it was."""
    end = house.store.end()
    house.rehearser.terms = replace(house.rehearser.terms, cpu_percent=0)
    assert not house.rehearser.is_due(NOW_S)  # 0: only when somebody asks
    house.rehearser.terms = replace(
        house.rehearser.terms, cpu_percent=5, database="sqlite:////nowhere/log.db"
    )
    with pytest.raises(WorldFailed):
        house.rehearser.look()
    assert house.store.end() == end
    assert not house.rehearser.is_due(NOW_S + LOOK_S - 1)
    assert house.rehearser.is_due(NOW_S + LOOK_S)


def test_a_young_server_has_nothing_to_rehearse(tmp_path: Path) -> None:
    house = House(f"sqlite:///{tmp_path / 'log.db'}")
    assert not house.rehearser.is_due(NOW_S)
    house.service.submissions.submit(a_job("job-1"))
    assert not house.rehearser.is_due(NOW_S + DAY_S - 1)
    assert house.rehearser.is_due(NOW_S + DAY_S)
    house.close()


def test_the_worker_reads_no_further_than_it_is_asked(url: str) -> None:
    asked = Question(database=url, start_s=DAY_S // 2, end_s=DAY_S, policies=("fifo",), market=None, cpu_s=60)
    (found,) = answered(asked)
    assert (found.since_s, found.until_s) == (DAY_S // 2, DAY_S)


def test_what_if_is_seen_on_a_page_that_was_shown_in_the_same_second(house: House) -> None:
    """The clock stands still here: the live part of the page is the one that was shown before."""
    access = an_access(house.store)
    http = TestClient(make_app(house.service, access), base_url="http://127.0.0.1")
    text, _ = access.issue(name="ann", tenant="*", role="operator")
    session = access.session(text)
    assert session is not None
    http.cookies.set("brimful_session", session)
    wait_for(lambda: 'data-every="3600"' in http.get("/audit?live=1").text)
    form = {"days": "1", "nodes": "0", "policy1": "srpt", "form_key": form_key(session)}
    assert http.post("/audit/act", data=form, follow_redirects=False).status_code == 303
    page = http.get("/audit?live=1").text
    assert 'data-every="2"' in page or "<h3>" in page, "it is running, or over already"
    wait_for(lambda: "<h3>" in http.get("/audit?live=1").text)
    access.close()


def test_what_if_is_asked_on_the_page_of_audit_by_operators_alone(house: House) -> None:
    access = an_access(house.store)
    http = TestClient(make_app(house.service, access), base_url="http://127.0.0.1")
    operator = bearer(access)
    asked = {"days": "1", "nodes": "2 −1", "policy1": "srpt"}
    assert http.post("/audit/act", data=asked, headers=operator).status_code == 403, "a form has its key"
    text, _ = access.issue(name="ann", tenant="*", role="operator")
    session = access.session(text)
    assert session is not None
    http.cookies.set("brimful_session", session)
    form = {**asked, "form_key": form_key(session)}
    assert http.post("/audit/act", data={**form, "nodes": "x"}).status_code == 400
    assert http.post("/audit/act", data=form, follow_redirects=False).status_code == 303
    found = wait_for(lambda: http.get("/v1/policy").json()["data"]["what_if"])
    data = http.get("/v1/policy").json()["data"]
    assert [each["nodes"] for each in found] == [2, -1]
    assert [each["policy"] for each in found[0]["candidates"]] == [BEFORE, "srpt"]
    assert data["rehearsed"] is None, "with other nodes it says nothing about the policy to choose"
    page = http.get("/audit").text
    assert "<code>srpt</code>" in page
    assert page.index("1 node fewer <span") < page.index("2 nodes more <span"), "the smallest fleet first"
    top_s = max(each["mean_delay_s"] for table in found for each in table["candidates"])
    assert f'Mean delay by fleet size <span class="note">up to {language("en").text(Seconds(top_s))}' in page
    assert page.count('<polyline class="curve') == 2, "one curve per policy"
    text, _ = access.issue(name="bob", tenant="vision", role="admin")
    other = access.session(text)
    assert other is not None
    http.cookies.set("brimful_session", other)
    assert "/audit/act" not in http.get("/audit").text
    assert http.post("/audit/act", data={**asked, "form_key": form_key(other)}).status_code == 403
    access.close()
