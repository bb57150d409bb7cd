"""brimful's settings: one frozen object, read once.

Light on purpose: the command line reads it to find a running server without loading one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from brimful.adapters.files import has_identity
from brimful.adapters.sites import Providers, Site, read_providers, read_sites_file
from brimful.errors import BadInput
from brimful.language import Quoted, Sentence, say
from brimful.scheduler.policies import CANDIDATES, DEFAULT, Policy, read_policy
from brimful.units import integer_from_text, microusd_from_usd

SERVER_FILE, LOCK_FILE = "server.json", "server.lock"  # in a data folder
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Each can be set by an environment variable BRIMFUL_<NAME> or, for `brimful up`, by its flag.

    Their descriptions: `help.up_<name>` of the catalogs.
    """

    data: str = ""
    host: str = "127.0.0.1"
    port: int = 8642
    names: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    log_format: str = "text"
    database: str = ""
    slots: int = 0
    gpu: str = ""
    sites: str = ""
    engines: str = ""
    job_users: str = ""
    job_memory_mib: int = 0
    jobs_share_my_user: bool = False
    log_mib: int = 64
    usd_per_hour: str = "0.10"
    tick_s: int = 1
    policy: str = DEFAULT
    grace_s: int | None = None  # None: the policy's own
    min_run_s: int | None = None
    market: str = ""
    notice_s: int = 300
    market_period_s: int = 120
    market_wait_s: int = 14400
    reserve: str = ""
    queues: str = ""
    identity: str = ""
    smtp: str = ""
    smtp_from: str = ""
    smtp_user: str = ""
    smtp_password_file: str = ""
    notify_hosts: str = ""
    keep: str = ""
    idle: str = "*=10m"
    backup_folder: str = ""
    backup_hours: int = 24
    backups_kept: int = 7
    max_queued: int = 10_000
    open_fit: bool = False
    rehearse_policies: str = " ".join(CANDIDATES)
    rehearse_cpu_percent: int = 5
    rehearse_adopt: bool = False

    @property
    def hosts(self) -> frozenset[str]:
        """Host names a request may use for this server."""
        named = {name.strip() for name in self.names.split(",") if name.strip()}
        return frozenset({*LOOPBACK, self.host, *named} - {"0.0.0.0", "::"})  # noqa: S104 - excluded

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"

    @property
    def folder(self) -> Path:
        return Path(self.data)

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.folder / 'brimful.db'}"

    @property
    def engines_folder(self) -> Path:
        return Path(self.engines) if self.engines else self.folder

    @property
    def chosen_policy(self) -> Policy:
        """Explicit settings override the policy's own."""
        beside = {"grace_s": self.grace_s, "min_run_s": self.min_run_s}
        return read_policy(self.policy, {name: value for name, value in beside.items() if value is not None})

    @property
    def candidates(self) -> tuple[str, ...]:
        """The policies that the server's own past is rehearsed with."""
        return read_candidates(self.rehearse_policies)

    @property
    def declared_sites(self) -> list[Site]:
        return read_sites(self.sites) if self.sites else []

    @property
    def declared_providers(self) -> Providers:
        return read_providers(Path(self.sites)) if self.sites.endswith(".toml") else Providers()

    @property
    def users_of_tenants(self) -> dict[str, str]:
        """Tenant -> the name or uid of a user of this machine."""
        return read_job_users(self.job_users) if self.job_users else {}

    @property
    def microusd_per_gpu_hour(self) -> int:
        price = microusd_from_usd(self.usd_per_hour)
        assert price is not None, "checked when the settings were read"
        return price

    @property
    def server_file(self) -> Path:
        """Where a running server says how to reach it."""
        return self.folder / SERVER_FILE

    @property
    def lock_file(self) -> Path:
        """Held by the server for as long as it lives."""
        return self.folder / LOCK_FILE

    @property
    def token_file(self) -> Path:
        return self.folder / "token"


def read_candidates(text: str) -> tuple[str, ...]:
    return tuple(read_policy(each).text for each in text.split())


SITE = re.compile(
    r"(?P<site>[a-z][a-z0-9-]{0,29})=(?P<gpus>\d{1,4})x(?P<gpu>[^@,]{1,80})@(?P<usd>[\d.]+)"
    r"(?: of (?P<owner>[A-Za-z0-9][A-Za-z0-9._-]{0,59}))?"
)


def read_sites(text: str) -> list[Site]:
    """Sites declared directly, or in a sites file."""
    if text.endswith(".toml"):
        return read_sites_file(Path(text))
    found: list[Site] = []
    for part in text.split(","):
        match = SITE.fullmatch(part.strip())
        price = None if match is None else microusd_from_usd(match["usd"])
        if match is None or price is None or not 1 <= int(match["gpus"]) <= 1024:
            raise BadInput(say("client.bad_site", site=Quoted(part.strip()[:80])))
        if match["site"] in {each.site for each in found}:
            raise BadInput(say("client.site_twice", site=match["site"]))
        gpu = _gpu_name(match["gpu"], "--sites")
        found.append(
            Site(
                site=match["site"],
                microusd_per_gpu_hour=price,
                owner=match["owner"] or "",
                options={"gpu": gpu, "gpus": int(match["gpus"])},
            )
        )
    return found


JOB_USER = re.compile(
    r"(?P<tenant>[A-Za-z0-9][A-Za-z0-9._-]{0,59})=(?P<user>[A-Za-z0-9_][A-Za-z0-9._-]{0,59})"
)


def read_job_users(text: str) -> dict[str, str]:
    """As written; whether these users exist is checked when the server starts."""
    found: dict[str, str] = {}
    for part in text.split(","):
        match = JOB_USER.fullmatch(part.strip())
        if match is None or match["tenant"] in found:
            raise BadInput(say("client.bad_job_users", part=Quoted(part.strip()[:80])))
        found[match["tenant"]] = match["user"]
    return found


def _gpu_name(text: str, source: str) -> str:
    from brimful.adapters.engines.devices import catalog_name
    from brimful.specs.gpu import refuse_slip

    refuse_slip(text)
    known = catalog_name(text)
    if not all(c.isalnum() or c in "-_." for c in known):
        raise _bad(source, text, say("client.hint_gpu_name"))
    return known


def _read_reserve(text: str) -> object:
    from brimful.market.pools import read_reserve_terms  # loads a fleet: not for every command

    return read_reserve_terms(text)


SMTP = re.compile(r"[A-Za-z0-9.-]+(:\d{1,5})?", re.ASCII)
FILES = ("tls_cert", "tls_key", "queues", "identity", "smtp_password_file")
READERS: dict[str, Callable[[str], object]] = {
    "sites": read_sites,
    "job_users": read_job_users,
    "policy": read_policy,
    "rehearse_policies": read_candidates,
    "reserve": _read_reserve,
}
SWITCHES = frozenset(each.name for each in fields(Settings) if isinstance(each.default, bool))
CHOICES: dict[str, dict[str, str | bool]] = {
    "log_format": {"text": "text", "json": "json"},
    **{name: {"True": True, "1": True, "0": False} for name in SWITCHES},
}
LIMITS: dict[str, tuple[int, int]] = {
    "job_memory_mib": (0, 1 << 30),
    "log_mib": (1, 1 << 20),
    "port": (0, 65535),
    "slots": (0, 1024),
    "tick_s": (1, 3600),
    "grace_s": (1, 3600),
    "min_run_s": (0, 1 << 20),
    "notice_s": (1, 1 << 20),
    "market_period_s": (1, 86_400),
    "market_wait_s": (1, 1 << 24),
    "backup_hours": (1, 8760),
    "backups_kept": (1, 1000),
    "max_queued": (1, 1 << 24),
    "rehearse_cpu_percent": (0, 100),
}


def read_settings(given: Mapping[str, object] | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Flags before environment before defaults; every value is checked here and nowhere else."""
    values: dict[str, Any] = {}
    for each in fields(Settings):
        value = (given or {}).get(each.name)
        source = f"--{each.name.replace('_', '-')}"
        if value is None:
            source = f"BRIMFUL_{each.name.upper()}"
            value = env.get(source)
        if value is not None:
            values[each.name] = _checked(each.name, str(value), source)
    if not values.get("data"):
        values["data"] = str(default_folder(env))
    settings = Settings(**values)
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    if has_identity(deep := settings.engines_folder):
        meant = deep.parent.parent if deep.parent.name == "sites" else deep.parent
        raise BadInput(say("client.engines_too_deep", folder=deep, meant=meant))
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise BadInput(say("client.tls_needs_both"))
    least_s = settings.notice_s + 2 * settings.market_period_s
    if settings.market and settings.market_wait_s < least_s:
        raise BadInput(
            say(
                "client.market_wait_too_short",
                market_wait_s=settings.market_wait_s,
                notice_s=settings.notice_s,
                least_s=least_s,
            )
        )
    if settings.smtp and not SMTP.fullmatch(settings.smtp):
        raise _bad("--smtp", settings.smtp, say("client.hint_smtp"))
    if settings.smtp and not settings.smtp_from:
        raise BadInput(say("client.smtp_needs_from"))
    if settings.host not in LOOPBACK and not settings.tls_cert:
        raise BadInput(say("client.host_needs_tls", host=Quoted(settings.host[:100])), code="not_loopback")


def _checked(name: str, text: str, source: str) -> str | int | bool:
    if name in LIMITS:
        low, high = LIMITS[name]
        if (number := integer_from_text(text, low=low, high=high)) is None:
            raise _bad(source, text, say("client.hint_range", low=low, high=high))
        return number
    if name == "usd_per_hour" and microusd_from_usd(text) is None:
        raise _bad(source, text, say("client.hint_dollars"))
    if name == "host" and text not in LOOPBACK:
        try:
            ip_address(text)
        except ValueError as error:
            raise _bad(source, text, say("client.hint_address")) from error
    if name in CHOICES:
        if text not in CHOICES[name]:
            raise _bad(
                source, text, say("client.hint_switch" if name in SWITCHES else "client.hint_log_format")
            )
        return CHOICES[name][text]
    if name in FILES and text and not Path(text).is_file():
        raise BadInput(say("client.no_such_file", source=source, text=Quoted(text[:200])))
    if name == "gpu":
        return _gpu_name(text, source)
    if name in READERS and (text or name == "policy"):
        READERS[name](text)
    if name in ("data", "engines", "backup_folder") and text:
        return str(Path(text).expanduser().absolute())
    return text


def _bad(setting: str, given: str, hint: Sentence) -> BadInput:
    return BadInput(say("client.bad_setting", setting=setting, given=Quoted(given[:80])), hint=hint)


def default_folder(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_STATE_HOME") or Path(env.get("HOME") or Path.home()) / ".local" / "state"
    return Path(base) / "brimful"
