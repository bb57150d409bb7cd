"""Sign-in with the organisation's account: OpenID Connect, code flow with PKCE, state and nonce.

Source: OpenID Connect Core 1.0 (section 3.1), Discovery 1.0, RFC 7636. authlib checks the claims and joserfc
the signature; the three plain requests are made here. Issuer and subject identify a user, because a name may
change.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from brimful.adapters.identity.settings import OidcSettings, is_private
from brimful.errors import Refused, WorldFailed
from brimful.language import Quoted, say

TIMEOUT_S = 10
MAX_ANSWER_BYTES = 1 << 20
KEPT_S = 3600.0  # for the provider's metadata and keys
KEYS_AGAIN_S = 60.0  # before keys are fetched again for a token that names an unknown one
LEEWAY_S = 60
SCOPE = "openid profile email"
# Signatures that only the provider can make: not `none`, and none keyed with our own secret.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
NAME = re.compile(r"[\w.:+@-][\w .:+@-]{0,98}[\w.:+@-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A sign-in in progress: stored by the browser, and never in a page's URL."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def new(cls) -> Begun:
        return cls(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(64),
        )

    def as_text(self) -> str:
        return f"{self.state}~{self.nonce}~{self.verifier}"

    @classmethod
    def from_text(cls, text: str) -> Begun | None:
        parts = text.split("~")
        if len(parts) != 3 or not all(parts) or len(text) > 500:
            return None
        return cls(state=parts[0], nonce=parts[1], verifier=parts[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Who signed in, and the roles its groups give here."""

    identity: str
    name: str
    roles: Mapping[str, str]  # by tenant


class _StaysHere(HTTPRedirectHandler):
    def redirect_request(self, *_asked: object) -> None:
        return None


class Oidc:
    """One provider."""

    def __init__(self, settings: OidcSettings, *, clock: Callable[[], float] = time.time) -> None:
        self.settings, self._clock = settings, clock
        self._opener = build_opener(_StaysHere())
        self._lock = threading.Lock()
        self._known: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, dict[str, Any]] | None = None

    @property
    def provider(self) -> str:
        """The name people know it by."""
        return urlsplit(self.settings.issuer).netloc

    def begin(self, begun: Begun, *, back: str) -> str:
        """The URL to send the browser to; it returns to the given address."""
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": back,
            "scope": SCOPE,
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": create_s256_code_challenge(begun.verifier),
            "code_challenge_method": "S256",
        }
        address = str(self._metadata()["authorization_endpoint"])
        return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(asked)}"

    def finish(self, begun: Begun, *, code: str, back: str) -> Person:
        """Exchange the code for a signed ID token, and check every part of it."""
        settings, about = self.settings, self._metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": back,
            "code_verifier": begun.verifier,
        }
        headers = {}
        methods = about.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        if settings.client_secret and "client_secret_basic" in methods:
            both = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(both.encode()).decode()}"
        else:
            form |= {"client_id": settings.client_id}
            form |= {"client_secret": settings.client_secret} if settings.client_secret else {}
        answer = self._ask(str(about["token_endpoint"]), form, headers)
        claims = self._claims(str(answer.get("id_token", "")), begun, str(answer.get("access_token", "")))
        return self._person(claims)

    def _claims(self, id_token: str, begun: Begun, access_token: str) -> Mapping[str, Any]:
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        settings = self.settings
        try:
            try:
                token = jwt.decode(id_token, KeySet.import_key_set(self._key_set()), algorithms=ALGORITHMS)
            except (JoseError, ValueError):  # it may have new keys by now
                keys = self._key_set(again=True)
                token = jwt.decode(id_token, KeySet.import_key_set(keys), algorithms=ALGORITHMS)
            claims = CodeIDToken(
                token.claims,
                token.header,
                options={
                    "iss": {"essential": True, "value": settings.issuer},
                    "aud": {"essential": True, "value": settings.client_id},
                },
                params={"nonce": begun.nonce, "client_id": settings.client_id, "access_token": access_token},
            )
            claims.validate(now=int(self._clock()), leeway=LEEWAY_S)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise Refused(
                say("adapters.bad_id_token", provider=self.provider, why=error), code="sign_in"
            ) from error
        return dict(claims)

    def _person(self, claims: Mapping[str, Any]) -> Person:
        settings = self.settings
        name = str(claims.get(settings.name_claim, "")).strip()
        if not NAME.fullmatch(name) or (
            settings.name_claim == "email" and claims.get("email_verified") is False
        ):
            said = say("adapters.no_name_claim", provider=self.provider, claim=settings.name_claim)
            raise Refused(said, code="sign_in")
        given = claims.get(settings.groups_claim, [])
        groups = {given} if isinstance(given, str) else {each for each in given if isinstance(each, str)}
        return Person(
            identity=f"{claims['iss']} {claims['sub']}"[:400],
            name=name,
            roles=settings.roles_of(groups),
        )

    # -- requests --------------------------------------------------------------------------------------

    def _metadata(self) -> dict[str, Any]:
        with self._lock:
            now = time.monotonic()
            if self._known is None or now - self._known[0] > KEPT_S:
                found = self._ask(f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration")
                if found.get("issuer") != self.settings.issuer:
                    named = Quoted(str(found.get("issuer"))[:200])
                    said = say("adapters.other_issuer", issuer=self.settings.issuer, named=named)
                    raise WorldFailed(said, code="sign_in")
                for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                    if not is_private(str(found.get(name, ""))):
                        said = say("adapters.provider_without_tls", provider=self.provider, name=name)
                        raise WorldFailed(said, code="sign_in")
                self._known = (now, found)
            return self._known[1]

    def _key_set(self, *, again: bool = False) -> Any:  # noqa: ANN401 - JSON
        address = str(self._metadata()["jwks_uri"])
        with self._lock:
            now = time.monotonic()
            age_s = None if self._keys is None else now - self._keys[0]
            if self._keys is None or age_s is None or age_s > (KEYS_AGAIN_S if again else KEPT_S):
                self._keys = (now, self._ask(address))
            return self._keys[1]

    def _ask(
        self, address: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        body = None if form is None else urlencode(form).encode()
        asked = Request(address, data=body, headers={"accept": "application/json", **(headers or {})})  # noqa: S310
        try:
            with self._opener.open(asked, timeout=TIMEOUT_S) as answer:
                found = json.loads(answer.read(MAX_ANSWER_BYTES))
            if not isinstance(found, dict):
                raise ValueError("not an object")  # noqa: TRY004 - reported like any other nonsense
        except (URLError, OSError, ValueError) as error:
            if isinstance(error, HTTPError):
                error.close()
            # Without the response, which may contain a code or a token.
            why = getattr(error, "reason", None) or type(error).__name__
            raise WorldFailed(
                say("adapters.provider_failed", provider=self.provider, why=why), code="sign_in"
            ) from error
        return found
