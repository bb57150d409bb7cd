"""Users, their teams and tokens, and the audit log, stored beside the event log.

Separate from the events on purpose: a revoked token may be forgotten, and no fold of the fleet depends on who
made a request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from brimful.adapters.stores.schema import audit as _audit
from brimful.adapters.stores.schema import members as _members
from brimful.adapters.stores.schema import tokens as _tokens
from brimful.adapters.stores.schema import users as _users
from brimful.adapters.stores.sql import SqlStore

# What Operate reads again and again. SQLAlchemy takes longer to make a statement than SQLite to answer it.
_LIMIT = sa.bindparam("limit", type_=sa.Integer)
_ALL_DEEDS = sa.select(_audit).order_by(_audit.c.seq.desc()).limit(_LIMIT)
_ALL_TOKENS = (
    sa.select(_tokens).where(_tokens.c.kind == "token").order_by(_tokens.c.created_s.desc()).limit(_LIMIT)
)
_EVERYBODY = (
    sa.select(_users, _members.c.tenant, _members.c.role)
    .outerjoin(_members, _members.c.user == _users.c.user)
    .order_by(_users.c.user, _members.c.tenant)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A credential. Only its holder has the secret; we store its SHA-256."""

    token: str
    digest: str
    kind: str  # token, session (a browser's) or ticket (used once, to create a session)
    name: str  # of its user
    tenant: str  # "*": all; "": every team of its user
    role: str  # upper limit; the user's role there is the other
    parent: str  # the token it was created with; revoking that revokes this
    created_s: int
    expires_s: int | None
    revoked_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A person or a program, with a role in each of its teams."""

    user: str
    identity: str | None  # issuer and subject of an external sign-in; None: tokens only
    created_s: int
    roles: Mapping[str, str]  # by tenant; "*": the organisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """A line of the audit log."""

    at_s: int
    token: str
    name: str
    tenant: str
    verb: str
    target: str
    outcome: str  # "ok" or the error's code


class AccessStore:
    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def add(self, token: Token, *, roles: Mapping[str, str] | None = None) -> None:
        """With `roles`, gives its user these roles, and creates the user if needed."""
        with self._store.writing() as connection:
            if roles is not None:
                _enrol(connection, token.name, roles, at_s=token.created_s)
            connection.execute(_tokens.insert(), asdict(token))

    # -- users -----------------------------------------------------------------------------------------

    def user(self, name: str) -> User | None:
        return next(iter(self._users(_users.c.user == name)), None)

    def user_of(self, identity: str) -> User | None:
        return next(iter(self._users(_users.c.identity == identity)), None)

    def users(self, tenants: Collection[str] | None = None) -> list[User]:
        """The users of these teams; all users if none are given."""
        if tenants is None:
            return self._users(None)
        there = sa.select(_members.c.user).where(_members.c.tenant.in_(tenants))
        return self._users(_users.c.user.in_(there))

    def set_role(self, name: str, tenant: str, role: str | None, *, at_s: int) -> None:
        with self._store.writing() as connection:
            _enrol(connection, name, {} if role is None else {tenant: role}, at_s=at_s)
            if role is None:
                mine = sa.and_(_members.c.user == name, _members.c.tenant == tenant)
                connection.execute(_members.delete().where(mine))

    def sign_in(self, user: User) -> None:
        """Create the user, or give it exactly these roles."""
        with self._store.writing() as connection:
            connection.execute(_members.delete().where(_members.c.user == user.user))
            _enrol(connection, user.user, user.roles, at_s=user.created_s)
            mine = _users.update().where(_users.c.user == user.user)
            connection.execute(mine.values(identity=user.identity))

    def _users(self, where: sa.ColumnElement[bool] | None) -> list[User]:
        wanted = _EVERYBODY if where is None else _EVERYBODY.where(where)
        found: dict[str, User] = {}
        with self._store.reading() as connection:
            for row in connection.execute(wanted):
                roles = found[row.user].roles if row.user in found else {}
                roles = {**roles, row.tenant: row.role} if row.tenant is not None else roles
                found[row.user] = User(
                    user=row.user, identity=row.identity, created_s=row.created_s, roles=roles
                )
        return list(found.values())

    # -- tokens ----------------------------------------------------------------------------------------

    def token(self, name: str) -> Token | None:
        wanted = sa.select(_tokens).where(_tokens.c.token == name)
        with self._store.reading() as connection:
            row = connection.execute(wanted).first()
        return None if row is None else Token(**row._mapping)

    def tokens(self, tenants: Collection[str] | None = None, *, limit: int = 1000) -> Sequence[Token]:
        """Newest first; all tenants' if none are given. Without sessions and tickets."""
        return self._tokens(None if tenants is None else _tokens.c.tenant.in_(tenants), limit)

    def tokens_of(self, user: str, *, limit: int = 1000) -> Sequence[Token]:
        return self._tokens(_tokens.c.name == user, limit)

    def revoke(self, name: str, *, at_s: int) -> bool:
        """Revoke it and everything created with it. False if it was already revoked."""
        mine = sa.or_(_tokens.c.token == name, _tokens.c.parent == name)
        change = _tokens.update().where(mine, _tokens.c.revoked_s.is_(None)).values(revoked_s=at_s)
        with self._store.writing() as connection:
            return connection.execute(change).rowcount > 0

    def revoke_all(self, *, at_s: int) -> int:
        """Revoke every token and everything created with one; returns how many were valid."""
        change = _tokens.update().where(_tokens.c.revoked_s.is_(None)).values(revoked_s=at_s)
        good = sa.select(sa.func.count()).select_from(_tokens).where(self._valid(at_s))
        with self._store.writing() as connection:
            count = connection.execute(good).scalar_one()
            connection.execute(change)
        return count

    def count_good(self, *, at_s: int) -> int:
        with self._store.reading() as connection:
            wanted = sa.select(sa.func.count()).select_from(_tokens).where(self._valid(at_s))
            return connection.execute(wanted).scalar_one()

    @staticmethod
    def _valid(at_s: int) -> sa.ColumnElement[bool]:
        lasts = sa.or_(_tokens.c.expires_s.is_(None), _tokens.c.expires_s > at_s)
        return sa.and_(_tokens.c.kind == "token", _tokens.c.revoked_s.is_(None), lasts)

    def forget(self, *, before_s: int) -> None:
        """Drop sessions and tickets that expired before then."""
        over = sa.and_(_tokens.c.kind != "token", _tokens.c.expires_s < before_s)
        with self._store.writing() as connection:
            connection.execute(_tokens.delete().where(over))

    def note(self, deeds: Sequence[Deed]) -> None:
        """Not flushed: nobody waits for it, and nobody should wait behind it for the disk."""
        with self._store.writing(flushed=False) as connection:
            connection.execute(_audit.insert(), [asdict(deed) for deed in deeds])

    def deeds(
        self, tenants: Collection[str] | None = None, *, before: int | None = None, limit: int = 200
    ) -> list[dict[str, Any]]:
        """Newest first, each with its `seq`."""
        wanted = _ALL_DEEDS
        if tenants is not None:
            wanted = wanted.where(_audit.c.tenant.in_(tenants))
        if before is not None:
            wanted = wanted.where(_audit.c.seq < before)
        with self._store.reading() as connection:
            return [dict(row._mapping) for row in connection.execute(wanted, {"limit": limit})]

    def forget_deeds(self, *, before_s: int | None, last: int | None, dry_run: bool = False) -> int:
        """Drop entries older than this, and all but the newest `keep`; returns how many there are or were."""
        old = [] if before_s is None else [_audit.c.at_s < before_s]
        if last is not None:
            kept = sa.select(_audit.c.seq).order_by(_audit.c.seq.desc()).limit(last)
            old.append(_audit.c.seq.not_in(kept))
        if not old:
            return 0
        with self._store.writing() as connection:
            if dry_run:
                wanted = sa.select(sa.func.count()).select_from(_audit).where(sa.or_(*old))
                return connection.execute(wanted).scalar_one()
            return connection.execute(_audit.delete().where(sa.or_(*old))).rowcount

    def _tokens(self, where: sa.ColumnElement[bool] | None, limit: int) -> list[Token]:
        wanted = _ALL_TOKENS if where is None else _ALL_TOKENS.where(where)
        with self._store.reading() as connection:
            return [Token(**row._mapping) for row in connection.execute(wanted, {"limit": limit})]


def _enrol(connection: sa.Connection, name: str, roles: Mapping[str, str], *, at_s: int) -> None:
    """Create the user if needed and add these roles to its own."""
    if connection.execute(sa.select(_users.c.user).where(_users.c.user == name)).first() is None:
        connection.execute(_users.insert(), {"user": name, "identity": None, "created_s": at_s})
    for tenant, role in roles.items():
        mine = sa.and_(_members.c.user == name, _members.c.tenant == tenant)
        connection.execute(_members.delete().where(mine))
        connection.execute(_members.insert(), {"user": name, "tenant": tenant, "role": role})
