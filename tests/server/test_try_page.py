"""Fit in the browser alone: the answer of the package itself, and not one request once Python is there."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from brimful.server.console.fit_alone import result
from brimful.server.console.fit_form import as_given
from tests.conftest import missing
from tests.server.test_console import FAINT_WORDS, HOSTILE, PATIENCE_MS, browser  # noqa: F401 - a fixture
from tests.server.test_fit_page import ADVICE, CONFIG, MESSAGE
from tools.pyodide import PACKED
from tools.try_page import build

MOST_BYTES = 13_000_000
RECIPE = "base_model: NousResearch/Llama-3.2-1B\nsequence_len: 2048\nmicro_batch_size: 2\nadapter: lora\n"
SAME = """html => {
    const wanted = document.createElement("div");
    wanted.innerHTML = html;
    return document.getElementById("answer").innerHTML === wanted.innerHTML;
}"""


def question(language: str = "en", **given: Any) -> str:
    return json.dumps({"language": language, **as_given(), **given})


@pytest.mark.parametrize(
    "given",
    [
        {"other_mib": "-1", "model": "gpt2"},
        {"other_mib": "1e3", "model": "gpt2"},
        {"other_mib": "1000001", "model": "gpt2"},
        {"gpus": ["t4"] * 9, "model": "gpt2"},
        {"gpus": ["no-such-card"], "model": "gpt2"},
        {"model": HOSTILE},
        {},
    ],
)
def test_a_question_that_cannot_be_answered_says_why(given: dict[str, Any]) -> None:
    html = result(question(**given))
    assert html.startswith('<div class="banner bad" role="alert"><p>')
    assert "<script" not in html
    assert "<img" not in html


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PACKED.exists():
        missing("Pyodide", "tools/setup.sh system")
    folder = tmp_path_factory.mktemp("docs") / "try"
    build(folder)
    return folder


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    files = functools.partial(_Quiet, directory=str(built.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/try/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_whole_page_is_small_enough_to_be_opened_on_a_whim(built: Path) -> None:
    assert sum(each.stat().st_size for each in built.iterdir()) <= MOST_BYTES


class Tried:
    """The page, everything it asked the network for, and everything the browser complained about."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.asked, self.problems = list[str](), list[str]()
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    def _heard(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.problems.append(said.text)

    def open(self, name: str = "index.html") -> None:
        self.page.goto(self.address + name)
        state = self.page.locator("#state")
        expect(state).not_to_have_attribute("data-now", "loading")
        assert state.get_attribute("data-now") == "ready", self.problems

    def ask(self, **given: Any) -> str:
        """What the page shows is what the package answers here; returns that."""
        for name in ("config", "text", "model", "settings", "other_mib"):
            self.page.fill(f"[name={name}]", given.get(name, ""))
        none = "boxes => boxes.forEach(box => { box.checked = false; })"
        self.page.locator("[name=gpu]").evaluate_all(none)
        for card in given.get("gpus", as_given()["gpus"]):
            self.page.locator(f'[name=gpu][value="{card}"]').check()
        self.page.locator("#ask").get_by_role("button").click()
        cards = self.page.locator("[name=gpu]:checked").evaluate_all("boxes => boxes.map(box => box.value)")
        html = result(question(**given | {"gpus": cards}))
        is_same = self.page.evaluate(SAME, html)
        assert is_same, self.page.locator("#answer").inner_text()
        return html


@pytest.mark.browser
def test_a_browser_answers_as_the_server_does_and_then_reaches_nobody(
    browser: Browser,  # noqa: F811
    address: str,
) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    tried = Tried(context.new_page(), address)
    tried.open()
    assert {url.rpartition("/")[0] + "/" for url in tried.asked} == {address}
    loaded = len(tried.asked)
    assert "card-detail" in tried.ask(config=CONFIG.read_text(), text=ADVICE, gpus=["rtx-4070", "rtx-4090"])
    assert tried.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert tried.page.evaluate(FAINT_WORDS) == []
    assert "message-title" in tried.ask(config=MESSAGE)
    assert "card-detail" in tried.ask(config=RECIPE, gpus=["t4"]), "YAML is read"
    tried.ask(config="(" * 20_000, text=HOSTILE)
    assert "card-detail" in tried.ask(model="gpt2", settings="batch_size=4", gpus=["t4"]), "it goes on"
    tried.page.get_by_role("link", name="gpt2-xl").first.click()
    expect(tried.page.locator("#needs-title bdi")).to_have_text("gpt2-xl")
    assert (len(tried.asked), tried.problems) == (loaded, [])
    refused = "url => fetch(url).then(() => false, () => true)"
    assert tried.page.evaluate(refused, f"{address}try.js")
    image = "i.onload = () => done(false); i.onerror = () => done(true); i.src = url;"
    blocked = f"url => new Promise(done => {{ const i = new Image(); {image} }})"
    assert tried.page.evaluate(blocked, f"{address}icon.svg")
    context.close()


@pytest.mark.browser
def test_a_link_is_answered_in_the_language_of_its_page(browser: Browser, address: str) -> None:  # noqa: F811
    context = browser.new_context()
    tried = Tried(context.new_page(), address)
    tried.open("de.html?model=gpt2&gpu=t4&set=batch_size%3D2")
    html = result(question("de", model="gpt2", gpus=["t4"], settings="batch_size=2"))
    assert tried.page.evaluate(SAME, html)
    assert tried.problems == []
    context.close()


@pytest.mark.browser
def test_a_page_that_cannot_load_python_says_so(browser: Browser, address: str) -> None:  # noqa: F811
    context = browser.new_context()
    page = context.new_page()
    page.route("**/pyodide.mjs", lambda route: route.abort())
    page.goto(address)
    expect(page.locator("#state")).to_have_attribute("data-now", "failed", timeout=PATIENCE_MS)
    page.route("**/try.js", lambda route: route.abort())  # as where the page is opened as a file
    page.goto(address)
    assert page.locator("#state").inner_text() == page.locator("#state").get_attribute("data-failed")
    context.close()
