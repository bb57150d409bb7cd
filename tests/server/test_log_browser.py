"""A gang's log on its page, in Chromium: it grows, it is searched, by rank, and downloaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from brimful.server.app import make_app
from tests.builders import a_node
from tests.server.builders import bearer, wind_down
from tests.server.test_api import Server
from tests.server.test_console import PATIENCE_MS, browser  # noqa: F401 - a fixture
from tools.demo import listening

pytestmark = pytest.mark.browser

SCRIPT = """
echo "rank $BRIMFUL_RANK of $BRIMFUL_WORLD_SIZE begins"
echo "loss 2.5"
read line < "go-$BRIMFUL_RANK"
echo "Loss 1.25 of rank $BRIMFUL_RANK"
echo "saved"
read line < "end-$BRIMFUL_RANK"
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, a_node("n-0", gpus=1), a_node("n-1", gpus=1))
    yield server
    server.service.stop()
    wind_down(server.service)
    server.access.close()
    server.store.close()


def test_a_gangs_log_grows_is_searched_by_rank_and_downloaded(
    server: Server,
    tmp_path: Path,
    browser: Browser,  # noqa: F811
) -> None:
    app = make_app(server.service, server.access, hosts=("127.0.0.1",))
    pipes = {name: tmp_path / name for name in ("go-0", "go-1", "end-0", "end-1")}
    for pipe in pipes.values():
        os.mkfifo(pipe)
    token = bearer(server.access)["authorization"].removeprefix("Bearer ")
    job = server.submit("sh", "-c", SCRIPT, gpus=2, within="site")
    with listening(app) as url:
        context = browser.new_context(locale="en")
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        page.fill("#token", token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".corner")).to_be_visible()
        page.goto(f"{url}/jobs/{job}")
        log, state = page.locator("#log"), page.locator("#log-state")
        rank, find = page.locator("#log-rank"), page.locator("#log-find")
        expect(state).to_have_text("not started yet")
        expect(rank).to_be_hidden()

        server.service.start()  # its loop, as in a user's server: the open page learns of both ranks
        expect(log).to_have_text("rank 0 of 2 begins\nloss 2.5\n")
        expect(rank.locator("option")).to_have_text(["0", "1"])
        find.fill("LOSS")
        expect(log).to_have_text("loss 2.5")
        pipes["go-0"].write_text("\n")
        expect(log).to_have_text("loss 2.5\nLoss 1.25 of rank 0")  # what comes later is searched too
        rank.select_option("1")
        expect(log).to_have_text("loss 2.5")
        find.fill("")
        expect(log).to_have_text("rank 1 of 2 begins\nloss 2.5\n")
        pipes["go-1"].write_text("\n")
        expect(log).to_have_text("rank 1 of 2 begins\nloss 2.5\nLoss 1.25 of rank 1\nsaved\n")
        find.fill("saved")
        find.press("Enter")  # does not leave the page

        for chosen in ("1", "0"):
            rank.select_option(chosen)
            expect(log).to_have_text("saved")
            with page.expect_download() as started:
                page.get_by_role("link", name="Download").click()
            assert started.value.suggested_filename == f"{job}-{chosen}.log"
            told: Any = server.get(f"/v1/jobs/{job}/log?rank={chosen}")["text"]
            assert Path(started.value.path()).read_text() == told
            assert told.endswith(f"Loss 1.25 of rank {chosen}\nsaved\n")
        find.fill("")
        expect(log).to_have_text(told)
        for name in ("end-0", "end-1"):
            pipes[name].write_text("\n")
        expect(state).to_have_text("ended: finished")
        expect(rank).to_have_value("0")
        context.close()
