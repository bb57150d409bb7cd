"""https: the commands against a real server with a certificate made here."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brimful.client.client import Client
from brimful.client.settings import read_settings
from brimful.errors import WorldFailed
from brimful.server.run.main import _reachable
from tests.builders import check_reason, refuses
from tests.patience import PATIENCE_S
from tests.server.live import BRIMFUL, Live, live, wait_for


def a_certificate(folder: Path, names: str) -> tuple[str, str]:
    """Signed by itself, for these names."""
    folder.mkdir()
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    words += ["-days", "2", "-subj", "/CN=test"]
    words += ["-addext", f"subjectAltName={names}", "-out", cert, "-keyout", key]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, str]]:
    """With a certificate that nobody else signed."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = a_certificate(folder / "made", "DNS:gpus.example.org,IP:127.0.0.1")
    with live(folder / "data", "--tls-cert", cert, "--tls-key", key, "--slots", "1") as server:
        yield server, cert


def test_commands_on_the_same_machine_know_the_server_by_its_certificate(server: tuple[Live, str]) -> None:
    up, _ = server
    job = up.submit(command=("echo", "sent in secret"))
    wait_for(lambda: up.show(job)["phase"] == "finished")
    assert up.ask("job", "logs", job)["text"] == "sent in secret\n"
    client = Client(read_settings({"data": str(up.data)}, env={}))
    assert client.url.startswith("https://")
    assert ("over", {"phase": "finished"}) in list(client.log_stream(job))


def test_elsewhere_the_signer_has_to_be_trusted(server: tuple[Live, str]) -> None:
    up, cert = server
    there = Client(read_settings({"data": str(up.data)}, env={})).url
    env = {**os.environ, "BRIMFUL_URL": there, "BRIMFUL_TOKEN": (up.data / "token").read_text()}

    def jobs(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BRIMFUL, "jobs", "--json"], env=env | more, capture_output=True, text=True, check=False
        )

    refused = jobs()
    assert refused.returncode != 0
    error = json.loads(refused.stdout)["error"]
    check_reason(error["reason"], "client.untrusted_certificate", there)
    assert "SSL_CERT_FILE" in error["hint"]
    trusted = jobs(SSL_CERT_FILE=cert)
    assert trusted.returncode == 0, trusted.stderr


def test_nothing_is_said_to_whoever_shows_another_certificate(
    server: tuple[Live, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up, _ = server
    cert, key = a_certificate(tmp_path / "other", "IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            with listener.accept()[0] as plain, context.wrap_socket(plain, server_side=True) as spoken:
                heard.append(spoken.recv(1000))

        stranger = threading.Thread(target=listen)
        stranger.start()
        client = Client(read_settings({"data": str(up.data)}, env={}))
        monkeypatch.setattr(client, "url", f"https://127.0.0.1:{listener.getsockname()[1]}")
        with refuses(WorldFailed, "client.other_certificate"):
            client.fleet()
        stranger.join(timeout=PATIENCE_S)
    assert heard == [b""]


def test_a_server_at_every_address_is_announced_at_one_that_can_be_called() -> None:
    in_urls = [_reachable(host) for host in ("0.0.0.0", "::", "10.0.0.5")]
    assert in_urls == ["127.0.0.1", "[::1]", "10.0.0.5"]


def test_a_key_of_another_certificate_is_one_clear_error(tmp_path: Path) -> None:
    cert, _ = a_certificate(tmp_path / "one", "DNS:a.example")
    _, key = a_certificate(tmp_path / "two", "DNS:a.example")
    words = [BRIMFUL, "up", "--json", "--data", str(tmp_path / "data"), "--tls-cert", cert, "--tls-key", key]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 2, done.stderr
    check_reason(json.loads(done.stdout)["error"]["reason"], "server.bad_certificate", cert, key)
    assert "Traceback" not in done.stderr
