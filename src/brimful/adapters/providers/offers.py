"""Offers from your own CSV or TOML, or from the folder of a SkyPilot catalog.

An unusable row is counted with its reason; a price that is not a number is an error.

Columns: provider, region, zone, instance_type, gpu_model, gpu_family, gpu_count, gpu_mem_gib,
on_demand_usd_h, spot_usd_h (whole instance; empty: not offered), interruptions_per_hour (of spot, if known).
SkyPilot's: InstanceType, AcceleratorName, AcceleratorCount, Price, SpotPrice, Region, AvailabilityZone, in
CLOUD/vms.csv.
"""

from __future__ import annotations

import csv
import gzip
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path

from brimful.errors import BadInput, NotFound
from brimful.language import Quoted, say
from brimful.specs.gpu import find_gpu
from brimful.specs.offer import Offer
from brimful.units import MICROUSD

_SKYPILOT = {
    "InstanceType": "instance_type",
    "AcceleratorName": "gpu_model",
    "AcceleratorCount": "gpu_count",
    "Price": "on_demand_usd_h",
    "SpotPrice": "spot_usd_h",
    "Region": "region",
    "AvailabilityZone": "zone",
}


# Catalog names without memory size or board, and the card that clouds sell under that name.
_MEANT = {
    "V100": "v100-sxm-16gb",
    "A100": "a100-sxm-40gb",
    "H100-MEGA": "h100-sxm-80gb",
    "H100-NVLINK": "h100-sxm-80gb",
    "P100": "p100-pcie-16gb",
}
# Sold only by auction: they list the current price, and an outbid customer has to leave.
_AUCTIONED = frozenset({"mithril"})

UNKNOWN_GPU, SHARE, NO_PRICE = "unknown_gpu", "share", "no_price"  # why a row is left out
LeftOut = dict[str, dict[str, int]]  # reason -> GPU -> rows


def read_offers(path: Path) -> tuple[list[Offer], LeftOut]:
    """(offers, number of rows left out by reason and GPU). A row may offer two prices."""
    offers: list[Offer] = []
    left_out: LeftOut = {}

    def leave_out(why: str, label: str) -> None:
        of = left_out.setdefault(why, {})
        of[label] = of.get(label, 0) + 1

    for where, row in _rows(path):
        label = row.get("gpu_family") or row.get("gpu_model") or row.get("gpu") or ""
        if "-MIG-" in label.upper():
            leave_out(SHARE, label)
            continue
        gpu = _gpu(row.get("gpu_model") or label, label, row.get("gpu_mem_gib") or "")
        if gpu is None:
            leave_out(UNKNOWN_GPU, label)
            continue
        gpus = _number(row.get("gpu_count") or "1", f"gpu_count of {where}")
        if not 1 <= gpus <= 1024 or gpus != int(gpus):
            leave_out(SHARE, label)  # of a card: not a whole instance
            continue
        before = len(offers)
        rate = row.get("interruptions_per_hour")
        for column, is_spot in (("on_demand_usd_h", False), ("spot_usd_h", True)):
            if row.get(column):
                price = _number(row[column], f"{column} of {where}")
                if not 0 < price < 1_000_000:
                    continue  # some catalogs write 0 for what is not offered
                offers.append(
                    Offer(
                        provider=row.get("provider", ""),
                        region=row.get("region", ""),
                        zone=row.get("zone", ""),
                        instance=row.get("instance_type", ""),
                        gpu=gpu,
                        gpus=int(gpus),
                        microusd_per_hour=round(price * MICROUSD),
                        is_spot=is_spot or row.get("provider", "") in _AUCTIONED,
                        interruptions_per_hour=float(_number(rate, where)) if rate else None,
                    )
                )
        if len(offers) == before:
            leave_out(NO_PRICE, label)
    if not offers:
        raise BadInput(say("adapters.no_known_offer", path=path))
    return offers, left_out


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    if path.is_dir():
        files = sorted(path.glob("*/vms.csv"))
        if not files:
            raise NotFound(say("adapters.no_skypilot_catalog", path=path))
        for file in files:
            for where, row in _csv(file):
                plain = {_SKYPILOT.get(key, key): value for key, value in row.items()}
                if plain.get("gpu_model"):
                    yield where, {"provider": file.parent.name, **plain}
    elif path.suffix == ".toml":
        yield from _toml(path)
    else:
        yield from _csv(path)


def _csv(path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="") as file:
            for n, row in enumerate(csv.DictReader(file), 2):
                yield f"{path.name} line {n}", {k: v or "" for k, v in row.items() if isinstance(k, str)}
    except FileNotFoundError as error:
        raise NotFound(say("adapters.no_file", path=path)) from error
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(
            say("adapters.offers_unreadable", name=path.name, error=error),
            hint=say("adapters.hint_offers_csv"),
        ) from error


def _toml(path: Path) -> Iterable[tuple[str, Mapping[str, str]]]:
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("offer", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(
            say("adapters.offers_unreadable", name=path.name, error=error),
            hint=say("adapters.hint_offers_toml"),
        ) from error
    for n, row in enumerate(rows if isinstance(rows, list) else [], 1):
        yield f"{path.name} offer {n}", {key: str(value) for key, value in row.items()}


@cache
def _gpu(model: str, family: str, memory_gib: str) -> str | None:
    """The catalog's name: by model, then family, with the memory if the name alone is ambiguous."""
    gib = memory_gib.partition(".")[0]
    # "RTXA6000", "RTXPRO6000-WK", "RTX PRO Server 6000", "RTX-PRO-6000-CC": one card under many names.
    spaced = re.sub(r"(?i)^RTX[- ]?PRO(?:[- ]?Server)?[- ]?(\d{4}).*", r"RTX PRO \1", model)
    spaced = re.sub(r"(?i)^RTX(?=A\d)", "RTX ", spaced)
    meant = "" if gib else _MEANT.get(model.upper(), "")
    for label in (meant or model, spaced, family):
        for text in (label, f"{label} {gib}GB" if gib else label, f"{label} SXM {gib}GB", f"{label} PCIe"):
            try:
                return find_gpu(text).name
            except NotFound:
                continue
    return None


def _number(text: str, what: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or number < 0:
        raise BadInput(say("adapters.bad_number", what=what, text=Quoted(text[:40])))
    return number
