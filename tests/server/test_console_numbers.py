"""Every number of every page stands where the API tells it, on a fleet with three days behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any

import pytest
from starlette.testclient import TestClient

from brimful.audit.said import leaf_words
from brimful.language import Percent, Usd, language
from brimful.market.survival import PriceRecord
from tests.server import api_places
from tests.server.live import wait_for
from tests.server.places import Place, numbers_of
from tools.demo import OOM, Demo

EN = language("en")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    made = Demo(tmp_path_factory.mktemp("demo"))
    yield made
    made.access.close()
    made.store.close()


def asking(http: TestClient) -> api_places.Api:
    """The API's answers to one token."""

    def data(path: str, **body: object) -> Any:
        answer = http.post(f"/v1/{path}", json=body) if body else http.get(f"/v1/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    return data


def rows_of(page: str) -> list[str]:
    """Jobs in the order of their table."""
    return re.findall(r'<tr id="(job-\d+)"', page)


def difference(page: Iterable[Place], api: Iterable[Place]) -> list[tuple[Place | None, Place | None]]:
    """What the page and the API do not agree on, section by section in the order of the page."""
    pairs = zip_longest(*(sorted(each, key=lambda place: place.section) for each in (page, api)))
    return [(shown, told) for shown, told in pairs if shown != told]


def test_every_number_on_every_page_stands_where_the_api_tells_it(demo: Demo) -> None:
    http = TestClient(demo.app, base_url="http://127.0.0.1")
    token = demo.person("mara", "*", "operator")
    http.headers.update({"authorization": f"Bearer {token}", "accept-language": "en"})
    api = asking(http)
    named = {state.job.name: state.job.job for state in demo.service.reader.fleet.jobs.values()}
    failed, runs = named["llama-8b longer context"], named["vit-h pretraining"]
    end_s, hour_s, day_s = demo.now_s // 60 * 60, demo.now_s // 3600 * 3600, 86400
    wait_for(lambda: http.get("/").text.count("of paid GPU time was useful") == 2)
    wait_for(lambda: 'data-every="3600"' in http.get("/audit?days=7").text)  # the log has been read
    usage = {days: api(f"audit/usage?from_s={hour_s - days * day_s}&to_s={hour_s}") for days in (1, 7)}
    week = api(f"audit/usage?from_s={end_s - 7 * day_s}&to_s={end_s}")
    cause = api("fit", text=OOM)["explanation"]["answer"]["says"]
    expected: dict[str, Callable[[str], list[Place]]] = {
        "/": lambda page: api_places.home(api, rows_of(page), usage),
        "/jobs": lambda page: api_places.job_rows(api, rows_of(page)),
        "/fleet": lambda _: api_places.fleet(api),
        "/market": lambda _: api_places.market(api, since_s=demo.now_s - 6 * 3600),
        "/teams": lambda _: api_places.teams(api, by="team", month=""),
        "/teams?by=gpu": lambda _: api_places.teams(api, by="gpu", month=""),
        "/teams?by=user&month=2026-03": lambda _: api_places.teams(api, by="user", month="2026-03"),
        "/audit?days=7": lambda _: api_places.audit(week, leaf_words),
        "/operate": lambda _: api_places.operate(api),
        f"/jobs/{failed}": lambda _: api_places.job(api, failed, cause=cause),
        f"/jobs/{runs}": lambda _: api_places.job(api, runs),
    }
    for path, told in expected.items():
        page = http.get(path).text
        assert difference(numbers_of(page), told(page)) == [], path


def test_chances_on_the_market_page_are_in_the_api(demo: Demo) -> None:
    """The demo's three days are too short for chances: its pool gets a month of prices here."""
    http = TestClient(demo.app, base_url="http://127.0.0.1")
    token = demo.person("mara", "*", "operator")
    http.headers.update({"authorization": f"Bearer {token}", "accept-language": "en"})
    records = demo.service.reader.price_records.of
    ((pool, young),) = records.items()
    assert f"({young.hours} h, needs 168 h)" in http.get("/market").text
    records[pool] = old = PriceRecord(young.hour - 30 * 24)
    try:
        for hour in range(old.hour, young.hour + 1):
            old.add(hour * 3600, young.price * (1.8 if 9 <= hour % 24 < 19 else 1.0) * (1 + hour % 7 / 20))
        page = http.get("/market").text
        assert (
            difference(numbers_of(page), api_places.market(asking(http), since_s=demo.now_s - 6 * 3600)) == []
        )
        answer = http.get("/v1/forecast").json()["data"]
        assert answer["bids"]
        for bid in answer["bids"]:
            assert all(EN.text(Percent(chance)) in page for chance in bid["stays"].values())
        assert "Error of earlier chances" in page
        assert "needs 168 h" not in page
        _chances_where_a_job_is_read(demo, http)
    finally:
        records[pool] = young


def _chances_where_a_job_is_read(demo: Demo, http: TestClient) -> None:
    """On the page of a job that bids, and where one is checked before it is submitted."""
    named = {state.job.name: state.job.job for state in demo.service.reader.fleet.jobs.values()}
    job = named["sim2real sweep"]
    why = http.get(f"/v1/jobs/{job}/why").json()["data"]
    (chance,) = [pool["chance"] for pool in why["pools"] if pool["gpu"] == "l40s"]
    assert chance["limit_microusd_per_gpu_hour"] == 1_100_000
    page = http.get(f"/jobs/{job}").text
    assert "stays at or below its limit of $1.10" in page
    assert all(f"<strong>{EN.text(Percent(each))}</strong>" in page for each in chance["stays"].values())
    reserved = http.get(f"/v1/jobs/{named['whisper-large']}/why").json()["data"]["pools"]
    assert {pool["chance"] for pool in reserved} == {None}  # a reservation does not bid

    token = demo.person("kim", "robotics", "submitter")
    browser = TestClient(demo.app, base_url="http://127.0.0.1", headers={"accept-language": "en"})
    browser.post("/console/enter", data={"token": token})
    key = re.findall(r'name="form_key" value="(\w+)"', browser.get("/submit").text)[0]
    job_file = "command: python a.py\nfolder: /data\ngpu: l40s\n"
    form = {"form_key": key, "edited": "file", "file": job_file, "part": "1"}
    checked = http.post("/v1/jobs/check", json={"text": job_file}).json()["data"]
    (chance,) = [pool["chance"] for pool in checked["pools"] if pool["gpu"] == "l40s"]
    assert {pool["chance"] for pool in checked["pools"] if pool["gpu"] != "l40s"} == {None}
    shown = browser.post("/submit/check", data=form).text
    assert f"limit of {EN.text(Usd(chance['limit_microusd_per_gpu_hour']))}" in shown
    assert all(f"<strong>{EN.text(Percent(each))}</strong>" in shown for each in chance["stays"].values())


def _adds_up(text: str, known: set[str]) -> bool:
    """A sum of money whose last cent makes a column add up."""
    if not text.startswith("$") or "." not in text:
        return False
    cents = round(100 * float(text[1:].replace(",", "")))
    return any(f"${(cents + off) / 100:,.2f}" in known for off in (-1, 1))


def test_a_failed_job_says_why_and_what_to_change_where_its_log_tells(demo: Demo) -> None:
    http = TestClient(demo.app, base_url="http://127.0.0.1")
    http.headers.update({"authorization": f"Bearer {demo.person('tomas', 'vision', 'submitter')}"})
    named = {state.job.name: state.job.job for state in demo.service.reader.fleet.jobs.values()}
    page = http.get(f"/jobs/{named['llama-8b longer context']}", headers={"accept-language": "en"}).text
    assert "Why it failed" in page
    assert "own tensors fill the card" in page
    assert "Turn on activation checkpointing." in page
    live = http.get(f"/jobs/{named['llama-8b longer context']}/live", headers={"accept-language": "de"}).text
    assert "Warum er gescheitert ist" in live
    assert "Why it failed" not in http.get(f"/jobs/{named['vit-h pretraining']}").text
