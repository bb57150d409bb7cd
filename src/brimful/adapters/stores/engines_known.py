"""Which engines have run jobs of a log. A restored log keeps them: their runs may still be alive."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from brimful.adapters.stores.schema import meta

FOLDER = "folder"  # the id and the path of the folder that the log belongs to
ENGINES = "engines"


def engines_known(connection: sa.Connection) -> frozenset[str]:
    """Their ids, of whatever folder."""
    wanted = sa.select(meta.c.key, meta.c.value).where(meta.c.key.in_((FOLDER, ENGINES)))
    found = {key: value.split() for key, value in connection.execute(wanted)}
    return frozenset([*found.get(FOLDER, ())[:1], *found.get(ENGINES, ())])


def add_engines(connection: sa.Connection, engines: Collection[str]) -> None:
    """Remember these too, also once the log belongs to another folder."""
    known = engines_known(connection) | set(engines)
    if known:
        connection.execute(meta.delete().where(meta.c.key == ENGINES))
        connection.execute(meta.insert(), {"key": ENGINES, "value": " ".join(sorted(known))})
