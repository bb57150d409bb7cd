"""Forms of market, teams and people do what the API allows, for the same people, by a form of ours alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from brimful.server.auth import form_key
from tests.server.test_console import HOSTILE
from tools.demo import Demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    made = Demo(tmp_path_factory.mktemp("demo"))
    yield made
    made.access.close()
    made.store.close()


def enter(demo: Demo, name: str, team: str, role: str) -> TestClient:
    client = TestClient(demo.app, base_url="http://127.0.0.1", follow_redirects=False)
    token = demo.person(name, team, role)
    assert client.post("/console/enter", data={"token": token}).status_code == 303
    return client


def act(client: TestClient, page: str, verb: str, **fields: str) -> tuple[int, str]:
    key = form_key(next(iter(client.cookies.values())))
    answer = client.post(f"/{page}/act", data={"form_key": key, "verb": verb, **fields})
    return answer.status_code, answer.text


WINDOW = {"pool": "campus|l40s|owned", "gpus": "1", "hours": "10", "team": "robotics"}


def test_nothing_is_bought_without_a_price_that_was_shown_and_still_holds(demo: Demo) -> None:
    kim = enter(demo, "kim", "robotics", "submitter")
    held = demo.service.reader.fleet.reservations
    status, page = act(kim, "market", "quote", **WINDOW)
    shown = re.search(r'name="at_most" value="(\d+)"', page)
    assert (status, shown is not None) == (200, True)
    assert shown is not None
    assert act(kim, "market", "buy", **WINDOW, at_most=shown[1])[0] == 400, "nobody confirmed it"
    assert act(kim, "market", "buy", **WINDOW, at_most="1", sure="yes")[0] == 409, "the price is another one"
    assert [*held.by_name] == ["r1"]
    assert act(kim, "market", "buy", **WINDOW, at_most=shown[1], sure="yes")[0] == 303
    assert held.by_name["r2"].tenant == "robotics"
    assert "Buy for" in act(kim, "market", "more", reservation="r2", hours="5")[1]
    assert act(kim, "market", "pause", reservation="r2", sure="yes")[0] == 303
    assert held.by_name["r2"].paused.gpus == 1


def test_what_another_team_reserved_is_not_there_and_who_may_only_look_buys_nothing(demo: Demo) -> None:
    kim, vic = enter(demo, "kim", "robotics", "submitter"), enter(demo, "vic", "robotics", "viewer")
    seq = demo.service.reader.fleet.seq
    assert "r1" not in re.findall(r'id="reserved-(\w+)"', kim.get("/market").text)
    for verb in ("pause", "return", "extend"):
        assert act(kim, "market", verb, reservation="r1", hours="5", sure="yes")[0] == 404
    assert act(kim, "market", "buy", **{**WINDOW, "team": "speech"}, sure="yes")[0] == 403
    assert act(vic, "market", "buy", **WINDOW, sure="yes")[0] == 403
    assert "/market/act" not in vic.get("/market").text
    assert kim.post("/market/act", data={"verb": "buy", **WINDOW, "sure": "yes"}).status_code == 403
    status, page = act(kim, "market", "quote", **{**WINDOW, "pool": HOSTILE})
    assert (status, "<script>document" in page) == (400, False)
    assert demo.service.reader.fleet.seq == seq


def test_a_budget_gets_a_period_a_parent_and_a_project_and_only_from_operators(demo: Demo) -> None:
    mara, ann = enter(demo, "mara", "*", "operator"), enter(demo, "ann", "vision", "admin")
    given = {"team": "vision/video", "usd": "200", "period": "monthly", "hard": "no", "sure": "yes"}
    assert act(ann, "teams", "budget", **given)[0] == 403
    assert act(mara, "teams", "budget", **given)[0] == 303
    made = demo.service.reader.fleet.purses.budgets["vision/video"]
    assert (made.within, made.period, made.hard) == ("vision", "monthly", False)
    page = mara.get("/teams").text
    names = re.findall(r'<th scope="row" class="depth-(\d)"><bdi>([\w/]+)</bdi>', page)
    assert names[:5] == [
        ("0", "lab"), ("1", "speech"), ("2", "speech/whisper"), ("1", "vision"), ("2", "vision/video"),
    ]  # fmt: skip
    assert "is not a team" in act(mara, "teams", "budget", team=HOSTILE, usd="1", sure="yes")[1]


def test_an_admin_gives_roles_in_its_own_team_alone(demo: Demo) -> None:
    ann = enter(demo, "ann", "vision", "admin")
    assert act(ann, "operate", "role", user="lee", team="vision", role="viewer")[0] == 400, "not confirmed"
    assert act(ann, "operate", "role", user="lee", team="vision", role="viewer", sure="yes")[0] == 303
    assert "lee" in ann.get("/operate").text
    for team, role in (("speech", "viewer"), ("vision", "operator"), ("*", "admin")):
        assert act(ann, "operate", "role", user="lee", team=team, role=role, sure="yes")[0] in (400, 403)
    assert act(ann, "operate", "role", user="lee", team="vision", role="", sure="yes")[0] == 303
    assert ">lee<" not in ann.get("/operate").text


def test_every_page_forbids_frames_and_scripts_that_are_not_ours(demo: Demo) -> None:
    mara = enter(demo, "mara", "*", "operator")
    for path in ("/", "/jobs", "/submit", "/fit", "/fleet", "/market", "/teams", "/audit", "/operate"):
        headers = mara.get(path).headers
        policy = headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"


def test_a_job_is_copied_into_the_form_by_who_may_see_it(demo: Demo) -> None:
    named = {state.job.name: state.job.job for state in demo.service.reader.fleet.jobs.values()}
    job = named["vit-h pretraining"]
    assert "configs/vit_h.yaml" in enter(demo, "tomas", "vision", "submitter").get(f"/submit?job={job}").text
    answer = enter(demo, "kim", "robotics", "submitter").get(f"/submit?job={job}")
    assert (answer.status_code, "vit_h" in answer.text) == (404, False)
