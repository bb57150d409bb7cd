"""Every route, tried by all who may not: without a token, with another tenant's, with one that is over."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.testclient import TestClient

from brimful.adapters.code import CodeStore
from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.stores.notices import NotifyStore
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BadInput, Refused
from brimful.fleet.queues import Quota
from brimful.language import verbatim, words
from brimful.scheduler.rules import Rules
from brimful.server.api import stream
from brimful.server.app import make_app
from brimful.server.auth import ROLES, Principal
from brimful.server.run.operator_token import operator_token
from brimful.server.service.notify import Outbound
from brimful.server.service.service import Service
from tests.builders import a_node, refuses
from tests.patience import PATIENCE_S
from tests.server.builders import OIDC, OPERATOR, an_access, an_app, bearer
from tests.server.live import BRIMFUL

SECRET = "the-red-team-knows-nothing-of-this"
OPEN = {"/v1/health", "/v1/ready", "/v1/proof", "/console/enter", "/console/leave", "/console/{name}"}
OPEN |= {"/console/sign-in", "/console/sign-in/begin"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/jobs": {"command": ["true"], "folder": "/", "tenant": "red"},
    "/v1/jobs/{name}/move": {"site": "here"},
    "/v1/jobs/{name}/bid": {"limit_microusd_per_gpu_hour": 5_000_000},
    "/v1/budgets/{tenant}": {"microusd": 1_000_000},
    "/v1/budgets/{tenant}/credit": {"microusd": 1_000_000},
    "/v1/tokens": {"name": "x", "tenant": "red", "role": "viewer"},
    "/v1/users/{user}": {"tenant": "red", "role": "admin"},
    "/v1/queues": {"queues": []},
    "/v1/reservations/{name}/quote": {"hours": 1},
    "/v1/reservations/{name}/extend": {"hours": 1},
}


class House:
    """Two tenants under one roof. Red's job carries a word that nobody else may ever see."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1_800_000_000
        self.store = SqlStore(f"sqlite:///{folder / 'log.db'}")
        engine = LocalEngine(folder / "leases", [a_node(gpus=2)], site="here")
        code, notify = CodeStore(folder / "code"), (NotifyStore(self.store), Outbound())
        self.service = Service(
            self.store, [engine], Rules(grace_s=1), code=code, notify=notify, clock=lambda: self.now_s
        )
        self.access = an_access(self.store)
        self.access._clock = lambda: self.now_s
        self.app = make_app(self.service, self.access, secure=True, oidc=OIDC)
        self.http = TestClient(self.app, base_url="https://127.0.0.1")
        self.red, self.blue = bearer(self.access, "admin", "red"), bearer(self.access, "admin", "blue")
        self.operator = bearer(self.access)
        self.service.driver.tick()
        self.service.submissions.set_queues((Quota(queue=SECRET, gpus=2, tenants=("red",)),), by="operator")
        body = {"command": [SECRET], "folder": f"/{SECRET}", "name": SECRET, "gpus": 2}
        body |= {"queue": SECRET, "budget_microusd": 1_000_000}
        made = self.http.post("/v1/jobs", json=body, headers=self.red)
        assert made.status_code == 201, made.text
        self.job = made.json()["data"]["job"]
        self.seq = self.service.reader.fleet.seq

    def close(self) -> None:
        self.access.close()
        self.store.close()

    def path(self, route: Route, *, job: str = "") -> str:
        names = {"name": job or self.job, "node": "node-0", "tenant": "red", "user": "ann", "verb": "pause"}
        if "/reservations/" in route.path:
            names["name"] = "r1"
        return route.path.format(**names, token="0" * 16, code="0" * 64, rule="0" * 16)

    def ask(self, route: Route, headers: dict[str, str], *, job: str = "") -> Any:
        path = self.path(route, job=job)
        if "stream" in path:  # it would go on for ever where it is allowed; refused, it answers at once
            path += "?after=0" if "events" in path else ""
        return self.http.request(route.method, path, headers=headers, json=BODIES.get(route.path, {}))


class Route(NamedTuple):
    method: str
    path: str
    role: str


def routes() -> list[Route]:
    """All that the application has, found in the application."""
    app = an_app()
    found = []
    for route in _flat(app.routes):
        if isinstance(route, APIRoute):
            roles = [getattr(each.call, "role", None) for each in route.dependant.dependencies]
            role = next(filter(None, roles), "viewer")
            found += [Route(method, route.path, role) for method in sorted(route.methods or ())]
    assert len(found) > 30
    described = {(method.upper(), path) for path, verbs in app.openapi()["paths"].items() for method in verbs}
    assert described <= {(route.method, route.path) for route in found}
    return found


def _flat(given: Any) -> Iterator[Any]:
    for route in given:
        if hasattr(route, "original_router"):  # how FastAPI keeps a router that was included
            yield from _flat(route.original_router.routes)
        else:
            yield route


GUARDED = [route for route in routes() if route.path not in OPEN]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One house for all who are turned away: nothing in it may change."""
    house = House(tmp_path_factory.mktemp("still"))
    yield house
    assert house.service.reader.fleet.seq == house.seq
    house.close()


def test_the_open_routes_are_these_and_tell_nothing(still: House) -> None:
    assert {route.path for route in routes()} >= OPEN
    for path in ("/v1/health", "/v1/ready", "/console/console.css", "/console/enter", "/", "/jobs/job-1"):
        answer = still.http.get(path)
        assert SECRET not in answer.text
        assert "red" not in answer.text.replace("required", "").replace("expired", "") or "css" in path


@pytest.mark.parametrize("route", GUARDED, ids=lambda route: f"{route.method} {route.path}")
def test_without_a_valid_token_nothing_is_told_or_done(still: House, route: Route) -> None:
    expired = bearer(still.access, ttl_s=10)
    revoked, session = bearer(still.access), a_session(still, OPERATOR)
    still.access.revoke(OPERATOR, revoked["authorization"][12:28])
    tampered = {"authorization": still.operator["authorization"][:-1] + "-"}
    ticket = {"authorization": f"Bearer {still.access.ticket(OPERATOR)}"}
    still.now_s += 20
    basic = {"authorization": still.operator["authorization"].replace("Bearer", "Basic")}
    as_bearer = {"authorization": f"Bearer {session}"}
    as_cookie = {"cookie": f"brimful_session={still.operator['authorization'].removeprefix('Bearer ')}"}
    nonsense = {"authorization": "Bearer x"}
    for headers in ({}, expired, revoked, tampered, ticket, basic, nonsense, as_bearer, as_cookie):
        answer = still.ask(route, headers)
        # A form of the console is refused for want of its key, before anybody asks who sent it.
        is_form = not route.path.startswith("/v1") and route.method == "POST"
        assert answer.status_code == (403 if is_form else 401), (headers, answer.text)
        assert SECRET not in answer.text
    assert still.service.reader.fleet.seq == still.seq


@pytest.mark.parametrize(
    "route", [r for r in GUARDED if r.path != "/v1/events/stream"], ids=lambda r: f"{r.method} {r.path}"
)
def test_another_tenant_sees_and_does_nothing(still: House, route: Route) -> None:
    answer = still.ask(route, still.blue)
    assert SECRET not in answer.text
    if route.path not in ("/v1/audit", "/operate"):  # what it asked for itself is its own deed
        echo = answer.text.replace("&#39;", "'").replace(f"there is no job '{still.job}'", "")
        echo = echo.replace(f"?to=/jobs/{still.job}", "")  # the same page in another language
        echo = echo.replace(f'"name":"{still.job}"', "")  # of the error's reason
        assert still.job not in echo
    if "{name}" in route.path or (route.method == "POST" and route.path in BODIES):
        assert answer.status_code in (403, 404), answer.text
    assert still.service.reader.fleet.seq == still.seq


@pytest.mark.parametrize("route", GUARDED, ids=lambda r: f"{r.method} {r.path}")
def test_a_role_below_the_one_a_route_needs_is_refused(still: House, route: Route) -> None:
    for role in ROLES[: ROLES.index(route.role)]:
        answer = still.ask(route, bearer(still.access, role, "red"))
        assert answer.status_code == 403, answer.text
        assert answer.json()["error"]["code"] == "forbidden"
    assert still.service.reader.fleet.seq == still.seq


def test_another_tenants_job_and_one_that_never_was_are_not_there_in_the_same_words(still: House) -> None:
    theirs = still.http.get(f"/v1/jobs/{still.job}", headers=still.blue)
    nobodys = still.http.get("/v1/jobs/job-99", headers=still.blue)
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.text.replace(still.job, "X") == nobodys.text.replace("job-99", "X")


def test_a_stream_of_events_shows_a_tenant_its_own(still: House) -> None:
    for headers, sees in ((still.red, True), (still.blue, False), (still.operator, True)):
        page = still.http.get("/v1/events", headers=headers).json()["data"]
        assert (SECRET in str(page)) is sees
        assert "NodeJoined" in str(page)
        assert page["next_after"] == still.seq


@pytest.mark.parametrize("tenant", ["red", "blue"])
def test_an_endless_stream_shows_a_tenant_its_own_and_ends_with_its_token(
    house: House, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read to its end, which comes because the token is revoked while the stream rests, all being told."""
    monkeypatch.setattr(stream, "CHECK_S", 0.0)
    headers = bearer(house.access, "viewer", tenant)
    rests = 0

    async def rest(_s: float) -> None:
        nonlocal rests
        rests += 1
        assert rests == 1, "a stream outlives its token"
        await run_in_threadpool(house.access.revoke, OPERATOR, headers["authorization"][12:28])

    monkeypatch.setattr(stream, "asyncio", SimpleNamespace(sleep=rest))
    text = house.http.get("/v1/events/stream?after=0", headers=headers).text
    assert rests
    assert "NodeJoined" in text
    assert (SECRET in text) is (tenant == "red")
    assert (house.job in text) is (tenant == "red")
    assert '"code": "unauthorized"' in text.split("event: ")[-1]


def test_one_token_cannot_open_all_streams(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_OF_ONE", 0)
    answer = house.http.get("/v1/events/stream", headers=house.red)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many")


def test_a_submitter_changes_what_it_submitted_and_its_admin_all(house: House) -> None:
    mate = bearer(house.access, "submitter", "red")
    answer = house.http.post(f"/v1/jobs/{house.job}/cancel", headers=mate)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert house.http.post(f"/v1/jobs/{house.job}/cancel", headers=house.red).status_code == 200


def test_nobody_gives_away_more_than_is_theirs(still: House) -> None:
    for body in (
        {"name": "x", "tenant": "blue", "role": "viewer"},
        {"name": "x", "tenant": "red", "role": "operator"},
        {"name": "x", "tenant": "*", "role": "viewer"},
        {"name": "x", "tenant": "*", "role": "operator"},
    ):
        answer = still.http.post("/v1/tokens", json=body, headers=still.red)
        assert answer.status_code in (400, 403), answer.text


def test_a_token_makes_none_that_outlives_it(still: House) -> None:
    admin = bearer(still.access, "admin", "red", ttl_s=7200)
    asked = {"name": "x", "tenant": "red", "role": "viewer"}
    for ttl_s, status in ((7200, 201), (7201, 403), (None, 403)):
        answer = still.http.post("/v1/tokens", json={**asked, "ttl_s": ttl_s}, headers=admin)
        assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["reason"]["code"] == "server.token_outlives"
    assert (error["reason"]["left"], error["reason"]["lifetime"]) == (7200, "2h")


def test_a_token_of_the_usual_lifetime_lasts_no_longer_than_its_makers(still: House) -> None:
    admin = bearer(still.access, "admin", "red", ttl_s=7200)
    asked = {"name": "x", "tenant": "red", "role": "viewer"}
    made = still.http.post("/v1/tokens", json=asked, headers=admin)
    assert made.status_code == 201, made.text
    token = made.json()["data"]["token"]
    assert 7100 <= token["expires_s"] - token["created_s"] <= 7200


def test_who_may_not_is_told_who_gives_the_role(still: House) -> None:
    viewer = bearer(still.access, "viewer", "red")
    for path, giver in ((f"/v1/jobs/{still.job}/cancel", "admin"), ("/v1/nodes/node-0/drain", "operator")):
        hint = still.http.post(path, headers=viewer, json={}).json()["error"]["hint"]
        assert hint.startswith(words(f"server.hint_role_from_{giver}", command="").partition("(")[0])


def test_a_session_made_while_its_token_is_revoked_is_none(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, token = house.access.issue(name="ann", tenant="red", role="viewer")
    issue = house.access.issue

    def late(**given: Any) -> Any:
        house.access._store.revoke(token.token, at_s=house.now_s)  # after it was looked at
        return issue(**given)

    monkeypatch.setattr(house.access, "issue", late)
    assert house.access.session(text) is None
    sessions = house.access._store._tokens(sa.literal(value=True), 100)
    assert not [each for each in sessions if each.kind == "session" and each.revoked_s is None]


def test_a_hanging_database_fills_no_memory_and_the_audit_log_tells_of_its_gap(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.access.close()  # its writer would empty the new queue too
    monkeypatch.setattr(house.access, "_deeds", queue.Queue(5))
    asked, answers, note = threading.Event(), threading.Event(), house.access._store.note

    def slow(deeds: Any) -> None:
        asked.set()
        answers.wait(PATIENCE_S)
        note(deeds)

    monkeypatch.setattr(house.access._store, "note", slow)
    house.access.note(OPERATOR, "job.hold", "job-0", "ok")
    assert asked.wait(PATIENCE_S)  # from here on the writer hangs, and nobody empties the queue
    for i in range(1, 20):
        house.access.note(OPERATOR, "job.hold", f"job-{i}", "ok")
    answers.set()
    house.access.close()
    deeds = house.access.deeds(OPERATOR, before=None, limit=100)
    held = [deed for deed in deeds if deed["verb"] == "job.hold"]
    (lost,) = [deed for deed in deeds if deed["verb"] == "audit.lost"]
    assert (len(held), lost["target"]) == (1 + 5, "14 lines")


def test_a_token_is_made_used_listed_and_revoked(house: House) -> None:
    body = {"name": "ann", "tenant": "red", "role": "viewer"}
    made = house.http.post("/v1/tokens", json=body, headers=house.red).json()["data"]
    ann = {"authorization": f"Bearer {made['secret']}"}
    assert house.http.get("/v1/whoami", headers=ann).json()["data"]["name"] == "ann"
    listed = house.http.get("/v1/tokens", headers=house.red).json()["data"]["tokens"]
    assert [each["name"] for each in listed if each["token"] == made["token"]["token"]] == ["ann"]
    assert made["secret"][22:] not in str(listed)
    assert "ann" not in house.http.get("/v1/tokens", headers=house.blue).text

    path = f"/v1/tokens/{made['token']['token']}/revoke"
    assert house.http.post(path, headers=house.blue).status_code == 404
    assert house.http.post(path, headers=house.red).status_code == 200
    assert house.http.get("/v1/whoami", headers=ann).status_code == 401


def test_the_database_and_the_log_hold_no_secret_of_a_token(house: House, tmp_path: Path) -> None:
    house.access.close()
    secret = house.operator["authorization"].split("_", 2)[2]  # which may hold an underscore itself
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()


def test_what_is_done_and_what_is_refused_is_in_the_audit_log(house: House) -> None:
    viewer = bearer(house.access, "viewer", "red")
    house.http.post(f"/v1/jobs/{house.job}/cancel", headers=viewer)
    house.http.post(f"/v1/jobs/{house.job}/cancel", headers=house.red)
    house.access.close()
    deeds = house.http.get("/v1/audit", headers=house.red).json()["data"]["deeds"]
    said = [(deed["name"], deed["verb"], deed["outcome"]) for deed in reversed(deeds)]
    assert said == [
        ("admin of red", "job.submit", "ok"),
        ("viewer of red", "POST denied", "forbidden"),
        ("admin of red", "job.cancel", "ok"),
    ]
    assert house.http.get("/v1/audit", headers=house.blue).json()["data"]["deeds"] == []


# -- browsers ------------------------------------------------------------------------------------------------


def a_ticket(house: House, who: Principal) -> str:
    _, token = house.access.issue(name=who.name, tenant=who.tenant, role=who.role)
    return house.access.ticket(Principal(token=token.token, name=who.name, roles=who.roles))


def a_session(house: House, who: Principal) -> str:
    session = house.access.session(a_ticket(house, who))
    assert session is not None
    return session


def a_browser(house: House) -> TestClient:
    return TestClient(house.app, base_url="https://127.0.0.1:8642")


def enter(house: House, who: Principal = OPERATOR) -> TestClient:
    browser, ticket = a_browser(house), a_ticket(house, who)
    # Whoever looks at the links of a mail before its reader does uses up nothing.
    for reader in (a_browser(house), a_browser(house), browser):
        asked = reader.get(f"/console/enter?ticket={ticket}")
        assert (asked.status_code, "set-cookie" in asked.headers) == (200, False)
        assert who.name in asked.text
    answer = browser.post("/console/enter", data={"ticket": ticket}, follow_redirects=False)
    assert answer.status_code == 303
    again = a_browser(house).post("/console/enter", data={"ticket": ticket})
    assert (again.status_code, "used before" in again.text) == (401, True)
    again = a_browser(house).get(f"/console/enter?ticket={ticket}")
    assert (again.status_code, "used before" in again.text) == (401, True)
    return browser


def form_key_on(page: str) -> str:
    return page.partition('name="form_key" value="')[2].partition('"')[0]


def test_a_ticket_becomes_a_session_once_and_the_cookie_is_for_no_script(still: House) -> None:
    browser = enter(still)
    assert SECRET in browser.get("/").text
    cookie = browser.get("/v1/whoami").request.headers["cookie"]
    assert cookie.startswith("brimful_8642=brim_")


def test_the_cookie_is_kept_from_scripts_and_other_sites(still: House) -> None:
    browser = a_browser(still)
    form = {"token": still.operator["authorization"].removeprefix("Bearer ")}
    answer = browser.post("/console/enter", data=form, follow_redirects=False)
    kept = answer.headers["set-cookie"].lower()
    assert answer.status_code == 303
    assert "httponly" in kept
    assert "samesite=strict" in kept
    theirs = browser.post("/console/enter", data=form, headers={"sec-fetch-site": "cross-site"})
    assert theirs.status_code == 403


@pytest.mark.parametrize("route", [r for r in GUARDED if r.method != "GET"], ids=lambda r: r.path)
def test_a_session_only_looks(still: House, route: Route) -> None:
    assert still.http.request("GET", "/v1/whoami", cookies=None).status_code == 401
    browser = enter(still)
    path = still.path(route)
    answer = browser.request(route.method, path, json=BODIES.get(route.path, {}))
    assert answer.status_code == (401 if path.startswith("/v1") else 403)
    assert still.service.reader.fleet.seq == still.seq


def test_signing_out_and_revoking_the_token_end_the_session(house: House) -> None:
    browser = enter(house)
    browser.post("/console/leave", data={"form_key": form_key_on(browser.get("/").text)})
    assert "Sign in" in browser.get("/").text

    browser = enter(house)
    (newest, *_) = house.access.tokens(OPERATOR)
    for token in house.access.tokens(OPERATOR):
        if token.name == OPERATOR.name:
            house.access.revoke(OPERATOR, token.token)
    assert newest is not None
    assert browser.get("/v1/whoami").status_code == 401


@pytest.mark.parametrize("form_key", ["", "0" * 64, "another session's"])
def test_a_form_of_the_console_works_for_the_session_it_was_given_to(house: House, form_key: str) -> None:
    if form_key.startswith("another"):
        form_key = form_key_on(enter(house).get("/").text)
    browser = enter(house)
    answer = browser.post("/console/leave", data={"form_key": form_key}, follow_redirects=False)
    assert answer.status_code == 403
    assert browser.get("/v1/whoami").status_code == 200


@pytest.mark.parametrize("to", ["terminal", "file"])
def test_the_link_is_printed_to_a_terminal_alone(tmp_path: Path, to: str) -> None:
    """A terminal is read by who sits at it; a file that holds what `up` printed may be read by others."""
    ours, theirs = os.openpty() if to == "terminal" else os.pipe()
    env = {**os.environ, "BRIMFUL_DATA": str(tmp_path / "data")}
    words_ = [BRIMFUL, "up", "--port", "0", "--slots", "1"]
    server = subprocess.Popen(words_, env=env, stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    printed = ""
    with contextlib.closing(os.fdopen(ours, "rb", buffering=0)) as out:
        while words("server.banner_stop") not in printed:
            printed += out.read(1 << 16).decode()
        server.terminate()
        assert server.wait(PATIENCE_S) == 0
    assert ("ticket=brim_" in printed) is (to == "terminal")


def test_a_tenants_console_shows_that_tenant_alone(still: House) -> None:
    blue = enter(still, Principal(token="", name="bea", roles={"blue": "viewer"}))
    for path in ("/", "/console/live"):
        assert SECRET not in blue.get(path).text
        assert "red" not in blue.get(path).text.replace("red-team", "").replace("declared", "").replace(
            "shared", ""
        ).replace("measured", "").replace("bordered", "").replace("rendered", "")
    assert blue.get(f"/jobs/{still.job}").status_code == 404


# -- the first start -----------------------------------------------------------------------------------------


def test_the_first_start_makes_one_token_and_the_next_ones_use_it(house: House, tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = operator_token(house.access, path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert operator_token(house.access, path) == first
    assert first.role == "operator"


def test_a_token_that_others_could_read_is_revoked_and_replaced(house: House, tmp_path: Path) -> None:
    path = tmp_path / "token"
    operator_token(house.access, path)
    leaked = path.read_text()
    path.chmod(0o644)
    operator_token(house.access, path)
    assert path.read_text() != leaked
    assert house.access.look_up(leaked) is None


def test_a_known_token_is_good_for_a_while_when_the_database_does_not_answer(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = house.operator["authorization"].removeprefix("Bearer ")
    assert house.access.look_up(text)
    house.store.engine.dispose()
    monkeypatch.setattr(house.access._store, "token", _fails)
    assert house.access.look_up(text) is not None


def _fails(_name: str) -> None:
    raise Refused(verbatim("the database is gone"))


def test_an_operator_is_one_for_all_tenants(still: House) -> None:
    with refuses(BadInput, "server.operator_of_all"):
        still.access.issue(name="x", tenant="red", role="operator")


def test_guessing_ids_does_not_fill_memory(still: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brimful.server.auth.MAX_KNOWN", 10)
    for i in range(30):
        assert still.access.look_up(f"brim_{i:016x}_{'x' * 43}") is None
    assert len(still.access._known) <= 10
