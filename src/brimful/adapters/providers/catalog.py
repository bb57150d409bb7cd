"""The catalog provider: offers from a file or SkyPilot's folder, with nothing behind them.

It says what could be bought at what price, so that a plan can be tried. Orders are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from brimful.adapters.providers.offers import LeftOut, read_offers
from brimful.adapters.sites import Site, Surroundings, Vendor, options_of
from brimful.fleet.events import NodeOrdered
from brimful.language import say
from brimful.scheduler.cloud.providers import CannotMake, Made
from brimful.scheduler.ports import Failures
from brimful.specs.offer import Offer


class CatalogProvider:
    sites: Sequence[str] = ()

    def __init__(self, name: str, path: Path, *, is_there: bool = True) -> None:
        """`is_there`: report the listed offers as available, for a rehearsal."""
        self.name, self._path, self._is_there = name, path, is_there
        self._offers: list[Offer] = []
        self._read_s: tuple[float, ...] = ()
        self.left_out: LeftOut = {}  # unusable rows, and why

    def offers(self) -> Sequence[Offer]:
        """Read again when the file has changed; the same list until then."""
        files = [self._path, *self._path.glob("*/vms.csv")] if self._path.is_dir() else [self._path]
        changed_s = tuple(file.stat().st_mtime for file in files if file.exists())
        if changed_s != self._read_s or not self._offers:
            read, self.left_out = read_offers(self._path)
            self._offers = [replace(offer, is_there=self._is_there) for offer in read]
            self._read_s = changed_s
        return self._offers

    def make(self, orders: Sequence[NodeOrdered]) -> Failures:
        return {order.node: CannotMake(say("adapters.only_a_catalog", name=self.name)) for order in orders}

    def watch(self) -> Sequence[Made]:
        return ()

    def remove(self, nodes: Sequence[str]) -> Failures:  # noqa: ARG002 - nothing to remove
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogOptions:
    """Keys of a provider with `kind = "catalog"`."""

    path: str  # a CSV or TOML of offers, or the folder of a SkyPilot catalog


def catalog_provider(site: Site, _given: Surroundings) -> Vendor:
    path = Path(options_of(site, CatalogOptions).path).expanduser()
    return Vendor(CatalogProvider(site.site, path, is_there=False))
