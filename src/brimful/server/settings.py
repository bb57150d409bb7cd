"""How brimful is set up: one frozen object, read once.

Light on purpose: the command line reads it to find a running server without loading one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from brimful.errors import BadInput
from brimful.units import microusd_from_usd

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _set(default: Any, help_text: str) -> Any:  # noqa: ANN401 - any default
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Each can be set by an environment variable BRIMFUL_<NAME> or, for `brimful up`, by its flag."""

    data: str = _set("", "folder for the database, logs and token (default: ~/.local/state/brimful)")
    host: str = _set("127.0.0.1", "address to listen on; only loopback is allowed for now")
    port: int = _set(8642, "port of the API and the console; 0 takes any that is free")
    database: str = _set("", "database URL (default: a SQLite file in the data folder)")
    slots: int = _set(0, "declare so many GPUs; 0 takes those the driver lists, else two slots without one")
    gpu: str = _set("", "what a declared GPU is, however you write it (default: slot)")
    usd_per_hour: str = _set("0.10", "posted price of one declared GPU for an hour, in dollars")
    tick_s: int = _set(1, "seconds between two looks at the fleet")
    grace_s: int = _set(10, "seconds a stopped job gets to end by itself")

    @property
    def folder(self) -> Path:
        return Path(self.data)

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.folder / 'brimful.db'}"

    @property
    def microusd_per_gpu_hour(self) -> int:
        price = microusd_from_usd(self.usd_per_hour)
        assert price is not None, "checked when the settings were read"
        return price

    @property
    def server_file(self) -> Path:
        """Where a running server says how to reach it."""
        return self.folder / "server.json"

    @property
    def lock_file(self) -> Path:
        """Held by the server for as long as it lives."""
        return self.folder / "server.lock"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"


LIMITS: dict[str, tuple[int, int]] = {
    "port": (0, 65535),
    "slots": (0, 1024),
    "tick_s": (1, 3600),
    "grace_s": (1, 3600),
}


def read_settings(given: Mapping[str, object] | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Flags before environment before defaults; every value checked here and nowhere else."""
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
        values["data"] = str(_default_folder(env))
    return Settings(**values)


def _checked(name: str, text: str, source: str) -> str | int:
    if name in LIMITS:
        low, high = LIMITS[name]
        if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
            raise BadInput(f"{source} is {text[:40]!r}", hint=f"a whole number from {low} to {high}")
        return int(text)
    if name == "usd_per_hour" and microusd_from_usd(text) is None:
        raise BadInput(
            f"{source} is {text[:40]!r}", hint="a sum in dollars such as 0.25, six decimals at most"
        )
    if name == "host" and text not in LOOPBACK:
        raise BadInput(
            f"{source} is {text[:100]!r}, not loopback; brimful runs commands for whoever reaches it",
            hint="leave it at 127.0.0.1 and use an ssh tunnel: ssh -L 8642:127.0.0.1:8642 HOST",
            code="not_loopback",
        )
    if name == "gpu":
        from brimful.adapters.engines.found import catalog_name

        known = catalog_name(text)
        if not all(c.isalnum() or c in "-_." for c in known):
            raise BadInput(f"{source} is {text[:80]!r}", hint="a card of `brimful gpus`, or a plain word")
        return known
    if name == "data":
        return str(Path(text).expanduser().absolute())
    return text


def _default_folder(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_STATE_HOME") or Path(env.get("HOME") or Path.home()) / ".local" / "state"
    return Path(base) / "brimful"
