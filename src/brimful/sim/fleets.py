"""The fleet to rehearse on, from a short spec or a file.

2x8                        2 nodes of 8 GPUs
2x8:h100-sxm-80gb@2.50     of this type, at 2.50 USD per GPU-hour
2x4:v100+4x4:p100+6x4:k80  several kinds together
fleet.toml                 a file with one [[nodes]] table per kind
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from brimful.errors import BadInput, NotFound, unreadable
from brimful.fleet.node import TIERS, Node
from brimful.language import Number, Quoted, Sentence, os_words, say
from brimful.sim.world import SITE
from brimful.specs.gpu import refuse_slip
from brimful.specs.toml import read_toml
from brimful.units import microusd_from_usd

MAX_NODES = 100_000
MAX_GPUS_PER_NODE = 1024
WORD = re.compile(r"(\d{1,9})x(\d{1,9})(?::([A-Za-z0-9._-]{1,64}))?(?:@(\$?[0-9.]{1,20}))?")
HINT = say("sim.hint_fleet")
# Key of a [[nodes]] table -> the type of its value.
KEYS: dict[str, tuple[type, ...]] = {
    "count": (int,),
    "gpus": (int,),
    "gpu": (str,),
    "usd_per_gpu_hour": (int, float, str),
    "site": (str,),
    "rack_nodes": (int,),
    "nvlink_gpus": (int,),
    "cpu_milli": (int,),
    "memory_mib": (int,),
    "tier": (str,),
}


def parse_fleet(text: str) -> list[Node]:
    """'2x8:h100-sxm-80gb@2.50' -> two nodes of eight; a path that ends in .toml -> the nodes in that file."""
    if text.strip().endswith(".toml"):
        return read_fleet(Path(text.strip()))
    nodes: list[Node] = []
    for word in text.split("+"):
        found = WORD.fullmatch(word.strip())
        price = microusd_from_usd(found[4] or "0") if found else None
        if found is None or price is None:
            raise BadInput(say("sim.fleet_unreadable", fleet=Quoted(text)), hint=HINT)
        kind = {"count": int(found[1]), "gpus": int(found[2]), "gpu": found[3] or "gpu"}
        nodes += _nodes(kind, price, where=f"--fleet {text}", first=len(nodes))
    return nodes


def read_fleet(path: Path) -> list[Node]:
    """A fleet file: [[nodes]] tables with count, gpus, gpu, usd_per_gpu_hour and optional keys."""
    try:
        tables = read_toml(path)
    except FileNotFoundError as error:
        raise NotFound(say("sim.no_fleet_file", path=path), hint=HINT) from error
    except OSError as error:
        raise unreadable(say("sim.cannot_read", path=path, error=os_words(error)), error) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(say("sim.not_toml", path=path, error=error)) from error
    kinds: Any = tables.get("nodes")
    is_table = isinstance(kinds, list) and bool(kinds) and all(isinstance(kind, dict) for kind in kinds)
    if not is_table:
        raise BadInput(say("sim.no_nodes_table", path=path))
    nodes: list[Node] = []
    for i, kind in enumerate(kinds, start=1):
        nodes += _checked(kind, where=f"{path} [[nodes]] {i}", first=len(nodes))
    return nodes


def _checked(kind: dict[str, Any], *, where: str, first: int) -> list[Node]:
    for key, value in kind.items():
        if key not in KEYS:
            raise BadInput(say("sim.unknown_key", where=where, key=key, known=", ".join(KEYS)))
        if not isinstance(value, KEYS[key]) or isinstance(value, bool):
            raise BadInput(
                say("sim.bad_value", where=where, key=key, value=Quoted(value), kind=KEYS[key][0].__name__)
            )
    price = microusd_from_usd(str(kind.get("usd_per_gpu_hour", 0)))
    sizes = [kind.get(key, 0) for key in ("cpu_milli", "memory_mib", "rack_nodes", "nvlink_gpus")]
    if price is None or kind.get("tier", "owned") not in TIERS or min(sizes) < 0:
        raise BadInput(say("sim.fleet_row_out_of_range", where=where, known=", ".join(TIERS)))
    return _nodes(kind, price, where=where, first=first)


def _nodes(kind: dict[str, Any], price: int, *, where: str, first: int) -> list[Node]:
    count, gpus = kind.get("count", 1), kind.get("gpus", 0)
    if not (1 <= count <= MAX_NODES - first and 1 <= gpus <= MAX_GPUS_PER_NODE):
        raise BadInput(
            say(
                "sim.nodes_out_of_range",
                where=where,
                nodes=Number(count),
                gpus=Number(gpus),
                max_nodes=Number(MAX_NODES),
                max_gpus=Number(MAX_GPUS_PER_NODE),
            )
        )
    refuse_slip(kind.get("gpu", "gpu"))
    site, rack_nodes = kind.get("site", SITE), kind.get("rack_nodes", 0)
    return [
        Node(
            site=site,
            node=f"node-{first + i}",
            gpu=kind.get("gpu", "gpu"),
            gpus=gpus,
            microusd_per_gpu_hour=price,
            declared=True,
            rack=f"rack-{(first + i) // rack_nodes}" if rack_nodes else "",
            nvlink_gpus=kind.get("nvlink_gpus", 0),
            cpu_milli=kind.get("cpu_milli"),
            memory_mib=kind.get("memory_mib"),
            tier=kind.get("tier", "owned"),
        )
        for i in range(count)
    ]


def show_fleet(nodes: Sequence[Node]) -> Sentence | str:
    """'2 x 4 v100 + 6 x 4 k80', most frequent kinds first."""
    kinds = Counter((node.gpus, node.gpu) for node in nodes)
    words = [f"{count:,} x {gpus} {gpu}" for (gpus, gpu), count in kinds.most_common()]
    some = " + ".join(words[:4])
    return say("sim.more_kinds", some=some, count=len(words) - 4) if len(words) > 4 else some


def scaled(nodes: Sequence[Node], gpus: int) -> list[Node]:
    """The same mix of nodes with about this many GPUs: as close as whole nodes allow, at least one."""
    kinds = Counter(replace(node, node="", rack="", holes=()) for node in nodes)
    factor = gpus / sum(node.gpus for node in nodes)
    if len(nodes) * factor > MAX_NODES:
        raise BadInput(say("sim.too_many_nodes", gpus=Number(gpus), max_nodes=Number(MAX_NODES)))
    wanted = {kind: count * factor for kind, count in kinds.items()}
    counts = {kind: int(want) for kind, want in wanted.items()}
    # The remainder goes to the kinds that lost most by rounding down.
    for kind in sorted(wanted, key=lambda kind: counts[kind] - wanted[kind]):
        have = sum(kind.gpus * count for kind, count in counts.items())
        if have + kind.gpus / 2 <= gpus or not have:
            counts[kind] += 1
    kept = [kind for kind, count in counts.items() for _ in range(count)]
    return [replace(kind, node=f"node-{i}") for i, kind in enumerate(kept)]
