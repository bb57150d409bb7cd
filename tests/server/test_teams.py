"""Users, their roles in each team, and their tokens: through the API, and from older databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from brimful.adapters.identity.store import AccessStore, User
from brimful.adapters.stores.prepare import prepare, schema_of
from brimful.adapters.stores.schema import SCHEMA_VERSION, tokens
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import NotFound
from brimful.language import words
from brimful.server.auth import EVERYBODY, ROLES, Principal
from tests.server.builders import OPERATOR, bearer
from tests.server.live import live
from tests.server.test_auth import House, house

__all__ = ["house"]


def a_token(house: House, name: str, tenant: str, role: str) -> dict[str, str]:
    text, _ = house.access.issue(name=name, tenant=tenant, role=role)
    return {"authorization": f"Bearer {text}"}


def set_role(house: House, by: dict[str, str], name: str, tenant: str, role: str | None) -> Any:
    return house.http.post(f"/v1/users/{name}", json={"tenant": tenant, "role": role}, headers=by)


def role_of(house: House, headers: dict[str, str]) -> dict[str, str] | None:
    answer = house.http.get("/v1/whoami", headers=headers)
    return answer.json()["data"]["roles"] if answer.status_code == 200 else None


def test_a_token_does_what_its_own_role_and_its_users_both_allow(house: House) -> None:
    ann = a_token(house, "ann", "red", "submitter")
    assert role_of(house, ann) == {"red": "submitter"}
    for role, then in (
        ("viewer", "viewer"),
        ("admin", "submitter"),
        (None, None),
        ("submitter", "submitter"),
    ):
        assert set_role(house, house.red, "ann", "red", role).status_code == 200
        assert role_of(house, ann) == (then and {"red": then})


def test_who_leaves_a_team_leaves_it_with_every_token_and_session_and_stays_in_others(house: House) -> None:
    here = [a_token(house, "ann", "red", role) for role in ("viewer", "submitter", "admin")]
    there = a_token(house, "ann", "blue", "viewer")
    session = house.access.session(here[0]["authorization"].removeprefix("Bearer "))
    cookie = {"cookie": f"brimful_session={session}"}
    assert role_of(house, cookie) == {"red": "viewer"}
    assert set_role(house, house.red, "ann", "red", None).json()["data"]["roles"] == {}
    assert [role_of(house, each) for each in (*here, cookie)] == [None] * 4
    assert role_of(house, there) == {"blue": "viewer"}


def test_an_admin_rules_over_its_own_team_and_nobody_else(house: House) -> None:
    a_token(house, "ann", "blue", "viewer")
    for by, name, tenant, role in (
        (house.red, "ann", "blue", "admin"),
        (house.red, "ann", "blue", None),
        (house.red, "admin of red", EVERYBODY, "operator"),
        (house.red, "admin of red", EVERYBODY, "viewer"),
        (bearer(house.access, "submitter", "red"), "ann", "red", "viewer"),
    ):
        assert set_role(house, by, name, tenant, role).status_code in (403, 404), (name, tenant, role)
    assert set_role(house, house.red, "nobody", "red", None).status_code == 404
    assert set_role(house, house.operator, "ann", "red", "operator").status_code == 400
    listed = house.http.get("/v1/users", headers=house.red).json()["data"]["users"]
    assert "ann" not in str(listed)
    assert "blue" not in str(listed)
    assert "operator" not in str(listed)
    everybody = house.http.get("/v1/users", headers=house.operator).json()["data"]["users"]
    assert {"ann", "admin of red", "admin of blue", "operator of *"} <= {user["user"] for user in everybody}


def test_somebody_of_two_teams_sees_both_and_nothing_else(house: House) -> None:
    both = Principal(token="", name="ann", roles={"red": "viewer", "pink": "admin"})
    assert [both.sees(tenant) for tenant in ("red", "pink", "blue")] == [True, True, False]
    assert [both.may("admin", tenant) for tenant in ("red", "pink", "blue")] == [False, True, False]
    assert both.tenants() == frozenset({"red", "pink"})
    assert both.tenants("admin") == frozenset({"pink"})
    assert OPERATOR.tenants("admin") is None


def test_a_job_is_its_users_whichever_token_it_came_with(house: House) -> None:
    first, second = (a_token(house, "ann", "red", "submitter") for _ in range(2))
    made = house.http.post("/v1/jobs", json={"command": ["true"], "folder": "/"}, headers=first).json()
    job = made["data"]["job"]
    assert (
        house.http.post(f"/v1/jobs/{job}/hold", headers=a_token(house, "ben", "red", "submitter")).status_code
        == 403
    )
    assert house.http.post(f"/v1/jobs/{job}/hold", headers=second).status_code == 200
    assert set_role(house, house.red, "ann", "red", "viewer").status_code == 200
    assert house.http.post(f"/v1/jobs/{job}/release", headers=second).status_code == 403


def test_the_audit_log_is_by_person(house: House) -> None:
    for _ in range(2):
        house.http.post(f"/v1/jobs/{house.job}/cancel", headers=a_token(house, "ann", "red", "admin"))
    set_role(house, house.red, "ann", "red", "viewer")
    house.access.close()
    deeds = house.http.get("/v1/audit", headers=house.red).json()["data"]["deeds"]
    by_ann = [(deed["name"], deed["verb"]) for deed in deeds if deed["name"] == "ann"]
    assert by_ann == [("ann", "job.cancel")] * 2
    assert (deeds[0]["name"], deeds[0]["verb"], deeds[0]["target"]) == (
        "admin of red",
        "user.role",
        "ann red viewer",
    )
    assert len({deed["token"] for deed in deeds if deed["name"] == "ann"}) == 2


def test_nobody_makes_a_token_in_the_name_of_who_signs_in_elsewhere(house: House) -> None:
    user = User(user="eve@red.org", identity="https://login 7", created_s=1, roles={"red": "viewer"})
    house.access._store.sign_in(user)
    body = {"name": "eve@red.org", "tenant": "red", "role": "viewer"}
    answer = house.http.post("/v1/tokens", json=body, headers=house.red)
    assert (answer.status_code, answer.json()["error"]["reason"]["code"]) == (403, "server.signs_in_itself")
    assert house.http.post("/v1/tokens", json=body, headers=house.operator).status_code == 201


def test_a_token_in_somebodys_name_reaches_none_of_their_tokens_of_other_teams(house: House) -> None:
    _, hers = house.access.issue(name="ann", tenant="red", role="viewer")
    _, made = house.access.issue(name="ann", tenant="blue", role="admin")
    named = Principal(token=made.token, name="ann", roles={"blue": "admin"})
    assert [token.tenant for token in house.access.tokens_of(named)] == ["blue"]
    with pytest.raises(NotFound):
        house.access.revoke_own(named, hers.token)
    house.access.revoke_own(named, made.token)


@pytest.mark.parametrize("role", ROLES)
def test_tokens_of_an_older_database_have_users_with_their_roles(tmp_path: Path, role: str) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    engine = sa.create_engine(url)
    tenant = EVERYBODY if role == "operator" else "red"
    row = {"digest": "0" * 64, "kind": "token", "tenant": tenant, "parent": "", "created_s": 5}
    with engine.begin() as connection:
        prepare(connection, where="here", target=5)
        rows = [
            {**row, "token": "a" * 16, "name": "ann", "role": role, "expires_s": None, "revoked_s": None},
            {**row, "token": "b" * 16, "name": "ann", "role": "viewer", "expires_s": 9, "revoked_s": None},
            {**row, "token": "c" * 16, "name": "gone", "role": role, "expires_s": None, "revoked_s": 7},
        ]
        connection.execute(tokens.insert(), rows)
    engine.dispose()
    store = SqlStore(url)
    with store.reading() as connection:
        assert schema_of(connection) == SCHEMA_VERSION
    assert AccessStore(store).users() == [User(user="ann", identity=None, created_s=5, roles={tenant: role})]
    store.close()


def test_a_token_of_somebody_who_has_left_is_listed_as_one_that_does_not_work(house: House) -> None:
    a_token(house, "ann", "red", "submitter")
    on_call = a_token(house, "op", "red", "viewer")
    set_role(house, house.operator, "op", EVERYBODY, "operator")  # who sees all is in every team
    set_role(house, house.operator, "op", "red", None)

    def left() -> dict[str, bool]:
        listed = house.http.get("/v1/tokens", headers=house.red).json()["data"]["tokens"]
        return {each["name"]: each["has_left"] for each in listed if each["name"] in ("ann", "op")}

    assert left() == {"ann": False, "op": False}
    assert role_of(house, on_call) == {"red": "viewer"}
    set_role(house, house.operator, "ann", "red", None)
    assert left() == {"ann": True, "op": False}


def test_the_commands_set_and_list_roles(tmp_path: Path) -> None:
    with live(tmp_path / "data", "--slots", "1") as server:
        server.ask("admin", "users", "set", "ann", "--tenant", "red", "--role", "admin")
        assert server.ask("admin", "users")["users"][0]["roles"] == {"red": "admin"}
        assert "ann" in server.read("admin", "users")
        token = server.ask("admin", "tokens", "add", "ann", "--tenant", "red")["token"]["token"]
        assert server.ask("admin", "users", "remove", "ann", "--tenant", "red")["roles"] == {}
        listed = server.read("admin", "tokens").splitlines()
        (ann,) = (line for line in listed if line.startswith(token))
        assert ann.endswith(words("operate.left_team", name="ann", tenant="red"))
