"""Sign-in with an organisation's account, against a real provider that the test starts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from starlette.testclient import TestClient

from brimful.adapters.identity.oidc import Begun, Oidc
from brimful.adapters.identity.settings import OidcSettings, Team, read_oidc
from brimful.errors import BadInput, Refused, WorldFailed
from brimful.language import say
from brimful.server.app import make_app
from brimful.server.auth import SIGN_IN_S, Principal
from tests.builders import refuses
from tests.patience import PATIENCE_S
from tests.server.builders import bearer
from tests.server.test_auth import House, form_key_on

PEOPLE = {
    "1": {"email": "alice@example.org", "groups": ["gpu-vision", "gpu-nlp-leads", "staff"]},
    "2": {"email": "bob@example.org", "groups": ["staff"]},
    "3": {"email": "olga@example.org", "groups": ["gpu-ops"]},
    "4": {"email": "not verified@example.org", "email_verified": False, "groups": ["gpu-ops"]},
    "5": {"email": "", "groups": ["gpu-ops"]},
}
TEAMS = (
    Team(group="gpu-vision", tenant="red", role="viewer"),
    Team(group="gpu-nlp-leads", tenant="nlp", role="admin"),
    Team(group="gpu-ops", tenant="*", role="operator"),
)
CLIENT, SECRET = "brimful", "s: %&"


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    script = Path(__file__).with_name("oidc_provider.py")
    words = [sys.executable, str(script), json.dumps(PEOPLE)]
    provider = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert provider.stdout is not None
    yield provider.stdout.readline().strip()
    provider.terminate()
    provider.communicate(timeout=PATIENCE_S)


class Firm(House):
    """A server over TLS whose people sign in at the provider."""

    def __init__(self, folder: Path, issuer: str, teams: tuple[Team, ...] = TEAMS) -> None:
        super().__init__(folder)
        settings = OidcSettings(issuer=issuer, client_id=CLIENT, client_secret=SECRET, teams=teams)
        self.oidc = Oidc(settings)
        self.app = make_app(self.service, self.access, secure=True, oidc=self.oidc)

    def browser(self) -> TestClient:
        return TestClient(self.app, base_url="https://127.0.0.1:8642", follow_redirects=False)


@pytest.fixture
def firm(tmp_path: Path, issuer: str) -> Iterator[Firm]:
    firm = Firm(tmp_path, issuer)
    yield firm
    firm.close()


def at_provider(address: str, sub: str) -> str:
    """What the person does there: choose who to be. Gives the address that the browser is sent back to."""
    answer = httpx2.post(address, data={"sub": sub}, timeout=PATIENCE_S)
    assert answer.status_code == 302, answer.text
    return str(answer.headers["location"])


def sign_in(browser: TestClient, sub: str) -> Any:
    begun = browser.get("/console/sign-in/begin")
    assert begun.status_code == 303
    return browser.get(at_provider(begun.headers["location"], sub))


def test_somebody_signs_in_and_sees_the_teams_of_their_groups(firm: Firm) -> None:
    browser = firm.browser()
    assert "/console/sign-in/begin" in browser.get("/").text
    answer = sign_in(browser, "1")
    assert (answer.status_code, "alice@example.org" in answer.text) == (200, True)
    kept = [each.lower() for each in answer.headers.get_list("set-cookie")]
    (session,) = [each for each in kept if each.startswith("brimful_8642=")]
    assert all(word in session for word in ("httponly", "samesite=strict", "secure", f"max-age={SIGN_IN_S}"))
    who = browser.get("/v1/whoami").json()["data"]
    assert (who["name"], who["roles"]) == ("alice@example.org", {"red": "viewer", "nlp": "admin"})
    assert firm.job in browser.get("/").text
    assert browser.post(f"/v1/jobs/{firm.job}/cancel").status_code == 401  # a session only looks
    firm.access.close()
    deeds = firm.http.get("/v1/audit", headers=firm.operator).json()["data"]["deeds"]
    assert ("alice@example.org", "console.sign_in") in [(deed["name"], deed["verb"]) for deed in deeds]


def test_everything_asked_for_is_in_the_address_and_nothing_secret(firm: Firm) -> None:
    browser = firm.browser()
    begun = browser.get("/console/sign-in/begin")
    asked = parse_qs(urlsplit(begun.headers["location"]).query)
    assert asked["response_type"] == ["code"]
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["redirect_uri"] == ["https://127.0.0.1:8642/console/sign-in"]
    cookie = begun.headers["set-cookie"]
    state, nonce, verifier = cookie.partition("=")[2].partition(";")[0].split("~")
    assert (asked["state"], asked["nonce"]) == ([state], [nonce])
    assert verifier not in begun.headers["location"]
    assert "httponly" in cookie.lower()
    assert len({state, nonce, verifier}) == 3


@pytest.mark.parametrize("how", ["another state", "no cookie", "the code again", "denied", "another's code"])
def test_what_was_not_begun_here_ends_nowhere(firm: Firm, how: str) -> None:
    browser, other = firm.browser(), firm.browser()
    begun = browser.get("/console/sign-in/begin")
    back = at_provider(begun.headers["location"], "1")
    if how == "another state":
        back = back.replace("state=", "state=x")
    elif how == "no cookie":
        browser = other
    elif how == "the code again":
        kept = dict(browser.cookies)
        assert browser.get(back).status_code == 200
        browser = firm.browser()
        browser.cookies.update({name: value for name, value in kept.items() if name.endswith("sign_in")})
    elif how == "denied":
        back = (
            back.partition("?")[0]
            + f"?error=access_denied&state={parse_qs(urlsplit(back).query)['state'][0]}"
        )
    else:  # somebody slips in a code of theirs under our state: PKCE and nonce do not fit
        theirs = at_provider(other.get("/console/sign-in/begin").headers["location"], "3")
        ours = parse_qs(urlsplit(back).query)["state"][0]
        back = f"/console/sign-in?code={parse_qs(urlsplit(theirs).query)['code'][0]}&state={ours}"
    answer = browser.get(back)
    assert answer.status_code == 401
    assert not any(each.startswith("brimful_8642=brim") for each in answer.headers.get_list("set-cookie"))
    assert browser.get("/v1/whoami").status_code == 401


@pytest.mark.parametrize(
    ("sub", "code"), [("2", "server.no_team"), ("4", "no_name_claim"), ("5", "no_name_claim")]
)
def test_who_has_no_team_or_no_name_is_told_so(firm: Firm, sub: str, code: str) -> None:
    browser = firm.browser()
    answer = sign_in(browser, sub)
    assert answer.status_code == 401
    words = {"server.no_team": "groups has a team", "no_name_claim": "verified"}[code]
    assert words in answer.text
    assert browser.get("/v1/whoami").status_code == 401


def test_who_loses_a_group_loses_the_team_with_the_next_sign_in_tokens_too(
    tmp_path: Path, issuer: str
) -> None:
    firm = Firm(tmp_path, issuer)
    browser = firm.browser()
    sign_in(browser, "1")
    token = {"authorization": f"Bearer {make_token(browser, 'admin of nlp')}"}
    assert firm.http.get("/v1/whoami", headers=token).json()["data"]["roles"] == {"nlp": "admin"}
    firm.oidc.settings = replace(firm.oidc.settings, teams=TEAMS[:1])  # as if the group were gone
    sign_in(firm.browser(), "1")
    assert firm.http.get("/v1/whoami", headers=token).status_code == 401
    assert browser.get("/v1/whoami").json()["data"]["roles"] == {"red": "viewer"}
    firm.close()


def test_a_name_that_tokens_have_is_not_taken_over(firm: Firm) -> None:
    firm.access.issue(name="alice@example.org", tenant="blue", role="admin")
    answer = sign_in(firm.browser(), "1")
    assert (answer.status_code, "already" in answer.text) == (401, True)
    users = firm.http.get("/v1/users", headers=firm.operator).json()["data"]["users"]
    (alice,) = [user for user in users if user["user"] == "alice@example.org"]
    assert (alice["signs_in"], alice["roles"]) == (False, {"blue": "admin"})


# -- tokens of one's own -------------------------------------------------------------------------------------


def make_token(browser: TestClient, what: str, days: str = "30") -> str:
    page = browser.get("/console/tokens")
    assert page.headers["cache-control"] == "no-store"
    form = {"form_key": form_key_on(page.text), "what": what, "days": days}
    made = browser.post("/console/tokens", data=form).text
    return made.partition("BRIMFUL_TOKEN=")[2].partition("<")[0]


def test_who_signed_in_makes_a_token_for_one_team_and_revokes_it(firm: Firm) -> None:
    browser = firm.browser()
    sign_in(browser, "1")
    token = {"authorization": f"Bearer {make_token(browser, 'submitter of nlp')}"}
    who = firm.http.get("/v1/whoami", headers=token).json()["data"]
    assert (who["name"], who["roles"]) == ("alice@example.org", {"nlp": "submitter"})
    page = browser.get("/console/tokens").text
    form = {"form_key": form_key_on(page), "token": who["token"]}
    assert browser.post("/console/tokens/revoke", data=form).status_code == 200
    assert firm.http.get("/v1/whoami", headers=token).status_code == 401


@pytest.mark.parametrize(
    ("what", "days"),
    [
        ("admin of red", "30"),
        ("submitter of blue", "30"),
        ("operator of *", "30"),
        ("viewer of red", "91"),
        ("", "1"),
    ],
)
def test_nobody_makes_more_than_is_theirs(firm: Firm, what: str, days: str) -> None:
    browser = firm.browser()
    sign_in(browser, "1")
    assert make_token(browser, what, days) == ""


def test_an_operators_session_makes_no_token_at_all(firm: Firm) -> None:
    browser = firm.browser()
    sign_in(browser, "3")
    assert browser.get("/v1/whoami").json()["data"]["roles"] == {"*": "operator"}
    for what in ("operator of *", "viewer of *", "viewer of red", "admin of nlp"):
        assert make_token(browser, what) == ""


@pytest.mark.parametrize("path", ["/console/tokens", "/console/tokens/revoke"])
def test_a_form_without_its_key_or_its_session_makes_nothing(firm: Firm, path: str) -> None:
    browser = firm.browser()
    sign_in(browser, "1")
    alice = Principal(token="", name="alice@example.org", roles={"*": "operator"})
    before = len(firm.access.tokens_of(alice))
    form = {"what": "viewer of red", "days": "1"}
    key = form_key_on(browser.get("/console/tokens").text)
    assert browser.post(path, data=form).status_code == 403
    assert firm.browser().post(path, data=form | {"form_key": key}).status_code == 403
    bearing = firm.browser().post(path, data=form | {"form_key": key}, headers=firm.operator)
    assert bearing.status_code == 403
    assert len(firm.access.tokens_of(alice)) == before


def test_a_session_that_a_token_opened_makes_none(firm: Firm) -> None:
    """Else it could make one that outlives the token."""
    text = bearer(firm.access, "admin", "nlp", ttl_s=60)["authorization"].removeprefix("Bearer ")
    browser = firm.browser()
    assert browser.post("/console/enter", data={"token": text}).status_code == 303
    assert make_token(browser, "viewer of nlp") == ""


def test_without_tls_there_is_no_such_page(firm: Firm) -> None:
    plain = TestClient(make_app(firm.service, firm.access, oidc=firm.oidc), base_url="http://127.0.0.1:8642")
    assert plain.get("/console/tokens").status_code == 404


# -- what a provider may get wrong ---------------------------------------------------------------------------


def test_a_statement_for_somebody_else_or_of_another_time_is_refused(issuer: str) -> None:
    """Each signed by the real provider, and each wrong in one thing."""
    back = "https://127.0.0.1:8642/console/sign-in"

    def finished(oidc: Oidc, begun: Begun, code: str) -> Any:
        return oidc.finish(begun, code=code, back=back)

    def a_code(oidc: Oidc, begun: Begun) -> str:
        location = at_provider(oidc.begin(begun, back=back), "1")
        return parse_qs(urlsplit(location).query)["code"][0]

    settings = OidcSettings(issuer=issuer, client_id=CLIENT, client_secret=SECRET, teams=TEAMS)
    good = Oidc(settings)
    begun = Begun.new()
    assert finished(good, begun, a_code(good, begun)).name == "alice@example.org"

    late = Oidc(settings, clock=lambda: 2e9)
    code = a_code(late, begun)
    with refuses(Refused, "adapters.bad_id_token"):
        finished(late, begun, code)
    other_nonce = Begun(state=begun.state, nonce="another", verifier=begun.verifier)
    code = a_code(good, begun)
    with refuses(Refused, "adapters.bad_id_token"):
        finished(good, other_nonce, code)
    other_verifier = Begun(state=begun.state, nonce=begun.nonce, verifier="v" * 43)
    code = a_code(good, begun)
    with refuses(WorldFailed, "adapters.provider_failed"):
        finished(good, other_verifier, code)
    for name, value in (("client_id", "another"), ("issuer", f"{issuer}/")):
        code = a_code(good, begun)
        answer = good._ask(  # as its own would be
            f"{issuer}/oauth2/token",
            {"grant_type": "authorization_code", "code": code, "redirect_uri": back}
            | {"code_verifier": begun.verifier, "client_id": CLIENT, "client_secret": SECRET},
        )
        reader = Oidc(replace(settings, **{name: value}))  # type: ignore[arg-type]
        reader._known, reader._keys = good._known, good._keys
        with refuses(Refused, "adapters.bad_id_token"):
            reader._claims(answer["id_token"], begun, answer["access_token"])
        body, _, signature = answer["id_token"].rpartition(".")
        for forged in (f"{body}.", f"{body}.{signature[:-4]}AAAA", "", "a.b.c"):
            with refuses(Refused, "adapters.bad_id_token"):
                good._claims(forged, begun, answer["access_token"])


def test_a_provider_that_calls_itself_another_is_refused(issuer: str) -> None:
    named = issuer.replace("127.0.0.1", "localhost")
    oidc = Oidc(OidcSettings(issuer=issuer + "/", client_id=CLIENT))
    with refuses(WorldFailed, "adapters.other_issuer"):
        oidc.begin(Begun.new(), back="https://x/")
    assert named != issuer


def test_a_provider_that_is_gone_is_told_on_the_page(firm: Firm) -> None:
    firm.oidc.settings = OidcSettings(issuer="http://127.0.0.1:1", client_id=CLIENT)
    answer = firm.browser().get("/console/sign-in/begin")
    assert (answer.status_code, "did not answer" in answer.text) == (401, True)


def test_a_provider_that_does_not_answer_keeps_nobody_waiting_who_has_a_token(
    firm: Firm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may begin to sign in, or come back with a code that is none: no token is needed for either."""
    silent, asked = threading.Event(), threading.Semaphore(0)

    def waits(*_asked: object, **_more: object) -> str:
        asked.release()
        assert silent.wait(PATIENCE_S)
        raise WorldFailed(say("adapters.provider_failed", provider="x", why="x"))

    monkeypatch.setattr(firm.oidc, "begin", waits)
    monkeypatch.setattr(firm.oidc, "finish", waits)
    headers = {"cookie": "brimful_8642_sign_in=a~b~c"}
    with firm.browser() as browser, ThreadPoolExecutor(61) as people:
        crowd = [people.submit(browser.get, "/console/sign-in/begin") for _ in range(30)]
        back = "/console/sign-in?code=x&state=a"
        crowd += [people.submit(browser.get, back, headers=headers) for _ in range(30)]
        assert asked.acquire(timeout=PATIENCE_S)
        try:
            works = people.submit(browser.get, "/v1/jobs", headers=firm.operator)
            assert works.result(PATIENCE_S).status_code == 200
        finally:
            silent.set()
        assert {each.result(PATIENCE_S).status_code for each in crowd} == {401}


# -- the file ------------------------------------------------------------------------------------------------

GOOD = """issuer = "https://login.example.org"
client_id = "brimful"
client_secret_file = "secret"

[[teams]]
group = "gpu-vision"
tenant = "vision"
role = "submitter"
"""


def test_a_file_says_where_people_sign_in(tmp_path: Path) -> None:
    path, secret = tmp_path / "identity.toml", tmp_path / "secret"
    path.write_text(GOOD)
    secret.write_text("swordfish\n")
    secret.chmod(0o600)
    found = read_oidc(path)
    assert found.client_secret == "swordfish"
    assert found.roles_of({"gpu-vision", "x"}) == {"vision": "submitter"}
    secret.chmod(0o644)
    with refuses(BadInput, "adapters.secret_readable"):
        read_oidc(path)
    secret.unlink()
    with refuses(WorldFailed, "language.cannot_read"):
        read_oidc(path)


@pytest.mark.parametrize(
    ("change", "to"),
    [
        ("https://", "http://"),
        ('client_id = "brimful"\n', ""),
        ("client_id", "client_ID"),
        ('role = "submitter"', 'role = "boss"'),
        ('role = "submitter"', 'role = "operator"'),
        ('tenant = "vision"', 'tenant = "a b"'),
        ('group = "gpu-vision"\n', ""),
        ("[[teams]]", "[teams"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, change: str, to: str) -> None:
    path = tmp_path / "identity.toml"
    path.write_text(GOOD.replace('client_secret_file = "secret"\n', "").replace(change, to))
    with refuses(BadInput, "adapters.bad_identity_file", path):
        read_oidc(path)
