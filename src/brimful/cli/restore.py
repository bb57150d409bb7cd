"""`brimful restore`: a backup into an empty database."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.cli.commands import Answer
from brimful.cli.data import add_database_arguments, open_store
from brimful.errors import WorldFailed
from brimful.units import counted

if TYPE_CHECKING:
    from brimful.adapters.stores.snapshot import Fold
    from brimful.adapters.stores.sql import SqlStore
    from brimful.client.settings import Settings

EXAMPLE = """brimful restore brimful-monday.zip --data ~/brimful-restored
brimful restore monday.zip --database postgresql+psycopg://brimful@db/brimful --dry-run"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="what `brimful backup` wrote")
    parser.add_argument(
        "--revoke-tokens", action="store_true", help="trust no token of it: some may have been revoked since"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what is in it, and change nothing")
    add_database_arguments(parser)


def run(args: argparse.Namespace) -> Answer:
    source = Path(args.file).expanduser().absolute()
    from brimful.adapters.stores.backup import read_manifest, restore

    made = read_manifest(source)
    tables = ", ".join(f"{count:,} {name}" for name, count in made.rows.items() if name != "brimful")
    about = f"{source}: {tables} (schema {made.schema}, brimful {made.brimful})"
    data = {"file": str(source), "schema": made.schema, "rows": made.rows, "restored": not args.dry_run}
    if args.dry_run:
        return Answer(data, about)
    with open_store(args, make=True) as (store, settings):
        restore(source, store)
        fold, last_s = _folded(store)
        left = _adopt(store, settings, fold)
        lost = _end_what_is_lost(store, settings, fold, last_s=last_s)
        tokens = _tokens(store, revoke=args.revoke_tokens)
    running = len(fold.fleet.open_leases)
    lines = [f"restored {about}", f"into {store.where}"]
    if running:
        lines += ["", f"Under way when it was made, and known here: {counted(running, 'run')}. They go on."]
    if lost:
        lines += [
            "",
            f"Under way when it was made, without a trace here: {', '.join(lost)}.",
            "They ended, and are billed until, when the backup's log did; they start again if they may.",
        ]
    if left:
        lines += ["", f"Put aside, because this log knows nothing of them: {left}."]
    lines += ["", *tokens]
    return Answer({**data, "running": running, "lost": lost}, "\n".join(lines))


def _folded(store: SqlStore) -> tuple[Fold, int]:
    """What the log says, and when it ends."""
    from brimful.adapters.stores.snapshot import Fold

    fold, last_s = Fold(), 0
    while events := store.since(fold.fleet.seq):
        for event in events:
            fold.apply(event)
            last_s = max(last_s, event.at_s)
    return fold, last_s


def _end_what_is_lost(store: SqlStore, settings: Settings, fold: Fold, *, last_s: int) -> list[str]:
    """Runs of which nothing is left here: nobody knows when they ended, and nobody pays for not knowing."""
    from brimful.fleet.events import LeaseEnded

    here = {folder.name for root in _roots(settings) if root.is_dir() for folder in root.iterdir()}
    lost = [
        lease
        for lease in fold.fleet.open_leases.values()
        if lease.started_s is not None and lease.lease not in here
    ]
    events = []
    for lease in lost:
        state = fold.fleet.jobs[lease.job]
        again = lease.phase != "ending" and state.failures < state.job.retries and not state.cancel_requested
        reason = lease.reason or "nothing of it was found when a backup was restored"
        events.append(
            LeaseEnded(at_s=last_s, lease=lease.lease, exit_code=None, reason=reason, requeue=again)
        )
    if events and not store.append(events, after=fold.fleet.seq):
        raise WorldFailed("somebody has written to it meanwhile", hint="stop that server, and restore again")
    for event in events:
        fold.apply(event)
    return [lease.lease for lease in lost]


def _tokens(store: SqlStore, *, revoke: bool) -> list[str]:
    import time

    from brimful.adapters.stores.access import AccessStore

    access, now_s = AccessStore(store.engine), int(time.time())
    if revoke:
        revoked = counted(access.revoke_all(at_s=now_s), "token")
        return [f"Revoked: {revoked}. The next start makes the operator's anew."]
    good = access.count_good(at_s=now_s)
    if not good:
        return ["No token of it is good any more. The next start makes the operator's."]
    return [
        f"Good as they were then: {counted(good, 'token')}, also any that was revoked since.",
        "`brimful tokens` lists them; restore with --revoke-tokens to trust none.",
    ]


def _roots(settings: Settings) -> list[Path]:
    return [settings.engines_folder / "leases", *(settings.engines_folder / "sites").glob("*")]


def _adopt(store: SqlStore, settings: Settings, fold: Fold) -> str:
    """Make the log the folder's own, and put aside runs it does not know: their names will come again."""
    import time

    import sqlalchemy as sa

    from brimful.adapters.stores.schema import meta

    with store.writing() as connection:
        owner = connection.execute(sa.select(meta.c.value).where(meta.c.key == "folder")).scalar() or ""
        mine = settings.engines_folder / "leases" / ".id"
        if not mine.exists() or mine.read_text(encoding="utf-8").strip() != owner.partition(" ")[0]:
            connection.execute(meta.delete().where(meta.c.key == "folder"))  # the next start takes it
    known = {lease for state in fold.fleet.jobs.values() for lease in (each.lease for each in state.leases)}
    known |= {each.lease for left in fold.fleet.leaving.values() for each in left.state.leases}
    moved = 0
    for root in _roots(settings):
        strange = [
            each
            for each in (root.iterdir() if root.is_dir() else [])
            if each.is_dir() and each.name[0] != "."
        ]
        for folder in strange:
            if folder.name not in known:
                aside = root / f".before-restore-{int(time.time())}"
                aside.mkdir(exist_ok=True, mode=0o700)
                folder.replace(aside / folder.name)
                moved += 1
    return f"{moved} run folder(s)" if moved else ""
