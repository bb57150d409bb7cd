"""The file that says where people sign in and which roles their groups have here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from brimful.errors import BadInput, WorldFailed
from brimful.language import Sentence, os_words, say
from brimful.language.failures import os_errors_as

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ROLES = ("viewer", "submitter", "admin", "operator")
TENANT = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Members of this group have this role in this team."""

    group: str
    tenant: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    issuer: str
    client_id: str
    client_secret: str = ""  # empty: a public client, protected by PKCE alone
    name_claim: str = "email"
    groups_claim: str = "groups"
    teams: tuple[Team, ...] = ()

    def roles_of(self, groups: Collection[str]) -> dict[str, str]:
        """If several groups map to one team, the highest role counts."""
        found: dict[str, str] = {}
        for team in self.teams:
            if team.group in groups:
                found[team.tenant] = max(found.get(team.tenant, team.role), team.role, key=ROLES.index)
        return found


def is_private(address: str) -> bool:
    """Whether nobody on the way can read along."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK))


def read_oidc(path: Path) -> OidcSettings:
    try:
        with os_errors_as("language.cannot_read", path=path):
            given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _bad(path, say("language.verbatim", text=str(error))) from error
    secret = given.pop("client_secret_file", None)
    known = {each.name for each in fields(OidcSettings)} - {"client_secret", "teams"}
    teams = given.pop("teams", [])
    for name, value in given.items():
        if name not in known or not isinstance(value, str) or not value:
            raise _bad(path, say("adapters.identity_unknown_key", name=name))
    for name in ("issuer", "client_id"):
        if name not in given:
            raise _bad(path, say("adapters.identity_needs", name=name))
    if not is_private(given["issuer"]):
        raise _bad(path, say("adapters.identity_issuer_tls", issuer=given["issuer"]))
    return OidcSettings(
        **given,
        client_secret=_secret(path.parent / str(secret)) if secret else "",
        teams=tuple(_team(path, each) for each in (teams if isinstance(teams, list) else [teams])),
    )


def _team(path: Path, given: Any) -> Team:  # noqa: ANN401 - from a file
    if not isinstance(given, dict) or {*given} != {"group", "tenant", "role"}:
        raise _bad(path, say("adapters.identity_team"))
    group, tenant, role = (str(given[name]) for name in ("group", "tenant", "role"))
    if (
        not group
        or role not in ROLES
        or not TENANT.fullmatch(tenant)
        or (role == "operator") > (tenant == "*")
    ):
        raise _bad(path, say("adapters.identity_team"))
    return Team(group=group, tenant=tenant, role=role)


def _secret(path: Path) -> str:
    try:
        found = path.stat()
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = os_words(error) if isinstance(error, OSError) else error
        raise WorldFailed(say("language.cannot_read", path=path, error=why)) from error
    if found.st_mode & 0o077:
        raise BadInput(say("adapters.secret_readable", path=path), code="secret_readable")
    return text


def _bad(path: Path, why: Sentence) -> BadInput:
    return BadInput(say("adapters.bad_identity_file", path=path, why=why))
