"""The page of all jobs lists what the API lists, and acts on many as the API acts on one."""

from __future__ import annotations

import re
import time
from html import unescape
from typing import Any

import pytest
from starlette.testclient import TestClient

from brimful.adapters.identity.store import AccessStore
from brimful.adapters.stores.sql import SqlStore
from brimful.server.app import make_app
from brimful.server.auth import Access, form_key
from brimful.server.console.pages import Pages
from brimful.server.service.service import Service
from tests.server.builders import OPERATOR
from tests.server.test_actions import phase, signed_in
from tests.server.test_auth import House, house  # noqa: F401 - a fixture
from tests.server.test_console import Desk, desk  # noqa: F401 - a fixture
from tests.server.test_live_cost import MOST_BYTES, crowded  # noqa: F401 - a fixture


def listed(html: str) -> list[str]:
    return re.findall(r'<tr id="([^"]+)"', html)


def asked(desk: Desk, **query: Any) -> list[str]:  # noqa: F811
    answer = desk.client.get("/v1/jobs", params=query)
    assert answer.status_code == 200, answer.text
    return [job["job"] for job in answer.json()["data"]["jobs"]]


def test_jobs_are_found_by_any_of_their_words_and_sorted(desk: Desk) -> None:  # noqa: F811
    desk.service.driver.tick()
    desk.submit(name="bigram", tenant="red", gpus=9)
    desk.submit(command=("python", "sweep.py"), tenant="blue", gpus=11, priority="urgent")
    desk.submit(name="done", tenant="blue", user="ann")
    desk.service.submissions.cancel("job-3")
    assert asked(desk, text="BIGRAM") == ["job-1"]
    assert asked(desk, text="sweep.py") == ["job-2"]
    assert asked(desk, user="ann") == ["job-3"]
    assert asked(desk, order="next") == ["job-2", "job-1"], "as they are tried: the urgent one first"
    assert asked(desk, order="gpus") == ["job-2", "job-1"]
    assert asked(desk, order="cost", text="red") == ["job-1"]
    assert listed(desk.html("/jobs")) == ["job-2", "job-1"]
    assert listed(desk.html("/jobs?view=over")) == ["job-3"]
    assert listed(desk.html("/jobs?view=all&text=done")) == ["job-3"]
    assert listed(desk.html("/jobs?team=red")) == ["job-1"]
    assert desk.client.get("/jobs?view=nonsense&sort=nonsense&cursor=").status_code == 200
    assert desk.client.get("/jobs?cursor=nonsense").status_code == 400


def test_pages_follow_one_another_without_hole_or_double(
    desk: Desk,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("brimful.server.console.jobs_page.ROWS", 2)
    for _ in range(5):
        desk.submit(gpus=9)
    for first in ("/jobs?view=waiting", "/jobs?view=all"):
        seen, there = [], first
        while there:
            html = desk.html(there)
            seen += listed(html)
            found = re.search(r'href="([^"]*cursor=[^"]*)"', html)
            there = unescape(found[1]) if found else ""
        assert sorted(seen) == [f"job-{i}" for i in range(1, 6)]


def test_an_array_is_one_line_and_its_tasks_are_listed_apart(desk: Desk) -> None:  # noqa: F811
    body = {"command": ["true"], "folder": "/", "array": "0-4", "gpus": 9}
    assert desk.client.post("/v1/jobs", json=body).status_code == 201
    html = desk.html("/jobs")
    assert len(listed(html)) == 1
    assert 'href="/jobs?view=all&amp;array=job-1"' in html or 'href="/jobs?view=all&array=job-1"' in html
    assert len(listed(desk.html("/jobs?view=all&array=job-1"))) == 5
    assert desk.client.get("/jobs/job-1", follow_redirects=False).status_code == 303


def together(client: TestClient, verb: str, *jobs: str, **fields: str) -> tuple[int, str]:
    key = form_key(next(iter(client.cookies.values())))
    answer = client.post("/jobs/act", data={"form_key": key, "verb": verb, "job": list(jobs), **fields})
    return answer.status_code, answer.text


def test_many_are_acted_on_at_once_and_what_is_refused_says_why(house: House) -> None:  # noqa: F811
    ann = signed_in(house, "admin", "red", "ann")
    assert phase(house, house.job) == "waiting"
    assert 'role="alert"' in together(ann, "cancel", house.job)[1], "nobody confirmed it"
    assert 'role="alert"' in together(ann, "explode", house.job, sure="yes")[1]
    assert phase(house, house.job) == "waiting"
    status, page = together(ann, "hold", house.job, "job-99", sure="yes")
    assert (status, phase(house, house.job)) == (200, "held")
    assert "job-99: " in page
    together(ann, "release", house.job)
    together(ann, "terms", house.job, priority="urgent")
    assert house.service.reader.job(house.job).job.priority == "urgent"
    for stranger in (signed_in(house, "admin", "blue", "bob"), signed_in(house, "viewer", "red", "vic")):
        together(stranger, "cancel", house.job, sure="yes")
    assert phase(house, house.job) == "waiting"
    bob = signed_in(house, "admin", "blue", "bo")
    assert house.job not in bob.get("/jobs?view=all").text
    assert bob.get("/jobs?team=red").status_code == 404
    assert ann.post("/jobs/act", data={"verb": "cancel", "sure": "yes", "job": house.job}).status_code == 403


def test_the_order_is_kept_when_many_are_acted_on(house: House) -> None:  # noqa: F811
    ann = signed_in(house, "admin", "red", "ann")
    sent = re.search(r'<form id="together".*?</form>', ann.get("/jobs?sort=cost").text, re.DOTALL)
    assert sent is not None
    assert 'name="sort" value="cost"' in sent[0]
    page = together(ann, "hold", house.job, sure="yes", sort="cost")[1]
    assert '<option value="cost" selected>' in page
    assert "sort=cost" in page[page.index("data-from") :][:200]


def test_a_crowded_list_is_quick_and_its_update_small(crowded: Service, tmp_path: Any) -> None:  # noqa: F811
    """20,000 jobs, 2,000 of them active: an update takes 20 kB. Its time is told, not held."""
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    access = Access(AccessStore(store))
    http = TestClient(make_app(crowded, access), base_url="http://127.0.0.1")
    text, _ = access.issue(name="op", tenant="*", role="operator")
    http.headers["authorization"] = f"Bearer {text}"
    for query in ("", "?view=all", "?view=waiting&sort=wait", "?view=all&text=take+199"):
        began = time.process_time()
        html = http.get(f"/jobs{query}").text
        assert len(listed(html)) == 30
        print(f"/jobs{query}: {1000 * (time.process_time() - began):.0f} ms of CPU")
    pages = Pages(crowded.reader)
    from brimful.server.console.jobs_page import jobs_shown

    began = time.process_time()
    body = pages.packed(
        "jobs_page.html", OPERATOR, "", lambda: {"page_from": "", **jobs_shown(crowded.reader, OPERATOR, {})}
    )
    print(f"update: {len(body)} bytes, {1000 * (time.process_time() - began):.1f} ms of CPU")
    assert len(body) <= MOST_BYTES
    access.close()
    store.close()
