"""Delivery: a signed POST to a webhook, or an email. Both raise WorldFailed if nobody accepted it.

A webhook's URL comes from a user, and the server is behind the firewall. So it goes only to public addresses
or to hosts the operator named, to exactly the address that was checked, and follows no redirect.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import smtplib
import socket
import ssl
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

from brimful import __version__
from brimful.errors import Refused, WorldFailed
from brimful.language import Plain, Quoted, os_words, say, verbatim

TIMEOUT_S = 10
SIGNATURE = "Brimful-Signature"
FAILURES = (OSError, http.client.HTTPException, smtplib.SMTPException, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """How mail is sent; no mail while `host` is empty."""

    host: str = ""  # HOST[:PORT]
    sender: str = ""
    user: str = ""
    password_file: str = ""


def signature(secret: str, *, at_s: int, body: bytes) -> str:
    """Receivers recompute it from the body and their secret: t=SECONDS,v1=HMAC-SHA256."""
    signed = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={signed}"


def post(url: str, body: bytes, *, note: str, secret: str, at_s: int, hosts: Collection[str]) -> None:
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    try:
        port = parts.port or (443 if secure else 80)
        address = _address(host, port, hosts)
        connection = _Connection(host, port, timeout=TIMEOUT_S)
        headers = {
            "content-type": "application/json",
            "user-agent": f"brimful/{__version__}",
            "Brimful-Id": note,
            SIGNATURE: signature(secret, at_s=at_s, body=body),
        }
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with connection.to(address, secure=secure):
            connection.request("POST", path, body=body, headers=headers)
            status = connection.getresponse().status
    except FAILURES as error:
        # Without the URL: anyone who knows it may be able to post there.
        raise WorldFailed(say("adapters.webhook_failed", host=host, error=_words(error))) from error
    if not 200 <= status < 300:
        raise WorldFailed(say("adapters.webhook_answered", host=host, status=Plain(status)))


class _Connection(http.client.HTTPConnection):
    @contextmanager
    def to(self, address: tuple[str, int], *, secure: bool) -> Iterator[None]:
        """To exactly this address: a second lookup of the name may lead elsewhere.

        One time limit for everything: a peer that sends a byte now and then would block us forever.
        """
        line = socket.create_connection(address, timeout=TIMEOUT_S)
        if secure:
            context = ssl.create_default_context()
            line = context.wrap_socket(line, server_hostname=self.host, do_handshake_on_connect=False)
        self.sock = line
        limit = threading.Timer(TIMEOUT_S, _hang_up, (line,))
        limit.start()
        try:
            if isinstance(line, ssl.SSLSocket):
                line.do_handshake()
            yield
        finally:
            limit.cancel()
            self.close()
            line.close()


def _hang_up(line: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(line, socket.SHUT_RDWR)  # the plain socket under TLS too: a thread reads there


def check_host(url: str, hosts: Collection[str]) -> None:
    """Refuse an address that is never allowed; names are resolved each time something is sent."""
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        if host not in hosts and not _is_public(ipaddress.ip_address(host)):
            raise Refused(say("adapters.webhook_private", host=Quoted(host)), code="webhook_private")


def _address(host: str, port: int, hosts: Collection[str]) -> tuple[str, int]:
    found = [info[4] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    address = str(found[0][0])
    if host not in hosts and not _is_public(ipaddress.ip_address(address.partition("%")[0])):
        raise WorldFailed(say("adapters.webhook_private", host=Quoted(host)))
    return address, port


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """An address that embeds another for a translator or a tunnel (RFC 6052, 3056) is as public as it is."""
    inner = None
    if isinstance(address, ipaddress.IPv6Address):
        is_translated = address in ipaddress.ip_network("64:ff9b::/96")
        within = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if is_translated else None
        inner = within or address.ipv4_mapped or address.sixtofour
    return address.is_global and not address.is_multicast and (inner is None or inner.is_global)


def mail(way: Mail, to: str, *, subject: str, text: str, note: str) -> None:
    if not way.host:
        raise WorldFailed(say("adapters.no_smtp"))
    host, _, port = way.host.partition(":")
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = way.sender, to, subject
    message["Date"] = formatdate()
    message["Message-ID"] = f"<{note}@brimful>"  # so that a second copy is recognised
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    try:
        with _smtp(host, int(port or 25)) as server:
            if not isinstance(server, smtplib.SMTP_SSL) and server.has_extn("starttls"):
                server.starttls(context=ssl.create_default_context())
            if way.user:
                if not isinstance(server.sock, ssl.SSLSocket):
                    raise WorldFailed(say("adapters.smtp_in_the_clear", host=host))
                server.login(way.user, Path(way.password_file).read_text("utf-8").strip())
            server.send_message(message)
    except FAILURES as error:
        raise WorldFailed(say("adapters.mail_failed", host=host, error=_words(error))) from error


def _smtp(host: str, port: int) -> smtplib.SMTP:
    if port == 465:
        return smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_S, context=ssl.create_default_context())
    server = smtplib.SMTP(host, port, timeout=TIMEOUT_S)
    server.ehlo()
    return server


def _words(error: Exception) -> object:
    return os_words(error) if isinstance(error, OSError) else verbatim(str(error)[:200])
