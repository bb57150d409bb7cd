"""Users, their roles and their tokens, in both databases."""

from __future__ import annotations

from brimful.adapters.identity.store import AccessStore, Token, User
from brimful.adapters.stores.sql import SqlStore


def a_token(name: str, tenant: str, token: str) -> Token:
    return Token(
        token=token * 16,
        digest="0" * 64,
        kind="token",
        name=name,
        tenant=tenant,
        role="viewer",
        parent="",
        created_s=5,
        expires_s=None,
        revoked_s=None,
    )


def test_roles_come_with_tokens_change_and_go(url: str) -> None:
    store = SqlStore(url)
    access = AccessStore(store)
    access.add(a_token("ann", "red", "a"), roles={"red": "viewer"})
    access.add(a_token("ann", "blue", "b"), roles={"blue": "admin"})
    access.add(a_token("ben", "red", "c"), roles={"red": "admin"})
    ann = User(user="ann", identity=None, created_s=5, roles={"red": "viewer", "blue": "admin"})
    assert access.user("ann") == ann
    assert [user.user for user in access.users({"red"})] == ["ann", "ben"]
    assert [user.user for user in access.users({"blue"})] == ["ann"]
    access.set_role("ann", "red", "submitter", at_s=6)
    access.set_role("ann", "blue", None, at_s=6)
    access.set_role("cid", "red", "viewer", at_s=6)
    assert {user.user: dict(user.roles) for user in access.users()} == {
        "ann": {"red": "submitter"},
        "ben": {"red": "admin"},
        "cid": {"red": "viewer"},
    }
    assert {token.name for token in access.tokens({"red"})} == {"ann", "ben"}
    assert [token.tenant for token in access.tokens_of("ben")] == ["red"]
    store.close()


def test_who_signs_in_has_just_the_roles_of_that_sign_in(url: str) -> None:
    store = SqlStore(url)
    access = AccessStore(store)
    first = User(
        user="eve", identity="https://login 7", created_s=5, roles={"red": "viewer", "blue": "admin"}
    )
    access.sign_in(first)
    assert access.user_of("https://login 7") == first
    access.sign_in(User(user="eve", identity="https://login 7", created_s=9, roles={"pink": "viewer"}))
    found = access.user("eve")
    assert found is not None
    assert (found.created_s, found.roles) == (5, {"pink": "viewer"})
    access.sign_in(User(user="eve", identity="https://login 7", created_s=9, roles={}))
    assert access.users({"pink"}) == []
    assert [user.user for user in access.users()] == ["eve"]
    store.close()
