"""`brimful rehearse`: the table of candidates, and consent before one is adopted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brimful.cli.commands import YES
from brimful.cli.fleet import rehearse
from brimful.cli.main import main


def a_row(policy: str, gain: float | None, *, better: bool = False) -> dict[str, Any]:
    return {
        "policy": policy,
        "mean_jct_s": 3600,
        "p99_jct_s": 7200,
        "mean_delay_s": 600,
        "deadlines_kept": 3,
        "fill": 0.91,
        "gain": gain,
        "least_gain": gain and gain / 2,
        "is_better": better,
    }


class FakeClient:
    """A server that has rehearsed, and remembers what it was asked."""

    asked: list[Any] = []  # noqa: RUF012 - one for all

    def policy(self) -> dict[str, Any]:
        rows = [a_row("backfill", None), a_row("brim", 0.4, better=True), a_row("las", -0.2)]
        rehearsed = {"since_s": 0, "until_s": 86400, "jobs": 7, "deadlines": 4, "cpu_s": 1.5}
        return {
            "policy": "backfill",
            "configured": "backfill",
            "since_s": None,
            "by": "",
            "reason": "",
            "adopts": False,
            "cpu_percent": 5,
            "proposal": "brim",
            "rehearsed": {**rehearsed, "candidates": rows},
            "running": False,
            "problem": None,
        }

    def rehearse(self, *, days: int, policies: list[str]) -> dict[str, Any]:
        self.asked.append((days, policies))
        return self.policy()

    def adopt(self, policy: str) -> dict[str, Any]:
        self.asked.append(policy)
        return {**self.policy(), "policy": policy}


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    FakeClient.asked.clear()
    monkeypatch.setattr(rehearse, "Client", FakeClient)
    return FakeClient.asked


def test_the_table_has_a_row_for_each_policy_and_a_proposal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse"]) == YES
    shown = capsys.readouterr().out
    assert "backfill, set when the server started" in shown
    assert "brim is better: brimful fleet rehearse --adopt 'brim'" in shown
    (brim,) = (line for line in shown.splitlines() if line.startswith("brim  "))
    assert "3/4" in brim
    assert "40 %" in brim
    assert "20 %" in brim


def test_days_and_policies_are_passed_on(asked: list[Any]) -> None:
    assert main(["fleet", "rehearse", "--days", "7", "--policy", "srpt"]) == YES
    assert asked == [(7, ["srpt"])]


def test_nothing_is_adopted_without_consent(capsys: pytest.CaptureFixture[str], asked: list[Any]) -> None:
    assert main(["rehearse", "--adopt", "brim", "--json"]) != YES
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "needs_consent"
    assert main(["rehearse", "--adopt", "brim", "--dry-run"]) == YES
    assert "would have cost 40 % fewer job-hours" in capsys.readouterr().out
    assert asked == []
    assert main(["rehearse", "--adopt", "brim", "--yes"]) == YES
    assert asked == ["brim"]
