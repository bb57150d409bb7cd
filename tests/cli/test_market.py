"""`brimful market` on files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brimful.cli.commands import BAD_INPUT, YES
from brimful.cli.main import main
from brimful.fleet.events import BudgetSet, LeaseStarted, to_record

BOOK = Path(__file__).resolve().parents[2] / "examples" / "book.json"


def answer(capsys: pytest.CaptureFixture[str], *args: str, code: int = YES) -> Any:
    assert main([*args, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_clearing_a_book_tells_price_winners_and_why_the_others_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = answer(capsys, "market", "clear", str(BOOK))["data"]
    assert (data["pool"], data["price"]) == ("h100 here", 0.9)
    assert [win["bid"] for win in data["winners"]] == ["serve", "ablation", "sweep"]
    losers = {loss["bid"]: (loss["reason"], loss["shadow_price"]) for loss in data["losers"]}
    assert losers["pretrain"] == ("blocked_by_size", 2.1)
    assert losers["distil"] == ("displaced", 1.5)
    assert data["losers"][0]["detail_code"]["code"] == "market.outweighed"


def test_the_same_book_gives_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        main(["market", "clear", str(BOOK), "--json"])
    out = capsys.readouterr().out
    assert out[: len(out) // 2] == out[len(out) // 2 :]


def test_a_book_is_shown_to_people_in_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["market", "clear", str(BOOK)]) == YES
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("h100 here  $0.90")
    assert max(map(len, lines[:-1])) <= 80


def test_a_bad_book_is_one_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "book.json"
    bad.write_text(BOOK.read_text().replace("4.0", "-4.0"))
    error = answer(capsys, "market", "clear", str(bad), code=BAD_INPUT)["error"]
    assert error["code"] == "bad_book"
    assert error["reason"]["where"] == {"code": "market.bid_entry", "bid": "serve", "entry": 2}
    assert answer(capsys, "market", "clear", "no-such.json", code=BAD_INPUT)["error"]["code"] == "not_found"


def test_a_deadline_is_tried_on_a_record_of_spot(capsys: pytest.CaptureFixture[str]) -> None:
    record = str(BOOK.with_name("spot.jsonl"))
    hours = ("--task-hours", "10", "--deadline-hours", "12", "--starts", "10")
    data = answer(capsys, "market", "deadline", record, "--zone", "a", *hours)["data"]
    assert set(data["policies"]) == {"brim", "greedy", "uniform_progress", "clairvoyant"}
    assert all(each["misses"] == 0 for each in data["policies"].values())
    assert answer(capsys, "market", "deadline", record, "--zone", "b", "--zone", "a", *hours)["data"][
        "zones"
    ] == ["b", "a"]


def test_a_deadline_that_cannot_be_met_is_refused_with_the_hours_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = str(BOOK.with_name("spot.jsonl"))
    error = answer(capsys, "market", "deadline", record, "--deadline-hours", "40", code=BAD_INPUT)["error"]
    assert (error["reason"]["code"], round(error["reason"]["short"], 9)) == ("money.deadline_too_early", 8.2)
    assert (
        answer(capsys, "market", "deadline", record, "--zone", "x", code=BAD_INPUT)["error"]["code"]
        == "not_found"
    )


def test_balances_are_folded_from_a_whole_log_or_not_at_all(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    events = [BudgetSet(at_s=n, tenant=f"t{n}", microusd=n) for n in range(1, 5)]
    records = [
        {"seq": n, "kind": kind, "version": version, "body": body}
        for n, (kind, version, body) in enumerate(map(to_record, events), 1)
    ]
    log = tmp_path / "log.jsonl"

    def replay(*lines: object, code: int = YES) -> Any:
        log.write_text("\n".join(map(json.dumps, lines)))
        return answer(capsys, "market", "ledger", str(log), code=code)

    whole = replay(*records)["data"]
    assert whole["balances"]["budget:t4"] == 4
    assert replay({"ok": True, "data": {"events": records}})["data"] == whole  # `brimful fleet events --json`
    assert len(replay(records[0], *records[2:])["data"]["balances"]) == 6  # others' events are not told
    nothing = {"code": "money.after_none"}
    for cut, where, seq, before in (
        (records[2:], {"code": "money.line", "n": 1}, 3, nothing),
        (
            records[:3] + records[1:],
            {"code": "money.line", "n": 4},
            2,
            {"code": "money.after_event", "seq": 3},
        ),
        ([{"ok": True, "data": {"events": records[1:]}}], {"code": "money.entry", "n": 1}, 2, nothing),
    ):
        reason = replay(*cut, code=BAD_INPUT)["error"]["reason"]
        assert (reason["code"], reason["where"], reason["seq"]) == ("money.out_of_order", where, seq)
        assert reason["before"] == before
    kind, version, body = to_record(LeaseStarted(at_s=9, lease="job-1.1"))
    unknown = {"kind": kind, "version": version, "body": body}
    reason = replay(*records, unknown, code=BAD_INPUT)["error"]["reason"]
    assert reason == {"code": "money.begun_before", "file": "log.jsonl", "what": "job-1.1"}
    assert answer(capsys, "invoice", "--log", str(log), code=BAD_INPUT)["error"]["reason"] == reason
