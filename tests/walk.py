"""Walk a tutorial: run its commands in order, and compare what they print with what the page shows.

In the page, `NAME`: before a block is a file to write; lines after `$ ` are commands, the others what they
print; … stands for anything. Comments steer the walk: `<!-- not walked -->` before a block skips it, and
`<!-- in: vera -->` runs it in that person's terminal, with the token that was made for them.
Numbers, times, sums and ids differ from run to run and are not compared.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT
from tests.server.live import Live

BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^>]+) -->\n)?(?:[^\n]*`(?P<file>[\w.]+)`:\n\n)?```(?P<kind>\w+)\n(?P<body>.*?)^```",
    re.M | re.S,
)
LIMIT_S = 240  # the longest that a page lets its reader wait, and as much again
MADE = re.compile(r"^brimful admin tokens add (\w+)")
ONCE = re.compile(
    r"^(brimful (submit|job notify add|job cancel|admin tokens add|.* --set )|sbatch|scontrol|for )"
)
VARIES = (
    (r"brim_\w+|\b[0-9a-f]{8,64}\b|-?\$[\d.,]+|[█▉▊▋▌▍▎▏]+", " "),
    (r"\d[\d.,]* (?:ms|s|min|h|d)\b(?: \d+ (?:s|min|h))?", "T"),
    (r"\d[\d.,:]*", "N"),
    (r"\s+", " "),
)


class Step(NamedTuple):
    terminal: str
    command: str  # empty: what the terminal has shown meanwhile
    shown: str


class Walk:
    def __init__(self, home: Path, env: dict[str, str], *, instead: dict[str, str] | None = None) -> None:
        """`instead`: what to replace in commands and files, such as a port that may be taken."""
        self.home, self.folder, self._instead = home, home, instead or {}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        plain = {"HOME": str(home), "PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
        self._env = {**os.environ, **plain, **env}
        self._tokens: dict[str, dict[str, str]] = {}
        self._server: Live | None = None
        self._beside: dict[str, subprocess.Popen[str]] = {}

    def steps(self, page: str) -> Iterator[tuple[Step, str]]:
        """Each step, and what was printed when it looked as the page says; else when patience ended."""
        for found in BLOCK.finditer(page):
            mark, file, kind, body = found["mark"] or "", found["file"], found["kind"], found["body"]
            terminal = mark.removeprefix("in: ") if mark.startswith("in: ") else ""
            if mark == "not walked":
                continue
            if file:
                with (self.folder / file).open("a" if "Add to" in found[0] else "w") as out:
                    out.write(self._here(body))
            elif kind == "console":
                for step in _steps(terminal, body):
                    yield step, self._take(step)
            elif terminal in self._beside:
                step = Step(terminal, "", body)
                yield step, self._until(step, self._out(terminal).read_text)

    def close(self) -> None:
        for process in self._beside.values():
            process.terminate()
            process.wait()
        if self._server is not None:
            self._server.down()

    def _here(self, text: str) -> str:
        for old, new in self._instead.items():
            text = text.replace(old, new)
        return text

    def _take(self, step: Step) -> str:
        command = self._here(step.command)
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self._env[name] = value.replace("~", str(self.home))
            return ""
        if into := re.search(r"\bcd (\S+)$", command):
            self.folder = Path(into[1].replace("~", str(self.home)))
            self.folder.mkdir(parents=True, exist_ok=True)
            return ""
        if command.startswith("brimful up"):
            return self._start(command.split()[2:])
        if command.startswith("python "):
            with self._out(step.terminal).open("w") as out:
                self._beside[step.terminal] = subprocess.Popen(
                    command.split(), cwd=ROOT, env=self._env, stdout=out, stderr=subprocess.STDOUT, text=True
                )
            return ""
        if ONCE.match(command):
            return self._run(step.terminal, command)
        must = not step.shown.strip()  # else it is tried until it prints what the page shows
        return self._until(step, lambda: self._run(step.terminal, command, must=must))

    def _until(self, step: Step, look: Callable[[], str]) -> str:
        until = time.monotonic() + LIMIT_S
        while not is_as_shown(printed := look(), step.shown) and time.monotonic() < until:
            time.sleep(0.5)
        return printed

    def _start(self, options: list[str]) -> str:
        if self._server is not None:
            self._server.down()
        paths = [str(self.folder / word) if word.endswith(".toml") else word for word in options]
        self._server = Live(Path(self._env["BRIMFUL_DATA"]), *paths)
        self._server.env = {**self._env, "OMP_NUM_THREADS": "1"}
        self._server.up()
        return ""

    def _run(self, terminal: str, command: str, *, must: bool = True) -> str:
        env = {**self._env, **self._tokens.get(terminal, {})}
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not must, f"$ {command}\n{done.stdout}{done.stderr}"
        if made := MADE.match(command):
            self._tokens[made[1]] = dict(re.findall(r"^export (\w+)=(\S+)$", done.stdout, re.M))
        printed = done.stdout + done.stderr
        for ours, here in self._instead.items():
            printed = printed.replace(here, ours)
        return printed

    def _out(self, terminal: str) -> Path:
        return self.home / f"{terminal}.out"


def _steps(terminal: str, body: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        yield Step(terminal, command, shown)


def is_as_shown(printed: str, shown: str) -> bool:
    if not shown.strip():
        return True  # the page does not show it
    parts = [re.escape(_plain(part).strip()) for part in shown.split("…")]
    return re.fullmatch(".*".join(parts), _plain(printed).strip()) is not None


def _plain(text: str) -> str:
    for pattern, plain in VARIES:
        text = re.sub(pattern, plain, text)
    return text
