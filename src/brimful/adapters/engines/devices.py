"""Which GPUs this machine has, from what its driver says of each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brimful.errors import NotFound
from brimful.specs.gpu import find_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What the driver says of one GPU, or of one MIG slice of it."""

    device: str  # as CUDA_VISIBLE_DEVICES takes it
    name: str  # the driver's own words; empty: it does not say
    problem: str = ""
    is_slice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """GPUs of one type, in the driver's order."""

    gpu: str
    devices: tuple[str, ...]
    holes: tuple[int, ...] = ()  # places in `devices` of those that are there but bad


def group_devices(listed: Sequence[Device]) -> list[DeviceGroup]:
    """The devices by type.

    A bad one keeps its place, so that those after it keep theirs while jobs run on them. Slices stand alone:
    a program of CUDA sees one of them, so that a gang of two on one node would not see its second.
    """
    cards = [device for device in listed if not device.is_slice]
    names = {catalog_name(card.name) for card in cards if card.name}
    only = names.pop() if len(names) == 1 else ""  # a card that is lost cannot tell its name
    types: dict[str, list[Device]] = {}
    for card in cards:
        if gpu := catalog_name(card.name) if card.name else only:
            types.setdefault(gpu, []).append(card)
    groups = [
        DeviceGroup(
            gpu=gpu,
            devices=tuple(card.device for card in those),
            holes=tuple(i for i, card in enumerate(those) if card.problem),
        )
        for gpu, those in types.items()
    ]
    slices = [device for device in listed if device.is_slice and not device.problem]
    return groups + [DeviceGroup(gpu=catalog_name(each.name), devices=(each.device,)) for each in slices]


def catalog_name(text: str) -> str:
    """The catalog's name for a card, or the driver's own words where the catalog does not know it."""
    try:
        return find_gpu(text).name
    except NotFound:
        return "-".join(text.lower().split())[:64] or "gpu"
