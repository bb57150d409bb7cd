"""SkyPilot's task YAML, as its documentation describes it (docs.skypilot.co, "YAML spec")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brimful.adapters.engines.devices import catalog_name
from brimful.errors import BadInput
from brimful.language import Quoted, say
from brimful.server.jobfiles.jobfile import JobFile, mebibytes

# What a task may say and brimful cannot do, and why.
CANNOT = {
    "file_mounts": "brimful copies no files; put them where the site can read them",
    "volumes": "brimful mounts no volumes",
    "service": "brimful runs jobs, not services",
    "inputs": "brimful moves no data",
    "outputs": "brimful moves no data",
    "config": "settings of SkyPilot itself",
    "event_callback": "use `brimful fleet events -f`",
    "pool": "use `queue` in a job file of brimful's own",
}
CANNOT_RESOURCE = {
    "use_spot": "a site says itself whether it is spot",
    "any_of": "name the GPU types instead: accelerators: {A100: 1, H100: 1}",
    "ordered": "name the GPU types instead",
    "ports": "brimful opens no ports",
    "image_id": "brimful starts no images",
    "disk_size": "brimful makes no disks",
    "disk_tier": "brimful makes no disks",
    "instance_type": "ask for GPUs, CPUs and memory",
    "autostop": "a lease ends with its job",
    "job_recovery": "use `retries` in a job file of brimful's own",
    "accelerator_args": "TPUs are not in the catalog",
    "network_tier": "use `within` in a job file of brimful's own",
    "labels": "brimful keeps no labels",
}
PLACES = ("infra", "cloud", "region", "zone")
KNOWN = {"name", "workdir", "num_nodes", "resources", "envs", "secrets", "setup", "run"}
KNOWN_RESOURCE = {"accelerators", "cpus", "memory", *PLACES}


def is_skypilot(data: dict[str, Any]) -> bool:
    return "command" not in data and bool({"run", "resources", "setup", "num_nodes"} & data.keys())


def read_skypilot(data: dict[str, Any], path: Path) -> JobFile:
    resources = data.get("resources") or {}
    if not isinstance(resources, dict):
        raise BadInput(say("server.resources_no_mapping", path=path))
    if not isinstance(data.get("run"), str) or not data["run"].strip():
        raise BadInput(say("server.no_run", path=path))
    nodes = data.get("num_nodes", 1)
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
        raise BadInput(say("server.num_nodes", path=path, str=Quoted(str(nodes)[:40])))
    types, each = _accelerators(resources.get("accelerators"), path)
    setup = data.get("setup")
    script = f"set -e\n{setup}\n{data['run']}" if isinstance(setup, str) and setup.strip() else data["run"]
    body: dict[str, Any] = {
        "name": str(data.get("name") or ""),
        "folder": str((path.parent / str(data.get("workdir") or ".")).resolve()),
        "command": ["bash", "-c", script],
        "gpus": each * nodes,
        "gpu_types": types,
        "within": "node" if nodes == 1 else "site",
        "env": {**_pairs(data.get("envs"), path), **_pairs(data.get("secrets"), path)},
    }
    if resources.get("cpus") is not None:
        body["cpus"] = _number(resources["cpus"], f"{path}: cpus") * nodes
    if resources.get("memory") is not None:
        body["memory_mib"] = mebibytes(resources["memory"], f"{path}: memory") * nodes
    found = JobFile(kind="skypilot", body=body)
    _name_the_rest(found, data, resources)
    if isinstance(setup, str) and setup.strip():
        found.notes.append("`setup` runs before `run`, at every start")
    return found


def _name_the_rest(found: JobFile, data: dict[str, Any], resources: dict[str, Any]) -> None:
    for name in data:
        if name not in KNOWN:
            found.unsupported[name] = CANNOT.get(name, "not a field that brimful knows")
    for name in resources:
        if name in PLACES:
            found.unsupported[f"resources.{name}"] = "brimful's sites are its own: --site, or `brimful fleet`"
        elif name not in KNOWN_RESOURCE:
            why = CANNOT_RESOURCE.get(name, "not a field that brimful knows")
            found.unsupported[f"resources.{name}"] = why


def _accelerators(given: object, path: Path) -> tuple[list[str], int]:
    """'A100:4', {'A100': 4} or ['A100:4', 'H100:4']: the types, and how many on each node."""
    if given is None:
        return [], 1
    if isinstance(given, dict):
        pairs = list(given.items())
    else:
        words = given if isinstance(given, list) else [given]
        pairs = [(name, count or 1) for name, _, count in (str(word).partition(":") for word in words)]
    counts = {_count(count, path) for _, count in pairs}
    if len(counts) != 1:
        raise BadInput(say("server.accelerators_asks_different_numbers_gpus", path=path))
    return [catalog_name(str(name)) for name, _ in pairs], counts.pop()


def _count(given: object, path: Path) -> int:
    text = str(given)
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1024):
        raise BadInput(say("server.accelerators_asks_gpus", path=path, text=Quoted(text[:40])))
    return int(text)


def _number(given: object, what: str) -> float:
    text = str(given).rstrip("+")
    try:
        return float(text)
    except ValueError as error:
        raise BadInput(
            say("server.is_2", what=what, text=Quoted(text[:40])), hint=say("server.hint_number_such_8_8")
        ) from error


def _pairs(given: object, path: Path) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise BadInput(say("server.envs_no_mapping", path=path))
    empty = [str(name) for name, value in given.items() if value is None]
    if empty:
        raise BadInput(say("server.envs_leaves_open", path=path, empty=Quoted(empty[0]), empty_2=empty[0]))
    return {str(name): str(value) for name, value in given.items()}
