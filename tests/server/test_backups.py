"""Backups by the clock: made, verified, and only so many kept."""

from __future__ import annotations

import os
import sqlite3
import zipfile
from pathlib import Path

import pytest

from brimful.adapters.stores.sql import SqlStore
from brimful.client.settings import read_settings
from brimful.server.run.backups import AGAIN_S, Backups
from tests.adapters.test_snapshot import a_history

HOUR_S = 3600


class Scheduled:
    def __init__(self, folder: Path) -> None:
        self.now = 1_800_000_000.0
        self.folder = folder / "backups"
        given = {"data": str(folder), "backup_folder": str(self.folder), "backup_hours": 2, "backups_kept": 2}
        self.backups = Backups(read_settings(given, env={}), clock=lambda: self.now)

    def look(self, after_s: float = 0.0) -> list[str]:
        """The names that are there then. A file's age is by the test's clock."""
        self.now += after_s
        before = set(self.folder.glob("*"))
        self.backups.look()
        for made in set(self.folder.glob("*")) - before:
            os.utime(made, (self.now, self.now))
        return sorted(path.name for path in self.folder.glob("*"))


@pytest.fixture
def scheduled(tmp_path: Path) -> Scheduled:
    store = SqlStore(f"sqlite:///{tmp_path / 'brimful.db'}")
    assert store.append(a_history(2), after=0)
    store.close()
    return Scheduled(tmp_path)


def test_one_is_made_at_once_then_every_period_and_the_oldest_go(scheduled: Scheduled) -> None:
    first = scheduled.look()
    assert first == ["brimful-20270115T080000Z.zip"]
    assert zipfile.is_zipfile(scheduled.folder / first[0])
    assert scheduled.look(after_s=HOUR_S) == first, "not due yet"
    assert scheduled.backups.age_s() == HOUR_S
    assert len(scheduled.look(after_s=HOUR_S)) == 2
    last = scheduled.look(after_s=2 * HOUR_S)
    assert len(last) == 2
    assert first[0] not in last


def test_one_that_cannot_be_verified_is_none_and_is_told(
    scheduled: Scheduled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = sqlite3.connect(tmp_path / "brimful.db")
    database.execute("UPDATE events SET at_s = at_s + 1 WHERE seq = 3")
    database.commit()
    database.close()
    assert scheduled.look() == []
    assert "checksum" in caplog.text
    assert scheduled.look(after_s=AGAIN_S / 2) == []
    assert caplog.text.count("the backup") == 1, "not tried again at every look"
    assert scheduled.backups.age_s() == AGAIN_S / 2
