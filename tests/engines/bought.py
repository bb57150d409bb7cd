"""Clouds of plain machines on loopback, for servers that buy."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.sshd import Machines


@dataclass
class Depot:
    """What one provider sells: its list, which the test writes as the world changes."""

    name: str
    folder: Path
    machines: Machines
    hosts: tuple[str, ...]
    usd: float
    tier: str = "on_demand"

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.toml"

    def sell(self, *, usd: float | None = None, without: tuple[str, ...] = ()) -> None:
        self.usd = self.usd if usd is None else usd
        rows = [
            f'[[machine]]\naddress = "{host}"\ngpu = "t4"\ngpus = 1\nusd_per_hour = {self.usd}\n'
            f'tier = "{self.tier}"\n'
            for host in self.hosts
            if host not in without
        ]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(rows))
        new.replace(self.path)

    def table(self, **more: object) -> str:
        (self.folder / "store").mkdir(exist_ok=True)
        given = {
            "kind": "machines",
            "machines": str(self.path),
            "checkpoints": str(self.folder / "store"),
            "ssh": list(self.machines.flags),
            "python": sys.executable,
            "folder": str(self.folder / f"{self.name}-nodes"),
            **more,
        }
        return table(f"providers.{self.name}", given)

    def taken(self, data: Path) -> list[str]:
        """The nodes behind which a machine stands now."""
        return sorted(each.stem for each in (data / "sites" / self.name / ".machines").glob("*.json"))


def providers(**given: object) -> str:
    return table("providers", given)


def table(name: str, given: Mapping[str, Any]) -> str:
    return "".join([f"[{name}]\n", *(f"{key} = {json.dumps(value)}\n" for key, value in given.items()), "\n"])
