"""Every page in a real browser: accessible, within a phone's width, in order and free of errors."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.live import live, wait_for
from tests.server.test_console import HOSTILE, PATIENCE_MS, browser  # noqa: F401 - a fixture

PAGES = (
    "/",
    "/jobs?view=all",
    "/jobs/job-1",
    "/submit",
    "/fit",
    "/fleet",
    "/market",
    "/teams",
    "/audit",
    "/operate",
)
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
SERIOUS = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
    .filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => `${each.id}: ${each.nodes[0].html.slice(0, 200)}`)"""
UNFOLD = """() => document.querySelectorAll("details, dialog").forEach((each) => (each.open = true))"""


def check_accessible(page: Page, name: str) -> None:
    """Every rule of axe, with everything unfolded: light on a desk, dark on a phone."""
    page.wait_for_load_state()  # of the stylesheet too
    page.evaluate(UNFOLD)
    page.evaluate(AXE)
    for scheme, width in (("light", 1440), ("dark", 390)):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(SERIOUS) == [], f"{name}, {scheme}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name


@pytest.mark.browser
def test_every_page_is_accessible_light_and_dark_and_a_job_is_written_and_cancelled(
    tmp_path: Path,
    browser: Browser,  # noqa: F811
) -> None:
    with live(tmp_path / "data", "--slots", "2", "--jobs-share-my-user", "--market", "all") as server:
        home = json.loads((server.data / "server.json").read_text())["url"]
        token = (server.data / "token").read_text().strip()
        server.submit("--tenant", "red", "--name", "first", command=["sleep", "600"])
        wait_for(lambda: server.show("job-1")["phase"] == "running")
        # The policy of the pages keeps scripts out that are not ours: axe comes in beside it.
        context = browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        problems: list[str] = []
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(home)
        page.fill("#token", token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".corner")).to_be_visible()
        problems.clear()  # the way in answers 401, which a browser calls an error
        for path in PAGES:
            page.goto(home + path)
            check_accessible(page, path)
        assert problems == []

        page.goto(f"{home}/submit")
        page.fill("#file", f"command: echo '{HOSTILE.split(chr(34))[0]}'\nfolder: {tmp_path}\ngpus: 2\n")
        expect(page.locator("#gpus")).to_have_value("2")
        expect(page.locator("#check tbody tr")).to_have_count(1)
        page.fill("#name", "written here")
        expect(page.locator("#file")).to_have_value(re.compile("name: written here"))
        page.fill("#token", token)
        page.get_by_role("button", name="Submit").click()
        expect(page.locator(".head h2")).to_contain_text("written here")
        page.goto(f"{home}/jobs")
        page.get_by_label("job-1", exact=True).check()
        page.get_by_text("With selected jobs").click()
        page.get_by_label("yes, I am sure").check()
        page.get_by_role("button", name="Yes, cancel them").click()
        wait_for(lambda: server.show("job-1")["phase"] == "cancelled")
        assert page.title() != "owned"

        page.goto(f"{home}/audit")
        page.fill("#what-if [name=nodes]", "0 1")
        page.get_by_role("button", name="Rehearse").click()
        expect(page.locator("main h3")).to_have_count(2)
        expect(page.locator("main h3").last).to_contain_text("1 node more")
        check_accessible(page, "with tables of What if")
        assert problems == []
        context.close()
