"""No number on any page that the API does not tell, on a fleet with three days behind it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from brimful.language import Number, Percent, Size, Usd, language
from brimful.market.survival import PriceRecord
from tests.server.live import wait_for
from tools.demo import OOM, Demo

EN = language("en")
LISTS = ("fleet", "jobs?limit=200", "spend", "budgets", "prices", "forecast", "queues", "reservations")
MORE = ("attention", "users", "tokens", "audit", "events?after=-40&limit=40")
NUMBER = re.compile(r"(?<![\w.-])-?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?: %| [KMG]iB)?(?![\w-])")
SPAN = re.compile(r"(?<![\w.-])(?:\d+(?:\.\d+)? (?:d|h|min|ms|s)\b ?)+")  # the difference of two moments


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    made = Demo(tmp_path_factory.mktemp("demo"))
    yield made
    made.access.close()
    made.store.close()


def told(value: Any) -> set[str]:
    """Every way in which a page may write a number of this answer."""
    if isinstance(value, dict):
        return {str(len(value))}.union(*(told(each) for each in (*value, *value.values())))
    if isinstance(value, list):
        return {str(len(value))}.union(*(told(each) for each in value))
    if isinstance(value, str):
        return set(NUMBER.findall(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return set()
    plain = {EN.text(Number(value, digits)) for digits in (0, 1, 2)} | {str(value)}
    money = {EN.text(Usd(round(value))), EN.text(Usd(round(value * 1_000_000)))}
    others = (Percent(value), Percent(value, 1), Size(round(value)), Number(value / 3600, 2))
    plain.add(EN.text(Number(value / 1e12)))  # TFLOPS
    return plain | money | {EN.text(each) for each in others}


def written(page: str) -> set[str]:
    """The numbers that a reader sees, but for moments and what users typed."""
    body = page[page.index("<main") : page.index("</main>")]
    body = re.sub(r"<(time|code|option|title|nav)\b.*?</\1>", " ", body, flags=re.DOTALL)
    text = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())
    return set(NUMBER.findall(SPAN.sub(" ", text)))


def test_every_number_on_every_page_is_in_the_api(demo: Demo) -> None:
    http = TestClient(demo.app, base_url="http://127.0.0.1")
    token = demo.person("mara", "*", "operator")
    http.headers.update({"authorization": f"Bearer {token}", "accept-language": "en"})

    def data(path: str, **body: object) -> Any:
        answer = http.post(f"/v1/{path}", json=body) if body else http.get(f"/v1/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    known = set[str]().union(*(told(data(path)) for path in (*LISTS, *MORE)))
    # Sums and means of what is told: GPUs held, and their share of the hours that were seen.
    known.add(str(sum(site["held"] for site in data("fleet")["sites"])))
    hours: dict[int, list[tuple[int, int]]] = {}
    for pool in data("forecast")["pools"]:
        for hour in pool["past"]:
            hours.setdefault(hour["at_s"], []).append((hour["held"], pool["gpus"]))
    for last in (24, len(hours)):
        seen = [each for at_s in sorted(hours)[-last:] for each in hours[at_s]]
        known.add(EN.text(Percent(sum(held for held, _ in seen) / sum(gpus for _, gpus in seen))))
    named = {state.job.name: state.job.job for state in demo.service.reader.fleet.jobs.values()}
    failed, runs = named["llama-8b longer context"], named["vit-h pretraining"]
    end_s, hour_s = demo.now_s // 60 * 60, demo.now_s // 3600 * 3600
    answers: dict[str, list[Any]] = {
        "/": [data(f"audit/usage?from_s={hour_s - days * 86400}&to_s={hour_s}") for days in (1, 7)],
        "/jobs": [],
        "/fleet": [],
        "/market": [],
        "/teams": [data("invoice?by=team"), data("spend/days")],
        "/teams?by=gpu": [data("invoice?by=gpu"), data("spend/days?by=gpu")],
        "/teams?by=user&month=2026-03": [data("invoice?by=user&month=2026-03")],
        "/audit?days=7": [data(f"audit/usage?from_s={end_s - 7 * 86400}&to_s={end_s}")],
        "/operate": [data("policy")],
        f"/jobs/{failed}": [data(f"jobs/{failed}"), data(f"jobs/{failed}/why"), data("fit", text=OOM)],
        f"/jobs/{runs}": [data(f"jobs/{runs}"), data(f"jobs/{runs}/why"), data(f"jobs/{runs}/measured")],
    }
    wait_for(lambda: http.get("/").text.count("of paid GPU time was useful") == 2)
    wait_for(lambda: 'data-every="3600"' in http.get("/audit?days=7").text)  # the log has been read
    for path, more in answers.items():
        found = written(http.get(path).text)
        assert found, path
        unknown = {each for each in found - known.union(*map(told, more)) if not _adds_up(each, known)}
        assert unknown == set(), f"{path}: {sorted(unknown)}"


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
        known = set[str]()
        for path in ("prices?since_s=0", "forecast", "reservations"):
            known |= told(http.get(f"/v1/{path}").json()["data"])
        assert written(page) <= known
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
    assert "own tensors plus the request exceed" in page
    assert "Turn on activation checkpointing." in page
    live = http.get(f"/jobs/{named['llama-8b longer context']}/live", headers={"accept-language": "de"}).text
    assert "Warum er gescheitert ist" in live
    assert "Why it failed" not in http.get(f"/jobs/{named['vit-h pretraining']}").text
