"""Which GPUs this machine really has, as its driver lists them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from brimful.errors import NotFound
from brimful.specs.gpu import find_gpu

QUERY = ("--query-gpu=index,name", "--format=csv,noheader")
TIMEOUT_S = 10  # a driver that takes longer is stuck, and the server must start all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """GPUs of one type; `indices` are the driver's own, as CUDA_VISIBLE_DEVICES takes them."""

    gpu: str
    indices: tuple[int, ...]


def found_gpus() -> list[Found]:
    """The machine's NVIDIA GPUs by type; empty where there are none or the driver does not answer.

    nvidia-smi comes with the driver, so nothing has to be installed to ask it.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        asked = subprocess.run(
            [tool, *QUERY], capture_output=True, text=True, timeout=TIMEOUT_S, check=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return []
    types: dict[str, list[int]] = {}
    for line in asked.stdout.splitlines():
        index, comma, name = line.partition(",")
        if comma and index.strip().isdigit():
            types.setdefault(catalog_name(name.strip()), []).append(int(index))
    return [Found(gpu=gpu, indices=tuple(indices)) for gpu, indices in types.items()]


def catalog_name(text: str) -> str:
    """The catalog's name for a card, or the driver's own words where the catalog does not know it."""
    try:
        return find_gpu(text).name
    except NotFound:
        return "-".join(text.lower().split())[:64] or "gpu"
