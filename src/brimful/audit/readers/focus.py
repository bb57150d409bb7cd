"""Bills in the FinOps Open Cost and Usage Specification (FOCUS 1.0 to 1.3), as CSV.

A usage row costs its EffectiveCost, which includes its share of every commitment it drew on; the purchase of
the commitment is the same money again and is left out. Unused commitments and reservations have separate
rows, with the status Unused: paid, but not delivered. A machine's GPUs are GpuCount of SkuPriceDetails, or
are looked up by instance type. Credits, taxes and adjustments buy no GPU time and are counted separately; so
are corrections of an earlier period.
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

from brimful.audit.readers.slurm import moment
from brimful.audit.records import Paid, Records
from brimful.sim.traces.reading import columns_of
from brimful.units import HOUR_S, MICROUSD

NEEDED = {"ChargeCategory", "EffectiveCost", "ChargePeriodStart", "ChargePeriodEnd"}
MOST_GPUS, MOST_USD = 10**6, 10**12
CONTRACT = {"ContractCommitmentId", "ContractCommitmentCost"}


def is_bill(head: str) -> bool:
    return set(columns_of(head)) >= NEEDED


def is_contract(head: str) -> bool:
    return set(columns_of(head)) >= CONTRACT


def read(lines: Iterator[str], records: Records) -> None:
    laid: dict[object, int] = {}  # a machine and a period -> end of its rows so far
    for row in csv.DictReader(lines):
        cells = {name: "" if value in (None, "NULL") else value for name, value in row.items()}
        if cells["ChargeCategory"] != "Usage" or cells.get("ChargeClass") == "Correction":
            kind = cells["ChargeCategory"].lower()
            records.left_out["bill_purchase" if kind == "purchase" else "bill_not_usage"] += 1
            continue
        gpu, gpus = _gpus(cells)
        if not gpus:
            records.left_out["bill_no_gpu"] += 1
            continue
        try:
            records.paid.append(_paid(cells, gpu, gpus, laid, records))
        except (ArithmeticError, ValueError):
            records.left_out["bad_row"] += 1


def _paid(cells: Mapping[str, str], gpu: str, gpus: int, laid: dict[object, int], records: Records) -> Paid:
    start, end = (
        moment(cells[f"ChargePeriod{which}"].replace("Z", "+00:00"), UTC) for which in ("Start", "End")
    )
    if start is None or end is None or end <= start:
        raise ValueError
    status = (cells.get("CommitmentDiscountStatus"), cells.get("CapacityReservationStatus"))
    name = cells.get("ResourceName") or cells.get("ResourceId", "").rpartition("/")[2]
    hours = _hours(cells)
    if hours is not None:
        # Less than the period: it ran for that long. More: the row covers several machines.
        machines = max(1, round(hours * HOUR_S / (end - start)))
        gpus *= machines
        seconds = min(end - start, round(hours * HOUR_S / machines))
        if seconds <= 0 or gpus > MOST_GPUS:
            raise ValueError
        # An hour partly covered by a commitment has two rows: one follows the other.
        period = (name, gpu, "Unused" in status, start, end)
        start = min(laid.get(period, start), end - seconds)
        end = laid[period] = start + seconds
    cost = Decimal(cells["EffectiveCost"])
    if abs(cost) > MOST_USD:
        raise ValueError
    microusd: int | None = round(cost * MICROUSD)
    if cells.get("BillingCurrency", "USD") != "USD":
        records.left_out["currency"] += 1
        microusd = None
    return Paid(
        place=name,
        gpu=gpu,
        gpus=gpus,
        start_s=start,
        end_s=end,
        microusd=microusd,
        unused="Unused" in status,
    )


def _hours(cells: Mapping[str, str]) -> float | None:
    for quantity, unit in (("ConsumedQuantity", "ConsumedUnit"), ("PricingQuantity", "PricingUnit")):
        if cells.get(unit, "").lower() in ("hours", "hour", "hrs") and cells.get(quantity):
            return float(cells[quantity])
    return None


def _gpus(cells: Mapping[str, str]) -> tuple[str, int]:
    details = _details(cells.get("SkuPriceDetails", ""))
    instance = str(details.get("InstanceType") or cells.get("x_InstanceType") or "")
    gpu, gpus = instances().get(instance, ("", 0))
    count = details.get("GpuCount")
    if isinstance(count, (int, float)) and 0 < count <= 1024:
        return gpu or instance, int(count)
    return gpu, gpus


def _details(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@cache
def instances() -> dict[str, tuple[str, int]]:
    """Instance type -> GPU type and how many."""
    table = tomllib.loads(files("brimful.audit").joinpath("instances.toml").read_text("utf-8"))
    return {name: (gpu, gpus) for gpu, rows in table["gpus"].items() for name, gpus in rows.items()}
