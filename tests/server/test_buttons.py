"""Every button of the console does what the API says, in a browser.

A sweep collects all that the pages offer to a viewer, a member, an admin and an operator: a button that is
not in the list of `pressed.py` fails, and so does a line of it whose button is gone or is offered to others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page

from brimful.fleet.queues import Quota
from brimful.server.app import make_app
from brimful.server.auth import ROLES
from brimful.server.console import pages
from tests.server.lab import OFFERED, Lab, key_of
from tests.server.pressed import PRESSED
from tests.server.test_console import browser  # noqa: F401 - a fixture
from tools.demo import Demo, listening, served

pytestmark = pytest.mark.browser

TEMPLATES = Path(pages.__file__).with_name("templates")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Lab]:  # noqa: F811
    demo = Demo(tmp_path_factory.mktemp("demo"))
    over_tls = make_app(demo.service, demo.access, hosts=("127.0.0.1",), secure=True)
    with served(demo) as url, listening(over_tls) as elsewhere:
        lab = Lab(demo, browser, url, elsewhere)
        lab.api("/budgets/speech/credit", method="POST", microusd=500_000_000)  # for what is reserved
        yield lab
        lab.close()


def test_every_button_of_every_page_is_in_the_list_and_offered_to_whom_it_says(lab: Lab) -> None:
    lab.demo.service.submissions.set_queues((Quota(queue="dusk", gpus=1),), by="mara")
    jobs = lab.api("/jobs?limit=100")["jobs"]
    own = {lab.submit(), lab.held(), *(each["job"] for each in jobs if each["user"] == "jules")}
    phases = {lab.job(each)["phase"]: each for each in own}
    assert phases.keys() >= {"waiting", "held", "running", "finished"}
    a_job = phases["waiting"]
    paths = ["/", "/jobs", "/jobs?view=all", *(f"/jobs/{each}" for each in phases.values()), "/submit"]
    paths += [
        f"/submit?job={a_job}",
        "/fit",
        "/fit?model=gpt2-xl&gpu=rtx-4090",
        "/fleet",
        "/market",
        "/teams",
    ]
    paths += ["/audit", "/operate", "/nowhere"]
    window = {"verb": "quote", "pool": "campus|l40s|owned", "gpus": "1", "hours": "10", "team": "speech"}
    more = {"verb": "more", "reservation": "r1", "hours": "5"}
    offered: dict[str, set[str]] = {}

    def collect(role: str, page: Page, path: str, sent: dict[str, str] | None = None) -> None:
        for method, action, verb in page.evaluate(OFFERED, [path, sent]):
            offered.setdefault(key_of(method, action, verb), set()).add(role)

    for role, page in lab.pages.items():
        page.goto(lab.url)
        for path in paths:
            collect(role, page, path)
        for sent in (window, more):
            if role in offered.get(key_of("POST", "/market/act", sent["verb"]), ()):
                collect(role, page, "/market/act", sent)
        session = lab.demo.access.session(lab.tokens[role])
        assert session is not None
        there = {"name": f"brimful_{urlsplit(lab.over_tls).port}", "value": session, "url": lab.over_tls}
        page.context.add_cookies([there])  # type: ignore[list-item]
        page.goto(lab.over_tls)
        collect(role, page, "/console/tokens")
        page.context.clear_cookies(name=there["name"])
    nobody = lab.page()
    for path in ("/", lab.api("/tickets", method="POST")["path"]):
        nobody.goto(lab.url)
        collect("", nobody, path)

    wanted = {key: set(ROLES[ROLES.index(by) :]) if by else {""} for key, (by, _) in PRESSED.items()}
    assert offered == wanted
    _all_templates_were_seen({key.split()[-1] for key in offered}, {key.split()[1] for key in offered})


def _all_templates_were_seen(verbs: set[str], actions: set[str]) -> None:
    """No state of a page with one more button was left out of the sweep."""
    text = "".join(each.read_text() for each in TEMPLATES.glob("*.html"))
    there = re.findall(r'name="verb" value="(\w+)"|begin\("(\w+)"', text)
    assert {one or other for one, other in there} <= verbs
    assert {key_of("", each).strip() for each in re.findall(r'action="([^"{]+)"', text)} <= actions


@pytest.mark.parametrize("key", PRESSED)
def test_a_button_does_what_the_api_says(lab: Lab, key: str) -> None:
    by, press_it = PRESSED[key]
    page = lab.pages[by] if by else lab.page()
    lab.sent.clear()
    press_it(lab, page)
    assert key in lab.sent
