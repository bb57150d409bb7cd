"""Forms of market, teams and people do what the API allows, for the same people, by a form of ours alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from brimful.server.app import make_app
from brimful.server.auth import Principal, form_key
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
    ann, own = enter(demo, "ann", "vision", "admin"), demo.person("ann", "vision", "admin")
    lee = {"user": "lee", "team": "vision", "role": "viewer", "own": own}
    assert act(ann, "operate", "role", **lee)[0] == 400, "not confirmed"
    assert act(ann, "operate", "role", **lee, sure="yes")[0] == 303
    assert "lee" in ann.get("/operate").text
    for team, role in (("speech", "viewer"), ("vision", "operator"), ("*", "admin")):
        assert act(ann, "operate", "role", **{**lee, "team": team, "role": role}, sure="yes")[0] in (400, 403)
    assert act(ann, "operate", "role", **{**lee, "role": ""}, sure="yes")[0] == 303
    assert ">lee<" not in ann.get("/operate").text


def test_an_admin_makes_a_token_for_its_own_team_and_it_is_shown_once(demo: Demo) -> None:
    ann, own = enter(demo, "ann", "vision", "admin"), demo.person("ann", "vision", "admin")
    lin = {"user": "lin", "team": "vision", "role": "submitter", "days": "30", "own": own}
    assert act(ann, "operate", "token", **lin)[0] == 400, "not confirmed"
    for change in (
        {"team": "speech"}, {"team": "*"}, {"role": "operator"}, {"role": "boss"}, {"days": "91"},
        {"days": ""}, {"user": ""}, {"team": HOSTILE},
    ):  # fmt: skip
        assert act(ann, "operate", "token", **{**lin, **change}, sure="yes")[0] in (400, 403, 422), change
    assert "lin" not in {token.name for token in demo.access.tokens(operator())}
    status, page = act(ann, "operate", "token", **lin, sure="yes")
    (secret,) = re.findall(r"brim_[0-9a-f]{16}_[\w-]{43}", page)
    found = demo.access.look_up(secret)
    assert status == 200
    assert found is not None
    assert (found.name, dict(found.roles)) == ("lin", {"vision": "submitter"})
    assert secret not in ann.get("/operate").text
    (made,) = [token for token in demo.access.tokens(operator()) if token.name == "lin"]
    assert made.expires_s is not None
    assert made.expires_s - made.created_s == 30 * 86400


def operator() -> Principal:
    return Principal(token="", name="", roles={"*": "operator"})


def test_without_tls_a_session_alone_gives_nobody_anything(demo: Demo) -> None:
    """Whoever listens on another port of the host is sent the cookie, and must not rise by it."""
    ann, other = enter(demo, "ann", "vision", "admin"), demo.person("kim", "vision", "viewer")
    session = next(iter(ann.cookies.values()))
    for verb, fields in (("role", {}), ("token", {"days": "30"})):
        for own in ("", "brim_nonsense", other, session):
            given = {"user": "kim", "team": "vision", "role": "admin", "own": own, "sure": "yes", **fields}
            assert act(ann, "operate", verb, **given)[0] == 403, (verb, own)
    (kim,) = [user for user in demo.access.users(operator()) if user.user == "kim"]
    assert kim.roles["vision"] == "viewer"


def test_over_tls_the_session_is_enough(demo: Demo) -> None:
    app = make_app(demo.service, demo.access, secure=True)
    client = TestClient(app, base_url="https://127.0.0.1", follow_redirects=False)
    client.post("/console/enter", data={"token": demo.person("ann", "vision", "admin")})
    assert 'name="own"' not in client.get("/operate").text
    lou = {"user": "lou", "team": "vision", "role": "viewer", "days": "1", "sure": "yes"}
    assert act(client, "operate", "token", **lou)[0] == 200


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
