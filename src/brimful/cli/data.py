"""For commands that open the database themselves, because no server need be up: backup, restore, doctor."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from brimful.client.settings import Settings, read_settings
from brimful.errors import WorldFailed

if TYPE_CHECKING:
    from brimful.adapters.stores.sql import SqlStore


def add_database_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="FOLDER", help="the server's data folder")
    parser.add_argument("--database", metavar="URL", help="the server's database, if not in its data folder")
    parser.add_argument("--engines", metavar="FOLDER", help="folder of the running jobs, if it has its own")


@contextmanager
def open_store(args: argparse.Namespace, *, make: bool = False) -> Iterator[tuple[SqlStore, Settings]]:
    """The database of these settings. It must be there, unless it is to be made."""
    given = {name: getattr(args, name, None) for name in ("data", "database", "engines")}
    settings = read_settings(given)
    file = settings.folder / "brimful.db"
    if not make and not settings.database and not file.exists():
        raise WorldFailed(
            f"there is no database in {settings.folder}",
            hint="name the folder of the server (--data) or its database (--database)",
            code="no_database",
        )
    try:
        from brimful.adapters.stores.sql import SqlStore
    except ModuleNotFoundError as error:
        raise WorldFailed(
            f"the server's parts are not installed ({error.name} is missing)",
            hint="pip install 'brimful[server]'",
            code="not_installed",
        ) from error
    if make:
        settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = SqlStore(settings.database_url)
    try:
        yield store, settings
    finally:
        store.close()
