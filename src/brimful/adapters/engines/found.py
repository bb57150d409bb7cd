"""Which GPUs this machine has, from what its driver says of each card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brimful.errors import NotFound
from brimful.specs.gpu import find_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the driver says of one GPU, or of one MIG slice of it."""

    device: str  # as CUDA_VISIBLE_DEVICES takes it
    name: str  # the driver's own words; empty: it does not say
    problem: str = ""
    is_slice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """GPUs of one type, in the driver's order."""

    gpu: str
    devices: tuple[str, ...]
    holes: tuple[int, ...] = ()  # places in `devices` of those that are there but bad


def grouped(cards: Sequence[Card]) -> list[Found]:
    """The cards by type.

    A bad one keeps its place, so that those after it keep theirs while jobs run on them. Slices stand alone:
    a program of CUDA sees one of them, so that a gang of two on one node would not see its second.
    """
    whole = [card for card in cards if not card.is_slice]
    names = {catalog_name(card.name) for card in whole if card.name}
    only = names.pop() if len(names) == 1 else ""  # a card that is lost cannot tell its name
    types: dict[str, list[Card]] = {}
    for card in whole:
        if gpu := catalog_name(card.name) if card.name else only:
            types.setdefault(gpu, []).append(card)
    found = [
        Found(
            gpu=gpu,
            devices=tuple(card.device for card in those),
            holes=tuple(i for i, card in enumerate(those) if card.problem),
        )
        for gpu, those in types.items()
    ]
    slices = [card for card in cards if card.is_slice and not card.problem]
    return found + [Found(gpu=catalog_name(card.name), devices=(card.device,)) for card in slices]


def catalog_name(text: str) -> str:
    """The catalog's name for a card, or the driver's own words where the catalog does not know it."""
    try:
        return find_gpu(text).name
    except NotFound:
        return "-".join(text.lower().split())[:64] or "gpu"
