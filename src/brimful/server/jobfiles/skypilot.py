"""SkyPilot's task YAML, as its documentation describes it (docs.skypilot.co, "YAML spec")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brimful.adapters.engines.devices import catalog_names
from brimful.errors import BadInput
from brimful.language import Quoted, say
from brimful.server.jobfiles.jobfile import JobFile, integer, mebibytes, resolved

# Task fields that brimful does not support; the reasons: `jobfile.sky_<name>`.
CANNOT = ("file_mounts", "volumes", "service", "inputs", "outputs", "config", "event_callback", "pool")
CANNOT_RESOURCE = (
    *("ordered", "ports", "image_id", "disk_size", "disk_tier", "instance_type"),
    *("autostop", "job_recovery", "accelerator_args", "network_tier", "labels"),
)
PLACES = {"infra", "cloud", "region", "zone"}
KNOWN = {"name", "workdir", "num_nodes", "resources", "envs", "secrets", "setup", "run"}
KNOWN_RESOURCE = {"accelerators", "cpus", "memory", "use_spot", "any_of", *PLACES}
SPOT = {True: ["spot"], False: ["owned", "reserved", "on_demand"], None: []}


def is_skypilot(data: dict[str, Any]) -> bool:
    return "command" not in data and bool({"run", "resources", "setup", "num_nodes"} & data.keys())


def read_skypilot(data: dict[str, Any], path: Path) -> JobFile:
    resources = data.get("resources") or {}
    if not isinstance(resources, dict):
        raise BadInput(say("jobfile.resources_no_mapping", path=path))
    if not isinstance(data.get("run"), str) or not data["run"].strip():
        raise BadInput(say("jobfile.no_run", path=path))
    nodes = integer(data.get("num_nodes", 1), f"{path}: num_nodes")
    choices = _choices(resources, path)
    types, each = _accelerators(choices, path)
    setup = data.get("setup")
    script = f"set -e\n{setup}\n{data['run']}" if isinstance(setup, str) and setup.strip() else data["run"]
    body: dict[str, Any] = {
        "name": str(data.get("name") or ""),
        "folder": resolved(path.parent, data.get("workdir") or ".", f"{path}: workdir"),
        "command": ["bash", "-c", script],
        "gpus": each * nodes,
        "gpu_types": types,
        "tiers": _tiers(choices, path),
        "within": "node" if nodes == 1 else "site",
        "env": {**_pairs(data.get("envs"), path), **_pairs(data.get("secrets"), path)},
    }
    cpus = [_number(each["cpus"], f"{path}: cpus") for each in choices if each.get("cpus") is not None]
    memory = [mebibytes(each["memory"], f"{path}: memory") for each in choices if each.get("memory")]
    if cpus:
        body["cpus"] = max(cpus) * nodes
    if memory:
        body["memory_mib"] = max(memory) * nodes
    found = JobFile(kind="skypilot", body=body)
    _name_unsupported(found, data, {name: value for each in choices for name, value in each.items()})
    if all(len({str(each.get(name)) for each in choices}) > 1 for name in ("accelerators", "use_spot")):
        found.notes.append(say("jobfile.sky_any_pair"))
    if isinstance(setup, str) and setup.strip():
        found.notes.append(say("jobfile.sky_setup"))
    return found


def _name_unsupported(found: JobFile, data: dict[str, Any], resources: dict[str, Any]) -> None:
    for name in sorted(data.keys() - KNOWN):
        found.unsupported[name] = say(f"jobfile.sky_{name}" if name in CANNOT else "jobfile.no_field")
    for name in sorted(resources.keys() - KNOWN_RESOURCE):
        known = name in CANNOT_RESOURCE
        found.unsupported[f"resources.{name}"] = say(f"jobfile.sky_{name}" if known else "jobfile.no_field")
    for name in sorted(resources.keys() & PLACES):
        found.unsupported[f"resources.{name}"] = say("jobfile.sky_place")


def _choices(resources: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """`any_of`, each merged with the common settings; otherwise the single choice."""
    common = {name: value for name, value in resources.items() if name != "any_of"}
    given = resources.get("any_of")
    if given is None:
        return [common]
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        raise BadInput(say("jobfile.any_of_no_list", path=path))
    return [common | each for each in given]


def _tiers(choices: list[dict[str, Any]], path: Path) -> list[str]:
    """Where they may run: on spot, not on spot, or anywhere if they differ or do not say."""
    said = [each.get("use_spot") for each in choices]
    if not all(each is None or isinstance(each, bool) for each in said):
        raise BadInput(say("jobfile.cannot_be", field=f"{path}: use_spot", given=Quoted(str(said)[:60])))
    return SPOT[said[0]] if len({*said}) == 1 else []


def _accelerators(choices: list[dict[str, Any]], path: Path) -> tuple[list[str], int]:
    """'A100:4', {'A100': 4} or ['A100:4', 'H100:4']: the types, and how many per node."""
    pairs: list[tuple[Any, Any]] = []
    for given in (each.get("accelerators") for each in choices):
        if isinstance(given, dict):
            pairs += given.items()
        elif given is not None:
            words = given if isinstance(given, list) else [given]
            pairs += [(name, count or 1) for name, _, count in (str(word).partition(":") for word in words)]
    if not pairs:
        return [], 1
    counts = {integer(count, f"{path}: accelerators", most=1024) for _, count in pairs}
    if len(counts) != 1:
        raise BadInput(say("jobfile.accelerators_differ", path=path))
    return catalog_names(str(name) for name, _ in pairs), counts.pop()


def _number(given: object, what: str) -> float:
    text = str(given).rstrip("+")
    try:
        return float(text)
    except ValueError as error:
        raise BadInput(say("jobfile.not_a_number", what=what, given=Quoted(text[:40]))) from error


def _pairs(given: object, path: Path) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise BadInput(say("jobfile.envs_no_mapping", path=path))
    empty = [str(name) for name, value in given.items() if value is None]
    if empty:
        raise BadInput(say("jobfile.env_without_value", path=path, name=empty[0]))
    return {str(name): str(value) for name, value in given.items()}
