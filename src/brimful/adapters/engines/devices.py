"""This machine's GPUs, from what the driver reports about each device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from brimful.errors import NotFound, Said
from brimful.language import Quoted, say
from brimful.scheduler.ports import CannotStart
from brimful.specs.gpu import find_gpu, variants_of

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
MOST_GPUS = 1024  # per node


def why_strange(node: str, gpus: int) -> Said | None:
    """Why a site's description of a node is rejected: its name becomes part of other names and is shown in
    terminals, and every tick counts each of its GPUs."""
    if NODE_NAME.fullmatch(node) and gpus <= MOST_GPUS:
        return None
    return say("adapters.strange_node", node=Quoted(node[:60]), gpus=gpus, most=MOST_GPUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What the driver reports about one GPU or one of its MIG slices."""

    device: str  # in CUDA_VISIBLE_DEVICES form
    name: str  # as the driver reports it; empty: it does not
    problem: str = ""
    is_slice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """GPUs of one type, in the driver's order."""

    gpu: str
    devices: tuple[str, ...]
    holes: tuple[int, ...] = ()  # positions in `devices` that are present but bad


def group_devices(listed: Sequence[Device]) -> list[DeviceGroup]:
    """The devices by type.

    A bad one keeps its position, so that positions of the others do not shift while jobs run on them. Each
    slice is a group by itself: a CUDA program sees only one slice, so a gang of two would not see its second.
    """
    cards = [device for device in listed if not device.is_slice]
    names = {catalog_name(card.name) for card in cards if card.name}
    only = names.pop() if len(names) == 1 else ""  # a lost card cannot report its name
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
    """The catalog's name for a card, or the driver's name if the catalog does not know it."""
    try:
        return find_gpu(text).name
    except NotFound:
        return "-".join(text.lower().split())[:64] or "gpu"


def catalog_names(texts: Iterable[str]) -> list[str]:
    """The types that a job accepts: 'a100' is an A100 of any size, or what a site calls just that."""
    found = [[catalog_name(text), *variants_of(text)] for text in texts]
    return list(dict.fromkeys(name for names in found for name in names))


DRIVER = Path("/proc/driver/nvidia/gpus")
ALL_GPUS = (
    "nvidiactl",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-modeset",
)  # opened by every CUDA program


def device_files(devices: Sequence[str], *, driver: Path = DRIVER, dev: Path = Path("/dev")) -> list[str]:
    """The files in /dev for these GPUs and those that all GPUs share; none without an NVIDIA driver.

    The driver's folder has one entry per card, named by bus address, which is also the order of the indices.
    """
    cards = sorted(driver.glob("*/information"))
    if not cards:
        return []
    files = [dev / name for name in ALL_GPUS]
    for device in devices:
        known = int(device) < len(cards) if device.isdecimal() else False
        minor = re.search(r"^Device Minor:\s*(\d+)", cards[int(device)].read_text(), re.M) if known else None
        if minor is None:  # a MIG slice has its own files, which brimful does not handle yet
            raise CannotStart(say("adapters.no_device_file", device=Quoted(device[:60]), cards=len(cards)))
        files.append(dev / f"nvidia{minor[1]}")
    return [str(file) for file in files if file.exists()]
