"""What another site, or words that are markup, may do to somebody who is signed in: nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page

from brimful.server.app import make_app
from tests.server.test_console import PATIENCE_MS, Desk, browser, desk  # noqa: F401 - fixtures
from tests.server.test_overview import PAGES
from tools.demo import listening

# Each of them would own the page if it ran; what the browser refused is told by its own events.
INJECTED = """() => new Promise((done) => {
    const refused = [];
    document.addEventListener("securitypolicyviolation", (told) => refused.push(told.effectiveDirective));
    const script = document.createElement("script");
    script.textContent = "document.title = 'owned'";
    const markup = document.createElement("div");
    markup.innerHTML = `<img src="/nothing.png" onerror="document.title = 'owned'"><p style="color: red">`;
    markup.querySelector("img").addEventListener("error", () => setTimeout(() => done(refused.sort())));
    document.body.append(script, markup);
})"""
FORM = """<form method="post" action="{url}/jobs/job-1/act"><input name="verb" value="cancel">
<input name="sure" value="yes"><button>Win</button></form><iframe src="{url}/"></iframe>"""
FETCH = """(url) => fetch(`${url}/jobs/job-1/act`, { method: "POST", mode: "no-cors", credentials: "include",
    body: new URLSearchParams({ verb: "cancel", sure: "yes" }) }).then(() => "sent", () => "not sent")"""


@contextmanager
def another_site(html: str) -> Iterator[int]:
    """A port of this host: of our site for a browser, which sends our cookie along, but of another origin."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def open_desk(desk: Desk, browser: Browser) -> Iterator[tuple[str, Page]]:  # noqa: F811
    """Its address, and a page of its operator."""
    desk.service.driver.tick()
    desk.submit(gpus=9, name="a job that waits")
    with listening(make_app(desk.service, desk.access, hosts=("127.0.0.1",))) as url:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        page.fill("#token", desk.access.issue(name="op", tenant="*", role="operator")[0])
        with page.expect_navigation():
            page.locator("main button").click()
        yield url, page
        context.close()


def phase(desk: Desk) -> str:  # noqa: F811
    return str(desk.client.get("/v1/jobs/job-1").json()["data"]["phase"])


@pytest.mark.browser
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_another_site_sends_no_form_and_frames_no_page(
    desk: Desk,  # noqa: F811
    open_desk: tuple[str, Page],
    host: str,
) -> None:
    url, page = open_desk
    with another_site(FORM.format(url=url)) as port:
        page.goto(f"http://{host}:{port}")
        assert len(page.frames) == 2
        assert [frame.locator(".corner, #token").count() for frame in page.frames] == [0, 0]
        page.evaluate(FETCH, url)
        assert phase(desk) == "waiting"
        with page.expect_navigation() as answered:
            page.get_by_role("button", name="Win").click()
        assert (answered.value.status, phase(desk)) == (403, "waiting")
    page.goto(f"{url}/jobs/job-1")
    page.locator("#act-cancel summary").click()
    with page.expect_navigation():
        page.locator("#act-cancel button").click()
    assert phase(desk) == "cancelled", "what our own page sends is done"


@pytest.mark.browser
def test_on_no_page_would_markup_run_that_slipped_through(open_desk: tuple[str, Page]) -> None:
    url, page = open_desk
    for path in PAGES:
        page.goto(url + path.format(job="job-1"))
        assert page.evaluate(INJECTED) == ["script-src-attr", "script-src-elem", "style-src-attr"], path
        assert page.title() != "owned", path
