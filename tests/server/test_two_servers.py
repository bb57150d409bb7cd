"""Two servers on one PostgreSQL: one acts, the other takes over, and nothing is done twice."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from bench.chaos import JOB
from brimful.adapters.stores.leader import LEASE_S, MARGIN_S
from brimful.adapters.stores.schema import leader
from brimful.adapters.stores.sql import SqlStore
from brimful.fleet.job import Job
from brimful.fleet.state import OVER
from brimful.scheduler.rules import Rules
from brimful.server.doctor import examine
from brimful.server.run.engines import engines_in
from brimful.server.service.driver import SEEK_S
from brimful.server.service.service import Service
from tests.server.live import Live, wait_for


class Pair:
    def __init__(self, folder: Path, url: str, *, sites: str = "a=2xslot@1,b=2xslot@1") -> None:
        self.folder, self.work = folder, folder / "work"
        self.work.mkdir()
        (folder / "job.py").write_text(JOB)
        options = (
            "--database",
            url,
            "--engines",
            str(folder / "engines"),
            "--sites",
            sites,
        )
        self.servers = [Live(folder / name, *options) for name in ("one", "two")]
        self.store = SqlStore(url)
        self.users = Service(self.store, [], Rules())
        self.jobs = 0

    def holder(self) -> tuple[int, int]:
        """The token and the pid of whoever leads."""
        with self.store.reading() as connection:
            row = connection.execute(sa.select(leader)).one()
        return row.token, json.loads(row.holder)["pid"] if row.holder else 0

    def runs(self) -> list[str]:
        """Every lease that any server ever began to start."""
        return sorted(path.name for path in (self.folder / "engines" / "sites").glob("*/job-*"))

    def submit(self, seconds: float) -> str:
        self.jobs += 1
        path = self.work / f"w{self.jobs}"
        command = (sys.executable, str(self.folder / "job.py"), str(path), str(seconds), "0")
        job = Job(job="", gpus=1, name=path.name, command=command, folder="/", retries=3)
        return self.users.submissions.submit(job).job.job

    def phase(self, name: str) -> str:
        self.users.reader.refresh()
        return self.users.reader.job(name).phase

    def end(self) -> None:
        for server in self.servers:
            server.down()
        self.store.close()


def test_a_silent_leader_is_replaced_within_ten_seconds() -> None:
    """What is waited for, at the most: its lease, the margin, and two looks of the other."""
    assert LEASE_S + MARGIN_S + 2 * SEEK_S <= 10


@pytest.mark.postgres
def test_the_other_takes_over_and_nothing_is_doubled(tmp_path: Path, postgres_url: str) -> None:
    pair = Pair(tmp_path, postgres_url)
    one, two = pair.servers
    try:
        one.up()
        two.up()
        assert pair.holder() == (1, one.pid)
        names = [pair.submit(1.0 + i) for i in range(8)]
        wait_for(lambda: pair.phase(names[0]) != "waiting")

        one.signal(signal.SIGSTOP)  # it neither acts nor dies
        names.append(pair.submit(0.1))
        wait_for(lambda: pair.holder() == (2, two.pid), every_s=0.05)
        wait_for(lambda: pair.phase(names[-1]) in OVER)

        one.signal(signal.SIGCONT)  # and now it thinks that it leads, until it looks
        wait_for(lambda: "another server leads now" in one.said())
        assert pair.holder() == (2, two.pid)

        names.append(pair.submit(0.1))
        two.kill()  # it is gone from this machine, which can be seen: no need to wait
        wait_for(lambda: pair.holder() == (3, one.pid), every_s=0.05)
        wait_for(lambda: all(pair.phase(name) in OVER for name in names))

        assert {pair.phase(name) for name in names} == {"finished"}
        assert list(pair.work.glob("*.twice")) == []
        assert len(list(pair.work.glob("*.done"))) == len(names)
        assert [len(pair.users.reader.job(name).leases) for name in names] == [1] * len(names)
        findings = list(examine(pair.store, engines_in(tmp_path / "engines")))
        assert [each for finding in findings for each in finding.broken] == []
    finally:
        pair.end()


@pytest.mark.postgres
def test_a_paused_leader_that_wakes_writes_nothing_and_starts_nothing(
    tmp_path: Path, postgres_url: str
) -> None:
    pair = Pair(tmp_path, postgres_url)
    one, two = pair.servers
    try:
        one.up()
        two.up()
        first = pair.submit(0.1)
        wait_for(lambda: pair.phase(first) in OVER)
        one.signal(signal.SIGSTOP)
        wait_for(lambda: pair.holder() == (2, two.pid), every_s=0.05)
        two.signal(signal.SIGSTOP)  # so that whatever is done now, the old leader did it
        waiting = pair.submit(0.1)
        before, ran = pair.store.end(), pair.runs()
        one.signal(signal.SIGCONT)  # there is a job to start, and it was the leader when it fell asleep
        while True:  # until it leads again, by right; who leads is read last
            done = pair.store.end(), pair.runs()
            if pair.holder() != (2, two.pid):
                break
            assert done == (before, ran)
            time.sleep(0.05)
        wait_for(lambda: pair.phase(waiting) == "finished")
        assert pair.holder() == (3, one.pid)
        end, ran = pair.store.end(), pair.runs()
        two.signal(signal.SIGCONT)  # the other way round, with nothing to do
        wait_for(lambda: "another server leads now" in two.said())
        assert (pair.holder(), pair.store.end(), pair.runs()) == ((3, one.pid), end, ran)
        assert len(pair.users.reader.job(waiting).leases) == 1
        assert list(pair.work.glob("*.twice")) == []
    finally:
        pair.end()
