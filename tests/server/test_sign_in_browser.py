"""Ways into the console as a person takes them: a real browser, beside a real server and provider."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.live import Live, live
from tests.server.test_console import PATIENCE_MS, browser  # noqa: F401 - a fixture
from tests.server.test_oidc import CLIENT, SECRET, issuer  # noqa: F401 - a fixture
from tests.server.test_tls import a_certificate

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:  # noqa: F811
    """Of a browser that knows nothing yet. The server's certificate is its own."""
    context = browser.new_context(ignore_https_errors=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    yield page
    context.close()


def asks_to_sign_in(page: Page) -> None:
    expect(page.locator("h2")).to_have_text("Sign in")


def is_signed_in(page: Page, name: str) -> None:
    expect(page.locator(".corner")).to_contain_text(name)
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()


def link_of(server: Live) -> str:
    found = re.search(r"https?://\S+", server.read("console"))
    assert found is not None
    return found[0]


def test_a_link_signs_in_once_and_a_token_too(tmp_path: Path, page: Page) -> None:
    with live(tmp_path / "data", "--slots", "1") as server:
        link = link_of(server)
        home = link.partition("/console")[0]
        page.goto(home)
        asks_to_sign_in(page)
        for _ in range(2):  # a mail scanner only looks, and uses nothing up
            page.goto(link)
            expect(page.locator("main")).to_contain_text("It works once")
        page.get_by_role("button", name="Sign in").click()
        is_signed_in(page, "owner")
        assert "ticket=" not in page.url
        page.get_by_role("button", name="Sign out").click()
        asks_to_sign_in(page)
        page.goto(link)
        asks_to_sign_in(page)
        expect(page.get_by_role("alert")).to_be_visible()
        page.fill("#token", "brim_no_such_token")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.fill("#token", (server.data / "token").read_text())
        page.get_by_role("button", name="Sign in").click()
        is_signed_in(page, "owner")


def test_somebody_signs_in_at_the_provider_makes_a_token_and_signs_out(
    tmp_path: Path,
    page: Page,
    issuer: str,  # noqa: F811
) -> None:
    cert, key = a_certificate(tmp_path / "made", "IP:127.0.0.1")
    secret, file = tmp_path / "secret", tmp_path / "identity.toml"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    team = '[[teams]]\ngroup = "gpu-vision"\ntenant = "red"\nrole = "submitter"\n'
    file.write_text(f'issuer = "{issuer}"\nclient_id = "{CLIENT}"\nclient_secret_file = "secret"\n{team}')
    flags = ("--slots", "1", "--tls-cert", cert, "--tls-key", key, "--identity", str(file))
    with live(tmp_path / "data", *flags) as server:
        page.goto(link_of(server).partition("/console")[0])
        page.get_by_role("link", name=re.compile("Sign in with")).click()
        page.fill("input[name=sub]", "1")  # the provider's own page
        page.get_by_role("button").first.click()
        is_signed_in(page, "alice@example.org")
        page.get_by_role("link", name="Tokens").click()
        page.get_by_role("button", name=re.compile("Make")).click()
        home = page.url.partition("/console")[0]
        expect(page.locator("main")).to_contain_text(f"export BRIMFUL_URL={home}")
        expect(page.locator("main")).to_contain_text("export BRIMFUL_TOKEN=brim_")
        page.goto(page.url.partition("/console")[0])
        page.get_by_role("button", name="Sign out").click()
        asks_to_sign_in(page)
