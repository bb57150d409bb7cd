"""`Gpu`: what one card can hold, move and multiply; and the catalog, searchable by any common name.

The catalog is `gpus.toml`; `names.py` says how it is searched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from brimful.errors import NotFound
from brimful.language import Number, Quoted, either, say
from brimful.specs.names import Catalog
from brimful.units import GIB

# What vendors and drivers put around the distinguishing part of a name.
_NOISE = frozenset({
    "nvidia", "geforce", "tesla", "quadro", "amd", "radeon", "instinct",
    "graphics", "gpu", "generation", "workstation", "edition", "hbm",
})  # fmt: skip

# Cards that exist and have no row, but are one keystroke from one that has: a fleet may well hold them.
_UNLISTED = frozenset({
    "h20", "h800", "p40", "p6", "m4", "m40", "k20", "k40", "a10m", "l2", "t10", "t40", "titan-x",
    "rtx-2060", "rtx-2070", "rtx-3050", "rtx-3070-ti", "rtx-4050", "rtx-5050", "rtx-5000-ada", "rtx-4500-ada",
    "rtx-a400", "rtx-a1000", "rtx-a2000", "rtx-a5500", "rtx-pro-2000", "b100", "b40",
    "mi25", "mi50", "mi300a", "mi308x", "mi350x", "mi455x",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card as a training process sees it. Peaks are dense, with fp32 accumulate."""

    name: str
    title: str  # as nvidia-smi or rocm-smi prints it
    vendor: str
    architecture: str
    year: int
    memory_bytes: int  # what the framework sees, less than advertised
    memory_basis: str  # seen, recalled or estimated: how far to trust memory_bytes
    bandwidth_bytes_per_s: float
    dense_flops_per_s: dict[str, float]  # number format -> peak; a format the card lacks is absent
    # Best published bf16 matmul (fp16 without bf16), or derived from another card's; None: unknown.
    achievable_flops_per_s: float | None
    board_watts: int | None = (
        None  # None if the limit is not needed: the card, or a similar one, was measured
    )
    clocked_like: str = ""  # the measured card from which the achievable rate is derived
    bf16: bool  # in hardware; emulation does not count
    geforce: bool = False  # sold to drive a display: by default, a desktop holds some of its memory
    processors: int
    link_bytes_per_s: float | None  # NVLink or Infinity Fabric, both directions together
    pcie_generation: int | None = None
    aliases: tuple[str, ...]
    note: str = ""
    source: str

    def as_dict(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "aliases": list(self.aliases)}


def find_gpu(text: str) -> Gpu:
    """The card meant by `text`, written the way people and drivers write it.

    A name that several cards share is refused with the choices: an A100 with 40 GB is not one with 80.
    """
    try:
        return _load(_CATALOG.find(text))
    except NotFound as unknown:
        return _without_its_size(text, unknown)


def _without_its_size(text: str, unknown: NotFound) -> Gpu:
    """'RTX 4090 24GB': people add gigabytes that the catalog does not need. They must match the card."""
    size = re.search(r"[\s-]*\b(\d{1,4})\s*(?:gb|gib|g)\b", text, re.IGNORECASE)
    if unknown.code != "unknown_gpu" or size is None:
        raise unknown
    try:
        card = _load(_CATALOG.find(text[: size.start()] + text[size.end() :]))
    except NotFound:
        raise unknown from None
    if not 0.9 <= card.memory_bytes / GIB / int(size[1]) <= 1.02:
        raise NotFound(
            say(
                "specs.size_unknown",
                title=card.title,
                size=size[1],
                name=card.name,
                size_known=Number(card.memory_bytes / GIB, 1),
            ),
            code="unknown_gpu",
        )
    return card


def is_in_catalog(text: str) -> bool:
    """Whether a card is meant by it, or several: 'a100'."""
    try:
        find_gpu(text)
    except NotFound as error:
        return error.code == "ambiguous_gpu"
    return True


def variants_of(text: str) -> list[str]:
    """The cards that a name may mean: 'a100' is any of four."""
    return _CATALOG.variants(text)


def slips_of_gpus(text: str) -> list[str]:
    """The cards one keystroke away from a name that no card has: it is surely a slip.

    For where any name is allowed, since fleets hold cards that the catalog does not know.
    """
    try:
        find_gpu(text)
        return []
    except NotFound as unknown:
        near = _CATALOG.slips(text) if unknown.code == "unknown_gpu" else []
    own = {" ".join(_words(name)) for name in _UNLISTED}
    return [] if " ".join(_words(text)) in own else near


def refuse_slip(text: str) -> None:
    """Raise for a slip in a name that somebody gives a card; they may choose another one."""
    near = slips_of_gpus(text)
    if not near:
        return
    names, name = either(near[:3]), text[:40]
    hint = say("specs.hint_gpu_slip", names=names, name="-".join(name.lower().split()))
    problem = say("specs.name_unknown", kind=say("specs.kind_gpu"), name=Quoted(name))
    raise NotFound(problem, hint=hint, code="unknown_gpu")


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Every card of the catalog, in the order of the file."""
    return tuple(_load(name) for name in _CATALOG.names())


def _words(text: str) -> list[str]:
    """'NVIDIA A100-SXM4-80GB' -> a 100 sxm 80 gb: digits are separated, so 'rtx4070' is 'RTX 4070'."""
    plain = re.sub(r"(sxm|hbm)\d+e?", r"\1", text.lower()[:200])
    return [word for word in re.findall(r"[a-z]+|\d+", plain) if word not in _NOISE]


_CATALOG = Catalog(
    "gpus.toml",
    kind=say("specs.kind_gpu"),
    every=say("specs.hint_list_gpus"),
    words=_words,
    ambiguous=lambda problem, hint: NotFound(problem, hint=hint, code="ambiguous_gpu"),
    unknown=lambda problem, hint: NotFound(problem, hint=hint, code="unknown_gpu"),
    drops="rtx ",
)


@cache
def _load(name: str) -> Gpu:
    row = _CATALOG.row(name)
    achievable, link = row.pop("achievable_tflops", None), row.pop("link_gb_per_s", None)
    peaks = row.pop("dense_tflops")
    if "clocked_like" in row:
        achievable = _under_power(_load(row["clocked_like"]), row["board_watts"], row["processors"])
    return Gpu(
        name=name,
        memory_bytes=round(row.pop("memory_gib") * GIB),
        bandwidth_bytes_per_s=row.pop("bandwidth_gb_per_s") * 1e9,
        dense_flops_per_s={number: tflops * 1e12 for number, tflops in peaks.items()},
        achievable_flops_per_s=None if achievable is None else achievable * 1e12,
        link_bytes_per_s=None if link is None else link * 1e9,
        aliases=tuple(row.pop("aliases", ())),
        **row,
    )


def _under_power(measured: Gpu, watts: int, processors: int) -> float:
    """TFLOPS of a matmul on a card of the same chip family, limited by its own power limit.

    Formula: rate ~ N·f and power ~ N·f·V², voltage proportional to the clock, so rate ~ N^(2/3) · P^(1/3).
    Checked: an A100 PCIe (300 W) comes out at 246 TFLOPS from an SXM's 271 (400 W); 253 were measured.
    """
    assert measured.achievable_flops_per_s is not None, measured.name
    assert measured.board_watts is not None, measured.name
    power, chip = watts / measured.board_watts, processors / measured.processors
    share: float = chip ** (2 / 3) * power ** (1 / 3)
    return round(measured.achievable_flops_per_s / 1e12 * share, 1)
