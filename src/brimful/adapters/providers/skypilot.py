"""Machines of any cloud that SkyPilot supports, made and removed by its API server (decision 68).

A node is a cluster of one machine whose name identifies its owner: `brimful-DEPLOYMENT-NODE`. After a crash,
we find it again by that name among the API server's requests and clusters; all we store is how to reach
machines that are up. A node is launched once: a launch that ended without a machine is a refusal, and the
scheduler decides where to try next. SkyPilot's own failover and recovery are not used: it gets one region and
one instance type at a time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from brimful.adapters.engines.lease_folders import facts, failing
from brimful.adapters.engines.ssh.engine import Reach, ssh_engine
from brimful.adapters.files import identity, write_json
from brimful.adapters.providers.catalog import CatalogProvider
from brimful.adapters.providers.sky_api import Asked, Cluster, SkyApi
from brimful.adapters.sites import Site, Surroundings, Vendor, options_of
from brimful.errors import BadInput, BrimfulError, Said, WorldFailed
from brimful.files import write_whole
from brimful.fleet.events import NodeOrdered
from brimful.language import Quoted, Usd, say, verbatim
from brimful.scheduler.cloud.providers import CannotMake, Made
from brimful.scheduler.ports import Failures
from brimful.specs.offer import Offer

ADDRESS = "http://127.0.0.1:46580"  # where `sky api start` listens
IDLE_S = 60.0  # between two looks while we have nothing there
PLACE = re.compile(r"([a-z0-9]{2,20})/([A-Za-z0-9][A-Za-z0-9-]{0,40})")
WITHOUT_SSH = frozenset({"kubernetes", "slurm", "ssh"})  # no machines with separate addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyPilotOptions(Reach):
    """Keys of a provider with `kind = "skypilot"`."""

    infra: tuple[str, ...]  # CLOUD/REGION of each place to buy from: each is a site
    catalog: str = "~/.sky/catalogs/v8"  # SkyPilot's own: what is sold there, and the prices
    token_env: str = ""  # server environment variable with a service account token
    setup: str = ""  # shell commands that SkyPilot runs on a new machine
    lead_s: int = 300  # how long a machine should take to come up


class Seen(NamedTuple):
    """What the API server has of ours."""

    clusters: Mapping[str, Cluster]  # by node
    active: Mapping[str, Sequence[Asked]]  # by node, requests in progress

    def under_way(self, node: str, kind: str) -> list[str]:
        return [each.request for each in self.active.get(node, ()) if each.kind == kind]

    @property
    def nodes(self) -> set[str]:
        """Those that exist or are being made."""
        launched = {node for node in self.active if self.under_way(node, "launch")}
        return {*self.clusters, *launched}


class SkyPilotProvider:
    def __init__(self, name: str, options: SkyPilotOptions, folder: Path, address: str = "") -> None:
        """`folder`: records how machines are reached."""
        self.name, self._options, self._folder = name, options, folder
        deployment = identity(folder)[:8]
        self._api = SkyApi(address or ADDRESS, user=deployment, token_env=options.token_env)
        self._prefix = f"brimful-{deployment}-"
        self._places = {_site(name, place): place for place in options.infra}
        self.sites = tuple(self._places)
        self._catalog = CatalogProvider(name, Path(options.catalog).expanduser())
        self._read: Sequence[Offer] = ()
        self._offers: list[Offer] = []
        self._looked, self._is_idle = 0.0, False

    # -- offers ------------------------------------------------------------------------------------------

    def offers(self) -> Sequence[Offer]:
        read = self._catalog.offers()
        if read is not self._read:
            self._offers, self._read = list(self._sold(read)), read
        return self._offers

    def _sold(self, read: Iterable[Offer]) -> Iterable[Offer]:
        """For each instance type in a region, the price of its most expensive zone: SkyPilot may pick any."""
        dearest: dict[tuple[str, str, bool], Offer] = {}
        for offer in read:
            place = f"{offer.provider}/{offer.region}"
            if place in self._options.infra and offer.instance:
                key = (place, offer.instance, offer.is_spot)
                known = dearest.get(key)
                if known is None or known.microusd_per_hour < offer.microusd_per_hour:
                    dearest[key] = offer
        for (place, _, _), offer in dearest.items():
            yield replace(
                offer,
                provider=self.name,
                region=place.replace("/", "-"),
                zone="",
                lead_s=self._options.lead_s,
            )

    # -- machines ----------------------------------------------------------------------------------------

    def make(self, orders: Sequence[NodeOrdered]) -> Failures:
        seen, failed = self._look(), dict[str, BrimfulError]()
        for order in orders:
            try:
                self._make(order, seen)
            except BrimfulError as error:
                failed[order.node] = error
        return failed

    def _make(self, order: NodeOrdered, seen: Seen) -> None:
        node, cluster = order.node, seen.clusters.get(order.node)
        if seen.under_way(node, "launch"):
            return  # the scheduler gives back one that takes too long
        if cluster is None:
            if why := self._refusal(node):
                raise CannotMake(why)
            self._launch(order)
        elif cluster.status != "UP" and not self._note(node).exists():
            # Its launch ended half-way: the machine may exist and be billed.
            self._end(node, seen)
            raise WorldFailed(self._refusal(node) or say("adapters.sky_not_up", node=node))

    def _launch(self, order: NodeOrdered) -> None:
        fitting = [
            each
            for each in self.offers()
            if (each.site, each.gpu, each.gpus) == (order.site, order.gpu, order.gpus)
            and each.is_spot == (order.tier == "spot")
        ]
        offer = min(fitting, key=lambda each: (each.microusd_per_hour, each.instance), default=None)
        if offer is None:
            raise CannotMake(say("adapters.no_machine_free", name=self.name))
        if offer.microusd_per_hour > order.microusd_per_gpu_hour * order.gpus:
            price = Usd(offer.microusd_per_hour)
            raise CannotMake(say("adapters.machine_dearer", name=self.name, price=price))
        task: dict[str, Any] = {
            "resources": {
                "infra": self._places[order.site],
                "instance_type": offer.instance,
                "use_spot": offer.is_spot,
            }
        }
        if self._options.setup:
            task["setup"] = self._options.setup
        self._is_idle = False
        self._api.launch(self._prefix + order.node, task)

    def _refusal(self, node: str) -> Said | None:
        """Why its launch failed; None: never launched, as far as the server remembers."""
        asked = self._api.requests_of(self._prefix + node)
        ended = next((each for each in asked if each.kind == "launch" and not each.is_active), None)
        if ended is None:
            return None
        if ended.status == "FAILED":
            return say("adapters.sky_refused", why=verbatim(self._api.why(ended.request)))
        return say(
            "adapters.sky_lost" if ended.status == "SUCCEEDED" else "adapters.sky_cancelled", node=node
        )

    def watch(self) -> Sequence[Made]:
        if self._is_idle and time.monotonic() - self._looked < IDLE_S:
            return []
        seen = self._look()
        self._is_idle, self._looked = not seen.nodes, time.monotonic()
        self._keep_doors(seen)
        return [self._made(node, seen) for node in sorted(seen.nodes)]

    def _made(self, node: str, seen: Seen) -> Made:
        cluster, kept = seen.clusters.get(node), facts(self._note(node)) or {}
        at_s = kept.get("at_s")
        if cluster is not None and cluster.status == "STOPPED":
            self._end(node, seen)
            return Made(node, "gone", int(time.time()), problem=say("adapters.sky_stopped", node=node))
        if cluster is None or not isinstance(at_s, int):
            return Made(node, "starting", 0)
        if not kept.get("host"):  # never joins, and is given back because of that
            return Made(node, "ready", at_s, problem=say("adapters.sky_no_door", node=node))
        return Made(node, "ready", at_s, address=node)

    def remove(self, nodes: Sequence[str]) -> Failures:
        seen, failed = self._look(), dict[str, BrimfulError]()
        for node in nodes:
            try:
                self._end(node, seen)
            except BrimfulError as error:
                failed[node] = error
        return failed

    def _end(self, node: str, seen: Seen) -> None:
        """Cancel what is in progress, and remove what exists."""
        if launches := seen.under_way(node, "launch"):
            self._api.cancel(launches)
        if node in seen.clusters and not seen.under_way(node, "down"):
            self._api.down(self._prefix + node)

    def _look(self) -> Seen:
        # Requests first: a launch that ends in between is still seen, as a request or as its cluster.
        active: dict[str, list[Asked]] = {}
        for each in self._api.requests(self._prefix):
            active.setdefault(each.cluster.removeprefix(self._prefix), []).append(each)
        clusters = {each.name.removeprefix(self._prefix): each for each in self._api.clusters(self._prefix)}
        return Seen(clusters, active)

    # -- how they are reached ----------------------------------------------------------------------------

    @property
    def config(self) -> Path:
        """An ssh config with a name for each machine that is up."""
        return self._folder / "ssh_config"

    def _note(self, node: str) -> Path:
        return self._folder / f"{node}.json"

    def _keep_doors(self, seen: Seen) -> None:
        """Once per machine: since when it is up, and how to reach it."""
        with failing("adapters.cannot_keep_machines", folder=self._folder):
            before = {file.stem for file in self._folder.glob("*.json")}
            gone = before - seen.nodes
            up = {node for node, each in seen.clusters.items() if each.status == "UP"} - before
            for node in gone:
                self._note(node).unlink(missing_ok=True)
                self._note(node).with_suffix(".key").unlink(missing_ok=True)
            for node in up:
                door = seen.clusters[node].door
                if door is not None:
                    write_whole(self._note(node).with_suffix(".key"), door.key, mode=0o600)
                where = {} if door is None else {"host": door.host, "port": door.port, "user": door.user}
                write_json(self._note(node), {"at_s": int(time.time()), **where})
            if gone or up or not self.config.exists():
                nodes = sorted(before - gone | up)
                write_whole(self.config, "".join(map(self._host, nodes)), mode=0o600)

    def _host(self, node: str) -> str:
        """Each has its own host key: another machine may get the same address tomorrow."""
        kept = facts(self._note(node)) or {}
        if not kept.get("host"):
            return ""
        lines = {
            "HostName": kept["host"],
            "Port": kept["port"],
            "User": kept["user"],
            "IdentityFile": f'"{self._note(node).with_suffix(".key")}"',
            "IdentitiesOnly": "yes",
            "HostKeyAlias": f"{self._prefix}{node}",
            "UserKnownHostsFile": f'"{self._folder / "known_hosts"}"',
            "StrictHostKeyChecking": "accept-new",
        }
        return f"Host {node}\n" + "".join(f"  {key} {value}\n" for key, value in lines.items())

    def examine(self) -> Mapping[str, Said | None]:
        """Whether the API server answers, and whether anything is sold at each place."""
        self._api.version()
        sold = {offer.site for offer in self.offers()}
        return {
            place: None if site in sold else say("adapters.sky_nothing_sold", place=place)
            for site, place in self._places.items()
        }


def _site(name: str, place: str) -> str:
    """As its offers name it."""
    return f"{name}-{place.replace('/', '-')}".lower()


def skypilot_provider(site: Site, given: Surroundings) -> Vendor:
    options = options_of(site, SkyPilotOptions)
    if not site.checkpoints:
        raise BadInput(say("sites.provider_needs_store", site=site.site))
    places = [PLACE.fullmatch(place) for place in options.infra]
    for key, value, is_wrong in (
        ("infra", options.infra, not places or not all(places)),
        ("infra", options.infra, any(found and found[1] in WITHOUT_SSH for found in places)),
        ("address", site.address, site.address and not re.match(r"https?://[^/]", site.address)),
        ("lead_s", options.lead_s, options.lead_s < 0),
    ):
        if is_wrong:
            raise BadInput(say("sites.bad_value", site=site.site, key=key, value=Quoted(str(value)[:60])))
    folder = given.folder / ".machines"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = SkyPilotProvider(site.site, options, folder, site.address)
    reach = replace(options, ssh=("-F", str(made.config), *options.ssh))
    engines = [
        ssh_engine(replace(site, site=each), replace(given, folder=given.folder.parent / each), reach)
        for each in made.sites
    ]
    return Vendor(made, engines)
