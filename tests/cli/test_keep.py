"""backup, restore and doctor, on a database with a history."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores import snapshot
from brimful.adapters.stores.sql import SqlStore
from brimful.cli.fleet.job import _show_text
from brimful.cli.main import main
from brimful.cli.operate.database import TABLES
from brimful.fleet.events import (
    BudgetSet,
    CreditGranted,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeDrained,
)
from brimful.language import Usd, count, say, told, words
from brimful.scheduler.rules import Rules
from brimful.server.doctor import examine
from brimful.server.service.service import Service
from brimful.server.views.jobs import job_view
from tests.adapters.test_snapshot import a_history
from tests.adapters.test_upgrade import an_old_database
from tests.builders import a_job, granted
from tests.patience import PATIENCE_S
from tests.server.builders import OPERATOR, MemoryHistory, an_access


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(snapshot, "KEEP", 3)
    folder = tmp_path / "data"
    folder.mkdir()
    store = SqlStore(f"sqlite:///{folder / 'brimful.db'}")
    events = a_history(8)
    assert store.append(events, after=0)
    snapshot.advance(store, at_least=1)
    store.close()
    return folder


def ask(capsys: pytest.CaptureFixture[str], *typed: str) -> tuple[int, dict[str, object]]:
    code = main([*typed, "--json"])
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return code, answer


def test_a_healthy_database_keeps_every_promise(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "doctor", "--data", str(data)]) == 0
    text = capsys.readouterr().out
    assert "33 events" in text
    assert "BROKEN" not in text
    code, answer = ask(capsys, "admin", "doctor", "--data", str(data))
    kept = [finding["kept"] for finding in answer["data"]["findings"]]  # type: ignore[index]
    assert (code, all(kept)) == (0, True)
    runs = say("operate.no_server_here")
    assert words("operate.promises_kept", kept=len(kept), of=len(kept), runs=runs) in text
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(
    ("statement", "promise"),
    [
        ("DELETE FROM events WHERE seq = 7", "doctor.log_whole"),
        ("UPDATE events SET body = '{}' WHERE seq = 3", "doctor.log_whole"),
        ("UPDATE past_jobs SET spent_microusd = 1 WHERE job = 'job-2'", "doctor.tables_agree"),
        ("DELETE FROM past_jobs WHERE job = 'job-2'", "doctor.tables_agree"),
        ("UPDATE past_jobs SET body = '{' WHERE job = 'job-2'", "doctor.tables_agree"),
        ("UPDATE events SET body = replace(body, '\"gpus\": ', '\"gpus\": []+')", "doctor.log_whole"),
        ("UPDATE events SET body = json_set(body, '$.gpus', '8') WHERE seq = 1", "doctor.log_whole"),
    ],
)
def test_what_is_damaged_is_found_and_left_as_it_is(
    data: Path, capsys: pytest.CaptureFixture[str], statement: str, promise: str
) -> None:
    engine = sa.create_engine(f"sqlite:///{data / 'brimful.db'}")
    with engine.begin() as connection:
        connection.execute(sa.text(statement))
    before = _dump(engine)
    code, answer = ask(capsys, "admin", "doctor", "--data", str(data))
    assert code == 1
    found = answer["data"]["findings"]  # type: ignore[index]
    assert [f["code"] for f in found if not f["kept"]] == [promise]
    assert _dump(engine) == before
    engine.dispose()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET at_s = at_s + 1 WHERE seq = 20",
        "UPDATE events SET chain = NULL WHERE seq > 10",
        "UPDATE events SET body = json_set(body, '$.lease', 'job-9.1') WHERE seq = 33",
    ],
)
def test_an_event_that_was_changed_is_found_though_it_makes_sense(
    data: Path, capsys: pytest.CaptureFixture[str], statement: str
) -> None:
    engine = sa.create_engine(f"sqlite:///{data / 'brimful.db'}")
    with engine.begin() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()
    code, answer = ask(capsys, "admin", "doctor", "--data", str(data))
    (finding,) = answer["data"]["findings"]  # type: ignore[index]
    assert (code, finding["reasons"][0]["code"]) == (1, "adapters.chain_broken")
    assert "brimful admin restore" in finding["broken"][1]


def test_a_corrupt_file_says_restore_and_how(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "brimful.db"
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (path.stat().st_size - 8192))
    code, answer = ask(capsys, "admin", "doctor", "--data", str(data))
    assert code != 0
    assert "brimful admin restore" in json.dumps(answer)
    path.write_bytes(b"not a database at all, " * 1000)
    code, answer = ask(capsys, "admin", "doctor", "--data", str(data))
    assert (code, answer["error"]["code"]) == (3, "database_corrupt")  # type: ignore[index]
    assert "brimful admin restore" in answer["error"]["hint"]  # type: ignore[index]


def test_the_doctor_does_not_wait_for_what_does_not_answer(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = threading.Event()
    engine = LocalEngine(tmp_path / "leases", [])
    monkeypatch.setattr(engine, "living", lambda: [""] * (not stuck.wait(PATIENCE_S)))
    store = SqlStore(f"sqlite:///{data / 'brimful.db'}")
    findings = list(examine(store, [engine], patience_s=0.2))
    stuck.set()
    store.close()
    broken = [each for finding in findings for each in finding.broken]
    assert [each.as_dict()["code"] for each in broken] == ["doctor.no_answer"]
    assert findings[-1].kept, "the next promise is looked at all the same"


def test_what_a_tenant_ran_over_its_budget_is_the_operators_and_no_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Billed 20,000, leases 20,555: the rest is in operator:overrun."""
    store = SqlStore(f"sqlite:///{tmp_path / 'brimful.db'}")
    node, submitted, *_ = a_history(1)
    assert isinstance(submitted, JobSubmitted)
    events: list[Event] = [
        node,
        BudgetSet(at_s=1, tenant=submitted.job.tenant, microusd=20_000),
        submitted,
        replace(granted("job-1", gpus=(1,), at_s=11), microusd_per_gpu_hour=2_000_000),
        LeaseStarted(at_s=12, lease="job-1.1"),
        LeaseEnded(at_s=12 + 37, lease="job-1.1", exit_code=0),
        CreditGranted(at_s=60, tenant=submitted.job.tenant, microusd=5),
    ]
    assert store.append(events, after=0)
    store.close()
    code, answer = ask(capsys, "admin", "doctor", "--data", str(tmp_path))
    assert (code, [f for f in answer["data"]["findings"] if not f["kept"]]) == (0, [])  # type: ignore[index]
    history = MemoryHistory()
    assert history.append(events, after=0)
    reader = Service(history, [], Rules()).reader
    reader.refresh()
    view = job_view(reader, reader.job("job-1"))
    assert view["cost_microusd"] == view["posted_microusd"] == 20_000, "the same in lists and on the bill"
    billed = told(Usd(20_000))
    assert words("fleet.cost_unbilled", cost=billed, more=Usd(555)) in " ".join(_show_text(view).split())


def test_work_that_was_not_there_at_the_next_start_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'brimful.db'}")
    events = a_history(1)[:-1]
    events += [
        LeaseEnded(at_s=100, lease="job-1.1", exit_code=1, requeue=True, kept_work_s=80.0),
        replace(granted("job-1", gpus=(1,), at_s=101), lease="job-1.2"),
        LeaseStarted(at_s=102, lease="job-1.2", resumes_s=0),
        LeaseEnded(at_s=110, lease="job-1.2", exit_code=0),
    ]
    assert store.append(events, after=0)
    store.close()
    _, answer = ask(capsys, "admin", "doctor", "--data", str(tmp_path))
    reasons = [reason for f in answer["data"]["findings"] for reason in f["reasons"]]  # type: ignore[index]
    assert reasons == [{"code": "doctor.lost_work", "job": "job-1", "lost": 80.0}]


def test_a_run_that_began_before_the_last_one_ended_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SqlStore(f"sqlite:///{tmp_path / 'brimful.db'}")
    events = a_history(1)[:-1]
    again = granted("job-1", gpus=(1,), at_s=13)
    events += [
        LeaseEnded(at_s=20, lease="job-1.1", exit_code=1, requeue=True),
        replace(again, lease="job-1.2"),
        LeaseStarted(at_s=15, lease="job-1.2"),
        LeaseEnded(at_s=21, lease="job-1.2", exit_code=0),
    ]
    assert store.append(events, after=0)
    store.close()
    code, answer = ask(capsys, "admin", "doctor", "--data", str(tmp_path))
    assert code == 1
    reasons = [reason for f in answer["data"]["findings"] for reason in f["reasons"]]  # type: ignore[index]
    told = {"code": "doctor.began_early", "lease": "job-1.2", "before": "job-1.1", "early": 5}
    assert told in reasons


def _dump(engine: sa.Engine) -> list[object]:
    with engine.connect() as connection:
        return [
            tuple(row)
            for table in ("events", "past_jobs", "brimful")
            for row in connection.execute(sa.text(f"SELECT * FROM {table} ORDER BY 1"))
        ]


def test_there_and_back_nothing_is_different(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "b.zip"
    code, answer = ask(capsys, "admin", "backup", str(file), "--data", str(data))
    assert code == 0
    assert answer["data"]["rows"]["events"] == 33  # type: ignore[index]
    assert {*answer["data"]["rows"]} - {"brimful"} == {*TABLES}, "each has a name for people"  # type: ignore[index]
    assert file.stat().st_mode & 0o777 == 0o600
    assert ask(capsys, "admin", "backup", str(file), "--data", str(data))[0] == 1, "it is there already"
    assert main(["admin", "restore", str(file), "--data", str(tmp_path / "new")]) == 0
    assert "33 events" in capsys.readouterr().out
    engines = [sa.create_engine(f"sqlite:///{folder / 'brimful.db'}") for folder in (data, tmp_path / "new")]
    one, other = (_dump(engine) for engine in engines)
    assert one == other
    for engine in engines:
        engine.dispose()
    assert main(["admin", "doctor", "--data", str(tmp_path / "new")]) == 0
    capsys.readouterr()
    code, answer = ask(capsys, "admin", "restore", str(file), "--data", str(data))
    assert (code, answer["error"]["code"]) == (1, "not_empty")  # type: ignore[index]


@pytest.mark.postgres
def test_a_backup_moves_from_sqlite_to_postgresql_and_back(
    data: Path, tmp_path: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, there = tmp_path / "1.zip", tmp_path / "2.zip", ["--database", postgres_url]
    assert main(["admin", "backup", str(first), "--data", str(data)]) == 0
    assert main(["admin", "restore", str(first), "--data", str(tmp_path / "pg"), *there]) == 0
    assert main(["admin", "doctor", "--data", str(tmp_path / "pg"), *there]) == 0
    assert main(["admin", "backup", str(second), "--data", str(tmp_path / "pg"), *there]) == 0
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
        assert one.read("events.jsonl") == other.read("events.jsonl")
        assert one.read("past_jobs.jsonl") == other.read("past_jobs.jsonl")


def test_a_damaged_backup_changes_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, bad = tmp_path / "b.zip", tmp_path / "bad.zip"
    assert main(["admin", "backup", str(file), "--data", str(data)]) == 0
    with zipfile.ZipFile(file) as whole, zipfile.ZipFile(bad, "w") as half:
        for name in whole.namelist():
            text = whole.read(name)
            half.writestr(name, text.replace(b"job-3", b"job-4") if name == "events.jsonl" else text)
    capsys.readouterr()
    code, answer = ask(capsys, "admin", "restore", str(bad), "--data", str(tmp_path / "new"))
    assert (code, answer["error"]["code"]) == (2, "backup_damaged")  # type: ignore[index]
    (tmp_path / "no.zip").write_text("nothing of the kind")
    assert ask(capsys, "admin", "restore", str(tmp_path / "no.zip"), "--data", str(tmp_path / "new"))[0] == 2
    assert main(["admin", "restore", str(file), "--data", str(tmp_path / "new")]) == 0


def test_a_backup_with_a_damaged_byte_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, bad = tmp_path / "b.zip", tmp_path / "bad.zip"
    assert main(["admin", "backup", str(file), "--data", str(data)]) == 0
    whole = file.read_bytes()
    central = whole.index(b"PK\x01\x02")
    with zipfile.ZipFile(file) as archive:
        packed = archive.getinfo("events.jsonl").header_offset
    # Packed bytes, then what says that a part is encrypted, or packed in a way nobody knows.
    at = [packed + 120, packed + 160, packed + 200, packed + 240, central + 8, central + 10]
    for place in at:
        bad.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        capsys.readouterr()
        code, answer = ask(capsys, "admin", "restore", str(bad), "--data", str(tmp_path / "new"))
        assert code == 2, (place, answer)
    assert main(["admin", "restore", str(file), "--data", str(tmp_path / "new")]) == 0


def test_a_database_without_its_log_makes_no_backup(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(data / "brimful.db")) as database, database:
        database.execute("DROP TABLE events")
    code, answer = ask(capsys, "admin", "backup", str(tmp_path / "b.zip"), "--data", str(data))
    assert (code, answer["error"]["code"]) == (3, "database_failed")  # type: ignore[index]
    assert not (tmp_path / "b.zip").exists()


@pytest.mark.parametrize(
    ("table", "old", "new"),
    [
        ("events", rb"\"gpus\": ", rb"\"gpus\": -"),  # an event that cannot be folded
        ("events", b"NodeJoined", b"LeaseEnded"),  # one that lacks its fields
        ("events", b'"seq": 1,', b'"seq": 1000000000000000000000000000000,'),
        ("events", b'"seq": 2,', b'"seq": 2000,'),
        ("events", b"{", b"[{"),
        ("events", b'"body": ', b'"bodies": '),
        ("past_jobs", b'"body": "{', b'"body": "'),
        ("past_jobs", b'"tenant": ', b'"tenant": null, "x": '),
    ],
)
def test_a_backup_of_nonsense_with_right_hashes_changes_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, old: bytes, new: bytes
) -> None:
    file, bad, there = tmp_path / "b.zip", tmp_path / "bad.zip", ["--data", str(tmp_path / "new")]
    assert main(["admin", "backup", str(file), "--data", str(data)]) == 0
    with zipfile.ZipFile(file) as whole, zipfile.ZipFile(bad, "w") as strange:
        parts = {name: whole.read(name) for name in whole.namelist()}
        changed = parts[f"{table}.jsonl"].replace(old, new, 1)
        assert changed != parts[f"{table}.jsonl"]
        manifest = json.loads(parts["manifest.json"])
        manifest["sha256"][table] = hashlib.sha256(changed).hexdigest()
        parts |= {f"{table}.jsonl": changed, "manifest.json": json.dumps(manifest).encode()}
        for name, text in parts.items():
            strange.writestr(name, text)
    capsys.readouterr()
    code, answer = ask(capsys, "admin", "restore", str(bad), *there)
    assert (code, answer["error"]["code"]) == (2, "backup_damaged")  # type: ignore[index]
    assert main(["admin", "restore", str(file), *there]) == 0, "nothing of it was left behind"


def test_runs_that_the_restored_log_does_not_know_are_put_aside(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "b.zip"
    assert main(["admin", "backup", str(file), "--data", str(data)]) == 0
    for name in ("job-1.1", "job-99.1"):
        (tmp_path / "new" / "leases" / name).mkdir(parents=True)
    assert main(["admin", "restore", str(file), "--data", str(tmp_path / "new")]) == 0
    assert words("operate.restored_aside", folders=1) in capsys.readouterr().out
    assert (tmp_path / "new" / "leases" / "job-1.1").is_dir()
    assert not (tmp_path / "new" / "leases" / "job-99.1").exists()


def test_a_restore_names_jobs_whose_packed_code_is_not_here(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would fail at their start. A run that was only granted does not go on: it starts."""
    store = SqlStore(f"sqlite:///{data / 'brimful.db'}")
    begun: list[Event] = [
        JobSubmitted(at_s=100, job=a_job(name, code=name[-1] * 64)) for name in ("j8", "j9")
    ]
    assert store.append([*begun, granted("j8", gpus=(0,), at_s=100)], after=store.end())
    store.close()
    file, new = tmp_path / "b.zip", tmp_path / "new"
    assert main(["admin", "backup", str(file), "--data", str(data)]) == 0
    kept = new / "code" / "default" / f"{'9' * 64}.tar"
    kept.parent.mkdir(parents=True)
    kept.touch()
    capsys.readouterr()
    code, answer = ask(capsys, "admin", "restore", str(file), "--data", str(new))
    found = answer["data"]
    assert isinstance(found, dict)
    assert (code, found["without_code"], found["running"]) == (0, ["j8"], 0)


def test_a_run_that_is_nowhere_after_a_restore_is_billed_until_the_log_ended(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SqlStore(f"sqlite:///{data / 'brimful.db'}")
    for name, gpu in (("job-9", 0), ("job-10", 1)):
        begun: list[Event] = [
            JobSubmitted(at_s=100, job=a_job(name)),
            granted(name, gpus=(gpu,), at_s=100),
            LeaseStarted(at_s=100, lease=f"{name}.1"),
        ]
        assert store.append(begun, after=store.end())
    assert store.append([NodeDrained(at_s=130, node="node-0", reason=None)], after=store.end())
    store.close()
    file, new = tmp_path / "b.zip", tmp_path / "new"
    assert main(["admin", "backup", str(file), "--data", str(data)]) == 0
    (new / "leases" / "job-10.1").mkdir(parents=True)
    capsys.readouterr()
    assert main(["admin", "restore", str(file), "--data", str(new)]) == 0
    said = capsys.readouterr().out
    assert words("operate.restored_lost", leases="job-9.1") in said
    assert words("operate.restored_running", runs=count("run", 1)) in said
    store = SqlStore(f"sqlite:///{new / 'brimful.db'}")
    (ended,) = store.since(store.end() - 1)
    store.close()
    assert isinstance(ended, LeaseEnded)
    assert (ended.lease, ended.at_s) == ("job-9.1", 130), "not now, which nobody can know"


def test_a_restore_says_which_tokens_it_made_good_and_can_trust_none(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SqlStore(f"sqlite:///{data / 'brimful.db'}")
    access = an_access(store)
    for name in ("ann", "ben"):
        text, token = access.issue(name=name, tenant="red", role="viewer")
    file = tmp_path / "b.zip"
    assert main(["admin", "backup", str(file), "--data", str(data)]) == 0
    access.revoke(OPERATOR, token.token)
    store.close()
    capsys.readouterr()
    for more, good in ((["--revoke-tokens"], False), ([], True)):
        new = tmp_path / f"new-{good}"
        assert main(["admin", "restore", str(file), "--data", str(new), *more]) == 0
        said = capsys.readouterr().out
        code = "operate.tokens_good" if good else "operate.tokens_revoked"
        assert words(code, tokens=count("token", 2)) in said
        store = SqlStore(f"sqlite:///{new / 'brimful.db'}")
        assert (an_access(store).look_up(text) is not None) == good
        store.close()


def test_an_old_database_is_healthy_after_its_upgrade(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    an_old_database(f"sqlite:///{tmp_path / 'brimful.db'}")
    assert main(["admin", "doctor", "--data", str(tmp_path)]) == 0


def test_no_database_is_a_clear_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = ask(capsys, "admin", "doctor", "--data", str(tmp_path))
    assert (code, answer["error"]["code"]) == (3, "no_database")  # type: ignore[index]
    assert list(tmp_path.iterdir()) == []
