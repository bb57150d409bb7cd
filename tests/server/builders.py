"""Access for tests of the server: an operator, and tokens of other roles and tenants."""

from __future__ import annotations

from brimful.adapters.stores.access import AccessStore
from brimful.adapters.stores.sql import SqlStore
from brimful.server.auth import EVERYBODY, Access, Principal

OPERATOR = Principal(token="0" * 16, name="tester", tenant=EVERYBODY, role="operator")


def an_access(store: SqlStore) -> Access:
    return Access(AccessStore(store.engine))


def bearer(
    access: Access, role: str = "operator", tenant: str = EVERYBODY, *, ttl_s: int | None = None
) -> dict[str, str]:
    """The header of a new token."""
    text, _ = access.issue(name=f"{role} of {tenant}", tenant=tenant, role=role, ttl_s=ttl_s)
    return {"authorization": f"Bearer {text}"}
