"""Five tasks each without a manual, by what the pages say alone: tired at 2 a.m., a manager, a phone.

All of them on the fleet of tools/demo.py, whose clock only these walks move.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from brimful.server.auth import Principal
from tests.server.test_console import FAINT_WORDS, PATIENCE_MS, browser  # noqa: F401 - a fixture
from tests.server.test_console_browser import check_accessible
from tools.demo import Demo, served

pytestmark = pytest.mark.browser


class Walk:
    def __init__(self, demo: Demo, url: str) -> None:
        self.demo, self.url = demo, url

    def enter(self, browser: Browser, name: str, team: str, role: str, *, width: int) -> tuple[Page, str]:  # noqa: F811
        """Somebody at a browser, and their token."""
        token = self.demo.person(name, team, role)
        page = browser.new_context(viewport={"width": width, "height": 844}, locale="en").new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.clock.set_system_time(self.demo.now_s)
        page.goto(self.url)
        page.get_by_label("Or paste a token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Needs attention")).to_be_visible()
        return page, token

    def job(self, name: str) -> str:
        states = self.demo.service.reader.fleet.jobs.values()
        return next(each.job.job for each in reversed(states) if each.job.name == name)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    demo = Demo(tmp_path_factory.mktemp("demo"))
    with served(demo) as url:
        yield Walk(demo, url)


def go(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="brimful").get_by_role("link", name=name, exact=True).click()


def test_tired_at_two_in_the_morning_my_job_died(walk: Walk, browser: Browser) -> None:  # noqa: F811
    page, token = walk.enter(browser, "tomas", "vision", "submitter", width=1280)
    page.get_by_role("link", name="failed in the last day").click()
    page.get_by_role("link", name="llama-8b longer context").first.click()
    expect(page.get_by_role("heading", name="Why it failed")).to_be_visible()
    expect(page.get_by_text("own tensors fill the card")).to_be_visible()
    expect(page.get_by_text("Turn on activation checkpointing.")).to_be_visible()

    page.get_by_role("link", name="Change and submit").click()
    expect(page.get_by_label("Command", exact=True)).to_have_value(
        "torchrun train.py configs/llama_8b_32k.yaml"
    )
    page.get_by_label("Command", exact=True).fill(
        "torchrun train.py configs/llama_8b_32k.yaml --checkpointing"
    )
    page.get_by_label("Name", exact=True).fill("llama-8b second try")
    expect(page.get_by_role("row", name="h100-sxm-80gb hall")).to_be_visible()
    page.get_by_label("Your token again").fill(token)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="llama-8b second try")).to_be_visible()
    walk.demo.tick(1)
    expect(page.get_by_text("it wants").or_(page.get_by_text("GPUs on one node")).first).to_be_visible()

    page.go_back()
    go(page, "Jobs")
    page.get_by_role("link", name="Failed", exact=True).click()
    page.get_by_role("link", name="llama-8b longer context").first.click()
    page.get_by_text("Run again", exact=True).first.click()
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_text("waiting", exact=True).first).to_be_visible()
    assert walk.job("llama-8b longer context") in page.url


def test_an_answer_under_way_does_not_undo_what_was_typed_since(walk: Walk, browser: Browser) -> None:  # noqa: F811
    page, _ = walk.enter(browser, "tomas", "vision", "submitter", width=1280)
    page.add_init_script("window.setTimeout = () => 0")  # no second check: only the first answer counts
    held: list[Route] = []
    page.route("**/submit/check", lambda route: held.append(route))  # noqa: PLW0108 - it needs a Python function
    with page.expect_request("**/submit/check"):
        page.goto(f"{walk.url}/submit?job={walk.job('llama-8b longer context')}")
    page.get_by_label("Name", exact=True).fill("second try")
    page.get_by_label("Folder", exact=True).focus()
    with page.expect_event("requestfinished"):
        held[0].continue_()
    page.evaluate("new Promise(requestAnimationFrame)")
    assert page.get_by_label("Name", exact=True).input_value() == "second try"


def test_a_labs_manager_looks_after_money_and_machines(walk: Walk, browser: Browser) -> None:  # noqa: F811
    page, _ = walk.enter(browser, "mara", "*", "operator", width=1440)
    page.get_by_role("link", name="speech has").click()
    expect(
        page.get_by_role("region", name="Budgets").get_by_role("row", name="speech/whisper")
    ).to_contain_text("of $400.00 used · monthly")
    page.get_by_role("link", name="2026-03", exact=True).click()
    expect(page.get_by_role("heading", name="Bill")).to_contain_text("in 2026-03 (UTC)")
    page.get_by_role("link", name="User", exact=True).click()
    expect(page.get_by_role("heading", name="Bill")).to_contain_text("in 2026-03 (UTC)")
    expect(page.get_by_role("row", name="ann")).to_contain_text("$")
    go(page, "Audit")
    expect(page.get_by_text("Wasted", exact=False).first).to_be_visible()
    expect(page.get_by_role("row", name="vision · tomas").first).to_contain_text("$")

    go(page, "Fleet")
    node = page.get_by_role("article").filter(has=page.get_by_role("heading", name="desk-4", exact=True))
    node.get_by_text("Drain …").click()
    node.get_by_label("Reason shown to others").fill("new fan on Friday")
    node.get_by_role("button", name="Drain it").click()
    expect(node.get_by_text("new fan on Friday")).to_be_visible()
    expect(node.get_by_role("button", name="Resume")).to_be_visible()

    go(page, "Operate")
    row = page.get_by_role("region", name="Queues and quotas").get_by_role("row", name="vision")
    row.get_by_text("Change …").click()
    row.get_by_label("Quota").fill("12")
    row.get_by_role("checkbox", name="yes, I am sure").check()
    row.get_by_role("button", name="Change").click()
    expect(
        page.get_by_role("region", name="Queues and quotas").get_by_role("row", name="vision")
    ).to_contain_text("12")
    assert [(each.queue, each.gpus) for each in walk.demo.service.reader.fleet.queues] == [("vision", 12)]


def test_on_a_phone_is_my_job_all_right_cancel_it_and_approve_spend(walk: Walk, browser: Browser) -> None:  # noqa: F811
    page, _ = walk.enter(browser, "noor", "speech", "admin", width=390)
    go(page, "Jobs")
    page.get_by_label("only mine").check()
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name="whisper-large").first.click()
    expect(page.get_by_text("running", exact=True).first).to_be_visible()
    expect(page.get_by_text("41,200 tokens/s")).to_be_visible()
    page.get_by_text("Cancel …").click()
    page.get_by_role("button", name="Yes, cancel it").click()
    walk.demo.tick(1)
    walk.demo.tick(1)
    expect(page.get_by_text("cancelled", exact=True).first).to_be_visible()
    page.get_by_role("button", name="Sign out").click()

    page, _ = walk.enter(browser, "mara", "*", "operator", width=390)
    before = _left(walk, "speech")
    page.get_by_role("link", name="speech has").click()
    row = page.get_by_role("row", name="speech", exact=False).filter(has_text="of $1,500.00 used")
    row.get_by_text("Add credit …").click()
    row.get_by_label("Credit in USD").fill("500")
    row.get_by_label("Reason shown to others").fill("for the deadline")
    row.get_by_role("checkbox", name="yes, I am sure").check()
    row.get_by_role("button", name="Add credit").click()
    expect(page.get_by_text("$2,000.00 used")).to_be_visible()
    assert _left(walk, "speech") >= before + 499_000_000
    page.wait_for_load_state()  # of the stylesheet too
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def _left(walk: Walk, team: str) -> int:
    from brimful.server.views.money import budgets_view

    who = Principal(token="0" * 16, name="x", roles={"*": "operator"})
    (found,) = [each for each in budgets_view(walk.demo.service.reader, who) if each["tenant"] == team]
    assert found["left_microusd"] is not None
    return found["left_microusd"]


def test_gpus_are_reserved_at_the_price_that_was_shown_and_returned(walk: Walk, browser: Browser) -> None:  # noqa: F811
    page, _ = walk.enter(browser, "kim", "robotics", "submitter", width=1280)
    go(page, "Market")
    page.get_by_text("Reserve GPUs …").click()
    page.get_by_role("spinbutton", name="GPUs", exact=True).fill("1")
    page.get_by_label("Hours", exact=True).fill("10")
    page.get_by_role("button", name="Show the price").click()
    expect(page.get_by_role("heading", name="Price of this reservation")).to_be_visible()
    page.wait_for_load_state()  # of the stylesheet too
    assert page.evaluate(FAINT_WORDS) == []  # the button that spends money above all
    page.get_by_role("button", name="Buy for $").click()
    row = page.get_by_role("region", name="Reservations").get_by_role("row", name="robotics")
    expect(row).to_contain_text("1 × l40s")
    row.get_by_text("Change …").click()
    row.get_by_role("checkbox", name="yes, I am sure").check()
    row.get_by_role("button", name="Return for credit").click()
    expect(row).to_contain_text("ended")
    # What another team has reserved is theirs to know.
    assert page.get_by_role("row", name="speech").count() == 0


def test_every_page_of_three_days_is_accessible_with_every_form_open(walk: Walk, browser: Browser) -> None:  # noqa: F811
    page, _ = walk.enter(browser, "mara", "*", "operator", width=1440)
    states = walk.demo.service.reader.fleet.jobs.values()
    failed = next(each.job.job for each in states if each.phase == "failed" and "llama-8b" in each.job.name)
    for path, there in (
        ("/", ".use"),
        ("/jobs?view=all", "#together"),
        (f"/jobs/{walk.job('vit-h pretraining')}", "#act-bid"),
        (f"/jobs/{failed}", ".cause"),
        (f"/jobs/{walk.job('world model')}", "#act-move"),
        ("/submit", "#file"),
        ("/fit?model=llama-3-8b&gpu=h100-sxm-80gb&gpu=rtx-4090", ".bars"),
        ("/fleet", "#drain-desk-1"),
        ("/market", "#reserve-r1"),
        ("/teams", ".days rect"),
        ("/audit?days=7", "#what-if"),
        ("/operate", "#cloud-title"),
        ("/jobs/job-9999", "h2"),
    ):
        page.goto(walk.url + path)
        expect(page.locator(there).first).to_be_visible()
        check_accessible(page, path)
    _check_what_forms_answer(walk, page)
    page.locator(".corner button").click()
    expect(page.locator("#token")).to_be_visible()
    check_accessible(page, "the way in")
    ticket = walk.demo.access.ticket(Principal(token="0" * 16, name="mara", roles={"*": "operator"}))
    page.goto(f"{walk.url}/console/enter?ticket={ticket}")
    expect(page.locator("main")).to_contain_text("mara")
    check_accessible(page, "a link that signs in")


def _check_what_forms_answer(walk: Walk, page: Page) -> None:
    page.goto(f"{walk.url}/submit")
    page.fill("#file", "command: python train.py\nfolder: /data\ngpus: 8\n")
    expect(page.locator("#check tbody tr")).to_have_count(3)
    check_accessible(page, "a checked job")
    page.goto(f"{walk.url}/jobs")
    page.locator("#together summary").click()
    page.locator("#together [value=hold]").click()
    expect(page.get_by_role("alert")).to_be_visible()
    check_accessible(page, "nobody confirmed it")
    page.goto(f"{walk.url}/market")
    page.locator("#reserve summary").click()
    page.locator("#reserve button").click()
    expect(page.locator(".offer")).to_be_visible()
    check_accessible(page, "an offer")
