"""`Torch`: what the installed release of PyTorch decides about memory.

A release is an input (`--torch 1.12`), never guessed from the card or from where a run was published.
`torch_changes.toml` lists what changed with which release, each with the change it was read in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache

from brimful.errors import BadInput
from brimful.language import Quoted, say
from brimful.specs.names import read_table

_RELEASE = re.compile(r"v?(\d{1,2})\.(\d{1,3})(?:\.\d{1,3})?(?:[ab.+-].{0,40}|rc\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """The defaults are the current PyTorch, which is assumed if no release is named."""

    release: str = "current"
    keeps_gradients: bool = False  # zero_grad() zeroes gradients and keeps them
    foreach: bool = True  # optimizers process all tensors at once by default: one more copy on the way
    compiles: bool = True  # torch.compile exists
    sdpa: bool = True  # scaled_dot_product_attention exists: flash and memory-efficient kernels
    softmax_keeps_input: bool = False  # besides its output
    lazy_loading: bool = True  # kernels are loaded on first use: a smaller CUDA context


CURRENT = Torch()
_FACTS = frozenset(field.name for field in fields(Torch)) - {"release"}


def find_torch(text: str) -> Torch:
    """The release as people and pip write it: 1.12, 2.1.0+cu118, v2.6; `current` is the current one."""
    said = text.strip().lower()[:60]
    if said in ("", "current", "latest"):
        return CURRENT
    match = _RELEASE.fullmatch(said.removeprefix("torch").lstrip("= "))
    if match is None or int(match[1]) == 0:
        raise BadInput(say("specs.torch_unknown", text=Quoted(text[:40])))
    return _torch(int(match[1]), int(match[2]))


@cache
def _torch(major: int, minor: int) -> Torch:
    changes = read_table("torch_changes.toml")
    assert changes.keys() == _FACTS, changes.keys() ^ _FACTS
    values = {
        fact: each["is"] if [major, minor] >= [*map(int, each["since"].split("."))] else each["before"]
        for fact, each in changes.items()
    }
    return Torch(release=f"{major}.{minor}", **values)
