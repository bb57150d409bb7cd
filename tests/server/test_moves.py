"""A real training run is preempted, moves to another site, and goes on as if nothing had happened.

The commands are those of docs/tutorial/stop-and-move.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.paced import Pace
from tests.server.live import live, wait_for

STEPS = 160
GPT = (sys.executable, str(ROOT / "examples" / "tiny_gpt.py"), "--steps", str(STEPS))
USD = {"east": 3.6, "west": 1.8}  # 1,000 and 500 micro-dollars a second


def losses(text: str) -> list[tuple[int, float]]:
    found = re.findall(r"^step (\d+) loss (\S+)$", text, re.MULTILINE)
    return [(int(step), float(loss)) for step, loss in found]


def until(flag: Path) -> tuple[str, ...]:
    """A job that ends when the test says so: no busy machine changes the order of things."""
    return ("sh", "-c", f"while ! test -e {flag}; do sleep 0.1; done")


@contextmanager
def _ending(*flags: Path) -> Iterator[None]:
    """Whatever fails, the others do not run on."""
    try:
        yield
    finally:
        for flag in flags:
            flag.touch()


@pytest.mark.torch
def test_a_gpt_is_preempted_and_goes_on_at_another_site(tmp_path: Path) -> None:
    free, done = tmp_path / "free", tmp_path / "done"
    pace = Pace(tmp_path / "limit", steps=STEPS)
    pace.may_go_to(STEPS // 2)
    sites = ",".join(f"{name}=1xslot@{usd}" for name, usd in USD.items())
    with (
        _ending(free, done),
        live(tmp_path / "data", "--sites", sites, "--min-run-s", "1", "--grace-s", "300") as server,
    ):

        def log_of(job: str, lease: int, site: str) -> str:
            path = tmp_path / "data" / "sites" / site / f"{job}.{lease}" / "log"
            return path.read_text() if path.exists() else ""

        def over(job: str) -> bool:
            return bool(server.show(job)["phase"] == "finished")

        gpt = server.submit(
            "--name", "gpt", "--priority", "background", "--env", "OMP_NUM_THREADS=1", command=pace.command
        )
        first = wait_for(lambda: server.show(gpt)["leases"])[0]["site"]
        other = "west" if first == "east" else "east"
        filler = server.submit("--priority", "urgent", command=until(free))
        wait_for(lambda: server.show(filler)["phase"] == "running")
        wait_for(lambda: len(losses(log_of(gpt, 1, first))) >= 20)

        urgent = server.submit("--priority", "urgent", command=until(done))
        wait_for(lambda: server.show(gpt)["phase"] == "waiting")
        assert server.show(gpt)["leases"][0]["reason"] == f"preempted by {urgent}"
        wait_for(lambda: server.show(urgent)["phase"] == "running")
        pace.may_go_to(STEPS + 1)
        free.touch()  # the filler ends, and the other site is free
        wait_for(lambda: over(gpt))
        done.touch()
        wait_for(lambda: over(urgent) and over(filler))

        leases = server.show(gpt)["leases"]
        before, after = log_of(gpt, 1, first), log_of(gpt, 2, other)
        asked = ("jobs", f"job show {gpt}", f"job why {gpt}", "fleet queues", "fleet events", "fleet nodes")
        pages = [server.read(*words.split()) for words in asked]
        money = server.ask("fleet") and {name: server.show(name) for name in (gpt, urgent, filler)}

    assert [lease["site"] for lease in leases] == [first, other]
    assert "fetched from" in after
    assert 20 <= len(losses(before)) < STEPS
    curve = losses(before) + losses(after)
    assert [step for step, _ in curve] == list(range(STEPS)), "every step once, in order"
    alone = subprocess.run(GPT, cwd=tmp_path, env=server.env, capture_output=True, text=True, check=True)
    assert curve == losses(alone.stdout), "the curve of a run that nobody stopped"
    wide = [line for page in pages for line in page.splitlines() if len(line) > 80 and "/" not in line]
    assert not wide, "paths are left whole; all else reads well at 80 columns"
    for shown in money.values():
        due = sum(
            lease["billed_s"] * round(USD[lease["site"]] * 1_000_000) // 3600 for lease in shown["leases"]
        )
        assert shown["posted_microusd"] == shown["cost_microusd"] == due
