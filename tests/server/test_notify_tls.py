"""Mail and webhooks over TLS, to a real mail server and a real web server with a certificate made here."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword

from bench.groups.server import free_port
from brimful.adapters.notify import Mail, mail, post
from brimful.errors import WorldFailed
from tests.server.test_notify import Hook
from tests.server.test_tls import a_certificate

PASSWORD = "correct horse"


class Inbox:
    """Keeps what it was sent, and whether that came through TLS and from whom."""

    def __init__(self) -> None:
        self.mails: list[str] = []
        self.sign_ins: list[str] = []

    async def handle_DATA(self, _server: SMTP, session: Any, envelope: Envelope) -> str:  # noqa: N802 - its own word
        assert session.ssl is not None
        self.mails.append((envelope.original_content or b"").decode())
        return "250 kept"

    def knows(self, _server: SMTP, _session: Any, _envelope: Envelope, _way: str, who: Any) -> AuthResult:
        assert isinstance(who, LoginPassword)
        self.sign_ins.append(who.login.decode())
        return AuthResult(success=who.password == PASSWORD.encode(), handled=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ssl.SSLContext]:
    """A certificate for this machine, and the server's side of it."""
    cert, key = a_certificate(tmp_path_factory.mktemp("tls") / "made", "IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return cert, context


@contextmanager
def a_post_office(context: ssl.SSLContext | None, inbox: Inbox) -> Iterator[str]:
    asks: dict[str, Any] = {"authenticator": inbox.knows, "auth_require_tls": context is not None}
    if context is not None:
        asks |= {"tls_context": context, "require_starttls": True, "auth_required": True}
    office = Controller(inbox, hostname="127.0.0.1", port=free_port(), **asks)
    office.start()
    try:
        yield f"127.0.0.1:{office.port}"
    finally:
        office.stop()


@pytest.fixture
def way(tmp_path: Path) -> Mail:
    secret = tmp_path / "password"
    secret.write_text(PASSWORD + "\n")
    return Mail(sender="brimful@example.org", user="brimful", password_file=str(secret))


def send(way: Mail) -> None:
    mail(way, "alice@example.org", subject="job-1 finished", text="It ended well.", note="1")


def test_a_mail_goes_through_starttls_and_a_sign_in(
    made: tuple[str, ssl.SSLContext], way: Mail, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, context = made
    inbox = Inbox()
    with a_post_office(context, inbox) as host:
        with pytest.raises(WorldFailed, match="certificate"):  # nobody we know has signed it
            send(replace(way, host=host))
        assert inbox.sign_ins == []
        monkeypatch.setenv("SSL_CERT_FILE", cert)
        send(replace(way, host=host))
    assert inbox.sign_ins == ["brimful"]
    assert "Subject: job-1 finished" in inbox.mails[0]
    assert "It ended well." in inbox.mails[0]


def test_a_wrong_password_is_told_without_it(
    made: tuple[str, ssl.SSLContext], way: Mail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", made[0])
    Path(way.password_file).write_text("guess")
    inbox = Inbox()
    with a_post_office(made[1], inbox) as host, pytest.raises(WorldFailed) as told:
        send(replace(way, host=host))
    assert "535" in told.value.problem
    assert "guess" not in told.value.problem
    assert inbox.mails == []


def test_no_password_goes_to_a_server_without_tls(way: Mail) -> None:
    inbox = Inbox()
    with a_post_office(None, inbox) as host, pytest.raises(WorldFailed):
        send(replace(way, host=host))
    assert (inbox.sign_ins, inbox.mails) == ([], [])


def test_a_webhook_over_https_goes_to_whoever_has_the_right_certificate(
    made: tuple[str, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, context = made
    hook = Hook()
    hook.server.socket = context.wrap_socket(hook.server.socket, server_side=True)
    url = hook.url.replace("http:", "https:")

    def tell(url: str) -> None:
        post(url, b"{}", note="1", secret="s", at_s=1, hosts={"127.0.0.1", "localhost"})

    try:
        with pytest.raises(WorldFailed, match="certificate"):
            tell(url)
        monkeypatch.setenv("SSL_CERT_FILE", cert)
        with pytest.raises(WorldFailed, match="certificate"):
            tell(url.replace("127.0.0.1", "localhost"))  # a name that is not in it
        assert hook.heard == []
        tell(url)
        assert [body for _, body in hook.heard] == [b"{}"]
    finally:
        hook.close()
