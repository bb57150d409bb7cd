"""The console: what it shows is what the API says, and it stays true while it is open."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from starlette.testclient import TestClient

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.events import Event, LeaseEnded, LeaseEnding, LeaseGranted, LeaseStarted
from brimful.fleet.job import Job
from brimful.fleet.state import Node
from brimful.language import verbatim
from brimful.scheduler.rules import Rules
from brimful.server.app import make_app
from brimful.server.console import page_data
from brimful.server.service.service import Service
from brimful.server.views.fleet import fleet_view
from tests.builders import check_reason
from tests.patience import PATIENCE_S
from tests.server.builders import OPERATOR, an_access, bearer

PATIENCE_MS = 1000 * PATIENCE_S
expect.set_options(timeout=PATIENCE_MS)  # its own is five seconds, which a busy machine may need
CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]
HOSTILE = """<script>document.title='owned'</script>"><img src=x onerror="document.title='owned'">"""

# Texts whose contrast is under 4.5 to 1 (WCAG 2.2, 1.4.3), by the colours the browser has computed.
FAINT_WORDS = """() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgb = (colours) => {
        for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = (parts) => parts.map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const faint = [];
    for (const each of document.querySelectorAll("body *")) {
        const own = [...each.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
        if (!own || !each.checkVisibility()) continue;
        const behind = [];
        for (let at = each; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
        const [a, b] = [light(rgb(behind)), light(rgb([...behind, getComputedStyle(each).color]))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) faint.push(`${each.className} ${each.textContent}: ${ratio.toFixed(2)}`);
    }
    return faint;
}"""


# -- without a browser: the HTML itself --------------------------------------------------------------------


class Desk:
    """A service whose clock and ticks the test holds in its hands, and a client of its pages."""

    def __init__(self, folder: Path, *, gpus: int = 2, declared: bool = True) -> None:
        node = Node(
            site="local",
            node="local-0",
            gpu="rtx-4070",
            gpus=gpus,
            microusd_per_gpu_hour=360_000,
            declared=declared,
        )
        self.store = SqlStore(f"sqlite:///{folder / 'brimful.db'}")
        self.now_s = 1_700_000_000
        self.service = Service(
            self.store,
            [LocalEngine(folder / "leases", [node])],
            Rules(),
            clock=lambda: self.now_s,
        )
        self.access = an_access(self.store)
        self.client = TestClient(make_app(self.service, self.access), base_url="http://127.0.0.1")
        self.client.headers.update(bearer(self.access))

    def submit(self, **given: Any) -> None:
        wanted: dict[str, Any] = {"gpus": 1, "command": ("true",), "folder": "/"} | given
        self.service.submissions.submit(Job(job="", **wanted))

    def write(self, *events: Event) -> None:
        """Straight into the log, as another process would; no process is started for it."""
        assert self.store.append(events, after=self.service.reader.fleet.seq)
        self.service.reader.refresh()

    def html(self, path: str = "/") -> str:
        reply = self.client.get(path)
        assert reply.status_code == 200
        return reply.text


def a_lease_of(job: str, *, at_s: int, gpu: int = 0) -> list[Event]:
    granted = LeaseGranted(
        at_s=at_s, lease=f"{job}.1", job=job, node="local-0", gpus=(gpu,), microusd_per_gpu_hour=360_000
    )
    return [granted, LeaseStarted(at_s=at_s, lease=f"{job}.1")]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.store.close()


def words(html: str) -> str:
    """What a reader sees of it, roughly."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_an_empty_console_teaches_the_first_command(desk: Desk) -> None:
    html = desk.html()
    assert "brimful submit -- python examples/train_tiny.py" in html
    assert re.search(r'<section class="panel fleet".*?<p class="empty">', html, re.DOTALL)
    assert re.search(r"<tfoot>.*?chip finished.*?\$0\.00</td>", desk.html("/teams"), re.DOTALL)


def test_what_is_not_measured_says_unknown_and_why_once(desk: Desk) -> None:
    desk.service.driver.tick()
    html = desk.html()

    assert f"<code>{desk.service.reader.policy}</code>" in html
    assert html.count("in use are not measured here.") == html.count("not checked that they exist") == 1
    assert "None" not in html
    assert re.findall(r'<span class="mark">(\w+)</span>', html) == ["declared"]


def test_a_waiting_job_says_why_with_numbers(desk: Desk) -> None:
    desk.submit(gpus=3, name="too large")
    desk.service.driver.tick()
    desk.now_s += 65

    page = words(desk.html())
    job = desk.client.get("/v1/jobs/job-1").json()["data"]
    check_reason(job["why_code"], "scheduler.too_wide_node", 2)
    assert job["why_code"]["gpus"]["n"] == 3
    assert job["why"] in page
    assert "1 min 05 s" in page


@pytest.mark.parametrize("field", ["name", "command", "tenant", "gpu_types"])
def test_hostile_words_are_text(desk: Desk, field: str) -> None:
    desk.submit(**{field: (HOSTILE,) if field in ("command", "gpu_types") else HOSTILE})

    html = desk.html()
    assert "<script>document" not in html
    assert "<img" not in html
    assert "&lt;script&gt;document" in html


def test_characters_that_turn_the_line_around_or_cannot_be_printed_are_marked(desk: Desk) -> None:
    desk.submit(command=("echo", "abc\u202egnp.exe", "\x1b[2J", "\ud800"))

    html = desk.html()
    assert "\u202e" not in html
    assert "\x1b" not in html
    assert "abc\N{REPLACEMENT CHARACTER}gnp.exe" in html


def test_a_command_of_a_million_letters_does_not_make_a_page_of_a_million_letters(desk: Desk) -> None:
    desk.submit(command=("echo", "x" * 1_000_000))

    assert len(desk.html()) < 50_000


def test_the_page_carries_no_inline_style_or_script(desk: Desk) -> None:
    desk.submit(budget_microusd=1000)
    html = desk.html()

    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", html)
    assert re.findall(r"<script[^>]*>", html) == ['<script src="/console/console.js" defer>']
    assert not re.search(r"(?:src|href)=\"(?![/#])", html), "nothing is loaded from elsewhere"


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/console/live", "text/html; charset=utf-8"),
        ("/console/console.css", "text/css; charset=utf-8"),
        ("/console/console.js", "text/javascript; charset=utf-8"),
        ("/console/icon.svg", "image/svg+xml"),
    ],
)
def test_what_the_browser_has_already_is_not_sent_again(desk: Desk, path: str, media_type: str) -> None:
    first = desk.client.get(path)
    again = desk.client.get(path, headers={"if-none-match": first.headers["etag"]})

    assert first.headers["content-type"] == media_type
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["pages.py", "templates", "..%2fapi.py", "nothing.css"])
def test_no_other_file_is_served(desk: Desk, name: str) -> None:
    assert desk.client.get(f"/console/{name}").status_code == 404


def test_the_figures_are_those_of_the_api(desk: Desk) -> None:
    desk.service.driver.tick()
    desk.submit(budget_microusd=1_000)
    desk.submit(gpus=2)
    desk.write(*a_lease_of("job-1", at_s=desk.now_s))
    desk.now_s += 5  # at $0.36 an hour

    fleet = desk.client.get("/v1/fleet").json()["data"]
    page = words(desk.html())
    assert f"{fleet['gpus'] - fleet['free']} / {fleet['gpus']} GPUs held" in page
    assert "1 / 1 Jobs running / waiting" in page
    assert re.search(r"\$0\.0005 Accruing now \D*\$0\.36 ", page)
    assert "5 s $0.0005 of $0.001" in page
    assert "local-0 #0" in page


def test_why_a_job_ended_or_is_being_stopped_is_told(desk: Desk) -> None:
    desk.service.driver.tick()
    desk.submit()
    desk.submit()
    desk.write(*a_lease_of("job-1", at_s=desk.now_s), *a_lease_of("job-2", at_s=desk.now_s, gpu=1))
    desk.write(
        LeaseEnded(at_s=desk.now_s + 3, lease="job-1.1", exit_code=1, reason=verbatim("exit code 1")),
        LeaseEnding(at_s=desk.now_s + 3, lease="job-2.1", reason=verbatim("a <b>reason</b>"), requeue=False),
    )

    html = desk.html()
    page = words(html)
    assert "failed 1 0 s 3 s $0.0003 exit code 1" in page
    assert '<a href="/jobs/job-1">' in html and '<a href="/jobs/job-1#log-title">See the log</a>' in html  # noqa: PT018
    assert html.count('<a href="/jobs/job-2">') == 2  # by its name, and on its GPU
    assert '<span class="chip stopping">' in html
    assert "a &lt;b&gt;reason&lt;/b&gt;" in page


def test_trouble_stands_on_top(desk: Desk) -> None:
    desk.service.reader.health.error = verbatim("the database is <locked>")

    (trouble,) = re.findall(r'<p class="banner bad">(.*?)</p>', desk.html())
    assert trouble.endswith(" the database is &lt;locked&gt;")


def test_a_job_that_still_waits_is_shown_however_many_came_after(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_data, "OVER_SHOWN", 3)
    desk.submit(name="the old one")
    for _ in range(5):
        desk.submit()
    for i in range(2, 7):
        desk.service.submissions.cancel(f"job-{i}")

    page = desk.html()
    assert "the old one" in page
    assert '<p class="small"><a href="/jobs">' in page


def test_measured_gpus_show_their_numbers_and_the_others_unknown(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.service.driver.tick()
    fleet = fleet_view(desk.service.reader, OPERATOR)
    fleet["nodes"][0]["gpus"][0] |= {"memory_used_bytes": 3 << 30, "busy_frac": 0.5}
    monkeypatch.setattr(page_data, "fleet_view", lambda _service, _who: fleet)

    first, second = re.findall(r'<li class="tile (.*?)</li>', desk.html(), re.DOTALL)
    assert re.search(r"GPU 0.* 3\.00 GiB, \w+ 50 %", words(first))
    assert len(re.findall(r"\bunknown\b", words(second))) == 2


# -- in a real browser, beside a real server ---------------------------------------------------------------


class Server:
    """`brimful up` in a process of its own, on a free port, with its data in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = "http://127.0.0.1:0"  # any port that is free
        self.start()

    def start(self) -> None:
        code = "import sys; from brimful.cli.main import main; sys.exit(main())"
        flags = ["--data", str(self.folder / "data"), "--port", self.url.rpartition(":")[2], "--slots", "2"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "up", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("BRIMFUL_")},
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:  # the banner is written when the socket listens
            if found := re.search(r"(http://127\.0\.0\.1:\d+)\S*", line):
                self.link, self.url = found[0], found[1]
                return
        raise AssertionError("the server did not start")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=PATIENCE_S)

    def headers(self) -> dict[str, str]:
        token = (self.folder / "data" / "token").read_text(encoding="utf-8")
        return {"authorization": f"Bearer {token}"}

    def submit(self, *command: str, **given: Any) -> str:
        body = {"command": command, "folder": str(self.folder)} | given
        reply = httpx2.post(f"{self.url}/v1/jobs", json=body, headers=self.headers(), timeout=PATIENCE_S)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["data"]["job"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser(chromium_path: Path) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def open_page(server: Server, browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages, signed in, that fail their test if the browser's console tells of an error."""
    contexts = []
    complaints: list[str] = []

    def open_at(url: str, *, quiet: bool = True, **options: Any) -> Page:
        contexts.append(context := browser.new_context(**options))
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        if quiet:
            page.on(
                "console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None
            )
            page.on("pageerror", lambda error: complaints.append(str(error)))
        link = httpx2.post(f"{server.url}/v1/tickets", headers=server.headers(), timeout=PATIENCE_S).json()
        page.goto(server.url + link["data"]["path"])
        page.click("main button")
        # `click` returns before the next page has its style sheet; without one its sizes mean nothing.
        page.wait_for_url(f"{server.url}/", wait_until="load")
        if url != server.url:
            page.goto(url)
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert not complaints


@pytest.mark.browser
def test_a_job_submitted_elsewhere_appears_on_the_open_page_and_ends_with_its_cost(
    server: Server, open_page: Callable[..., Page]
) -> None:
    page = open_page(server.url)
    expect(page.locator("#age")).to_have_class("live")
    page.evaluate("window.notReloaded = true")

    # Half a second at the least, or its cost could be nothing at all: the log counts whole seconds.
    job = server.submit(sys.executable, "-c", "import time; time.sleep(1.2)", name="tiny", gpus=2)

    row = page.locator(f"#{job}")
    expect(row).to_contain_text("tiny")
    expect(row.locator(".chip")).to_have_text("finished")
    expect(row).to_contain_text(re.compile(r"\$0\.0*[1-9]"))
    assert page.evaluate("window.notReloaded")
    page.goto(f"{server.url}/teams")
    expect(page.locator(".transfers")).to_contain_text(f"{job}.1")


@pytest.mark.browser
def test_the_page_says_so_when_the_server_is_gone_and_when_it_is_back(
    server: Server, open_page: Callable[..., Page]
) -> None:
    page = open_page(server.url, quiet=False)  # the browser itself reports each refused connection
    expect(page.locator("#age")).to_have_text(re.compile(r"^live · \d+ s ago$"))

    server.stop()
    lost = page.locator("#lost")
    expect(lost).to_have_text(re.compile(r"^Connection lost since \d\d:\d\d:\d\d; retrying"))
    expect(page.locator("#age")).to_have_class("stale")
    expect(page.locator("html")).to_have_class("stale")

    server.start()
    expect(lost).to_be_hidden()
    expect(page.locator("#age")).to_have_class("live")


@pytest.mark.browser
def test_an_error_of_the_server_is_shown_in_its_own_words(
    server: Server, open_page: Callable[..., Page]
) -> None:
    page = open_page(server.url, quiet=False)
    expect(page.locator("#age")).to_have_class("live")

    error = {"code": "world_failed", "problem": "the database is <b>locked</b>", "hint": ""}
    page.route("**/console/live", lambda route: route.fulfill(status=503, json={"ok": False, "error": error}))

    lost = page.locator("#lost")
    expect(lost).to_contain_text("The server answers 503: the database is <b>locked</b> since")


@pytest.mark.browser
def test_a_hidden_page_asks_for_nothing_and_a_shown_one_at_once(
    server: Server, open_page: Callable[..., Page]
) -> None:
    page = open_page(server.url)
    page.clock.install()
    page.reload()  # so that every timer is on the clock of the test
    expect(page.locator("#age")).to_have_class("live")
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    with page.expect_response("**/console/live"):
        page.evaluate(hide, False)
    page.evaluate(hide, True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(60_000)
    assert not asked
    with page.expect_response("**/console/live"):
        page.evaluate(hide, False)


@pytest.mark.browser
def test_a_hostile_command_is_text_in_the_browser_too(server: Server, open_page: Callable[..., Page]) -> None:
    page = open_page(server.url)
    job = server.submit("echo", HOSTILE, gpus=2)

    expect(page.locator(f"#{job} .what")).to_contain_text("<script>")
    assert page.locator("img, main script").count() == 0
    assert "owned" not in page.title()


@pytest.mark.browser
def test_a_selection_and_the_scroll_survive_the_news(server: Server, open_page: Callable[..., Page]) -> None:
    page = open_page(server.url, viewport={"width": 900, "height": 400})
    expect(page.locator(".tile")).to_have_count(2)
    page.evaluate("getSelection().selectAllChildren(document.getElementById('jobs-title')); scrollTo(0, 60)")

    job = server.submit(sys.executable, "-c", "pass")

    expect(page.locator(f"#{job} .chip")).to_have_text("finished")
    assert page.evaluate("[String(getSelection()), scrollY]") == ["Jobs", 60]


@pytest.mark.browser
def test_no_screen_is_scrolled_sideways(server: Server, open_page: Callable[..., Page]) -> None:
    server.submit("echo", "long" * 500, name="n" * 100, tenant="t" * 60, gpus=3, budget_microusd=10**12)
    for width in (320, 380, 600, 870, 1280, 1600):
        page = open_page(server.url, viewport={"width": width, "height": 800})
        expect(page.locator("#job-1")).to_contain_text("largest node has 2")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    job = server.submit("echo", "long" * 500, name="n" * 100, tenant="t" * 60, budget_microusd=10**12)
    for width in (320, 390):
        page = open_page(f"{server.url}/jobs/{job}", viewport={"width": width, "height": 800})
        last = page.locator(".leases .ends").last
        expect(last).not_to_have_text("runs")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        box = last.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width, "how it ended is not pushed out of its panel"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_stands_out_from_what_is_behind_it(
    server: Server, open_page: Callable[..., Page], scheme: str
) -> None:
    server.submit("true", gpus=3, priority="urgent")
    server.submit("false", budget_microusd=1000)
    page = open_page(server.url, color_scheme=scheme)
    for chip in ("waiting", "failed"):
        expect(page.locator(f".stacks .chip.{chip}")).to_be_visible()

    assert page.evaluate(FAINT_WORDS) == []


@pytest.mark.browser
def test_without_scripts_the_page_still_tells_everything(
    server: Server, open_page: Callable[..., Page]
) -> None:
    job = server.submit("true", gpus=3, name="plain")
    page = open_page(server.url, java_script_enabled=False)

    expect(page.locator(f"#{job}")).to_contain_text("plain")
    expect(page.locator("#age")).to_have_text(re.compile(r"^as of \d\d:\d\d:\d\d UTC$"))


@pytest.mark.browser
def test_times_are_in_the_viewers_zone(server: Server, open_page: Callable[..., Page]) -> None:
    server.submit("true", budget_microusd=1000)
    shown_hours = set()
    for zone in ("UTC", "Asia/Kolkata"):
        page = open_page(server.url, timezone_id=zone)
        page.goto(f"{server.url}/teams")
        clock = page.locator(".transfers time").last
        expect(clock).not_to_contain_text("UTC")
        shown_hours.add(clock.inner_text()[-8:])
    assert len(shown_hours) == 2


@pytest.mark.browser
def test_no_field_a_user_gives_is_ever_more_than_text(server: Server, open_page: Callable[..., Page]) -> None:
    """Where the API lets them pass at all: on the list, on a job's own page, and in its log."""
    for name in ("name", "tenant", "queue", "priority", "within"):
        body = {"command": ["true"], "folder": "/", name: HOSTILE}
        refused = httpx2.post(
            f"{server.url}/v1/jobs", json=body, headers=server.headers(), timeout=PATIENCE_S
        )
        assert refused.status_code == 422, name
    job = server.submit("sh", "-c", f"cat <<'END'\n{HOSTILE}\nEND\nsleep 600", HOSTILE, env={"X": HOSTILE})
    log = f"{server.url}/v1/jobs/{job}/log"
    until = time.monotonic() + PATIENCE_S
    while HOSTILE not in httpx2.get(log, headers=server.headers(), timeout=PATIENCE_S).json()["data"]["text"]:
        assert time.monotonic() < until
    lost = server.submit("true", folder=f"/{HOSTILE}")
    hold = {"reason": HOSTILE}
    drained = httpx2.post(
        f"{server.url}/v1/nodes/local-0/drain", json=hold, headers=server.headers(), timeout=PATIENCE_S
    )
    assert drained.status_code == 200
    held = httpx2.post(
        f"{server.url}/v1/jobs/{job}/hold", json=hold, headers=server.headers(), timeout=PATIENCE_S
    )
    assert held.status_code == 200
    for path in ("/", f"/jobs/{job}", f"/jobs/{lost}"):
        page = open_page(server.url + path)
        expect(page.locator("main")).to_contain_text("<script>")
        if path == f"/jobs/{job}":
            expect(page.locator("#log")).to_contain_text("onerror")
            expect(page.locator(".timeline")).to_contain_text("<script>")
        page.wait_for_timeout(2500)  # and after the page has renewed itself
        assert page.locator("img, main script, iframe").count() == 0
        assert "owned" not in page.title()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_jobs_page_shows_its_time_its_money_and_its_log(
    server: Server, open_page: Callable[..., Page], scheme: str
) -> None:
    job = server.submit("sh", "-c", "echo hello from the job; sleep 1.2", budget_microusd=10**6)
    page = open_page(f"{server.url}/jobs/{job}", color_scheme=scheme, viewport={"width": 380, "height": 800})
    expect(page.locator("#log")).to_have_text("hello from the job\n")
    expect(page.locator("#log-state")).to_have_text("ended: finished")
    expect(page.locator(".head .chip")).to_have_text("finished")
    expect(page.locator(".steps li").last).to_contain_text("ran on local-0")
    expect(page.locator(".money")).to_contain_text("hard budget $1.00")
    assert page.evaluate(FAINT_WORDS) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


@pytest.mark.browser
def test_who_is_not_signed_in_is_asked_to(
    server: Server, browser: Browser, open_page: Callable[..., Page]
) -> None:
    page = browser.new_context().new_page()
    page.goto(server.url)
    expect(page.locator("h2")).to_have_text("Sign in")
    page.fill("#token", "brim_nonsense")
    page.click("main button")
    expect(page.locator(".banner")).to_have_text("That token is not valid.")
    page.fill("#token", server.headers()["authorization"].removeprefix("Bearer "))
    page.click("main button")
    expect(page.locator("#age")).to_be_visible()
    page.click("text=Sign out")
    expect(page.locator("h2")).to_have_text("Sign in")
    page.context.close()
