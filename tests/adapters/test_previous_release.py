"""What the commit before the rooms moved wrote opens, and every figure is the one it gave.

`data/schema_3` was made by that commit: 20 jobs with market prices, notices, budgets, a credit, shares of a
GPU, a gang over two nodes, a retry, a hold, a move and a silent site; as a database, a backup, a stream of
events and a job file. `figures.json` is what its own views, ledger and invoices said. Sentences may change,
figures may be added; numbers, names and codes stay.
"""

from __future__ import annotations

import json
import sqlite3
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.stores import snapshot
from brimful.adapters.stores.backup import read_manifest, restore
from brimful.adapters.stores.sql import SqlStore
from brimful.cli.money.accounts import fold_log
from brimful.fleet.events import Event
from brimful.market.invoice import Invoices, Sums
from brimful.market.pools import Market
from brimful.market.spot import Terms
from brimful.scheduler.rules import Rules
from brimful.server.jobfiles.jobfile import read_job_file
from brimful.server.service.service import Service
from brimful.server.views.fleet import fleet_view, queues_view
from brimful.server.views.jobs import job_view, jobs_page
from brimful.server.views.money import budgets_view, prices_view, spend_view
from brimful.server.views.why import why_view
from tests.builders import ScriptedEngine
from tests.server.builders import OPERATOR

DATA = Path(__file__).with_name("data") / "schema_3"
FIGURES: dict[str, Any] = json.loads((DATA / "figures.json").read_text(encoding="utf-8"))
SENTENCES = {"why", "waiting", "here", "price", "verdict", "reason", "notes"}


def same(found: Any, wanted: Any, where: str = "") -> None:
    """By key; of a sentence only whether there is one."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            if key in SENTENCES and isinstance(value, bool):
                assert bool(found[key]) == value, f"{where}.{key}"
            else:
                same(found[key], value, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for i, value in enumerate(wanted):
            same(found[i], value, f"{where}[{i}]")
    else:
        assert found == wanted, where


def plain(found: object) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(found))


def a_server(store: SqlStore) -> Service:
    """Set up as the one that wrote it; it only reads."""
    service = Service(
        store,
        [ScriptedEngine()],
        Rules(types="cheap", preempt="priority", deadlines=True, grace_s=10),
        market=Market(pools=("east",), terms=Terms(notice_s=60, period_s=30, max_wait_s=3600)),
        clock=lambda: FIGURES["now_s"],
    )
    service.reader.refresh()
    return service


def holds_every_figure(store: SqlStore) -> None:
    assert store.end() == FIGURES["events"]
    service = a_server(store)
    names = list(FIGURES["jobs"])
    same(dict(sorted(service.reader.ledger.balances.items())), FIGURES["balances"], "balances")
    same({name: service.reader.spent_microusd(name) for name in names}, FIGURES["spent"], "spent")
    for name in names:
        same(plain(job_view(service.reader, service.reader.job(name))), FIGURES["jobs"][name], name)
        same(plain(why_view(service.reader, service.reader.job(name))), FIGURES["why"][name], f"why {name}")
    assert [view["job"] for view in jobs_page(service.reader, job_view, limit=100).views] == FIGURES["page"]
    same(plain(spend_view(service.reader, OPERATOR)), FIGURES["spend"], "spend")
    same(plain(budgets_view(service.reader, OPERATOR)), FIGURES["budgets"], "budgets")
    same(plain(prices_view(service.reader, since_s=0)), FIGURES["prices"], "prices")
    same(plain(queues_view(service.reader, OPERATOR)), FIGURES["queues"], "queues")
    # Five GPUs have no job there; that release counted the one of a drained node as free too.
    same(plain(fleet_view(service.reader, OPERATOR)), FIGURES["fleet"] | {"free": 4}, "fleet")
    same(bills_of(store.since(0)), FIGURES["invoices"], "invoices")


def bills_of(events: Any) -> dict[str, Any]:
    fold, sums = Invoices(), Sums("team", "job", "gpu")
    for event in events:
        sums.add(fold.apply(event))
    return {by: [asdict(bill) for bill in sums.bills(by)] for by in ("team", "job", "gpu")}


@pytest.fixture(autouse=True)
def few_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it was written: eight of its jobs have left memory, five of them for the table."""
    monkeypatch.setattr(snapshot, "KEEP", 4)


def test_a_database_of_the_previous_release_opens_with_every_figure(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "log.db") as database:
        database.executescript((DATA / "database.sql").read_text(encoding="utf-8"))
    database.close()
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    holds_every_figure(store)
    store.close()


def test_a_backup_of_the_previous_release_is_restored_with_every_figure(tmp_path: Path, url: str) -> None:
    with zipfile.ZipFile(tmp_path / "backup.zip", "w") as archive:
        for part in (DATA / "backup.txt").read_text(encoding="utf-8").split("==> ")[1:]:
            name, _, body = part.partition(" <==\n")
            archive.writestr(name, body)
    store = SqlStore(url)
    restore(tmp_path / "backup.zip", store)
    assert read_manifest(tmp_path / "backup.zip").rows == {
        "audit": 1,
        "brimful": 1,
        "events": 154,
        "past_jobs": 5,
        "tokens": 2,
    }
    holds_every_figure(store)
    store.close()


def test_a_stream_of_events_of_the_previous_release_gives_the_same_invoices() -> None:
    fold = Invoices()
    events: list[Event] = []
    fold_log(DATA / "events.jsonl", events.append)
    for event in events:
        fold.apply(event)
    assert len(events) == FIGURES["events"]
    same(bills_of(events), FIGURES["invoices"], "invoices")
    assert sum(fold.ledger.balances.values()) == 0


def test_a_job_file_of_the_previous_release_is_read_the_same() -> None:
    same(plain(asdict(read_job_file(DATA / "job.yaml"))), FIGURES["job_file"], "job_file")
