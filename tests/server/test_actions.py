"""A job's page acts as the API does: for the same people, and only when a form of ours asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.testclient import TestClient

from brimful.server.auth import form_key
from tests.server.live import live
from tests.server.test_auth import House, a_browser, form_key_on, house  # noqa: F401 - a fixture
from tests.server.test_console import HOSTILE, PATIENCE_MS, browser  # noqa: F401 - a fixture


def signed_in(house: House, role: str, tenant: str, name: str) -> TestClient:  # noqa: F811
    text, _ = house.access.issue(name=name, tenant=tenant, role=role)
    client = a_browser(house)
    assert client.post("/console/enter", data={"token": text}, follow_redirects=False).status_code == 303
    return client


def act(client: TestClient, job: str, verb: str, **fields: str) -> tuple[int, str]:
    key = form_key(next(iter(client.cookies.values())))
    form = {"form_key": key, "verb": verb, **fields}
    answer = client.post(f"/jobs/{job}/act", data=form, follow_redirects=False)
    return answer.status_code, answer.text


def phase(house: House, job: str) -> str:  # noqa: F811
    return house.service.reader.job(job).phase


def test_an_admin_of_the_team_holds_releases_and_cancels(house: House) -> None:  # noqa: F811
    client = signed_in(house, "admin", "red", "ann")
    assert act(client, house.job, "hold", sure="yes", reason="fans")[0] == 303
    assert phase(house, house.job) == "held"
    assert "fans" in client.get(f"/jobs/{house.job}").text
    assert act(client, house.job, "release")[0] == 303
    assert phase(house, house.job) == "waiting"
    assert act(client, house.job, "cancel")[0] == 400, "nobody confirmed it"
    assert phase(house, house.job) == "waiting"
    assert act(client, house.job, "cancel", sure="yes")[0] == 303
    assert phase(house, house.job) == "cancelled"
    status, page = act(client, house.job, "cancel", sure="yes")
    assert (status, 'role="alert"' in page) == (409, True)
    house.access.close()  # what was noted is written
    deeds = house.http.get("/v1/audit", headers=house.operator).text
    assert all(f"job.{verb}" in deeds for verb in ("hold", "release", "cancel"))


def test_a_move_and_a_bid_answer_as_the_api_does(house: House) -> None:  # noqa: F811
    client = signed_in(house, "admin", "red", "ann")
    assert act(client, house.job, "move", sure="yes", site="here")[0] == 303
    assert house.service.reader.job(house.job).job.sites == ("here",)
    assert act(client, house.job, "move", sure="yes", site="nowhere")[0] == 404
    assert act(client, house.job, "bid", usd="2.50")[0] == 303
    assert house.service.reader.job(house.job).job.limit_microusd_per_gpu_hour == 2_500_000
    assert (
        act(client, house.job, "terms", priority="urgent", deadline="2100-01-02T03:04", zone_min="-60")[0]
        == 303
    )
    changed = house.service.reader.job(house.job).job
    assert (changed.priority, changed.deadline_s) == ("urgent", 4102545840 - 3600)
    assert house.service.reader.fleet.due[house.job].job == changed
    assert act(client, house.job, "terms", priority="background", clears="yes")[0] == 303
    changed = house.service.reader.job(house.job).job
    assert (changed.priority, changed.deadline_s) == ("background", None)
    assert house.job not in house.service.reader.fleet.due
    for bad in ({"priority": "first"}, {"deadline": "soon"}, {"deadline": "1999-01-01T00:00"}):
        assert act(client, house.job, "terms", **bad)[0] == 400
    for nonsense in ("a lot", "-1", "0", "1e99"):
        assert act(client, house.job, "bid", usd=nonsense)[0] in (400, 422)
    assert act(client, house.job, "explode")[0] == 400


def test_it_runs_again_with_changes_as_a_job_of_whoever_asks(house: House) -> None:  # noqa: F811
    client = signed_in(house, "submitter", "red", "sam")
    answer = act(client, house.job, "again", name="once more", gpus="1", priority="background")
    assert answer[0] == 303
    first, again = (house.service.reader.job(name).job for name in (house.job, "job-2"))
    assert (again.command, again.folder, again.queue) == (first.command, first.folder, first.queue)
    assert (again.name, again.gpus, again.priority) == ("once more", 1, "background")
    assert (again.user, again.tenant, again.budget_microusd) == ("sam", "red", first.budget_microusd)
    assert act(client, house.job, "again", name="x", gpus="0")[0] == 400
    assert act(client, house.job, "again", name="x\x00", gpus="1")[0] == 400


def test_who_may_only_look_is_offered_nothing_and_refused(house: House) -> None:  # noqa: F811
    for role, name in (("viewer", "vic"), ("submitter", "sue")):  # whose job it is not
        client = signed_in(house, role, "red", name)
        assert 'class="actions"' not in client.get(f"/jobs/{house.job}").text
        assert act(client, house.job, "cancel", sure="yes")[0] == 403
    assert act(signed_in(house, "viewer", "red", "vic"), house.job, "again", gpus="1")[0] == 403
    assert phase(house, house.job) == "waiting"


def test_another_teams_job_and_none_at_all_are_not_there_in_the_same_words(house: House) -> None:  # noqa: F811
    client = signed_in(house, "admin", "blue", "bob")
    for verb in ("cancel", "hold", "release", "move", "bid", "terms", "again"):
        theirs = act(client, house.job, verb, sure="yes", gpus="1")
        nobodys = act(client, "job-99", verb, sure="yes", gpus="1")
        assert theirs[0] == nobodys[0] == 404
        assert theirs[1].replace(house.job, "job-99") == nobodys[1]
    assert house.service.reader.fleet.seq == house.seq


def test_only_a_form_of_this_session_acts(house: House) -> None:  # noqa: F811
    client, other = (signed_in(house, "admin", "red", name) for name in ("ann", "amy"))
    key = form_key_on(other.get("/").text)
    form = {"verb": "cancel", "sure": "yes"}
    path = f"/jobs/{house.job}/act"
    assert client.post(path, data=form).status_code == 403
    assert client.post(path, data=form | {"form_key": key}).status_code == 403
    own = form | {"form_key": form_key_on(client.get("/").text)}
    assert client.post(path, data=own, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert house.http.post(path, data=own, headers=house.red).status_code == 403, "a token is no session"
    session = {"authorization": f"Bearer {next(iter(client.cookies.values()))}"}
    assert house.http.post(f"/v1/jobs/{house.job}/cancel", headers=session).status_code == 401
    assert house.service.reader.fleet.seq == house.seq


@pytest.mark.browser
def test_two_roles_of_two_teams_in_a_browser(tmp_path: Path, browser: Browser) -> None:  # noqa: F811
    with live(tmp_path / "data", "--slots", "1", "--jobs-share-my-user") as server:
        home = json.loads((server.data / "server.json").read_text())["url"]

        def token(name: str, tenant: str, role: str) -> str:
            made = server.ask("admin", "tokens", "add", name, "--tenant", tenant, "--role", role)
            return str(made["secret"])

        def enter(text: str, width: int) -> Page:
            context = browser.new_context(viewport={"width": width, "height": 800})
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.goto(home)
            page.fill("#token", text)
            page.get_by_role("button", name="Sign in").click()
            expect(page.locator(".corner")).to_be_visible()
            return page

        job = server.submit("--tenant", "red", command=["sleep", "600"])
        page = enter(token("ann", "red", "admin"), 390)
        page.goto(f"{home}/jobs/{job}")
        page.get_by_text("Hold …").click()
        page.get_by_label("Reason").fill(HOSTILE)
        page.get_by_role("button", name="Hold it").click()
        expect(page.locator(".head .chip")).to_have_text("held")
        assert page.title() != "owned"
        page.wait_for_load_state()  # of the stylesheet too
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_role("button", name="Release").click()
        page.get_by_text("Cancel …").click()
        page.get_by_role("button", name="Yes, cancel it").click()
        expect(page.locator(".head .chip")).to_have_text("cancelled")
        expect(page.get_by_text("Cancel …")).to_be_hidden()
        viewer = enter(token("vic", "red", "viewer"), 1440)
        viewer.goto(f"{home}/jobs/{job}")
        expect(viewer.locator(".head .chip")).to_have_text("cancelled")
        expect(viewer.locator(".actions")).to_have_count(0)
        blue = enter(token("bob", "blue", "admin"), 1440)
        blue.goto(f"{home}/jobs/{job}")
        expect(blue.locator("h2")).to_have_text("Not found")
