"""`brimful restore`: a backup into an empty database."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.cli.commands import Answer
from brimful.cli.data import add_database_arguments, open_store
from brimful.units import counted

if TYPE_CHECKING:
    from brimful.adapters.stores.snapshot import Fold
    from brimful.adapters.stores.sql import SqlStore
    from brimful.server.settings import Settings

EXAMPLE = """brimful restore brimful-monday.zip --data ~/brimful-restored
brimful restore monday.zip --database postgresql+psycopg://brimful@db/brimful --dry-run"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="what `brimful backup` wrote")
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
        fold = _folded(store)
        left = _adopt(store, settings, fold)
    running = len(fold.fleet.open_leases)
    lines = [f"restored {about}", f"into {store.where}"]
    if running:
        lines += [
            "",
            f"Under way when it was made: {counted(running, 'run')}. What this machine knows goes on;",
        ]
        lines += ["of the rest the next start says that it is lost, and it starts again if it may."]
    if left:
        lines += ["", f"Put aside, because this log knows nothing of them: {left}."]
    return Answer({**data, "running": running}, "\n".join(lines))


def _folded(store: SqlStore) -> Fold:
    from brimful.adapters.stores.snapshot import Fold

    fold = Fold()
    while events := store.since(fold.fleet.seq):
        for event in events:
            fold.apply(event)
    return fold


def _adopt(store: SqlStore, settings: Settings, fold: Fold) -> str:
    """Make the log the folder's own, and put aside runs it does not know: their names will come again."""
    import time

    import sqlalchemy as sa

    from brimful.adapters.stores.schema import meta

    roots = [settings.engines_folder / "leases", *(settings.engines_folder / "sites").glob("*")]
    with store.writing() as connection:
        owner = connection.execute(sa.select(meta.c.value).where(meta.c.key == "folder")).scalar() or ""
        mine = settings.engines_folder / "leases" / ".id"
        if not mine.exists() or mine.read_text(encoding="utf-8").strip() != owner.partition(" ")[0]:
            connection.execute(meta.delete().where(meta.c.key == "folder"))  # the next start takes it
    known = {lease for state in fold.fleet.jobs.values() for lease in (each.lease for each in state.leases)}
    known |= {each.lease for left in fold.fleet.leaving.values() for each in left.state.leases}
    moved = 0
    for root in roots:
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
