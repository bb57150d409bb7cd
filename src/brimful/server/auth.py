"""Who is calling, and what they may do.

A user has a role in each of its teams (a tenant is a team); `*` is the organisation, which means all teams. A
token belongs to a user, for one team, and may do what both its own role and its user's role allow: a user who
leaves a team leaves it with every token at once.

A token reads `brim_ID_SECRET`. The database has the ID and the SHA-256 of the secret, which is 32 random
bytes: a slow hash would protect nothing more.

    viewer     sees its tenant's jobs, logs, events and money
    submitter  also submits, and cancels, holds, releases and moves its own jobs
    admin      also does so with all of its tenant's jobs, and makes and revokes its tenant's tokens
    operator   all tenants; also drains nodes, reads the whole audit log and the metrics
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from brimful.adapters.identity.store import AccessStore, Deed, Token, User
from brimful.client.proof import proof_of
from brimful.errors import BadInput, BrimfulError, NotFound, Refused
from brimful.language import Quoted, Seconds, Sentence, say

log = logging.getLogger("brimful")

ROLES = ("viewer", "submitter", "admin", "operator")
Kind = Literal["token", "session"]  # bearer token or browser cookie, never interchangeable
EVERYBODY = "*"
TENANT = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
FRESH_S = 2.0  # how long a revoked token may still work on another server
STALE_S = 60.0  # how long a known token is valid while the database does not answer
SESSION_S = 7 * 86400
SIGN_IN_S = 12 * 3600  # of a session from an organisation account: then its groups are read again
TICKET_S = 3600
AUDIT_S = 0.2  # minimum time between writes of the audit log
MAX_KNOWN = 10_000
MAX_DEEDS = 10_000  # waiting to be written; some MB, an hour of a busy server whose database hangs
NOT_KNOWN: tuple[float, Token | None, Mapping[str, str]] = (-1e9, None, {})
_SHAPE = re.compile(r"brim_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who is calling."""

    token: str
    name: str
    roles: Mapping[str, str]  # by tenant; never empty

    def may(self, role: str, tenant: str | None = None) -> bool:
        """For this tenant; if none is given, for any."""
        return any(
            ROLES.index(mine) >= ROLES.index(role)
            for where, mine in self.roles.items()
            if tenant is None or where in (EVERYBODY, tenant)
        )

    def sees(self, tenant: str) -> bool:
        return tenant in self.roles or EVERYBODY in self.roles

    @property
    def sees_all(self) -> bool:
        return EVERYBODY in self.roles

    def tenants(self, role: str = "viewer") -> frozenset[str] | None:
        """Tenants where it has this role; None: all of them."""
        if self.may(role, EVERYBODY):
            return None
        return frozenset(tenant for tenant in self.roles if self.may(role, tenant))

    @property
    def tenant(self) -> str:
        """Its team; of several the first. `*`: all."""
        return EVERYBODY if self.sees_all else min(self.roles)

    @property
    def home(self) -> str:
        """The default team for what it submits."""
        return "default" if self.sees_all else self.tenant

    @property
    def role(self) -> str:
        """Its highest role anywhere."""
        return max(self.roles.values(), key=ROLES.index)


def unauthorized(problem: Sentence | None = None) -> Refused:
    # The same words for a missing, wrong, expired or revoked one: a stranger learns nothing.
    return Refused(
        problem or say("server.unauthorized"), hint=say("server.hint_unauthorized"), code="unauthorized"
    )


def forbidden(who: Principal, role: str) -> Refused:
    """Most callers who get this may not create tokens: the hint says who may."""
    tenant = EVERYBODY if role == "operator" else who.tenant
    made = f"brimful admin tokens add {who.name} --tenant '{tenant}' --role {role}"
    giver = "operator" if role == "operator" else "admin"
    hint = say(f"server.hint_role_from_{giver}", command=made)
    return Refused(say("server.needs_role", role=role, yours=who.role), hint=hint, code="forbidden")


def other_team(who: Principal, tenant: str) -> Refused:
    """No role in its own team would be enough."""
    said = say("server.other_team", yours=", ".join(sorted(who.roles)), tenant=Quoted(tenant))
    return Refused(said, code="forbidden")


class Access:
    """Verifies, issues and revokes tokens, and keeps the audit log."""

    def __init__(self, store: AccessStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._known: dict[str, tuple[float, Token | None, Mapping[str, str]]] = {}
        self._deeds: queue.Queue[Deed | None] = queue.Queue(MAX_DEEDS)
        self._lost_deeds = 0
        self._writer: threading.Thread | None = None
        self._writing = threading.Lock()
        self._unknown = secrets.token_hex(32)

    def warm_up(self) -> None:
        """Compile the statements that every first request with a token needs."""
        with contextlib.suppress(BrimfulError):  # the database does not answer: whoever asks is told
            self._store.token("")
            self._store.user("")

    # -- coming in ---------------------------------------------------------------------------------------

    def known(self, text: str, kind: Kind = "token") -> tuple[Principal | None, bool]:
        """Who this token belongs to, and whether that is fresh enough to use; does not touch the database."""
        match = _SHAPE.fullmatch(text)
        if match is None:
            return None, True
        at, token, roles = self._known.get(match[1], NOT_KNOWN)
        return self._principal(token, roles, match[2], kind), time.monotonic() - at < FRESH_S

    def look_up(self, text: str, kind: Kind = "token") -> Principal | None:
        """The same, from the database."""
        match = _SHAPE.fullmatch(text)
        if match is None:
            return None
        at, token, roles = self._known.get(match[1], NOT_KNOWN)
        try:
            token = self._store.token(match[1])
            user = None if token is None else self._store.user(token.name)
            roles = {} if user is None else user.roles
        except BrimfulError:
            if time.monotonic() - at > STALE_S:
                raise
            return self._principal(token, roles, match[2], kind)
        if len(self._known) >= MAX_KNOWN:  # someone is guessing
            self._known.clear()
        self._known[match[1]] = (time.monotonic(), token, roles)
        return self._principal(token, roles, match[2], kind)

    def _principal(
        self, token: Token | None, roles: Mapping[str, str], secret: str, kind: Kind
    ) -> Principal | None:
        if token is None or token.kind != kind or not self._is_valid_with(token, secret):
            return None
        allowed = _limited_to(token, roles)
        # A browser's session acts in the name of the token it was created with.
        return (
            Principal(token=token.parent or token.token, name=token.name, roles=allowed) if allowed else None
        )

    def same_user(self, session: Principal, text: str) -> Principal:
        """The session's user, confirmed by a token, which a thief of the cookie does not have."""
        shown = self.look_up(text, "token")
        if shown is None or shown.name != session.name:
            raise Refused(say("server.token_again"), code="forbidden")
        return shown

    def proof(self, name: str, nonce: str) -> str:
        """Proof that we have this token, for a client that has it too; random digits if unknown."""
        token = self._store.token(name)
        return proof_of(self._unknown + name if token is None else token.digest, nonce)

    # -- making and taking back ------------------------------------------------------------------------

    def issue(
        self,
        *,
        name: str,
        tenant: str,
        role: str,
        ttl_s: int | None = None,
        kind: str = "token",
        parent: str = "",
    ) -> tuple[str, Token]:
        """A new token: its text, which cannot be read again, and its record."""
        if role == "operator" and tenant != EVERYBODY:
            raise BadInput(say("server.operator_of_all", tenant=Quoted(EVERYBODY)))
        secret, now_s = secrets.token_urlsafe(32), int(self._clock())
        token = Token(
            token=secrets.token_hex(8),
            digest=_digest(secret),
            kind=kind,
            name=name,
            tenant=tenant,
            role=role,
            parent=parent,
            created_s=now_s,
            expires_s=None if ttl_s is None else now_s + ttl_s,
            revoked_s=None,
        )
        self._store.add(token, roles=self._raised_roles(name, tenant, role) if kind == "token" else None)
        return f"brim_{token.token}_{secret}", token

    def _raised_roles(self, name: str, tenant: str, role: str) -> Mapping[str, str]:
        """The new token's user joins that team with at least its role."""
        user = self._store.user(name)
        had = None if user is None else user.roles.get(tenant)
        return {tenant: role if had is None else max(had, role, key=ROLES.index)}

    def issue_for(
        self,
        who: Principal,
        *,
        name: str,
        tenant: str,
        role: str,
        ttl_s: int | None,
        may_be_shorter: bool = False,
    ) -> tuple[str, Token]:
        """Created by a caller, who can give no more rights than it has.

        A user who signs in elsewhere creates its own tokens: only an operator can create one in its name.
        """
        user = self._store.user(name)
        if user is not None and user.identity and name != who.name and not who.may("operator"):
            raise Refused(say("server.signs_in_itself", user=Quoted(name[:100])), code="forbidden")
        if not who.may(role, tenant):
            raise Refused(
                say(
                    "server.token_beyond_own",
                    tenant=who.tenant,
                    role=who.role,
                    other_tenant=tenant,
                    other_role=role,
                ),
                code="forbidden",
            )
        own = self._store.token(who.token)
        left_s = None if own is None or own.expires_s is None else own.expires_s - int(self._clock())
        if left_s is not None and ttl_s is not None and may_be_shorter:
            ttl_s = min(ttl_s, left_s)
        if left_s is not None and (ttl_s is None or ttl_s > left_s):
            raise Refused(
                say(
                    "server.token_outlives",
                    left=Seconds(left_s),
                    lifetime=f"{left_s // 3600}h" if left_s >= 3600 else f"{left_s}s",
                ),
                code="forbidden",
            )
        return self.issue(name=name, tenant=tenant, role=role, ttl_s=ttl_s)

    def tokens_of(self, who: Principal) -> list[Token]:
        """Its own, for teams it belongs to: any team's admin may create a token in its name."""
        return [token for token in self._store.tokens_of(who.name) if who.sees(token.tenant)]

    def issue_own(self, who: Principal, tenant: str, role: str, ttl_s: int) -> str:
        """A user's own token for one team, created in a browser: never an operator's.

        Only after a real sign-in. A session opened by a token could create a token that outlives it.
        """
        own = self._store.token(who.token)
        signed_in = own is not None and own.kind == "session"
        of_team = tenant != EVERYBODY and tenant in who.roles
        if not signed_in or not of_team or role not in ROLES[:-1] or not who.may(role, tenant):
            raise forbidden(who, "operator")
        return self.issue(name=who.name, tenant=tenant, role=role, ttl_s=ttl_s)[0]

    def revoke_own(self, who: Principal, name: str) -> None:
        token = self._store.token(name)
        mine = token is not None and token.name == who.name and who.sees(token.tenant)
        if token is None or token.kind != "token" or not mine:
            raise NotFound(say("server.no_token", name=Quoted(name[:40])))
        self._store.revoke(name, at_s=int(self._clock()))
        self._known.clear()

    def revoke(self, who: Principal, name: str) -> Token:
        token = self._store.token(name)
        mine = token is not None and (token.name == who.name or who.may("admin", token.tenant))
        if token is None or token.kind != "token" or not mine or not who.may(token.role, token.tenant):
            raise NotFound(say("server.no_token", name=Quoted(name[:40])))
        self._store.revoke(name, at_s=int(self._clock()))
        self._known.clear()  # its sessions too
        found = self._store.token(name)
        assert found is not None
        return found

    def tokens(self, who: Principal) -> list[Token]:
        return list(self._store.tokens(who.tenants("admin")))

    # -- users -----------------------------------------------------------------------------------------

    def users(self, who: Principal) -> list[User]:
        """Users of the teams that the caller administers, with their roles there."""
        mine = who.tenants("admin")
        found = self._store.users(mine)
        if mine is None:
            return found
        return [
            replace(user, roles={t: role for t, role in user.roles.items() if t in mine}) for user in found
        ]

    def set_role(self, who: Principal, name: str, tenant: str, role: str | None) -> User:
        """Set a user's role in a team; None: it leaves, and its tokens for the team stop working."""
        user = self._store.user(name)
        had = None if user is None else user.roles.get(tenant)
        wanted = role or had
        if wanted is None:
            raise NotFound(say("server.no_member", user=Quoted(name[:100]), tenant=Quoted(tenant)))
        if (role == "operator") > (tenant == EVERYBODY):
            raise BadInput(say("server.operator_of_all", tenant=Quoted(EVERYBODY)))
        for each in {wanted, had or wanted}:
            if not who.may("admin", tenant) or not who.may(each, tenant):
                raise forbidden(who, "operator")
        self._store.set_role(name, tenant, role, at_s=int(self._clock()))
        self._known.clear()
        (found,) = [each for each in self.users(who) if each.user == name] or [
            User(user=name, identity=None, created_s=int(self._clock()), roles={})
        ]
        return found

    def left_behind(self, tokens: Sequence[Token]) -> Collection[str]:
        """Those that do not work because their user has left the team."""
        roles = {user.user: user.roles for user in self._store.users()}
        return {token.token for token in tokens if not _limited_to(token, roles.get(token.name, {}))}

    # -- browsers --------------------------------------------------------------------------------------

    def ticket(self, who: Principal) -> str:
        """A secret that becomes a browser's session, once, within the hour."""
        now_s = int(self._clock())
        self._store.forget(before_s=now_s - SESSION_S)
        own = self._store.token(who.token)
        tenant, role = (who.tenant, who.role) if own is None else (own.tenant, own.role)
        text, _ = self.issue(
            name=who.name, tenant=tenant, role=role, ttl_s=TICKET_S, kind="ticket", parent=who.token
        )
        return text

    def ticket_for(self, text: str) -> str | None:
        """Who the ticket would sign in, without using it up; None if it is not valid."""
        token = self._token(text)
        return token.name if token is not None and token.kind == "ticket" else None

    def session(self, text: str) -> str | None:
        """A session for a ticket, which is used up, or for a token; None if it is neither."""
        token, now_s = self._token(text), int(self._clock())
        if token is None or token.kind == "session":
            return None
        # If two clients bring the same ticket at once, the database lets one in.
        if token.kind == "ticket" and not self._store.revoke(token.token, at_s=now_s):
            return None
        made_with = self._store.token(token.parent) if token.parent else token
        if made_with is None or not self._is_good(made_with):
            return None
        left_s = SESSION_S if made_with.expires_s is None else min(SESSION_S, made_with.expires_s - now_s)
        session, made = self.issue(
            name=token.name,
            tenant=token.tenant,
            role=token.role,
            ttl_s=left_s,
            kind="session",
            parent=made_with.token,
        )
        # If its token was revoked since we looked, that missed this session; so we check again.
        still = self._store.token(made_with.token)
        if still is None or not self._is_good(still):
            self._store.revoke(made.token, at_s=now_s)
            return None
        return session

    def sign_in(self, identity: str, name: str, roles: Mapping[str, str]) -> str:
        """A session for a user who signed in elsewhere, with exactly these roles from now on."""
        known = self._store.user_of(identity)
        if known is None and self._store.user(name) is not None:
            raise Refused(say("server.name_taken", user=Quoted(name)), code="sign_in")
        user = known.user if known else name
        if known or roles:
            now_s = int(self._clock())
            self._store.sign_in(User(user=user, identity=identity, created_s=now_s, roles=roles))
            self._known.clear()
        if not roles:
            raise Refused(say("server.no_team", user=Quoted(user)), code="sign_in")
        text, token = self.issue(name=user, tenant="", role="viewer", ttl_s=SIGN_IN_S, kind="session")
        self.note(Principal(token=token.token, name=user, roles=roles), "console.sign_in", identity, "ok")
        return text

    def end_session(self, text: str) -> None:
        token = self._token(text)
        if token is not None and token.kind == "session":
            self._store.revoke(token.token, at_s=int(self._clock()))
            self._known.pop(token.token, None)

    def _token(self, text: str) -> Token | None:
        """The valid one with this text, of any kind."""
        match = _SHAPE.fullmatch(text)
        token = self._store.token(match[1]) if match else None
        return token if match and token and self._is_valid_with(token, match[2]) else None

    def _is_valid_with(self, token: Token, secret: str) -> bool:
        return self._is_good(token) and secrets.compare_digest(_digest(secret), token.digest)

    def _is_good(self, token: Token) -> bool:
        return token.revoked_s is None and (token.expires_s is None or token.expires_s > self._clock())

    # -- what was done -----------------------------------------------------------------------------------

    def note(self, who: Principal | None, verb: str, target: str, outcome: str) -> None:
        """A line for the audit log, written shortly after: the caller does not wait."""
        deed = Deed(
            at_s=int(self._clock()),
            token=who.token if who else "",
            name=who.name if who else "",
            tenant=who.tenant if who else "",
            verb=verb[:40],
            target=target[:200],
            outcome=outcome[:40],
        )
        with self._writing:
            if self._writer is None or not self._writer.is_alive():
                self._writer = threading.Thread(target=self._write, name="audit", daemon=True)
                self._writer.start()
        try:
            self._deeds.put_nowait(deed)
        except queue.Full:  # the database hangs; the action is done, so count the lost line
            with self._writing:
                self._lost_deeds += 1

    def deeds(self, who: Principal, *, before: int | None, limit: int) -> list[dict[str, object]]:
        return self._store.deeds(who.tenants("admin"), before=before, limit=limit)

    def close(self) -> None:
        """Write what is still queued."""
        if self._writer is not None and self._writer.is_alive():
            with contextlib.suppress(queue.Full):
                self._deeds.put(None, timeout=10)
            self._writer.join(timeout=10)

    def _write(self) -> None:
        while True:
            first = self._deeds.get()
            if first is None:
                return
            deeds: list[Deed] = [first]
            done = False
            while not self._deeds.empty() and len(deeds) < 1000 and not done:
                more = self._deeds.get()
                done = more is None
                if more is not None:
                    deeds.append(more)
            with self._writing:
                lost, self._lost_deeds = self._lost_deeds, 0
            if lost:
                deeds.append(_lost_line(lost, at_s=int(self._clock())))
            try:
                self._store.note(deeds)
            except BrimfulError as error:
                with self._writing:
                    self._lost_deeds += lost + len(deeds) - bool(lost)
                log.error("%d lines of the audit log are lost: %s", len(deeds), error.problem)  # noqa: TRY400
            if done:
                return
            time.sleep(AUDIT_S)  # lines that arrive meanwhile share one transaction


def _limited_to(token: Token, roles: Mapping[str, str]) -> Mapping[str, str]:
    """The user's rights, limited to the token's."""
    if not token.tenant:
        return roles
    mine = [roles[where] for where in (token.tenant, EVERYBODY) if where in roles]
    if not mine:
        return {}
    return {token.tenant: min(token.role, max(mine, key=ROLES.index), key=ROLES.index)}


def _lost_line(lines: int, *, at_s: int) -> Deed:
    """The log reports its own gaps."""
    return Deed(
        at_s=at_s, token="", name="", tenant="", verb="audit.lost", target=f"{lines} lines", outcome="lost"
    )


def form_key(session: str) -> str:
    """Sent by console forms along with the cookie: no other site's page can know it."""
    return hmac.digest(session.encode(), b"form", "sha256").hex()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
