"""A list of ssh machines that can be taken and given back: a depot, a reseller, a friendly lab.

The list is a TOML file, read again when it changes. A machine that is no longer in it is gone, with
everything on it; its price is always the current one. One file per node records its machine: a node is made
once, and is found again after a crash.

    [[machine]]
    address = "root@10.0.0.5"
    gpu = "rtx-4090"
    gpus = 2
    usd_per_hour = 0.80        # of the whole machine
    tier = "spot"              # default: on_demand
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from brimful.adapters.engines.devices import catalog_name
from brimful.adapters.engines.lease_folders import facts, failing
from brimful.adapters.engines.ssh import command as ssh
from brimful.adapters.engines.ssh.engine import Reach, ssh_engine
from brimful.adapters.files import write_json
from brimful.adapters.sites import Site, Surroundings, Vendor, options_of
from brimful.errors import BadInput, BrimfulError, Said, WorldFailed
from brimful.fleet.events import NodeOrdered
from brimful.fleet.node import Tier
from brimful.language import Quoted, Seconds, Usd, os_words, say, verbatim
from brimful.scheduler.cloud.providers import CannotMake, Made
from brimful.scheduler.ports import Failures
from brimful.specs.offer import Offer
from brimful.units import microusd_from_usd

MOST_BYTES = 4 << 20
EXAMINE_S = 20.0
EXAMINED_AT_ONCE = 8
SOLD: tuple[Tier, ...] = ("on_demand", "spot")


class Listed(NamedTuple):
    address: str
    gpu: str
    gpus: int
    tier: str
    microusd_per_hour: int
    lead_s: int = 0
    least_s: int = 0
    quantum_s: int = 1

    @property
    def kind(self) -> tuple[str, int, str]:
        """What is sold at one price."""
        return self.gpu, self.gpus, self.tier


class MachinesProvider:
    def __init__(self, name: str, path: Path, folder: Path, reach: Reach | None = None) -> None:
        """`folder`: records which machine is behind which node."""
        self.name, self.sites, self._reach = name, (name,), reach or Reach()
        self._path, self._folder = path, folder
        self._stamp: tuple[int, int] | None = None
        self._listed: dict[str, Listed] = {}  # by address
        self._offers: list[Offer] = []

    def _read(self) -> dict[str, Listed]:
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                with self._path.open("rb") as file:
                    text = file.read(MOST_BYTES).decode()
                self._listed = self._parse(tomllib.loads(text, parse_float=Decimal))
                self._stamp = stamp
        except OSError as error:
            said = say("adapters.machines_unreadable", path=self._path, why=os_words(error))
            raise WorldFailed(said) from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise BadInput(say("adapters.machines_unreadable", path=self._path, why=str(error))) from error
        return self._listed

    def _parse(self, tables: dict[str, Any]) -> dict[str, Listed]:
        found: dict[str, Listed] = {}
        rows = tables.get("machine", [])
        for n, row in enumerate(rows if isinstance(rows, list) else [], 1):
            each = _machine(row, where=f"{self._path.name} machine {n}")
            if each.address in found:
                raise BadInput(say("adapters.machine_twice", address=each.address, path=self._path.name))
            other = next((one for one in found.values() if one.kind == each.kind), each)
            if other[4:] != each[4:]:
                both = f"{other.address}, {each.address}"
                raise BadInput(say("adapters.machines_prices_differ", machines=both, path=self._path.name))
            found[each.address] = each
        return found

    def _taken(self) -> dict[str, tuple[str, int]]:
        """By node, its machine's address and since when we have it."""
        with failing("adapters.cannot_keep_machines", folder=self._folder):
            files = [each for each in self._folder.iterdir() if each.suffix == ".json"]
        found = {}
        for file in files:
            told = facts(file) or {}
            if isinstance(told.get("address"), str) and isinstance(told.get("at_s"), int):
                found[file.stem] = (told["address"], told["at_s"])
        return found

    def offers(self) -> Sequence[Offer]:
        listed, taken = self._read(), {address for address, _ in self._taken().values()}
        offers: dict[tuple[str, int, str], Offer] = {}
        for each in listed.values():
            is_free = each.address not in taken
            if each.kind not in offers or is_free:
                offers[each.kind] = Offer(
                    provider=self.name,
                    region="",
                    zone="",
                    instance=f"{each.gpu}x{each.gpus}",
                    gpu=each.gpu,
                    gpus=each.gpus,
                    microusd_per_hour=each.microusd_per_hour,
                    is_spot=each.tier == "spot",
                    lead_s=each.lead_s,
                    least_s=each.least_s,
                    quantum_s=each.quantum_s,
                    is_there=is_free,
                )
        if list(offers.values()) != self._offers:
            self._offers = list(offers.values())
        return self._offers

    def make(self, orders: Sequence[NodeOrdered]) -> Failures:
        failed: dict[str, BrimfulError] = {}
        listed, taken = self._read(), self._taken()
        for order in orders:
            if order.node in taken:
                continue
            held = {address for address, _ in taken.values()}
            kind = (order.gpu, order.gpus, order.tier)
            free = [each for each in listed.values() if each.kind == kind and each.address not in held]
            if not free:
                failed[order.node] = CannotMake(say("adapters.no_machine_free", name=self.name))
            elif free[0].microusd_per_hour > order.microusd_per_gpu_hour * order.gpus:
                price = Usd(free[0].microusd_per_hour)
                failed[order.node] = CannotMake(say("adapters.machine_dearer", name=self.name, price=price))
            else:
                with failing("adapters.cannot_keep_machines", folder=self._folder):
                    write_json(
                        self._folder / f"{order.node}.json", {"address": free[0].address, "at_s": order.at_s}
                    )
                taken[order.node] = (free[0].address, order.at_s)
        return failed

    def watch(self) -> Sequence[Made]:
        listed, made = self._read(), list[Made]()
        for node, (address, at_s) in sorted(self._taken().items()):
            if address in listed:
                made.append(Made(node, "ready", at_s, address=address))
            else:
                self.remove([node])
        return made

    def remove(self, nodes: Sequence[str]) -> Failures:
        with failing("adapters.cannot_keep_machines", folder=self._folder):
            for node in nodes:
                (self._folder / f"{node}.json").unlink(missing_ok=True)
        return {}

    def examine(self) -> Mapping[str, Said | None]:
        """Whether each listed machine is reachable and has a recent enough Python."""
        addresses = list(self._read())
        with ThreadPoolExecutor(EXAMINED_AT_ONCE) as threads:
            return dict(zip(addresses, threads.map(self._examine, addresses), strict=True))

    def _examine(self, address: str) -> Said | None:
        asked = shlex.join((self._reach.python, "-c", "import sys; print(*sys.version_info[:2])"))
        command = [*ssh.ssh_to(address, *self._reach.ssh), asked]
        env = {key: os.environ[key] for key in ssh.PASSED_ON if key in os.environ}
        try:
            done = subprocess.run(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=EXAMINE_S,
            )
        except subprocess.TimeoutExpired:
            return say("adapters.ssh_silent", address=address, limit_s=Seconds(EXAMINE_S))
        except OSError as error:
            return say("adapters.ssh_failed", address=address, why=os_words(error))
        version = done.stdout.split()
        if done.returncode or len(version) != 2 or not all(each.isdigit() for each in version):
            last = (done.stderr.strip().splitlines() or ["-"])[-1][-300:]
            return say("adapters.ssh_failed", address=address, why=verbatim(last))
        if tuple(map(int, version)) < (3, 11):
            return say("adapters.ssh_old_python", address=address, version=verbatim(".".join(version)))
        return None


def _machine(row: object, *, where: str) -> Listed:
    values = dict(row) if isinstance(row, dict) else {}

    def refuse(key: str, value: object) -> BadInput:
        return BadInput(say("adapters.bad_machine", where=where, key=key, value=Quoted(str(value)[:60])))

    def whole(key: str, default: int, *, least: int, most: int) -> int:
        found = values.pop(key, default)
        if type(found) is not int or not least <= found <= most:
            raise refuse(key, found)
        return found

    address, gpu, tier = (values.pop(key, given) for key, given in _TEXTS)
    price = values.pop("usd_per_hour", None)
    microusd = None if price is None or isinstance(price, bool) else microusd_from_usd(str(price))
    if not isinstance(address, str) or not ssh.ADDRESS.fullmatch(address):
        raise refuse("address", address)
    if not isinstance(gpu, str) or not gpu:
        raise refuse("gpu", gpu)
    if tier not in SOLD:
        raise refuse("tier", tier)
    if microusd is None:
        raise refuse("usd_per_hour", price)
    found = Listed(
        address,
        catalog_name(gpu),
        whole("gpus", 1, least=1, most=1024),
        tier,
        microusd,
        whole("lead_s", 0, least=0, most=86_400),
        whole("least_s", 0, least=0, most=86_400),
        whole("quantum_s", 1, least=1, most=86_400),
    )
    for key, value in values.items():
        raise refuse(key, value)
    return found


_TEXTS = (("address", ""), ("gpu", ""), ("tier", "on_demand"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesOptions(Reach):
    """Keys of a provider with `kind = "machines"`."""

    machines: str  # the file with the list


def machines_provider(site: Site, given: Surroundings) -> Vendor:
    options = options_of(site, MachinesOptions)
    if not site.checkpoints:
        raise BadInput(say("sites.provider_needs_store", site=site.site))
    folder = given.folder / ".machines"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = MachinesProvider(site.site, Path(options.machines).expanduser(), folder, options)
    return Vendor(made, [ssh_engine(site, given, options)])
