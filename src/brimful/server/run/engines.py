"""The engines of every site, as the settings describe them."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brimful.adapters.capabilities import WatchesJobs
from brimful.adapters.code import CodeStore
from brimful.adapters.engines.devices import DeviceGroup, catalog_name, group_devices
from brimful.adapters.engines.job_users.users import JobUsers, find_users
from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.engines.processes import runs_alive
from brimful.adapters.files import has_identity, identity
from brimful.adapters.observed import Observer
from brimful.adapters.sites import (
    Site,
    Surroundings,
    Vendor,
    make_engine,
    make_provider,
    needs_nothing_else,
    options_of,
)
from brimful.adapters.stores import snapshot
from brimful.adapters.stores.engines_known import add_engines, engines_known
from brimful.adapters.stores.sql import SqlStore
from brimful.client.settings import Settings
from brimful.errors import BadInput, BrimfulError, NotFound, WorldFailed
from brimful.fleet.state import JobState, Node
from brimful.language import Quoted, say
from brimful.meter.nvml import read_gpus
from brimful.scheduler.cloud.buying import Buying
from brimful.scheduler.ports import Engine
from brimful.server.retention import Jobs
from brimful.server.run import gpus

DECLARED_SLOTS = 2  # default without a GPU
MOST_GPUS = 1024
MOST_NAMES = 5  # of runs in a message


def identity_of(settings: Settings) -> str:
    """The id of the folder where jobs run, whatever sites it is divided into now."""
    folder = settings.engines_folder / "leases"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return identity(folder)


def code_of(settings: Settings) -> CodeStore:
    """Beside the leases: every server on this database can start what was sent to any of them."""
    return CodeStore(settings.engines_folder / "code")


def nodes_of(engines: Sequence[Engine]) -> list[Node]:
    """Of the sites that answer; the others' nodes are known once they do."""
    found: list[Node] = []
    for engine in engines:
        with contextlib.suppress(BrimfulError):
            found += engine.nodes()
    return found


def engines_of(settings: Settings) -> list[Engine]:
    """One engine per configured site; without any, this machine is the only one."""
    described = settings.declared_sites
    clash = {each.site for each in described} & {each.site for each in settings.declared_providers.sellers}
    if clash:
        raise BadInput(say("client.site_twice", site=min(clash)))
    own = Site(site="local", options={"gpu": settings.gpu, "gpus": settings.slots})
    declared = sum(each.options.get("gpus", 0) for each in described if each.engine == "local")
    folder = settings.engines_folder

    @functools.cache
    def runs_as(gpus: int) -> JobUsers:
        return _job_users(settings, gpus=gpus)

    return [
        make_engine(
            each,
            Surroundings(
                folder=folder / "sites" / each.site if described else folder / "leases",
                log_bytes=settings.log_mib << 20,
                microusd_per_gpu_hour=settings.microusd_per_gpu_hour,
                code=code_of(settings),
                runs_as=lambda gpus: runs_as(max(gpus, declared)),
            ),
        )
        for each in described or [own]
        if each.mode == "run"
    ]


def vendors_of(settings: Settings) -> list[Vendor]:
    """Providers, each with the engines of the sites where its machines join."""
    return [
        make_provider(
            each,
            Surroundings(
                folder=settings.engines_folder / "sites" / each.site,
                log_bytes=settings.log_mib << 20,
                microusd_per_gpu_hour=settings.microusd_per_gpu_hour,
                code=code_of(settings),
            ),
        )
        for each in settings.declared_providers.sellers
    ]


def buying_of(settings: Settings) -> Buying | None:
    """What may be spent; None if there is no provider."""
    said = settings.declared_providers
    if not said.sellers:
        return None
    return Buying(
        hourly_microusd=said.hourly_microusd,
        monthly_microusd=said.monthly_microusd,
        hourly_of=said.hourly_of,
        keep_s=said.keep_s,
        rest_s=said.rest_s,
        dry_run=said.dry_run,
    )


def observers_of(settings: Settings) -> list[Observer]:
    """One for each site that is only watched."""
    made = []
    for each in settings.declared_sites:
        if each.mode == "observe":
            folder = settings.engines_folder / "sites" / each.site
            price = settings.microusd_per_gpu_hour
            engine = make_engine(each, Surroundings(folder=folder, log_bytes=0, microusd_per_gpu_hour=price))
            if not isinstance(engine, WatchesJobs):
                raise BadInput(say("sites.no_observing", site=each.site, engine=each.engine))
            made.append(Observer(engine, folder, time.time))
    return made


def _job_users(settings: Settings, *, gpus: int) -> JobUsers:
    return JobUsers(
        settings.engines_folder,
        find_users(settings.users_of_tenants),
        shares=settings.jobs_share_my_user,
        memory_mib_per_gpu=settings.job_memory_mib,
        hidden=tuple(map(Path, filter(None, (settings.data, settings.engines, settings.backup_folder)))),
        gpus=gpus,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    gpu: str = ""  # type of the declared GPUs
    gpus: int = 0  # declared; 0: those that the driver lists


def local_site(site: Site, given: Surroundings) -> Engine:
    """This machine: the GPUs its driver lists, unless others are declared."""
    options = options_of(site, LocalOptions)
    needs_nothing_else(site)
    if not 0 <= options.gpus <= MOST_GPUS:
        raise BadInput(say("sites.bad_value", site=site.site, key="gpus", value=Quoted(str(options.gpus))))
    detected = gpus.Detected([], {}) if options.gpus else gpus.detect()
    found = group_devices(detected.devices)
    count = 0 if found or detected.is_broken else options.gpus or DECLARED_SLOTS
    gpu = catalog_name(options.gpu) if options.gpu else "slot"
    slots = [DeviceGroup(gpu=gpu, devices=tuple(map(str, range(count))))] if count else []
    nodes = [
        Node(
            site=site.site,
            node=f"{site.site}-{i}",
            gpu=each.gpu,
            gpus=len(each.devices),
            microusd_per_gpu_hour=given.price_of(site),
            declared=not found,
            holes=each.holes,
            tier=site.tier,
            owner=site.owner,
            microusd_per_gib=site.microusd_per_gib,
        )
        for i, each in enumerate(found or slots)
    ]
    devices = {node.node: each.devices for node, each in zip(nodes, found, strict=False)}
    return LocalEngine(
        given.folder,
        nodes,
        site=site.site,
        devices=devices,
        problems=detected.problems,
        look=read_gpus if found else None,
        users=gpus.Users() if found else dict,
        log_bytes=given.log_bytes,
        code=given.code,
        store=site.checkpoints,
        store_env=given.store_env_of(site),
        notices=site.notices,
        runs_as=given.runs_as(sum(node.gpus for node in nodes)),
    )


def jobs_in(store: SqlStore) -> Jobs:
    """What the log knows of jobs, for callers without a server."""
    fold = snapshot.load(store)
    while events := store.since(fold.fleet.seq):
        for event in events:
            fold.apply(event)

    def find(name: str) -> JobState:
        fleet = fold.fleet
        state = fleet.jobs.get(name) or (fleet.leaving[name].state if name in fleet.leaving else None)
        past = None if state is not None else store.past_job(name)
        if state is None and past is None:
            raise NotFound(say("server.no_job", name=Quoted(name[:100])))
        return state if past is None else past.state  # type: ignore[return-value]

    return Jobs(fold.fleet, find)


def roots_in(folder: Path) -> list[Path]:
    """Where engines have run anything."""
    return [each for each in (folder / "leases", *sorted((folder / "sites").glob("*"))) if each.is_dir()]


def engines_in(folder: Path) -> list[LocalEngine]:
    """Engines that have run anything here, to inspect what they left; without nodes, they start nothing."""
    return [
        LocalEngine(root, [], site="local" if root == folder / "leases" else root.name)
        for root in roots_in(folder)
    ]


def ids_in(folder: Path) -> set[str]:
    return {identity(root) for root in roots_in(folder) if has_identity(root)}


def bind_runs(store: SqlStore, folder: Path) -> None:
    """Refuse to start while runs of this log are alive that this folder knows nothing of.

    They are unknown after a restore into a new folder, and their jobs would start a second time beside them.
    """
    here = ids_in(folder)
    with store.writing() as connection:
        add_engines(connection, here)
        elsewhere = engines_known(connection) - here
    if alive := runs_alive(elsewhere):
        raise WorldFailed(say("server.runs_alive", **alive_said(alive)), code="runs_alive")


def alive_said(alive: Mapping[str, Sequence[int]]) -> dict[str, object]:
    """The runs, and their processes as `kill` takes them."""
    names = [*sorted(alive)[:MOST_NAMES], *(["…"] if len(alive) > MOST_NAMES else [])]
    pids = sorted({pid for those in alive.values() for pid in those})
    return {"leases": ", ".join(names), "pids": " ".join(map(str, pids))}
