"""Screenshots of every console page, taken of the fleet of tools/demo.py by a real browser.

    python -m tools.pictures            docs/images/console-*.png: one per page, 1440 px wide, light
    python -m tools.pictures --all      build/pictures: also 390 px, dark, and in German
    python -m tools.pictures --all --language fr --language es      in these languages instead
    python -m tools.pictures --all --only market --only job

The clock is frozen on both sides, so that two runs give the same pictures, except for token names.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from brimful.server.console.templating import LANGUAGE_NAMES
from brimful.units import DAY_S
from tools.demo import Demo, served

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
CHROMIUM += ["--disable-background-networking", "--disable-component-update", "--font-render-hinting=none"]
PAGES = {
    "home": "/",
    "jobs": "/jobs",
    "job": "/jobs/{failed}",
    "submit": "/submit",
    "fit": "/fit?model=llama-3-8b&gpu=h100-sxm-80gb&gpu=rtx-4090",
    "fleet": "/fleet",
    "market": "/market",
    "teams": "/teams",
    "audit": "/audit?days=7",
    "operate": "/operate",
}
MORE = {"running": "/jobs/{running}"}
FIRST = {"sign-in": "/"}  # before anyone is signed in
JOB_FILE = """name: vit-h second try
command: torchrun --nproc-per-node 8 train.py configs/vit_h.yaml
folder: /data/lab/runs
gpus: 8
max_run: 6h
"""
TALLEST = 1000  # px of a picture in the docs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every width, light and dark, two languages")
    parser.add_argument("--only", action="append", help="this page; may be given several times")
    parser.add_argument(
        "--language", action="append", choices=LANGUAGE_NAMES, help="with --all: instead of en and de"
    )
    args = parser.parse_args()
    wanted = {**FIRST, **PAGES, **MORE} if args.all else PAGES
    wanted = {name: path for name, path in wanted.items() if not args.only or name in args.only}
    with tempfile.TemporaryDirectory(prefix="brimful-") as folder, sync_playwright() as playwright:
        demo = Demo(Path(folder))
        end_s = demo.now_s // 60 * 60
        while demo.service.hindsight.so_far(start_s=end_s - 7 * DAY_S, end_s=end_s, tenants=None)[1]:
            time.sleep(0.2)  # the log is being read
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=CHROMIUM
        )
        with served(demo) as url:
            if not args.all:
                take(demo, browser, url, wanted, to=ROOT / "docs" / "images")
            for tongue in (args.language or ("en", "de")) if args.all else ():
                for width in (1440, 390):
                    for scheme in ("light", "dark"):
                        to = ROOT / "build" / "pictures" / f"{tongue}-{width}-{scheme}"
                        take(demo, browser, url, wanted, to=to, width=width, scheme=scheme, tongue=tongue)
        browser.close()
    return 0


def take(
    demo: Demo,
    browser: Browser,
    url: str,
    wanted: dict[str, str],
    *,
    to: Path,
    width: int = 1440,
    scheme: str = "light",
    tongue: str = "en",
) -> None:
    to.mkdir(parents=True, exist_ok=True)
    jobs = demo.service.reader.fleet.jobs.values()
    named = {each.job.name: each.job.job for each in jobs}
    names = {"failed": named["llama-8b longer context"], "running": named["vit-h pretraining"]}
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        locale=tongue,
        timezone_id="Europe/Paris",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.clock.set_fixed_time(demo.now_s)
    is_in = False
    for name, path in wanted.items():
        if name not in FIRST and not is_in:
            page.goto(url)
            page.fill("#token", demo.person("mara", "*", "operator"))
            page.locator("main form button").click()
            page.locator(".corner").wait_for()
            is_in = True
        page.goto(url + path.format(**names))
        settle(page, name)
        docs = to.name == "images"
        file = to / (f"console-{name}.png" if docs else f"{name}.png")
        height = page.evaluate("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, TALLEST)}
        page.screenshot(path=file, full_page=True, **({"clip": clip} if docs else {}))  # type: ignore[arg-type]
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size // 1000} kB")
    context.close()


def settle(page: Page, name: str) -> None:
    """Wait until what the page loads by itself is there."""
    if name in ("job", "running"):
        page.locator("#log", has_text="step").wait_for()
    if name == "submit":
        page.fill("#file", JOB_FILE)
        page.locator("#check tbody tr").first.wait_for()
        page.locator("#check [data-again]").wait_for(state="detached")  # when it would start
        page.locator("h2").first.click()
    if name not in ("submit", "fit", "sign-in"):
        page.locator("#age.live").wait_for()


if __name__ == "__main__":
    sys.exit(main())
