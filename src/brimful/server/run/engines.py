"""The engines of this machine, as the settings describe them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from brimful.adapters.code import CodeStore
from brimful.adapters.engines.devices import DeviceGroup, group_devices
from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.engines.users import JobUsers, find_users
from brimful.adapters.files import identity
from brimful.adapters.stores import snapshot
from brimful.adapters.stores.sql import SqlStore
from brimful.client.settings import Settings
from brimful.errors import NotFound
from brimful.fleet.state import JobState, Node
from brimful.language import Quoted, say
from brimful.meter.nvml import read_gpus
from brimful.server.retention import Jobs
from brimful.server.run import gpus

DECLARED_SLOTS = 2  # where there is no GPU and nobody said otherwise


def identity_of(settings: Settings) -> str:
    """Of the folder where jobs run, whatever sites it is divided into now."""
    folder = settings.engines_folder / "leases"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return identity(folder)


def code_of(settings: Settings) -> CodeStore:
    """Beside the leases: every server on this database can start what any of them was sent."""
    return CodeStore(settings.engines_folder / "code")


def nodes_of(engines: Sequence[LocalEngine]) -> list[Node]:
    return [node for engine in engines for node in engine.nodes()]


def local_engines(settings: Settings) -> list[LocalEngine]:
    """This machine as one site, or as the several that were declared."""
    if not settings.sites:
        return [_local_engine(settings)]
    users = _job_users(settings, gpus=sum(each.gpus for each in settings.declared_sites))
    return [
        LocalEngine(
            settings.engines_folder / "sites" / each.site,
            [
                Node(
                    site=each.site,
                    node=f"{each.site}-0",
                    gpu=each.gpu,
                    gpus=each.gpus,
                    microusd_per_gpu_hour=each.microusd_per_gpu_hour,
                    declared=True,
                    owner=each.owner,
                )
            ],
            site=each.site,
            log_bytes=settings.log_mib << 20,
            code=code_of(settings),
            runs_as=users,
        )
        for each in settings.declared_sites
    ]


def _job_users(settings: Settings, *, gpus: int) -> JobUsers:
    return JobUsers(
        settings.engines_folder,
        find_users(settings.users_of_tenants),
        shares=settings.jobs_share_my_user,
        memory_mib_per_gpu=settings.job_memory_mib,
        hidden=tuple(map(Path, filter(None, (settings.data, settings.engines, settings.backup_folder)))),
        gpus=gpus,
    )


def _local_engine(settings: Settings) -> LocalEngine:
    """This machine's engine: on the GPUs its driver lists, unless others are declared."""
    detected = gpus.Detected([], {}) if settings.slots else gpus.detect()
    found = group_devices(detected.devices)
    count = 0 if found or detected.is_broken else settings.slots or DECLARED_SLOTS
    slots = [DeviceGroup(gpu=settings.gpu or "slot", devices=tuple(map(str, range(count))))] if count else []
    nodes = [
        Node(
            site="local",
            node=f"local-{i}",
            gpu=each.gpu,
            gpus=len(each.devices),
            microusd_per_gpu_hour=settings.microusd_per_gpu_hour,
            declared=not found,
            holes=each.holes,
        )
        for i, each in enumerate(found or slots)
    ]
    devices = {node.node: each.devices for node, each in zip(nodes, found, strict=False)}
    return LocalEngine(
        settings.engines_folder / "leases",
        nodes,
        devices=devices,
        problems=detected.problems,
        look=read_gpus if found else None,
        users=gpus.Users() if found else dict,
        log_bytes=settings.log_mib << 20,
        code=code_of(settings),
        runs_as=_job_users(settings, gpus=sum(node.gpus for node in nodes)),
    )


def jobs_in(store: SqlStore) -> Jobs:
    """What the log knows of jobs, for whoever has no server at hand."""
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


def engines_in(folder: Path) -> list[LocalEngine]:
    """Those that have run anything here, to look at what they left; they have no nodes and start nothing."""
    found = [LocalEngine(folder / "leases", [])] if (folder / "leases").is_dir() else []
    sites = sorted(path for path in (folder / "sites").glob("*") if path.is_dir())
    return found + [LocalEngine(path, [], site=path.name) for path in sites]
