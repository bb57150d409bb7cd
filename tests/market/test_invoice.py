"""Bills add up to what the ledger posted, and replay from the log gives the same."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from brimful.cli.commands import BAD_INPUT, YES
from brimful.cli.main import main
from brimful.cli.money import accounts
from brimful.fleet.events import (
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
    to_record,
)
from brimful.language import verbatim
from brimful.market.invoice import DAYS_KEPT, Bill, Days, Invoices, Line, Sums, day_of
from brimful.market.ledger import Ledger
from tests.builders import USD, a_job, a_node, joined

LEDGERS = 10_000


def lines(log: list[Event], ledger: Ledger | None = None) -> list[Line]:
    made, found = Invoices(ledger), list[Line]()
    for event in log:
        found += made.apply(event)
    return found


def bills(found: list[Line], *, by: str) -> list[Bill]:
    sums = Sums(by)
    sums.add(found)
    return sums.bills(by)


def random_log(seed: int) -> list[Event]:
    """A few jobs of a few teams, some with budgets, some stopped and begun again, some that fail."""
    r = random.Random(seed)
    events: list[Event] = [joined(a_node("n0")), joined(a_node("n1", gpu="t4", usd=1))]
    at_s = 0
    for j in range(r.randint(1, 4)):
        name = f"j{j}"
        budget = r.choice((None, r.randint(1, 8 * USD)))
        job = a_job(name, gpus=r.randint(1, 4), tenant=r.choice("ab"), budget_microusd=budget)
        events.append(JobSubmitted(at_s=at_s, job=job))
        for k in range(1, r.randint(2, 4)):
            lease, node = f"{name}.{k}", r.choice(("n0", "n1"))
            rate = r.randint(0, 3 * USD)
            events.append(
                LeaseGranted(
                    at_s=at_s,
                    lease=lease,
                    job=name,
                    node=node,
                    gpus=tuple(range(job.gpus)),
                    microusd_per_gpu_hour=rate,
                    microusd_per_gib=r.choice((0, 90_000)),
                )
            )
            if r.random() < 0.9:
                events.append(LeaseStarted(at_s=at_s, lease=lease))
            at_s += r.randint(0, 5000)
            if again := r.random() < 0.5:
                events.append(LeaseEnding(at_s=at_s, lease=lease, reason=verbatim("preempted"), requeue=True))
            kept = r.choice((None, float(r.randint(0, 6000))))
            events.append(
                LeaseEnded(
                    at_s=at_s,
                    lease=lease,
                    exit_code=r.choice((0, 1)),
                    kept_work_s=kept,
                    moved_bytes=r.randrange(1 << 32),
                )
            )
            if not again:
                break
    return events


def test_every_ledger_sums_to_zero_every_budget_holds_and_bills_add_up() -> None:
    for seed in range(LEDGERS):
        log, ledger = random_log(seed), Ledger()
        found = lines(log, ledger)
        assert sum(ledger.balances.values()) == 0, seed
        posted = sum(t.microusd for t in ledger.transfers if t.kind == "post")
        for by in ("team", "job", "gpu"):
            assert sum(bill.microusd for bill in bills(found, by=by)) == posted, seed
        held = sum(n for account, n in ledger.balances.items() if account.startswith("hold:"))
        assert sum(ledger.held_by_tenant.values()) == held, seed
        tenants = sum(n for account, n in ledger.balances.items() if account.startswith("tenant:"))
        assert posted == -tenants - held, seed
        budgets = {e.job.job: e.job.budget_microusd for e in log if isinstance(e, JobSubmitted)}
        for bill in bills(found, by="job"):
            budget = budgets[bill.of]
            assert budget is None or bill.microusd <= budget, seed
            assert bill.failed_microusd + bill.lost_microusd <= bill.microusd, seed


def test_waste_is_what_failed_and_what_was_done_again() -> None:
    log: list[Event] = [joined(a_node("n0")), JobSubmitted(at_s=0, job=a_job("a"))]
    for k, (exit_code, kept) in enumerate(((143, 900.0), (1, None)), 1):
        start = LeaseGranted(
            at_s=0, lease=f"a.{k}", job="a", node="n0", gpus=(0,), microusd_per_gpu_hour=2 * USD
        )
        log += [start, LeaseStarted(at_s=0, lease=f"a.{k}")]
        if k == 1:
            log.append(LeaseEnding(at_s=1800, lease="a.1", reason=verbatim("preempted"), requeue=True))
        log.append(LeaseEnded(at_s=1800, lease=f"a.{k}", exit_code=exit_code, kept_work_s=kept))
    (bill,) = bills(lines(log), by="gpu")
    assert (bill.of, bill.microusd, bill.lost_microusd, bill.failed_microusd) == (
        "h100",
        2 * USD,
        USD // 2,
        USD,
    )


def test_bills_kept_line_by_line_are_the_sums_of_the_lines_of_the_teams_that_are_wanted() -> None:
    for seed in range(50):
        found = [line for i in range(3) for line in lines(random_log(10 * seed + i))]
        teams, sums = sorted({line.team for line in found}), Sums("team", "user", "site", "gpu", "day")
        sums.add(found)
        wanted = set(teams[: seed % 3])
        for by in ("team", "user", "site", "gpu", "day"):
            for bill in sums.bills(by, wanted.__contains__):
                mine = [line for line in found if line.team in wanted and getattr(line, by) == bill.of]
                assert bill.leases == len(mine) > 0
                for name in ("gpu_s", "microusd", "failed_microusd", "moved_bytes", "egress_microusd"):
                    assert getattr(bill, name) == sum(getattr(line, name) for line in mine), (by, name)
            total = sum(line.microusd for line in found if line.team in wanted)
            assert sum(bill.microusd for bill in sums.bills(by, wanted.__contains__)) == total


def test_a_months_bill_has_the_leases_that_ended_in_it_and_months_add_up_to_the_whole() -> None:
    days = ("2026-02-28", "2026-03-01", "2026-03-31", "2026-04-01")
    found = [
        Line(
            team="ab"[i % 2],
            job=f"j{i}",
            lease=f"j{i}.1",
            site="s",
            gpu="h100",
            gpu_s=1,
            microusd=10**i,
            day=day,
        )
        for i, day in enumerate(days)
    ]
    sums = Sums("team", "gpu")
    sums.add(found)
    assert [(bill.of, bill.microusd) for bill in sums.bills("team", month="2026-03")] == [
        ("a", 100),
        ("b", 10),
    ]
    assert [bill.microusd for bill in sums.bills("gpu", month="2026-03")] == [110]
    assert sums.bills("team", month="2026-05") == []
    assert sums.months("team") == ["2026-04", "2026-03", "2026-02"]
    assert sums.months("team", "a".__eq__) == ["2026-03", "2026-02"]
    assert sum(sums.bills("gpu", month=each)[0].microusd for each in sums.months("gpu")) == 1111


def test_checkpoints_that_were_moved_are_on_the_bill_to_the_micro_dollar() -> None:
    granted = LeaseGranted(
        at_s=0,
        lease="a.1",
        job="a",
        node="n0",
        gpus=(0,),
        microusd_per_gpu_hour=2 * USD,
        microusd_per_gib=90_000,
    )
    log: list[Event] = [
        joined(a_node("n0")),
        JobSubmitted(at_s=0, job=a_job("a")),
        granted,
        LeaseStarted(at_s=0, lease="a.1"),
        LeaseEnded(at_s=1800, lease="a.1", exit_code=0, moved_bytes=5 << 29),
    ]
    ledger = Ledger()
    (bill,) = bills(lines(log, ledger), by="site")
    assert (bill.microusd, bill.egress_microusd, bill.moved_bytes) == (USD + 225_000, 225_000, 5 << 29)
    assert sum(ledger.balances.values()) == 0
    assert (bill.failed_microusd, bill.lost_microusd) == (0, 0)


def written(path: Path, log: list[Event]) -> str:
    records = [dict(zip(("kind", "version", "body"), to_record(event), strict=True)) for event in log]
    path.write_text("\n".join(map(json.dumps, records)))
    return str(path)


def test_replay_from_the_log_gives_the_same_balances(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, ledger = random_log(7), Ledger()
    for event in log:
        ledger.apply(event)
    assert main(["market", "ledger", written(tmp_path / "log.jsonl", log), "--json"]) == YES
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["balances"] == ledger.balances
    assert data["sum"] == 0


def test_an_invoice_is_shown_as_table_and_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = written(tmp_path / "log.jsonl", random_log(3))
    assert main(["invoice", "--log", name]) == YES
    assert capsys.readouterr().out.endswith(" 0\n")  # every account together
    assert main(["invoice", "--log", name, "--by", "job", "--csv"]) == YES
    assert capsys.readouterr().out.startswith(
        "of,name,leases,gpu_s,microusd,failed_microusd,lost_microusd,idle_microusd,moved_bytes,egress_microusd\n"
    )


def test_equal_bills_below_a_cent_look_equal_and_add_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bills = [
        asdict(Bill(of=f"job-{i}", leases=1, gpu_s=16, microusd=n))
        for i, n in enumerate([4400, 4400, 50_000])
    ]
    answer = {"by": "job", "bills": bills, "total_microusd": 58_800}
    monkeypatch.setattr(accounts, "_of_log", lambda _args: answer)
    assert main(["invoice", "--log", "x", "--by", "job"]) == YES
    shown = re.findall(r"\$0\.\d{6}", capsys.readouterr().out)
    assert shown == ["$0.004400", "$0.004400", "$0.050000", "$0.058800"]


def test_a_damaged_log_is_refused_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"kind": "NodeLeft", "body": {"at_s": 0, "node": "x"}}\n{"kind": "Nonsense"}\n')
    assert main(["invoice", "--log", str(path), "--json"]) == BAD_INPUT
    reason = json.loads(capsys.readouterr().out)["error"]["reason"]
    assert (reason["code"], reason["where"]["n"]) == ("money.not_an_event", 2)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"kind": "NodeLeft", "seq": "x", "body": {"at_s": 0, "node": "n"}}', "NodeLeft"),
        ('{"kind": "LeaseEnding", "body": {"at_s": 0, "lease": "l", "reason": 5}}', "LeaseEnding"),
        ('{"kind": "LeaseEnding", "body": {"at_s": 0, "lease": "l", "reason": {}}}', "LeaseEnding"),
        ('{"kind": "BudgetSet", "body": {"at_s": 0, "tenant": "t", "microusd": "x"}}', "BudgetSet"),
        ('{"kind": "CreditGranted", "body": {"at_s": 0, "tenant": "t", "microusd": -1}}', "CreditGranted"),
        ('{"kind": "CreditGranted", "body": 5}', "CreditGranted"),
        ('{"kind": ["CreditGranted"], "body": {}}', None),
        ('{"data": {"events": 5}}', None),
        ('{"data": {"events": [5]}}', None),
        ("[" * 100_000, None),
        ("null", None),
    ],
)
@pytest.mark.parametrize("command", [["invoice", "--log"], ["market", "ledger"]])
def test_any_nonsense_in_a_log_is_refused_by_its_place_and_kind(
    text: str, kind: str | None, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    assert main([*command, str(path), "--json"]) == BAD_INPUT
    reason = json.loads(capsys.readouterr().out)["error"]["reason"]
    assert (reason.get("kind"), reason["where"]["n"]) == (kind, 1)


def test_days_add_up_to_the_bills_by_team_user_and_gpu_type() -> None:
    found = [line for seed in range(50) for line in lines(random_log(seed))]
    days = Days()
    days.add(found)
    for by in ("team", "user", "gpu"):
        total: dict[str, int] = {}
        for day in {line.day for line in found}:
            for of, microusd in days.of(day, by).items():
                total[of] = total.get(of, 0) + microusd
        assert total == {bill.of: bill.microusd for bill in bills(found, by=by)}
    day = found[0].day
    assert days.of(day, "team", lambda team: team == "a").keys() <= {"a"}


def test_days_forget_the_oldest() -> None:
    days = Days()
    line = {"team": "a", "job": "j", "lease": "j.1", "site": "s", "gpu": "t4", "gpu_s": 1, "microusd": 5}
    for n in range(DAYS_KEPT + 1):
        days.add([Line(**line, day=day_of(n * 86400))])  # type: ignore[arg-type]
    assert days.of("1970-01-01", "team") == {}
    assert days.of("1970-01-02", "team") == {"a": 5}
