"""The demo's fleet, served: a browser page for each role, and the API beside it."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Request

from tests.patience import PATIENCE_S
from tests.server.test_console import PATIENCE_MS
from tools.demo import Demo, Fate

PEOPLE = {
    "viewer": ("vera", "speech"),
    "submitter": ("jules", "speech"),
    "admin": ("noor", "speech"),
    "operator": ("mara", "*"),
}
# What every button of a page would send: method, path and verb. Read by the browser's own parser.
OFFERED = """async ([path, sent]) => {
    const body = sent && new URLSearchParams({ ...sent,
        form_key: document.querySelector('.corner [name="form_key"]').value });
    const answer = await fetch(path, body ? { method: "POST", body } : {});
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    return [...page.querySelectorAll("button, input[type=submit], input[type=image], input[type=button]")]
        .map((button) => {
            const form = button.form;
            const action = button.getAttribute("formaction") ?? form?.getAttribute("action");
            const verb = button.name === "verb" ? button : form?.elements.namedItem("verb");
            return [form?.method ?? "", action ?? button.outerHTML, verb?.value ?? ""];
        });
}"""


def key_of(method: str, path: str, verb: str = "") -> str:
    path = re.sub(r"^/jobs/[^/]+/act$", "/jobs/{job}/act", path)
    return f"{method.upper()} {path} {verb}".strip()


class Lab:
    """The demo's fleet, served; one browser page per role, of team speech or of all."""

    def __init__(self, demo: Demo, browser: Browser, url: str, over_tls: str) -> None:
        self.demo, self._browser, self.url, self.over_tls = demo, browser, url, over_tls
        self.tokens = {role: demo.person(name, team, role) for role, (name, team) in PEOPLE.items()}
        self.sent: list[str] = []
        self._contexts: list[BrowserContext] = []
        self.pages = {role: self.enter(token) for role, token in self.tokens.items()}

    def page(self) -> Page:
        self._contexts.append(context := self._browser.new_context(timezone_id="Europe/Paris", locale="en"))
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", self._note)
        return page

    def close(self) -> None:
        """Before the server ends: it waits for whoever still follows a log."""
        for context in self._contexts:
            context.close()

    def enter(self, token: str) -> Page:
        page = self.page()
        page.goto(self.url)
        page.fill("#token", token)
        press(page.locator("main form"))
        return page

    def _note(self, request: Request) -> None:
        if request.is_navigation_request():
            verb = parse_qs(request.post_data or "").get("verb", [""])[0]
            self.sent.append(key_of(request.method, urlsplit(request.url).path, verb))

    def api(self, path: str, *, by: str = "operator", method: str = "GET", **body: Any) -> Any:
        answer = httpx2.request(
            method,
            f"{self.url}/v1{path}",
            headers={"authorization": f"Bearer {self.tokens[by]}"},
            json=body or None,
            timeout=PATIENCE_S,
        )
        assert answer.status_code < 300, answer.text
        return answer.json()["data"]

    def submit(self, name: str = "pressed") -> str:
        """A job of jules' that waits: the demo's clock stands, and nothing is started."""
        given: dict[str, Any] = {"user": "jules", "tenant": "speech", "command": ("true",), "gpus": 2}
        return self.demo.submit(fate=Fate(work_s=60), name=name, **given)

    def job(self, name: str) -> Any:
        return self.api(f"/jobs/{name}")

    def held(self) -> str:
        job = self.submit("held")
        self.api(f"/jobs/{job}/hold", method="POST", reason="fans")
        return job


def press(form: Locator, button: str = "button") -> None:
    """Opened first where it is folded away; returns when the next page is there."""
    unfold(form)
    with form.page.expect_navigation(wait_until="load"):
        form.locator(button).click()


def unfold(form: Locator) -> None:
    inside = form.locator("summary")
    around = form.locator("xpath=ancestor::details[not(@open)]/summary")
    for summary in (*around.all(), *inside.all()):
        summary.click()
