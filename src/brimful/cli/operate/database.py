"""`brimful admin backup`, `restore`, `doctor`: they open the database themselves, without a server."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.cli.commands import NO, YES, Answer, Verb
from brimful.cli.options import DRY_RUN, arg
from brimful.cli.render import paint
from brimful.client.settings import Settings, read_settings
from brimful.errors import Refused, WorldFailed
from brimful.language import Size, count, say, told, words
from brimful.language.failures import needs_package

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from brimful.adapters.stores.backup import Backup
    from brimful.adapters.stores.snapshot import Fold
    from brimful.adapters.stores.sql import SqlStore
    from brimful.fleet.job import Job

SHOWN = 5  # violations per promise
SHOWN_ITEMS = 20


def add_database_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="FOLDER")
    parser.add_argument("--database", metavar="URL")
    parser.add_argument("--engines", metavar="FOLDER")


@contextmanager
def open_store(args: argparse.Namespace, *, make: bool = False) -> Iterator[tuple[SqlStore, Settings]]:
    """The database of these settings. It must exist, unless it is to be created."""
    given = {name: getattr(args, name, None) for name in ("data", "database", "engines")}
    settings = read_settings(given)
    file = settings.folder / "brimful.db"
    if not make and not settings.database and not file.exists():
        raise WorldFailed(say("operate.no_database", folder=settings.folder), code="no_database")
    with needs_package("operate.server_not_installed"):
        from brimful.adapters.stores.sql import SqlStore
    if make:
        settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = SqlStore(settings.database_url)
    try:
        yield store, settings
    finally:
        store.close()


MOST_NAMES = 5  # jobs per line; --json has all
TABLES = {
    "audit": "audit_line",
    "events": "event",
    "members": "team_role",
    "notify_queue": "due_notification",
    "notify_rules": "notification_rule",
    "past_jobs": "past_job",
    "tokens": "token_or_session",
    "users": "user",
}


def backup(args: argparse.Namespace) -> Answer:
    target = Path(args.file).expanduser().absolute()
    if target.exists() and not args.force:
        raise Refused(say("operate.file_exists", target=target))
    with open_store(args) as (store, settings):
        from brimful.adapters.stores.backup import back_up

        made, events = back_up(store, target)
        size = target.stat().st_size
    wrote = words("operate.backup_written", file=target, size=Size(size), tables=_tables(made))
    verified = words("operate.backup_verified", events=count("event", events))
    text = f"{wrote}\n{verified}\n\n{words('operate.backup_leaves_out', folder=settings.engines_folder)}"
    data = {"file": str(target), "bytes": size, "schema": made.schema, "rows": made.rows, "verified": True}
    return Answer(data, text)


def _tables(made: Backup) -> str:
    """Its contents. An unknown table name comes from the file and is shown unchanged."""
    rows = ((name, n) for name, n in made.rows.items() if n and name != "brimful")
    return ", ".join(told(count(TABLES[name], n) if name in TABLES else f"{n} {name}") for name, n in rows)


def restore(args: argparse.Namespace) -> Answer:
    source = Path(args.file).expanduser().absolute()
    with needs_package("operate.server_not_installed"):
        from brimful.adapters.stores import backup
        from brimful.server.run.folder_locks import locked_folder

    made = backup.read_manifest(source)
    facts = {"file": source, "tables": _tables(made), "schema": made.schema, "brimful": made.brimful}
    about = words("operate.backup_about", **facts)
    data = {"file": str(source), "schema": made.schema, "rows": made.rows, "restored": not args.dry_run}
    if args.dry_run:
        return Answer(data, about)
    with open_store(args, make=True) as (store, settings), locked_folder(settings.engines_folder):
        fold, last_s = backup.restore(source, store, allow=partial(_refuse_doubles, settings))
        left = _adopt(store, settings, fold)
        lost = _end_lost_runs(store, settings, fold, last_s=last_s)
        tokens = _tokens(store, revoke=args.revoke_tokens)
        missing = {"code": _without_code(settings, fold), "env": _without_env(settings, fold)}
    running = sum(lease.started_s is not None for lease in fold.fleet.open_leases.values())
    lines = [words("operate.restored", about=about, where=store.where)]
    if running:
        lines += ["", words("operate.restored_running", runs=count("run", running))]
    if lost:
        lines += ["", words("operate.restored_lost", leases=", ".join(lost))]
    if any(missing.values()):
        lines += [""]
        for what, jobs in missing.items():
            named = ", ".join([*jobs[:MOST_NAMES], *(["…"] if len(jobs) > MOST_NAMES else [])])
            lines += [words(f"operate.restored_without_{what}", jobs=named)] if jobs else []
        lines += [words("operate.restored_bring", folder=settings.engines_folder)]
    if left:
        lines += ["", words("operate.restored_aside", folders=left)]
    lines += ["", tokens, "", words("operate.restored_next", command=_up(args))]
    data |= {"running": running, "lost": lost}
    data |= {f"without_{what}": jobs for what, jobs in missing.items()}
    return Answer(data, "\n".join(lines))


def _up(args: argparse.Namespace) -> str:
    """The server that belongs to this restore: without these folders it would run something else."""
    given = {name: getattr(args, name) for name in ("data", "database", "engines")}
    return " ".join(["brimful up", *(f"--{name} {shlex.quote(at)}" for name, at in given.items() if at)])


def _refuse_doubles(settings: Settings, connection: Connection, fold: Fold) -> None:
    """Refuse while runs are alive that this log does not know or would not find: they would run twice."""
    import sqlalchemy as sa

    from brimful.adapters.engines.processes import runs_alive
    from brimful.adapters.stores.engines_known import FOLDER, engines_known
    from brimful.adapters.stores.schema import meta
    from brimful.server.run.engines import alive_said, ids_in

    here = ids_in(settings.engines_folder)
    if alive := runs_alive(engines_known(connection) - here):
        owner = connection.execute(sa.select(meta.c.value).where(meta.c.key == FOLDER)).scalar() or ""
        said = say("operate.runs_elsewhere", **alive_said(alive), folder=owner.partition(" ")[2] or "OLD")
        raise Refused(said, code="runs_alive")
    alive = {lease: pids for lease, pids in runs_alive(here).items() if lease not in fold.fleet.open_leases}
    if alive:
        raise Refused(say("operate.runs_unknown", **alive_said(alive)), code="runs_alive")


def _to_start(fold: Fold) -> list[Job]:
    """Jobs that will start here."""
    from brimful.fleet.lease import OVER

    return [state.job for state in fold.fleet.jobs.values() if state.phase not in (*OVER, "running")]


def _without_code(settings: Settings, fold: Fold) -> list[str]:
    """Jobs whose code, which is not in a backup, is not here."""
    from brimful.adapters.code import CodeStore

    store = CodeStore(settings.engines_folder / "code")
    jobs = _to_start(fold)
    return [job.job for job in jobs if job.code and not store.path(job.tenant, job.code).is_file()]


def _without_env(settings: Settings, fold: Fold) -> list[str]:
    """Jobs whose environment has values that are not in a log, and not here."""
    from brimful.fleet.job import lacks_values
    from brimful.server.run.engines import roots_in

    here = {file.stem for root in roots_in(settings.engines_folder) for file in root.glob(".env/*.json")}
    jobs = (job for job in _to_start(fold) if lacks_values(job.env))
    return [job.job for job in jobs if (job.array or job.job) not in here]


def _end_lost_runs(store: SqlStore, settings: Settings, fold: Fold, *, last_s: int) -> list[str]:
    """Ends runs that left nothing here: nobody knows when they ended, and nobody is billed for that."""
    from brimful.fleet.events import LeaseEnded
    from brimful.server.run.engines import roots_in

    here = {folder.name for root in roots_in(settings.engines_folder) for folder in root.iterdir()}
    lost = [
        lease
        for lease in fold.fleet.open_leases.values()
        if lease.started_s is not None and lease.lease not in here
    ]
    events = []
    for lease in lost:
        state = fold.fleet.jobs[lease.job]
        again = lease.phase != "ending" and state.failures < state.job.retries and not state.cancel_requested
        reason = lease.reason or say("operate.not_in_backup")
        events.append(
            LeaseEnded(at_s=last_s, lease=lease.lease, exit_code=None, reason=reason, requeue=again)
        )
    if events and not store.append(events, after=fold.fleet.seq):
        raise WorldFailed(say("operate.written_meanwhile"))
    for event in events:
        fold.apply(event)
    return [lease.lease for lease in lost]


def _tokens(store: SqlStore, *, revoke: bool) -> str:
    import time

    from brimful.adapters.identity.store import AccessStore

    access, now_s = AccessStore(store), int(time.time())
    if revoke:
        return words("operate.tokens_revoked", tokens=count("token", access.revoke_all(at_s=now_s)))
    good = access.count_good(at_s=now_s)
    return (
        words("operate.tokens_good", tokens=count("token", good)) if good else words("operate.no_good_token")
    )


def _adopt(store: SqlStore, settings: Settings, fold: Fold) -> int:
    """Bind the log to this folder, and set aside runs it does not know: their names will be reused."""
    import time

    import sqlalchemy as sa

    from brimful.adapters.files import has_identity, identity
    from brimful.adapters.stores.engines_known import FOLDER, add_engines
    from brimful.adapters.stores.schema import meta
    from brimful.server.run.engines import roots_in

    with store.writing() as connection:
        owner = connection.execute(sa.select(meta.c.value).where(meta.c.key == FOLDER)).scalar() or ""
        mine = settings.engines_folder / "leases"
        if not has_identity(mine) or identity(mine) != owner.partition(" ")[0]:
            add_engines(connection, ())
            connection.execute(meta.delete().where(meta.c.key == FOLDER))  # the next start sets it
    known = {lease for state in fold.fleet.jobs.values() for lease in (each.lease for each in state.leases)}
    known |= {each.lease for left in fold.fleet.leaving.values() for each in left.state.leases}
    moved = 0
    for root in roots_in(settings.engines_folder):
        strange = [each for each in root.iterdir() if each.is_dir() and each.name[0] != "."]
        for folder in strange:
            if folder.name not in known:
                aside = root / f".before-restore-{int(time.time())}"
                aside.mkdir(exist_ok=True, mode=0o700)
                folder.replace(aside / folder.name)
                moved += 1
    return moved


def doctor(args: argparse.Namespace) -> Answer:
    with open_store(args) as (store, settings):
        from brimful.client.client import announced
        from brimful.server.doctor import examine
        from brimful.server.run.engines import engines_in

        findings = list(examine(store, engines_in(settings.engines_folder)))
        policy = announced(settings).policy or None
    broken = sum(not finding.kept for finding in findings)
    promises = [told(finding.promise) for finding in findings]
    marks = {True: words("operate.kept"), False: words("operate.broken")}
    wide, width = max(map(len, marks.values())), max(map(len, promises))
    lines = []
    for finding, promise in zip(findings, promises, strict=True):
        mark = paint(marks[finding.kept].ljust(wide), "green" if finding.kept else "red")
        lines.append(f"{mark}  {promise:<{width}}  {paint(told(finding.looked_at), 'dim')}")
        lines += [f"        {told(each)}" for each in finding.broken[:SHOWN]]
        if len(finding.broken) > SHOWN:
            lines.append(f"        {words('operate.and_more', more=len(finding.broken) - SHOWN)}")
    runs = say("operate.no_server_here") if policy is None else say("operate.policy_is", policy=policy)
    kept, of = len(findings) - broken, len(findings)
    lines += ["", words("operate.promises_kept", kept=kept, of=of, runs=runs)]
    data = {
        "healthy": not broken,
        "policy": policy,
        "findings": [
            {
                "promise": promise,
                "looked_at": told(f.looked_at),
                "kept": f.kept,
                "code": f.promise.code,
                "broken": [told(each) for each in f.broken],
                "reasons": [each.as_dict() for each in f.broken],
            }
            for f, promise in zip(findings, promises, strict=True)
        ],
    }
    return Answer(data, "\n".join(lines), NO if broken else YES)


def clean(args: argparse.Namespace) -> Answer:
    import time

    with open_store(args) as (store, settings):
        from brimful.server import retention
        from brimful.server.run.engines import jobs_in

        keep = retention.read_keep(args.keep or settings.keep or retention.DEFAULT)
        jobs, engines, now_s = jobs_in(store), settings.engines_folder, int(time.time())
        gone = retention.surplus(retention.unneeded(engines, jobs, now_s=now_s), keep, now_s=now_s)
        deeds = retention.clean_tables(store, keep, now_s=now_s, dry_run=args.dry_run)
        if not args.dry_run:
            gone = retention.remove(gone, jobs, now_s=now_s, engines=engines)
    items = [{"kind": i.kind, "name": i.name, "bytes": i.size, "last_s": i.last_s} for i in gone]
    total = sum(item.size for item in gone)
    data = {"removed": not args.dry_run, "items": items, "bytes": total, "audit_lines": deeds}
    code = "operate.would_remove" if args.dry_run else "operate.removed"
    lines = [words(code, items=len(gone), size=Size(total), deeds=deeds)]
    lines += [f"  {i.kind:<11}  {told(Size(i.size)):>10}  {i.name}" for i in gone[:SHOWN_ITEMS]]
    if len(gone) > SHOWN_ITEMS:
        lines.append(f"  {words('operate.and_more', more=len(gone) - SHOWN_ITEMS)}")
    return Answer(data, "\n".join(lines))


VERBS = {
    "clean": Verb(
        "brimful admin clean --dry-run\n"
        "brimful admin clean --keep 'leases=30d,50GiB,5000 checkpoints=14d code=7d audit=365d'",
        (arg("--keep", metavar="RULES"), DRY_RUN, add_database_arguments),
        clean,
    ),
    "backup": Verb(
        "brimful admin backup brimful-monday.zip\n"
        "brimful admin backup --database postgresql+psycopg://brimful@db/brimful /backups/monday.zip",
        (arg("file"), arg("--force", action="store_true"), add_database_arguments),
        backup,
    ),
    "restore": Verb(
        "brimful admin restore brimful-monday.zip --data ~/brimful-restored\n"
        "brimful admin restore monday.zip --database postgresql+psycopg://brimful@db/brimful --dry-run",
        (arg("file"), arg("--revoke-tokens", action="store_true"), DRY_RUN, add_database_arguments),
        restore,
    ),
    "doctor": Verb(
        "brimful admin doctor\nbrimful admin doctor --database postgresql+psycopg://brimful@db/brimful",
        (add_database_arguments,),
        doctor,
    ),
}
