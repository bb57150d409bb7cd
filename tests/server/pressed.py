"""The one list of the console's buttons: who is offered each, and how it is pressed.

Each is pressed by the least of those who are offered it, and its effect is read from the API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2
from playwright.sync_api import Locator, Page

from tests.server.lab import Lab, press, unfold
from tests.server.live import wait_for
from tests.server.test_console_browser import check_accessible

WINDOW = {"site": "campus", "gpu": "l40s", "tier": "owned", "gpus": 1, "hours": 10}
Press = Callable[[Lab, Page], None]
PRESSED: dict[str, tuple[str, Press]] = {}


def presses(key: str, by: str) -> Callable[[Press], Press]:
    """This button, offered from that role on; "": to people who are not signed in."""

    def note(press: Press) -> Press:
        assert key not in PRESSED
        PRESSED[key] = by, press
        return press

    return note


# -- a job -------------------------------------------------------------------------------------------------


def act(lab: Lab, page: Page, job: str, verb: str) -> Locator:
    page.goto(f"{lab.url}/jobs/{job}")
    form = page.locator(f"#act-{verb} form")
    unfold(form)
    return form


@presses("POST /jobs/{job}/act cancel", "submitter")
def _(lab: Lab, page: Page) -> None:
    job = lab.submit()
    press(act(lab, page, job, "cancel"))
    assert lab.job(job)["phase"] == "cancelled"


@presses("POST /jobs/{job}/act hold", "submitter")
def _(lab: Lab, page: Page) -> None:
    job = lab.submit()
    form = act(lab, page, job, "hold")
    form.locator("[name=reason]").fill("new fans")
    press(form)
    assert (lab.job(job)["phase"], lab.job(job)["why"]) == ("held", "new fans")


@presses("POST /jobs/{job}/act release", "submitter")
def _(lab: Lab, page: Page) -> None:
    job = lab.held()
    press(act(lab, page, job, "release"))
    assert lab.job(job)["phase"] == "waiting"


@presses("POST /jobs/{job}/act terms", "submitter")
def _(lab: Lab, page: Page) -> None:
    job = lab.submit()
    form = act(lab, page, job, "terms")
    form.locator("[name=priority]").select_option("urgent")
    form.locator("[name=deadline]").fill("2100-01-02T03:04")  # in Paris, an hour before UTC
    press(form)
    assert (lab.job(job)["priority"], lab.job(job)["deadline_s"]) == ("urgent", 4102545840 - 3600)
    form = act(lab, page, job, "terms")
    form.locator("[name=deadline]").fill("")
    press(form)
    assert (lab.job(job)["priority"], lab.job(job)["deadline_s"]) == ("urgent", None)


@presses("POST /jobs/{job}/act move", "submitter")
def _(lab: Lab, page: Page) -> None:
    job = lab.submit()
    for site, sites in (("campus", ["campus"]), ("", [])):
        form = act(lab, page, job, "move")
        form.locator("[name=site]").select_option(site)
        press(form)
        assert lab.job(job)["sites"] == sites


@presses("POST /jobs/{job}/act bid", "submitter")
def _(lab: Lab, page: Page) -> None:
    job = lab.submit()
    for usd, limit in (("2.50", 2_500_000), ("", None)):
        form = act(lab, page, job, "bid")
        form.locator("[name=usd]").fill(usd)
        press(form)
        assert lab.job(job)["limit_microusd_per_gpu_hour"] == limit


@presses("POST /jobs/{job}/act again", "submitter")
def _(lab: Lab, page: Page) -> None:
    job = lab.submit()
    form = act(lab, page, job, "again")
    form.locator("[name=name]").fill("once more")
    form.locator("[name=gpus]").fill("1")
    form.locator("[name=priority]").select_option("background")
    press(form)
    again = lab.job(page.url.rpartition("/")[2])
    assert again["job"] != job
    assert (again["name"], again["gpus"], again["priority"]) == ("once more", 1, "background")
    assert (again["user"], again["command"]) == ("jules", lab.job(job)["command"])


# -- jobs, submit and fit ----------------------------------------------------------------------------------


def chosen(lab: Lab, page: Page, *jobs: str) -> Locator:
    page.goto(f"{lab.url}/jobs?view=all")
    for job in jobs:
        page.locator(f"input[name=job][value={job}]").check()
    form = page.locator("#together")
    form.locator("summary").click()
    form.locator("[name=sure]").check()
    return form


def press_together(lab: Lab, page: Page, verb: str, phase: str, made: Callable[[], str]) -> None:
    jobs, other = [made(), made()], made()
    before = lab.job(other)["phase"]
    form = chosen(lab, page, *jobs)
    with page.expect_navigation():
        form.locator(f"button[value={verb}]").click()
    assert [lab.job(job)["phase"] for job in (*jobs, other)] == [phase, phase, before]


@presses("POST /jobs/act cancel", "submitter")
def _(lab: Lab, page: Page) -> None:
    press_together(lab, page, "cancel", "cancelled", lab.submit)


@presses("POST /jobs/act hold", "submitter")
def _(lab: Lab, page: Page) -> None:
    press_together(lab, page, "hold", "held", lab.submit)


@presses("POST /jobs/act release", "submitter")
def _(lab: Lab, page: Page) -> None:
    press_together(lab, page, "release", "waiting", lab.held)


@presses("POST /jobs/act terms", "submitter")
def _(lab: Lab, page: Page) -> None:
    jobs = [lab.submit(), lab.submit()]
    form = chosen(lab, page, *jobs)
    form.locator("[name=priority]").select_option("background")
    with page.expect_navigation():
        form.locator("button[value=terms]").click()
    assert [lab.job(job)["priority"] for job in jobs] == ["background"] * 2


@presses("GET /jobs", "viewer")
def _(lab: Lab, page: Page) -> None:
    job = lab.submit("needle in the queue")
    page.goto(f"{lab.url}/jobs")
    page.fill("#find [name=text]", "needle")
    press(page.locator("#find"))
    found = [each["job"] for each in lab.api("/jobs?text=needle", by="viewer")["jobs"]]
    rows = page.locator("main tbody tr[id]").all()
    assert [row.get_attribute("id") for row in rows] == found == [job]


@presses("POST /submit", "submitter")
def _(lab: Lab, page: Page) -> None:
    page.goto(f"{lab.url}/submit")
    for name, text in {"command": "python train.py", "folder": "/data", "name": "typed", "gpus": "2"}.items():
        page.fill(f"#job #{name}", text)
    page.fill("#token", lab.tokens["submitter"])
    press(page.locator("#job"), "button.main")
    made = lab.job(page.url.rpartition("/")[2])
    assert (made["name"], made["command"], made["gpus"]) == ("typed", ["python", "train.py"], 2)
    assert (made["user"], made["tenant"], made["folder"]) == ("jules", "speech", "/data")


@presses("POST /submit/check", "viewer")
def _(lab: Lab, page: Page) -> None:
    text, seq = "command: python train.py\nfolder: /data\ngpus: 8\n", lab.demo.service.reader.fleet.seq
    page.goto(f"{lab.url}/submit")
    page.fill("#file", text)
    press(page.locator("#job"), "button[formaction]")
    pools = lab.api("/jobs/check", by="viewer", method="POST", text=text)["pools"]
    assert page.locator("#check tbody tr").count() == len(pools) == 3
    assert page.locator("#gpus").input_value() == "8"
    assert lab.demo.service.reader.fleet.seq == seq, "nothing is submitted"


@presses("POST /fit", "viewer")
def _(lab: Lab, page: Page) -> None:
    page.goto(f"{lab.url}/fit")
    page.fill("#model", "gpt2-xl")
    page.locator("[name=gpu][value=rtx-4090]").check()
    press(page.locator("form.ask"))
    (card,) = lab.api("/fit", by="viewer", method="POST", model="gpt2-xl", gpus=["rtx-4090"])["cards"]
    likely = card["estimate"]["memory"]["device_bytes"]["likely"]
    assert f"{likely / (1 << 30):.2f} GiB" in page.locator("main").inner_text()


# -- the fleet and its market ------------------------------------------------------------------------------


@presses("GET /fleet", "viewer")
def _(lab: Lab, page: Page) -> None:
    page.goto(f"{lab.url}/fleet")
    page.fill("#find [name=text]", "l40s")
    press(page.locator("#find"))
    nodes = [each["node"] for each in lab.api("/fleet", by="viewer")["nodes"] if each["gpu"] == "l40s"]
    assert page.locator("article.node h3").all_inner_texts() == nodes


def drained(lab: Lab, node: str) -> str | None:
    (reason,) = [each["drained"] for each in lab.api("/fleet")["nodes"] if each["node"] == node]
    return reason  # type: ignore[no-any-return]


@presses("POST /fleet/act drain", "operator")
def _(lab: Lab, page: Page) -> None:
    page.goto(f"{lab.url}/fleet")
    form = page.locator("#drain-desk-1")
    unfold(form)
    form.locator("[name=reason]").fill("new fan")
    with page.expect_navigation():
        form.locator("button").click()
    assert drained(lab, "desk-1") == "new fan"


@presses("POST /fleet/act resume", "operator")
def _(lab: Lab, page: Page) -> None:
    lab.api("/nodes/desk-2/drain", method="POST", reason="fans")
    page.goto(f"{lab.url}/fleet")
    press(page.locator("#drain-desk-2"))
    assert drained(lab, "desk-2") is None


def reserved(lab: Lab) -> dict[str, Any]:
    return {each["reservation"]: each for each in lab.api("/reservations", by="submitter")["reservations"]}


def bought(lab: Lab) -> str:
    """Two GPUs of speech's, none in use."""
    made = lab.api("/reservations", by="submitter", method="POST", **WINDOW | {"gpus": 2}, tenant="speech")
    return str(made["reservation"])


def changed(lab: Lab, page: Page, name: str, verb: str, *, gpus: str = "", hours: str = "") -> None:
    page.goto(f"{lab.url}/market")
    form = page.locator(f"#reserve-{name}")
    unfold(form)
    form.locator("[name=gpus]").fill(gpus)
    form.locator("[name=sure]").check()
    if hours:
        form.locator("[name=hours]").fill(hours)
    with page.expect_navigation():
        form.locator(f"button[value={verb}]").click()


@presses("POST /market/act quote", "submitter")
def _(lab: Lab, page: Page) -> None:
    before = reserved(lab)
    quoted(lab, page)
    offer = lab.api("/reservations/quote", by="submitter", method="POST", **WINDOW)
    kept = page.locator(".offer [name=at_most]").get_attribute("value")
    assert (kept, reserved(lab)) == (str(offer["microusd_per_gpu_hour"]), before)


def quoted(lab: Lab, page: Page) -> None:
    page.goto(f"{lab.url}/market")
    form = page.locator("#reserve")
    unfold(form)
    form.locator("[name=pool]").select_option("campus|l40s|owned")
    form.locator("[name=gpus]").fill("1")
    form.locator("[name=hours]").fill("10")
    with page.expect_navigation():
        form.locator("button").click()


@presses("POST /market/act buy", "submitter")
def _(lab: Lab, page: Page) -> None:
    before = reserved(lab)
    quoted(lab, page)
    press(page.locator(".offer form"))
    (name,) = reserved(lab).keys() - before.keys()
    made = reserved(lab)[name]
    assert (made["tenant"], made["gpus"], made["gpu"]) == ("speech", 1, "l40s")
    assert made["end_s"] - made["start_s"] == 10 * 3600


@presses("POST /market/act pause", "submitter")
def _(lab: Lab, page: Page) -> None:
    name = bought(lab)
    changed(lab, page, name, "pause", gpus="1")
    assert reserved(lab)[name]["paused"] == 1


@presses("POST /market/act resume", "submitter")
def _(lab: Lab, page: Page) -> None:
    name = bought(lab)
    lab.api(f"/reservations/{name}/pause", by="submitter", method="POST", gpus=2)
    changed(lab, page, name, "resume", gpus="1")
    assert reserved(lab)[name]["paused"] == 1


@presses("POST /market/act more", "submitter")
def _(lab: Lab, page: Page) -> None:
    before = reserved(lab)
    changed(lab, page, "r1", "more", hours="5")
    offer = lab.api("/reservations/r1/quote", by="submitter", method="POST", hours=5)
    kept = page.locator(".offer [name=at_most]").get_attribute("value")
    assert (kept, reserved(lab)) == (str(offer["microusd_per_gpu_hour"]), before)


@presses("POST /market/act extend", "submitter")
def _(lab: Lab, page: Page) -> None:
    before = reserved(lab)["r1"]
    changed(lab, page, "r1", "more", hours="5")
    press(page.locator(".offer form"))
    after = reserved(lab)["r1"]
    assert (after["end_s"], after["gpus"]) == (before["end_s"] + 5 * 3600, before["gpus"])
    assert after["paid_microusd"] > before["paid_microusd"]


@presses("POST /market/act return", "submitter")
def _(lab: Lab, page: Page) -> None:
    name = bought(lab)
    changed(lab, page, name, "return", gpus="1")
    after = reserved(lab)[name]
    assert (after["gpus"], after["return_credit_microusd"] > 0) == (1, True)


# -- money, policy and people ------------------------------------------------------------------------------


def budget(lab: Lab, team: str) -> Any:
    (found,) = [each for each in lab.api("/budgets")["budgets"] if each["tenant"] == team]
    return found


@presses("POST /teams/act budget", "operator")
def _(lab: Lab, page: Page) -> None:
    page.goto(f"{lab.url}/teams")
    form = page.locator("#budget-robotics")
    unfold(form)
    for name, value in {"period": "monthly", "hard": "yes"}.items():
        form.locator(f"[name={name}]").select_option(value)
    form.locator("[name=usd]").fill("321.5")
    form.locator("[name=sure]").check()
    with page.expect_navigation():
        form.locator("button").click()
    made = budget(lab, "robotics")["budget"]
    assert (made["limit_microusd"], made["period"]) == (321_500_000, "monthly")
    assert (made["within"], made["hard"]) == ("", True)
    form = page.locator("#budget-")
    unfold(form)
    form.locator("[name=team]").fill("robotics/arm")
    form.locator("[name=within]").select_option("robotics")
    form.locator("[name=usd]").fill("20")
    form.locator("[name=sure]").check()
    with page.expect_navigation():
        form.locator("button").click()
    made = budget(lab, "robotics/arm")["budget"]
    assert (made["limit_microusd"], made["within"]) == (20_000_000, "robotics")


@presses("POST /teams/act credit", "operator")
def _(lab: Lab, page: Page) -> None:
    before = budget(lab, "vision")["budget"]["allowed_microusd"]
    page.goto(f"{lab.url}/teams")
    form = page.locator("#credit-vision")
    unfold(form)
    form.locator("[name=usd]").fill("40")
    form.locator("[name=sure]").check()
    with page.expect_navigation():
        form.locator("button").click()
    assert budget(lab, "vision")["budget"]["allowed_microusd"] == before + 40_000_000


@presses("POST /audit/act", "operator")
def _(lab: Lab, page: Page) -> None:
    page.goto(f"{lab.url}/audit")
    page.fill("#what-if [name=nodes]", "1")
    for each in page.locator("#what-if [type=checkbox]").all():
        each.uncheck()
    page.fill("#what-if [name=policy_other]", "fifo")
    press(page.locator("#what-if"))
    (found,) = wait_for(lambda: [each for each in lab.api("/policy")["what_if"] if each["nodes"] == 1])
    assert "fifo" in [each["policy"] for each in found["candidates"]]


def operated(lab: Lab, page: Page, form_id: str, verb: str, **fields: str) -> None:
    page.goto(f"{lab.url}/operate")
    form = page.locator(f"#{form_id}")
    unfold(form)
    for name, value in fields.items():
        field = form.locator(f"[name={name}]")
        if field.evaluate("each => each.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    if (sure := form.locator("[name=sure][type=checkbox]")).count():
        sure.check()
    with page.expect_navigation():
        form.locator(f"button[value={verb}]").click()


@presses("POST /operate/act role", "admin")
def _(lab: Lab, page: Page) -> None:
    def roles() -> dict[str, Any]:
        return {each["user"]: each["roles"] for each in lab.api("/users")["users"]}

    own = lab.tokens["admin"]
    operated(lab, page, "role-", "role", user="lou", team="speech", role="viewer", own=own)
    assert roles()["lou"] == {"speech": "viewer"}
    operated(lab, page, "role-lou", "role", team="speech", role="submitter", own=own)
    assert roles()["lou"] == {"speech": "submitter"}
    operated(lab, page, "role-lou", "role", team="speech", role="", own=own)
    assert not roles().get("lou")


@presses("POST /operate/act token", "admin")
def _(lab: Lab, page: Page) -> None:
    own = lab.tokens["admin"]
    operated(lab, page, "token-new", "token", user="tess", team="speech", role="viewer", days="3", own=own)
    lab.tokens["tess"] = page.locator("main pre").inner_text().strip()
    check_accessible(page, "a new token")
    who = lab.api("/whoami", by="tess")
    assert (who["name"], who["roles"]) == ("tess", {"speech": "viewer"})


@presses("POST /operate/act revoke", "admin")
def _(lab: Lab, page: Page) -> None:
    secret = lab.demo.person("rex", "speech", "viewer")
    header = {"authorization": f"Bearer {secret}"}
    assert httpx2.get(f"{lab.url}/v1/whoami", headers=header).status_code == 200
    operated(lab, page, f"token-{secret.split('_')[1]}", "revoke")
    assert httpx2.get(f"{lab.url}/v1/whoami", headers=header).status_code == 401


def queues(lab: Lab) -> dict[str, Any]:
    return {each["queue"]: each["set"] for each in lab.api("/queues")["queues"] if each["set"]}


@presses("POST /operate/act queue", "operator")
def _(lab: Lab, page: Page) -> None:
    operated(lab, page, "queue-", "queue", queue="night", gpus="3", weight="2", tenants="speech vision")
    made = queues(lab)["night"]
    assert (made["gpus"], made["weight"], made["tenants"]) == (3, 2, ["speech", "vision"])


@presses("POST /operate/act unqueue", "operator")
def _(lab: Lab, page: Page) -> None:
    operated(lab, page, "queue-", "queue", queue="dawn", gpus="1")
    assert "dawn" in queues(lab)
    operated(lab, page, "queue-dawn", "unqueue")
    assert "dawn" not in queues(lab)


@presses("POST /operate/act adopt", "operator")
def _(lab: Lab, page: Page) -> None:
    before = lab.api("/policy")["policy"]
    for policy, by in (("fifo", "mara"), (before, "")):  # what the server was started with is nobody's
        operated(lab, page, "adopt", "adopt", policy=policy)
        assert (lab.api("/policy")["policy"], lab.api("/policy")["by"]) == (policy, by)


# -- the way in and out, and tokens of one's own -----------------------------------------------------------


def session_of(page: Page) -> dict[str, str]:
    (cookie,) = page.context.cookies()
    return {"cookie": f"{cookie['name']}={cookie['value']}"}


@presses("POST /console/enter", "")
def _(lab: Lab, page: Page) -> None:
    link = lab.api("/tickets", method="POST")["path"]
    for path, text in (("/", lab.tokens["viewer"]), (link, "")):
        page.context.clear_cookies()
        page.goto(lab.url + path)
        if text:
            page.fill("#token", text)
        press(page.locator("main form"))
        name = httpx2.get(f"{lab.url}/v1/whoami", headers=session_of(page)).json()["data"]["name"]
        assert name == ("vera" if text else "mara")


@presses("POST /console/leave", "viewer")
def _(lab: Lab, page: Page) -> None:
    leaving = lab.enter(lab.tokens["viewer"])
    session = session_of(leaving)
    assert httpx2.get(f"{lab.url}/v1/whoami", headers=session).status_code == 200
    press(leaving.locator(".corner form"))
    assert httpx2.get(f"{lab.url}/v1/whoami", headers=session).status_code == 401
    page.goto(lab.url)  # another session of the same person goes on
    assert page.locator(".corner form").count() == 1


def signed_in_elsewhere(lab: Lab) -> Page:
    """Who may make tokens: somebody whom the organisation's provider has vouched for."""
    page, roles = lab.page(), {"speech": "viewer"}
    session = lab.demo.access.sign_in("https://login.example.org|1", "olive", roles)
    name = f"brimful_{urlsplit(lab.over_tls).port}"
    page.context.add_cookies([{"name": name, "value": session, "url": lab.over_tls}])
    page.goto(f"{lab.over_tls}/console/tokens")
    return page


@presses("POST /console/tokens", "viewer")
def _(lab: Lab, page: Page) -> None:
    page = signed_in_elsewhere(lab)
    press(page.locator("form[action='/console/tokens']"))
    secret = page.locator("main pre").inner_text().rpartition("BRIMFUL_TOKEN=")[2].strip()
    check_accessible(page, "tokens of one's own")
    lab.tokens["olive"] = secret
    assert lab.api("/whoami", by="olive")["roles"] == {"speech": "viewer"}


@presses("POST /console/tokens/revoke", "viewer")
def _(lab: Lab, page: Page) -> None:
    page = signed_in_elsewhere(lab)
    secret = lab.demo.person("olive", "speech", "viewer")
    page.reload()
    form = page.locator("form[action='/console/tokens/revoke']")
    press(form.filter(has_text=secret.split("_")[1]))
    answer = httpx2.get(f"{lab.url}/v1/whoami", headers={"authorization": f"Bearer {secret}"})
    assert answer.status_code == 401
