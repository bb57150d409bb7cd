"""Sites and their engines: read from a file and made by the factory registered for the engine's name.

    [hpc]
    engine = "slurm"
    usd_per_gpu_hour = 2.10
    partition = "gpu"          # every key that is not a field of `Site` is an option of the engine

An engine is a callable in the entry point group `brimful.engines`; ours are registered like any other. So are
providers, which sell machines, in `brimful.providers`:

    [providers]
    usd_per_hour = 12          # limit for all their machines together; 0: buy nothing
    usd_per_month = 800

    [providers.depot]
    kind = "machines"
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from decimal import Decimal
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints

from brimful.adapters.objects.store import store_uri
from brimful.adapters.providers.notices import AT as CLOUDS
from brimful.errors import BadInput, WorldFailed
from brimful.fleet.node import TIERS, Tier
from brimful.language import Quoted, Sentence, os_words, say
from brimful.units import HOUR_S, microusd_from_usd

if TYPE_CHECKING:
    from brimful.adapters.code import CodeStore
    from brimful.adapters.engines.job_users.users import JobUsers
    from brimful.scheduler.cloud.providers import Provider
    from brimful.scheduler.ports import Engine

GROUP = "brimful.engines"
SELLERS = "brimful.providers"
PROVIDERS = "providers"  # the table that is not a site
NAME = re.compile(r"[a-z][a-z0-9-]{0,29}")
OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
MOST_BYTES = 1 << 20

Mode = Literal["run", "observe"]
MODES: tuple[Mode, ...] = get_args(Mode)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One cluster, machine or region as the operator describes it."""

    site: str
    engine: str = "local"
    address: str = ""  # where to reach the engine; empty: on this machine
    microusd_per_gpu_hour: int | None = None  # None: `--usd-per-hour`
    tier: Tier = "owned"
    owner: str = ""  # the tenant that gets its revenue, and may not bid there
    checkpoints: str = ""  # URI of the store they are sent to; empty: they stay with the leases
    checkpoint_env: tuple[str, ...] = ()  # server variables passed with them: credentials
    microusd_per_gib: int = 0  # for what jobs send to and fetch from the store
    notices: str = ""  # the cloud that takes its nodes back: CLOUD, or CLOUD@PLACE to ask elsewhere
    mode: Mode = "run"  # observe: nothing is ever started or stopped there
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Providers:
    """The table [providers]: who sells machines, and how much the server may spend."""

    hourly_microusd: int = 0  # for all machines together; 0: buy nothing
    monthly_microusd: int = 0
    hourly_of: Mapping[str, int] = field(default_factory=dict)  # sellers with a separate hourly cap
    keep_s: int | None = None  # how long to keep an idle machine; None: as long as a new one takes to start
    rest_s: int = HOUR_S  # how long a job that has just started is not moved to save money
    dry_run: bool = False  # report what would be bought, but buy nothing
    sellers: tuple[Site, ...] = ()  # one per provider; `engine` is its kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the server gives every engine it makes."""

    folder: Path  # the site's own: leases, logs, checkpoints
    log_bytes: int  # how much of each rank's latest output is kept
    microusd_per_gpu_hour: int  # default for sites that do not say
    code: CodeStore | None = None
    # From the number of GPUs its jobs share on this machine: who they run as; None: all as the server's user.
    runs_as: Callable[[int], JobUsers | None] = lambda _gpus: None

    @staticmethod
    def store_env_of(site: Site) -> dict[str, str]:
        """Credentials for the site's store, as far as the server has them."""
        return {name: os.environ[name] for name in site.checkpoint_env if name in os.environ}

    def price_of(self, site: Site) -> int:
        own = site.microusd_per_gpu_hour
        return self.microusd_per_gpu_hour if own is None else own


MakeEngine = Callable[[Site, Surroundings], "Engine"]


def read_sites_file(path: Path) -> list[Site]:
    """One table per site. Errors name the place in the file."""
    tables = _read_tables(path)
    return [_read_site(path, name, table) for name, table in tables.items() if name != PROVIDERS]


def read_providers(path: Path) -> Providers:
    """What the file says about providers; the defaults if it says nothing."""
    table = _read_tables(path).get(PROVIDERS, {})
    if not isinstance(table, dict):
        raise BadInput(say("sites.bad_file", path=path, why=say("sites.is_table", name=Quoted(PROVIDERS))))
    sellers = {name: values for name, values in table.items() if isinstance(values, dict)}
    common = {name: value for name, value in table.items() if name not in sellers}

    def refuse(key: str, value: object) -> BadInput:
        why = say("sites.bad_value", site=PROVIDERS, key=key, value=_shown(value))
        return BadInput(say("sites.bad_file", path=path, why=why))

    def money(key: str, table: dict[str, Any]) -> int:
        value = table.pop(key, 0)
        found = None if isinstance(value, bool) else microusd_from_usd(str(value))
        if found is None:
            raise refuse(key, value)
        return found

    def seconds(key: str, default: int | None) -> int | None:
        value = common.pop(key, default)
        if value is not default and (type(value) is not int or value < 0):
            raise refuse(key, value)
        return value

    dry_run = common.pop("dry_run", False)
    if type(dry_run) is not bool:
        raise refuse("dry_run", dry_run)
    found = Providers(
        hourly_microusd=money("usd_per_hour", common),
        monthly_microusd=money("usd_per_month", common),
        hourly_of={
            name: money("usd_per_hour", values)
            for name, values in sellers.items()
            if "usd_per_hour" in values
        },
        keep_s=seconds("keep_s", None),
        rest_s=seconds("rest_s", HOUR_S) or 0,
        dry_run=dry_run,
        sellers=tuple(_read_seller(path, name, values) for name, values in sellers.items()),
    )
    for key, value in common.items():
        raise refuse(key, value)
    return found


def _read_seller(path: Path, name: str, table: dict[str, Any]) -> Site:
    """Where its machines join; `engine` holds its kind."""
    kind = table.get("kind")
    if not isinstance(kind, str) or "engine" in table:
        why = say("sites.option_missing", site=f"{PROVIDERS}.{name}", engine="-", key="kind")
        raise BadInput(say("sites.bad_file", path=path, why=why))
    rest = {key: value for key, value in table.items() if key != "kind"}
    return _read_site(path, name, {"tier": "on_demand", **rest, "engine": kind})


def _read_tables(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode()
        tables = tomllib.loads(text, parse_float=Decimal)
    except OSError as error:
        raise WorldFailed(say("sites.cannot_read", path=path, error=os_words(error))) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(say("sites.bad_file", path=path, why=error)) from error
    if not tables:
        raise BadInput(say("sites.bad_file", path=path, why=say("sites.none")))
    return tables


def _read_site(path: Path, name: str, table: object) -> Site:
    def refuse(why: Sentence) -> BadInput:
        return BadInput(say("sites.bad_file", path=path, why=why))

    def text(key: str, default: str, *, allowed: re.Pattern[str] = re.compile(".*")) -> str:
        found = values.pop(key, default)
        if not isinstance(found, str) or (found and not allowed.fullmatch(found)):
            raise refuse(say("sites.bad_value", site=name, key=key, value=_shown(found)))
        return found

    if not NAME.fullmatch(name) or not isinstance(table, dict):
        raise refuse(say("sites.is_table", name=Quoted(name[:60])))
    values = dict(table)

    def money(key: str) -> int | None:
        price = values.pop(key, None)
        found = None if price is None else microusd_from_usd(str(price))
        if price is not None and (found is None or isinstance(price, bool)):
            raise refuse(say("sites.bad_value", site=name, key=key, value=_shown(price)))
        return found

    passed = values.pop("checkpoint_env", [])
    if not _has_type(passed, tuple[str, ...]):
        raise refuse(say("sites.bad_value", site=name, key="checkpoint_env", value=_shown(passed)))
    tier, mode = text("tier", "owned"), text("mode", "run")
    for key, found, known in (("tier", tier, TIERS), ("mode", mode, MODES)):
        if found not in known:
            choices = ", ".join(known)
            said = say("sites.bad_choice", site=name, key=key, value=_shown(found), choices=choices)
            raise refuse(said)
    notices = text("notices", "")
    if notices and notices.partition("@")[0] not in CLOUDS:
        choices = ", ".join(CLOUDS)
        said = say("sites.bad_choice", site=name, key="notices", value=_shown(notices), choices=choices)
        raise refuse(said)
    return Site(
        site=name,
        notices=notices,
        engine=text("engine", "local"),
        address=text("address", ""),
        microusd_per_gpu_hour=money("usd_per_gpu_hour"),
        microusd_per_gib=money("usd_per_gib_moved") or 0,
        tier=next(each for each in TIERS if each == tier),
        owner=text("owner", "", allowed=OWNER),
        checkpoints=store_uri(kept) if (kept := text("checkpoints", "")) else "",
        checkpoint_env=tuple(passed),
        mode=next(each for each in MODES if each == mode),
        options=values,
    )


def _shown(value: object) -> Quoted:
    return Quoted(str(value)[:60])


def options_of(site: Site, kind: type[T]) -> T:
    """The site's options as the engine's frozen dataclass, with every value type-checked."""
    hints, known = get_type_hints(kind), {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    for key, value in site.options.items():
        if key not in known:
            choices = ", ".join(sorted(known)) or "-"
            raise BadInput(
                say("sites.unknown_option", site=site.site, engine=site.engine, key=key, choices=choices)
            )
        if not _has_type(value, hints[key]):
            raise BadInput(
                say("sites.bad_option", site=site.site, key=key, value=_shown(value), kind=_named(hints[key]))
            )
    for name, each in known.items():
        is_needed = each.default is MISSING and each.default_factory is MISSING
        if is_needed and name not in site.options:
            raise BadInput(say("sites.option_missing", site=site.site, engine=site.engine, key=name))
    given = {key: tuple(it) if isinstance(it, list) else it for key, it in site.options.items()}
    return kind(**given)


def _has_type(value: object, wanted: object) -> bool:
    """Whether TOML's value matches the field's type: str, int, bool, a tuple or a table of str."""
    if wanted in (str, bool):
        return type(value) is wanted
    if wanted is int:
        return type(value) is int
    if wanted == tuple[str, ...]:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    assert wanted == Mapping[str, str], f"options have no fields of type {wanted}"
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _named(wanted: object) -> Sentence:
    names: dict[object, str] = {str: "text", bool: "bool", int: "integer", tuple[str, ...]: "list"}
    return say(f"sites.option_{names.get(wanted, 'table')}")


def make_engine(site: Site, given: Surroundings) -> Engine:
    """The site's engine; errors while making it name the site."""
    made: MakeEngine = _registered(site, GROUP, "no_such_engine")
    return made(site, given)


class Vendor(NamedTuple):
    """A provider, and the engines of the sites where its machines join."""

    provider: Provider
    engines: Sequence[Engine] = ()


def make_provider(seller: Site, given: Surroundings) -> Vendor:
    made: Callable[[Site, Surroundings], Vendor] = _registered(seller, SELLERS, "no_such_provider")
    return made(seller, given)


def _registered(site: Site, group: str, code: str) -> Any:  # noqa: ANN401 - whatever they registered
    found = {each.name: each for each in entry_points(group=group)}
    if site.engine not in found:
        known = ", ".join(sorted(found)) or "-"
        said = say(f"sites.{code}", site=site.site, engine=_shown(site.engine), known=known)
        raise BadInput(said, code=code)
    entry = found[site.engine]
    try:
        return entry.load()
    except Exception as error:  # importing a third-party module may raise anything
        why = f"{type(error).__name__}: {error}"[:300]
        said = say("sites.engine_not_loaded", site=site.site, engine=site.engine, where=entry.value, why=why)
        raise WorldFailed(said, code="engine_not_loaded") from error


def needs_extra(site: Site, package: str) -> None:
    """Before anything starts. The extra has the engine's name."""
    if find_spec(package) is None:
        said = say("sites.missing_extra", site=site.site, engine=site.engine, package=package)
        raise BadInput(said, code="missing_extra")


def needs_nothing_else(site: Site) -> None:
    """For an engine that has no address and always acts."""
    for code, is_given in (
        ("no_address", site.address),
        ("no_observing", site.mode != "run"),
    ):
        if is_given:
            raise BadInput(say(f"sites.{code}", site=site.site, engine=site.engine))
