"""Take docs/images/console.png: a real server, real jobs, a real browser.

    python -m tools.screenshot                                       the picture in the docs
    python -m tools.screenshot --width 380 --dark --to narrow.png    any other view of the same run

Nothing on the picture is made up: the jobs run in a temporary folder until they are in the states shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "console.png"
PATIENCE_S = 60
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
CHROMIUM += ["--disable-background-networking", "--disable-component-update"]

TRAIN = ["--", "python", "examples/train_tiny.py"]
LONG = [*TRAIN, "--steps", "1000000"]
# Flags and command of each job, and the phase it must have come to before the next one is submitted.
STORY: list[tuple[str, list[str], str]] = [
    ("--name bigram --tenant vision --budget 0.05", [*TRAIN, "--steps", "600"], "finished"),
    ("--name typo-in-a-flag --tenant speech", [*TRAIN, "--step", "many"], "failed"),
    ("--name wider-model --tenant vision --gpus 4 --budget 0.02", LONG, "running"),
    ("--name learning-rate-sweep --tenant speech --priority background", LONG, "running"),
    ("--tenant vision --budget 0.01", LONG, "running"),
    ("--name whole-node --tenant speech --gpus 8", LONG, "waiting"),
    ("--name quick-look --tenant vision --priority urgent --gpus 3", TRAIN, "waiting"),
    ("--name too-large --tenant speech --gpus 16", LONG, "waiting"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--to", type=Path, default=PICTURE)
    parser.add_argument("--width", type=int, action="append", help="CSS pixels; may be given several times")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--path", default="/", help="which page, such as /jobs/job-3")
    parser.add_argument("--empty", action="store_true", help="before the first job")
    args = parser.parse_args()
    args.to.parent.mkdir(parents=True, exist_ok=True)
    os.nice(10)  # the jobs keep a core busy each
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # who ends us ends the jobs as well
    with tempfile.TemporaryDirectory(prefix="brimful-") as folder, server(Path(folder)) as (env, url):
        try:
            for flags, words, phase in [] if args.empty else STORY:
                wait_for(env, brimful(env, "submit", "--json", *flags.split(), *words)["job"], phase)
            for width in args.width or [1280]:
                several = len(args.width or []) > 1
                to = args.to.with_stem(f"{args.to.stem}-{width}") if several else args.to
                link = brimful(env, "console", "--json")["url"]
                shoot(link, url + args.path, to, width=width, dark=args.dark)
                print(f"{to}: {to.stat().st_size // 1000} kB")
        finally:
            end_all(env)
    return 0


def end_all(env: dict[str, str]) -> None:
    for view in brimful(env, "jobs", "--json")["jobs"]:
        if view["phase"] not in ("finished", "failed", "cancelled"):
            brimful(env, "job", "cancel", "--json", view["job"])
            wait_for(env, view["job"], "cancelled")


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[dict[str, str], str]]:
    """A brimful of our own; gives the environment that finds it, and its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {
        **os.environ,
        "BRIMFUL_DATA": str(folder / "data"),
        "BRIMFUL_PORT": str(port),
        "BRIMFUL_GRACE_S": "1",
    }
    env |= {"BRIMFUL_SLOTS": "8", "BRIMFUL_GPU": "rtx-4070", "BRIMFUL_USD_PER_HOUR": "0.35"}
    env |= {"BRIMFUL_JOBS_SHARE_MY_USER": "1"}
    process = subprocess.Popen([*command(), "up"], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        until((folder / "data" / "server.json").exists, "the server did not start")
        yield env, f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)


def command() -> list[str]:
    return [sys.executable, "-c", "import sys; from brimful.cli.main import main; sys.exit(main())"]


def brimful(env: dict[str, str], *words: str) -> Any:  # noqa: ANN401 - whatever the command answers
    done = subprocess.run(
        [*command(), *words], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    answer = json.loads(done.stdout)
    assert answer["ok"], answer
    return answer["data"]


def wait_for(env: dict[str, str], job: str, phase: str) -> None:
    until(
        lambda: brimful(env, "job", "show", "--json", job)["phase"] == phase,
        f"{job} did not come to be {phase}",
    )


def until(happened: Callable[[], bool], problem: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not happened():
        if time.monotonic() > end_s:
            raise SystemExit(problem)
        time.sleep(0.2)


def shoot(link: str, url: str, to: Path, *, width: int, dark: bool) -> None:
    """Sign in by the link, and take the page at the URL."""
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=CHROMIUM)
        page = browser.new_page(
            viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
        )
        page.goto(link)
        page.click("main button")
        page.goto(url)
        page.locator("#age.live").wait_for()
        page.wait_for_timeout(1500)  # the log of a job comes in pieces
        page.screenshot(path=to, full_page=True)
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
