"""What a command tells a server that is not ours: nothing.

Real commands against strangers that write down all they hear."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from brimful.client.client import Client
from brimful.client.proof import check_url, proof_of
from brimful.client.settings import read_settings
from brimful.errors import BadInput, WorldFailed
from tests.builders import check_reason, refuses
from tests.server.live import BRIMFUL, live

SECRET = "S" * 43
TOKEN = f"brim_{'a' * 16}_{SECRET}"
OURS = ("my-script.py", "swordfish", SECRET, "x_password")  # of these nobody else may hear


class Stranger(ThreadingHTTPServer):
    """Answers everything in its own way, and keeps what it heard."""

    def __init__(self, way: str, elsewhere: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Ear)
        self.way, self.elsewhere = way, elsewhere
        self.heard: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Ear(BaseHTTPRequestHandler):
    server: Stranger
    protocol_version = "HTTP/1.1"  # the question and what follows it come over one connection

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.heard.append(f"{self.requestline}\n{self.headers}\n{body.decode()}")
        asked = urlsplit(self.path)
        status, proof = 200, "0" * 64
        if asked.path == "/v1/proof" and self.server.way == "knows the token":
            digest = hashlib.sha256(SECRET.encode()).hexdigest()
            proof = proof_of(digest, parse_qs(asked.query)["nonce"][0])
        elif self.server.elsewhere:
            status = 303 if self.server.way == "knows the token" else 302
        answer = json.dumps({"ok": True, "data": {"proof": proof}}).encode()
        answer = {"nonsense": b"\xff{", "a list": b"[]", "endless": b"9" * 10**6}.get(self.server.way, answer)
        self.send_response(404 if self.server.way == "no such page" else status)
        if status != 200:
            self.send_header("location", self.server.elsewhere + self.path)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_CONNECT = do_GET  # noqa: N815

    def log_message(self, *_words: object) -> None:
        pass


@contextlib.contextmanager
def a_stranger(way: str = "", elsewhere: str = "") -> Iterator[Stranger]:
    with Stranger(way, elsewhere) as stranger:
        thread = threading.Thread(target=stranger.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield stranger
        stranger.shutdown()
        thread.join()


def submit(tmp_path: Path, **env: str) -> tuple[int, dict[str, Any]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BRIMFUL_")}
    clean |= {"BRIMFUL_DATA": str(tmp_path / "data")} | env
    words = [BRIMFUL, "submit", "--json", "--env", "X_PASSWORD=swordfish", "--", "python", "my-script.py"]
    done = subprocess.run(words, env=clean, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def heard_nothing(stranger: Stranger) -> None:
    for each in stranger.heard:
        assert each.startswith("GET /v1/proof?token=")
        for word in OURS:
            assert word.lower() not in each.lower()
        assert "authorization" not in each.lower()


@pytest.mark.parametrize("way", ["", "nonsense", "a list", "endless", "no such page"])
@pytest.mark.parametrize("found", ["by its URL", "at the usual port", "in an old data folder"])
def test_a_stranger_hears_nothing_of_a_submission(tmp_path: Path, way: str, found: str) -> None:
    with a_stranger(way) as stranger:
        port = str(stranger.server_address[1])
        env = {"BRIMFUL_URL": stranger.url, "BRIMFUL_TOKEN": TOKEN}
        if found == "at the usual port":
            env = {"BRIMFUL_PORT": port, "BRIMFUL_TOKEN": TOKEN}
        if found == "in an old data folder":
            (tmp_path / "data").mkdir()
            (tmp_path / "data" / "token").write_text(TOKEN)
            old = {"url": stranger.url, "pid": 1, "certificate": ""}
            (tmp_path / "data" / "server.json").write_text(json.dumps(old))
            env = {"BRIMFUL_PORT": port}
        status, answer = submit(tmp_path, **env)
        assert status == 3
        check_reason(answer["error"]["reason"], "client.not_ours", stranger.url)
        assert len(stranger.heard) == 1
        heard_nothing(stranger)


def test_without_a_token_nothing_is_sent_either(tmp_path: Path) -> None:
    with a_stranger() as stranger:
        _, answer = submit(tmp_path, BRIMFUL_URL=stranger.url)
        check_reason(answer["error"]["reason"], "client.no_token", stranger.url)
        heard_nothing(stranger)


@pytest.mark.parametrize("way", ["", "knows the token"])
def test_nobody_is_followed_elsewhere(tmp_path: Path, way: str) -> None:
    """Not before it has proven itself, and not after."""
    with a_stranger() as other, a_stranger(way, elsewhere=other.url) as first:
        status, _ = submit(tmp_path, BRIMFUL_URL=first.url, BRIMFUL_TOKEN=TOKEN)
        assert status == 3
        assert other.heard == []
        if not way:
            heard_nothing(first)


def test_who_takes_the_port_over_while_a_command_runs_hears_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_stranger("knows the token") as first:
        monkeypatch.setenv("BRIMFUL_URL", first.url)
        monkeypatch.setenv("BRIMFUL_TOKEN", TOKEN)
        client = Client(read_settings({"data": str(tmp_path)}, env={}))
        assert client.get("/v1/anything") == {"proof": "0" * 64}
        assert SECRET in first.heard.pop()
        first.way, first.heard = "", []
        with refuses(WorldFailed, "client.not_ours"):
            client.submit(["python", "my-script.py"], folder="/")
        heard_nothing(first)


def test_a_proxy_of_the_environment_hears_nothing(tmp_path: Path) -> None:
    with a_stranger() as proxy, live(tmp_path / "data", "--slots", "1"):
        names = ("http_proxy", "https_proxy", "all_proxy")
        env = dict.fromkeys([*names, *map(str.upper, names)], proxy.url)
        status, answer = submit(tmp_path, **env)
        assert (status, answer["ok"]) == (0, True)
        assert proxy.heard == []


@pytest.mark.parametrize(
    "url", ["http://10.0.0.5:8642", "http://gpus.example.org", "http://127.0.0.1.nip.io"]
)
def test_beyond_this_machine_there_is_https_alone(url: str) -> None:
    with refuses(BadInput, "client.url_needs_tls"):
        check_url(url)
    check_url(url.replace("http:", "https:"))


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1", "http://", "http://a@127.0.0.1", "http://[::1", "http://127.0.0.1:x"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with refuses(BadInput, "client.bad_url"):
        check_url(url)
