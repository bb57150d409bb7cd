"""The loop follows the log through what readers know of it, and misses nothing that others wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from brimful.adapters.capabilities import LogPiece
from brimful.adapters.stores.sql import LostLead, SqlStore
from brimful.errors import WorldFailed
from brimful.fleet.events import Event, JobSubmitted
from brimful.fleet.state import Fleet
from brimful.language import say
from brimful.scheduler.loop import catch_up
from brimful.scheduler.ports import Observation, Ports
from brimful.scheduler.rules import Rules
from brimful.server.service import reader as reader_module
from brimful.server.service.health import Health
from brimful.server.service.observed_store import ObservedStore
from brimful.server.service.reader import Reader
from brimful.server.service.service import Service
from brimful.server.views.logs import log_piece
from tests.builders import ScriptedEngine, a_job, a_node


class Server:
    """What one of several servers on a database knows of its log."""

    def __init__(self, store: SqlStore) -> None:
        health = Health(tick_s=1)
        self.reader = Reader(
            store, {}, Rules(), policy="", market=None, buying=None, health=health, clock=lambda: 0
        )
        self.log = ObservedStore(store, self.reader, ())
        self.fleet = Fleet()  # the loop's

    def submit(self, name: str) -> bool:
        return self.log.append(submitted(name), after=self.reader.fleet.seq)

    def look(self) -> list[str]:
        catch_up(self.fleet, Ports(store=self.log, engines={}))
        return sorted(self.fleet.jobs)


def submitted(name: str) -> list[Event]:
    return [JobSubmitted(at_s=0, job=a_job(name))]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = SqlStore(f"sqlite:///{tmp_path / 'log.db'}")
    yield store
    store.close()


def test_what_another_server_wrote_is_seen_beside_ones_own(store: SqlStore) -> None:
    one, other = Server(store), Server(store)
    assert one.submit("job-1")
    assert not other.submit("job-2"), "it has not seen the first"
    assert other.look() == ["job-1"]
    assert other.submit("job-2")
    assert one.look() == ["job-1", "job-2"]
    assert other.look() == ["job-1", "job-2"]
    assert one.reader.fleet.seq == other.reader.fleet.seq == 2


def test_an_event_whose_commit_was_not_answered_is_folded_once(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, append = Server(store), store.append

    def lost(events: Sequence[Event], *, after: int) -> bool:
        append(events, after=after)
        raise WorldFailed(say("adapters.database_failed", where="here", cause="cut"))

    monkeypatch.setattr(store, "append", lost)
    with pytest.raises(WorldFailed):
        server.submit("job-1")
    monkeypatch.setattr(store, "append", append)
    assert server.reader.fleet.seq == 0
    assert server.look() == ["job-1"]
    assert server.reader.fleet.seq == server.fleet.seq == 1


def test_what_a_deposed_leader_wanted_to_write_is_known_to_nobody(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(store)

    def deposed(_events: Sequence[Event], *, after: int) -> bool:
        raise LostLead(say("adapters.another_leads", found=2, token=after))

    monkeypatch.setattr(store, "append", deposed)
    with pytest.raises(LostLead):
        server.submit("job-1")
    monkeypatch.undo()
    assert Server(store).submit("job-2")
    assert server.look() == ["job-2"]


def test_a_loop_that_is_far_behind_reads_the_log(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "RECENT", 3)
    server = Server(store)
    for number in range(1, 9):
        assert server.submit(f"job-{number}")
    assert server.reader.recent(after=0) == ()
    assert len(server.reader.recent(after=6)) == 2
    assert len(server.look()) == 8


class Forgetful(ScriptedEngine):
    """Knows only the leases that it has begun."""

    def log(self, lease: str, *, rank: int = 0, offset: int = 0, limit: int = 1 << 20) -> LogPiece:
        if self.sees.get(lease) is None:
            raise WorldFailed(say("adapters.ray_no_log", lease=lease, site=self.site))
        return LogPiece(offset, f"rank {rank}"[offset:limit].encode(), 6)


def test_the_log_of_a_lease_on_its_way_is_empty_and_not_an_error(store: SqlStore) -> None:
    engine = Forgetful(a_node())
    service = Service(store, [engine], Rules(), clock=lambda: 10)
    store.append(submitted("job-1"), after=0)
    service.driver.tick()
    assert log_piece(service.reader, "job-1", None, offset=0, limit=100)["text"] == ""
    engine.sees["job-1.1"] = Observation(lease="job-1.1", state="running", started_s=10)
    service.driver.tick()
    assert log_piece(service.reader, "job-1", None, offset=0, limit=100)["text"] == "rank 0"
