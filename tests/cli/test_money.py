"""`price`, `bid`, `budget` and `invoice` as a user types them, against a real server and on a log alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from brimful.cli.main import main
from brimful.fleet.events import Event, JobSubmitted, LeaseEnded, LeaseStarted, PoolPriced, to_record
from brimful.language import words as spoken
from tests.builders import USD, a_job, a_node, granted, joined
from tests.server.live import BRIMFUL, Live, live, wait_for

OPTIONS = ("--slots", "2", "--gpu", "h100", "--usd-per-hour", "1", "--market", "all", "--jobs-share-my-user")
MARKET = ("--notice-s", "3600", "--market-period-s", "1")


def said(server: Live, *words: str, code: int) -> str:
    """What a person reads."""
    env = {**server.env, "COLUMNS": "80"}
    done = subprocess.run([BRIMFUL, *words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def refused(server: Live, *words: str, code: int) -> str:
    """The code of what it was refused for."""
    return str(json.loads(said(server, *words, "--json", code=code))["error"]["reason"]["code"])


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
        assert (pool["cleared_microusd_per_gpu_hour"], pool["floor_microusd_per_gpu_hour"]) == (
            3 * USD // 2,
            USD,
        )
        shown = said(server, "market", "price", "h100", "--history", code=0)
        assert "$1.50" in shown
        assert "░" in shown  # what waits
        assert max(map(len, shown.splitlines())) <= 82
        assert refused(server, "market", "price", "a100", code=2) == "money.no_such_pool"

        assert "$6.00" in said(server, "job", "bid", second, "--limit", "3", "--dry-run", code=0)
        assert refused(server, "job", "bid", second, "--limit", "3", code=1) == "cli.not_done"
        for bad in ("nan", "-1", "0", "1e9", "999999999999999999", "1.1234567"):
            assert refused(server, "job", "bid", second, f"--limit={bad}", code=2) == "cli.not_a_sum"
        assert (
            server.ask("job", "bid", second, "--limit", "3", "--yes")["limit_microusd_per_gpu_hour"]
            == 3 * USD
        )
        wait_for(lambda: (server.show(first)["why_code"] or {}).get("code") == "server.notice")
        assert server.ask("job", "bid", first)["why_code"]["code"] == "server.notice"
        below = refused(server, "job", "bid", first, "--limit", "0.5", "--yes", code=1)
        assert below == "server.bid_below_price"

        left = server.ask("budget", "a", "--set", "5", "--yes")["left_microusd"]
        assert 4 * USD < left < 5 * USD  # what its running lease has come to is part of it
        assert refused(server, "budget", "a", "--set", "inf", "--yes", code=2) == "cli.not_a_sum"
        assert refused(server, "budget", "nobody", code=2) == "money.no_such_budget"
        assert refused(server, "budget", "--unlimited", code=2) == "money.whose_budget"
        note = spoken("money.budget_of_nobody").split(":")[0]
        assert note in said(server, "budget", "nobody", "--set", "5", "--yes", code=0)
        assert note not in said(server, "budget", "a", "--set", "5", "--yes", code=0)
        assert "a " in said(server, "budget", code=0)
        server.ask("job", "cancel", first)
        wait_for(lambda: server.show(second)["phase"] == "finished")
        bills = server.ask("invoice")["bills"]
        assert {bill["of"] for bill in bills} == {"a", "b"}
        assert bills == server.ask("invoice", "--data", str(tmp_path / "data"))["bills"]
        (month,) = server.ask("invoice")["months"]
        for from_log in ((), ("--data", str(tmp_path / "data"))):
            assert server.ask("invoice", "--month", month, *from_log)["bills"] == bills
            assert server.ask("invoice", "--month", "1999-12", *from_log)["bills"] == []
        assert {bill["idle_microusd"] for bill in bills} == {None}
        assert all(job in said(server, "invoice", "--by", "job", code=0) for job in (first, second))
        for by in ("team", "user", "job", "site", "gpu", "day"):
            assert "col_" not in said(server, "invoice", "--by", by, code=0)  # every column has its word
        assert "nobody-known" in said(server, "invoice", "--tenant", "nobody-known", code=0)


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
    assert "$1.49" in shown.splitlines()[0]
    assert "1 h 38 min" in shown
    assert main(["market", "price", "--ahead", "--log", str(path)]) == 0
    ahead = " ".join(capsys.readouterr().out.split())
    assert spoken("money.no_tariff_bids") in ahead
    assert main(["market", "price", "--log", str(path), "--hours", "nan"]) == 2
    assert main(["market", "price", "--log", str(tmp_path / "none")]) == 2


def test_a_spreadsheet_runs_no_name_of_a_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.jsonl"
    events: tuple[Event, ...] = (
        joined(a_node()),
        JobSubmitted(at_s=0, job=a_job("a", gpus=1, name="+1")),
        granted("a", gpus=(0,)),
        LeaseStarted(at_s=0, lease="a.1"),
        LeaseEnded(at_s=60, lease="a.1", exit_code=0),
    )
    with path.open("w") as out:
        for event in events:
            kind, version, body = to_record(event)
            out.write(json.dumps({"kind": kind, "version": version, "body": body}) + "\n")
    assert main(["invoice", "--log", str(path), "--by", "job", "--csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("a,'+1,")
