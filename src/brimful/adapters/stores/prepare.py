"""Create the tables of a new database, or upgrade those of an older brimful."""

from __future__ import annotations

import sqlalchemy as sa

from brimful.adapters.stores.schema import SCHEMA_VERSION, events, members, meta, metadata, tokens, users
from brimful.errors import WorldFailed
from brimful.language import say

CHAINED = 5  # the first schema with checksums on events
CHAIN_BEGINS = "chain_begins"  # in `brimful`: the first event that has one
USERS_SINCE = 6
ROLES = ("viewer", "submitter", "admin", "operator")  # as they were in that schema
# Held while the tables are created: two PostgreSQL sessions that create the same table collide.
PREPARING = 0x6272696D66756C  # "brimful"


def prepare(connection: sa.Connection, *, where: str, target: int = SCHEMA_VERSION) -> None:
    """All in the caller's transaction: a failed upgrade leaves the database unchanged."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(PREPARING)))
    found = schema_of(connection)
    if found > SCHEMA_VERSION:
        raise WorldFailed(
            say("adapters.database_too_new", where=where, found=found, schema_version=SCHEMA_VERSION),
            code="schema_too_new",
        )
    if found < target:
        _upgrade(connection, target)
        if found < USERS_SINCE <= target:
            _users_of_tokens(connection)


def schema_of(connection: sa.Connection) -> int:
    """0: an empty database."""
    if not sa.inspect(connection).has_table(meta.name):
        return 0
    return int(connection.execute(sa.select(meta.c.value).where(meta.c.key == "schema")).scalar_one())


def keep_first(connection: sa.Connection, *, key: str, value: str) -> None:
    """Works on both databases; if two writers race, one row stays."""
    statement = sa.text("INSERT INTO brimful (key, value) VALUES (:key, :value) ON CONFLICT (key) DO NOTHING")
    connection.execute(statement, {"key": key, "value": value})


def _upgrade(connection: sa.Connection, target: int) -> None:
    """Adds tables; a schema that changes or fills one has a separate step here, by number."""
    wanted = [table for table in metadata.sorted_tables if table.info["since"] <= target]
    metadata.create_all(connection, tables=wanted)
    if target >= CHAINED:
        if "chain" not in {column["name"] for column in sa.inspect(connection).get_columns(events.name)}:
            connection.execute(sa.text("ALTER TABLE events ADD COLUMN chain VARCHAR(64)"))
        # Earlier events have no checksum; later ones must.
        end = connection.execute(sa.select(sa.func.max(events.c.seq))).scalar() or 0
        keep_first(connection, key=CHAIN_BEGINS, value=str(end + 1))
    keep_first(connection, key="schema", value=str(target))
    connection.execute(meta.update().where(meta.c.key == "schema").values(value=str(target)))


def _users_of_tokens(connection: sa.Connection) -> None:
    """Tokens used to have a name but no user: each name becomes a user with the roles of its tokens."""
    wanted = sa.select(tokens).where(tokens.c.kind == "token", tokens.c.revoked_s.is_(None))
    made: dict[str, int] = {}
    roles: dict[tuple[str, str], str] = {}
    for row in connection.execute(wanted):
        made[row.name] = min(row.created_s, made.get(row.name, row.created_s))
        before = roles.get((row.name, row.tenant), row.role)
        roles[row.name, row.tenant] = max(before, row.role, key=ROLES.index)
    for user, created_s in made.items():
        connection.execute(users.insert(), {"user": user, "identity": None, "created_s": created_s})
    for (user, tenant), role in roles.items():
        connection.execute(members.insert(), {"user": user, "tenant": tenant, "role": role})
