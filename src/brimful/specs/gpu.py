"""`Gpu`: what one card can hold, move and multiply; and the catalog that knows them by any name people use.

The catalog is `gpus.toml`, one self-contained table per card. A lookup parses that one table only, because
reading all of them costs as much as starting Python, and start-up time is a promise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from brimful.errors import NotFound
from brimful.units import GIB

# What vendors and drivers put around the part of a name that tells cards apart.
_NOISE = frozenset({
    "nvidia", "geforce", "tesla", "quadro", "amd", "radeon", "instinct",
    "graphics", "gpu", "generation", "workstation", "edition", "hbm",
})  # fmt: skip
_TOO_MANY = 8  # how many choices an ambiguous name may list before it stops helping


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card as a training process meets it. Peaks are dense, with fp32 accumulate."""

    name: str
    title: str  # as nvidia-smi or rocm-smi prints it
    vendor: str
    architecture: str
    year: int
    memory_bytes: int  # what the framework sees, less than the box says
    memory_basis: str  # seen, recalled or estimated: how far to trust memory_bytes
    bandwidth_bytes_per_s: float
    dense_flops_per_s: dict[str, float]  # number format -> peak; a format the card lacks is absent
    achievable_flops_per_s: float | None  # best published bf16 matrix multiply; None where nobody measured
    bf16: bool  # in hardware; emulation counts as no
    processors: int
    link_bytes_per_s: float | None  # NVLink or Infinity Fabric, both directions together
    pcie_generation: int | None
    aliases: tuple[str, ...]
    note: str
    source: str

    def as_dict(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "aliases": list(self.aliases)}


def find_gpu(text: str) -> Gpu:
    """The card meant by `text`, written the way people and drivers write it.

    An exact name, title or alias wins; else the one card whose name holds every word. A name that
    several cards share is refused with the choices: an A100 with 40 GB is not one with 80.
    """
    wanted = _key(text)
    exact = [name for name, keys in _index().items() if wanted in keys]
    if wanted and len(exact) == 1:
        return _load(exact[0])
    words = set(_words(text))
    holding = exact or [name for name in _index() if words and words <= set(_words(name))]
    if len(holding) == 1:
        return _load(holding[0])
    if holding:
        shown = ", ".join(holding[:_TOO_MANY]) + (", …" if len(holding) > _TOO_MANY else "")
        raise NotFound(
            f"{text!r} may be any of {len(holding)} GPUs: {shown}",
            hint="name one of them",
            code="ambiguous_gpu",
        )
    raise _unknown(text)


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Every card of the catalog, in the order of the file."""
    return tuple(_load(name) for name in _tables())


def _unknown(text: str) -> NotFound:
    from difflib import get_close_matches

    spoken = {key: name for name, keys in _index().items() for key in keys}
    near = dict.fromkeys(spoken[key] for key in get_close_matches(_key(text), spoken, n=4, cutoff=0.55))
    hint = f"did you mean {' or '.join(list(near)[:3])}? " if near else ""
    return NotFound(
        f"no GPU called {_shorten(text)!r} is known",
        hint=hint + "`brimful gpus` lists them all",
        code="unknown_gpu",
    )


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _words(text: str) -> list[str]:
    """'NVIDIA A100-SXM4-80GB' -> a 100 sxm 80 gb: digits stand apart, so 'rtx4070' is 'RTX 4070'."""
    plain = re.sub(r"(sxm|hbm)\d+e?", r"\1", text.lower()[:200])
    return [word for word in re.findall(r"[a-z]+|\d+", plain) if word not in _NOISE]


def _key(text: str) -> str:
    return " ".join(_words(text))


@cache
def _tables() -> dict[str, str]:
    """Name -> the lines of its table, not parsed yet."""
    text = (Path(__file__).parent / "gpus.toml").read_text(encoding="utf-8")
    parts = (part.partition("]\n") for part in text.split("\n[")[1:])
    return {name: body for name, _, body in parts}


@cache
def _index() -> dict[str, frozenset[str]]:
    """Name -> every way of spelling it that means this card and no other variant of it."""
    index = {}
    for name, body in _tables().items():
        quoted = [
            line.partition(" = ")[2] for line in body.splitlines() if line.startswith(("title", "aliases"))
        ]
        spoken = [name, *re.findall(r'"([^"]+)"', " ".join(quoted))]
        keys = {_key(word) for word in spoken}
        index[name] = frozenset(keys | {key.removeprefix("rtx ") for key in keys})
    return index


@cache
def _load(name: str) -> Gpu:
    import tomllib

    row = tomllib.loads(_tables()[name])
    achievable = row.get("achievable_tflops")
    link = row.get("link_gb_per_s")
    return Gpu(
        name=name,
        title=row["title"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        year=row["year"],
        memory_bytes=round(row["memory_gib"] * GIB),
        memory_basis=row["memory_basis"],
        bandwidth_bytes_per_s=row["bandwidth_gb_per_s"] * 1e9,
        dense_flops_per_s={number: tflops * 1e12 for number, tflops in row["dense_tflops"].items()},
        achievable_flops_per_s=None if achievable is None else achievable * 1e12,
        bf16=row["bf16"],
        processors=row["processors"],
        link_bytes_per_s=None if link is None else link * 1e9,
        pcie_generation=row.get("pcie_generation"),
        aliases=tuple(row.get("aliases", ())),
        note=row.get("note", ""),
        source=row["source"],
    )
