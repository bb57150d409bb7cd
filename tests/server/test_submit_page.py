"""Submit: a job is written as a form or a file, checked against the fleet, and made by who may."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from brimful.fleet.events import LeaseEnded
from brimful.language import Usd, language
from brimful.server.app import make_app
from brimful.server.auth import form_key
from brimful.server.console.fit_charts import risk_shape
from brimful.server.console.templating import templates_here
from brimful.server.jobfiles.pasted import as_job_file, read_pasted
from brimful.server.rehearsing import forecaster
from tests.builders import a_job
from tests.patience import PATIENCE_S
from tests.server.live import wait_for
from tests.server.test_auth import SECRET, House, house  # noqa: F401 - a fixture
from tests.server.test_console import HOSTILE, Desk, a_lease_of, desk, words  # noqa: F401 - a fixture

SBATCH = """#!/bin/bash
#SBATCH --job-name=big
#SBATCH --gres=gpu:2
#SBATCH --time=02:00:00
#SBATCH -D /data/run
python train.py
"""
SKY = "name: sky\nworkdir: /data/ann\nresources:\n  accelerators: RTX4070:2\nrun: |\n  python train.py\n"
OWN = "command: python train.py\nfolder: /data/ann\ngpus: 2\nbudget: 1.5\nmax_run: 1h\n"
CONFIG = (Path(__file__).parents[2] / "examples" / "nanogpt" / "train_fineweb.py").read_text()


def asked(desk: Desk, **body: Any) -> Any:  # noqa: F811
    answer = desk.client.post("/v1/jobs/check", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


@pytest.mark.parametrize(
    ("text", "kind", "folder"),
    [(SBATCH, "sbatch", "/data/run"), (SKY, "skypilot", "/data/ann"), (OWN, "brimful", "/data/ann")],
)
def test_what_is_pasted_is_understood_and_written_as_a_job_file(text: str, kind: str, folder: str) -> None:
    found = read_pasted(text)
    assert found is not None
    assert (found.kind, found.body["folder"], found.body["gpus"]) == (kind, folder, 2)
    again = read_pasted(as_job_file(found.body))
    assert again is not None
    for name in ("name", "gpus", "folder", "max_run_s", "budget_microusd", "gpu_types"):
        assert (again.body.get(name) or None) == (found.body.get(name) or None), name


def test_a_pasted_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    found = read_pasted(f"command: ls\nfolder: {tmp_path}/link/../link\n")
    assert found is not None
    assert found.body["folder"] == f"{tmp_path}/link"
    assert read_pasted(CONFIG) is None


def test_a_check_says_where_when_and_what_it_costs_with_the_numbers_of_the_fleet(desk: Desk) -> None:  # noqa: F811
    desk.service.driver.tick()
    found = asked(desk, text=OWN)
    (pool,) = found["pools"]
    price = desk.client.get("/v1/prices").json()["data"]["pools"][0]["microusd_per_gpu_hour"]
    assert (found["problems"], found["kind"], pool["can"]) == ([], "brimful", True)
    assert (pool["starts_s"], pool["microusd_per_hour"]) == (desk.now_s, 2 * price)
    assert pool["most_microusd"] == 2 * price
    assert desk.service.reader.fleet.submitted == 0, "nothing is kept"
    wide = asked(desk, text=OWN.replace("gpus: 2", "gpus: 3"))["pools"][0]
    assert (wide["can"], wide["starts_s"]) == (False, None)
    for text in (OWN + "nonsense: 1\n", "command: ''\nfolder: /x\n", OWN.replace("gpus: 2", "gpus: 0")):
        assert asked(desk, text=text)["problems"]


def test_a_running_limit_says_when_gpus_are_free_at_the_latest(desk: Desk) -> None:  # noqa: F811
    desk.service.driver.tick()
    desk.submit(max_run_s=600)
    desk.write(*a_lease_of("job-1", at_s=desk.now_s))
    assert asked(desk, text=OWN)["pools"][0]["starts_s"] == desk.now_s + 600


def test_a_rehearsal_of_the_queue_says_when_it_would_start_where_no_limit_does(desk: Desk) -> None:  # noqa: F811
    desk.service.driver.tick()
    found = asked(desk, text=OWN)
    assert (found["forecast"]["likely_s"], found["forecast"]["gpu"]) == (desk.now_s, "rtx-4070")
    _runs_among_jobs_of(desk, lengths_s=(1000, 2000, 4000))
    found = asked(desk, text=OWN)
    assert found["pools"][0]["starts_s"] is None, "nothing limits the one that runs"
    soon, began_s = found["forecast"], desk.now_s - 500
    assert {soon["earliest_s"] - began_s, soon["latest_s"] - began_s} <= {1000, 2000, 4000}
    assert soon["earliest_s"] <= soon["likely_s"] <= soon["latest_s"]
    assert soon["tries"] > 1
    desk.submit(name="first", gpus=2, max_run_s=7000)
    behind = asked(desk, text=OWN.replace("1.5", "1.6"))["forecast"]
    assert behind["likely_s"] > soon["likely_s"], "another goes first"
    waits = desk.client.get("/v1/jobs/job-5/start").json()["data"]
    assert waits["forecast"]["likely_s"] >= began_s + 1000, "one that waits is watched where it stands"
    assert waits["forecast"]["likely_s"] < behind["likely_s"]
    page = desk.html("/jobs/job-5")
    at = f"{datetime.fromtimestamp(waits['forecast']['likely_s'], UTC):%Y-%m-%dT%H:%M:%SZ}"
    assert f'Likely to start at about <time datetime="{at}">' in page
    runs = desk.client.get("/v1/jobs/job-4/start").json()["data"]
    assert runs == {"forecast": None, "forecasting": False}
    wide = asked(desk, text=OWN.replace("gpus: 2", "gpus: 3"))
    assert (wide["forecast"], wide["forecasting"]) == (None, False), "it never starts, and its pools say why"


def _runs_among_jobs_of(desk: Desk, *, lengths_s: tuple[int, ...]) -> None:  # noqa: F811
    """Those are over; one more of their kind has run for 500 s."""
    for number, length_s in enumerate(lengths_s, 1):
        desk.submit()
        desk.write(*a_lease_of(f"job-{number}", at_s=desk.now_s))
        desk.now_s += length_s
        desk.write(LeaseEnded(at_s=desk.now_s, lease=f"job-{number}.1", exit_code=0, cause="finished"))
    desk.submit()
    desk.write(*a_lease_of(f"job-{len(lengths_s) + 1}", at_s=desk.now_s))
    desk.now_s += 500


def test_a_large_queue_is_rehearsed_by_another_process_with_the_same_result(
    desk: Desk,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk.service.driver.tick()
    _runs_among_jobs_of(desk, lengths_s=(1000, 2000, 4000))
    here = asked(desk, text=OWN)["forecast"]
    monkeypatch.setattr(forecaster, "SMALL", -1)
    desk.now_s += 1
    other = OWN.replace("1.5", "1.6")
    first = asked(desk, text=other)
    assert (first["forecast"], first["forecasting"]) == (None, True)
    there = wait_for(lambda: asked(desk, text=other)["forecast"])
    assert there == here | {"tries": there["tries"]}
    assert not asked(desk, text=other)["forecasting"]
    desk.service.forecaster.close()


def test_a_viewer_is_shown_no_other_teams_names(house: House) -> None:  # noqa: F811
    """The list of teams beside the form was everybody's for who may submit for none."""
    house.service.reader.ledger.spent_by_tenant["blue"] = 1
    for role, seen in (("viewer", []), ("submitter", ["red"])):
        token, _ = house.access.issue(name=role, tenant="red", role=role)
        client = TestClient(make_app(house.service, house.access), base_url="http://127.0.0.1")
        client.post("/console/enter", data={"token": token}, follow_redirects=False)
        teams = re.search(r'<datalist id="teams">(.*?)</datalist>', client.get("/submit").text)
        assert teams is not None
        assert re.findall(r'value="(\w+)"', teams[1]) == seen


def test_a_pasted_training_config_is_fitted_on_the_fleets_cards(desk: Desk) -> None:  # noqa: F811
    desk.service.driver.tick()
    job = {"command": ["python", "train.py"], "folder": "/x"}
    found = asked(desk, text=CONFIG, job=job)
    assert (found["kind"], list(found["fits"])) == ("config", ["rtx-4070"])
    fit = desk.client.post("/v1/fit", json={"config": CONFIG, "gpus": ["rtx-4070"]}).json()["data"]["cards"][
        0
    ]
    there = found["fits"]["rtx-4070"]["memory"]["device_bytes"]
    assert there == fit["estimate"]["memory"]["device_bytes"]
    given = {"text": "", "job": job | {"gpu_types": ["rtx-4070"]}, "config": CONFIG.replace("= 32", "= 4")}
    small = asked(desk, **given)
    if "rtx-4070" in small["job"]["predicted"]:
        speed = small["fits"]["rtx-4070"]["speed"]
        assert small["job"]["predicted"]["rtx-4070"]["mfu"] == speed["mfu"]["likely"]


def test_what_does_not_fit_says_how_likely_and_what_to_change(desk: Desk) -> None:  # noqa: F811
    desk.service.driver.tick()
    estimate = asked(desk, text=CONFIG, job={"command": ["true"], "folder": "/x"})["fits"]["rtx-4070"]
    assert estimate["verdict"] != "fits"
    desk.access.issue(name="sam", tenant="red", role="submitter")
    risk = risk_shape(estimate)
    assert len(risk["ways"]) == len(estimate["fixes"]) > 0
    page = templates_here().get_template("submit_check.html")
    check = {"fits": {"rtx-4070": estimate}, "kind": "config", "problems": [], "notes": [], "pools": []}
    shown = words(page.render(check=check, risks={"rtx-4070": risk}, given={}, file="", config="", now_s=0))
    assert "chance of running out" in shown
    for way in risk["ways"]:
        assert way["change"] in shown
        assert way["needs"] in shown


class Page:
    def __init__(self, house: House, *, secure: bool) -> None:  # noqa: F811
        self.token, _ = house.access.issue(name="sam", tenant="red", role="submitter")
        app = make_app(house.service, house.access, secure=secure)
        self.http = TestClient(app, base_url="https://127.0.0.1" if secure else "http://127.0.0.1")
        self.http.post("/console/enter", data={"token": self.token}, follow_redirects=False)

    def send(self, path: str = "/submit", **fields: str) -> Any:
        key = form_key(next(iter(self.http.cookies.values())))
        return self.http.post(path, data={"form_key": key, **fields}, follow_redirects=False)


FORM = {
    "command": "python train.py --lr 0.1",
    "folder": "/data/sam",
    "gpus": "1",
    "max_run": "2h",
    "budget": "3",
}


def test_without_tls_a_session_submits_nothing_without_its_users_token(house: House) -> None:  # noqa: F811
    page = Page(house, secure=False)
    other, _ = house.access.issue(name="amy", tenant="red", role="submitter")
    before = house.service.reader.fleet.submitted
    for token in ("", "brim_nonsense", other, next(iter(page.http.cookies.values()))):
        assert page.send(**FORM, token=token).status_code == 403
    assert page.send("/submit/check", **FORM).status_code == 200
    assert house.service.reader.fleet.submitted == before
    made = page.send(**FORM, token=page.token)
    assert made.status_code == 303
    job = house.service.reader.job(made.headers["location"].rpartition("/")[2]).job
    assert (job.command, job.folder, job.tenant) == (
        ("python", "train.py", "--lr", "0.1"),
        "/data/sam",
        "red",
    )
    assert (job.max_run_s, job.budget_microusd, job.user) == (7200, 3_000_000, "sam")


def test_over_tls_the_session_submits_a_file_and_bad_ones_say_why(house: House) -> None:  # noqa: F811
    page = Page(house, secure=True)
    assert 'name="token"' not in page.http.get("/submit").text
    made = page.send(file=OWN, edited="file", folder="/ignored")
    assert made.status_code == 303
    bad = page.send(file="command: x\ngpus: many\n", edited="file")
    assert (bad.status_code, 'role="alert"' in bad.text) == (400, True)
    for field, value in (("budget", "a lot"), ("max_run", "soon"), ("deadline", "soon"), ("gpus", "0")):
        assert page.send(**FORM | {field: value}).status_code == 400
    assert page.send(**FORM, team="blue").status_code in (403, 404)
    assert page.http.post("/submit", data=FORM).status_code == 403, "no form of ours"


def test_a_check_tells_nothing_of_another_teams_queues_and_jobs(house: House) -> None:  # noqa: F811
    """Nor when its own job would start after one of theirs, which is when theirs ends."""

    def checked(status: int = 200, **more: Any) -> Any:
        job = {"command": ["true"], "folder": "/", "gpus": 1, **more}
        answer = house.http.post("/v1/jobs/check", json={"job": job}, headers=house.blue)
        assert answer.status_code == status
        assert SECRET not in answer.text
        return answer.json().get("data")

    checked(403, tenant="red", queue="x")
    for refused in (checked(after=[house.job]), checked(after=["job-999"])):
        assert len(refused["problems"]) == 1
        assert (refused["pools"], refused["forecast"]) == ([], None)
    ours, none = checked(after=[house.job]), checked(after=["job-999"])
    assert ours["problems"][0]["problem"].replace(house.job, "job-999") == none["problems"][0]["problem"]
    assert checked()["problems"] == []


def test_the_check_of_the_page_has_the_apis_numbers_and_no_markup_of_a_users(house: House) -> None:  # noqa: F811
    page = Page(house, secure=False)
    house.service.driver.tick()
    html = page.send("/submit/check", **FORM, part="1").text
    body = {"text": OWN.replace("gpus: 2", "gpus: 1")}
    pools = house.http.post("/v1/jobs/check", json=body, headers=house.red).json()["data"]["pools"]
    assert all(language("en").text(Usd(pool["microusd_per_hour"])) in words(html) for pool in pools)
    for field in (*FORM, "file", "config", "name", "team", "gpu", "array"):
        for edited in ("form", "file"):
            html = page.send("/submit/check", **FORM | {field: HOSTILE, "edited": edited}).text
            assert "<script>document" not in html
            assert "<img" not in html


def test_a_team_that_asks_without_end_leaves_room_for_other_forecasts(
    house: House,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, go = house.service.forecaster, threading.Event()
    monkeypatch.setattr(made, "_is_small", lambda: False)
    monkeypatch.setattr(made, "_starts", lambda *_asked: go.wait(PATIENCE_S) and [])
    for i in range(20):
        assert made.so_far(a_job("a", tenant="red", name=f"r{i}")) == (None, True)
    assert made.so_far(a_job("a", tenant="blue")) == (None, True)
    assert sorted(each.tenant for each in made._asked) == ["blue", "red", "red", "red"]
    go.set()
    wait_for(lambda: not made._asked)
