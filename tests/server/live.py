"""A real server in a process of its own, spoken to through the command line as a user does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brimful.client.client import Client
from brimful.client.settings import read_settings
from tests.patience import PATIENCE_S

BRIMFUL = str(Path(sys.executable).with_name("brimful"))


class Live:
    def __init__(self, data: Path, *options: str) -> None:
        self.data, self._options = data, options
        self._process: subprocess.Popen[str] | None = None
        self.env = {**os.environ, "BRIMFUL_DATA": str(data), "OMP_NUM_THREADS": "1"}
        self.env.pop("BRIMFUL_URL", None)

    def up(self) -> Live:
        assert self._process is None
        log = (self.data.parent / f"{self.data.name}.log").open("a")
        with log:
            self._process = subprocess.Popen(
                [BRIMFUL, "up", "--json", "--port", "0", *self._options],
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # one line, when it is up
        assert line, f"it did not start: {self.said()[-2000:]}"
        assert json.loads(line)["ok"]
        return self

    def said(self) -> str:
        return (self.data.parent / f"{self.data.name}.log").read_text()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Without a word, as the kernel does when memory runs out."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
        self._process = None

    def fell(self) -> None:
        """Wait until somebody else has killed it."""
        assert self._process is not None
        self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == -signal.SIGKILL
        self._process = None

    def down(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=PATIENCE_S)
            if self._process.poll() is None:
                self._process.kill()
                self._process.communicate()
            self._process = None

    def ask(self, *words: str, command: Sequence[str] = ()) -> Any:
        users = ["--", *command] if command else []
        done = subprocess.run(
            [BRIMFUL, *words, "--json", *users], env=self.env, capture_output=True, text=True, check=False
        )
        assert done.stdout, done.stderr
        answer = json.loads(done.stdout)
        assert answer["ok"], answer
        return answer["data"]

    def read(self, *words: str, columns: int = 80) -> str:
        """What a person sees in a terminal of that width."""
        env = {**self.env, "COLUMNS": str(columns)}
        done = subprocess.run([BRIMFUL, *words], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, *words: str, command: Sequence[str]) -> str:
        name: str = self.ask("submit", "--no-pack", *words, command=command)["job"]
        return name

    def ready(self) -> Mapping[str, Any]:
        url = json.loads((self.data / "server.json").read_text())["url"]
        try:
            with urllib.request.urlopen(f"{url}/v1/ready") as answer:
                body = answer.read()
        except urllib.error.HTTPError as refused:
            body = refused.read()
        found: Mapping[str, Any] = json.loads(body)["data"]
        return found

    def show(self, job: str) -> Mapping[str, Any]:
        """Asked again and again, so without starting a command each time."""
        return Client(read_settings(env=self.env)).job(job)


@contextlib.contextmanager
def live(data: Path, *options: str) -> Iterator[Live]:
    server = Live(data, *options)
    try:
        yield server.up()
    finally:
        server.down()


def wait_for(check: Any, *, every_s: float = 0.2) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := check()):
        assert time.monotonic() < deadline, f"still {found!r} after {PATIENCE_S} s"
        time.sleep(every_s)
    return found
