"""`price`, `bid`, `budget` and `invoice` as a user types them, against a real server and on a log alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from brimful.cli.main import main
from brimful.fleet.events import PoolPriced, to_record
from tests.builders import USD
from tests.server.live import BRIMFUL, Live, live, wait_for

OPTIONS = ("--slots", "2", "--gpu", "h100", "--usd-per-hour", "1", "--market", "all")
MARKET = ("--notice-s", "3600", "--market-period-s", "1")


def said(server: Live, *words: str, code: int) -> str:
    """What a person reads."""
    env = {**server.env, "COLUMNS": "80"}
    done = subprocess.run([BRIMFUL, *words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_a_bid_is_raised_a_budget_set_and_the_price_shown(tmp_path: Path) -> None:
    with live(tmp_path / "data", *OPTIONS, *MARKET) as server:
        first = server.submit("--tenant", "a", "--gpus", "2", command=("sleep", "100000"))
        wait_for(lambda: server.show(first)["phase"] == "running")
        second = server.submit("--tenant", "b", "--gpus", "2", "--limit", "1.5", command=("sleep", "1"))
        (pool,) = wait_for(
            lambda: [
                each
                for each in server.ask("market", "price", "--history")["pools"]
                if len(each["history"]) > 2
            ]
        )
        assert pool["cleared_microusd_per_gpu_hour"] == 3 * USD // 2
        shown = said(server, "market", "price", "h100", "--history", code=0)
        assert "clears at $1.50, never below $1.00" in shown
        assert "░" in shown  # what waits
        assert max(map(len, shown.splitlines())) <= 82
        assert "no pool is called 'a100'" in said(server, "market", "price", "a100", code=2)

        assert "at most $6.00 an hour" in said(
            server, "job", "bid", second, "--limit", "3", "--dry-run", code=0
        )
        assert "add --yes to agree" in said(server, "job", "bid", second, "--limit", "3", code=1)
        for bad in ("nan", "-1", "0", "1e9", "999999999999999999", "1.1234567"):
            assert "not a sum of money" in said(server, "job", "bid", second, f"--limit={bad}", code=2)
        assert (
            server.ask("job", "bid", second, "--limit", "3", "--yes")["limit_microusd_per_gpu_hour"]
            == 3 * USD
        )
        wait_for(lambda: "has to leave in" in server.show(first)["why"])
        assert "has to leave in" in said(server, "job", "bid", first, code=0)
        assert "above a limit of $0.50" in said(
            server, "job", "bid", first, "--limit", "0.5", "--yes", code=1
        )

        left = server.ask("budget", "a", "--set", "5", "--yes")["left_microusd"]
        assert 4 * USD < left < 5 * USD  # what its running lease has come to is part of it
        assert "not a sum of money" in said(server, "budget", "a", "--set", "inf", "--yes", code=2)
        assert "a " in said(server, "budget", code=0)
        server.ask("job", "cancel", first)
        wait_for(lambda: server.show(second)["phase"] == "finished")
        bills = server.ask("invoice")["bills"]
        assert {bill["of"] for bill in bills} == {"a", "b"}
        assert bills == server.ask("invoice", "--data", str(tmp_path / "data"))["bills"]
        assert "not measured" in said(server, "invoice", "--by", "job", code=0)


def test_prices_of_a_log_need_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("w") as out:
        for i in range(50):
            event = PoolPriced(
                at_s=i * 120,
                site="here",
                gpu="h100",
                tier="owned",
                microusd_per_gpu_hour=USD + i * 10_000,
                cleared_microusd_per_gpu_hour=2 * USD,
                held=8,
                wanted=12,
                gpus=8,
            )
            kind, version, body = to_record(event)
            out.write(json.dumps({"kind": kind, "version": version, "body": body}) + "\n")
    assert main(["market", "price", "--log", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "h100 at here  $1.49 per GPU-hour" in shown
    assert "1 h 38 min ago" in shown
    assert main(["market", "price", "--log", str(path), "--hours", "nan"]) == 2
    assert main(["market", "price", "--log", str(tmp_path / "none")]) == 2
